"""perftest: ib_write_bw, ib_read_bw, ib_send_bw and the latency tests, as text and as JSON (``--out_json``)."""

from __future__ import annotations

import re

import orjson
import polars as pl

from nccl_forensics.facts.work_completions import STATUSES
from nccl_forensics.formats.base import DocumentFormat, Gap, Reading, Row, Text, TextFormat, filled, line_numbers
from nccl_forensics.grammar.blocks import Line, after, classify, real, whole
from nccl_forensics.tables import TABLES
from nccl_forensics.values.documents import mapping

_TITLE = r"^\s*(?:RDMA_Write|RDMA_Read|Send|Write|Read|Atomic_\w+) (?:Post List )?(?:Bidirectional )?(?:BW|Latency|Post) Test"
_ALONE = (
    r"^\s*(?:Couldn't connect to |Unable to Connect the HCA's|Failed to modify QP|Completion with error at |Failed status \d+: wr_id|ethernet_read_keys:"
    r"|#bytes +#iterations)"
)
#: What one printed unit is in Gbit/s: perftest's MB and MiB are both 2^20 bytes.
_GBIT = {"gb/sec": 1.0, "mb/sec": 8 * 2**20 / 1e9, "mib/sec": 8 * 2**20 / 1e9, "gib/sec": 8 * 2**30 / 1e9}
_SETTING = re.compile(r"([A-Za-z#][\w.# *-]{0,60}?)\s{0,30}:\s*(\S+)")


def read(text: Text) -> Reading:
    """One row per size, and one per failure. A test is what follows one title; its settings may come after a second one's title."""
    heading = pl.col("text").str.contains(_TITLE) | pl.col("text").str.contains(_ALONE)
    rows: list[Row] = []
    claimed: list[int] = []
    test = -1
    facts: Row = {}
    unit: float | None = None
    latency = False
    open_block = False
    for line in classify(after(text.lines, heading, reach=120), "perftest", strip=True):
        get = line.get
        match line.kind:
            case "title":
                test += 1
                words = " ".join(line.text.split())
                facts = {"name": words, "bidirectional": "Bidirectional" in words}
                open_block = True
            case "header_bw":
                unit, latency, open_block = _GBIT.get((get("unit") or "").lower()), False, True
            case "header_lat":
                latency, open_block = True, True
            case "row" if open_block:
                rows.append({**line.where, "test": max(test, 0), **facts, **_row(line, unit, latency)})
            case "setting" if open_block:
                facts.update(_settings(line.text))
            case "no_connect" | "hca" | "modify" | "completion" | "failed" | "read_keys":
                status = whole(get("status"))
                said = f"{line.text.strip()}" + (f" ({STATUSES[status]})" if status in STATUSES else "")
                rows.append({**line.where, "test": max(test, 0), **facts, "error": said, "status": status})
            case "address" | "gid" | "rule" | "stars" | "note" if open_block:
                pass
            case _:
                continue
        claimed.append(line.number)
    return Reading(frames=filled({"rdma_tests": rows}), lines=line_numbers(claimed))


def _row(line: Line, unit: float | None, latency: bool) -> Row:
    numbers = [real(n) for n in (line.get("numbers") or "").split()]
    row: Row = {"bytes": whole(line.get("bytes")), "iterations": whole(line.get("iterations"))}
    if latency:
        # t_min t_max t_typical t_avg t_stdev 99% 99.9%
        row["latency_us"] = numbers[2] if len(numbers) > 2 else None
        row["latency_p99_us"] = numbers[5] if len(numbers) > 5 else None
    elif unit is not None:
        peak, average = numbers[0] if numbers else None, numbers[1] if len(numbers) > 1 else None
        row["peak_gbit_s"] = round(peak * unit, 6) if peak else None
        row["average_gbit_s"] = round(average * unit, 6) if average is not None else None
        row["rate_mpps"] = numbers[2] if len(numbers) > 2 else None
    return row


def _settings(text: str) -> Row:
    out: Row = {}
    for key, value in _SETTING.findall(text.replace("\t", "  ")):
        name = " ".join(key.split()).lower()
        if name.endswith("device"):
            out["device"] = value
        elif name.endswith("link type"):
            out["link_layer"] = value.lower()
        elif name.endswith("mtu"):
            out["mtu_bytes"] = whole(value.split("[")[0])
        elif name.endswith("number of qps"):
            out["qps"] = whole(value)
    return out


def _sniff_json(head: bytes) -> bool:
    return b'"test_info"' in head and b'"results"' in head and (b'"MsgSize"' in head or b'"BW_average"' in head or b'"bw_avg"' in head)


def _read_json(data: bytes) -> Reading:
    """``--out_json``. The unit is not stated: Gbit/s with --report_gbits, else MiB/s; the file does not say, so only the test's own word
    counts."""
    mended = re.sub(rb"([{,]\s*)sl:", rb'\1"sl":', data)  # written without quotes
    try:
        document = orjson.loads(mended)
    except orjson.JSONDecodeError as problem:
        return Reading(gaps=(Gap(f"unreadable: {problem}"[:200]),))
    info, results = (mapping(document).get(name) for name in ("test_info", "results"))
    if not isinstance(info, dict) or not isinstance(results, (dict, list)):
        return Reading(gaps=(Gap("unreadable: neither test_info nor results"),))
    gbits = "report_gbits" in str(info.get("command", "")) or "Gb" in str(info.get("BW_unit", info.get("bw_unit", "")))
    scale = 1.0 if gbits else None
    rows: list[Row] = []
    gaps: list[Gap] = []
    for i, result in enumerate(results if isinstance(results, list) else [results]):
        if not isinstance(result, dict):
            gaps.append(Gap("no result: not an object", record=f"results[{i}]", text=str(result)[:200]))
            continue
        average, peak = result.get("BW_average", result.get("bw_avg")), result.get("BW_peak", result.get("bw_peak"))
        rows.append(
            {
                "record": f"results[{i}]",
                "test": 0,
                "name": str(info.get("test", "")).replace("_Test", " Test"),
                "device": info.get("Device"),
                "link_layer": str(info.get("Link_type", "")).lower() or None,
                "mtu_bytes": whole(str(info.get("Mtu", "")).split("[")[0]),
                "qps": whole(str(info.get("Number_of_qps", ""))),
                "bytes": result.get("MsgSize"),
                "iterations": result.get("n_iterations"),
                "peak_gbit_s": peak * scale if scale and isinstance(peak, (int, float)) else None,
                "average_gbit_s": average * scale if scale and isinstance(average, (int, float)) else None,
                "rate_mpps": result.get("MsgRate", result.get("msgRate_avg")),
            }
        )
    return Reading(frames={"rdma_tests": TABLES["rdma_tests"].frame(rows)}, records=len(rows), gaps=tuple(gaps))


FORMATS = (
    TextFormat(
        name="perftest",
        title="perftest: ib_write_bw and its family (text)",
        tables=("rdma_tests",),
        anchors=(
            " BW Test",
            " Latency Test",
            "Couldn't connect to ",
            "Completion with error at ",
            "#iterations",
            "through the link",
            "Failed to modify QP",
        ),
        read=read,
        priority=35,
    ),
    DocumentFormat(
        name="perftest-json", title="perftest (JSON, --out_json)", tables=("rdma_tests",), sniff=_sniff_json, read=_read_json, priority=25
    ),
)
