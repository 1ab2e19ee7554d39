"""Who holds a port or a GPU: ``lsof -i``, ``lsof /dev/nvidia*`` and ``fuser -v /dev/nvidia*``."""

from __future__ import annotations

import re

from nccl_forensics.formats.base import LineWalk, Reading, Text, TextFormat
from nccl_forensics.grammar.blocks import whole

_LSOF = re.compile(r"^COMMAND +PID +(?:TID +TASKCMD +)?USER +FD +TYPE +DEVICE +SIZE/OFF +NODE +NAME *$")
_NETWORK = re.compile(r"^(\S{1,60}) +(\d{1,10}) .* (?:TCP|UDP) (\S{1,120})(?: \(([A-Z_0-9]{1,20})\))?$")
_DEVICE = re.compile(r"^(\S{1,60}) +(\d{1,10}) .* /dev/nvidia(\d{1,3})$")
_FUSER_HEAD = re.compile(r"^ +USER +PID +ACCESS +COMMAND *$")
_FUSER = re.compile(r"^ {0,40}(?:/dev/(nvidia\S{0,40}): +)?(\S{1,40}) +(\d{1,10}) +[.a-zA-Z]{1,8} +(\S{1,60})$")
_MINOR = re.compile(r"^nvidia(\d+)$")
#: lsof's words to those of ss.
_STATES = {"ESTABLISHED": "ESTAB", "SYN_SENT": "SYN-SENT", "CLOSE_WAIT": "CLOSE-WAIT", "TIME_WAIT": "TIME-WAIT", "LISTEN": "LISTEN"}


def read(text: Text) -> Reading:
    """Sockets with their process, and processes by GPU; the number of a device file is the driver's minor, mostly nvidia-smi's index."""
    walk = LineWalk(text)
    tool: str | None = None
    device: str | None = None
    for i, line in enumerate(walk.texts):
        if _LSOF.match(line) or _FUSER_HEAD.match(line):
            tool, device = ("lsof" if line.startswith("COMMAND") else "fuser"), None
        elif tool == "lsof" and (found := _NETWORK.match(line)):
            local, _, peer = found[3].partition("->")
            told = {"local": local, "peer": peer or None, "process": found[1], "pid": int(found[2])}
            walk.add("sockets", i, {**told, "state": _STATES.get(found[4] or "", found[4])})
        elif tool == "lsof" and (held := _DEVICE.match(line)):
            walk.add("gpu_processes", i, {"gpu_index": int(held[3]), "pid": int(held[2]), "name": held[1]})
        elif tool == "lsof" and len(line.split()) >= 9:
            pass
        elif tool == "fuser" and (holder := _FUSER.match(line)):
            device = holder[1] or device
            minor = _MINOR.match(device or "")
            if minor:
                walk.add("gpu_processes", i, {"gpu_index": whole(minor[1]), "pid": int(holder[3]), "name": holder[4]})
        else:
            tool = None
            continue
        walk.use(i)
    return walk.reading() if walk.rows else Reading()


FORMAT = TextFormat(
    name="open-files",
    title="lsof, fuser -v",
    tables=("sockets", "gpu_processes"),
    anchors=("SIZE/OFF", "PID ACCESS COMMAND"),
    read=read,
    priority=59,
)
