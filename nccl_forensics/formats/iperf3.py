"""iperf3 as text and JSON (``-J`` and ``--json-stream``). Rates count 10^9 bits, transfers 2^10 steps, as iperf3 itself does."""

from __future__ import annotations

import re
from collections.abc import Mapping

import orjson
import polars as pl

from nccl_forensics.formats.base import DocumentFormat, Gap, Reading, Row, Text, TextFormat, filled, line_numbers
from nccl_forensics.grammar.blocks import Line, after, classify, real, whole
from nccl_forensics.values.documents import mapping

_OPENS = r"^(?:Connecting to host |\[ ID\] Interval|\[ *\d+\](?:\[[TR]X-[CS]\])? local |iperf3: |Accepted connection from )"
_BYTES = {"Bytes": 1.0, "KBytes": 2.0**10, "MBytes": 2.0**20, "GBytes": 2.0**30, "TBytes": 2.0**40}
_BITS = {"bits/sec": 1e-9, "Kbits/sec": 1e-6, "Mbits/sec": 1e-3, "Gbits/sec": 1.0, "Tbits/sec": 1e3}


def read(text: Text) -> Reading:
    """One row per interval, summary or error."""
    rows: list[Row] = []
    claimed: list[int] = []
    test = -1
    ends: dict[str, tuple[str | None, str | None]] = {}
    open_block = False
    for line in classify(after(text.lines, pl.col("text").str.contains(_OPENS), reach=2000), "iperf3"):
        get = line.get
        match line.kind:
            case "connecting":
                test, ends, open_block = test + 1, {}, True
            case "local":
                test, open_block = max(test, 0), True
                ends[get("stream") or ""] = (get("local"), get("remote"))
            case "interval":
                test, open_block = max(test, 0), True
                rows.append({**line.where, "test": test, **_interval(line, ends)})
            case "error":
                test = max(test, 0)
                rows.append({**line.where, "test": test, "error": get("message"), "summary": True})
            case "header" | "done" | "chatter":
                open_block = True
            case "rule" if open_block:
                pass
            case _:
                if line.text.strip():
                    open_block = False
                continue
        claimed.append(line.number)
    return Reading(frames=filled({"tcp_tests": rows}), lines=line_numbers(claimed))


def _interval(line: Line, ends: Mapping[str, tuple[str | None, str | None]]) -> Row:
    get = line.get
    stream = get("stream") or ""
    rest = (get("rest") or "").split()
    local, remote = ends.get(stream) or next(iter(ends.values()), (None, None))
    role = rest[-1] if rest and rest[-1] in ("sender", "receiver") else None
    start, end = real(get("start")), real(get("end"))
    transfer, rate = real(get("transfer")), real(get("rate"))
    lost = next((word for word in rest if "/" in word and word.replace("/", "").isdigit()), None)
    return {
        "stream": stream,
        "local": local,
        "remote": remote,
        "role": role,
        "summary": role is not None,
        "seconds": end - start if start is not None and end is not None else None,
        "bytes": transfer * _BYTES[get("transfer_unit") or "Bytes"] if transfer is not None else None,
        "gbit_s": rate * _BITS[get("rate_unit") or "bits/sec"] if rate is not None else None,
        "retransmits": whole(rest[0]) if rest and lost is None and role != "receiver" else None,
        "lost_packets": whole(lost.split("/")[0]) if lost else None,
        "packets": whole(lost.split("/")[1]) if lost else None,
    }


def _sniff_json(head: bytes) -> bool:
    return head.lstrip()[:1] == b"{" and (
        (b'"start"' in head and b'"connected"' in head and (b'"cookie"' in head or b'"test_start"' in head))
        or b'{"event":"start"' in head
        or b'"iperf3: error' in head
        # A test that found no server has neither of them, but says who wrote it (from 3.1 on).
        or (b'"start"' in head and re.search(rb'"version"\s*:\s*"iperf 3', head) is not None)
    )


def _read_json(data: bytes) -> Reading:
    gaps: tuple[Gap, ...] = ()
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError as problem:
        document = _stream(data)
        if not document:
            return Reading(gaps=(Gap(f"unreadable: {problem}"[:200]),))
    start, end = mapping(document.get("start")), mapping(document.get("end"))
    connected = start.get("connected")
    first = mapping(connected[0]) if isinstance(connected, list) and connected else {}
    cpu = mapping(end.get("cpu_utilization_percent")).get("host_total")
    own: Row = {
        "test": 0,
        "local": first.get("local_host"),
        "remote": first.get("remote_host") or mapping(start.get("connecting_to")).get("host"),
        "summary": True,
        "mss_bytes": start.get("tcp_mss_default"),
        "cpu_percent": cpu,
    }
    rows: list[Row] = []
    for key, role in (("sum_sent", "sender"), ("sum_received", "receiver"), ("sum", "sender")):
        total = mapping(end.get(key))
        bits = total.get("bits_per_second")
        if isinstance(bits, (int, float)) and not (key == "sum" and rows):
            rows.append(
                {
                    **own,
                    "record": f"end.{key}",
                    "stream": "SUM",
                    "role": role,
                    "seconds": total.get("seconds"),
                    "bytes": total.get("bytes"),
                    "gbit_s": bits / 1e9,
                    "retransmits": total.get("retransmits"),
                    "lost_packets": total.get("lost_packets"),
                    "packets": total.get("packets"),
                }
            )
    if document.get("error"):
        rows.append({**own, "record": "error", "error": str(document["error"]).removeprefix("error - ")})
    if not rows:
        gaps = (Gap("truncated: no summary at its end"),)
    return Reading(frames=filled({"tcp_tests": rows}), gaps=gaps, records=len(rows))


def _stream(data: bytes) -> dict[str, object]:
    """--json-stream: one object per line, with an event and its data."""
    out: dict[str, object] = {}
    for line in data.splitlines():
        try:
            event = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        if isinstance(event, dict) and event.get("event") in ("start", "end", "error"):
            out[str(event["event"])] = event.get("data")
    return out


FORMATS = (
    TextFormat(
        name="iperf3",
        title="iperf3 (text)",
        tables=("tcp_tests",),
        anchors=("Connecting to host ", "bits/sec", "iperf3: ", "[ ID] Interval"),
        read=read,
        priority=36,
    ),
    DocumentFormat(name="iperf3-json", title="iperf3 (JSON)", tables=("tcp_tests",), sniff=_sniff_json, read=_read_json, priority=25),
)
