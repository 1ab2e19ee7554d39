"""Listings of a host: ps, df, ulimit -a and /proc/<pid>/limits, free and /proc/meminfo."""

from __future__ import annotations

import re

from nccl_forensics.formats.base import LineWalk, Reading, Row, Text, TextFormat
from nccl_forensics.masking import mask
from nccl_forensics.values.units import is_number

#: ps header words to columns. Source: procps-ng ps(1).
_PS = {
    "PID": "pid",
    "PPID": "ppid",
    "TID": "tid",
    "LWP": "tid",
    "SPID": "tid",
    "STAT": "state",
    "S": "state",
    "WCHAN": "wchan",
    "%CPU": "cpu_percent",
    "C": "cpu_percent",
    "RSS": "rss_kb",
    "ELAPSED": "elapsed",
    "TIME": None,
}
_LAST = ("COMMAND", "CMD", "ARGS")
_SIZE = re.compile(r"^(\d+(?:\.\d+)?)([KMGTP]?)i?B?$")
_UNIT = {"": 1.0, "K": 1.0, "M": 1024.0, "G": 1024.0**2, "T": 1024.0**3, "P": 1024.0**4}
_ULIMIT = re.compile(r"^([a-z][a-z -]{3,40}?) +\(([^)]{0,30}-[a-zA-Z])\) +(unlimited|\d+)\s*$")
_PROC_LIMIT = re.compile(r"^Max ([a-z][a-z -]{2,30}?)  +(unlimited|\d+) +(unlimited|\d+) *+([a-z]*)\s*$")
_LIMITS = {
    "max locked memory": "memlock",
    "locked memory": "memlock",
    "open files": "nofile",
    "max user processes": "nproc",
    "processes": "nproc",
    "stack size": "stack",
    "max memory size": "rss",
    "virtual memory": "as",
    "address space": "as",
    "core file size": "core",
    "file locks": "locks",
    "pending signals": "sigpending",
}
_MEMINFO = re.compile(r"^([A-Z][A-Za-z_()0-9]{2,30}): +(\d+) kB\s*$")
_DF = re.compile(r"^Filesystem .{0,80}Mounted on\s*$")


def read(text: Text) -> Reading:
    """Every block that begins with a header of one of the tools."""
    return LineWalk(text).blocks(_block)


def _block(reader: LineWalk, i: int) -> int:
    line = reader.texts[i]
    if not reader.hits[i]:
        return i
    words = line.split()
    if "PID" in words and words[-1] in _LAST and len(words) <= 24:
        return _ps(reader, i, words)
    if _DF.match(line):
        return _df(reader, i)
    if _ULIMIT.match(line) or _PROC_LIMIT.match(line):
        return _limits(reader, i)
    if line.startswith("Mem:") and i > 0 and "total" in reader.texts[i - 1].split():
        return _free(reader, i)
    return _meminfo(reader, i) if line.startswith("MemTotal:") else i


def _ps(reader: LineWalk, start: int, header: list[str]) -> int:
    reader.use(start)
    pid_at = header.index("PID")
    i = start + 1
    while i < len(reader.texts):
        cells = reader.texts[i].split(None, len(header) - 1)
        if len(cells) < len(header) or not is_number(cells[pid_at]):
            break
        row: Row = {column: _cell(column, cells[at]) for at, word in enumerate(header[:-1]) if (column := _PS.get(word))}
        reader.add("host_processes", i, row | {"command": mask(cells[-1].rstrip())[:2000]})
        reader.use(i)
        i += 1
    return i


def _cell(column: str, cell: str) -> object:
    """Text columns as they are, the others as numbers; ``-`` is how ps says that there is none."""
    if cell == "-":
        return None
    if column in ("state", "wchan", "elapsed"):
        return cell
    return float(cell) if re.fullmatch(r"\d{1,15}(?:\.\d{1,6})?", cell) else None


