"""``ibdiagnet2.db_csv``: the whole fabric as ibdiagnet saw it, one section of comma-separated rows per subject.

A section stands between ``START_NAME`` and ``END_NAME``, a row of column names first. Columns are found by name: releases add some, spell
``NodeGUID`` and ``NodeGuid``, ``PortNum`` and ``PortNumber``, and count twice, as ``LinkDownedCounter`` (which stops at its largest value)
and ``LinkDownedCounterExt``. Numbers in PORTS are those of the PortInfo attribute (InfiniBand specification, volume 1, 14.2.5.6).
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from nccl_forensics.facts.ib_counters import COUNTERS, counter_name
from nccl_forensics.facts.link_rates import LANE_GBIT_S
from nccl_forensics.formats.base import DocumentFormat, Gap, Reading, Row
from nccl_forensics.frames import taken_for_packed
from nccl_forensics.tables import TABLES

_SNIFF = re.compile(rb"^START_[A-Z][A-Z0-9_]*\r?\n[^\n]{0,4000}\bnodeguid\b", re.MULTILINE | re.IGNORECASE)
_EDGE = re.compile(rb"^(START|END)_([A-Z][A-Z0-9_]*)[ \t]*\r?$", re.MULTILINE)
_READ = ("NODES", "PORTS", "LINKS", "PM_INFO")
_STATES = {1: "down", 2: "init", 3: "armed", 4: "active"}
_PHYSICAL = {1: "sleep", 2: "polling", 3: "disabled", 4: "training", 5: "linkup", 6: "linkerrorrecovery", 7: "phytest"}
_LANES = {1: 1, 16: 2, 2: 4, 4: 8, 8: 12}
#: Bits of LinkSpeedActv and LinkSpeedEn: the three of PortInfo, and behind them those of the extended speeds.
_SPEEDS = {1: "SDR", 2: "DDR", 4: "QDR", 1 << 8: "FDR", 1 << 9: "EDR", 1 << 10: "HDR", 1 << 11: "NDR", 1 << 12: "XDR", 1 << 16: "FDR10"}
_MTU = {1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096}
_SWITCH = 2

Port = tuple[str, int]


@dataclass(frozen=True, slots=True)
class _Node:
    """Who a GUID is."""

    name: str
    host: str | None
    device: str | None

    @property
    def row(self) -> Row:
        return {"node": self.name, "host": self.host, "device": self.device}


def read(data: bytes) -> Reading:
    """Counters of ports, states of adapters' ports, and links with what both of their ends could do."""
    gaps: list[Gap] = []
    parts: dict[str, pl.DataFrame] = {}
    for name, number, body, whole in _sections(data):
        if not whole:
            gaps.append(Gap(f"truncated: section {name} has no end", number))
        if name in _READ:
            try:
                part = _table(body, number)
            except pl.exceptions.PolarsError as problem:
                gaps.append(Gap(f"unparsed: section {name}: {problem}"[:200], number))
                continue
            parts[name] = pl.concat([parts[name], part], how="diagonal_relaxed") if name in parts else part
    nodes = _nodes(parts.get("NODES"))
    ports = {key: row for row in _rows(parts.get("PORTS")) if (key := _port(row, "nodeguid", "portnum")) is not None}
    found = {
        "ib_counters": _counters(parts.get("PM_INFO"), nodes),
        "ib_states": TABLES["ib_states"].frame(
            [_state(row, nodes[guid]) for (guid, _), row in ports.items() if _is_adapter(nodes.get(guid))]
        ),
        "ib_links": TABLES["ib_links"].frame(list(_links(parts.get("LINKS"), nodes, ports))),
    }
    return Reading(
        frames={n: f for n, f in found.items() if f.height}, gaps=tuple(gaps), records=sum(part.height for part in parts.values())
    )


def _sections(data: bytes) -> Iterator[tuple[str, int, bytes, bool]]:
    """(name, number of the line with its columns, text from there on, whether its end is there) of every section."""
    edges = [(m[1], m[2].decode(), m.start(), m.end()) for m in _EDGE.finditer(data)]
    line, counted = 1, 0
    for i, (kind, name, start, after) in enumerate(edges):
        if kind != b"START":
            continue
        line, counted = line + data.count(b"\n", counted, start), start
        follows = edges[i + 1] if i + 1 < len(edges) else None
        whole = follows is not None and (follows[0], follows[1]) == (b"END", name)
        yield name, line + 1, data[after + 1 : follows[2] if follows is not None else len(data)], whole


