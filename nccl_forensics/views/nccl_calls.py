"""Operations of NCCL's logs on one footing: which communicator a line's pointer means, and which of its collectives a line is."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import polars as pl

from nccl_forensics.folding import FoldedTable, told
from nccl_forensics.frames import text_of, typed
from nccl_forensics.views.calls import OPERATIONS, Numbered, op_word
from nccl_forensics.views.communicators import of_the_job
from nccl_forensics.views.exchanges import exchanging, in_one_row, with_exchanges

_DTYPES = ["int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "bfloat16", "float8e4m3", "float8e5m2"]
_LIFE = ["host", "pid", "comm", "source_id"]


def _taken_down(comms: pl.LazyFrame | None) -> list[str]:
    """Communicators that at least half of their known members took down in order, and none aborted: all their operations are over, as a
    rank waits for its own before that (NCCL 2.27 src/init.cc: commDestroySync)."""
    if comms is None:
        return []
    ended = pl.col("ended").fill_null("")
    return (
        comms.filter(pl.col("rank").is_not_null() & pl.col("comm_key").is_not_null())
        .group_by("comm_key")
        .agg((ended == "destroy-complete").mean().alias("over"), ended.str.starts_with("abort").any().alias("aborted"))
        .filter((pl.col("over") >= 0.5) & ~pl.col("aborted"))
        .sort("comm_key")
        .collect()["comm_key"]
        .to_list()
    )


def members_of(comms: pl.LazyFrame | None, processes: pl.LazyFrame | None) -> pl.LazyFrame:
    """Communicators of each process, in the order of the lines that make them, with the rank of the job where something tells it; ``over``:
    whether they were taken down in order."""
    if comms is None:
        return pl.LazyFrame(
            schema=typed(
                "host:str pid:i64 comm:str comm_key:str comm_id:str member:i32 begin:u32 begin_source:u32 world_rank:i32 comm_nranks:i32",
                "over:bool",
            )
        )
    members = comms.select(
        "host",
        "pid",
        "comm",
        "comm_key",
        "comm_id",
        pl.col("rank").alias("member"),
        pl.col("line_no").alias("begin"),
        pl.col("source_id").alias("begin_source"),
        pl.when(of_the_job()).then(pl.col("rank")).alias("world_rank"),
        pl.col("nranks").alias("comm_nranks"),
        pl.col("bus_id").alias("comm_bus"),
        pl.col("comm_key").is_in(_taken_down(comms)).alias("over"),
    ).sort("begin")
    # A process that never joined the world communicator keeps the rank that its other claims give.
    if processes is not None:
        one_gpu = processes.filter(pl.len().over("host", "pid") == 1).select("host", "pid", pl.col("rank").alias("proc_rank"))
        many = processes.filter(pl.len().over("host", "pid") > 1).select(
            "host", "pid", pl.col("bus_id").alias("comm_bus"), pl.col("rank").alias("slot_rank")
        )
        members = members.join(one_gpu, on=["host", "pid"], how="left", nulls_equal=True)
        members = members.join(many, on=["host", "pid", "comm_bus"], how="left", nulls_equal=True)
        members = members.with_columns(world_rank=pl.coalesce("world_rank", "slot_rank", "proc_rank")).drop("slot_rank", "proc_rank")
    return members.drop("comm_bus").sort("begin")


#: How the keys of communicators begin that are told by their size alone.
BY_SIZE = "size"


def members_by_size(words: pl.DataFrame, processes: pl.LazyFrame | None) -> pl.LazyFrame:
    """Members, in the columns of ``members_of``, where no line tells how a communicator was made (NCCL_DEBUG_SUBSYS=COLL): the communicator
    of which there is one in each process and that has as many ranks as there are processes is the same in all of them. ``words``: sorts of
    operations. Ranks are those of prefixes and processes, or on one host the devices, where these are 0, 1, ... of as many processes."""
    process = ["host", "pid"]
    own = words.lazy().filter((pl.col("nranks") > 1) & pl.col("comm").is_not_null() & pl.col("pid").is_not_null())
    lives = (
        own.group_by(*process, "comm", "nranks", "source_id")
        .agg(
            pl.col("dev").drop_nulls().first(),
            pl.when(pl.col("hint_scope") == "global").then("hint_rank").drop_nulls().first().alias("said"),
        )
        .with_columns(
            mine=pl.struct("comm").n_unique().over(*process, "nranks"),
            there=pl.struct(process).n_unique(),
            most=pl.col("nranks").max(),
            in_it=pl.struct(process).n_unique().over("nranks"),
        )
        .filter((pl.col("nranks") == pl.col("most")) & (pl.col("most") == pl.col("there")) & (pl.col("in_it") == pl.col("there")))
        .filter((pl.col("mine") == 1).all())
    )
    if processes is not None:
        known = processes.filter(pl.len().over(process) == 1).select(*process, known="rank")
        lives = lives.join(known, on=process, how="left", nulls_equal=True)
    else:
        lives = lives.with_columns(known=pl.lit(None, dtype=pl.Int32))
    # Devices are ranks where all processes of the communicator share a host and each has one of its own.
    by_device = (
        (pl.col("host").n_unique() == 1) & (pl.col("dev").n_unique() == pl.col("nranks")) & (pl.col("dev").max() == pl.col("nranks") - 1)
    )
    rank = pl.coalesce("said", "known", pl.when(by_device & pl.all_horizontal(pl.col("said", "known").is_null().all())).then("dev"))
    return lives.select(
        *process,
        "comm",
        text_of(BY_SIZE + "{}", pl.col("nranks")).alias("comm_key"),
        pl.lit(None, dtype=pl.String).alias("comm_id"),
        rank.cast(pl.Int32).alias("member"),
        pl.lit(0, dtype=pl.UInt32).alias("begin"),
        pl.col("source_id").alias("begin_source"),
        rank.cast(pl.Int32).alias("world_rank"),
        pl.col("nranks").alias("comm_nranks"),
        pl.lit(False).alias("over"),
    ).sort("begin_source", "host", "pid")


def _counting(ops: pl.LazyFrame, holed: Sequence[int]) -> pl.LazyFrame:
    """Without lines of sources that are ``holed``, and without lines that repeat others. CALL lines repeat COLL lines of the same call:
    they carry no opCount and count only where a process has nothing else. A torn line that lost its communicator is of the only one that
    the process has, and otherwise of none that is known."""
    count = pl.col("op_count").is_not_null() if "op_count" in ops.collect_schema().names() else pl.col(told("op_count"))
    told_comm = pl.col("comm").drop_nulls()
    only = pl.when(told_comm.n_unique().over("host", "pid") == 1).then(told_comm.first().over("host", "pid"))
    ops = ops.with_columns(comm=pl.coalesce("comm", only)).filter(pl.col("comm").is_not_null())
    ops = ops.filter(~pl.col("source_id").is_in(holed)).with_columns(has_count=count.any().over("host", "pid", "source_id"))
    return ops.filter(count | ~pl.col("has_count")).drop("has_count").filter(~pl.col("unofficial").fill_null(False))


def _grouped(joined: pl.LazyFrame) -> pl.LazyFrame:
    """Operations with their communicator, or sorts of them, with ``is_p2p``, ``group_key`` and ``rank``."""
    return joined.with_columns(
        is_p2p=pl.col("op").str.to_lowercase().is_in(["send", "recv"]),
        group_key=pl.coalesce("comm_key", text_of("size{}#{}", pl.col("nranks"), pl.col("comm"))),
        rank=pl.coalesce("world_rank", "global_rank", "hint_rank"),
    )


def _described(grouped: pl.LazyFrame) -> pl.LazyFrame:
    """The same in the columns of ``OPERATIONS``, but for what each operation has of its own."""
    return grouped.with_columns(
        domain=pl.lit("nccl"),
        nranks=pl.coalesce("comm_nranks", "nranks"),
        op=op_word(pl.col("op")),
        peer=pl.when(pl.col("is_p2p")).then(pl.col("root")),
        shape=pl.col("count").cast(pl.String),
        dtype=pl.col("dtype").replace_strict(dict(enumerate(_DTYPES)), default=text_of("type{}", pl.col("dtype")), return_dtype=pl.String),
        root=pl.when(pl.col("is_p2p")).then(None).otherwise(pl.col("root")),
        done=pl.when("over").then(pl.lit(True)),
    )


def by_line(folded: FoldedTable, members: pl.LazyFrame, holed: Sequence[int] = ()) -> pl.LazyFrame:
    """Operations one by one with their place among the collectives of their communicator."""
    life = ("host", "pid", "comm", "begin_source", "begin", "group_key")
    turns = _grouped(_joined(_counting(folded.every, holed), members)).sort("continues", "source_id", "line_no")
    numbers = _numbers_of_lines(turns)
    turns = _described(with_exchanges(turns, life))
    position = (pl.col("is_p2p") == pl.lit(False)).cast(pl.Int64).cum_sum().over(*life) - 1
    if numbers:
        # Where opCount numbers the calls, lines that were lost leave a hole, and one that is there twice counts once.
        own = pl.col("group_key").is_in(numbers)
        position = pl.when(own).then(pl.col("op_count")).otherwise(position)
        turns = turns.filter(~own | pl.struct("host", "pid", "group_key", "op_count").is_first_distinct())
    return turns.with_columns(seq=pl.when(pl.col("is_p2p")).then(None).otherwise(position), order=pl.col("line_no").cast(pl.Int64))


#: Share of the lines of a log that may be missing or doubled.
_DAMAGED = 0.3


def _uneven(sorts: pl.LazyFrame) -> pl.DataFrame:
    """``group_key`` and number of ``lives`` of communicators in which opCount may be the number of the call on every rank, and some log
    lacks lines or holds some twice. ``sorts``: operations by any sort, with ``calls``, the ``lowest`` and the ``highest`` opCount of
    each."""
    lives = sorts.group_by("group_key", "host", "pid").agg(
        (pl.col("highest").max() - pl.col("lowest").min() + 1).alias("span"),
        pl.col("calls").sum().alias("lines"),
        (pl.col("lowest").min() != 0).alias("late"),
        (pl.col("is_p2p").any() | pl.col("lowest").is_null().any()).alias("other"),
    )
    lines = pl.col("lines")
    close = ~pl.col("other") & pl.col("span").is_between((1 - _DAMAGED) * lines, lines / (1 - _DAMAGED))
    uneven = (pl.col("late") | (pl.col("span") != lines)).any() & (pl.len() > 1)
    found = lives.group_by("group_key").agg(able=close.all() & uneven, lives=pl.len()).filter("able")
    return found.select("group_key", "lives").sort("group_key").collect()


def _self_numbered(able: pl.DataFrame, repeated: pl.LazyFrame) -> list[str]:
    """Those of the communicators in which opCount is the number of the call on every rank. ``repeated``: operations whose opCount another
    of the same rank has too, with ``group_key``, ``life``, ``op_count`` and ``kind``, equal where calls are alike.

    So it is up to NCCL 2.26 without groups of calls and without sends and receives; later only where each call has work for the proxy
    (NCCL 2.27 src/enqueue.cc).
    """
    numbers = repeated.group_by("group_key", "life", "op_count").agg(pl.col("kind").n_unique().alias("kinds"))
    alike = numbers.group_by("group_key", "op_count").agg((pl.col("kinds") > 1).any().alias("several"), pl.len().alias("ranks"))
    # One number for several calls is a group of them; the same on most ranks it is no damage.
    grouped = alike.join(able.lazy(), on="group_key").filter(pl.col("several") | (pl.col("ranks") * 2 > pl.col("lives")))
    return able.lazy().join(grouped, on="group_key", how="anti").sort("group_key").select("group_key").collect().to_series().to_list()


#: What calls that are alike agree in.
_KIND = ("op", "count", "dtype", "red_op", "root")


def _numbers_of_lines(turns: pl.LazyFrame) -> list[str]:
    """Communicators with lost or doubled lines in which opCount is the number of the call, of operations one by one."""
    count = pl.col("op_count")
    able = _uneven(turns.with_columns(lowest=count, highest=count, calls=pl.lit(1)))
    if able.is_empty():
        return []
    lines = turns.join(able.lazy(), on="group_key", how="semi")
    lines = lines.select("group_key", "op_count", life=pl.struct("host", "pid"), kind=pl.struct(_KIND))
    return _self_numbered(able, lines.filter(pl.struct("group_key", "life", "op_count").is_duplicated()))


def _numbers_of_sorts(folded: FoldedTable, grouped: pl.DataFrame) -> list[str]:
    """The same of sorts of operations; ``grouped``: the sorts, by their place ``at`` among all words."""
    able = _uneven(grouped.lazy())
    if able.is_empty():
        return []
    sorts = grouped.join(able, on="group_key", how="semi", maintain_order="left")
    bare = pl.repeat(None, folded.words.height, dtype=pl.UInt32, eager=True)
    life_at = bare.scatter(sorts.get_column("at"), sorts.get_column("life").cast(pl.UInt32)).alias("life")
    repeated = []
    for rows, at, _ in folded.rows():
        own = pl.DataFrame([at.alias("at"), life_at.gather(at), rows.get_column("op_count")]).filter(pl.col("life").is_not_null())
        repeated.append(own.filter(pl.struct("life", "op_count").is_duplicated()))
    kinds = sorts.select("at", "group_key", kind=pl.struct(_KIND))
    return _self_numbered(able, pl.concat(repeated).lazy().join(kinds.lazy(), on="at"))


def _one_life_each(grouped: pl.DataFrame, groups: list[str]) -> bool:
    """Whether in these groups a process has one communicator: else its numbers do not tell its calls apart."""
    own = grouped.filter(pl.col("group_key").is_in(groups)).group_by("host", "pid", "group_key").agg(pl.col("life").n_unique())
    return bool((own.get_column("life") == 1).all())


def numbered_calls(folded: FoldedTable, members: pl.LazyFrame, holed: Sequence[int] = ()) -> Numbered | None:
    """Operations as numbers, where every operation's pointer means one communicator only, and its own source tells how that was made before
    the first operation. What ``_joined`` finds is the same then, and looks at all operations one by one. None where some operation needs
    such a closer look."""
    lives = members.with_columns(source_id=pl.col("begin_source")).collect().with_row_index("life")
    if lives.select(pl.struct(_LIFE).is_duplicated().any() | pl.col("comm_key").is_null().any()).item():
        return None
    seen = [
        pl.DataFrame([at.alias("at"), *rows.select("line_no", "op_count")])
        .group_by("at")
        .agg(
            pl.col("line_no").min().alias("first"),
            pl.len().alias("calls"),
            pl.col("op_count").min().alias("lowest"),
            pl.col("op_count").max().alias("highest"),
        )
        for rows, at, _ in folded.rows()
    ]
    met = pl.concat(seen) if seen else pl.DataFrame(schema=_MET)
    words = _counting(
        folded.words.with_row_index("at").lazy().join(met.lazy(), on="at", how="inner", maintain_order="left"), holed
    ).collect()
    known = words.join(lives.select(*_LIFE, "life", "begin", *_MADE), on=_LIFE, how="left", maintain_order="left")
    if not known.select((pl.col("begin") <= pl.col("first")).fill_null(False).all()).item():
        return None
    grouped = _grouped(known.lazy()).collect()
    numbers = _numbers_of_sorts(folded, grouped)
    if numbers and not _one_life_each(grouped, numbers):
        return None
    described = (
        _described(in_one_row(grouped.lazy(), exchanging(_pairs(folded, grouped), ("life",))))
        .with_columns(pl.col("calls").cast(pl.Int64))
        .collect()
        .with_row_index("word")
    )
    own = [pl.col(c).cast(t) for c, t in OPERATIONS.items() if c in described.columns]
    kept = described.select("word", "life", "calls", *own)
    words_at = pl.repeat(None, folded.words.height, dtype=pl.UInt32, eager=True).scatter(
        described.get_column("at"), kept.get_column("word")
    )
    ways = kept.select(
        pl.when((pl.col("is_p2p") == pl.lit(False)).fill_null(False))
        .then(pl.when(pl.col("group_key").is_in(numbers)).then(_BY_COUNT).otherwise(_BY_LINE))
        .otherwise(_NOT_PLACED)
        .cast(pl.UInt8)
    ).to_series()
    parts: list[pl.DataFrame | Path] = []
    twice: list[pl.DataFrame] = []
    for rows, at, file in folded.rows():
        word = words_at.gather(at).alias("word")
        part, again = _placed(rows.select("line_no", "op_count"), word, ways, kept.get_column("life"))
        if again.len():
            twice.append(again.value_counts(name="less"))
        if file is None:
            parts.append(part)
            continue
        handle, name = tempfile.mkstemp(prefix="numbered.", suffix=".arrow", dir=file.parent)
        os.close(handle)
        part.write_ipc(name)
        parts.append(Path(name))
    if twice:
        less = pl.concat(twice).group_by("word").agg(pl.col("less").sum().cast(pl.Int64))
        kept = kept.join(less, on="word", how="left", maintain_order="left")
        kept = kept.with_columns(calls=pl.col("calls") - pl.col("less").fill_null(0)).drop("less")
    return Numbered(tuple(parts), kept)


def _pairs(folded: FoldedTable, grouped: pl.DataFrame) -> Iterator[pl.LazyFrame]:
    """Sends and receives one by one, part by part; ``grouped``: the sorts of operations, by their place ``at`` among all words."""
    sorts = grouped.filter("is_p2p").select("at", "op", "root", "count", "dtype", "nranks", "group_key", "life")
    if sorts.is_empty():
        return
    wanted = pl.repeat(False, folded.words.height, dtype=pl.Boolean, eager=True).scatter(sorts.get_column("at"), True)
    for _, at, _ in folded.rows():
        own = pl.DataFrame({"at": at.filter(wanted.gather(at))})
        if own.height:
            yield own.lazy().join(sorts.lazy(), on="at", how="inner", maintain_order="left")


#: What a communicator tells of its operations.
_MADE = ("comm_key", "comm_id", "member", "world_rank", "comm_nranks", "over")
_MET = typed("at:u32 first:u32 calls:u32 lowest:i64 highest:i64")


#: How operations of a sort get their place: not at all, by their line, by their opCount.
_NOT_PLACED, _BY_LINE, _BY_COUNT = 0, 1, 2


def _placed(lines: pl.DataFrame, words: pl.Series, ways: pl.Series, lives: pl.Series) -> tuple[pl.DataFrame, pl.Series]:
    """Operations in their order with their place among the collectives of their life; ``words`` is null for lines that do not count,
    ``ways`` says of each word how its operations get their place. Of those placed by one opCount the
    first alone counts; the words of the others come second."""
    rows = pl.DataFrame([words, *lines])
    if words.null_count():
        rows = rows.filter(pl.col("word").is_not_null())
    own = rows.get_column("word")
    again = own.clear()
    if (ways == _BY_LINE).all():
        turns = _turns(lives.gather(own)).alias("seq")
        return pl.DataFrame([own, turns, rows.get_column("line_no"), rows.get_column("op_count")]), again
    rows = rows.with_columns(life=lives.gather(own), way=ways.gather(own))
    by_count = pl.col("way") == _BY_COUNT
    if (rows.get_column("way") == _BY_COUNT).any():
        first = rows.select(~by_count | pl.struct("way", "life", "op_count").is_first_distinct()).to_series()
        again, rows = own.filter(~first), rows.filter(first)
    by_line = pl.col("way") == _BY_LINE
    position = by_line.cast(pl.Int64).cum_sum() - 1
    if rows.height and (life := rows.get_column("life")).min() != life.max():
        position = position.over("life")
    seq = pl.when(by_count).then("op_count").when(by_line).then(position)
    return rows.select("word", seq.alias("seq"), "line_no", "op_count"), again


def _turns(lives: pl.Series) -> pl.Series:
    """The place of each operation among those of its life."""
    turns = pl.int_range(lives.len(), dtype=pl.Int64(), eager=True)
    if not lives.len() or lives.min() == lives.max():
        return turns
    for places in pl.DataFrame({"life": lives}).with_row_index("row").group_by("life").agg("row").get_column("row"):
        turns = turns.scatter(places, pl.int_range(places.len(), dtype=pl.Int64(), eager=True))
    return turns


def _joined(ops: pl.LazyFrame, members: pl.LazyFrame) -> pl.LazyFrame:
    """Operations with the communicator that their pointer means: the last one made before them in their own source. Lines of different
    sources have no order, so where the log of a process goes on in another file (rotated, split) that does not tell how its communicator
    was made, it is the one that another file of the process tells of; ``continues`` says so, and such operations come after those of that
    file."""
    process = ["host", "pid", "comm"]
    own = ops.sort("line_no").join_asof(
        members.with_columns(source_id=pl.col("begin_source")).sort("begin"),
        left_on="line_no",
        right_on="begin",
        by=[*process, "source_id"],
        strategy="backward",
        check_sortedness=False,
    )
    told = ops.collect_schema().names()
    elsewhere = members.sort("begin_source", "begin").rename({"begin_source": "told_in"})
    orphans = own.filter(pl.col("begin").is_null()).select(told).sort("source_id")
    after, before = (
        orphans.join_asof(
            elsewhere, left_on="source_id", right_on="told_in", by=process, strategy=strategy, coalesce=False, check_sortedness=False
        ).rename({"told_in": "begin_source"})
        for strategy in ("backward", "forward")
    )
    line = ["source_id", "line_no"]
    earlier = after.filter(pl.col("begin").is_not_null())
    later = before.join(earlier, on=line, how="anti")  # with nothing where no file tells of a communicator
    parts = [own.filter(pl.col("begin").is_not_null()).with_columns(continues=pl.lit(False))]
    parts += [part.with_columns(continues=pl.lit(True)) for part in (earlier, later)]
    return pl.concat(parts, how="diagonal")
