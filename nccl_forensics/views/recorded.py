"""Operations of Flight Recorder dumps: what they share is told once for each sort of entry, and of each entry only numbers are looked at.

A ring holds thousands of entries of a few sorts. So the texts and arguments of an operation are derived from the words of the folded table,
one row for each sort of each dump, and rows are joined to them by number where somebody asks for them. Which of them tell how far each rank
got and where ranks part is found from the numbers, part by part; who asks for more of all entries (``arrivals``, ``windows``) goes by the
parts as well.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from nccl_forensics.folding import SORT, FoldedTable, told
from nccl_forensics.frames import text_of
from nccl_forensics.values.shapes import elements
from nccl_forensics.views.calls import ENDS, OPERATIONS, Told, op_word, signs_of
from nccl_forensics.views.shared_names import with_part
from nccl_forensics.words import UNIDENTIFIED

_DOMAIN = "fr"
_GROUP = ["domain", "group_key"]
#: How the key of a group begins that has a number and no name, and ranks up to which such a number is taken for one group.
_NUMBERED, _PAIR = "pg_id:", 2
_KEY, _ROW, _AT, _WORD, _LIFE = "key", "row", "at", "word", "life"
#: The entry that ends a batch, and operations that are only ever called inside one.
_BATCH, _PARTS = "coalesced", ("_broadcast_oop", "_reduce_oop")
#: What each entry has of its own, by the column of ``OPERATIONS`` that it becomes.
_OWN = {"created_ns": "time_created_ns", "completed_ns": "time_completed_ns", "order": "record_id", "record": "record"}
#: Columns of rows that operations are made of.
_ROWS = ("source_id", SORT, "collective_seq_id", "p2p_seq_id", *_OWN.values())
#: Numbers of an entry, and the columns of ``numbers``.
_NUMBERS = {"order": "record_id", "created_ns": "time_created_ns", "completed_ns": "time_completed_ns"}
#: No recorder counts as far: a group's number and a position in it make one number.
BEYOND = 1 << 40
#: Rows of which something is gathered before it is put together.
_GATHERED = 600_000
#: Parts up to so many bytes in all are read once, and kept.
_FEW = 64 << 20


def recorded_calls(folded: FoldedTable, dumps: pl.LazyFrame, shared_names: pl.LazyFrame | None = None) -> Recorded:
    """Operations of the entries of ``dumps`` that are ``chosen``, under the rank of their dump, or a number of its own where none is known.
    ``shared_names``: groups that share a name, if that is known."""
    parts = _kept(folded)
    chosen = dumps.filter(pl.col("use") == "chosen").select(
        "source_id", pl.coalesce("rank", UNIDENTIFIED + pl.col("source_id").cast(pl.Int32)).cast(pl.Int32).alias("rank")
    )
    calls = pl.zeros(folded.words.height, dtype=pl.UInt32, eager=True).alias("calls")
    for at in (at for _, at in parts) if parts else (at for _, at, _ in folded.rows(())):
        sort, here = at.value_counts(name="calls").get_columns()
        calls = calls.scatter(sort, calls.gather(sort) + here)
    words = (
        folded.words.with_columns(pl.when(calls > 0).then(calls.cast(pl.Int64)).alias("calls"), in_batch=_called_together(folded))
        .with_row_index(_AT)
        .lazy()
        .join(chosen, on="source_id", how="inner", maintain_order="left")
    )
    described = _unmixed(_parted(_described(words, _sent_together(folded)).collect(), shared_names))
    return Recorded(folded, described, _facts(described, folded.words.height), parts, _numberless(parts))


def _kept(folded: FoldedTable) -> tuple[tuple[pl.DataFrame, pl.Series], ...]:
    """The parts with the columns of ``_ROWS``, and the places of their rows among the words, if they are small."""
    sizes = (part.stat().st_size if isinstance(part, Path) else part.estimated_size() for part in folded.parts)
    return tuple((rows, at) for rows, at, _ in folded.rows(_ROWS)) if sum(sizes) <= _FEW else ()


def _numberless(parts: Sequence[tuple[pl.DataFrame, pl.Series]]) -> tuple[int, ...]:
    """Sources none of whose entries bears a number of its own."""
    numbered = [rows.group_by("source_id").agg(pl.col("record_id").is_not_null().any()) for rows, _ in parts]
    if not numbered:
        return ()
    found = pl.concat(numbered).group_by("source_id").agg(pl.col("record_id").any()).filter(~pl.col("record_id"))
    return tuple(sorted(found["source_id"].to_list()))


#: Sends and receives among sorts of entries, and what their group is for.
_PAIRED = pl.col("is_p2p").fill_null(False) | pl.col("op").is_in(["send", "recv", "isend", "irecv"])
_ROLE = pl.coalesce(pl.col("pg_desc").replace("", None), pl.col("pg_name"), pl.col("pg_id").cast(pl.String()))


def _sent_together(folded: FoldedTable) -> list[str]:
    """Roles of groups whose sends and receives run in batches although no entry that ends one is there, as in dumps of what is open alone:
    several of a rank bear one number, where each that runs by itself has its own."""
    over = (pl.col("state") == "completed") | pl.col(told("time_completed_ns"))
    bare = _PAIRED.any() & ~(_PAIRED & over).any() & (op_word(pl.col("op")) != _BATCH).all()
    words = folded.words.select(role=pl.when(bare.over(_ROLE) & _PAIRED).then(_ROLE))
    roles = words.get_column("role")
    if roles.null_count() == roles.len():
        return []
    found: set[str] = set()
    for rows, at, _ in folded.rows(("p2p_seq_id",)):
        sent = rows.with_columns(roles.gather(at)).filter(pl.col("role").is_not_null() & ~pl.col("role").is_in(sorted(found)))
        numbered = sent.group_by("source_id", "role", "p2p_seq_id").len()
        found |= set(numbered.filter(pl.col("len") > 1).get_column("role").to_list())
    return sorted(found)


def _called_together(folded: FoldedTable) -> pl.Series:
    """Whether collectives of a sort run in batches: one bears a number of its group that another entry bears, too. Of groups in which nothing
    is sent from one to one, where the ends of batches bear numbers of collectives."""
    over = (pl.col("state") == "completed") | pl.col(told("time_completed_ns"))
    batch = op_word(pl.col("op")) == _BATCH
    alone = ~_PAIRED.any().over(_ROLE) & (pl.col("backend") != "gloo").fill_null(value=True)
    group = pl.when(alone & (batch | ~over)).then(pl.struct("source_id", "pg_id").rank("dense"))
    groups = folded.words.select(group=group).get_column("group")
    found = pl.repeat(value=False, n=groups.len(), dtype=pl.Boolean(), eager=True)
    if groups.null_count() == groups.len():
        return found
    for rows, at, _ in folded.rows(("collective_seq_id",)):
        called = rows.select("collective_seq_id", group=groups.gather(at), at=at).drop_nulls()
        shared = called.filter(pl.len().over("group", "collective_seq_id") > 1).get_column("at").unique()
        found = found.scatter(shared, True)
    return found & ~folded.words.select(batch.fill_null(value=False)).to_series()


def _described(words: pl.LazyFrame, together: list[str]) -> pl.LazyFrame:
    """Sorts of entries in the columns of ``OPERATIONS``, but for what each entry has of its own, and ``in_batch``. ``together``: roles of
    groups whose sends and receives are known to run in batches."""
    nameless = pl.col("pg_name").is_null() | (pl.col("pg_name") == "")
    op = op_word(pl.col("op"))
    over = (pl.col("state") == "completed") | pl.col(told("time_completed_ns"))
    gloo = pl.col("backend") == "gloo"
    # PyTorch gives what runs in one batch no events: its entries say ``scheduled`` for ever, and the entry that ends the batch has the
    # state of all. That of a batch of sends and receives says it is a collective, under the number of the last one (ProcessGroupNCCL, 2.3
    # to 2.13).
    paired = _PAIRED
    batches = ((op == _BATCH).any().over(_ROLE) & paired.any().over(_ROLE)) | _ROLE.is_in(together)
    own_state = (paired & over & (op != _BATCH)).any().over("source_id", "pg_id")
    member = op.is_in(_PARTS) | (paired & ~over & (op != _BATCH) & batches & ~own_state) | pl.col("in_batch")
    p2p = paired | op.is_in(_PARTS) | ((op == _BATCH) & batches)
    own = {*_OWN, "seq", "source_id"}
    columns = {
        "domain": pl.lit(_DOMAIN),
        "group_key": pl.when(nameless).then(text_of(f"{_NUMBERED}{{}}", pl.col("pg_id"))).otherwise(text_of("pg:{}", pl.col("pg_name"))),
        "group_name": pl.col("pg_name"),
        "group_desc": pl.col("pg_desc"),
        "rank": pl.col("rank"),
        "op": op,
        "is_p2p": p2p,
        "peer": pl.when(op == "send").then(pl.col("peer_dst")).when(op == "recv").then(pl.col("peer_src")),
        "shape": pl.col("input_sizes"),
        "out_shape": pl.col("output_sizes"),
        "dtype": pl.col("input_dtypes"),
        "call_site": pl.col("user_frame"),
        "state": pl.col("state"),
        # gloo never marks completion: retired says that the operation is over, well or badly.
        "done": pl.when(~gloo & ~member).then(over),
        "pending": pl.when(member)
        .then(None)
        .when(gloo)
        .then(~pl.col("retired"))
        .otherwise((pl.col("state") != "completed") & ~pl.col(told("time_completed_ns"))),
        "timeout_ms": pl.col("timeout_ms"),
    }
    return words.select(
        *(_AT, "source_id", "calls", "in_batch"),
        _key().alias(_KEY),
        (~p2p & pl.col(told("collective_seq_id"))).alias("placed"),
        *(columns.get(c, pl.lit(None)).cast(t).alias(c) for c, t in OPERATIONS.items() if c not in own),
    )


def _parted(words: pl.DataFrame, shared_names: pl.LazyFrame | None) -> pl.DataFrame:
    """The same, with a key for each of the groups that share a name."""
    parts = None if shared_names is None else shared_names.select("rank", "part", group_name="pg_name").collect()
    if parts is None or not parts.height:
        return words
    told = words.join(parts, on=["rank", "group_name"], how="left", maintain_order="left")
    return told.with_columns(group_key=with_part(pl.col("group_key"))).drop("part")


def _unmixed(words: pl.DataFrame) -> pl.DataFrame:
    """The same, with a group for each rank where a number in place of a name may stand for several groups.

    Each process counts groups by itself: the second group of one rank is another than the second of the next where ranks are split up. What
    ranks gather or scatter tells how many they are; where it tells of as many as have that number, it is one group. All have the first in
    common.
    """
    numbered = pl.col("group_key").str.starts_with(_NUMBERED) & (pl.col("group_key") != f"{_NUMBERED}0")
    found = words.filter(numbered)
    if not found.height:
        return words
    ranks = dict(found.group_by("group_key").agg(pl.col("rank").n_unique()).iter_rows())
    told: dict[object, int] = {}
    for key, op, shape, out in found.select("group_key", "op", "shape", "out_shape").unique().drop_nulls().iter_rows():
        if "all_gather" in op or "reduce_scatter" in op:
            part, whole = sorted((sum(elements(shape)), sum(elements(out))))
            told[key] = max(told.get(key, 0), whole // part if part else 0)
    mixed = [key for key, n in ranks.items() if n > _PAIR and told.get(key, 0) < n]
    several = numbered & pl.col("group_key").is_in(mixed)
    # What all groups but the first are called alike (``undefined``) is no role that ranks share.
    return words.with_columns(
        group_key=pl.when(several).then(text_of("{} of rank {}", "group_key", "rank")).otherwise("group_key"),
        group_desc=pl.when(~several).then("group_desc"),
    )


def _key() -> pl.Expr:
    """A source and one of its sorts as one number: joining by two columns takes several times as long."""
    return pl.col("source_id").cast(pl.Int64) * (1 << 32) + pl.col(SORT).cast(pl.Int64)


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Recorded:
    """Operations of the dumps that count. ``words``: what entries of one sort of one dump share, in the columns of ``OPERATIONS``, by their
    place ``at`` among all words of the table and by ``key``; ``calls``: how many they are, ``placed``: collectives with a position.
    ``facts``: for each word of the table, of dumps that count, what is asked for of all entries: ``life`` (a rank in a group, null where
    the dump does not count), ``group``, ``sign`` (equal where calls are alike), ``rank``, ``is_p2p``, ``done``, ``pending``, ``batched``
    (one of a batch) and ``batch`` (the end of one), of collectives ``in_batch`` and ``ends``. ``parts``: entries, if they are few;
    ``numberless``: sources, of those, whose entries bear no number of their own (schema 1.1), so that their times tell their order; ``held``:
    their ``numbers``, once somebody asked for them, in files where entries lie in files."""

    folded: FoldedTable
    words: pl.DataFrame
    facts: pl.DataFrame
    parts: tuple[tuple[pl.DataFrame, pl.Series], ...] = ()
    numberless: tuple[int, ...] = ()
    held: list[pl.DataFrame | Path] = field(default_factory=list)

    @property
    def scratch(self) -> Path | None:
        """The folder of the files that entries lie in, where they are so many."""
        return next((part.parent for part in self.folded.parts if isinstance(part, Path)), None)

    @property
    def batches(self) -> bool:
        """Whether collectives run in batches, whose calls share one position."""
        return bool(self.facts.select((pl.col("ends") | pl.col("in_batch")).any()).item())

    def every(self) -> pl.LazyFrame:
        """All operations."""
        rows = self.folded.lazy().select(_ROWS).with_columns(_key().alias(_KEY))
        return self._spelled(rows, _KEY)

    def counts(self) -> pl.LazyFrame:
        """As ``Calls.counts``."""
        return _counts(self.words)

    def told(self) -> Told:
        """As ``Calls.telling``, ``Calls.apart`` and ``Calls.recent``: of each rank in each group what ``_ends`` gives, and where ranks
        differ two of each sort."""
        ends, bounds = [pl.Series(_ROW, [], dtype=pl.UInt32())], _Bounds()
        for numbers in self.numbers():
            placed = numbers.filter(pl.col("placed").is_not_null())
            ends += _ends(numbers, placed, self.facts)
            bounds.add(placed.filter(_ONE_CALL), self.facts.get_column("sign"))
        differ = bounds.differing()
        apart = [pl.Series(_ROW, [], dtype=pl.UInt32())]
        if differ.height:
            seqs = differ.get_column("placed") % BEYOND
            span = (int(str(seqs.min())), int(str(seqs.max())))
            apart += [_apart(numbers.filter(_ONE_CALL), differ, self.facts) for numbers in self.numbers(span)]
        differing = pl.concat(apart)
        rows = self._gathered(pl.concat([*ends, differing]).drop_nulls().unique().sort())
        here = rows.filter(pl.col(_ROW).is_in(differing.implode()))
        telling, parting = (self._spelled(found.lazy().drop(_ROW), _WORD) for found in (rows, here))
        return Told(telling, parting, self._recent)

    def _recent(self) -> pl.LazyFrame:
        """As ``Calls.recent``."""
        found = [_last_called(numbers, self.facts) for numbers in self.numbers()]
        rows = self._gathered(pl.concat([pl.Series(_ROW, [], dtype=pl.UInt32()), *found]).sort())
        return self._spelled(rows.lazy().drop(_ROW), _WORD)

    def named(self, rows: pl.Series) -> pl.LazyFrame:
        """These operations, by the number of their ``row`` among all; once each, in their order."""
        spelled = self._gathered(rows.unique().sort())
        return self._spelled(spelled.lazy(), _WORD, _ROW)

    def numbers(self, positions: tuple[int, int] | None = None) -> Iterator[pl.DataFrame]:
        """The operations that count, part by part, those of a ``life`` together and in the order of their entries: ``row`` among all
        entries, ``word``, ``life``, ``seq``, ``placed`` (group and position of a collective, else null), ``order``, ``created_ns``,
        ``completed_ns``; where anything is sent from one to one, ``collective``: the number of the last collective, for a send or receive
        too. With ``positions`` only collectives from the first to the last of these."""
        if not self.held:
            self.held.extend(self._laid_down())
        wanted = pl.col("placed").is_not_null()
        if positions is not None:
            wanted &= pl.col("seq").is_between(*positions)
        for part in self.held:
            numbers = pl.read_ipc(part).with_columns(pl.col(_LIFE).set_sorted()) if isinstance(part, Path) else part
            yield numbers if positions is None else numbers.filter(wanted)

    def _laid_down(self) -> Iterator[pl.DataFrame | Path]:
        """The same, as they are kept."""
        if self.parts or self.scratch is None:
            yield from self._numbers()
            return
        folder = tempfile.mkdtemp(prefix="numbers.", dir=self.scratch)
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        for part, numbers in enumerate(self._numbers()):
            file = Path(folder, f"{part}.arrow")
            numbers.write_ipc(file)
            yield file

    def _numbers(self) -> Iterator[pl.DataFrame]:
        """The same of entries that are read."""
        p2p = bool(self.words.get_column("is_p2p").any())
        own = [self._own(name, c).alias(name) for name, c in _NUMBERS.items()]
        batches = self.batches
        source = ("source_id",) if self.numberless or batches else ()
        collective, seqs = pl.col("collective_seq_id"), ("collective_seq_id", "p2p_seq_id") if p2p else ("collective_seq_id",)
        before = 0
        for rows, at in self._rows((*source, *_NUMBERS.values(), *seqs)):
            numbers = rows.select(
                pl.int_range(before, before + pl.len(), dtype=pl.UInt32()).alias(_ROW), at.alias(_WORD), *seqs, *own, *source
            )
            before += rows.height
            word = numbers.get_column(_WORD)
            numbers = numbers.with_columns(self.facts.get_column(_LIFE).gather(word), self.facts.get_column("group").gather(word))
            if numbers.get_column(_LIFE).null_count():
                numbers = numbers.filter(pl.col(_LIFE).is_not_null())
            if not numbers.get_column(_LIFE).is_sorted():
                numbers = numbers.sort(_LIFE, maintain_order=True)
            seq, counted = collective, pl.col("group") * BEYOND + collective
            if p2p:
                one = self.facts.get_column("is_p2p").gather(numbers.get_column(_WORD))
                seq, counted = pl.when(one).then("p2p_seq_id").otherwise(collective), pl.when(~one).then(counted)
            if batches:
                counted = pl.when(~_cut(numbers, self.facts)).then(counted)
            both = (collective.alias("collective"),) if p2p else ()
            yield numbers.select(_ROW, _WORD, pl.col(_LIFE).set_sorted(), seq.alias("seq"), counted.alias("placed"), *_NUMBERS, *both)

    def _own(self, name: str, column: str) -> pl.Expr:
        """What each entry has of its own."""
        if name != "order" or not self.numberless:
            return pl.col(column)
        return pl.when(pl.col("source_id").is_in(self.numberless)).then("time_created_ns").otherwise(column)

    def _rows(self, columns: Sequence[str]) -> Iterator[tuple[pl.DataFrame, pl.Series]]:
        """Each part with these columns of its own, and the places of its rows among the words."""
        yield from self.parts or ((rows, at) for rows, at, _ in self.folded.rows(columns))

    def _gathered(self, rows: pl.Series) -> pl.DataFrame:
        """Entries by the numbers of their rows, which are sorted and all different: ``_ROWS``, ``row`` and ``word``."""
        found = [pl.DataFrame(schema=self.folded.lazy().select(_ROWS).collect_schema()).with_columns(_AS_ROW, _AS_WORD)]
        before = 0
        for part, at in self._rows(_ROWS):
            here = rows.filter(rows.is_between(before, before + part.height, closed="left"))
            if here.len():
                places = here - before
                own = part.select(pl.col(_ROWS).gather(places))
                found.append(own.with_columns(here.alias(_ROW), at.gather(places).alias(_WORD)))
            before += part.height
        return pl.concat(found)

    def _spelled(self, rows: pl.LazyFrame, on: str, *also: str) -> pl.LazyFrame:
        words = self.words.lazy().rename({_AT: _WORD}).drop({_WORD, _KEY} - {on}).drop("source_id", "calls", "placed", "in_batch")
        spelled = rows.join(words, on=on, how="inner", maintain_order="left")
        own = {name: self._own(name, c) for name, c in _OWN.items()}
        # Where nothing is sent from one to one, a query for some positions need not look up the words of all rows.
        seq = pl.col("collective_seq_id")
        own["seq"] = pl.when("is_p2p").then("p2p_seq_id").otherwise(seq) if self.words.get_column("is_p2p").any() else seq
        return spelled.select(*also, *(own.get(c, pl.col(c)).cast(t).alias(c) for c, t in OPERATIONS.items()))


def _cut(numbers: pl.DataFrame, facts: pl.DataFrame) -> pl.Series:
    """Whether an entry belongs to the batch of collectives that the oldest entry of a full ring is part of: its first calls may be lost, and
    what is left of it compares with no other rank's batch. One that is still open is whole, as the ring holds what is open alone."""
    place, ends = [_LIFE, "collective_seq_id"], facts.get_column("ends")
    of_batch, opened = (kind.gather(numbers.get_column(_WORD)) for kind in (ends | facts.get_column("in_batch"), ends & facts["pending"]))
    oldest = (pl.col("order") > 0) & (pl.col("order") == pl.col("order").min().over("source_id"))
    first = numbers.filter(oldest & of_batch).select(place)
    cut = first.join(numbers.filter(opened), on=place, how="anti").unique().with_columns(cut=pl.lit(value=True))
    return numbers.select(place).join(cut, on=place, how="left", maintain_order="left").get_column("cut").fill_null(value=False)


