"""Files of /proc that people copy as they are: /proc/net/dev, /proc/net/netstat and snmp, and what NVIDIA's driver writes below
/proc/driver/nvidia."""

from __future__ import annotations

import re

from nccl_forensics.formats.base import LineWalk, Reading, Row, Text, TextFormat
from nccl_forensics.grammar.blocks import whole
from nccl_forensics.values import pci

#: Columns of /proc/net/dev (Linux net/core/net-procfs.c), under the names of the kernel's own statistics.
_RECEIVE = ("bytes", "packets", "errors", "dropped", "fifo_errors", "frame_errors", "compressed", "multicast")
_TRANSMIT = ("bytes", "packets", "errors", "dropped", "fifo_errors", "collisions", "carrier_errors", "compressed")
_DEV = re.compile(r"^\s*([\w.@-]{1,32}):\s*(\d[\d ]*)$")
_PAIR = re.compile(r"^(TcpExt|IpExt|MPTcpExt|Ip|Icmp|IcmpMsg|Tcp|Udp|UdpLite): (\S.*)$")
_INFORMATION = re.compile(
    r"^(Model|IRQ|GPU UUID|Video BIOS|Bus Type|DMA Size|DMA Mask|Bus Location|Device Minor|GPU Firmware|GPU Excluded):\s+(.*)$"
)
_PARAMETER = re.compile(r"^([A-Z][A-Za-z0-9]{3,40}): (\S.{0,80}|)$")
#: Parameters of the driver that change what a GPU does; the rest is left out.
_PARAMETERS = (
    "EnableGpuFirmware",
    "RegistryDwords",
    "NVreg_EnableGpuFirmware",
    "EnableResizableBar",
    "GrdmaPciTopoCheckOverride",
    "CoherentGPUMemoryMode",
)


def read(text: Text) -> Reading:
    """Every block that begins with a line of one of the files."""
    return LineWalk(text).blocks(_block)


def _block(reader: LineWalk, i: int) -> int:
    line = reader.texts[i]
    if not reader.hits[i]:
        return i
    if line.startswith("Inter-|   Receive"):
        return _interfaces(reader, i)
    if _PAIR.match(line):
        return _counters(reader, i)
    if line.startswith("Model:"):
        return _gpu(reader, i)
    return _parameters(reader, i) if line.startswith("ResmanDebugLevel:") else i


def _interfaces(reader: LineWalk, start: int) -> int:
    i = start + 2
    reader.used += reader.numbers[start : start + 2]
    names = [f"{side}_{column}" for side, columns in (("rx", _RECEIVE), ("tx", _TRANSMIT)) for column in columns]
    while i < len(reader.texts) and (found := _DEV.match(reader.texts[i])):
        for name, value in zip(names, found[2].split(), strict=False):
            reader.add("net_counters", i, {"tool": "proc-net", "interface": found[1], "counter": name, "value": whole(value)})
        reader.used.append(reader.numbers[i])
        i += 1
    return i


def _counters(reader: LineWalk, start: int) -> int:
    """Two lines each: names, then values, both with the protocol in front."""
    i = start
    while i + 1 < len(reader.texts):
        names, values = _PAIR.match(reader.texts[i]), _PAIR.match(reader.texts[i + 1])
        if not names or not values or names[1] != values[1] or not names[2][0].isalpha() or values[2][0].isalpha():
            break
        for name, value in zip(names[2].split(), values[2].split(), strict=False):
            reader.add("net_counters", i + 1, {"tool": "proc-net", "counter": f"{names[1]}{name}", "value": whole(value)})
        reader.used += reader.numbers[i : i + 2]
        i += 2
    return i


def _gpu(reader: LineWalk, start: int) -> int:
    """One GPU of /proc/driver/nvidia/gpus. Question marks stand for what the driver could not read, or has not read yet."""
    i, told = start, {}
    while i < len(reader.texts) and (found := _INFORMATION.match(reader.texts[i])):
        told[found[1]] = found[2].strip()
        i += 1
    if "Bus Location" not in told:
        return start
    reader.used += reader.numbers[start:i]
    bus = pci.normal(told["Bus Location"])
    known = {key: None if "??" in value or value == "N/A" else value for key, value in told.items()}
    row: Row = {
        "tool": "proc-driver",
        "bus_id": bus,
        "uuid": known.get("GPU UUID"),
        "name": known.get("Model"),
        "vbios": known.get("Video BIOS"),
    }
    reader.add("gpus", start, row | {"gsp_firmware": known.get("GPU Firmware")})
    if known.get("Video BIOS") is None and "Video BIOS" in told:
        message = f"Video BIOS: {told['Video BIOS']}"
        reader.add("gpu_tool_errors", start, {"tool": "proc-driver", "kind": "gpu-silent", "bus_id": bus, "message": message})
    return i


def _parameters(reader: LineWalk, start: int) -> int:
    i = start
    while i < len(reader.texts) and (found := _PARAMETER.match(reader.texts[i])):
        if found[1] in _PARAMETERS and found[2].strip('" '):
            fact: Row = {"tool": "proc-driver", "kind": "version", "name": f"driver parameter {found[1]}", "value": found[2].strip('" ')}
            reader.add("host_facts", i, fact)
        reader.used.append(reader.numbers[i])
        i += 1
    return i


FORMAT = TextFormat(
    name="proc-files",
    title="/proc/net/dev, /proc/net/netstat, /proc/net/snmp, /proc/driver/nvidia/gpus/*/information, /proc/driver/nvidia/params",
    tables=("net_counters", "gpus", "gpu_tool_errors", "host_facts"),
    anchors=("Inter-|   Receive", "TcpExt: ", "IpExt: ", "Tcp: Rto", "Ip: Forwarding", "Model:", "ResmanDebugLevel: "),
    read=read,
    priority=44,
)
