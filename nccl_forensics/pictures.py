"""What the pictures of a report need, gathered from the views of the run that the verdict is about."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import polars as pl

from nccl_forensics.assemble import RunResult, people_of
from nccl_forensics.extras import (
    Cell,
    CellState,
    ChannelCount,
    Event,
    Extras,
    GroupTimeline,
    Host,
    Process,
    RankState,
    Seat,
    Setting,
    StackClass,
    TimelineRow,
    TransportRow,
    Wait,
)
from nccl_forensics.masking import mask
from nccl_forensics.store import Store
from nccl_forensics.units import iso
from nccl_forensics.words import UNIDENTIFIED, group_words, rank_list

Quote = Callable[[int, int, int, int], list[tuple[int, str]]]
_AROUND = 4
_ROWS, _GROUPS, _CONTEXT, _EVENTS = 48, 4, 3, 200


def gather(report: Mapping[str, object], chosen: RunResult, store: Store, quote: Quote) -> Extras:
    """All parts; each is empty where the run has no such evidence."""
    paths: dict[int, str] = dict(store.sources.select("source_id", "path").iter_rows())
    states = _states(report, chosen)
    return Extras(
        timeline=_timelines(chosen, paths),
        cluster=_cluster(chosen, states),
        waits=_waits(chosen),
        stacks=_stacks(chosen, paths),
        transports=_transports(chosen),
        channels=_channels(chosen),
        settings=_settings(chosen),
        events=_events(chosen, paths),
        processes=_processes(chosen, states),
        contexts=_contexts(report, {p: i for i, p in paths.items()}, quote),
    )


def _timelines(chosen: RunResult, paths: Mapping[int, str]) -> tuple[GroupTimeline, ...]:
    operations = chosen.resolver.get("operations")
    if operations is None:
        return ()
    focus: list[dict[str, object]] = []
    divergences = chosen.resolver.get("divergences")
    if divergences is not None:
        focus += list(divergences.collect().head(_GROUPS).iter_rows(named=True))
    blockers = chosen.resolver.get("blockers")
    if blockers is not None and not focus:
        rows = blockers.filter(pl.col("seq").is_not_null() & ~pl.col("op").is_in(["send", "recv"])).collect()
        focus += list(rows.unique("group_key", keep="first", maintain_order=True).head(_GROUPS).iter_rows(named=True))
    members_of = _members(chosen)
    return tuple(t for row in focus if (t := _timeline(row, operations, members_of, paths)) is not None)


def _members(chosen: RunResult) -> dict[tuple[str, str], list[int]]:
    groups = chosen.resolver.get("groups")
    if groups is None:
        return {}
    rows = groups.select("domain", "group_key", "members").collect()
    return {(d, k): list(m or []) for d, k, m in rows.iter_rows()}


def _timeline(
    row: Mapping[str, object], operations: pl.LazyFrame, members_of: Mapping[tuple[str, str], list[int]], paths: Mapping[int, str]
) -> GroupTimeline | None:
    at = int(str(row["seq"]))
    key = (str(row["domain"]), str(row["group_key"]))
    near = (
        operations.filter((pl.col("domain") == key[0]) & (pl.col("group_key") == key[1]) & ~pl.col("is_p2p") & pl.col("rank").is_not_null())
        .filter(pl.col("seq").is_between(at - _AROUND, at + _AROUND))
        .select("rank", "seq", "op", "shape", "dtype", "done", "source_id", "line_no", "record")
        .sort("rank", "seq")
        .collect()
    )
    columns = tuple(sorted(set(near["seq"].to_list())))
    if not columns:
        return None
    cells: dict[int, dict[int, dict[str, object]]] = {}
    for r in near.iter_rows(named=True):
        cells.setdefault(r["rank"], {})[r["seq"]] = r | {"text": " ".join(str(r[c]) for c in ("op", "shape", "dtype") if r[c])}
    usual: dict[int, str] = {}
    for column in columns:
        texts = [str(own[column]["text"]) for own in cells.values() if column in own]
        usual[column] = max(texts, key=lambda t: (texts.count(t), t))
    folded: dict[tuple[tuple[str, CellState], ...], list[int]] = {}
    for rank in sorted(r for r in set(cells) | set(members_of.get(key, [])) if r < UNIDENTIFIED):
        own = cells.get(rank, {})
        signature = tuple(_cell_state(own.get(c), usual[c], c, at) if own else ("", _NO_EVIDENCE) for c in columns)
        folded.setdefault(signature, []).append(rank)
    rows = []
    for signature, ranks in sorted(folded.items(), key=lambda item: item[1][0]):
        own = cells.get(ranks[0], {})
        line = []
        for column, (text, state) in zip(columns, signature, strict=True):
            cite = own.get(column, {})
            source, number, record = cite.get("source_id"), cite.get("line_no"), cite.get("record")
            line.append(
                Cell(
                    text,
                    state,
                    paths.get(int(str(source))) if source is not None else None,
                    int(str(number)) if number is not None else None,
                    str(record) if record is not None else None,
                )
            )
        rows.append(TimelineRow(tuple(ranks), tuple(line)))
    return GroupTimeline(
        group=group_words(row),
        columns=columns,
        rows=tuple(rows[:_ROWS]),
        desc=str(row["group_desc"]) if row.get("group_desc") else None,
        comm_id=str(row["comm_id"]) if row.get("comm_id") else None,
        size=len(members_of.get(key, [])) or None,
        first_divergence=at,
    )


_NO_EVIDENCE: CellState = "unknown"


def _cell_state(own: Mapping[str, object] | None, usual: str, column: int, at: int) -> tuple[str, CellState]:
    if own is None:
        return "", "missing"
    text = str(own["text"])
    if text != usual:
        return text, "diverged"
    if own["done"] is True or column < at:
        return text, "completed"
    return text, "waiting"


def _states(report: Mapping[str, object], chosen: RunResult) -> dict[int, RankState]:
    """What to say of each rank, the worst that is known."""
    verdict, case = report["verdict"], report["case"]
    assert isinstance(verdict, dict)
    assert isinstance(case, dict)
    people = people_of(chosen.resolver)
    states: dict[int, RankState] = dict.fromkeys(people, "ok")
    dumps = chosen.resolver.get("dumps")
    if dumps is not None:
        for (rank,) in dumps.filter(pl.col("rank").is_not_null()).select("rank").collect().iter_rows():
            states.setdefault(rank, "ok")
    endings = chosen.resolver.get("endings")
    if endings is not None:
        for (rank,) in endings.filter(pl.col("rank").is_not_null() & (pl.col("kind") != "clean")).select("rank").collect().iter_rows():
            states[rank] = "dead"
    waits = chosen.resolver.get("waits")
    if waits is not None:
        for (rank,) in waits.filter(pl.col("waiter") < UNIDENTIFIED).select("waiter").unique().collect().iter_rows():
            states[rank] = "waiting"
    stuck = chosen.resolver.get("stuck")
    if stuck is not None and verdict["cause"] == "collective-stuck":
        for (ranks,) in stuck.select("ranks").collect().iter_rows():
            states.update(dict.fromkeys((r for r in ranks if r < UNIDENTIFIED), "waiting"))
    for rank in case["ranks_missing"]:
        states[rank] = "missing"
    hosts = {c["host"] for c in verdict["culprits"] if c["rank"] is None and c["host"]}
    for rank, person in people.items():
        if person["host"] in hosts:
            states[rank] = "culprit"
    for culprit in verdict["culprits"]:
        if culprit["rank"] is not None:
            states[culprit["rank"]] = "culprit"
    return states


def _gpu(person: Mapping[str, object]) -> str | None:
    value = person.get("bus_id") or person.get("gpu_index")
    return str(value) if value is not None else None


def _cluster(chosen: RunResult, states: Mapping[int, RankState]) -> tuple[Host, ...]:
    people = people_of(chosen.resolver)
    hosts: dict[str, list[Seat]] = {}
    for rank in sorted(states):
        person = people.get(rank, {})
        hosts.setdefault(str(person.get("host") or "host unknown"), []).append(Seat(rank, states[rank], _gpu(person)))
    return tuple(Host(name, tuple(seats)) for name, seats in sorted(hosts.items()))


def _processes(chosen: RunResult, states: Mapping[int, RankState]) -> tuple[Process, ...]:
    people = people_of(chosen.resolver)
    ends: dict[int, str] = {}
    endings = chosen.resolver.get("endings")
    if endings is not None:
        for row in endings.filter(pl.col("rank").is_not_null()).collect().iter_rows(named=True):
            code = f"exit code {row['exit_code']}" if row["exit_code"] is not None else ""
            ends[row["rank"]] = " ".join(x for x in (code, row["signal"] or "", f"({row['kind']})") if x)
    last: dict[int, str] = {}
    progress = chosen.resolver.get("progress")
    if progress is not None:
        for row in progress.sort("last_order", nulls_last=False).collect().iter_rows(named=True):
            if row["last_op"]:
                last[row["rank"]] = f"{row['last_op']} #{row['last_seq']}"
    out = []
    for rank in sorted(states):
        p = people.get(rank, {})
        pid, local = p.get("pid"), p.get("local_rank")
        out.append(
            Process(
                rank,
                states[rank],
                int(str(local)) if local is not None else None,
                str(p["host"]) if p.get("host") else None,
                int(str(pid)) if pid is not None else None,
                _gpu(p),
                str(p["nccl_version"]) if p.get("nccl_version") else None,
                ends.get(rank),
                last.get(rank),
            )
        )
    return tuple(out)


def _waits(chosen: RunResult) -> tuple[Wait, ...]:
    waits = chosen.resolver.get("waits")
    if waits is None:
        return ()
    why = {
        "behind": "its own evidence ends before this operation",
        "unseen": "no evidence of it in this group",
        "p2p": "no matching send or receive was posted",
        "gpu": "its GPU has not finished what the peers finished",
    }
    folded = (
        waits.group_by("group_key", "group_name", "group_desc", "comm_id", "kind", "awaited", "seq", "op")
        .agg(pl.col("waiter").unique().sort())
        .group_by("group_key", "group_name", "group_desc", "comm_id", "kind", "seq", "op", "waiter")
        .agg(pl.col("awaited").unique().sort())
        .sort("group_key", "seq", pl.col("awaited").list.first(), nulls_last=True)
        .collect()
    )
    return tuple(
        Wait(tuple(r["waiter"]), tuple(r["awaited"]), group_words(r), r["op"], r["seq"], why[r["kind"]])
        for r in folded.head(200).iter_rows(named=True)
    )


def _stacks(chosen: RunResult, paths: Mapping[int, str]) -> tuple[StackClass, ...]:
    states = chosen.resolver.get("thread_states")
    if states is None:
        return ()
    frame = states.filter(pl.col("rank").is_not_null()).sort("rank", "source_id").collect()
    classes: dict[tuple[str, ...], tuple[set[int], dict[str, object]]] = {}
    for row in frame.iter_rows(named=True):
        classes.setdefault(tuple(row["frames"] or []), (set(), row))[0].add(row["rank"])
    biggest = max((len(ranks) for ranks, _ in classes.values()), default=0)
    out = []
    for frames, (ranks, row) in sorted(classes.items(), key=lambda item: (len(item[1][0]), min(item[1][0]))):
        line = row["line_no"]
        source = paths.get(int(str(row["source_id"])))
        out.append(
            StackClass(tuple(sorted(ranks)), frames, len(ranks) * 2 <= biggest, source, int(str(line)) if line is not None else None)
        )
    return tuple(out[:40])


def _transports(chosen: RunResult) -> tuple[TransportRow, ...]:
    connections = chosen.resolver.get("nccl_connections")
    if connections is None:
        return ()
    folded = (
        connections.with_columns(form=pl.col("detail").str.extract(r"^(P2P/[A-Za-z]+|SHM|direct shared memory|NET|COLLNET)"))
        .group_by("host", "transport", "form", "network", "gdr")
        .agg(pl.len().alias("count"), pl.col("channel").n_unique().alias("channels"))
        .sort("host", "transport", "form", "network", nulls_last=True)
        .collect()
    )
    return tuple(
        TransportRow(
            str(r["host"] or "host unknown"),
            "other hosts" if r["transport"] in ("NET", "COLLNET") else "same host",
            str(r["form"] if r["transport"] == "P2P" and r["form"] else r["transport"]),
            r["network"],
            r["gdr"],
            r["channels"],
            r["count"],
        )
        for r in folded.head(400).iter_rows(named=True)
    )


def _channels(chosen: RunResult) -> tuple[ChannelCount, ...]:
    channels = chosen.resolver.get("nccl_channels")
    if channels is None:
        return ()
    folded = channels.group_by("coll", "p2p", "nvls").agg(pl.len().alias("n")).sort("n", "coll", descending=True).collect()
    return tuple(
        ChannelCount(f"{r['n']} communicator line{'s' if r['n'] != 1 else ''}", None, r["coll"], r["p2p"], r["nvls"])
        for r in folded.head(50).iter_rows(named=True)
    )


def _settings(chosen: RunResult) -> tuple[Setting, ...]:
    frame = chosen.resolver.get("settings")
    if frame is None:
        return ()
    out = []
    for (name,), part in frame.sort("name", "value").collect().group_by("name", maintain_order=True):
        values = tuple(
            (
                str(r["value"]) if r["value"] is not None else "not set",
                rank_list(r["ranks"]) if r["ranks"] else f"{r['processes']} processes",
            )
            for r in part.iter_rows(named=True)
        )
        out.append(Setting(str(name), values, bool(part["differs"].any())))
    return tuple(out)


def _events(chosen: RunResult, paths: Mapping[int, str]) -> tuple[Event, ...]:
    """Dated things that happened, in the order of their times as written; undated ones are left to the findings."""
    rows: list[tuple[int, Event]] = []
    for table, label in (("endings", "ended"), ("watchdog", "watchdog"), ("kernel_events", "kernel")):
        frame = chosen.resolver.get(table)
        if frame is None:
            continue
        names = frame.collect_schema().names()
        dated = frame.filter(pl.col("time_raw_ns").is_not_null()).sort("time_raw_ns", "source_id", "line_no").head(_EVENTS).collect()
        for r in dated.iter_rows(named=True):
            text = str(r.get("message") or r.get("kind") or label).split("\n", 1)[0]
            said = f"{r['kind']}: {text}" if "kind" in names and r.get("kind") and text != r["kind"] else text
            rank = r.get("rank") if r.get("rank") is not None else r.get("hint_rank")
            source = paths.get(r["source_id"]) if r["source_id"] is not None else None
            rows.append(
                (r["time_raw_ns"], Event(mask(said)[:240], iso(r["time_raw_ns"]), rank, r.get("host"), source, r["line_no"], label))
            )
    return tuple(e for _, e in sorted(rows, key=lambda x: (x[0], x[1].text))[:_EVENTS])


def _contexts(
    report: Mapping[str, object], ids: Mapping[str, int], quote: Quote
) -> dict[tuple[str, int], tuple[tuple[int, str, bool], ...]]:
    out: dict[tuple[str, int], tuple[tuple[int, str, bool], ...]] = {}
    findings = report["findings"]
    assert isinstance(findings, list)
    for finding in findings[:200]:
        for index, e in enumerate(finding["evidence"][:6]):
            if e["line"] is None or e["path"] not in ids:
                continue
            last = e["end_line"] or e["line"]
            lines = quote(ids[e["path"]], e["line"], _CONTEXT, min(last - e["line"], 12) + _CONTEXT)
            out[(finding["id"], index)] = tuple((n, mask(t)[:600], e["line"] <= n <= last) for n, t in lines)
    return out
