"""nvidia-smi's other outputs: the summary table, -L, nvlink -s and -e, topo -m, CSV queries, dmon, and the texts of its failures."""

from __future__ import annotations

import re

from nccl_forensics.formats._gpu_values import clean, gpu_row, number, problem
from nccl_forensics.formats.base import Gap, LineWalk, Reading, Row, Text, TextFormat
from nccl_forensics.values import pci
from nccl_forensics.values.units import is_number, local_time

_GPU = re.compile(r"^GPU (\d+): (.{1,120}?) \(UUID: ((?:GPU|MIG)-[0-9a-fA-F-]{6,64})\)\s*$")
_LINK_RATE = re.compile(r"^\s+Link (\d+): (?:([\d.]+) GB/s|<(inactive)>|(inactive))\s*$", re.IGNORECASE)
_LINK_COUNTER = re.compile(r"^\s+Link (\d+): ([A-Z][A-Za-z0-9 /-]{1,60}): +(\S.{0,60})$")
_LINK_REMOTE = re.compile(r"^\s+Link (\d+): Remote Device ([0-9a-fA-F:.]+): Link (\d+)\s*$")
_ALL_INACTIVE = ("as all links are inactive", "all links are inActive")
_FAILURES: tuple[tuple[str, str], ...] = (
    ("Unable to determine the device handle for", "gpu-lost"),
    # Slurm's daemon of a step asks the driver too (gpu/nvml).
    ("slurmstepd: error: NVML: Failed to get usage(15): GPU is lost", "gpu-lost"),
    ("NVIDIA-SMI has failed because it couldn't communicate", "no-driver"),
    ("Failed to initialize NVML: Driver/library version mismatch", "version-mismatch"),
    ("Failed to initialize NVML", "no-driver"),
    ("No devices were found", "no-devices"),
    ("nvidia-container-cli: initialization error: nvml error: driver/library version mismatch", "version-mismatch"),
    ("nvidia-container-cli: initialization error: nvml error", "no-driver"),
    ("nvidia-container-cli.real: detection error: nvml error", "no-driver"),
)
_HANDLE = re.compile(r"device handle for GPU ?((?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.\d)?(\d+)?")
_TOPO_CELL = re.compile(r"^(?:X|SYS|NODE|PHB|PXB|PIX|NV\d+|C2C|OK|CNS|GNS|TNS|NS|U|DR)$")
_TOPO_NAME = re.compile(r"^(?:GPU\d+|NIC\d+|mlx\S+|\w{0,40}ib\w{0,40}\d|rdma\S+|bnxt\S+|irdma\d+|efa\S*)$")
_PEER_HEAD = re.compile(r"^\s*(?:GPU\d+\s+)*GPU\d+\s*$")
_PEER_CELL = re.compile(r"^(?:X|OK|CNS|GNS|TNS|NS|U|DR)$")
#: Drivers before 410 do not print the version of CUDA.
_TABLE_HEAD = re.compile(r"^\| NVIDIA-SMI (\S+) +Driver Version: (\S+)(?: +CUDA Version: (\S+))?")
_TABLE_FIRST = re.compile(
    r"^\|\s+(\d+)\s++([^|]*+)\|\s*+([0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)\s+[^\s|]++\s*+\|\s*+([^\s|]++)\s*+\|$"
)
#: What stands behind a card's name in its cell: the persistence mode.
_PERSISTENCE = re.compile(r"(?<=\s)(?:On|Off|N/A|ERR!|Unknown)$")
_CSV_WORDS = frozenset(
    {
        "index",
        "uuid",
        "gpu_uuid",
        "name",
        "gpu_name",
        "pci.bus_id",
        "gpu_bus_id",
        "timestamp",
        "pid",
        "gpu_utilization",
        "mem_utilization",
        "max_memory_usage",
        "driver_version",
        "temperature.gpu",
        "utilization.gpu",
        "power.draw",
    }
)


def read(text: Text) -> Reading:
    """Every block of the source that begins with a line of nvidia-smi's."""
    return LineWalk(text).blocks(_block)