#: Of the calls of a batch, which share a place and stand together, the first; and all that have a place of their own.
_ONE_CALL = ((pl.col("placed") != pl.col("placed").shift(1)) | (pl.col(_LIFE) != pl.col(_LIFE).shift(1))).fill_null(value=True)

_AS_ROW, _AS_WORD = (pl.lit(None, dtype=pl.UInt32()).alias(name) for name in (_ROW, _WORD))


def _counts(words: pl.DataFrame) -> pl.LazyFrame:
    return words.filter("placed").group_by(*_GROUP, "rank", "op", "shape").agg(pl.col("calls").sum()).lazy()


def _facts(words: pl.DataFrame, height: int) -> pl.DataFrame:
    """As ``Recorded.facts``: a row for each of ``height`` words of the table."""
    known = words.select(
        "is_p2p",
        "rank",
        pl.col("done").fill_null(False),
        pl.col("pending").fill_null(False),
        # Of these no entry of their own tells whether they are done.
        batched=pl.col("is_p2p") & pl.col("done").is_null() & pl.col("pending").is_null(),
        batch=pl.col("is_p2p") & (pl.col("op") == _BATCH),
        ends=~pl.col("is_p2p") & (pl.col("op") == _BATCH),
        in_batch="in_batch",
        group=pl.col("group_key").rank("dense").cast(pl.Int64),
        life=pl.struct("source_id", "group_key").rank("dense").cast(pl.UInt32),
        sign=signs_of(words, _counts(words)).cast(pl.UInt32),
    )
    at = words.get_column(_AT)
    bare = [pl.repeat(None, height, dtype=t, eager=True).alias(c) for c, t in known.schema.items()]
    return pl.DataFrame([of.scatter(at, known.get_column(of.name)) for of in bare])


