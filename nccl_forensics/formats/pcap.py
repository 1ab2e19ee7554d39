"""Packet captures, pcap and pcapng: conversations, what they sent twice, what was refused.

The containers are small and documented (the pcap file format, draft-ietf-opsawg-pcap; pcapng, draft-ietf-opsawg-pcapng), so they are read
here without a library: nothing of a packet is trusted, and only headers are looked at. Link types: Ethernet with VLAN tags, Linux cooked
v1 and v2, raw IP, loopback. Of RDMA only RoCE v2 (UDP port 4791) is visible to a capture, and only where the NIC copies it.
"""

from __future__ import annotations

import ipaddress
import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from nccl_forensics.formats.base import DocumentFormat, Gap, Reading, Row, filled

_MAGIC = {
    b"\xa1\xb2\xc3\xd4": (">", 1000),
    b"\xd4\xc3\xb2\xa1": ("<", 1000),
    b"\xa1\xb2\x3c\x4d": (">", 1),
    b"\x4d\x3c\xb2\xa1": ("<", 1),
}
_PCAPNG = b"\x0a\x0d\x0d\x0a"
_ETHERNET, _NULL, _RAW_BSD, _RAW, _SLL, _IPV4, _IPV6, _SLL2 = 1, 0, 12, 101, 113, 228, 229, 276
_IP_OF = {_RAW, _RAW_BSD, _IPV4, _IPV6}
_VLAN = frozenset({0x8100, 0x88A8})
_TCP, _UDP, _ICMP, _ICMP6 = 6, 17, 1, 58
_ROCE_PORT = 4791
#: BTH operation codes (InfiniBand specification, volume 1, 9.2): acknowledgement, congestion notification.
_ACK, _CNP = 0x11, 0x81
_FIN, _SYN, _RST, _ACK_FLAG = 1, 2, 4, 16
#: Packets that are looked at, and packets and conversations that become rows.
_MOST_PACKETS, _MOST_ROWS, _MOST_FLOWS = 3_000_000, 5_000, 50_000
_LARGEST_PACKET = 1 << 20
_WORDS = {
    (_ICMP, 3): "destination unreachable",
    (_ICMP, 11): "time exceeded",
    (_ICMP6, 1): "destination unreachable",
    (_ICMP6, 2): "packet too big",
}

Content = bytes | mmap.mmap


@dataclass(slots=True)
class _Packet:
    """One captured packet: number from 1, time in ns, link type, captured bytes."""

    number: int
    time_ns: int | None
    link: int
    data: bytes


@dataclass(slots=True)
class _Flow:
    """Counts of one direction of a conversation."""

    row: Row
    first_ns: int | None
    last_ns: int | None
    counts: dict[str, int] = field(default_factory=dict)
    highest: int | None = None
    sent_ns: int | None = None
    silence_ns: int = 0
    acknowledged: int | None = None
    seen: set[int] = field(default_factory=set)

    def add(self, name: str, amount: int = 1) -> None:
        """Count."""
        self.counts[name] = self.counts.get(name, 0) + amount


class _Broken(Exception):
    """The container ends or contradicts itself at a packet."""


def _sniff(head: bytes) -> bool:
    return head[:4] in _MAGIC or (head[:4] == _PCAPNG and head[8:12] in (b"\x1a\x2b\x3c\x4d", b"\x4d\x3c\x2b\x1a"))


def read(data: Content) -> Reading:
    """Conversations of the capture, and its telling packets."""
    capture = _Capture()
    gaps: list[Gap] = []
    packets = _pcapng(data) if data[:4] == _PCAPNG else _pcap(data)
    number = 0
    try:
        for packet in packets:
            number = packet.number
            if number > _MOST_PACKETS:
                gaps.append(Gap(f"limit: only the first {_MOST_PACKETS:,} packets are read", record=f"packet[{number}]"))
                break
            capture.take(packet)
    except _Broken as problem:
        gaps.append(Gap(f"truncated: {problem}", record=f"packet[{number + 1}]"))
    if capture.left_out:
        gaps.append(Gap(f"limit: {capture.left_out} packets of further conversations are not counted", record=f"packet[{number}]"))
    flows, telling = capture.rows()
    frames = filled({"flows": flows, "packets": telling})
    return Reading(frames=frames, gaps=tuple(gaps), records=number)


