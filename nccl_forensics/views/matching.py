"""Matching collectives: the operations of all ranks on one footing, how far each rank got, and where ranks part.

Two domains are never mixed: ``fr`` (Flight Recorder, sequence numbers of the group) and ``nccl`` (own ordinals per communicator,
because opCount is not comparable between ranks from NCCL 2.27 on; NCCL 2.27 src/enqueue.cc counts plans with proxy work only).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import polars as pl

from nccl_forensics.folding import FoldedTable
from nccl_forensics.frames import has_rows, text_of, typed
from nccl_forensics.tables import TABLES
from nccl_forensics.views import view
from nccl_forensics.views.calls import OPERATIONS, Calls, Numbered, Parts, calls_of, op_word, placed
from nccl_forensics.views.columns import read_at
from nccl_forensics.views.nccl_calls import by_line, members_by_size, members_of, numbered_calls
from nccl_forensics.views.odd_dumps import MOMENT, contents_of
from nccl_forensics.views.recorded import Recorded, recorded_calls
from nccl_forensics.views.shared_names import SHARED, with_part
from nccl_forensics.views.watchdogs import watchdog_progress


def of_nccl() -> pl.Expr:
    """Whether a row of dumps is of a recorder that marks what is completed and counts collectives: gloo's, which does neither, names no
    library, and the recorder knows it since schema 2.7 only."""
    early = (pl.col("version_major") < 2) | ((pl.col("version_major") == 2) & (pl.col("version_minor") < 7))
    return (pl.col("comm_lib_version").fill_null("") != "") | early.fill_null(False)


#: Clocks that are set to other zones differ by so many quarters of an hour at most; processes of one job begin, and end, so close to each
#: other.
_ZONE, _ZONES, _AT_ONCE, _NEARLY = 900 * 10**9, 4 * 26, 10**9, 60 * 10**9


def _of_another_clock(dump: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a dump begins and ends with one of the others but for quarters of an hour, by which its host's clock may be off: an earlier
    run ends at any time before."""
    for other in others:
        begins, ends = other["first_created_ns"] - dump["first_created_ns"], other["last_created_ns"] - dump["last_created_ns"]
        off = round(begins / _ZONE)
        near = sorted((abs(begins - off * _ZONE), abs(ends - off * _ZONE)))
        if 0 < off <= _ZONES and near[0] < _AT_ONCE and near[1] < _NEARLY:
            return True
    return False