@dataclass(slots=True)
class _Bounds:
    """The lowest and the highest sign that is called at each position of each group, of parts that are added one by one."""

    seen: list[pl.DataFrame] = field(default_factory=list)

    def add(self, placed: pl.DataFrame, signs: pl.Series) -> None:
        sign = pl.col("sign")
        own = placed.select("placed", signs.gather(placed.get_column(_WORD)).alias("sign"))
        self.seen.append(own.group_by("placed").agg(sign.min().alias("low"), sign.max().alias("high")))
        if sum(one.height for one in self.seen[1:]) > _GATHERED:
            self.seen = [self._together()]

    def _together(self) -> pl.DataFrame:
        return pl.concat(self.seen).group_by("placed").agg(pl.col("low").min(), pl.col("high").max())

    def differing(self) -> pl.DataFrame:
        """``placed`` of the collectives that ranks of a group call differently."""
        if not self.seen:
            return pl.DataFrame(schema={"placed": pl.Int64()})
        spans = self._together() if len(self.seen) > 1 else self.seen[0]
        return spans.filter(pl.col("low") != pl.col("high")).select("placed")


def _apart(numbers: pl.DataFrame, differ: pl.DataFrame, facts: pl.DataFrame) -> pl.Series:
    """Rows of those collectives: two ranks of each sort tell that ranks differ there."""
    here = numbers.join(differ, on="placed", how="semi", maintain_order="left")
    here = here.with_columns(facts.get_column("sign").gather(here.get_column(_WORD)))
    here = here.unique(["placed", "sign", _LIFE], keep="first", maintain_order=True)
    return here.group_by("placed", "sign", maintain_order=True).head(2).get_column(_ROW)


