"""TCP sockets (``ss -tinp``) and packets (``tcpdump -n`` text)."""

from __future__ import annotations

import re

import polars as pl

from nccl_forensics.formats.base import Reading, Row, Text, TextFormat, filled, line_numbers
from nccl_forensics.grammar.blocks import Line, classify, moment, real, whole
from nccl_forensics.values.units import is_number

_SOCKET = r"^\s*(?:ESTAB|SYN-SENT|SYN-RECV|FIN-WAIT-\d|TIME-WAIT|CLOSE-WAIT|LAST-ACK|CLOSING|LISTEN|UNCONN|CLOSED)\s+\d+\s+\d+\s+\S+:\S+\s+\S+:\S+"
_INFO = r"^\s+(?:ts |sack |cubic |bbr |reno |dctcp |ecn |htcp )"
_PACKET = r"^(?:\d{4}-\d\d-\d\d )?(?:\d\d:\d\d:\d\d|\d{10})\.\d{6} IP6? "
_OTHER = r"^\s*(?:State\s+Recv-Q|\d+ packets (?:captured|received by filter|dropped by kernel))"
_PROCESS = re.compile(r'users:\(\("([^"]+)",pid=(\d+)')
_MTU = re.compile(r"mtu (\d+)")
_COLUMNS = {
    "mss": "mss_bytes",
    "pmtu": "pmtu_bytes",
    "cwnd": "cwnd",
    "lost": "lost",
    "unacked": "unacked",
    "backoff": "backoff",
    "bytes_sent": "bytes_sent",
    "bytes_retrans": "bytes_retrans",
    "bytes_received": "bytes_received",
    "lastsnd": "last_sent_ms",
    "lastrcv": "last_received_ms",
    "lastack": "last_ack_ms",
}
_SECOND_NS = 1_000_000_000


def read(text: Text) -> Reading:
    """Sockets with what the line below them says, and packets."""
    picked = text.lines.filter(pl.col("text").str.contains(f"{_SOCKET}|{_INFO}|{_PACKET}|{_OTHER}"))
    sockets: list[Row] = []
    packets: list[Row] = []
    claimed: list[int] = []
    last: tuple[int, Row] | None = None
    for line in classify(picked, "sockets", strip=True):
        match line.kind:
            case "socket":
                row = _socket(line)
                sockets.append(row)
                last = (line.number, row)
                _details(row, line.get("rest") or "")
            case "info" if last is not None and line.number - last[0] <= 2:
                _details(last[1], line.text)
                last[1]["end_line"] = line.number
            case "tcp_packet" | "icmp_packet" | "udp_packet":
                packets.append(_packet(line))
            case "socket_head" | "captured":
                pass
            case _:
                continue
        claimed.append(line.number)
    found = {"sockets": sockets, "packets": packets}
    return Reading(frames=filled(found), lines=line_numbers(claimed))


def _socket(line: Line) -> Row:
    get = line.get
    process = _PROCESS.search(get("rest") or "")
    return {
        **line.where,
        "state": get("state"),
        "recv_q_bytes": whole(get("recv_q")),
        "send_q_bytes": whole(get("send_q")),
        "local": get("local"),
        "peer": get("peer"),
        "process": process.group(1) if process else None,
        "pid": int(process.group(2)) if process else None,
    }


def _details(row: Row, text: str) -> None:
    for word in text.split():
        key, _, value = word.partition(":")
        if key in _COLUMNS:
            row[_COLUMNS[key]] = whole(value)
        elif key == "rtt":
            row["rtt_ms"] = real(value.split("/")[0])
        elif key == "rto":
            row["rto_ms"] = real(value)
        elif key == "retrans" and "/" in value:
            now, total = value.split("/")[:2]
            row["retrans_now"], row["retrans_total"] = whole(now), whole(total)


def _packet(line: Line) -> Row:
    get = line.get
    kind = {"tcp_packet": "tcp", "udp_packet": "udp", "icmp_packet": "icmp"}[line.kind or ""]
    source, destination = get("source") or "", get("destination") or ""
    first, _, last = (get("seq") or "").partition(":")
    mtu = _MTU.search(get("message") or "")
    row: Row = {
        **line.where,
        "protocol": kind,
        "flags": get("flags"),
        "seq": whole(first or None),
        "seq_end": whole(last or None),
        "window": whole(get("window")),
        "length_bytes": whole(get("length")),
        "message": (get("message") or "").strip(" ,") or None,
        "mtu_bytes": int(mtu.group(1)) if mtu else None,
    }
    for name, end in (("source", source), ("destination", destination)):
        address, _, port = end.rpartition(".")
        with_port = kind != "icmp" and address != ""
        row[name] = address if with_port else end
        row[f"{name}_port"] = whole(port) if with_port else None
    row.update(_time(get("clock") or ""))
    return row


def _time(clock: str) -> Row:
    """A clock without a date is a time of some day, which orders nothing across sources: only dated ones are kept."""
    seconds, _, micros = clock.rpartition(".")
    if is_number(seconds) and len(seconds) <= 10 and is_number(micros):
        return {"time_raw_ns": int(seconds) * _SECOND_NS + int(micros) * 1000, "time_kind": "epoch"}
    dated = moment(seconds.replace(" ", "T")) if " " in seconds else None
    return {} if dated is None else {"time_raw_ns": dated + int(micros) * 1000, "time_kind": "local-unzoned"}


FORMAT = TextFormat(
    name="sockets",
    title="ss -ti, tcpdump (text)",
    tables=("sockets", "packets"),
    anchors=("ESTAB ", "SYN-SENT ", "CLOSE-WAIT ", "LISTEN ", "Recv-Q", " IP ", " IP6 ", "TIME-WAIT "),
    read=read,
    priority=46,
)