def _block(reader: LineWalk, i: int) -> int:
    line, hit = reader.texts[i], reader.hits[i]
    if _GPU.match(line):
        return _gpu_block(reader, i)
    if hit and "GPU0" in line and "CPU Affinity" in line:
        return _topology(reader, i)
    if "GPU0\t" in line and _PEER_HEAD.match(line):
        return _peers(reader, i)
    if hit and _TABLE_HEAD.match(line):
        return _table(reader, i)
    if line.startswith("# gpu ") and "pwr" in line:
        return _dmon(reader, i)
    if line.startswith("# gpu ") and " pid " in line and line.split()[-1] in ("command", "name"):
        return _pmon(reader, i)
    if ", " in line and _is_csv_head(line):
        return _csv(reader, i)
    return _failure(reader, i) if hit else i


def _gpu_block(reader: LineWalk, start: int) -> int:
    """``GPU n: name (UUID: …)`` and the links below it; a header alone is a line of ``nvidia-smi -L``."""
    head = _GPU.match(reader.texts[start])
    assert head is not None
    gpu: Row = {"gpu_index": int(head[1]), "uuid": head[3]}
    reader.use(start)
    i, links = start + 1, 0
    while i < len(reader.texts):
        line = reader.texts[i]
        rate, remote, counter = _LINK_RATE.match(line), _LINK_REMOTE.match(line), _LINK_COUNTER.match(line)
        if rate:
            reader.add(
                "nvlinks", i, gpu | {"name": head[2], "link": int(rate[1]), "active": rate[2] is not None, "rate_gb_s": number(rate[2])}
            )
        elif remote:
            row: Row = {"name": head[2], "link": int(remote[1]), "remote_bus_id": pci.normal(remote[2]), "remote_link": int(remote[3])}
            reader.add("nvlinks", i, gpu | row)
        elif counter:
            raw = counter[3].strip()
            reader.add("nvlink_counters", i, gpu | {"link": int(counter[1]), "counter": counter[2], "value": _counter(raw), "raw": raw})
        elif any(t in line for t in _ALL_INACTIVE):
            reader.add("nvlinks", i, gpu | {"name": head[2], "active": False})
        else:
            break
        reader.use(i)
        links += 1
        i += 1
    if not links:
        reader.add("gpus", start, gpu | {"tool": "nvidia-smi-l", "name": head[2]})
    return i


def _counter(raw: str) -> float | None:
    """A count or a bit error rate. ``15e-255`` is how the driver writes zero (seen on R595)."""
    try:
        value = float(raw.split()[0])
    except ValueError:
        return None
    return 0.0 if 0 < value < 1e-200 else value


def _topology(reader: LineWalk, start: int) -> int:
    names = [c.strip() for c in reader.texts[start].split("\t")]
    columns = [n for n in names if n and not n.endswith(("Affinity", "NUMA ID"))]
    numa = next((i for i, n in enumerate(names) if n == "NUMA Affinity"), None)
    reader.use(start)
    i = start + 1
    while i < len(reader.texts):
        cells = [c.strip() for c in reader.texts[i].split("\t")]
        if not _TOPO_NAME.match(cells[0]) or len(cells) <= len(columns):
            break
        near = cells[numa].strip() if numa is not None and numa < len(cells) else None
        for b, cell in zip(columns, cells[1:], strict=False):
            if _TOPO_CELL.match(cell):
                links = int(cell[2:]) if cell.startswith("NV") else None
                reader.add("gpu_topology", i, {"a": cells[0], "b": b, "relation": cell, "nvlinks": links, "numa": clean(near)})
        reader.use(i)
        i += 1
    if i == start + 1:
        reader.gaps.append(Gap("truncated: matrix without rows", reader.numbers[start], reader.numbers[start], text=reader.texts[start]))
    # The legends below belong to the matrix.
    while i < len(reader.texts) and re.match(r"^\s*$|^Legend:|^NIC Legend:|^ {2}[A-Z0-9#]+ +[=:]|^ {2}NIC\d+:", reader.texts[i]):
        if reader.texts[i].strip():
            reader.use(i)
        i += 1
    return i


