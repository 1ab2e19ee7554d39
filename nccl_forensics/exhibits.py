"""The exhibits of a report: each is one sentence that says what is to be seen, and a table that proves it. Drawings repeat the table.

Built from ``Extras`` and the measures of the report; all text in it is harmless.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from nccl_forensics.extras import Cell, ChannelCount, Event, Extras, GroupTimeline, Host, StackClass, TimelineRow, Wait
from nccl_forensics.plain import plain
from nccl_forensics.presentation import ROWS, amount, moment, number, part, rows, sentence, text, words
from nccl_forensics.words import rank_list, verb

STATE_WORDS = {
    "completed": "completed",
    "waiting": "waiting",
    "diverged": "diverged",
    "missing": "missing",
    "unknown": "not known",
    "culprit": "at fault",
    "dead": "dead",
    "ok": "no fault seen",
}
#: What a host is called of which the evidence does not tell the name.
UNKNOWN_HOST = "host unknown"
#: States of one position of a group.
CELL_WORDS = {**STATE_WORDS, "missing": "never entered", "unknown": "not recorded"}
#: What a drawing or table holds before it says "and N more".
GROUPS, TIMELINE_ROWS, TIMELINE_COLUMNS, HOSTS, FEWEST_HOSTS, STACKS, FRAMES, EDGES = 6, 24, 9, 24, 6, 12, 40, 60


@dataclass(frozen=True, slots=True)
class Item:
    """One table cell. ``kind`` is how it is set: text, num, code, where (to copy), or state (with its word in ``state``)."""

    text: str
    kind: str = "text"
    state: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table with the number of rows that it leaves out. ``search`` holds one text per row, for filtering."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Item, ...], ...]
    more: int = 0
    search: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TimelineExhibit:
    """One group: the drawn part of its timeline, cut to what fits."""

    title: str
    statement: str
    drawn: GroupTimeline
    table: Table


@dataclass(frozen=True, slots=True)
class ClusterExhibit:
    """Hosts that are drawn, most telling first, and what is to be said of the rest."""

    statement: str
    drawn: tuple[Host, ...]
    rest: str
    table: Table


@dataclass(frozen=True, slots=True)
class Edge:
    """Who waits for whom. ``final``: of the ranks waited for no wait is known."""

    waiting: str
    waited_for: str
    where: str
    why: str
    final: bool


@dataclass(frozen=True, slots=True)
class StackExhibit:
    """Ranks in one stack: ``own`` frames, then those that all classes share. ``tag`` says why it stands out, empty where it does not."""

    who: str
    tag: str
    where: str
    own: tuple[str, ...]
    shared: tuple[str, ...]
    more: int


@dataclass(frozen=True, slots=True)
class EventText:
    """One event of the sequence; a decisive one is quoted as evidence of the verdict."""

    time: str
    who: str
    what: str
    where: str
    kind: str
    decisive: bool


@dataclass(frozen=True, slots=True)
class Tabled:
    """A statement with its tables; ``key`` is the name of the measure."""

    statement: str
    tables: tuple[Table, ...]
    key: str = ""


@dataclass(frozen=True, slots=True)
class Exhibits:
    """All exhibits; an empty tuple or None says that there is no evidence of that kind."""

    timelines: tuple[TimelineExhibit, ...]
    more_timelines: int
    waits: tuple[Edge, ...]
    waits_statement: str
    more_waits: int
    stacks: tuple[StackExhibit, ...]
    stacks_statement: str
    more_stacks: int
    cluster: ClusterExhibit | None
    processes: Table | None
    transports: Tabled | None
    settings: Tabled | None
    events: tuple[EventText, ...]
    more_events: int
    events_statement: str
    measures: tuple[Tabled, ...]


def exhibit(report: Mapping[str, object], extras: Extras) -> Exhibits:
    """The exhibits of a report."""
    blamed = {r for c in rows(part(report, "verdict"), "culprits") if (r := number(c, "rank")) is not None}
    diverging = sorted(extras.timeline, key=lambda t: t.first_divergence is None)
    return Exhibits(
        timelines=tuple(_timeline(t) for t in diverging[:GROUPS]),
        more_timelines=max(0, len(diverging) - GROUPS),
        waits=_edges(extras.waits),
        waits_statement=_waits_statement(extras),
        more_waits=max(0, len(extras.waits) - EDGES),
        stacks=_stacks(extras.stacks, blamed),
        stacks_statement=_stacks_statement(extras.stacks, blamed),
        more_stacks=max(0, len(extras.stacks) - STACKS),
        cluster=_cluster(extras.cluster) if extras.cluster else None,
        processes=_processes(extras) if extras.processes else None,
        transports=_transports(extras) if extras.transports or extras.channels else None,
        settings=_settings(extras) if extras.settings else None,
        events=_events(extras.events[:ROWS], _decisive(report)),
        more_events=max(0, len(extras.events) - ROWS),
        events_statement=_events_statement(extras.events),
        measures=tuple(_measures(report)),
    )


def _table(caption: str, columns: Sequence[str], body: Sequence[tuple[Item, ...]], more: int = 0, search: tuple[str, ...] = ()) -> Table:
    """A table without the columns that no row fills."""
    kept = [n for n in range(len(columns)) if n == 0 or any(row[n].text for row in body)]
    return Table(caption, tuple(columns[n] for n in kept), tuple(tuple(row[n] for n in kept) for row in body), more, search)


def _ranks(numbers: Iterable[int], at_most: int = 8) -> str:
    """``rank 3``, ``ranks 0-2, 4-7``, with the count where it is no longer seen at once."""
    known = sorted(set(numbers))
    if not known:
        return "no rank"
    listed = f"{'rank' if len(known) == 1 else 'ranks'} {rank_list(known, at_most)}"
    return f"{listed} ({len(known):,} ranks)" if len(known) > 4 and "…" not in listed else listed


def _operation(op: str | None, seq: int | None) -> str:
    name = plain(op, 80)
    return f"{name or 'operation'} #{seq}" if seq is not None else name


def _where(path: str | None, line: int | None, record: str | None = None) -> str:
    if not path:
        return ""
    return plain(path, 300) + (f":{line}" if line is not None else f" {plain(record, 80)}" if record else "")


# --- divergence timeline -------------------------------------------------------------------------------------------------------


def _timeline(timeline: GroupTimeline) -> TimelineExhibit:
    drawn = _drawn(timeline)
    name = _group_name(timeline)
    facts = [
        f"{timeline.size:,} ranks" if timeline.size is not None else "",
        f"communicator {plain(timeline.comm_id, 60)}" if timeline.comm_id else "",
    ]
    said = ", ".join(f for f in facts if f)
    title = sentence(name) + (f": {said}" if said else "")
    body = []
    for row in timeline.rows[:TIMELINE_ROWS]:
        cells = [_kept(row, timeline, column) for column in drawn.columns]
        first = _where_of(row, timeline)
        body.append(
            (Item(_ranks(row.ranks)), Item(plain(row.host, 60)), *(_cell_item(c) for c in cells), Item(first, "where" if first else "text"))
        )
    table = _table(
        f"Operations of {name} by sequence number",
        ("Ranks", "Host", *(f"#{c}" for c in drawn.columns), "Evidence"),
        tuple(body),
        max(0, len(timeline.rows) - TIMELINE_ROWS),
    )
    return TimelineExhibit(title, _timeline_statement(timeline), drawn, table)


def _group_name(timeline: GroupTimeline) -> str:
    """The group as it is given, where that says already what it is; else description and name."""
    group, desc = plain(timeline.group, 60), plain(timeline.desc, 60)
    if group.startswith(("process group", "communicator", "group")):
        return group
    return f"process group {desc} ({group})" if desc and desc != group else f"process group {group}"


def _cell_item(cell: Cell) -> Item:
    name, word = plain(cell.text, 60), CELL_WORDS[cell.state]
    return Item(f"{name} ({word})" if name else word, "state", cell.state)


def _kept(row: TimelineRow, timeline: GroupTimeline, column: int) -> Cell:
    position = timeline.columns.index(column)
    return row.cells[position] if position < len(row.cells) else Cell("", "unknown")


def _where_of(row: TimelineRow, timeline: GroupTimeline) -> str:
    """Where the row's cell at the divergence stands, else the last cell that stands anywhere."""
    if timeline.first_divergence in timeline.columns:
        cell = _kept(row, timeline, timeline.first_divergence or 0)
        if cell.path:
            return _where(cell.path, cell.line, cell.record)
    return next((_where(c.path, c.line, c.record) for c in reversed(row.cells) if c.path), "")