def _pcap(data: Content) -> Iterator[_Packet]:
    order, unit = _MAGIC[bytes(data[:4])]
    if len(data) < 24:
        raise _Broken("its header is cut off")
    (link,) = struct.unpack_from(order + "I", data, 20)
    at, number = 24, 0
    while at < len(data):
        number += 1
        if at + 16 > len(data):
            raise _Broken("the file ends inside a packet's header")
        seconds, fraction, captured, _ = struct.unpack_from(order + "IIII", data, at)
        at += 16
        if captured > _LARGEST_PACKET:
            raise _Broken(f"a packet claims {captured} bytes")
        if at + captured > len(data):
            raise _Broken("the file ends inside a packet")
        yield _Packet(number, seconds * 1_000_000_000 + fraction * unit, link & 0x0FFFFFFF, bytes(data[at : at + captured]))
        at += captured


def _pcapng(data: Content) -> Iterator[_Packet]:
    order = "<"
    links: list[tuple[int, int]] = []  # link type and ns per tick, or minus the exponent of two
    at, number = 0, 0
    while at < len(data):
        if at + 12 > len(data):
            raise _Broken("the file ends inside a block")
        if data[at : at + 4] == _PCAPNG:
            order = ">" if data[at + 8 : at + 12] == b"\x1a\x2b\x3c\x4d" else "<"
            links = []
        kind, length = struct.unpack_from(order + "II", data, at)
        if length < 12 or length % 4 or at + length > len(data):
            raise _Broken(f"a block claims {length} bytes")
        body = bytes(data[at + 8 : at + length - 4])
        at += length
        if kind == 1 and len(body) >= 8:
            links.append((struct.unpack_from(order + "H", body)[0], _resolution(body[8:], order)))
        elif kind == 6 and len(body) >= 20:
            interface, high, low, captured, _ = struct.unpack_from(order + "IIIII", body)
            number += 1
            if interface >= len(links) or captured > len(body) - 20:
                raise _Broken("a packet of no interface, or longer than its block")
            link, tick = links[interface]
            ticks = high << 32 | low
            time = ticks * tick if tick > 0 else ticks * 1_000_000_000 >> -tick
            yield _Packet(number, time, link, body[20 : 20 + captured])
        elif kind == 3 and links and len(body) >= 4:
            number += 1
            yield _Packet(number, None, links[0][0], body[4:])


def _resolution(options: bytes, order: str) -> int:
    """Nanoseconds per tick (or minus the power of two) of an interface; microseconds unless option 9 says otherwise."""
    at = 0
    while at + 4 <= len(options):
        code, length = struct.unpack_from(order + "HH", options, at)
        if code == 9 and length == 1 and at + 4 < len(options):
            value = options[at + 4]
            if value & 0x80:
                return -(value & 0x7F) or 1_000_000_000
            return 10 ** (9 - value) if value <= 9 else 1
        at += 4 + length + (-length) % 4
    return 1000


