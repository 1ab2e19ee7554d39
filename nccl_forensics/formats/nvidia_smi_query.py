"""``nvidia-smi -q`` as text and ``nvidia-smi -q -x`` as XML, in the names of driver branches 450 to 595.

Both become the same rows. Sections nest by indentation of four blanks; a key may have children of its own (HW Slowdown).
"""

from __future__ import annotations

from nccl_forensics.decoding import safe_xml
from nccl_forensics.formats._gpu_values import clean, gpu_row, number
from nccl_forensics.formats.base import DocumentFormat, Gap, Reading, Row, Text, TextFormat, filled, line_numbers
from nccl_forensics.grammar.writers import WRITER
from nccl_forensics.values import pci
from nccl_forensics.values.units import CTIME, local_time

_HEADER = "=NVSMI LOG="
_TOOLS = ("gpus", "gpu_processes")
_PROCESS_KEYS = {"Type": "type", "Name": "name", "Used GPU Memory": "used_mib"}

Cells = dict[str, str]


def _common(head: Cells) -> Row:
    return {
        **local_time(head.get("timestamp"), CTIME),
        "driver_version": clean(head.get("driver_version")),
        "cuda_version": clean(head.get("cuda_version")),
    }


# ---- text ----


def read(text: Text) -> Reading:
    """Every report in the source: from its header to the first line that cannot belong to it."""
    numbers: list[int] = text.lines["line_no"].to_list()
    texts: list[str] = text.lines["text"].to_list()
    hints = text.lines.select(WRITER).rows(named=True)
    used: list[int] = []
    gpus: list[Row] = []
    processes: list[Row] = []
    gaps: list[Gap] = []
    for start in [i for i, t in enumerate(texts) if _HEADER in t]:
        end = _report_end(texts, start)
        if end - start < 3:
            gaps.append(Gap("truncated: report without GPUs", numbers[start], numbers[end - 1], text=texts[start][:200]))
            continue
        used.extend(numbers[start:end])
        found = _report(texts[start:end], numbers[start:end])
        gpus.extend(hints[start] | row for row in found[0])
        processes.extend(hints[start] | row for row in found[1])
    for first, last in _xml_blocks(texts):
        body = "\n".join(texts[first : last + 1])
        rows, listed, error = _xml(body.encode())
        if not rows:
            gaps.append(Gap(error or "unparsed: no GPU in the report", numbers[first], numbers[last]))
            continue
        used.extend(numbers[first : last + 1])
        offset = numbers[first] - 1
        for row in (*rows, *listed):
            line = row.pop("line")
            row |= hints[first] | {"line_no": offset + int(str(line)), "record": None}
        gpus.extend(rows)
        processes.extend(listed)
    return Reading(frames=filled({"gpus": gpus, "gpu_processes": processes}), lines=line_numbers(used), gaps=tuple(gaps))


def _report_end(texts: list[str], start: int) -> int:
    last = start + 1
    for i in range(start + 1, len(texts)):
        line = texts[i]
        if not line.strip():
            continue
        if not (line.startswith((" ", "GPU ")) or (" : " in line and line[:1].isalpha())) or _HEADER in line:
            break
        last = i + 1
    return last


def _report(texts: list[str], numbers: list[int]) -> tuple[list[Row], list[Row]]:
    head: Cells = {}
    gpus: list[Row] = []
    processes: list[Row] = []
    cells: Cells = {}
    path: list[tuple[int, str]] = []
    current: Row | None = None
    tail: list[Row] = []

    def finish(last: int) -> None:
        if current is not None:
            row = gpu_row(cells, "text")
            current.update({k: v for k, v in row.items() if v is not None or k not in current}, end_line=last)
            for process in tail:
                process |= {"bus_id": current.get("bus_id"), "uuid": row.get("uuid")}

    for number_, line in zip(numbers, texts, strict=True):
        stripped = line.strip()
        if line.startswith("GPU ") and (bus := pci.normal(line[4:].strip())):
            finish(number_ - 1)
            current = {**_common(head), "tool": "nvidia-smi-q", "line_no": number_, "bus_id": bus}
            gpus.append(current)
            cells, path, tail = {}, [], []
            continue
        if not stripped:
            continue
        indent = len(line) - len(line.lstrip(" "))
        key, colon, value = stripped.partition(" : ")
        key = key.strip()
        if not colon and stripped.endswith(" :"):
            key, value = stripped[:-2].strip(), ""
        if current is None:
            head[key.lower().replace(" ", "_")] = value.strip()
            continue
        while path and path[-1][0] >= indent:
            path.pop()
        full = "/".join([p for _, p in path] + [key])
        path.append((indent, key))
        if not colon:
            continue
        if key == "Process ID":
            tail.append({"line_no": number_, "pid": number(value), **local_time(head.get("timestamp"), CTIME)})
            processes.append(tail[-1])
        elif tail and "/Process ID/" in f"/{full}" and key in _PROCESS_KEYS:
            column = _PROCESS_KEYS[key]
            tail[-1][column] = number(value) if column == "used_mib" else clean(value)
        else:
            cells.setdefault(full, value.strip())
    finish(numbers[-1])
    return gpus, processes


