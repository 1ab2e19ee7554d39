"""Counters of RDMA ports as perfquery, ibqueryerrors and ``rdma statistic`` print them."""

from __future__ import annotations

import re

import polars as pl

from nccl_forensics.facts.ib_counters import counter_name
from nccl_forensics.formats._documents import of_json
from nccl_forensics.formats.base import DocumentFormat, Gap, Reading, Row, Text, TextFormat, filled, line_numbers
from nccl_forensics.grammar.blocks import after, classify, whole
from nccl_forensics.tables import TABLES
from nccl_forensics.values.documents import items
from nccl_forensics.values.units import is_number

_HEADING = r"^\s*(?:# Port.*counters: |link [A-Za-z][\w.-]*/\d+(?: [a-z0-9_]+ \d+|\s*$)|Errors for |GUID 0x[0-9a-f]+ port |ibwarn: )"
_FLAG = re.compile(r"\[(\w+) == (\d+)")
#: Lines of perfquery that select and do not count.
_SELECTORS = frozenset({"PortSelect", "CounterSelect", "CounterSelect2"})


def read(text: Text) -> Reading:
    """One row per counter."""
    rows: list[Row] = []
    notes: list[Row] = []
    claimed: list[int] = []
    gaps: list[Gap] = []
    block: Row = {}
    for line in classify(after(text.lines, pl.col("text").str.contains(_HEADING), reach=400), "ib_counters", strip=True):
        number = line.number
        match line.kind:
            case "heading":
                port = whole(line.get("port"))
                block = {
                    "tool": "perfquery",
                    "lid": whole(line.get("lid")),
                    "guid": line.get("guid") or line.get("dr"),
                    "port": None if port == 255 else port,
                }
            case "value" if block.get("tool") == "perfquery":
                name = line.get("name") or ""
                if name not in _SELECTORS:
                    value = whole(line.get("value"))
                    if value is None:
                        gaps.append(Gap("unparsed: no number", number, text=line.text))
                        continue
                    rows.append({**line.where, **block, "counter": counter_name(name), "value": value})
            case "statistic" | "statistic_link":
                block = {"tool": "rdma-statistic", "device": line.get("device"), "port": whole(line.get("port"))}
                rows.extend({**line.where, **block, "counter": counter_name(k), "value": v} for k, v in _pairs(line.get("pairs")))
            case "statistic_value" if block.get("tool") == "rdma-statistic" and line.text[:1] in (" ", "\t"):
                rows.append({**line.where, **block, "counter": counter_name(line.get("stat") or ""), "value": whole(line.get("number"))})
            case "errors_for":
                block = {"tool": "ibqueryerrors", **_node(line.get("node"))}
            case "errors_guid":
                # Without the line above it, as grep leaves it: the node has no name then.
                block = block if block.get("tool") == "ibqueryerrors" else {"tool": "ibqueryerrors"}
                own = {"guid": line.get("guid"), "port": whole(line.get("port"))}
                if own["port"] is not None:  # "port ALL" sums up
                    flags = _FLAG.findall(line.get("flags") or "")
                    rows.extend({**line.where, **block, **own, "counter": counter_name(k), "value": int(v)} for k, v in flags)
            case "footer":
                notes.append({**line.where, "tool": "ibqueryerrors", "kind": "summary", "message": line.get("message")})
            case "link_info" | "noise":
                pass
            case _:
                if line.text.strip():
                    block = {}
                continue
        claimed.append(number)
    return Reading(frames=filled({"ib_counters": rows, "ib_diagnostics": notes}), lines=line_numbers(claimed), gaps=tuple(gaps))


def _node(name: str | None) -> Row:
    """Host and device of ``node01 mlx5_0``; a name of one word is a switch."""
    words = (name or "").split()
    if len(words) == 2 and "_" in words[1]:
        return {"host": words[0], "device": words[1]}
    if len(words) == 2 and words[1].startswith("HCA-"):
        return {"host": words[0], "device": words[1]}
    return {"node": name}


def _pairs(text: str | None) -> list[tuple[str, int]]:
    words = (text or "").split()
    return [(k, int(v)) for k, v in zip(words[::2], words[1::2], strict=False) if is_number(v)]


def _sniff_json(head: bytes) -> bool:
    return (
        head.lstrip()[:1] == b"["
        and b'"ifname"' in head
        and (b'"rx_write_requests"' in head or b'"out_of_sequence"' in head or b'"rdma_read_bytes"' in head)
    )


@of_json("unreadable")
def _read_json(document: object) -> Reading:
    rows: list[Row] = []
    for i, link in enumerate(items(document)):
        if isinstance(link, dict):
            own = {"tool": "rdma-statistic", "device": link.get("ifname"), "port": link.get("port")}
            rows.extend(
                {**own, "record": f"[{i}].{k}", "counter": counter_name(k), "value": v}
                for k, v in link.items()
                if isinstance(v, int) and k not in ("ifindex", "port")
            )
    return Reading(frames={"ib_counters": TABLES["ib_counters"].frame(rows)}, records=len(rows))


FORMATS = (
    TextFormat(
        name="ib-counters",
        title="perfquery, ibqueryerrors, rdma statistic",
        tables=("ib_counters", "ib_diagnostics"),
        anchors=(
            "counters: Lid ",
            "counters: GUID",
            "counters: 0x",
            "Errors for ",
            "GUID 0x",
            "link mlx5_",
            "link bnxt_",
            "link efa_",
            "link rdmap",
            "link ibp",
            "link irdma",
        ),
        read=read,
        priority=39,
    ),
    DocumentFormat(
        name="rdma-statistic-json",
        title="rdma statistic (JSON, -j)",
        tables=("ib_counters",),
        sniff=_sniff_json,
        read=_read_json,
        priority=40,
    ),
)