class _Capture:
    """Conversations while the packets go by."""

    def __init__(self) -> None:
        self.flows: dict[tuple[object, ...], _Flow] = {}
        self.telling: list[Row] = []
        self.left_out = 0

    def take(self, packet: _Packet) -> None:
        """Count one packet; what is no IP, or too short for its headers, counts for nothing."""
        found = _network(packet)
        if found is None:
            return
        version, data = found
        try:
            self._ip(packet, version, data)
        except (struct.error, IndexError):
            return

    def _ip(self, packet: _Packet, version: int, data: bytes) -> None:
        if version == 4:
            start = (data[0] & 15) * 4
            total, protocol = struct.unpack_from("!H", data, 2)[0], data[9]
            offset = struct.unpack_from("!H", data, 6)[0] & 0x1FFF
            source, destination = data[12:16], data[16:20]
            size = (total or len(data)) - start
        else:
            start, protocol, offset = 40, data[6], 0
            source, destination = data[8:24], data[24:40]
            size = struct.unpack_from("!H", data, 4)[0]
        if offset or len(destination) not in (4, 16):
            return
        if protocol == _TCP:
            self._tcp(packet, source, destination, data[start:], size)
        elif protocol == _UDP and struct.unpack_from("!H", data, start + 2)[0] == _ROCE_PORT:
            self._roce(packet, source, destination, data[start + 8 :], size - 8)
        elif protocol in (_ICMP, _ICMP6):
            self._icmp(packet, protocol, source, destination, data[start:])

    def _flow(self, packet: _Packet, key: tuple[object, ...], row: Row) -> _Flow | None:
        flow = self.flows.get(key)
        if flow is None:
            if len(self.flows) >= _MOST_FLOWS:
                self.left_out += 1
                return None
            flow = self.flows[key] = _Flow({"record": f"packet[{packet.number}]", **row}, packet.time_ns, packet.time_ns)
        flow.last_ns = packet.time_ns if packet.time_ns is not None else flow.last_ns
        flow.add("packets")
        return flow

    def _tcp(self, packet: _Packet, source: bytes, destination: bytes, data: bytes, size: int) -> None:
        a, b, seq, ack, offset, flags, window = struct.unpack_from("!HHIIBBH", data)
        payload = max(0, size - (offset >> 4) * 4)
        key = ("tcp", source, a, destination, b)
        ends: Row = {
            "protocol": "tcp",
            "source": _address(source),
            "source_port": a,
            "destination": _address(destination),
            "destination_port": b,
        }
        flow = self._flow(packet, key, ends)
        if flow is None:
            return
        if flags & _SYN:
            flow.add("syn_acks" if flags & _ACK_FLAG else "syns")
        if flags & _FIN:
            flow.add("fins")
        if flags & _RST:
            flow.add("resets")
            self._tell(packet, {**ends, "flags": "R", "seq": seq, "length_bytes": payload})
        elif window == 0 and not flags & _SYN:
            flow.add("zero_windows")
        if payload:
            flow.add("bytes", payload)
            end = seq + payload
            if flow.highest is not None and 0 < (flow.highest - end + 1) & 0xFFFFFFFF <= 1 << 31:
                flow.add("resent")
            else:
                flow.highest = end & 0xFFFFFFFF
            self._silent(flow, packet.time_ns)
            flow.sent_ns = packet.time_ns
        back = self.flows.get(("tcp", destination, b, source, a))
        if back is not None and flags & _ACK_FLAG:
            if back.acknowledged != ack:
                self._silent(back, packet.time_ns)
                back.sent_ns = None if back.highest == ack else packet.time_ns
            back.acknowledged = ack

    def _silent(self, flow: _Flow, now: int | None) -> None:
        """A pause counts while data of the direction waits for its acknowledgement."""
        if flow.sent_ns is not None and now is not None:
            flow.silence_ns = max(flow.silence_ns, now - flow.sent_ns)

    def _roce(self, packet: _Packet, source: bytes, destination: bytes, data: bytes, size: int) -> None:
        code = data[0]
        pair = int.from_bytes(data[5:8], "big")
        sequence = int.from_bytes(data[9:12], "big")
        ends: Row = {"protocol": "roce", "source": _address(source), "destination": _address(destination), "queue_pair": pair}
        flow = self._flow(packet, ("roce", source, destination, pair), ends)
        if flow is None:
            return
        if code == _CNP:
            flow.add("cnps")
        elif code == _ACK:
            # The syndrome's two bits above the credits: 0 acknowledges, 1 asks to wait, 3 refuses.
            if len(data) > 12 and data[12] >> 5 & 3 in (1, 3):
                flow.add("naks")
        else:
            flow.add("bytes", max(0, size - 16))
            if sequence in flow.seen:
                flow.add("resent")
            elif len(flow.seen) < 100_000:
                flow.seen.add(sequence)

    def _icmp(self, packet: _Packet, protocol: int, source: bytes, destination: bytes, data: bytes) -> None:
        kind, code = data[0], data[1]
        words = _WORDS.get((protocol, kind))
        if words is None:
            return
        mtu = None
        if (protocol, kind, code) == (_ICMP, 3, 4):
            words, mtu = "unreachable - need to frag", struct.unpack_from("!H", data, 6)[0] or None
        elif (protocol, kind) == (_ICMP6, 2):
            mtu = struct.unpack_from("!I", data, 4)[0]
        ends: Row = {"protocol": "icmp", "source": _address(source), "destination": _address(destination)}
        self._tell(packet, {**ends, "message": f"{words}{f' (mtu {mtu})' if mtu else ''}", "mtu_bytes": mtu})

    def _tell(self, packet: _Packet, row: Row) -> None:
        if len(self.telling) < _MOST_ROWS:
            stamp = {"time_raw_ns": packet.time_ns, "time_kind": "epoch" if packet.time_ns is not None else None}
            self.telling.append({"record": f"packet[{packet.number}]", **stamp, **row})

    def rows(self) -> tuple[list[Row], list[Row]]:
        """Rows of ``flows`` and ``packets``."""
        flows: list[Row] = []
        for flow in self.flows.values():
            counted = {n: flow.counts.get(n, 0) for n in _COUNTED[str(flow.row["protocol"])]}
            timed = flow.first_ns is not None and flow.last_ns is not None
            flows.append(
                {
                    **flow.row,
                    **counted,
                    "time_raw_ns": flow.first_ns,
                    "time_kind": "epoch" if flow.first_ns is not None else None,
                    "longest_silence_ms": flow.silence_ns / 1e6 if flow.row["protocol"] == "tcp" else None,
                    "duration_s": (flow.last_ns - flow.first_ns) / 1e9 if timed and flow.last_ns and flow.first_ns else None,
                }
            )
        return flows, self.telling


