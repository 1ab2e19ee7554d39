"""Packet captures: containers, link types, conversations."""

from __future__ import annotations

import ipaddress
import struct

import pytest

from nccl_forensics.reading.source import read_source
from tests.corpus import ROOT

A, B = "10.0.0.11", "10.0.0.12"
SYN, ACK, RST, PSH = 2, 16, 4, 8


def ip(source: str, destination: str, protocol: int, body: bytes) -> bytes:
    a, b = ipaddress.ip_address(source), ipaddress.ip_address(destination)
    if a.version == 6:
        return struct.pack("!IHBB", 6 << 28, len(body), protocol, 64) + a.packed + b.packed + body
    return struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(body), 1, 0, 64, protocol, 0) + a.packed + b.packed + body


def tcp(
    source: str, destination: str, ports: tuple[int, int], seq: int, flags: int, size: int = 0, ack: int = 0, window: int = 500
) -> bytes:
    head = struct.pack("!HHIIBBHHH", *ports, seq, ack, 5 << 4, flags, window, 0, 0)
    return ip(source, destination, 6, head + bytes(size))


def roce(code: int, sequence: int, syndrome: int = 0) -> bytes:
    bth = struct.pack("!BBHB", code, 0, 0xFFFF, 0) + (77).to_bytes(3, "big") + b"\0" + sequence.to_bytes(3, "big")
    body = bth + bytes([syndrome, 0, 0, 1]) + bytes(64)
    return ip(A, B, 17, struct.pack("!HHHH", 50000, 4791, 8 + len(body), 0) + body)


def ethernet(packet: bytes, vlan: bool = False) -> bytes:
    kind = b"\x86\xdd" if packet[0] >> 4 == 6 else b"\x08\x00"
    return bytes(12) + (b"\x81\x00\x00\x07" if vlan else b"") + kind + packet


def pcap(*packets: bytes, order: str = "<", nano: bool = False, link: int = 1, step_us: int = 1000) -> bytes:
    head = struct.pack(order + "IHHiIII", 0xA1B23C4D if nano else 0xA1B2C3D4, 2, 4, 0, 0, 65535, link)
    body = b""
    for n, packet in enumerate(packets):
        fraction = n * step_us * (1000 if nano else 1)
        body += struct.pack(
            order + "IIII", 1_700_000_000 + n * step_us // 1_000_000, fraction % (10**9 if nano else 10**6), len(packet), len(packet)
        )
        body += packet
    return head + body


def pcapng(*packets: bytes, order: str = "<") -> bytes:
    def block(kind: int, body: bytes) -> bytes:
        padded = body + bytes(-len(body) % 4)
        return struct.pack(order + "II", kind, len(padded) + 12) + padded + struct.pack(order + "I", len(padded) + 12)

    out = block(0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1))
    # Option 9: resolution of nanoseconds.
    out += block(
        1, struct.pack(order + "HHI", 1, 0, 65535) + struct.pack(order + "HH", 9, 1) + b"\x09\0\0\0" + struct.pack(order + "HH", 0, 0)
    )
    for n, packet in enumerate(packets):
        time = 1_700_000_000_000_000_000 + n * 1_000_000
        out += block(6, struct.pack(order + "IIIII", 0, time >> 32, time & 0xFFFFFFFF, len(packet), len(packet)) + packet)
    return out


