"""What DCGM's agent saw while jobs ran: ``dcgmi policy --reg``, ``dcgmi stats`` and ``dcgmi nvlink -e``, this one also with ``-j``."""

from __future__ import annotations

import orjson
import polars as pl

from nccl_forensics.formats.base import DocumentFormat, Gap, Reading, Row, Text, TextFormat, filled, line_numbers
from nccl_forensics.grammar.blocks import classify, real, whole
from nccl_forensics.values.documents import items, mapping
from nccl_forensics.values.units import CTIME, local_time

#: Of a violated policy: the test's name and its weight. The limits of heat and power are the site's own.
_POLICIES: dict[str, tuple[str, str]] = {
    "double-bit ECC error": ("double-bit ECC errors", "fail"),
    "PCIe replay event": ("PCIe replays", "warn"),
    "maximum number of retired pages": ("retired pages", "fail"),
    "maximum thermal limit": ("temperature", "warn"),
    "maximum power limit": ("power", "warn"),
}
#: Figures of a job that mean trouble where they are above 0, with their weight. An Xid counts whoever raised it, the program included.
_FIGURES: dict[str, tuple[str, str]] = {
    "Double Bit ECC Errors": ("double-bit ECC errors", "fail"),
    "PCIe Replay Warnings": ("PCIe replays", "warn"),
    "Critical XID Errors": ("Xids", "warn"),
    "Thermal (%)": ("slowdown by heat", "warn"),
    "Board Limit (%)": ("slowdown by the board's limit", "warn"),
    "Reliability (%)": ("slowdown for reliability", "warn"),
}
#: nvidia-smi's names of the same counters.
_COUNTERS = {
    "CRC FLIT Error": "CRC Errors",
    "CRC Data Error": "CRC Data Errors",
    "Replay Error": "Replay Errors",
    "Recovery Error": "Recovery Errors",
}


def read_policy(text: Text) -> Reading:
    """One row per violation: an Xid is one like any other, the rest are results of a test that the site set up."""
    rows: dict[str, list[Row]] = {"xids": [], "dcgm_results": []}
    claimed: list[int] = []
    stamp: Row = {}
    last: Row | None = None
    pending: list[int] = []
    for line in classify(text.lines, "dcgm_watch"):
        match line.kind:
            case "stamp":
                stamp, last, pending = local_time(line.get("stamp"), CTIME), None, [line.number]
                continue
            case "xid_detected":
                code = whole(line.get("code"))
                rows["xids"].append({**line.where, **stamp, "code": code, "message": line.text, "implied": False, "repeats": 1})
            case "violated" | "nvlink_violated":
                test, status = _POLICIES.get(line.get("what") or "", ("NVLink errors", "warn"))
                told = {"category": "Policy", "test": test, "status": status, "message": line.text}
                last = {**line.where, **stamp, **told}
                rows["dcgm_results"].append(last)
            case "count" if last is not None:
                last["message"] = f"{last['message']} {line.text}"
                last["number"] = real(line.get("value"))
            case _:
                continue
        claimed += [*pending, line.number]
        pending = []
    return Reading(frames=filled(rows), lines=line_numbers(claimed))


def _boxes(text: Text) -> pl.DataFrame:
    """The lines of boxes that hold an anchor: other boxes of the source are other formats'."""
    inside = pl.col("text").str.starts_with("|") | pl.col("text").str.starts_with("+")
    marked = text.lines.with_columns(inside=inside, box=(~inside).cum_sum())
    return marked.filter(pl.col("inside")).filter(pl.col("hit").any().over("box")).drop("inside", "box")


def read_stats(text: Text) -> Reading:
    """Figures of jobs that mean trouble; those that are 0 say that somebody looked."""
    rows: list[Row] = []
    claimed: list[int] = []
    gpu: int | None = None
    for line in classify(_boxes(text), "dcgm_watch"):
        claimed.append(line.number)
        if line.kind in ("gpu_head", "gpu_named"):
            gpu = whole(line.get("gpu"))
        elif line.kind == "cell" and (figure := _FIGURES.get(line.get("name") or "")) is not None:
            value = real(line.get("text"))
            if value is None:
                continue  # Not Supported, Not Specified
            test, bad = figure
            told = {"category": "Job statistics", "test": test, "status": bad if value else "pass", "number": value, "gpu_index": gpu}
            rows.append({**line.where, **told, "message": line.text.strip("| ").replace("|", " ")})
    return Reading(frames=filled({"dcgm_results": rows}), lines=line_numbers(claimed))


def read_nvlink_errors(text: Text) -> Reading:
    """One row per link and counter, under nvidia-smi's names."""
    rows: list[Row] = []
    claimed: list[int] = []
    gpu: int | None = None
    link: int | None = None
    for line in classify(_boxes(text), "dcgm_watch"):
        claimed.append(line.number)
        if line.kind in ("gpu_head", "gpu_named"):
            gpu, link = whole(line.get("gpu")), None
        elif line.kind == "link":
            link = whole(line.get("link"))
        elif line.kind in ("link_error", "named_error"):
            number = whole(line.get("link")) if line.kind == "link_error" else link
            counter = _COUNTERS[line.get("error") or ""]
            told = {"link": number, "counter": counter, "value": real(line.get("value")), "raw": line.get("value")}
            rows.append({**line.where, "gpu_index": gpu, **told})
    return Reading(frames=filled({"nvlink_counters": rows}), lines=line_numbers(claimed if rows else []))


_TITLE = "NVLINK Error Counts"


def _is_nvlink_json(head: bytes) -> bool:
    return head.lstrip()[:1] == b"{" and f'"{_TITLE}"'.encode() in head


def read_nvlink_json(data: bytes) -> Reading:
    """The same from dcgmi's JSON (dcgmi/DcgmiOutput.cpp): under ``body`` a member per link, its counters are its ``children``."""
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        return Reading(gaps=(Gap(f"unreadable: not JSON ({error})", 1),))
    rows: list[Row] = []
    header = [str(h) for h in items(mapping(document).get("header"))]
    gpu = next((whole(h.removeprefix("GPU ")) for h in header if h.startswith("GPU ")), None)
    for name, link in mapping(mapping(document).get("body")).items():
        for kind, cell in mapping(mapping(link).get("children")).items():
            raw = str(cell.get("value")) if isinstance(cell, dict) else ""
            told = {"link": whole(str(name).removeprefix("Link ")), "counter": _COUNTERS.get(str(kind)), "value": real(raw), "raw": raw}
            if told["counter"] is not None and told["link"] is not None:
                rows.append({"record": f"body.{name}.children.{kind}", "gpu_index": gpu, **told})
    return Reading(frames=filled({"nvlink_counters": rows}), records=len(rows))


FORMATS = (
    DocumentFormat(
        name="dcgm-nvlink-json",
        title="dcgmi nvlink -e -j",
        tables=("nvlink_counters",),
        sniff=_is_nvlink_json,
        read=read_nvlink_json,
        priority=30,
    ),
    TextFormat(
        name="dcgm-policy",
        title="dcgmi policy --reg",
        tables=("xids", "dcgm_results"),
        anchors=("has violated policy manager values", "XID error "),
        read=read_policy,
        priority=39,
    ),
    TextFormat(
        name="dcgm-stats", title="dcgmi stats", tables=("dcgm_results",), anchors=("-----  Event Stats  ---",), read=read_stats, priority=39
    ),
    TextFormat(
        name="dcgm-nvlink-errors",
        title="dcgmi nvlink -e",
        tables=("nvlink_counters",),
        anchors=("NVLINK Error Counts",),
        read=read_nvlink_errors,
        priority=39,
    ),
)