@view(rows="dumps")
def dumps(fr_dumps: pl.LazyFrame, source_ranks: pl.LazyFrame, fr_status: pl.LazyFrame | None = None) -> pl.LazyFrame:
    """Flight Recorder dumps with their rank and use: ``chosen``, ``duplicate`` (same facts in another encoding), ``older`` (another sample
    of the same process), ``beside`` (of the other recorder of a process that has NCCL's and gloo's: the one that knows the latest of all
    ranks counts), ``stale`` (an earlier run: it ends before the chosen dumps of the others begin). ``finished``: how many operations
    its counters call completed, in all groups."""
    none = pl.LazyFrame(schema={"source_id": pl.UInt32(), "last_completed": pl.Int64()})
    counted = (none if fr_status is None else fr_status).group_by("source_id").agg(pl.col("last_completed").sum().alias("finished"))
    frame = (
        fr_dumps.join(source_ranks.select("source_id", "rank", "strength", "how"), on="source_id", how="left")
        .join(counted, on="source_id", how="left")
        .sort("source_id")
        .collect()
    )
    rows = frame.to_dicts()
    by_nccl = dict(frame.select("source_id", of_nccl()).iter_rows())
    contents = contents_of(fr_dumps)
    begins = [r["first_created_ns"] for r in rows if r["first_created_ns"] is not None]
    ends = [r["last_created_ns"] for r in rows if r["last_created_ns"] is not None]
    newest = max(ends) if ends else None
    median_begin = sorted(begins)[len(begins) // 2] if begins else None
    seen: dict[tuple[object, object], int] = {}
    by_rank: dict[object, list[dict[str, object]]] = {}
    for at, r in enumerate(rows):
        key = (r["rank"], r["content_key"])
        encoding_rank = 0 if r["encoding"] == "pickle" else 1
        if r["content_key"] is not None and key in seen:
            other = rows[seen[key]]
            loser = r if encoding_rank >= (0 if other["encoding"] == "pickle" else 1) else other
            loser["use"] = "duplicate"
            if loser is other:
                seen[key] = at
        else:
            seen[key] = at
        r.setdefault("use", None)
    for r in rows:
        if r["use"] is None:
            whose = r["rank"] if r["rank"] is not None else contents[r["source_id"]] or f"source {r['source_id']}"
            by_rank.setdefault(whose, []).append(r)
    latest = max(rows, key=lambda r: _known(r["last_created_ns"]), default=None)
    for both in by_rank.values():
        # Whoever stands before what its peers have come to last may hold nothing of it, or no operation at all.
        group = [r for r in both if latest is not None and by_nccl[r["source_id"]] == by_nccl[latest["source_id"]]] or both
        for r in both:
            r["use"] = "beside"
        group.sort(key=lambda r: (_known(r["last_created_ns"]), _known(r["finished"]), r["encoding"] == "pickle", -_known(r["source_id"])))
        # Both encodings of one moment, written one after the other: an operation may have ended between the two. The pickle holds frames.
        latest_of = group[-1]
        of_its_moment = [r for r in group if all(r[name] == latest_of[name] for name in MOMENT)]
        chosen = next((r for r in reversed(of_its_moment) if r["encoding"] == "pickle"), latest_of)
        for r in group:
            same = r["encoding"] != chosen["encoding"] and r in of_its_moment
            r["use"] = "duplicate" if same else "older"
        chosen["use"] = "chosen"
    # Stale: everything in it happened before most of the other dumps even begin, by more than their own length.
    current = [r for r in rows if r["use"] == "chosen" and r["last_created_ns"] is not None]
    if newest is not None and median_begin is not None and len(current) > 1:
        for r in rows:
            end = r["last_created_ns"]
            if end is not None and end < median_begin - 60 * 10**9 and newest - end > 10 * 60 * 10**9:
                r["use"] = "stale"
        fresh = [r for r in current if r["use"] == "chosen"]
        for r in current:
            if r["use"] == "stale" and _of_another_clock(r, fresh):
                r["use"] = "chosen"
    schema = dict(frame.schema) | {"use": pl.String()}
    return pl.DataFrame(rows, schema=schema, infer_schema_length=None).lazy()


def _known(value: object) -> int:
    return int(str(value)) if value is not None else -1


@view(rows="ranks x groups")
def fr_pg_names(
    fr_status: pl.LazyFrame | None, fr_groups: pl.LazyFrame | None, fr_entries: pl.LazyFrame | FoldedTable | None
) -> pl.LazyFrame:
    """Local group numbers to group names, per dump: ``source_id``, ``pg_id``, ``pg_name``, ``inferred``.

    Entries say it. For groups without an entry: numbers grow in order of creation and so do numeric names, so where a dump lists as many
    groups as counters, both are matched in order; entries that contradict this switch the inference off. Where they do, or names are no
    numbers, a number has the description that all dumps with an entry give it (ranks of one program make their groups in one order), if one
    group of its own bears it.
    """
    known = pl.DataFrame(schema=_PG_NAMES)
    if fr_entries is not None:
        words = fr_entries.words.lazy() if isinstance(fr_entries, FoldedTable) else fr_entries
        told = words.filter(pl.col("pg_name").is_not_null() & pl.col("pg_id").is_not_null()).select(*_PG_NAMES)
        known = told.unique().sort(*_PG_NAMES).unique(_PG_ID, keep="last", maintain_order=True).collect()
    names = known.with_columns(inferred=pl.lit(False))
    if fr_status is not None and fr_groups is not None:
        inferred, sure = _names_in_order(fr_status, fr_groups, known)
        by_role = _names_by_role(fr_status, fr_groups, known)
        inferred = pl.concat([inferred, by_role.join(inferred, on=_PG_ID, how="anti")]) if sure else by_role
        names = pl.concat([names, inferred.with_columns(inferred=pl.lit(True)).join(known, on=_PG_ID, how="anti")])
    return names.sort(*_PG_NAMES).lazy()


_PG_NAMES = {"source_id": pl.UInt32(), "pg_id": pl.Int32(), "pg_name": pl.String()}
_PG_ID = ("source_id", "pg_id")


def _names_in_order(fr_status: pl.LazyFrame, fr_groups: pl.LazyFrame, known: pl.DataFrame) -> tuple[pl.DataFrame, bool]:
    """Numbers and names of groups matched in order, of dumps in which nothing that is ``known`` is otherwise; and whether no dump at all
    names a group otherwise, as names that were not given in the order of creation do on every rank."""
    numbers = fr_status.select(_PG_ID).drop_nulls().unique().sort(_PG_ID).collect()
    names = fr_groups.select("source_id", "pg_name").drop_nulls().unique().collect()
    numeric = pl.col("pg_name").str.contains(r"^[0-9]{1,18}$")  # as ``units.is_number``
    odd = names.filter(~numeric).select("source_id")
    names = names.join(odd, on="source_id", how="anti").sort("source_id", pl.col("pg_name").cast(pl.Int64), "pg_name")
    at = pl.int_range(pl.len()).over("source_id")
    counts = [frame.group_by("source_id").agg(listed=pl.len()) for frame in (numbers, names)]
    level = counts[0].join(counts[1], on=["source_id", "listed"], how="semi")
    guess = numbers.with_columns(at=at).join(names.with_columns(at=at), on=["source_id", "at"]).drop("at")
    guess = guess.join(level, on="source_id", how="semi")
    against = known.join(guess, on=list(_PG_NAMES), how="anti")
    sure = against.join(guess, on=_PG_ID, how="semi").is_empty()
    return guess.join(against.select("source_id"), on="source_id", how="anti"), sure


def _names_by_role(fr_status: pl.LazyFrame, fr_groups: pl.LazyFrame, known: pl.DataFrame) -> pl.DataFrame:
    """Names of the groups with the description that every dump with an entry of this number knows it by, where the dump lists one such
    group.

    Of dumps that list groups of the same descriptions: whoever has none of some role has other numbers for what was made after it."""
    listed = fr_groups.select("source_id", "pg_name", "pg_desc").drop_nulls().unique().collect()
    has = listed.group_by("source_id").agg(pl.col("pg_desc").sort().str.join("\n").hash().alias("has"))
    listed = listed.join(has, on="source_id")
    told = known.join(listed, on=["source_id", "pg_name"]).group_by("pg_id", "has").agg("pg_desc", alike=pl.col("pg_desc").n_unique())
    roles = told.filter(pl.col("alike") == 1).select("pg_id", "has", pl.col("pg_desc").list.first())
    single = listed.filter(pl.len().over("source_id", "pg_desc") == 1)
    return (
        fr_status.select(_PG_ID)
        .drop_nulls()
        .unique()
        .collect()
        .join(has, on="source_id")
        .join(roles, on=["pg_id", "has"])
        .join(single, on=["source_id", "pg_desc"])
        .select(*_PG_NAMES)
    )


@view(rows="operations")
def operations(
    fr_entries: pl.LazyFrame | FoldedTable | None,
    dumps: pl.LazyFrame | None,
    nccl_ops: pl.LazyFrame | FoldedTable | None,
    comms: pl.LazyFrame | None,
    processes: pl.LazyFrame | None,
    rank_reports: pl.LazyFrame | None,
    shared_names: pl.LazyFrame | None = None,
    overwritten: pl.LazyFrame | None = None,
) -> pl.LazyFrame | Parts:
    """Every collective and send/recv with its rank, group and position: columns of ``OPERATIONS``; none of NCCL's logs that processes have
    written over each other: what is missing there tells nothing.

    ``seq`` counts from 1 in the ``fr`` domain (the recorder's number) and from 0 in the ``nccl`` domain (our ordinal). ``rank`` is global.
    """
    parts: list[pl.LazyFrame] = []
    recorded: Recorded | None = None
    if fr_entries is not None and dumps is not None:
        recorded = recorded_calls(_folded(fr_entries, "fr_entries"), dumps, shared_names)
    if rank_reports is not None:
        parts.append(_detail_operations(rank_reports))
    numbered: Numbered | None = None
    if nccl_ops is not None:
        folded = _folded(nccl_ops, "nccl_ops")
        told = has_rows(comms)
        members = members_of(comms, processes) if told else members_by_size(folded.words, processes)
        holed = overwritten.collect()["source_id"].to_list() if overwritten is not None else []
        numbered = numbered_calls(folded, members, holed)
        if numbered is None:
            parts.append(by_line(folded, members, holed))
    others = pl.concat([_conform(p) for p in parts], how="vertical") if parts else pl.LazyFrame(schema=OPERATIONS)
    return others if numbered is None and recorded is None else Parts(others, recorded, numbered)


def _folded(table: pl.LazyFrame | FoldedTable, name: str) -> FoldedTable:
    return table if isinstance(table, FoldedTable) else FoldedTable.of(table, TABLES[name].own)


def _detail_operations(reports: pl.LazyFrame) -> pl.LazyFrame:
    """Operations that DETAIL's wrapper prints, as it runs them and in its mismatch errors (own and other rank), numbered as recorders
    number them.

    The lines carry no group: where numbers repeat with different contents, or those of one writer fall back to more than a start (several
    groups), only what was found to differ is told, if that is at one number, as ranks of one group raise it together, and what led up to it.
    """
    known = reports.filter(
        pl.col("kind").is_in(["fingerprint", "detail-mismatch"]) & pl.col("seq").is_not_null() & pl.col("rank").is_not_null()
    )
    both = _own_and_other(known)
    running = pl.col("kind") == "fingerprint"
    back = (pl.col("seq").diff() < 0).over("source_id", "rank", order_by="line_no") & (pl.col("seq") > 2)
    falls = known.filter(running).select(falls=back.any())
    clear = (pl.struct("op", "detail").n_unique().over("rank", "seq").max() == 1) & ~pl.col("falls").fill_null(False)
    led = _led_up(known.filter(running), both.filter("raised")).with_columns(led=pl.lit(value=True))
    told = pl.col("raised") | pl.col("led").fill_null(False)
    return (
        both.join(falls, how="cross")
        .join(led, on=["source_id", "line_no", "rank", "seq"], how="left")
        .filter(clear | (told & (pl.col("seq").filter("raised").n_unique() == 1)))
        .drop("falls", "raised", "led")
        # An error file holds the last of them once more: the log that holds the others too tells their order.
        .with_columns(beside=pl.len().over("source_id"))
        .sort("rank", "seq", "trust", "beside", "source_id", "line_no", descending=[False, False, False, True, False, False])
        .unique(["rank", "seq"], keep="first", maintain_order=True)
        .drop("beside")
        .with_columns(
            domain=pl.lit("detail"),
            group_key=pl.lit("detail"),
            group_name=pl.when(~pl.col("in_subgroup").fill_null(value=False).any()).then(pl.lit("0")),
            group_desc=pl.when(pl.col("in_subgroup").any()).then(pl.lit("of some ranks")).otherwise(pl.lit("default_pg")),
            op=op_word(pl.col("op")),
            is_p2p=pl.lit(False),
            shape=pl.col("detail").str.extract(r"^(\[.*\])"),
            dtype=pl.col("detail").str.extract(r"([A-Za-z][A-Za-z0-9]*)$"),
            order=pl.col("line_no").cast(pl.Int64),
        )
    )


def _own_and_other(known: pl.LazyFrame) -> pl.LazyFrame:
    """What these lines say of the rank's own call, and of the other's where that tells of its call itself nowhere; ``raised``: torch found
    that call to differ from another."""
    own = known.select(
        "rank", "seq", "op", "detail", "source_id", "line_no", "in_subgroup", pl.col("kind").alias("state"), pl.lit(0).alias("trust")
    ).with_columns(raised=pl.col("state") == "detail-mismatch")
    # torch reads the other rank's print with the layout of its own: where the numbers of tensors differ, what it prints of the other is
    # noise, the sequence number first (torch 2.13 c10d/ProcessGroupWrapper.cpp: both are at one position whenever they are compared).
    # What the other rank says of itself comes first in any case.
    readable = ~pl.col("differs").fill_null("").str.split(",").list.contains("sequence")
    other = known.filter((pl.col("kind") == "detail-mismatch") & readable).select(
        pl.col("ranks").list.first().alias("rank"),
        "seq",
        pl.col("other_op").alias("op"),
        pl.col("other_detail").alias("detail"),
        "source_id",
        "line_no",
        "in_subgroup",
        pl.col("kind").alias("state"),
        pl.lit(1).alias("trust"),
        pl.lit(value=True).alias("raised"),
    )
    meant = other.select("rank", "seq", "op", "detail", meant=pl.lit(value=True)).unique()
    own = own.join(meant, on=["rank", "seq", "op", "detail"], how="left").with_columns(
        raised=pl.col("raised") | pl.col("meant").fill_null(value=False)
    )
    own = own.drop("meant")
    other = other.join(own.select("rank", "seq").unique(), on=["rank", "seq"], how="anti")
    both = pl.concat([own, other]).filter(pl.col("op").is_not_null())
    # Where torch itself found the calls of two ranks to differ, that is no misread line.
    return both.with_columns(state=pl.col("state").sort().first().over("rank", "seq"))


def _led_up(running: pl.LazyFrame, raised: pl.LazyFrame) -> pl.LazyFrame:
    """The lines of the calls before those that were found to differ, one number after the other, of the groups in which they were: a group
    knows a process by one number, and counts its calls without a gap. They end where lines of two groups bear the same numbers."""
    line = ["source_id", "rank", "number"]
    ends = running.join(raised, on=["rank", "seq", "op", "detail"], how="semi").group_by(line).agg(end=pl.col("seq").max())
    before = running.join(ends, on=line).filter((pl.col("seq") < pl.col("end")) & (pl.len().over(*line, "seq") == 1))
    back = [pl.col(name).rank("ordinal", descending=True).over(line) == pl.col("end") - pl.col("seq") for name in ("seq", "line_no")]
    return before.filter(*back).select("source_id", "line_no", "rank", "seq")


def _conform(frame: pl.LazyFrame) -> pl.LazyFrame:
    have = frame.collect_schema().names()
    return frame.select([(pl.col(c).cast(t) if c in have else pl.lit(None, dtype=t).alias(c)) for c, t in OPERATIONS.items()])


@view(rows="ranks x groups")
def progress(
    operations: pl.LazyFrame | Calls | None,
    fr_status: pl.LazyFrame | None,
    fr_pg_names: pl.LazyFrame | None,
    dumps: pl.LazyFrame | None,
    watchdog: pl.LazyFrame | None,
    shared_names: pl.LazyFrame | None = None,
    fr_entries: pl.LazyFrame | FoldedTable | None = None,
) -> pl.LazyFrame:
    """How far each rank got in each group: first and last collective seen, last completed, what was enqueued last and when.

    Of recorders also: the state of the first that is pending (``pending_state``), what it calls (``pending_op``), its place in the order of
    the rank's own operations (``pending_order``), and that of the first that is pending in whatever group (``first_open``). Where recorders
    of a group mark what is completed and one of them holds nothing that is, all before its first pending one is; so it is where recorders
    were asked for what is open alone.

    Counters of the recorder (``pg_status``) survive a ring wrap and empty dumps; they count collectives only where the group has no
    send/recv, and operations (not collectives) for gloo, so they are used for NCCL groups without send/recv alone. A group has them where an
    entry is of one, or numbers one that came before it: a dump of what is open alone may hold none.
    """
    parts = []
    if operations is not None:
        sent = _with_sends(fr_entries) if fr_entries is not None and fr_status is not None else None
        calls = calls_of(operations)
        alone = dumps is not None and _open_alone(calls.telling, dumps)
        seen = _seen_progress(calls, fr_status, fr_pg_names, dumps, shared_names, sent, alone)
        ended = pl.col("last_done").is_not_null().any().over("domain", "group_key")
        cut = cut_rings(dumps)
        full = pl.col("rank").is_in(sorted(_full_rings(dumps, cut)))
        marked = (pl.col("domain") == _RECORDED) & (ended | alone)
        known = pl.when(marked & ~_begins_open(cut) & ~(full & alone)).then(pl.col("first_pending") - 1)
        seen = seen.with_columns(before=known, most=pl.max_horizontal(known, "last_done").max().over("domain", "group_key"))
        # What a full ring has lost may be open as well: its rank has completed no more than what it does not hold.
        at_most = pl.when(marked & full & alone & (pl.col("first_pending") <= pl.col("most"))).then(pl.col("first_pending") - 1)
        before = pl.coalesce("before", at_most)
        parts.append(seen.with_columns(last_done=pl.coalesce("last_done", before)).drop("before", "most"))
    if watchdog is not None:
        parts.append(watchdog_progress(watchdog))
    if not parts:
        return pl.LazyFrame(schema=PROGRESS)
    typed = [
        p.select([(pl.col(c) if c in p.collect_schema().names() else pl.lit(None)).cast(t).alias(c) for c, t in PROGRESS.items()])
        for p in parts
    ]
    return pl.concat(typed).sort("domain", "group_key", "rank")


def cut_rings(dumps: pl.LazyFrame | None) -> dict[int, int]:
    """Ranks whose rings have lost their oldest entries, and the number of the first that is left. A recorder that was asked for what is
    open alone leaves gaps between the numbers instead."""
    if dumps is None:
        return {}
    whole = pl.col("last_record_id") - pl.col("first_record_id") + 1 == pl.col("entries")
    lost = dumps.filter((pl.col("use") == "chosen") & (pl.col("first_record_id") > 0) & whole & pl.col("rank").is_not_null())
    return dict(lost.group_by("rank").agg(pl.col("first_record_id").min()).collect().iter_rows())


def _full_rings(dumps: pl.LazyFrame | None, cut: Mapping[int, int]) -> set[int]:
    """Of the ranks whose rings may have lost their oldest entries, those that hold as many as any: how many have room is what the fullest
    of them shows."""
    if dumps is None or not cut:
        return set()
    chosen = dumps.filter((pl.col("use") == "chosen") & of_nccl())
    most = chosen.filter(pl.col("entries") == pl.col("entries").max()).select("rank").collect()["rank"].drop_nulls()
    return cut.keys() & set(most.to_list())


def _open_alone(operations: pl.LazyFrame, dumps: pl.LazyFrame) -> bool:
    """Whether the recorders were asked for what is open alone: none holds anything that is completed, and numbers of entries are left out,
    between them or, where most have room for more as others show, before the first."""
    chosen = dumps.filter((pl.col("use") == "chosen") & of_nccl())
    between = pl.col("last_record_id") - pl.col("first_record_id") + 1 > pl.col("entries")
    before = (pl.col("first_record_id") > 0) & (pl.col("entries") < pl.col("entries").max())
    if not chosen.select(between.any() | (2 * before.sum() > pl.len())).collect().item():
        return False
    return not operations.filter(pl.col("domain") == _RECORDED).select(pl.col("done").any()).collect().item()


def _begins_open(cut: Collection[int]) -> pl.Expr:
    """Whether a ring that is cut begins with an entry that is open, while other recorders hold what is completed as well: what it has lost
    may be open too."""
    begins = pl.col("rank").is_in(sorted(cut)) & (pl.col("first_open") == pl.col("first_kept"))
    return begins.fill_null(False) & pl.col("kept_done").any()


#: The domain of recorders.
_RECORDED = "fr"

PROGRESS = typed(
    "domain:str group_key:str rank:i32 first_seq:i64 last_seq:i64 last_done:i64 first_pending:i64 pending_state:str pending_order:i64",
    "pending_op:str first_open:i64 count:i64 last_op:str last_call_site:str last_created_ns:i64 last_order:i64",
    read_at(),
    "timeout_ms:i64",
)


def _seen_progress(
    calls: Calls,
    fr_status: pl.LazyFrame | None,
    fr_pg_names: pl.LazyFrame | None,
    dumps: pl.LazyFrame | None,
    shared_names: pl.LazyFrame | None,
    sent: pl.DataFrame | None,
    alone: bool,
) -> pl.LazyFrame:
    """``alone``: recorders were asked for what is open alone."""
    operations = calls.telling
    collectives = operations.filter(placed())
    last = pl.col("seq") == pl.col("seq").max()
    waiting = pl.col("pending") & (pl.col("domain") == _RECORDED) & (pl.col("seq") == pl.col("seq").filter(pl.col("pending")).min())
    opened = operations.filter(pl.col("pending") & (pl.col("domain") == _RECORDED)).group_by("domain", "rank")
    seen = collectives.group_by("domain", "group_key", "rank").agg(
        pl.col("seq").min().alias("first_seq"),
        pl.col("seq").max().alias("last_seq"),
        pl.col("seq").filter(pl.col("done")).max().alias("last_done"),
        pl.col("seq").filter(pl.col("pending")).min().alias("first_pending"),
        pl.struct(pending_state="state", pending_order="order", pending_op="op").filter(waiting).first().alias("open"),
        pl.col("created_ns").max().alias("last_created_ns"),
        pl.col("order").max().alias("last_order"),
        pl.struct("source_id", "line_no", "record", "timeout_ms", last_op="op", last_call_site="call_site")
        .filter(last)
        .last()
        .alias("end"),
    )
    seen = seen.unnest("open", "end")
    seen = seen.with_columns(kept_done=pl.col("last_done").is_not_null() & (pl.col("domain") == _RECORDED))
    kept = operations.filter(pl.col("domain") == _RECORDED).group_by("domain", "rank").agg(pl.col("order").min().alias("first_kept"))
    seen = seen.join(kept, on=["domain", "rank"], how="left", nulls_equal=True)
    counted = calls.counts.group_by("domain", "group_key", "rank").agg(pl.col("calls").sum().alias("count"))
    seen = seen.join(counted, on=["domain", "group_key", "rank"], how="left", nulls_equal=True)
    seen = seen.join(opened.agg(pl.col("order").min().alias("first_open")), on=["domain", "rank"], how="left", nulls_equal=True)
    if fr_status is None or fr_pg_names is None or dumps is None:
        return seen.with_columns(
            status_enqueued=pl.lit(None, dtype=pl.Int64()),
            status_done=pl.lit(None, dtype=pl.Int64()),
            status_record=pl.lit(None, dtype=pl.String()),
        ).sort("domain", "group_key", "rank")
    has_p2p = operations.filter((pl.col("domain") == "fr") & pl.col("is_p2p")).select("group_key").unique()
    chosen = dumps.filter((pl.col("use") == "chosen") & pl.col("rank").is_not_null() & of_nccl())
    mixed = (pl.DataFrame(schema=_SENT) if sent is None else sent).with_columns(mixed=True)
    status = (
        fr_status.join(fr_pg_names.select("source_id", "pg_id", "pg_name"), on=["source_id", "pg_id"])
        .join(chosen.select("source_id", "rank"), on="source_id")
        .join(mixed.lazy(), on=["source_id", "pg_name"], how="left")
        .join(pl.LazyFrame(schema=SHARED) if shared_names is None else shared_names, on=["rank", "pg_name"], how="left")
        .select(
            pl.lit("fr").alias("domain"),
            with_part(text_of("pg:{}", pl.col("pg_name"))).alias("group_key"),
            "rank",
            pl.col("last_enqueued").alias("status_enqueued"),
            pl.col("last_completed").alias("status_done"),
            pl.col("record").alias("status_record"),
            pl.col("source_id").alias("status_source"),
            pl.col("mixed").fill_null(False),
        )
        .join(has_p2p, on="group_key", how="anti")
        .filter(~pl.col("mixed").any().over("group_key"))
        .drop("mixed")
    )
    both = seen.join(status, on=["domain", "group_key", "rank"], how="full", coalesce=True)
    if alone:
        # The watchdog counts what is completed when it comes round to it; the dump itself looked, and would hold what it found open.
        both = both.with_columns(status_done=pl.when(pl.col("first_pending").is_null()).then("status_enqueued").otherwise("status_done"))
    return (
        both.with_columns(
            last_seq=pl.max_horizontal("last_seq", "status_enqueued"),
            last_done=pl.max_horizontal("last_done", "status_done"),
            source_id=pl.coalesce("source_id", "status_source"),
            record=pl.coalesce("record", "status_record"),
            count=pl.col("count").fill_null(0),
        )
        .drop("status_source")
        .sort("domain", "group_key", "rank")
    )


_SENT = {"source_id": pl.UInt32(), "pg_name": pl.String()}


def _with_sends(fr_entries: pl.LazyFrame | FoldedTable) -> pl.DataFrame:
    """Dumps and names of the groups in which an entry, of whatever kind, numbers a send or receive."""
    if not isinstance(fr_entries, FoldedTable):
        return fr_entries.filter(pl.col("p2p_seq_id") > 0).select(list(_SENT)).unique().collect()
    parts = [pl.DataFrame(schema=_SENT)]
    names = fr_entries.words.select(pl.col(c).cast(t) for c, t in _SENT.items())
    for rows, at, _ in fr_entries.rows(("p2p_seq_id",)):
        parts.append(names[at.filter(rows.get_column("p2p_seq_id").fill_null(0) > 0).unique()])
    return pl.concat(parts).unique()