TALK = [
    tcp(A, B, (45678, 29500), 100, SYN),
    tcp(B, A, (29500, 45678), 900, SYN | ACK, ack=101),
    tcp(A, B, (45678, 29500), 101, ACK | PSH, size=1000, ack=901),
    tcp(A, B, (45678, 29500), 1101, ACK | PSH, size=1000, ack=901),
    tcp(A, B, (45678, 29500), 101, ACK | PSH, size=1000, ack=901),
    tcp(B, A, (29500, 45678), 901, ACK, ack=2101, window=0),
    tcp(B, A, (29500, 45678), 901, RST),
]
FORMS = {
    "microseconds": pcap(*map(ethernet, TALK)),
    "big-endian-nanoseconds": pcap(*map(ethernet, TALK), order=">", nano=True),
    "vlan": pcap(*[ethernet(p, vlan=True) for p in TALK]),
    "raw": pcap(*TALK, link=101),
    "cooked": pcap(*[bytes(14) + b"\x08\x00" + p for p in TALK], link=113),
    "cooked-2": pcap(*[b"\x08\x00" + bytes(18) + p for p in TALK], link=276),
    "pcapng": pcapng(*map(ethernet, TALK)),
    "pcapng-big-endian": pcapng(*map(ethernet, TALK), order=">"),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_container_and_link_type_gives_the_same_conversation(form: str) -> None:
    found = read_source(FORMS[form])
    assert (found.formats, found.records, found.error) == (("pcap",), 7, None)
    columns = ["record", "source", "source_port", "packets", "bytes", "resent", "syns", "syn_acks", "resets", "zero_windows"]
    assert found.frames["flows"].select(columns).rows() == [
        ("packet[1]", A, 45678, 4, 3000, 1, 1, 0, 0, 0),
        ("packet[2]", B, 29500, 3, 0, 0, 0, 1, 1, 1),
    ]
    first = found.frames["flows"].row(0, named=True)
    assert (first["time_raw_ns"], first["time_kind"], first["longest_silence_ms"]) == (1_700_000_000_000_000_000, "epoch", 1.0)
    [reset] = found.frames["packets"].to_dicts()
    assert (reset["record"], reset["flags"], reset["source"]) == ("packet[7]", "R", B)


def test_a_router_that_needs_smaller_packets_is_told_with_its_mtu() -> None:
    frag = ip("10.0.0.1", A, 1, struct.pack("!BBHHH", 3, 4, 0, 0, 1500) + bytes(28))
    big = ip("fe80::1", "fe80::2", 58, struct.pack("!BBHI", 2, 0, 0, 1280) + bytes(28))
    rows = read_source(pcap(ethernet(frag), ethernet(big))).frames["packets"].select("source", "message", "mtu_bytes").rows()
    assert rows == [
        ("10.0.0.1", "unreachable - need to frag (mtu 1500)", 1500),
        ("fe80::1", "packet too big (mtu 1280)", 1280),
    ]


def test_roce_counts_repeats_refusals_and_congestion() -> None:
    packets = [roce(10, 1), roce(10, 2), roce(10, 1), roce(0x11, 2, syndrome=0x60), roce(0x11, 2, syndrome=0x1F), roce(0x81, 0)]
    [flow] = read_source(pcap(*map(ethernet, packets))).frames["flows"].to_dicts()
    assert (flow["protocol"], flow["queue_pair"], flow["packets"]) == ("roce", 77, 6)
    assert (flow["resent"], flow["naks"], flow["cnps"], flow["syns"]) == (1, 1, 1, None)


def test_sequence_numbers_may_wrap_around() -> None:
    talk = [
        tcp(A, B, (1, 2), 0xFFFFFF00, ACK, size=512),
        tcp(A, B, (1, 2), 0x100, ACK, size=512),
        tcp(A, B, (1, 2), 0xFFFFFF00, ACK, size=512),
    ]
    assert read_source(pcap(*map(ethernet, talk))).frames["flows"]["resent"].to_list() == [1]


@pytest.mark.parametrize("cut", [10, 24, 30, 45, 90, 200])
@pytest.mark.parametrize("form", ["microseconds", "pcapng"])
def test_a_capture_that_is_cut_off_keeps_what_it_holds(form: str, cut: int) -> None:
    found = read_source(FORMS[form][:cut])
    assert found.records < 7
    assert found.error or found.gap_lines or found.records or cut == 24


def test_nonsense_inside_packets_counts_for_nothing() -> None:
    short = [ethernet(TALK[0])[:n] for n in range(1, 50)]  # ports, sequence and flags need 16 bytes of TCP
    found = read_source(pcap(*short, ethernet(TALK[0])))
    assert found.error is None
    assert found.frames["flows"]["packets"].sum() == 1


def test_lengths_that_lie_end_the_reading_with_a_gap() -> None:
    lying = pcap(ethernet(TALK[0])) + struct.pack("<IIII", 0, 0, 0xFFFFFFFF, 1)
    found = read_source(lying)
    assert found.frames["gaps"]["reason"].to_list() == ["truncated: a packet claims 4294967295 bytes"]
    assert found.frames["flows"].height == 1


def test_the_fixture_is_read() -> None:
    found = read_source((ROOT / "fixtures" / "pcap" / "sample.pcap").read_bytes())
    assert found.frames["flows"]["packets"].sum() == 7