def _peers(reader: LineWalk, start: int) -> int:
    """``topo -p2p``: whether GPU pairs may copy to each other. OK is yes; the other words say why not."""
    columns = reader.texts[start].split()
    i = start + 1
    while i < len(reader.texts):
        cells = reader.texts[i].split()
        if len(cells) != len(columns) + 1 or not cells[0].startswith("GPU") or not all(_PEER_CELL.match(c) for c in cells[1:]):
            break
        for column, cell in zip(columns, cells[1:], strict=True):
            if cell not in ("X", "U"):
                row: Row = {"tool": "topo-p2p", "test": "access", "row": cells[0][3:], "column": column[3:], "unit": "bool"}
                reader.add("gpu_bandwidth", i, {**row, "value": float(cell == "OK"), "message": None if cell == "OK" else cell})
        reader.use(i)
        i += 1
    if i > start + 1:
        reader.use(start)
    while i > start + 1 and i < len(reader.texts) and re.match(r"^\s*$|^Legend:|^\s+(?:X|OK|CNS|GNS|TNS|NS|U|DR) += ", reader.texts[i]):
        if reader.texts[i].strip():
            reader.use(i)
        i += 1
    return i if i > start + 1 else start


def _table(reader: LineWalk, start: int) -> int:
    """The summary table; two or three physical rows per GPU. ``ERR!`` and ``Unknown`` mean a GPU that does not answer. The first ends with the
    uncorrected memory errors since the last reset."""
    head = _TABLE_HEAD.match(reader.texts[start])
    assert head is not None
    i = start
    current: Row | None = None
    while i < len(reader.texts):
        line = reader.texts[i].rstrip()
        if not line.startswith(("|", "+")) and line:
            break
        if not line and not (i + 1 < len(reader.texts) and reader.texts[i + 1].startswith("+-")):
            break
        first = _TABLE_FIRST.match(line)
        if "| Processes" in line:
            current = None
        if first:
            current = reader.add(
                "gpus",
                i,
                {
                    "tool": "nvidia-smi",
                    "gpu_index": int(first[1]),
                    "name": _PERSISTENCE.sub("", first[2].rstrip()).rstrip() or None,
                    "bus_id": pci.normal(first[3]),
                    "driver_version": head[2],
                    "cuda_version": head[3],
                    "problem": problem(line),
                    "dram_uncorrected": int(ecc) if is_number(ecc := line.rstrip("| ").rpartition(" ")[2]) else None,
                },
            )
        elif current is not None and line.count("|") == 4 and ("W /" in line or "MiB" in line or "ERR!" in line):
            current["problem"] = current["problem"] or (problem(line) and "ERR!")
            current.update(_second_row(line))
        if line:
            reader.use(i)
        i += 1
    for row in reader.rows.get("gpus", []):
        if row.get("tool") == "nvidia-smi" and row.get("problem"):
            row["problem"] = "ERR! or Unknown in nvidia-smi's table"
    return i


def _second_row(line: str) -> Row:
    found: Row = {}
    for column, pattern in (
        ("temperature_c", r"\s(\d+)C\s"),
        ("power_w", r"\s(\d+)W /"),
        ("power_limit_w", r"/ +(\d+)W"),
        ("memory_used_mib", r"(\d+)MiB /"),
        ("memory_total_mib", r"/ +(\d+)MiB"),
        ("utilization_percent", r"\|\s+(\d+)%"),
    ):
        match = re.search(pattern, line)
        if match:
            found[column] = float(match[1])
    return found


def _dmon(reader: LineWalk, start: int) -> int:
    names = reader.texts[start].lstrip("# ").split()
    i = start
    while i < len(reader.texts):
        line = reader.texts[i]
        cells = line.split()
        if not line.startswith("#"):
            if len(cells) != len(names) or not is_number(cells[0]):
                break
            at = dict(zip(names, cells, strict=True))
            reader.add(
                "gpus",
                i,
                {
                    "tool": "dmon",
                    "gpu_index": int(cells[0]),
                    "power_w": number(at.get("pwr")),
                    "temperature_c": number(at.get("gtemp")),
                    "temperature_memory_c": number(at.get("mtemp")),
                    "utilization_percent": number(at.get("sm")),
                    "memory_utilization_percent": number(at.get("mem")),
                    "sm_clock_mhz": number(at.get("pclk")),
                    "memory_clock_mhz": number(at.get("mclk")),
                },
            )
        reader.use(i)
        i += 1
    return i


