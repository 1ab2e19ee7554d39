"""How long operations had been in flight when somebody looked, beside how long they took before."""

from __future__ import annotations

import polars as pl

from nccl_forensics.evidence import PLACE
from nccl_forensics.folding import FoldedTable
from nccl_forensics.frames import typed
from nccl_forensics.tables import TABLES
from nccl_forensics.views import view
from nccl_forensics.views.calls import Calls, Entries, calls_of
from nccl_forensics.views.columns import read_at

LOOKS = typed(
    "rank:i32 looked_ns:i64 since_ns:i64 age_ms:f64 longest_ms:f64 finished:u32 timeout_ms:i64",
    read_at(),
    "look_source_id:u32 look_line_no:u32",
)
#: How long operations are in flight at least, how many times as long as any that ended, and of how many this is known.
_LONG_MS, _LONGER, _USED = 60_000.0, 3.0, 8
#: Of ranks that wait in one operation, the last has enqueued it by this share of its timeout.
_NEARLY = 0.9
_TIMES = {"rank": pl.Int32(), "looked_ns": pl.Int64(), "source_id": pl.UInt32(), "line_no": pl.UInt32()}
_SPANS = {"rank": pl.Int32(), "longest_ns": pl.Int64(), "finished": pl.UInt32(), "since_ns": pl.Int64(), "row": pl.UInt32()}
_NOTICED = ("time_started_ns", "time_completed_ns")


def in_flight_for_longer() -> pl.Expr:
    """Of rows of ``looks``: whether what was open had been so for far longer than any operation before: of its own rank, or, where its ring
    holds few that ended and another's enough, of any rank; or for as long as it may be, so that its timeout asked for the look, whatever
    the ring holds."""
    age, longest, finished = pl.col("age_ms"), pl.col("longest_ms"), pl.col("finished")
    own = (age >= _LONGER * longest) & (finished >= _USED)
    of_any = (age >= _LONGER * longest.max()) & (finished.max() >= _USED)
    return ((age >= _LONG_MS) & (own.fill_null(value=False) | of_any)) | timed_out()


def timed_out() -> pl.Expr:
    """Of rows of ``looks``: whether what was open had been so for its whole timeout, or nearly: whoever enqueued it later is asked when the
    first gives up."""
    timeout = pl.col("timeout_ms")
    return ((timeout > 0) & (pl.col("age_ms") >= _NEARLY * timeout)).fill_null(value=False)


def standing(looks: pl.LazyFrame) -> pl.LazyFrame:
    """The rows of what is in flight for far longer than any operation before, if that is so on half of the ranks that were looked at or
    more."""
    far = in_flight_for_longer()
    return looks.filter(far & (2 * far.sum() >= pl.len()))


@view(rows="ranks")
def looks(
    collected: pl.LazyFrame | None,
    operations: pl.LazyFrame | Calls,
    fr_entries: pl.LazyFrame | FoldedTable | None = None,
    dumps: pl.LazyFrame | None = None,
) -> pl.LazyFrame:
    """Per rank whose recorder was asked for a dump at a known time (``looked_ns``, epoch, by the clock of its host, the latest):
    ``age_ms``, how long its oldest unfinished operation had been enqueued then; ``longest_ms``, how long any of its ``finished`` operations
    took from there to its end; ``timeout_ms``: the timeout in force for it. Cites the unfinished operation and, as ``look_source_id`` and
    ``look_line_no``, what says when it was looked at; ranks without one are left out.

    A recorder tells the time itself where it finds, while it writes, that an operation has begun, or is over that nobody has taken off the
    list yet.
    """
    parts = [pl.LazyFrame(schema=_TIMES)]
    if collected is not None:
        parts.append(collected.select("rank", "source_id", "line_no", looked_ns="at_ns"))
    if fr_entries is not None and dumps is not None:
        parts.append(_noticed(fr_entries, dumps))
    asked = pl.concat([part.select([pl.col(c).cast(t) for c, t in _TIMES.items()]) for part in parts]).drop_nulls(("rank", "looked_ns"))
    latest = asked.sort("looked_ns", "source_id", "line_no").unique("rank", keep="last", maintain_order=True)
    times = latest.rename({"source_id": "look_source_id", "line_no": "look_line_no"}).collect()
    if not times.height:
        return pl.LazyFrame(schema=LOOKS)
    calls = calls_of(operations)
    spans = _told(calls.every) if calls.recorded is None else _numbered(calls.recorded)
    age = (pl.col("looked_ns") - pl.col("since_ns")) / 1e6
    found = spans.join(times, on="rank").with_columns(age_ms=age, longest_ms=pl.col("longest_ns") / 1e6)
    return found.sort("rank").select([pl.col(c).cast(t) for c, t in LOOKS.items()]).lazy()


