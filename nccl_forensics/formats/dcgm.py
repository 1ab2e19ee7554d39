"""DCGM: ``dcgmi diag`` as boxed text (2.x to 4.x) and as JSON, also of several nodes (``dcgmi mndiag -j``), and ``dcgmi health``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import orjson

from nccl_forensics.formats.base import DocumentFormat, Gap, Reading, Row, Text, TextFormat, filled, line_numbers
from nccl_forensics.grammar.blocks import labels_of
from nccl_forensics.values import pci
from nccl_forensics.values.documents import mapping, mappings
from nccl_forensics.values.units import is_number

_STATUS = {
    "pass": "pass",
    "fail": "fail",
    "warn": "warn",
    "skip": "skip",
    "healthy": "healthy",
    "warning": "warning",
    "failure": "failure",
}
_SECTION = re.compile(r"^[|+]-----  (.{1,40}?)  -+\+-+")
_CELLS = re.compile(r"^\| (.{1,60}?) *\| (.{1,200}?) *\|$")
_BLANK = re.compile(r"^\| +\| (.{1,200}?) *\|$")
_RESULT = re.compile(
    r"^(?:(GPU|CPU|NvSwitch)(\d+): )?(Pass|Fail|Warn|Skip|Healthy|Warning|Failure)\b(?: - (?:All|GPUs?: ([\d, ]+)))?", re.IGNORECASE
)
_NOTES = frozenset({"Warning", "Info", "Error"})


def read(text: Text) -> Reading:
    """Every box in the source. Long results wrap: a row with an empty first cell goes on with the one above."""
    numbers: list[int] = text.lines["line_no"].to_list()
    texts: list[str] = text.lines["text"].to_list()
    hits: list[bool] = text.lines["hit"].to_list()
    rows: list[Row] = []
    used: list[int] = []
    i = 0
    while i < len(texts):
        if not hits[i]:
            i += 1
            continue
        start = i
        while start > 0 and texts[start - 1].startswith(("+", "|")):
            start -= 1
        end = i
        while end < len(texts) and texts[end].startswith(("+", "|")):
            end += 1
        used.extend(numbers[start:end])
        rows.extend(_box(texts[start:end], numbers[start:end]))
        i = max(end, i + 1)
    return Reading(frames=filled({"dcgm_results": rows}), lines=line_numbers(used))


def _box(texts: list[str], numbers: list[int]) -> Iterator[Row]:
    category: str | None = None
    version: str | None = None
    test: str | None = None
    merged: list[tuple[int, str, str]] = []
    for number, line in zip(numbers, texts, strict=True):
        section, cells, blank = _SECTION.match(line), _CELLS.match(line), _BLANK.match(line)
        if section:
            merged.append((number, "\x00section", section[1]))
        elif blank and _RESULT.match(blank[1]):
            merged.append((number, "", blank[1]))
        elif blank and merged:
            merged[-1] = (merged[-1][0], merged[-1][1], merged[-1][2] + blank[1])
        elif cells:
            merged.append((number, cells[1].strip(), cells[2]))
    out: list[Row] = []
    for number, name, value in merged:
        if name == "\x00section":
            category = value
        elif name == "DCGM Version":
            version = value
        elif name in _NOTES and out:
            if name != "Info":
                out[-1]["message"] = "; ".join(str(p) for p in (out[-1].get("message"), value) if p)
        elif found := _RESULT.match(value):
            if name:
                test = name
            elif out and out[-1]["test"] == test and out[-1]["gpu_index"] is None and not out[-1].get("message"):
                out.pop()  # 4.x: the test's own row is only the sum of the rows of its GPUs
            listed = [int(n) for n in re.findall(r"\d+", found[4] or "")]
            indices: list[int | None] = [*listed] or [int(found[2]) if found[1] == "GPU" else None]
            common: Row = {"line_no": number, "category": category, "test": test, "status": _STATUS[found[3].lower()], "version": version}
            out.extend(common | {"gpu_index": index} for index in indices)
    yield from out


def _sniff(head: bytes) -> bool:
    start = head[:8192]
    if b'"$schema"' in start:
        return False  # the JSON schema of the diagnostic, not a result
    return b'"DCGM GPU Diagnostic"' in head or b'"DCGM Diagnostic"' in head or b'"DCGM Multi-Node Diagnostic"' in head


def read_json(data: bytes) -> Reading:
    """Schema 2.x/3.x (``gpu_ids``, texts) and 4.x (``entity_id``, lists). Text before the object is skipped."""
    start = data.find(b"{")
    try:
        document = orjson.loads(data[start:] if start >= 0 else data)
    except ValueError as problem:
        return Reading(gaps=(Gap(f"unparsed: {problem}"[:160], record="DCGM Diagnostic"),))
    if not isinstance(document, Mapping):
        return Reading(gaps=(Gap("unparsed: not an object"),))
    body = document.get("DCGM GPU Diagnostic") or document.get("DCGM Diagnostic")
    if body is None and "DCGM Multi-Node Diagnostic" in document:
        body = document  # hosts and categories stand beside the title
    metadata = document.get("metadata")
    version = document.get("version") or (metadata.get("version") if isinstance(metadata, Mapping) else None)
    hosts = {h.get("host_id"): h for h in mappings(mapping(body).get("hosts"))}
    rows = list(_json_rows(body, str(version) if version else None, hosts))
    gaps = () if rows else (Gap("unparsed: no test category", record="DCGM Diagnostic"),)
    return Reading(frames=filled({"dcgm_results": rows}), gaps=gaps, records=len(rows))


def _json_rows(body: object, version: str | None, hosts: Mapping[object, Mapping[str, object]]) -> Iterator[Row]:
    for c, category in enumerate(mappings(mapping(body).get("test_categories"))):
        for t, test in enumerate(mappings(mapping(category).get("tests"))):
            for r, result in enumerate(mappings(mapping(test).get("results"))):
                status = _STATUS.get(str(result.get("status", "")).lower())
                if status is None:
                    continue
                indices = re.findall(r"\d+", str(result.get("gpu_ids", result.get("gpu_id", ""))))
                host = hosts.get(result.get("host_id"), {})
                if result.get("entity_group") == "GPU" and result.get("entity_id") is not None:
                    indices = [str(result["entity_id"])]
                for index in indices or [None]:
                    yield {
                        "record": f"test_categories[{c}].tests[{t}].results[{r}]",
                        "category": category.get("category"),
                        "test": test.get("name"),
                        "status": status,
                        "gpu_index": int(index) if index is not None and is_number(index) else None,
                        "message": _warnings(result.get("warnings")),
                        "host": host.get("hostname"),
                        "version": version or host.get("dcgm_version"),
                    }


def _warnings(value: object) -> str | None:
    if isinstance(value, list):
        texts = [str(w.get("warning", "")) if isinstance(w, Mapping) else str(w) for w in value]
        return "; ".join(t for t in texts if t) or None
    return str(value) if value else None


_NVLINK_GPU = re.compile(r"^\s*(gpuId|swId|physicalId) (\d+):\s*$")
_NVLINK_CELLS = re.compile(r"^\s*[UDX_](?: [UDX_])*\s*$")


def read_nvlinks(text: Text) -> Reading:
    """``dcgmi nvlink -s``: one letter per link and GPU. X (disabled) and _ (not supported) are no links."""
    numbers: list[int] = text.lines["line_no"].to_list()
    texts: list[str] = text.lines["text"].to_list()
    rows: list[Row] = []
    used: list[int] = []
    for i, line in enumerate(texts[:-1]):
        head = _NVLINK_GPU.match(line)
        if not head or not _NVLINK_CELLS.match(texts[i + 1]):
            continue
        used += [numbers[i], numbers[i + 1]]
        if head[1] != "gpuId":
            continue  # links of switches have no GPU
        for link, cell in enumerate(texts[i + 1].split()):
            if cell in "UD":
                rows.append({"line_no": numbers[i + 1], "gpu_index": int(head[2]), "link": link, "active": cell == "U"})
    return Reading(frames=filled({"nvlinks": rows}), lines=line_numbers(used))


_METRIC = re.compile(r"^(DCGM_FI_DEV_(?:XID_ERRORS|ROW_REMAP_FAILURE|ROW_REMAP_PENDING|RETIRED_PENDING))\{([^}]*)\} ([0-9.eE+]+)")
#: Xids of applications: the exporter keeps the last code, and these say nothing of the GPU (as NVIDIA's device plugin skips them).
_APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})


def _gauge(text: str) -> int | None:
    """A gauge's value, which is a code or a count; None for what is no number."""
    try:
        return min(int(float(text)), 2**31 - 1)
    except (ValueError, OverflowError):
        return None