def _pmon(reader: LineWalk, start: int) -> int:
    """Processes by GPU; a dash stands for a GPU without any."""
    names = reader.texts[start].lstrip("# ").split()
    i = start
    while i < len(reader.texts):
        line = reader.texts[i]
        cells = line.split(None, len(names) - 1)
        if not line.startswith("#"):
            if len(cells) != len(names) or not is_number(cells[0]):
                break
            at = dict(zip(names, cells, strict=True))
            if is_number(at["pid"]):
                told: Row = {"gpu_index": int(cells[0]), "pid": int(at["pid"]), "type": at.get("type"), "name": cells[-1].strip()}
                reader.add("gpu_processes", i, told | {"used_mib": number(at.get("fb"))})
        reader.use(i)
        i += 1
    return i


def _names(line: str) -> list[str]:
    return [re.sub(r" \[[^\]]*\]$", "", c.strip()) for c in line.split(",")]


def _is_csv_head(line: str) -> bool:
    if line.startswith(("#", " ", "$")) or len(line) > 20_000:
        return False
    names = _names(line)
    known = sum(1 for n in names if n in _CSV_WORDS or "." in n)
    return (
        len(names) >= 2 and known * 2 >= len(names) and bool({"uuid", "gpu_uuid", "pci.bus_id", "gpu_bus_id", "index", "name"} & set(names))
    )


def _csv(reader: LineWalk, start: int) -> int:
    names = _names(reader.texts[start])
    reader.use(start)
    i = start + 1
    while i < len(reader.texts):
        cells = [c.strip() for c in reader.texts[i].split(", ")]
        if len(cells) != len(names):
            break
        row = dict(zip(names, cells, strict=True))
        stamp = local_time(row.get("timestamp"), "%Y/%m/%d %H:%M:%S.%f")
        if "pid" in row:
            reader.add(
                "gpu_processes",
                i,
                {
                    **stamp,
                    "bus_id": pci.normal(clean(row.get("gpu_bus_id"))),
                    "uuid": clean(row.get("gpu_uuid")),
                    "pid": number(row["pid"]),
                    "name": clean(row.get("process_name")),
                    "used_mib": number(row.get("used_memory") or row.get("used_gpu_memory")),
                },
            )
        elif not any(n.startswith("retired_pages.address") for n in names):
            reader.add("gpus", i, {**stamp, "tool": "nvidia-smi-csv", **gpu_row(row, "csv")})
        reader.use(i)
        i += 1
    return i


def _failure(reader: LineWalk, i: int) -> int:
    line = reader.texts[i].strip()
    for words, kind in _FAILURES:
        if line.startswith(words):
            found = _HANDLE.search(line)
            lost = kind == "gpu-lost" and "Insufficient Permissions" not in line
            reader.add(
                "gpu_tool_errors",
                i,
                {
                    "tool": "nvidia-smi",
                    "kind": kind if kind != "gpu-lost" or lost else "permission",
                    "bus_id": pci.normal(found[1]) if found else None,
                    "gpu_index": int(found[2]) if found and found[2] else None,
                    "message": line,
                },
            )
            reader.use(i)
            return i + 1
    return i


FORMAT = TextFormat(
    name="nvidia-smi",
    title="nvidia-smi: summary table, -L, nvlink status and error counters, topo -m and -p2p, CSV queries, dmon, failures",
    tables=("gpus", "gpu_processes", "nvlinks", "nvlink_counters", "gpu_topology", "gpu_tool_errors", "gpu_bandwidth"),
    anchors=(
        "(UUID: GPU-",
        "(UUID: MIG-",
        "CPU Affinity",
        "Chipset not supported",
        "| NVIDIA-SMI ",
        "# gpu ",
        "pci.bus_id",
        "gpu_bus_id",
        "gpu_uuid",
        "index, ",
        "uuid, ",
        ", uuid",
        *(words for words, _ in _FAILURES),
    ),
    read=read,
    priority=35,
)
