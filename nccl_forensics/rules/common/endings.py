"""How processes ended, as several rules ask it of the ``endings`` view."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from nccl_forensics.evidence import words_of_exception
from nccl_forensics.frames import values_in
from nccl_forensics.views.deaths import told_at
from nccl_forensics.views.failures import BADLY, EXCEPTIONS


def raised_at(ending: Mapping[str, object]) -> dict[str, object]:
    """For citing, where a row of ``endings`` has its message from: of an exception the line of its traceback that tells it."""
    return told_at(ending) | ({"holds": words_of_exception(ending)} if ending["exc_source_id"] is not None else {})


def signs_beside_endings(failures: pl.LazyFrame | None) -> set[str]:
    """Signs of failure other than that processes ended or raised."""
    return values_in(failures, "sign") - {BADLY, EXCEPTIONS}


def nobody_missed(mine: pl.DataFrame, every: pl.DataFrame, heard: int, failures: pl.LazyFrame | None) -> bool:
    """Whether a traceback in the processes' own files, which they may have caught, is all that tells of any end (``mine`` of ``every``
    ending), and ranks that were ``heard`` show no failure: whom others wait for is missed by them."""
    caught = mine["kind"].is_in(["exception", "out-of-memory"]).all() and not mine["over"].fill_null(value=True).all()
    return caught and mine.height == every.height and mine["rank"].n_unique() < heard and not signs_beside_endings(failures)


def own_signal() -> pl.Expr:
    """The ``signal`` of rows of ``endings``, without those that a launcher sent to a process that had raised an exception and was on its
    way out."""
    return pl.when(pl.col("kind") != "exception").then("signal").alias("signal")


#: Crashes that nobody asked for.
CRASHES = ("segfault", "bus-error", "fpe", "illegal", "abort")


def most_crashed_alike(endings: pl.DataFrame) -> bool:
    """Whether more than half of three ranks or more crashed by one signal, and no other ended of its own: a launcher stops those that are
    about to crash as soon as it sees the first."""
    own = endings.filter("own")
    alike = own.select("kind", own_signal()).n_unique() == 1 and own["kind"].is_in(list(CRASHES)).all()
    return alike and 2 * own.height > endings.height > 2


def ranks_known(endings: pl.DataFrame, launches: pl.LazyFrame | None, *others: pl.LazyFrame | None) -> int:
    """How many ranks the job is known to have: as the launcher says of its last start, or those that ``endings`` and ``others`` tell of, those
    of whose end nothing is said among them."""
    told = [frame.select("rank") for frame in (endings.lazy(), *others) if frame is not None]
    known = int(pl.concat(told, how="vertical_relaxed").select(pl.col("rank").drop_nulls().n_unique()).collect().item())
    last = launches.sort("source_id", "line_no").select("nranks").tail(1).collect() if launches is not None else pl.DataFrame()
    return max(endings.height, known, *last.to_series().drop_nulls().to_list() if last.height else ())