def _xml_blocks(texts: list[str]) -> list[tuple[int, int]]:
    blocks: list[tuple[int, int]] = []
    start: int | None = None
    for i, line in enumerate(texts):
        if start is None and "<nvidia_smi_log>" in line:
            start = i
        elif start is not None and "</nvidia_smi_log>" in line:
            blocks.append((start, i))
            start = None
    return blocks


# ---- XML ----

#: Long lists that no rule needs.
_SKIP = frozenset({"supported_clocks", "mig_devices", "accounted_processes"})


def read_xml(data: bytes) -> Reading:
    """One report; the DOCTYPE line is tolerated and never processed."""
    gpus, processes, error = _xml(data)
    for row in (*gpus, *processes):
        row.pop("line")
    gaps = (Gap(error, record="nvidia_smi_log"),) if error else ()
    return Reading(frames=filled({"gpus": gpus, "gpu_processes": processes}), gaps=gaps, records=len(gpus))


def _xml(data: bytes) -> tuple[list[Row], list[Row], str | None]:
    root, error = safe_xml.parse(data, _SKIP)
    if root is None:
        return [], [], error or "unparsed: no element"
    head = {c.tag: c.text.strip() for c in root.children if not c.children}
    gpus: list[Row] = []
    processes: list[Row] = []
    for index, gpu in enumerate(root.all("gpu")):
        cells: Cells = {}
        _flatten(gpu, "", cells)
        record = f"gpu[{index}]"
        row: Row = {
            **_common(head),
            "tool": "nvidia-smi-xml",
            "record": record,
            "line": gpu.line,
            "bus_id": pci.normal(gpu.attributes.get("id")),
        }
        row.update({k: v for k, v in gpu_row(cells, "xml").items() if v is not None or k not in row})
        gpus.append(row)
        listed = gpu.find("processes")
        for n, process in enumerate(listed.all("process_info") if listed else ()):
            processes.append(
                {
                    **local_time(head.get("timestamp"), CTIME),
                    "record": f"{record}/processes[{n}]",
                    "line": process.line,
                    "bus_id": row.get("bus_id"),
                    "uuid": row.get("uuid"),
                    "pid": number(process.value("pid")),
                    "type": clean(process.value("type")),
                    "name": clean(process.value("process_name")),
                    "used_mib": number(process.value("used_memory")),
                }
            )
    return gpus, processes, error


def _flatten(node: safe_xml.Node, prefix: str, cells: Cells) -> None:
    for child in node.children:
        name = f"{prefix}{child.tag}"
        if child.children:
            _flatten(child, f"{name}/", cells)
        else:
            cells.setdefault(name, child.text.strip())


def _sniff_xml(head: bytes) -> bool:
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    return start.startswith(b"<") and b"<nvidia_smi_log" in head[:4096]


FORMATS = (
    TextFormat(
        name="nvidia-smi-q",
        title="nvidia-smi -q (text), and its XML inside a larger text",
        tables=_TOOLS,
        anchors=(_HEADER, "<nvidia_smi_log>"),
        read=read,
        priority=30,
    ),
    DocumentFormat(name="nvidia-smi-xml", title="nvidia-smi -q -x", tables=_TOOLS, sniff=_sniff_xml, read=read_xml, priority=30),
)
