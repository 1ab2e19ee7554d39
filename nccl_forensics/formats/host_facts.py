"""Facts of a host from small tools: modules (lsmod), driver and kernel versions, clock (chronyc, timedatectl, ntpq), BMC events and
sensors, load, when it came up."""

from __future__ import annotations

import re

import polars as pl

from nccl_forensics.formats.base import Reading, Row, Text, TextFormat, filled, line_numbers
from nccl_forensics.grammar.blocks import Line, after, classify, moment, real

_OPENS = (
    r"^\s*(?:Module +Size +Used by|NVRM version: |Linux \S+ \d[^ ]* #|System time +: |Leap status +: |System clock synchronized: "
    r"|[0-9a-f]+ \| \d\d/\d\d/\d{2,4} \| |top - \d\d:|%Cpu\(s\):|remote +refid +st +t +when"
    r"|btime \d+$|system boot +\d{4}-|\d\d:\d\d:\d\d up .* load average: |[^|]{2,40} \| [^|]{1,40} \| (?:ok|ns|nc|cr|nr|[lu]nc|[lu]cr|[lu]nr|(?:degrees C|Watts|Volts|RPM) +\|)"
    r"(?: *$| +\|))"
)
#: States of a sensor that the board management calls wrong (IPMI 2.0: non-critical, critical, non-recoverable; lower and upper).
_WRONG = ("nc", "cr", "nr", "lnc", "lcr", "lnr", "unc", "ucr", "unr")
#: Modules that matter to GPU communication; a listing has hundreds.
_MODULES = re.compile(r"^(?:nvidia\w*|nv_peer_mem|gdrdrv|mlx[45]_\w+|ib_\w+|rdma_\w+|efa|irdma|bnxt_re|amdgpu|amdkfd|nouveau)$")


def read(text: Text) -> Reading:
    """One row per fact."""
    rows: list[Row] = []
    claimed: list[int] = []
    listing = peers = False
    for line in classify(after(text.lines, pl.col("text").str.contains(_OPENS), reach=1000), "host_facts", strip=True):
        if line.kind == "modules_head":
            listing = True
        elif line.kind == "module" and listing:
            name = str(line.get("module"))
            if _MODULES.match(name):
                rows.append({**line.where, "tool": "lsmod", "kind": "module", "name": name, "value": "loaded"})
        elif line.kind == "ntpq_head":
            peers = True
            rows.append({**line.where, "tool": "ntpq", "kind": "clock", "name": "synchronized", "value": "no"})
        elif line.kind == "ntpq_peer" and peers:
            if line.get("tally") in ("*", "o"):  # the peer that the clock follows
                rows[-1] = rows[-1] | {"value": "yes"}
                rows.append({**line.where, **_offset(line)})
        elif peers and line.text.startswith("==="):
            pass
        elif line.kind is not None and line.kind not in ("module", "ntpq_peer"):
            listing = peers = False
            rows.append({**line.where, **_fact(line)})
        else:
            listing = listing and not line.text.strip()
            continue
        claimed.append(line.number)
    return Reading(frames=filled({"host_facts": rows}), lines=line_numbers(claimed))


def _fact(line: Line) -> Row:
    get = line.get
    match line.kind:
        case "nvrm":
            return {"tool": "proc-driver", "kind": "version", "name": "nvidia-driver", "value": get("driver")}
        case "uname":
            return {"tool": "uname", "kind": "version", "name": "kernel", "value": get("kernel"), "host": get("host")}
        case "clock_offset":
            offset = real(get("offset"))
            signed = None if offset is None else -offset if get("side") == "slow" else offset
            return {"tool": "chronyc", "kind": "clock", "name": "offset", "value": f"{get('offset')} s {get('side')}", "number": signed}
        case "clock_leap":
            bad = get("leap") == "Not synchronised"
            return {"tool": "chronyc", "kind": "clock", "name": "synchronized", "value": "no" if bad else "yes"}
        case "clock_synchronized":
            return {"tool": "timedatectl", "kind": "clock", "name": "synchronized", "value": get("synchronized")}
        case "sel":
            return {"tool": "ipmitool", "kind": "bmc", "name": get("sensor"), "value": get("event"), **_stamp(line)}
        case "sensor_sdr" | "sensor_elist" | "sensor_list":
            return _sensor(line)
        case "top_head" | "uptime":
            return {
                "tool": "top" if line.kind == "top_head" else "uptime",
                "kind": "load",
                "name": "load",
                "value": get("load"),
                "number": real(get("load")),
            }
        case "boot_epoch" | "boot_local":
            return _boot(get("boot_s"), f"{get('boot_day')}T{get('clock_m')}")
        case _:
            return {"tool": "top", "kind": "load", "name": "iowait-percent", "value": get("wait"), "number": real(get("wait"))}


def _boot(seconds: str | None, local: str) -> Row:
    """``btime`` of /proc/stat counts from the epoch; ``who -b`` writes minutes on the host's own clock."""
    at = int(seconds) * 1_000_000_000 if seconds is not None else moment(local)
    stamp = {"time_raw_ns": at, "time_kind": "epoch" if seconds is not None else "local-unzoned"} if at is not None else {}
    return {"tool": "who" if seconds is None else "proc-stat", "kind": "boot", "name": "boot", "value": seconds or local, **stamp}


def _sensor(line: Line) -> Row:
    """``state`` stands behind the reading, as in ``95 degrees C: cr``; what is in order has none."""
    get = line.get
    reading = f"{get('figure')} {get('unit')}" if line.kind == "sensor_list" else (get("reading") or "no reading").strip()
    status = get("status") or ""
    value = f"{reading}: {status}" if status in _WRONG else reading
    return {
        "tool": "ipmitool",
        "kind": "sensor",
        "name": (get("sensor") or "").strip(),
        "value": value,
        "number": real(reading.split(" ")[0]),
    }


def _offset(line: Line) -> Row:
    """ntpq tells by how much the peer is ahead, in milliseconds; here negative is behind."""
    ahead = real(line.get("milliseconds"))
    number = None if ahead is None else round(-ahead / 1000, 9)
    return {
        "tool": "ntpq",
        "kind": "clock",
        "name": "offset",
        "value": f"{line.get('milliseconds')} ms to {line.get('remote')}",
        "number": number,
    }


def _stamp(line: Line) -> Row:
    """``05/06/2024`` and a clock; BMCs mostly run on UTC and say nothing of a zone."""
    month, day, year = (line.get("date") or "").split("/")
    full = f"20{year}" if len(year) == 2 else year
    stamp = moment(f"{full}-{month}-{day}T{line.get('clock')}")
    return {} if stamp is None else {"time_raw_ns": stamp, "time_kind": "local-unzoned"}


FORMAT = TextFormat(
    name="host-facts",
    title="lsmod, uname -a, /proc/driver/nvidia/version, chronyc, timedatectl, ntpq -p, ipmitool sel, sdr and sensor, uptime, top -b, boot times",
    tables=("host_facts",),
    anchors=(
        "Used by",
        "NVRM version: ",
        "Linux ",
        "System time  ",
        "Leap status",
        "System clock synchronized",
        "Asserted",
        "asserted",
        "top - ",
        " load average: ",
        "     refid ",
        "degrees C",
        " | ok",
        " | cr",
        "%Cpu(s):",
        "btime ",
        "system boot ",
    ),
    read=read,
    priority=60,
)
