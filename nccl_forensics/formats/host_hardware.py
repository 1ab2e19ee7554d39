"""Hardware and system of a host: lscpu, ``numactl -H``, CPU governors, dmidecode, /etc/os-release, modinfo. Facts to compare hosts by."""

from __future__ import annotations

import re

import polars as pl

from nccl_forensics.formats.base import Reading, Row, Text, TextFormat, filled, line_numbers
from nccl_forensics.grammar.blocks import Line, after, classify, whole

_OPENS = (
    r"^\s*(?:Architecture:\s+[a-z]|available: \d+ nodes|node \d+ (?:cpus|size|free):|The governor \"|[/\w.-]*scaling_governor:|Handle 0x[0-9A-F]+, DMI type |System Information$|BIOS Information$"
    r"|PRETTY_NAME=|filename:\s+/)"
)
_LSCPU = {
    "Architecture": "architecture",
    "CPU(s)": "cpus",
    "Thread(s) per core": "threads-per-core",
    "Core(s) per socket": "cores-per-socket",
    "Socket(s)": "sockets",
    "NUMA node(s)": "numa-nodes",
    "Model name": "cpu-model",
    "Hypervisor vendor": "hypervisor",
    "Virtualization type": "virtualization",
}
_NUMA_CPUS = re.compile(r"^NUMA node(\d+) CPU\(s\)$")
_DMI = {
    ("System Information", "Product Name"): "machine",
    ("System Information", "Manufacturer"): "manufacturer",
    ("BIOS Information", "Version"): "bios",
    ("BIOS Information", "Release Date"): "bios-date",
}


class _Reader:
    """What the lines before have opened."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.tool: str | None = None
        self.section = ""
        self.governors: set[str] = set()

    def add(self, line: Line, tool: str, kind: str, name: str, value: str | None, number: float | None = None) -> bool:
        """A fact."""
        self.rows.append({**line.where, "tool": tool, "kind": kind, "name": name, "value": value, "number": number})
        return True

    def take(self, line: Line) -> bool:
        """Whether the line belongs to a listing."""
        get = line.get
        match line.kind:
            case "lscpu" if get("key") == "Architecture" or self.tool == "lscpu":
                self.tool = "lscpu"
                return self._lscpu(line)
            case "numa_nodes":
                self.tool = "numactl"
                return self.add(line, "numactl", "cpu", "numa-nodes", get("nodes"))
            case "numa_amount":
                self.tool = "numactl"
                value = whole(get("megabytes"))
                return self.add(line, "numactl", "numa", f"node{get('node')}-{get('what')}-mb", get("megabytes"), value)
            case "numa_cpus":
                self.tool = "numactl"
                return self.add(line, "numactl", "numa", f"node{get('node')}-cpus", get("cpus"))
            case "numa_distances" | "numa_distance" if self.tool == "numactl":
                return True
            case "governor" | "governor_file":
                # A listing has a line for every CPU, and all say the same.
                governor = get("governor") or ""
                if governor not in self.governors:
                    self.governors.add(governor)
                    self.add(line, "cpupower", "cpu", "governor", governor)
                return True
            case "dmi_section":
                self.tool, self.section = "dmidecode", get("dmi_section") or ""
                return True
            case "dmi_handle":
                self.section = ""
                return True
            case "dmi_value" if self.tool == "dmidecode" and line.text[:1] in (" ", "\t"):
                name = _DMI.get((self.section, get("dmi_key") or ""))
                return name is None or self.add(line, "dmidecode", "version", name, get("value"))
            case "release":
                return self.add(line, "os-release", "version", "os", get("release"))
            case "module_file":
                self.tool, self.section = "modinfo", line.text.rpartition("/")[2].partition(".")[0]
                return True
            case "module_version" if self.tool == "modinfo":
                name = "nvidia-driver" if self.section == "nvidia" else f"module {self.section}"
                return self.add(line, "modinfo", "version", name, get("module_version"))
            case _:
                return self.tool in ("dmidecode", "lscpu") and bool(self.section or self.tool == "lscpu") and _more(line.text)

    def _lscpu(self, line: Line) -> bool:
        key, value = line.get("key") or "", line.get("value")
        if numa := _NUMA_CPUS.match(key):
            return self.add(line, "lscpu", "numa", f"node{numa[1]}-cpus", value)
        return key not in _LSCPU or self.add(line, "lscpu", "cpu", _LSCPU[key], value)


def _more(text: str) -> bool:
    """Whether a line looks like one more of a listing of keys and values."""
    key, colon, _ = text.partition(":")
    return bool(colon) and 0 < len(key.strip()) <= 48 and "  " not in key.strip()


def read(text: Text) -> Reading:
    """One row per fact."""
    reader = _Reader()
    claimed: list[int] = []
    for line in classify(after(text.lines, pl.col("text").str.contains(_OPENS), reach=200), "host_hardware", strip=True):
        if reader.take(line):
            claimed.append(line.number)
        else:
            reader.tool = None
    return Reading(frames=filled({"host_facts": reader.rows}), lines=line_numbers(claimed if reader.rows else []))


FORMAT = TextFormat(
    name="host-hardware",
    title="lscpu, numactl -H, cpupower, scaling_governor, dmidecode, /etc/os-release, modinfo",
    tables=("host_facts",),
    anchors=(
        "Architecture:  ",
        " size: ",
        "The governor ",
        "scaling_governor:",
        "System Information",
        "BIOS Information",
        "PRETTY_NAME=",
        "filename:  ",
    ),
    read=read,
    priority=57,
)
