"""A cable's module reports an alarm: too hot, too little light, or currents out of bounds.

## What it finds
Alarms and warnings that a module (QSFP, OSFP, SFP) raises itself in ``ethtool -m``, with the readings beside them; receivers of which one
lane is dark while others of the same module see light.

## Why it matters
A module near its bounds corrupts bits long before the link goes down: correction, retransmission, then flaps, and each costs a collective.

## What would refute it
The port is not used by the job, or its peer was switched off when the reading was taken (then all lanes are dark).

## What to do next
Clean the connectors and reseat the module; swap the cable to see whether the alarm moves with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.model import Action, Culprit, Finding, name_of, names_of
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.hosts import located, place

_ALARM = re.compile(r"^(?P<what>.*?) (?P<side>high|low) (?P<level>alarm|warning)\b")
_LANE = re.compile(r"\(channel (\d+)\)")
_RECEIVED = r"^rcvr signal avg optical power|^receiver signal average optical power"


@rule(name="optical-module", code="NE16", cause="ib-link", severity="warning", at_most=32, explains=("packet-loss",))
def optical_module(
    net_settings: pl.LazyFrame,
    source_hosts: pl.LazyFrame | None,
    *,
    dark_dbm: Annotated[float, "received power below which a lane counts as dark"] = -30.0,
) -> Iterator[Finding]:
    """One finding per module: its alarms, and its dark lanes."""
    rows = located(net_settings.filter(pl.col("kind") == "module"), source_hosts)
    for (source, host, interface), part in rows.group_by("source_id", "host", "interface", maintain_order=True):
        raised = part.filter((pl.col("value").str.to_lowercase() == "on") & pl.col("name").str.contains(" alarm| warning"))
        light = part.filter(pl.col("name").str.contains(_RECEIVED) & pl.col("number").is_not_null())
        dark = light.filter(pl.col("number") <= dark_dbm)
        if dark.height == light.height:
            dark = dark.clear()  # all lanes alike: nobody at the other end, or nothing is measured
        if raised.is_empty() and dark.is_empty():
            continue
        said = list(dict.fromkeys(_words(name) for name in raised["name"].to_list()))
        lanes = sorted({lane for name in dark["name"].to_list() if (lane := _lane(name))})
        told = said + ([f"lane {', '.join(lanes)} dark"] if lanes else [])
        nic = str(interface) if interface is not None else None
        readings = part.filter(pl.col("name").str.contains("^module temperature$") | pl.col("name").str.contains(_RECEIVED))
        shown = pl.concat([raised, dark]).unique("line_no", maintain_order=True)
        yield Finding(
            title=f"The module of {nic or 'a port'} of {place(host)} reports {'; '.join(told[:4])}",
            summary="Readings: " + ", ".join(f"{n} {v}" for n, v in readings.select("name", "value").head(5).iter_rows()) + "."
            if readings.height
            else "The module raises this flag itself, against thresholds of its maker.",
            confidence="medium",
            hosts=names_of(host),
            culprits=(Culprit(host=name_of(host), nic=nic),),
            subject=(str(host or ""), nic or f"source {source}", *said),
            evidence=cite(shown, "flag or reading of the module"),
            evidence_total=shown.height,
            remedy="Clean and reseat the module or cable; replace it if the alarm comes back.",
            prevention="Watch the modules' temperature and light levels, and act on warnings before alarms.",
            would_refute=("the port is not used by the job",),
            actions=(Action("check_cable_or_optic", hosts=names_of(host), command=f"ethtool -m {nic}" if nic else None),),
        )


def _lane(name: str) -> str | None:
    found = _LANE.search(name)
    return found.group(1) if found else None


def _words(name: str) -> str:
    """``laser rx power low alarm`` without its lane: one phrase for all lanes."""
    found = _ALARM.match(_LANE.sub("", name).strip())
    return f"{found['what']} {found['side']} ({found['level']})" if found else name
