"""NCCL's example profiler plugin (2.23.4 and later): an array of trace events, closed by an empty object, or not closed at all.

Only the collectives and point-to-point operations are read: they begin on the CPU when the operation is enqueued and end when it is done.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import orjson

from nccl_forensics.formats.base import DocumentFormat, Gap, Reading, Row, filled
from nccl_forensics.values.documents import items


def sniff(head: bytes) -> bool:
    """An array of events with the plugin's arguments, which no other profiler writes."""
    return head.lstrip()[:1] == b"[" and b'"CommHash"' in head and b'"SeqNum"' in head


def read(data: bytes) -> Reading:
    """One row per operation with its beginning and end; of a file that was cut off, those that are whole."""
    gaps: list[Gap] = []
    try:
        events = orjson.loads(data)
    except orjson.JSONDecodeError:
        events = list(_whole_lines(data))
        gaps.append(Gap("truncated", record="end of the array"))
    rows = list(_operations(items(events)))
    if not rows and not gaps:
        gaps.append(Gap("unparsed: no operation with its beginning and end", record="[0]"))
    return Reading(frames=filled({"nccl_inspector": rows}), gaps=tuple(gaps), records=len(rows))


def _whole_lines(data: bytes) -> Iterator[object]:
    """The plugin writes one event per line."""
    for line in data.split(b"\n"):
        body = line.strip().lstrip(b"[").rstrip(b",").strip()
        if body[:1] != b"{":
            continue
        try:
            yield orjson.loads(body)
        except orjson.JSONDecodeError:
            continue


def _operations(events: list[object]) -> Iterator[Row]:
    open_: dict[object, tuple[int, Mapping[str, object]]] = {}
    for n, event in enumerate(events):
        if not isinstance(event, Mapping) or event.get("cat") not in ("COLL", "P2P"):
            continue
        key = (event.get("cat"), event.get("id"), event.get("pid"))
        if event.get("ph") == "b":
            open_[key] = (n, event)
        elif event.get("ph") == "e" and key in open_:
            begin, first = open_.pop(key)
            yield from _row(begin, first, event)


def _row(number: int, begin: Mapping[str, object], end: Mapping[str, object]) -> Iterator[Row]:
    args, start, stop = begin.get("args"), begin.get("ts"), end.get("ts")
    if not isinstance(args, Mapping) or not isinstance(start, int | float) or not isinstance(stop, int | float):
        return
    hash_ = args.get("CommHash")
    yield {
        "record": f"[{number}]",
        "pid": begin.get("pid"),
        "comm_id": f"0x{hash_:x}" if isinstance(hash_, int) and hash_ >= 0 else None,
        "rank": args.get("Rank"),
        "op": begin.get("name"),
        "seq": args.get("SeqNum"),
        "peer": args.get("Peer"),
        "time_us": float(stop) - float(start),
        "timing_source": "collective_cpu",
    }


FORMAT = DocumentFormat(
    name="nccl-profiler", title="NCCL's example profiler plugin", tables=("nccl_inspector",), sniff=sniff, read=read, priority=7
)
