"""The NCCL Inspector (profiler plugin, NCCL 2.28.3 and later): one JSON object per line and completed operation."""

from __future__ import annotations

import orjson

from nccl_forensics.formats.base import Gap, Reading, Text, TextFormat, line_numbers
from nccl_forensics.tables import TABLES
from nccl_forensics.values.documents import mapping

_START = '{"header":'
_KINDS = (("coll_perf", "coll"), ("p2p_perf", "p2p"))


def read(text: Text) -> Reading:
    """Every line that is an object of the Inspector; one that is cut off is a gap."""
    rows: list[dict[str, object]] = []
    gaps: list[Gap] = []
    for line_no, line in text.hits.select("line_no", "text").iter_rows():
        if not line.startswith(_START):
            continue
        row = _row(line)
        if row is None:
            gaps.append(Gap("truncated" if not line.rstrip().endswith("}") else "unparsed", line_no, text=line[:200]))
        else:
            rows.append({"line_no": line_no, **row})
    table = TABLES["nccl_inspector"]
    return Reading(
        frames={"nccl_inspector": table.frame(rows)} if rows else {},
        lines=line_numbers([int(str(row["line_no"])) for row in rows]),
        gaps=tuple(gaps),
        records=len(rows),
    )


def _row(line: str) -> dict[str, object] | None:
    try:
        found = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(found, dict):
        return None
    header, metadata = mapping(found.get("header")), mapping(found.get("metadata"))
    for part, word in _KINDS:
        perf = mapping(found.get(part))
        if not perf:
            continue
        stamp = metadata.get("dump_timestamp_us")
        return {
            "time_raw_ns": stamp * 1000 if isinstance(stamp, int) else None,
            "time_kind": "epoch" if isinstance(stamp, int) else None,
            "host": metadata.get("hostname"),
            "pid": metadata.get("pid"),
            "comm_id": comm_id(header.get("id")),
            "comm_name": header.get("comm_name"),
            "rank": header.get("rank"),
            "nranks": header.get("n_ranks"),
            "nodes": header.get("nnodes"),
            "op": perf.get(word),
            "seq": perf.get(f"{word}_sn"),
            "peer": perf.get("p2p_peer"),
            "size_bytes": perf.get(f"{word}_msg_size_bytes"),
            "time_us": perf.get(f"{word}_exec_time_us"),
            "timing_source": perf.get(f"{word}_timing_source"),
            "alg_bw_gb_s": perf.get(f"{word}_algobw_gbs"),
            "bus_bw_gb_s": perf.get(f"{word}_busbw_gbs"),
        }
    return None


def comm_id(value: object) -> str | None:
    """As Init lines print it: 0x and no leading zeros."""
    text = str(value or "").lower().removeprefix("0x").lstrip("0")
    return f"0x{text}" if text and all(c in "0123456789abcdef" for c in text) else None


FORMAT = TextFormat(
    name="nccl-inspector",
    title="NCCL Inspector",
    tables=("nccl_inspector",),
    anchors=('"coll_perf"', '"p2p_perf"', '"inspector_output_format_version"'),
    read=read,
    priority=15,
)