def _ends(numbers: pl.DataFrame, placed: pl.DataFrame, facts: pl.DataFrame) -> Iterator[pl.Series]:
    """Rows that tell how far each rank got in each group: the first and the last, also of those that have a position, the last that is done
    and the first that is pending, those with the lowest and the highest position, number and time; and the first row of each sort.
    ``placed``: of the ``numbers`` those that have a position."""
    yield numbers.get_column(_ROW).gather(numbers.get_column(_WORD).arg_unique())
    pending, done = (facts.get_column(c) for c in ("pending", "done"))
    waiting = numbers.filter(pending.gather(numbers.get_column(_WORD)))
    called = placed.with_columns(done=done.gather(placed.get_column(_WORD)), pending=pending.gather(placed.get_column(_WORD)))
    for rows in (numbers, placed, called.filter("done"), called.filter("pending"), waiting):
        yield from _first_and_last(rows)
    row, seq = pl.col(_ROW), pl.col("seq")
    over = numbers.filter(pl.col("completed_ns").is_not_null())
    yield over.group_by(_LIFE).agg(row.get(pl.col("completed_ns").arg_max())).get_column(_ROW)
    # Where entries stand in the order of their numbers and times, those are the ones.
    odd = pl.concat([_disordered(numbers, "order", "created_ns"), _disordered(placed, "seq")]).unique()
    if odd.len():
        own, at = (rows.filter(pl.col(_LIFE).is_in(odd.implode())) for rows in (numbers, called))
        found = [
            at.group_by(_LIFE).agg(row.get(seq.arg_min())),
            at.group_by(_LIFE).agg(row.filter(seq == seq.max()).last()),
            at.filter("done").group_by(_LIFE).agg(row.get(seq.arg_max())),
            at.filter("pending").group_by(_LIFE).agg(row.get(seq.arg_min())),
            *(rows.group_by(_LIFE).agg(row.get(pl.col(c).arg_max())) for rows in (own, at) for c in ("created_ns", "order")),
            waiting.filter(pl.col("created_ns").is_not_null())
            .sort("created_ns", "order", maintain_order=True)
            .group_by(_LIFE)
            .agg(row.first()),
        ]
        yield from (rows.get_column(_ROW) for rows in found)