def _table(body: bytes, number: int) -> pl.DataFrame:
    """A section as texts, columns in lower case, with the line of each row. Raises what Polars says of text that is no table."""
    if taken_for_packed(body):
        raise pl.exceptions.ComputeError("it begins like a compressed file")
    frame = pl.read_csv(
        io.BytesIO(body.rstrip()), infer_schema=False, null_values=["N/A", ""], truncate_ragged_lines=True, encoding="utf8-lossy"
    )
    if frame.height != body.rstrip().count(b"\n"):  # the first line has the names
        raise pl.exceptions.ComputeError("its lines are not one row each")
    frame = frame.rename({c: c.strip().lower() for c in frame.columns})
    return frame.with_columns(pl.int_range(number + 1, number + 1 + frame.height, dtype=pl.UInt32).alias("line_no"))


def _rows(frame: pl.DataFrame | None) -> Iterator[Row]:
    return iter(()) if frame is None else frame.iter_rows(named=True)


def _nodes(frame: pl.DataFrame | None) -> dict[str, _Node]:
    """Nodes by GUID. An adapter's description is mostly ``node01 mlx5_0``, a switch's ``MF0;leaf01:MQM9700/U1``."""
    found: dict[str, _Node] = {}
    for row in _rows(frame):
        guid, name = str(row.get("nodeguid") or "").lower(), str(row.get("nodedesc") or "").strip()
        words = name.split()
        named = len(words) == 2 and _number(row.get("nodetype")) != _SWITCH
        if guid:
            found[guid] = _Node(name or guid, words[0] if named else None, words[1] if named else None)
    return found


def _is_adapter(node: _Node | None) -> bool:
    """``HCA-1`` is a number that the driver counts, not the name that other tools of the host call the device."""
    return node is not None and node.device is not None and not node.device.startswith("HCA-")


def _counters(frame: pl.DataFrame | None, nodes: dict[str, _Node]) -> pl.DataFrame:
    """One row per port and counter that can tell of trouble; of two widths of a counter the larger value."""
    table, guid = TABLES["ib_counters"], "nodeguid"
    port = next((c for c in ("portnumber", "portnum") if frame is not None and c in frame.columns), None)
    if frame is None or port is None or guid not in frame.columns:
        return table.frame()
    names = {c: known for c in frame.columns if (known := _counter(c)) in COUNTERS}
    if not names:
        return table.frame()
    keys = ["line_no", guid, port]
    long = (
        frame.select(*keys, *(_integer(c) for c in names))
        .unpivot(index=keys, on=list(names), variable_name="counter")
        .with_columns(pl.col("counter").replace_strict(names, return_dtype=pl.String))
        .filter(pl.col("value").is_not_null())
        .group_by(*keys, "counter", maintain_order=True)
        .agg(pl.col("value").max())
    )
    who = pl.DataFrame(
        [{guid: g, **n.row} for g, n in nodes.items()], schema={guid: pl.String, "node": pl.String, "host": pl.String, "device": pl.String}
    )
    placed = (
        long.with_columns(pl.col(guid).str.to_lowercase())
        .join(who, on=guid, how="left", maintain_order="left")
        .with_columns(
            node=pl.when(pl.col("device").is_null()).then(pl.coalesce("node", guid)), guid=pl.col(guid), port=_integer(port).cast(pl.Int32)
        )
    )
    return table.conform(placed.with_columns(tool=pl.lit("ibdiagnet")))


_LONG = {name.replace("_", ""): name for name in COUNTERS}


def _counter(column: str) -> str:
    """The name of a counter; columns are in lower case here."""
    plain = column.removesuffix("extended").removesuffix("ext")
    return _LONG.get(plain) or counter_name(plain)


def _integer(column: str) -> pl.Expr:
    """A column of decimal or hexadecimal texts as numbers; what is none is null."""
    text = pl.col(column).str.strip_chars()
    hexadecimal = text.str.extract(r"^0[xX]([0-9a-fA-F]+)$").str.to_integer(base=16, strict=False)
    return pl.coalesce(text.cast(pl.Int64, strict=False), hexadecimal.cast(pl.Int64, strict=False)).alias(column)


