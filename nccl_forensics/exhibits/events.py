"""What happened when: events of processes, hosts and fabric on one time axis, and as a list."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from nccl_forensics.drawings.events import Mark, axis
from nccl_forensics.exhibits.base import Block, Drawing, Item, Report, listed, ranks_text, table, where_text
from nccl_forensics.extras import Event, Extras
from nccl_forensics.plain import plain
from nccl_forensics.presentation import moment, number, part, rows, text, words

#: Rows of the list, of it with what opens on a click, and marks of the drawing.
FIRST, EVENTS, MARKS = 30, 150, 400
#: Ranks of an event that are listed; more are counted.
_LISTED = 12


def build(report: Report, extras: Extras) -> tuple[Block, ...]:
    """The axis and the list; events that the verdict quotes are marked."""
    events = extras.events
    if not events:
        return ()
    decisive = _decisive(report)
    said = statement(events)
    marks = [m for e in events[:MARKS] if (m := _mark(e, decisive)) is not None]
    picture = (
        Drawing("Events on one time axis", axis(marks, said), (("event", "event"), ("decisive", "quoted as evidence of the verdict")))
        if len({m.at_ns for m in marks}) > 1
        else None
    )
    body = []
    for event, time in zip(events[:EVENTS], _times(events[:EVENTS]), strict=True):
        where = where_text(event.path, event.line)
        state = ("state", "culprit") if where and where in decisive else ("text", "")
        body.append(
            (
                Item(time, "time"),
                Item(plain(event.lane or event.kind, 30)),
                Item(_who(event)),
                Item(_what(event), *state),
                Item(where, "where" if where else "text"),
            )
        )
    columns = ("Time (UTC)", "Kind", "Who", "What", "Evidence")
    tables = [table("Events in order", columns, body[:FIRST])]
    if len(body) > FIRST:
        tables.append(table(f"{len(body) - FIRST:,} further events", columns, body[FIRST:], max(0, len(events) - EVENTS), folded=True))
    return (Block(said, drawing=picture, tables=tuple(tables)),)


def statement(events: Sequence[Event]) -> str:
    """How many, from when to when."""
    total = sum(e.count for e in events)
    untimed = sum(e.count for e in events if e.time is None)
    known = [plain(e.time, 40) for e in events if e.time]
    if len(known) > 1:
        first, last = moment(known[0]), moment(known[-1])
        span = f", at {first} UTC" if first == last else f", from {first} to {last[11:] if first[:10] == last[:10] else last} UTC"
    else:
        span = ""
    said = f"{total:,} {'event' if total == 1 else 'events'}{span}"
    if any(e.local for e in events):
        said += "; times whose source tells no zone stand as written"
    return said + (f"; {untimed:,} of them have no time and stand where their source puts them." if untimed else ".")


def _mark(event: Event, decisive: frozenset[str]) -> Mark | None:
    at = _ns(event.time)
    if at is None:
        return None
    title = " · ".join(t for t in (moment(plain(event.time, 40)), _who(event), _what(event)) if t)
    lane = plain(event.lane or event.kind or "other", 40)
    return Mark(at, lane, title, where_text(event.path, event.line) in decisive, event.count)


def _ns(time: str | None) -> int | None:
    try:
        return round(datetime.fromisoformat(time).timestamp() * 1e9) if time else None
    except ValueError:
        return None


def _who(event: Event) -> str:
    ranks = event.ranks or (() if event.rank is None else (event.rank,))
    who = "" if not ranks else ranks_text(ranks, 4) if len(ranks) <= _LISTED else f"{len(ranks):,} ranks"
    hosts = listed(event.hosts, 2) if event.hosts else plain(event.host, 60)
    return " · ".join(t for t in (who, hosts) if t)


def _what(event: Event) -> str:
    times = (
        f" (×{event.count:,}" + (f", until {moment(plain(event.until, 40))[11:]}" if event.until else "") + ")" if event.count > 1 else ""
    )
    return plain(event.text, 200) + times


def _times(events: Sequence[Event]) -> list[str]:
    """Times of day; the date where it changes."""
    out, day = [], ""
    for event in events:
        said = moment(plain(event.time, 40)) if event.time else "no time"
        date = said[:10] if len(said) >= 19 else ""
        out.append(said[11:] if date and date == day else said)
        day = date or day
    return out


def _decisive(report: Report) -> frozenset[str]:
    """Places that the findings of the verdict cite by line."""
    because = set(words(part(report, "verdict"), "because"))
    cited = (e for f in rows(report, "findings") if text(f, "id") in because for e in rows(f, "evidence"))
    return frozenset(where_text(text(e, "path", 400), number(e, "line")) for e in cited if number(e, "line") is not None)