_COUNTED = {
    "tcp": ("packets", "bytes", "resent", "syns", "syn_acks", "resets", "fins", "zero_windows"),
    "roce": ("packets", "bytes", "resent", "naks", "cnps"),
}


def _network(packet: _Packet) -> tuple[int, bytes] | None:
    """IP version and the packet from its IP header on; None where it is no IP."""
    data, link = packet.data, packet.link
    if link in _IP_OF:
        return _version(data)
    if link == _NULL:
        return _version(data[4:])
    if link == _SLL:
        return _typed(int.from_bytes(data[14:16], "big"), data[16:])
    if link == _SLL2:
        return _typed(int.from_bytes(data[0:2], "big"), data[20:])
    if link != _ETHERNET:
        return None
    at = 12
    for _ in range(3):
        kind = int.from_bytes(data[at : at + 2], "big")
        if kind not in _VLAN:
            return _typed(kind, data[at + 2 :])
        at += 4
    return None


def _typed(kind: int, data: bytes) -> tuple[int, bytes] | None:
    return _version(data) if kind in (0x0800, 0x86DD) else None


def _version(data: bytes) -> tuple[int, bytes] | None:
    version = data[0] >> 4 if data else 0
    return (version, data) if version in (4, 6) else None


def _address(raw: bytes) -> str:
    return str(ipaddress.ip_address(raw))


FORMAT = DocumentFormat(
    name="pcap",
    title="Packet capture (pcap, pcapng)",
    tables=("flows", "packets"),
    sniff=_sniff,
    read=read,
    priority=8,
    mapped=True,
)
