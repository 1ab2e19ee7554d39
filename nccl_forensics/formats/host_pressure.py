"""``/proc/pressure`` and vmstat: what share of the time a host's processes wait for memory, storage and CPUs."""

from __future__ import annotations

import polars as pl

from nccl_forensics.formats.base import Reading, Row, Text, TextFormat, filled, line_numbers, line_of
from nccl_forensics.grammar.blocks import Line, after, classify, real

_OPENS = r"^\s*(?:(?:[/\w.-]*/pressure/(?:cpu|memory|io|irq):)?(?:some|full) avg10=|(?:==> )?[/\w.-]*/pressure/(?:cpu|memory|io|irq)(?: <==)?$|procs +-+|r +b +swpd )"
#: Column of vmstat to the fact's name. si and so are kB a second (procps, in units of 1024 bytes unless -S says another).
_COLUMNS = {"si": "swap-in-kb-s", "so": "swap-out-kb-s", "b": "blocked", "wa": "iowait-percent", "st": "steal-percent"}


def read(text: Text) -> Reading:
    """Pressures as they stand; of each vmstat the worst sample of each kind."""
    rows: list[Row] = []
    claimed: list[int] = []
    resource: str | None = None
    header: list[str] = []
    samples: list[tuple[Line, list[str]]] = []
    previous: Line | None = None
    for line in classify(after(text.lines, pl.col("text").str.contains(_OPENS), reach=5000), "host_pressure", strip=True):
        match line.kind:
            case "pressure_heading":
                resource = line.get("resource")
            case "pressure":
                rows.append(_pressure(line, line.get("resource") or resource))
            case "vmstat_head" if "swpd" in line.text:
                if header and header != line.text.split():
                    rows += _worst(header, samples)
                    samples = []
                header = line.text.split()
                if previous is not None and previous.kind == "vmstat_top":
                    claimed.append(previous.number)
            case "vmstat_row" if header:
                samples.append((line, (line.get("numbers") or "").split()))
            case _:
                if line.text.strip() and line.kind != "vmstat_top":
                    rows += _worst(header, samples)
                    header, samples, resource = [], [], None
                previous = line
                continue
        previous = line
        claimed.append(line.number)
    rows += _worst(header, samples)
    return Reading(frames=filled({"host_facts": rows}), lines=line_numbers(claimed if rows else []))


def _pressure(line: Line, resource: str | None) -> Row:
    """``number`` is the average of a minute in percent."""
    name = f"{resource or 'unknown'}-pressure-{line.get('share')}"
    value = f"avg10={line.get('avg10')} avg60={line.get('avg60')} avg300={line.get('avg300')}"
    return {**line.where, "tool": "proc-pressure", "kind": "pressure", "name": name, "value": value, "number": real(line.get("avg60"))}


def _worst(header: list[str], samples: list[tuple[Line, list[str]]]) -> list[Row]:
    """The first sample averages since boot and counts only where it is alone."""
    judged = samples[1:] or samples
    rows: list[Row] = []
    for column, name in _COLUMNS.items():
        if column not in header or not judged:
            continue
        at = header.index(column)
        line, cells = max(judged, key=lambda sample: real(sample[1][at]) or 0.0 if at < len(sample[1]) else 0.0)
        if at < len(cells):
            rows.append({**line.where, "tool": "vmstat", "kind": "load", "name": name, "value": cells[at], "number": real(cells[at])})
    return sorted(rows, key=line_of)


FORMAT = TextFormat(
    name="host-pressure",
    title="/proc/pressure, vmstat",
    tables=("host_facts",),
    anchors=(" avg10=", "swpd"),
    read=read,
    priority=57,
)
