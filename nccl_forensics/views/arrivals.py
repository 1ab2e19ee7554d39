"""Collectives that all ranks of a group that are seen entered, as numbers: when each rank came to which of them.

Millions of entries are laid out by parts. Each has the rows of some ranks, whole, so that what is asked for of a rank is told by one of
them, and what is asked for of a collective is put together from all. Where there are more than ``AT_ONCE``, parts are laid into files, and
for what takes all ranks of a collective at once (a median) their rows are laid into files of stretches of collectives.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from nccl_forensics.views.calls import Calls
from nccl_forensics.words import UNIDENTIFIED

#: Entries that are looked at together.
AT_ONCE = 600_000
#: No recorder counts as far: a group's number and a position in it make one number.
_BEYOND = 1 << 40
#: Rows that wait for their stretch to be written, in times of ``AT_ONCE``.
_WAITING = 4
_OWN = ("row", "word", "life", "placed", "created_ns", "completed_ns")


@dataclass(frozen=True, slots=True)
class Entered:
    """Collectives that have a position and a time, of ranks that are known: ``parts`` gives frames of ``row``, ``word``, ``life``,
    ``placed`` (group and position), ``created_ns`` and ``completed_ns``, each life (a rank in a group) whole and together; ``lives``:
    ``life``, ``group``, ``rank``; ``words``: ``op`` and ``timeout_ms`` by ``word``; ``named`` gives operations by ``row``; ``scratch``:
    where there is much of them."""

    parts: Callable[[], Iterable[pl.DataFrame]]
    lives: pl.DataFrame
    words: pl.DataFrame
    named: Callable[[pl.Series], pl.LazyFrame]
    scratch: Path | None = None


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Rows of the collectives that all ranks entered that are seen in their group, two or more, each of them once.

    A part has ``life``, ``at`` (the number of the collective, from 0), ``row``, ``word``, ``created_ns`` and ``completed_ns``, each life in
    one part only. ``lives``: ``life``, ``group``, ``rank`` and ``members``, how many ranks the group has. ``sizes``: how many rows each
    collective has.
    """

    lives: pl.DataFrame
    sizes: pl.Series
    named: Callable[[pl.Series], pl.LazyFrame]
    _parts: list[pl.DataFrame | Path]
    _number: pl.Series
    _folder: Path

    def parts(self) -> Iterator[tuple[int, pl.DataFrame]]:
        """Each part with its number."""
        for at, part in enumerate(self._parts):
            yield at, self.counting(pl.read_ipc(part)) if isinstance(part, Path) else part

    def keep(self, at: int, rows: pl.DataFrame) -> None:
        """Keep a part with more columns, where it is kept in memory."""
        if not isinstance(self._parts[at], Path):
            self._parts[at] = rows

    def stretches(self) -> Iterator[pl.DataFrame]:
        """``at``, ``created_ns`` and ``completed_ns`` of all parts, each collective whole in one frame."""
        if len(self._parts) == 1:
            yield from (rows for _, rows in self.parts())
            return
        turns = (self.sizes.cast(pl.Int64).cum_sum() // AT_ONCE).cast(pl.UInt32).alias("turn")
        laid: dict[object, list[Path]] = {}
        waiting: dict[object, list[pl.DataFrame]] = {}
        held = 0
        for _, part in self.parts():
            rows = part.select("at", "created_ns", "completed_ns", turns.gather(part.get_column("at")))
            for (turn,), own in rows.partition_by("turn", as_dict=True, include_key=False).items():
                waiting.setdefault(turn, []).append(own)
            held += part.height
            if held > _WAITING * AT_ONCE:
                for turn, frames in waiting.items():
                    file = self._folder / f"turn.{turn}.{len(laid.setdefault(turn, []))}.arrow"
                    pl.concat(frames).write_ipc(file)
                    laid[turn].append(file)
                waiting, held = {}, 0
        for turn in sorted({*laid, *waiting}, key=str):
            files = laid.pop(turn, [])
            yield pl.concat([*(pl.read_ipc(file) for file in files), *waiting.pop(turn, [])])
            for file in files:
                file.unlink()

    def by_collective(self, values: pl.DataFrame, column: str) -> pl.Series:
        """A column of rows with ``at``, laid out so that the value of a collective stands at its number."""
        return _laid_out(self.sizes.len(), values.get_column("at"), values.get_column(column))

    def by_life(self, values: pl.DataFrame, column: str) -> pl.Series:
        """The same of rows with ``life``."""
        return _laid_out(_length(self.lives), values.get_column("life"), values.get_column(column))

    def counting(self, part: pl.DataFrame) -> pl.DataFrame:
        """Of a part the rows of those collectives, under their numbers."""
        numbered = part.with_columns(self._number.gather(part.get_column("at")).alias("at"))
        return _together(numbered.filter(pl.col("at").is_not_null()))


def _together(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows of which those of a life are together."""
    ordered = rows if rows.get_column("life").is_sorted() else rows.sort("life", maintain_order=True)
    return ordered.with_columns(pl.col("life").set_sorted())


def _laid_out(length: int, places: pl.Series, values: pl.Series) -> pl.Series:
    return pl.repeat(None, length, dtype=values.dtype, eager=True).scatter(places, values).alias(values.name)


@contextmanager
def arrivals(entered: Entered) -> Iterator[Arrivals]:
    """Those among collectives; files that are needed are there as long as the context."""
    held: list[pl.DataFrame] = []
    shortest = _Shortest(entered.lives)
    total = 0
    for part in entered.parts():
        shortest.add(part)
        total += part.height
        held = [*held, part] if total <= AT_ONCE else []
    lives = shortest.lives()
    # Collectives that all have entered are among those that any one of them has.
    positions = shortest.placed(lives).unique().sort().to_frame().with_row_index("at")
    numbered = _numbering(positions, entered.lives)
    with tempfile.TemporaryDirectory(prefix="arrivals.", dir=entered.scratch, ignore_cleanup_errors=True) as folder:
        parts: list[pl.DataFrame | Path] = []
        sizes = pl.zeros(positions.height, dtype=pl.UInt32, eager=True)
        twice: list[pl.Series] = []
        for part in [pl.concat(held)] if held else entered.parts():
            rows = numbered(part)
            one = rows.group_by("at").agg(pl.len())
            sizes = sizes.scatter(one.get_column("at"), sizes.gather(one.get_column("at")) + one.get_column("len"))
            life, at = rows.get_column("life"), rows.get_column("at")
            if ((life == life.shift(1)) & (at <= at.shift(1))).any():
                twice.append(rows.filter(pl.struct("life", "at").is_duplicated()).get_column("at").unique())
            if held or entered.scratch is None:
                parts.append(rows)
                continue
            file = Path(folder) / f"{len(parts)}.arrow"
            rows.write_ipc(file)
            parts.append(file)
        groups = lives.unique("group").select("members", group=pl.col("group").cast(pl.Int64))
        everyone = positions.select("placed", group=pl.col("placed") // _BEYOND).join(groups, on="group", how="left", maintain_order="left")
        whole = sizes == everyone.get_column("members")
        for again in twice:
            whole = whole.scatter(again, False)
        place = (whole.cast(pl.UInt32).cum_sum() - 1).cast(pl.UInt32)
        number = pl.select(pl.when(whole).then(place)).to_series()
        made = Arrivals(lives.drop("rows"), sizes.filter(whole), entered.named, parts, number, Path(folder))
        for at_part, known in enumerate(parts):
            if not isinstance(known, Path):
                made.keep(at_part, made.counting(known))
        yield made


class _Shortest:
    """Of each group the life with the fewest rows, of parts that are added one by one."""

    def __init__(self, lives: pl.DataFrame) -> None:
        self._group = _laid_out(_length(lives), lives.get_column("life"), lives.get_column("group"))
        self._known = lives
        self._counted = [pl.DataFrame(schema={"life": pl.UInt32(), "rows": pl.UInt32()})]
        self._placed = [pl.DataFrame(schema={"life": pl.UInt32(), "placed": pl.Int64()})]

    def add(self, part: pl.DataFrame) -> None:
        own = part.get_column("life").rle().struct.unnest().select(life="value", rows="len")
        self._counted.append(own)
        ends = own.get_column("rows").cum_sum().cast(pl.Int64)
        few = own.with_columns(self._group.gather(own.get_column("life")).alias("group"), end=ends)
        few = few.sort("rows", "life").unique("group", keep="first")
        rows = few.select(pl.int_ranges(pl.col("end") - pl.col("rows"), "end").explode()).to_series()
        self._placed.append(part.select(pl.col("life", "placed").gather(rows)))

    def lives(self) -> pl.DataFrame:
        """The lives of groups that have several, with ``rows`` and ``members``."""
        lives = self._known.join(pl.concat(self._counted), on="life", how="inner").with_columns(members=pl.len().over("group"))
        return lives.filter(pl.col("members") > 1)

    def placed(self, lives: pl.DataFrame) -> pl.Series:
        """The positions of the shortest of these."""
        shortest = lives.sort("rows", "life").unique("group", keep="first")
        return pl.concat(self._placed).join(shortest, on="life", how="semi").get_column("placed")


def _length(lives: pl.DataFrame) -> int:
    """Of what is laid out by life."""
    return int(str(lives.get_column("life").max() or 0)) + 1


def _numbering(positions: pl.DataFrame, lives: pl.DataFrame) -> Callable[[pl.DataFrame], pl.DataFrame]:
    """Gives of a part the rows that are of one of the ``positions``, with its number ``at``."""
    columns = ("life", "at", "row", "word", "created_ns", "completed_ns")
    spans = positions.group_by(group=pl.col("placed") // _BEYOND).agg(
        pl.col("at").min().cast(pl.Int64), low=pl.col("placed").min(), high=pl.col("placed").max(), n=pl.len()
    )
    if (spans.get_column("high") - spans.get_column("low") + 1 != spans.get_column("n")).any():
        return lambda part: part.join(positions, on="placed", how="inner", maintain_order="left").select(columns)
    # Where the positions of each group follow each other, as they nearly always do, their numbers are reckoned.
    own = lives.select("life", group=pl.col("group").cast(pl.Int64)).join(spans, on="group", how="left", maintain_order="left")
    own = own.with_columns(base=pl.col("at") - pl.col("low"), last=pl.col("at") + pl.col("n") - 1)
    base, first, last = (_laid_out(_length(lives), own.get_column("life"), own.get_column(c)) for c in ("base", "at", "last"))

    def reckoned(part: pl.DataFrame) -> pl.DataFrame:
        life = part.get_column("life")
        at = part.get_column("placed") + base.gather(life)
        known = part.with_columns(at.cast(pl.UInt32, strict=False).alias("at"))
        within = (at >= first.gather(life)) & (at <= last.gather(life))
        return (known if within.all(ignore_nulls=False) else known.filter(within)).select(columns)

    return reckoned


def entered(operations: pl.LazyFrame | Calls) -> Entered:
    """Those of operations of recorders."""
    return _of_numbers(operations) if isinstance(operations, Calls) and operations.recorded is not None else _of_rows(operations)


def _of_numbers(operations: Calls) -> Entered:
    """Of operations that are kept as numbers."""
    recorded = operations.recorded
    assert recorded is not None
    facts = recorded.facts.filter(pl.col("life").is_not_null() & (pl.col("rank") < UNIDENTIFIED))
    lives = facts.select("life", "group", "rank").unique("life", keep="first", maintain_order=True)
    strangers = recorded.facts.get_column("rank").max()
    known = lives.get_column("life")

    def parts() -> Iterator[pl.DataFrame]:
        wanted = pl.col("placed").is_not_null() & pl.col("created_ns").is_not_null() & pl.col("seq").is_between(0, _BEYOND - 1)
        if int(str(strangers or 0)) >= UNIDENTIFIED:
            wanted &= pl.col("life").is_in(known.implode())
        for numbers in recorded.numbers():
            yield numbers.filter(wanted).select(_OWN)

    words = recorded.words.select("op", "timeout_ms", word="at")
    return Entered(parts, lives, words, recorded.named, recorded.scratch)


def _of_rows(operations: pl.LazyFrame | Calls) -> Entered:
    """Of operations that are told one by one."""
    every = operations.every if isinstance(operations, Calls) else operations
    ops = every.filter(
        (pl.col("domain") == "fr")
        & ~pl.col("is_p2p")
        & pl.col("created_ns").is_not_null()
        & (pl.col("rank") < UNIDENTIFIED)
        & pl.col("seq").is_between(0, _BEYOND - 1)
    ).with_row_index("row")
    told = ops.select(
        *("row", "rank", "seq", "op", "timeout_ms", "created_ns", "completed_ns"), group=pl.col("group_key").rank("dense").cast(pl.Int64)
    ).with_columns(
        word=pl.struct("op", "timeout_ms").rank("dense").cast(pl.UInt32),
        life=pl.struct("group", "rank").rank("dense").cast(pl.UInt32),
        placed=pl.col("group") * _BEYOND + pl.col("seq"),
    )
    numbers = told.sort("life", "placed", maintain_order=True).collect()
    words = numbers.select("op", "timeout_ms", "word").unique("word", keep="first", maintain_order=True)
    lives = numbers.select("life", "group", "rank").unique("life", keep="first", maintain_order=True)

    def named(rows: pl.Series) -> pl.LazyFrame:
        return ops.filter(pl.col("row").is_in(rows.unique().implode()))

    return Entered(lambda: [numbers.select(_OWN)], lives, words, named)


__all__ = ["AT_ONCE", "Arrivals", "Entered", "arrivals", "entered"]