def read_exporter(text: Text) -> Reading:
    """Metrics of dcgm-exporter that are findings by themselves; a gauge of Xid holds the last code only, and its time is not known."""
    rows: list[Row] = []
    xids: list[Row] = []
    used: list[int] = []
    for number, line in text.hits.select("line_no", "text").iter_rows():
        found = _METRIC.match(line)
        if not found:
            continue
        labels, value = labels_of(found[2]), _gauge(found[3])
        if value is None:
            continue
        used.append(number)
        if not value:
            continue
        name = found[1].removeprefix("DCGM_FI_DEV_").lower()
        xid = name == "xid_errors"
        if xid and value in _APPLICATION_XIDS:
            continue
        index = int(labels["gpu"]) if is_number(labels.get("gpu", "")) else None
        where: Row = {"line_no": number, "host": labels.get("Hostname"), "gpu_index": index, "uuid": labels.get("UUID")}
        if xid:
            bus = pci.normal(labels.get("pci_bus_id"))
            xids.append({**where, "code": value, "bus_id": bus, "message": f"last code that dcgm-exporter tells: {value}"})
            continue
        rows.append(
            {
                **where,
                "category": "Exporter",
                "test": name,
                "status": "fail" if name == "row_remap_failure" else "warn",
                "message": f"{name} {value}",
            }
        )
    return Reading(frames=filled({"dcgm_results": rows, "xids": xids}), lines=line_numbers(used))


FORMATS = (
    TextFormat(
        name="dcgm",
        title="dcgmi diag and dcgmi health",
        tables=("dcgm_results",),
        anchors=("| Diagnostic ", "| Overall Health", "DCGM Version"),
        read=read,
        priority=40,
    ),
    TextFormat(name="dcgm-nvlink", title="dcgmi nvlink -s", tables=("nvlinks",), anchors=("gpuId ",), read=read_nvlinks, priority=41),
    TextFormat(
        name="dcgm-exporter",
        title="dcgm-exporter's metrics",
        tables=("dcgm_results", "xids"),
        anchors=("DCGM_FI_DEV_",),
        read=read_exporter,
        priority=41,
    ),
    DocumentFormat(
        name="dcgm-json", title="dcgmi diag -j, dcgmi mndiag -j", tables=("dcgm_results",), sniff=_sniff, read=read_json, priority=30
    ),
)