def _first_and_last(rows: pl.DataFrame) -> Iterator[pl.Series]:
    """The first and the last of each life, whose rows stand together."""
    found = rows.group_by(_LIFE).agg(pl.col(_ROW).first().alias("first"), pl.col(_ROW).last().alias("last"))
    yield from (found.get_column(c).alias(_ROW) for c in ("first", "last"))


def _disordered(rows: pl.DataFrame, *columns: str) -> pl.Series:
    """Lives of which not every row has more in these columns than the one before it."""
    life = rows.get_column(_LIFE)
    before = life == life.shift(1)
    found = [life.clear()]
    for values in rows.select(columns).get_columns():
        odd = before & (values <= values.shift(1))
        if values.null_count() or odd.any():
            found.append(life.filter((odd | values.is_null()).fill_null(False)).unique())
    return pl.concat(found)


def _last_called(numbers: pl.DataFrame, facts: pl.DataFrame) -> pl.Series:
    """The last collectives of each dump."""
    rank, p2p = (facts.get_column(c) for c in ("rank", "is_p2p"))
    called = numbers.select(
        _ROW, "order", rank.gather(numbers.get_column(_WORD)).alias("rank"), p2p.gather(numbers.get_column(_WORD)).alias("p2p")
    )
    called = called.filter(~pl.col("p2p"))
    if not called.get_column(_ROW).is_sorted():
        called = called.sort(_ROW)
    ranks, order = called.get_column("rank"), called.get_column("order")
    if order.null_count() or ((ranks == ranks.shift(1)) & (order < order.shift(1))).any():
        called = called.sort("rank", "order", maintain_order=True)
    return called.group_by("rank").agg(pl.col(_ROW).tail(ENDS)).get_column(_ROW).explode()