def _noticed(fr_entries: pl.LazyFrame | FoldedTable, dumps: pl.LazyFrame) -> pl.LazyFrame:
    """The latest time at which each rank's recorder found something while it wrote. Whoever takes an operation of NCCL off the list notes
    its begin and its end (PyTorch 2.3 to 2.13 ``FlightRecorder::retire_id``), so that what is on it has none, or that of the dump.
    Recorders of other libraries may note a begin when it comes (``markStart``)."""
    folded = fr_entries if isinstance(fr_entries, FoldedTable) else FoldedTable.of(fr_entries, TABLES["fr_entries"].own)
    listed = folded.words.select(~pl.col("retired") & (pl.col("backend") == "nccl")).to_series().fill_null(False)
    parts = [pl.DataFrame(schema={"source_id": pl.UInt32(), "looked_ns": pl.Int64()})]
    for rows, at, _ in folded.rows(_NOTICED):
        found = rows.filter(listed.gather(at)).group_by("source_id").agg(looked_ns=pl.max_horizontal(pl.col(_NOTICED).max()))
        parts.append(found.select([pl.col(c).cast(t) for c, t in parts[0].schema.items()]))
    chosen = dumps.filter(pl.col("use") == "chosen").select("rank", "source_id")
    return chosen.join(pl.concat(parts).lazy(), on="source_id").with_columns(line_no=pl.lit(None, dtype=pl.UInt32()))


def ordinary(looks: pl.LazyFrame, ranks: int) -> bool:
    """Whether half of so many ranks were looked at and what was open on them had been so for no longer than operations of the job take, or
    for less than a minute and than any timeout in force, which then did not ask for the look: a checkpoint or an evaluation takes as long in
    a job that goes on."""
    over = timed_out().any().alias("over")
    facts = pl.len(), pl.col("age_ms", "longest_ms").max(), pl.col("finished").sum(), pl.col("timeout_ms").min(), over
    looked_at, age, longest, finished, timeout, over_time = looks.select(facts).collect().row(0)
    if age is None or 2 * looked_at < ranks or over_time:
        return False
    usual = finished >= _USED and longest is not None and age <= _LONGER * longest
    return bool(usual or age < min(_LONG_MS, timeout or 0))


def _took() -> pl.Expr:
    return pl.when("done").then(pl.col("completed_ns") - pl.col("created_ns"))


def _told(operations: pl.LazyFrame) -> pl.DataFrame:
    known = operations.filter((pl.col("domain") == "fr") & pl.col("rank").is_not_null() & pl.col("created_ns").is_not_null())
    open_one = known.filter("pending").sort("created_ns", "order").unique("rank", keep="first", maintain_order=True)
    took = known.group_by("rank").agg(longest_ns=_took().max(), finished=_took().count())
    return open_one.select("rank", "timeout_ms", *PLACE, since_ns="created_ns").join(took, on="rank").collect()


def _numbered(recorded: Entries) -> pl.DataFrame:
    parts = [pl.DataFrame(schema=_SPANS)]
    for numbers in recorded.numbers():
        word = numbers.get_column("word")
        facts = [recorded.facts.get_column(c).gather(word).alias(c) for c in ("rank", "done", "pending")]
        rows = numbers.with_columns(facts).filter(pl.col("rank").is_not_null() & pl.col("created_ns").is_not_null())
        created = pl.col("created_ns").filter(pl.col("pending"))
        found = rows.group_by("rank").agg(
            longest_ns=_took().max(),
            finished=_took().count(),
            since_ns=created.min(),
            row=pl.col("row").filter(pl.col("pending")).get(created.arg_min()),
        )
        parts.append(found.select([pl.col(c).cast(t) for c, t in _SPANS.items()]))
    whole = pl.concat(parts).sort("rank", "since_ns", nulls_last=True)
    spans = whole.group_by("rank", maintain_order=True).agg(
        pl.col("longest_ns").max(), pl.col("finished").sum(), pl.col("since_ns", "row").first()
    )
    open_ones = spans.filter(pl.col("row").is_not_null())
    return open_ones.join(recorded.named(open_ones.get_column("row")).select("row", "timeout_ms", *PLACE).collect(), on="row")