def _drawn(timeline: GroupTimeline) -> GroupTimeline:
    """The rows that differ first, and the columns around the divergence."""
    at = timeline.columns.index(timeline.first_divergence) if timeline.first_divergence in timeline.columns else len(timeline.columns) - 1
    start = max(0, min(at - TIMELINE_COLUMNS // 2, len(timeline.columns) - TIMELINE_COLUMNS))
    columns = timeline.columns[start : start + TIMELINE_COLUMNS]
    kept = [
        TimelineRow(row.ranks, tuple(_kept(row, timeline, c) for c in columns), row.host)
        for row in sorted(timeline.rows, key=lambda r: not any(c.state == "diverged" for c in r.cells))[:TIMELINE_ROWS]
    ]
    order = {row.ranks: n for n, row in enumerate(timeline.rows)}
    kept.sort(key=lambda r: order[r.ranks])
    return GroupTimeline(timeline.group, columns, tuple(kept), timeline.desc, timeline.comm_id, timeline.size, timeline.first_divergence)


def _timeline_statement(timeline: GroupTimeline) -> str:
    if timeline.first_divergence not in timeline.columns:
        return "No divergence is seen in the operations that were recorded."
    at = timeline.columns.index(timeline.first_divergence or 0)
    by_state: dict[tuple[str, str], list[int]] = {}
    for row in timeline.rows:
        cell = row.cells[at] if at < len(row.cells) else Cell("", "unknown")
        by_state.setdefault((cell.state, plain(cell.text, 60)), []).extend(row.ranks)
    phrases = {
        "diverged": "{who} called {op} instead",
        "waiting": "{who} {wait} in {op}",
        "completed": "{who} completed {op}",
        "missing": "{who} never entered it",
        "unknown": "of {who} nothing is recorded",
    }
    order = ("waiting", "diverged", "missing", "completed", "unknown")
    said = [
        phrases[state].format(who=_ranks(numbers), op=op or "an operation", wait=verb(numbers, "waits", "wait"))
        for (state, op), numbers in sorted(by_state.items(), key=lambda item: (order.index(item[0][0]), item[1]))
    ]
    shown = said[:5] + ([f"and {len(said) - 5} more classes of ranks"] if len(said) > 5 else [])
    return f"At #{timeline.first_divergence} " + "; ".join(shown) + "."


# --- who waits for whom, stacks --------------------------------------------------------------------------------------------------


def _edges(waits: Sequence[Wait]) -> tuple[Edge, ...]:
    """Edges that end the waiting stand first."""
    waiting = {r for w in waits for r in w.waiting}
    ordered = sorted(waits, key=lambda w: not w.waited_for or bool(waiting & set(w.waited_for)))
    return tuple(
        Edge(
            _ranks(w.waiting),
            _ranks(w.waited_for),
            " of ".join(t for t in (_operation(w.op, w.seq), plain(w.group, 80)) if t),
            plain(w.why, 300),
            bool(w.waited_for) and not waiting & set(w.waited_for),
        )
        for w in ordered[:EDGES]
    )


def _waits_statement(extras: Extras) -> str:
    if not extras.waits:
        return ""
    targets = Counter({r: 0 for w in extras.waits for r in w.waited_for})
    for wait in extras.waits:
        for rank in wait.waited_for:
            targets[rank] += len(wait.waiting)
    waiting = {r for w in extras.waits for r in w.waiting}
    alone = sorted(set(targets) - waiting)
    if not targets:
        return f"{_ranks(waiting).capitalize()} {verb(waiting, 'waits', 'wait')}; for whom is not known."
    if alone:
        return f"{_ranks(waiting).capitalize()} {verb(waiting, 'waits', 'wait')} for {_ranks(alone)}, of which no wait is known."
    return f"{_ranks(waiting).capitalize()} wait for each other: the waiting has no outside end."


def _stands_out(stack: StackClass, blamed: set[int]) -> int:
    """0 for ranks at fault, 1 for an odd one out, 2 for the rest."""
    return 0 if blamed and blamed >= set(stack.ranks) else 1 if stack.odd_one_out else 2


def _stacks(stacks: Sequence[StackClass], blamed: set[int]) -> tuple[StackExhibit, ...]:
    shown = sorted(stacks, key=lambda s: _stands_out(s, blamed))[:STACKS]
    shared = _shared([s.frames for s in shown])
    out = []
    for stack in shown:
        frames = tuple(plain(f, 160) for f in stack.frames)
        own = frames[: len(frames) - shared]
        out.append(
            StackExhibit(
                _ranks(stack.ranks),
                ("at fault", "odd one out", "")[_stands_out(stack, blamed)],
                _where(stack.path, stack.line),
                own[:FRAMES],
                frames[len(frames) - shared :][:FRAMES],
                max(0, len(own) - FRAMES) + max(0, shared - FRAMES),
            )
        )
    return tuple(out)


def _shared(stacks: Sequence[tuple[str, ...]]) -> int:
    """How many outermost frames are the same in all stacks; one stack alone shares none."""
    if len(stacks) < 2:
        return 0
    count = 0
    for frames in zip(*(reversed(s) for s in stacks), strict=False):
        if len(set(frames)) > 1:
            break
        count += 1
    return count


def _stacks_statement(stacks: Sequence[StackClass], blamed: set[int]) -> str:
    if not stacks:
        return ""
    if len(stacks) == 1:
        return f"All {len(stacks[0].ranks):,} ranks with a stack stand in the same place."
    odd = sorted((s for s in stacks if _stands_out(s, blamed) < 2), key=lambda s: _stands_out(s, blamed))
    if not odd:
        return f"{sum(len(s.ranks) for s in stacks):,} ranks stand in {len(stacks)} different places."
    places = [f"{_ranks(s.ranks)} in {plain(s.frames[0], 120) if s.frames else 'an empty stack'}" for s in odd[:3]]
    rest = f"; {len(odd) - 3} more classes of ranks in other places" if len(odd) > 3 else ""
    return sentence(
        f"{places[0]}{''.join('; ' + p for p in places[1:])}{rest}.".replace(
            " in ", " stands in " if len(odd[0].ranks) == 1 else " stand in ", 1
        )
    )


# --- cluster and processes -------------------------------------------------------------------------------------------------------

_TELLING = {"culprit": 0, "dead": 1, "missing": 2, "unknown": 4, "waiting": 5, "ok": 6}


def _telling(host: Host) -> int:
    return min(
        [_TELLING[host.state] if host.state != "unknown" else 9, *(_TELLING[s.state] for s in host.seats), *([3] if host.note else [])]
    )


def _cluster(hosts: Sequence[Host]) -> ClusterExhibit:
    ordered = sorted(hosts, key=_telling)
    if len(hosts) <= HOSTS:
        drawn, rest = tuple(hosts), []
    else:
        telling = sum(_telling(h) < _TELLING["unknown"] for h in hosts)
        shown = max(FEWEST_HOSTS, min(telling, HOSTS))
        drawn, rest = tuple(ordered[:shown]), ordered[shown:]
    counts = Counter(s.state for h in rest for s in h.seats)
    more = (
        f"… and {len(rest):,} more hosts with " + ", ".join(f"{n:,} ranks {STATE_WORDS[s]}" for s, n in counts.most_common())
        if rest
        else ""
    )
    body = tuple(
        (
            Item(plain(h.name, 80)),
            Item(STATE_WORDS[h.state] if h.state != "unknown" else "", "state", h.state),
            Item("; ".join(f"{_ranks(r)} {STATE_WORDS[s]}" for s, r in _by_state(h).items())),
            Item(plain(h.note, 200)),
        )
        for h in ordered[:ROWS]
    )
    table = _table("Hosts and the state of their ranks", ("Host", "Host state", "Ranks", "Note"), body, max(0, len(ordered) - ROWS))
    return ClusterExhibit(_cluster_statement(hosts), drawn, more, table)


def _by_state(host: Host) -> dict[str, list[int]]:
    out: dict[str, list[int]] = {}
    for seat in sorted(host.seats, key=lambda s: (_TELLING[s.state], s.rank)):
        out.setdefault(seat.state, []).append(seat.rank)
    return out


def _cluster_statement(hosts: Sequence[Host]) -> str:
    by_state: dict[str, list[int]] = {}
    for host in hosts:
        for state, numbers in _by_state(host).items():
            by_state.setdefault(state, []).extend(numbers)
    said = []
    for state in sorted(by_state, key=_TELLING.__getitem__):
        numbers = by_state[state]
        homes = [plain(h.name, 40) for h in hosts if any(s.state == state for s in h.seats) and h.name not in ("", UNKNOWN_HOST)]
        where = "" if not homes else f" on {', '.join(homes)}" if len(homes) <= 3 else f" on {len(homes):,} hosts"
        said.append(f"{_ranks(numbers, 4)} {STATE_WORDS[state]}{where}")
    return sentence("; ".join(said) + ".") if said else f"{len(hosts):,} hosts; no rank could be placed on them."


def _processes(extras: Extras) -> Table:
    ordered = sorted(
        extras.processes,
        key=lambda p: (_TELLING[p.state] if p.state in ("culprit", "dead", "missing") else 9, p.rank if p.rank is not None else 1 << 40),
    )
    shown = ordered[:ROWS]
    body = tuple(
        (
            Item(amount(p.rank) if p.rank is None else str(p.rank), "num"),
            Item("" if p.local_rank is None else str(p.local_rank), "num"),
            Item(plain(p.host, 80)),
            Item("" if p.pid is None else str(p.pid), "num"),
            Item(plain(p.gpu, 60)),
            Item(plain(p.nccl_version, 40)),
            Item(STATE_WORDS[p.state], "state", p.state),
            Item(plain(p.exit, 80)),
            Item(plain(p.last_collective, 80), "code"),
        )
        for p in shown
    )
    search = tuple(
        f"rank{p.rank} {p.rank} {plain(p.host, 80)} {STATE_WORDS[p.state]} {plain(p.last_collective, 80)}".lower() for p in shown
    )
    columns = ("Rank", "Local", "Host", "Pid", "GPU", "NCCL", "State", "Exit", "Last collective")
    return _table("Processes of the run, those at fault first", columns, body, max(0, len(ordered) - ROWS), search)


# --- transports, settings, events ------------------------------------------------------------------------------------------------


def _transports(extras: Extras) -> Tabled:
    connections, channels = extras.transports, extras.channels
    kinds: Counter[str] = Counter()
    for row in connections:
        kinds[plain(row.transport, 40)] += row.count
    said = (
        "Connections: " + ", ".join(f"{n:,} {kind}" for kind, n in kinds.most_common(8)) + "."
        if kinds
        else "No connection lines were found; channels are known."
    )
    tables = []
    if connections:
        body = tuple(
            (
                Item(plain(r.source, 80)),
                Item(plain(r.destination, 80)),
                Item(plain(r.transport, 60), "code"),
                Item(plain(r.network, 60)),
                Item({True: "yes", False: "no", None: ""}[r.gdr]),
                Item(amount(r.channels), "num"),
                Item(amount(r.count), "num"),
            )
            for r in connections[:ROWS]
        )
        columns = ("From", "To", "Transport", "Network", "GPUDirect", "Channels", "Connections")
        tables.append(_table("How ranks reach each other", columns, body, max(0, len(connections) - ROWS)))
    if channels:
        tables.append(_channels(channels))
    return Tabled(said, tuple(tables))


def _channels(channels: Sequence[ChannelCount]) -> Table:
    body = tuple(
        (
            Item(plain(c.communicator, 80), "code"),
            Item(amount(c.ranks), "num"),
            Item(amount(c.coll_channels), "num"),
            Item(amount(c.p2p_channels), "num"),
            Item(amount(c.nvls_channels), "num"),
        )
        for c in channels[:ROWS]
    )
    columns = ("Communicator", "Ranks", "Collective channels", "P2P channels", "NVLS channels")
    return _table("Channels of each communicator", columns, body, max(0, len(channels) - ROWS))


def _settings(extras: Extras) -> Tabled:
    ordered = sorted(extras.settings, key=lambda s: (not s.differs, s.name))
    differing = [plain(s.name, 60) for s in ordered if s.differs]
    said = (
        f"{', '.join(differing[:6])}{f' and {len(differing) - 6} more' if len(differing) > 6 else ''} {'differs' if len(differing) == 1 else 'differ'} between ranks."
        if differing
        else f"{len(ordered)} settings are known, and none differs between the ranks that told them."
    )
    body = []
    for setting in ordered[:ROWS]:
        values = setting.values[:12]
        for n, (value, who) in enumerate(values):
            name = Item(plain(setting.name, 80), "code") if n == 0 else Item("")
            state = Item("differs" if setting.differs else "", "state", "culprit") if n == 0 and setting.differs else Item("")
            body.append((name, Item(plain(value, 160), "code"), Item(plain(who, 120)), state))
    return Tabled(said, (_table("Settings by value", ("Setting", "Value", "Ranks", ""), tuple(body), max(0, len(ordered) - ROWS)),))


def _events(events: Sequence[Event], decisive: frozenset[str]) -> tuple[EventText, ...]:
    out = []
    day = ""
    for event in events:
        time = plain(event.time, 40)
        said = moment(time)
        date = said[:10] if len(said) >= 19 else ""
        rank = "" if event.rank is None else f"rank {event.rank}"
        who = " · ".join(t for t in (rank, plain(event.host, 60)) if t)
        shown = said[11:] if date and date == day else said
        day = date or day
        where = _where(event.path, event.line)
        out.append(EventText(shown, who, plain(event.text, 300), where, plain(event.kind, 30), where in decisive))
    return tuple(out)


def _decisive(report: Mapping[str, object]) -> frozenset[str]:
    """Places that the findings of the verdict cite by line."""
    because = set(words(part(report, "verdict"), "because"))
    cited = (e for f in rows(report, "findings") if text(f, "id") in because for e in rows(f, "evidence"))
    return frozenset(_where(text(e, "path", 400), number(e, "line")) for e in cited if number(e, "line") is not None)


def _events_statement(events: Sequence[Event]) -> str:
    if not events:
        return ""
    untimed = sum(e.time is None for e in events)
    known = [plain(e.time, 40) for e in events if e.time]
    span = f", from {moment(known[0])} to {moment(known[-1])} UTC" if len(known) > 1 else ""
    return f"{len(events):,} events{span}" + (
        f"; {untimed:,} of them have no time and stand where their source puts them." if untimed else "."
    )


# --- measures --------------------------------------------------------------------------------------------------------------------


def _measures(report: Mapping[str, object]) -> Iterable[Tabled]:
    measures = part(report, "measures")
    traces = rows(measures, "traces")
    if traces:
        worst = max(traces, key=lambda t: _share(t, "exposed_ms", "span_ms") or 0.0)
        share = _share(worst, "exposed_ms", "span_ms")
        said = (
            f"Rank {amount(worst.get('rank'))} spends the largest share of its time in communication that nothing hides: {share:.0%}."
            if share is not None
            else f"{len(traces)} traces were measured."
        )
        keys = (
            ("compute_ms", "Compute ms"),
            ("communication_ms", "Communication ms"),
            ("exposed_ms", "Exposed ms"),
            ("memcpy_ms", "Memcpy ms"),
            ("idle_ms", "Idle ms"),
            ("span_ms", "Span ms"),
            ("overlap_fraction", "Overlap"),
        )
        yield Tabled(
            said,
            (
                _measured(
                    "Where the time of each rank goes",
                    (("rank", "Rank"), ("window", "Window"), *keys),
                    traces,
                    number(measures, "traces_total"),
                ),
            ),
            "traces",
        )
    lag = rows(measures, "lag")
    if lag:
        worst = max(lag, key=lambda row: _number(row.get("lost_ms")) or 0.0)
        said = f"Rank {amount(worst.get('rank'))} cost the others the most: {amount(worst.get('lost_ms'))} ms in {amount(worst.get('collectives'))} collectives."
        lag_keys = (
            ("rank", "Rank"),
            ("collectives", "Collectives"),
            ("median_ms", "Median lag ms"),
            ("p99_ms", "p99 lag ms"),
            ("lost_ms", "Lost ms"),
        )
        yield Tabled(said, (_measured("How late each rank arrives", lag_keys, lag, number(measures, "lag_total")),), "lag")
    bandwidth = rows(measures, "bandwidth")
    if bandwidth:
        rated = [b for b in bandwidth if _share(b, "bus_bw_gb_s", "expected_gb_s") is not None]
        said = f"{len(bandwidth):,} collectives were measured; what the links should carry is not known."
        if rated:
            worst = min(rated, key=lambda b: _share(b, "bus_bw_gb_s", "expected_gb_s") or 0.0)
            said = f"The farthest below what is expected: {text(worst, 'collective', 60)} at {amount(worst.get('bus_bw_gb_s'))} of {amount(worst.get('expected_gb_s'))} GB/s bus bandwidth."
        bandwidth_keys = (
            ("collective", "Collective"),
            ("dtype", "Type"),
            ("bytes", "Bytes"),
            ("ranks", "Ranks"),
            ("alg_bw_gb_s", "Algorithm GB/s"),
            ("bus_bw_gb_s", "Bus GB/s"),
            ("expected_gb_s", "Expected GB/s"),
            ("source", "Source"),
        )
        yield Tabled(
            said,
            (
                _measured(
                    "Bandwidth of the collectives (10⁹ bytes a second)", bandwidth_keys, bandwidth, number(measures, "bandwidth_total")
                ),
            ),
            "bandwidth",
        )


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _share(row: Mapping[str, object], over: str, under: str) -> float | None:
    top, bottom = _number(row.get(over)), _number(row.get(under))
    return top / bottom if top is not None and bottom else None


def _measured(caption: str, keys: Sequence[tuple[str, str]], items: Sequence[Mapping[str, object]], total: int | None) -> Table:
    body = tuple(
        tuple(Item(amount(row.get(key)), "text" if isinstance(row.get(key), str) else "num") for key, _ in keys) for row in items[:ROWS]
    )
    return _table(caption, tuple(label for _, label in keys), body, max(0, (total or len(items)) - ROWS))