def _df(reader: LineWalk, start: int) -> int:
    header = reader.texts[start]
    inodes = "IFree" in header
    block = re.search(r"(?<!\d)(\d++)K-blocks", header)
    # df -h prints units; plain df prints blocks of 1 kB or, with -B or POSIXLY_CORRECT, of what the header says.
    factor = float(block[1]) if block else 0.5 if "512-blocks" in header else 1.0
    reader.use(start)
    i = start + 1
    while i < len(reader.texts):
        cells = reader.texts[i].split()
        at = next((n for n, c in enumerate(cells) if re.fullmatch(r"\d{1,3}%|-", c) and n >= 3), None)
        if at is None or at + 1 >= len(cells):
            break
        sizes = [_kb(c, 1.0 if inodes else factor) for c in cells[at - 3 : at]]
        share = cells[at].rstrip("%")
        row: Row = {
            "device": " ".join(cells[: at - 3]) or cells[0],
            "mount": " ".join(cells[at + 1 :]),
            "size_kb": sizes[0],
            "used_kb": sizes[1],
            "available_kb": sizes[2],
            "used_percent": float(share) if is_number(share) else None,
            "inodes": inodes,
        }
        reader.add("filesystems", i, row)
        reader.use(i)
        i += 1
    return i


def _kb(cell: str, factor: float) -> float | None:
    found = _SIZE.match(cell)
    if not found:
        return None
    value = float(found[1])
    return value * _UNIT[found[2]] if found[2] else value * factor


def _limits(reader: LineWalk, start: int) -> int:
    i = start
    first = start
    while first > 0 and (_ULIMIT.match(reader.texts[first - 1]) or _PROC_LIMIT.match(reader.texts[first - 1])):
        first -= 1
    i = first
    while i < len(reader.texts):
        line = reader.texts[i]
        shell, proc = _ULIMIT.match(line), _PROC_LIMIT.match(line)
        if shell:
            factor = 1024.0 if "kbytes" in shell[2] else 512.0 if "blocks" in shell[2] else 1.0
            unlimited = shell[3] == "unlimited"
            name = _LIMITS.get(shell[1].strip(), shell[1].strip())
            reader.add("limits", i, {"name": name, "soft": None if unlimited else float(shell[3]) * factor, "unlimited": unlimited})
        elif proc:
            name = _LIMITS.get(proc[1].strip(), proc[1].strip())
            soft, hard = (None if v == "unlimited" else float(v) for v in (proc[2], proc[3]))
            reader.add("limits", i, {"name": name, "soft": soft, "hard": hard, "unlimited": proc[2] == "unlimited"})
        elif not line.startswith("Limit "):
            break
        reader.use(i)
        i += 1
    return i


def _free(reader: LineWalk, i: int) -> int:
    header = reader.texts[i - 1].split()
    reader.use(i - 1)
    while i < len(reader.texts):
        label, _, rest = reader.texts[i].partition(":")
        if label not in ("Mem", "Swap"):
            break
        for name, cell in zip(header, rest.split(), strict=False):
            # free prints kB unless told otherwise; with -h it prints units.
            reader.add("memory", i, {"name": name if label == "Mem" else f"swap-{name}", "value_kb": _kb(cell, 1.0)})
        reader.use(i)
        i += 1
    return i


def _meminfo(reader: LineWalk, i: int) -> int:
    while i < len(reader.texts):
        found = _MEMINFO.match(reader.texts[i])
        if not found and not reader.texts[i].startswith("HugePages_"):
            break
        if found:
            reader.add("memory", i, {"name": found[1], "value_kb": float(found[2])})
        reader.use(i)
        i += 1
    return i


FORMAT = TextFormat(
    name="host-listing",
    title="ps, df, ulimit -a, /proc/<pid>/limits, free, /proc/meminfo",
    tables=("host_processes", "filesystems", "limits", "memory"),
    anchors=(
        "COMMAND",
        " CMD",
        " ARGS",
        "Mounted on",
        "max locked memory",
        "Max locked memory",
        "open files  ",
        "Max open files",
        "Mem:",
        "MemTotal:",
    ),
    read=read,
    priority=60,
)