def _number(value: object) -> int | None:
    try:
        return None if value is None else int(str(value).strip(), 0)
    except ValueError:
        return None


def _port(row: Row, guid: str, port: str) -> Port | None:
    number = _number(row.get(port))
    return None if row.get(guid) is None or number is None else (str(row[guid]).lower(), number)


def _state(row: Row, node: _Node) -> Row:
    lanes, speed = _LANES.get(_number(row.get("linkwidthactv")) or 0), _SPEEDS.get(_number(row.get("linkspeedactv")) or 0)
    state = _STATES.get(_number(row.get("portstate")) or 0)
    up = state not in (None, "down")
    return {
        "line_no": row["line_no"],
        "tool": "ibdiagnet",
        "host": node.host,
        "device": node.device,
        "port": _number(row.get("portnum")),
        "state": state,
        "phys_state": _PHYSICAL.get(_number(row.get("portphystate")) or 0),
        "rate_gbit_s": lanes * LANE_GBIT_S[speed] if up and lanes and speed else None,
        "width": lanes if up else None,
        "speed": speed if up else None,
        "lid": _number(row.get("lid")),
        "sm_lid": _number(row.get("msmlid")),
        "link_layer": "infiniband",
        "mtu_bytes": _MTU.get(_number(row.get("nmtu")) or 0),
        "mtu_max_bytes": _MTU.get(_number(row.get("mtucap")) or 0),
        "port_guid": row.get("portguid"),
        "node_guid": row.get("nodeguid"),
    }


def _links(frame: pl.DataFrame | None, nodes: dict[str, _Node], ports: dict[Port, Row]) -> Iterator[Row]:
    """One row per link, seen from the end that is a host's, if one is."""
    for row in _rows(frame):
        ends = [_port(row, "nodeguid1", "portnum1"), _port(row, "nodeguid2", "portnum2")]
        if ends[0] is None or ends[1] is None:
            continue
        own, peer = sorted((e for e in ends if e is not None), key=lambda e: not _is_adapter(nodes.get(e[0])))
        here, there = ports.get(own, {}), ports.get(peer, {})
        lanes, speed = _LANES.get(_number(here.get("linkwidthactv")) or 0), _SPEEDS.get(_number(here.get("linkspeedactv")) or 0)
        yield {
            "line_no": here.get("line_no", row["line_no"]),
            "tool": "ibdiagnet",
            **nodes.get(own[0], _Node(own[0], None, None)).row,
            "port": own[1],
            "lid": _number(here.get("lid")),
            "guid": own[0],
            "width": lanes,
            "speed": f"{LANE_GBIT_S[speed]:g}" if speed else None,
            "state": _STATES.get(_number(here.get("portstate")) or 0),
            "phys_state": _PHYSICAL.get(_number(here.get("portphystate")) or 0),
            "peer": nodes[peer[0]].name if peer[0] in nodes else peer[0],
            "peer_port": peer[1],
            "peer_lid": _number(there.get("lid")),
            "could_be": _could_be(here, there, lanes, speed),
        }


def _could_be(here: Row, there: Row, lanes: int | None, speed: str | None) -> str | None:
    """What both ends have enabled and the link does not run at, in the words of iblinkinfo."""
    widths = (_number(here.get("linkwidthen")) or 0) & (_number(there.get("linkwidthen")) or 0)
    speeds = (_number(here.get("linkspeeden")) or 0) & (_number(there.get("linkspeeden")) or 0)
    widest = max((n for bit, n in _LANES.items() if widths & bit), default=0)
    fastest = max((LANE_GBIT_S[name] for bit, name in _SPEEDS.items() if speeds & bit), default=0.0)
    if _STATES.get(_number(here.get("portstate")) or 0) != "active" or not lanes or not speed:
        return None
    told = [f"{widest}X"] if lanes < widest else []
    told += [f"{fastest:g} Gbps"] if LANE_GBIT_S[speed] < fastest else []
    return f"Could be {' '.join(told)}" if told else None


FORMAT = DocumentFormat(
    name="ibdiagnet-db",
    title="ibdiagnet2.db_csv: nodes, ports, links and counters of the whole fabric",
    tables=("ib_counters", "ib_states", "ib_links"),
    sniff=lambda head: _SNIFF.search(head) is not None,
    read=read,
    priority=30,
)
