"""Dated things that happened to the program, its processes, hosts and fabric, those alike and close together folded."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import polars as pl

from nccl_forensics.extras import Event, GroupTimeline
from nccl_forensics.masking import mask
from nccl_forensics.values.units import iso
from nccl_forensics.views import Resolver

#: Rows read of each table, and events of a report.
_READ, _EVENTS = 4000, 300
#: Times before 2001 are times of which the year is not known. Hosts keep kernel logs of weeks.
_FIRST_YEAR_NS, _MONTH_NS = 978_307_200_000_000_000, 31 * 86_400_000_000_000
#: Events of one text within so long of each other are one.
_CLOSE_NS = 2_000_000_000
_LONGEST = 240


@dataclass(frozen=True, slots=True)
class _Lane:
    """Which table fills a lane, and what is said of a row: columns in order, the first that is filled counts; ``prefix`` stands before."""

    table: str
    name: str
    text: tuple[str, ...]
    prefix: str = ""
    only: pl.Expr | None = None


_SERIOUS = pl.col("severity").is_in(["info", "benign"]).not_().fill_null(True)
_LANES = (
    _Lane("endings", "processes", ("message", "why"), "kind"),
    _Lane("watchdog", "watchdog", ("message", "kind")),
    _Lane("nccl_errors", "NCCL", ("message",), only=pl.col("kind") != "propagation"),
    _Lane("xids", "GPU driver", ("message",), "code"),
    _Lane("sxids", "NVSwitch", ("message",), "code"),
    _Lane("oom_kills", "kernel", ("message",)),
    _Lane("kernel_events", "kernel", ("message",), "kind", _SERIOUS),
    _Lane("fabric_events", "fabric manager", ("message",), only=_SERIOUS),
    _Lane("pod_events", "Kubernetes", ("message",), "reason"),
    _Lane("scheduler_jobs", "scheduler", ("reason", "state"), "state", pl.col("state").is_not_null()),
    _Lane("nccl_ras_events", "NCCL RAS", ("detail",), "event"),
)


@dataclass(slots=True)
class _Fold:
    """Events of one text so far."""

    first: Event
    at_ns: int
    last_ns: int
    ranks: set[int] = field(default_factory=set)
    hosts: set[str] = field(default_factory=set)
    count: int = 0


def events(resolver: Resolver, paths: Mapping[int, str], groups: Sequence[GroupTimeline]) -> tuple[Event, ...]:
    """In the order of their times as written; undated ones are left to the findings."""
    found = [*_collectives(resolver, groups)]
    for lane in _LANES:
        found += _rows(resolver, lane, paths)
    found = _placed(found)
    folds: list[_Fold] = []
    open_: dict[tuple[str, str], _Fold] = {}
    for at, event in sorted(found, key=lambda f: (f[0], f[1].lane, f[1].text, f[1].rank if f[1].rank is not None else -1, f[1].path or "")):
        key = (event.lane, re.sub(r"\d+", "#", event.text))
        fold = open_.get(key)
        if fold is None or at - fold.last_ns > _CLOSE_NS:
            fold = open_[key] = _Fold(event, at, at)
            folds.append(fold)
        fold.last_ns = max(fold.last_ns, at)
        fold.count += event.count
        fold.ranks |= {*event.ranks, *(() if event.rank is None else (event.rank,))}
        fold.hosts |= {*event.hosts, *(() if event.host is None else (event.host,))}
    return tuple(_event(f) for f in folds[:_EVENTS])


def _event(fold: _Fold) -> Event:
    e = fold.first
    until = iso(fold.last_ns) if fold.last_ns - fold.at_ns >= 1_000_000_000 else e.until
    host = min(fold.hosts) if len(fold.hosts) == 1 else None
    return Event(
        e.text,
        e.time,
        None,
        host,
        e.path,
        e.line,
        e.kind,
        e.lane,
        tuple(sorted(fold.ranks)),
        tuple(sorted(fold.hosts)),
        fold.count,
        until,
        e.local,
    )


def _rows(resolver: Resolver, lane: _Lane, paths: Mapping[int, str]) -> Iterator[tuple[int, Event]]:
    frame = resolver.get(lane.table)
    if frame is None:
        return
    names = set(frame.collect_schema().names())
    kept = pl.col("time_raw_ns").is_not_null()
    if "time_kind" in names:
        kept &= pl.col("time_kind").is_in(["epoch", "local-unzoned", "local-yearless"])
    if lane.only is not None:
        kept &= lane.only
    for r in frame.filter(kept).sort("time_raw_ns", "source_id", "line_no").head(_READ).collect().iter_rows(named=True):
        said = next((str(r[c]) for c in lane.text if r.get(c)), "").split("\n", 1)[0]
        head = _head(lane, r)
        text = said if not head or head.lower() in said.lower() else f"{head}: {said}" if said else head
        rank = r.get("rank") if r.get("rank") is not None else r.get("hint_rank")
        host = r.get("host") or r.get("hint_host")
        path = paths.get(r["source_id"]) if r["source_id"] is not None else None
        local = r.get("time_kind", "local-unzoned") != "epoch"
        count = int(r.get("count") or r.get("repeats") or 1)
        yield (
            r["time_raw_ns"],
            Event(
                mask(text)[:_LONGEST],
                iso(r["time_raw_ns"]),
                rank,
                host,
                path,
                r["line_no"],
                lane.table,
                lane.name,
                (),
                (),
                count,
                None,
                local,
            ),
        )


_WORDS = {"victim": "ended by the others", "terminated": "ended by a signal of the launcher"}


def _head(lane: _Lane, row: Mapping[str, object]) -> str:
    value = row.get(lane.prefix) if lane.prefix else None
    if value is None:
        return ""
    if lane.prefix == "code":
        return f"{'SXid' if lane.table == 'sxids' else 'Xid'} {value}"
    return _WORDS.get(str(value), str(value).replace("-", " ") if lane.table == "endings" else str(value))


def _collectives(resolver: Resolver, groups: Sequence[GroupTimeline]) -> Iterator[tuple[int, Event]]:
    """When each class of ranks enqueued what it called at the divergence of its group."""
    operations = resolver.get("operations")
    if operations is None:
        return
    for group in groups:
        if group.first_divergence not in group.columns:
            continue
        at = group.columns.index(group.first_divergence)
        here = operations.filter((pl.col("seq") == group.first_divergence) & ~pl.col("is_p2p")).select("rank", "op", "created_ns").collect()
        for row in group.rows:
            cell = row.cells[at]
            if not cell.text:
                continue
            own = here.filter(pl.col("rank").is_in(list(row.ranks)) & (pl.col("op") == cell.text.split(" ", 1)[0]))
            times = own.select(first=pl.col("created_ns").min(), last=pl.col("created_ns").max(), n=pl.col("rank").n_unique()).row(0)
            if times[0] is None:
                continue
            site = f" at {cell.site}" if cell.site else ""
            text = f"enqueues {cell.text} as #{group.first_divergence} of {group.group}{site}"
            yield (
                times[0],
                Event(
                    mask(text)[:_LONGEST], iso(times[0]), None, None, cell.path, cell.line, "operations", "collectives", row.ranks, (), 1
                ),
            )


def _placed(found: Sequence[tuple[int, Event]]) -> list[tuple[int, Event]]:
    """Times without a year (glog and syslog print none; they are kept as of 1970 or 2000) take the year that brings them nearest to the
    last dated event; without one they are left out. What lies more than a month before that is of another incident."""
    dated = [t for t, _ in found if t >= _FIRST_YEAR_NS]
    if not dated:
        return []
    last = max(dated)
    out = []
    for at, event in found:
        moved = at if at >= _FIRST_YEAR_NS else min((_in_year(at, y) for y in _years(last)), key=lambda t: abs(t - last))
        if moved > last - _MONTH_NS:
            out.append((moved, event if moved == at else replace(event, time=iso(moved))))
    return out


def _years(at_ns: int) -> range:
    year = datetime.fromtimestamp(at_ns // 1_000_000_000, UTC).year
    return range(year - 1, year + 2)


def _in_year(at_ns: int, year: int) -> int:
    """The same day and time of another year; 29 February of a common year is 1 March."""
    seconds, rest = divmod(at_ns, 1_000_000_000)
    own = datetime.fromtimestamp(seconds, UTC)
    start = datetime(year, own.month, 1, tzinfo=UTC) + timedelta(days=own.day - 1)
    moved = start.replace(hour=own.hour, minute=own.minute, second=own.second)
    return int(moved.timestamp()) * 1_000_000_000 + rest
