"""Exceptions, with the rank of the job that raised each."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from nccl_forensics.facts.signatures import SURVIVED
from nccl_forensics.frames import values_in
from nccl_forensics.views import view
from nccl_forensics.views.local_ranks import LocalRanks
from nccl_forensics.views.pids import Pids
from nccl_forensics.views.tasks import rank_of_task

#: What tells the process that wrote a line.
_SPEAKER = ("source_id", "hint_rank", "hint_scope", "hint_host")
_WRITER = (*_SPEAKER, "pid")
#: What Python raises where a module is missing, and a stack on which nothing but the loading of modules stands.
_IMPORTS = ("ImportError", "ModuleNotFoundError")
_LOADING = r"^(?:(?:<module>|_?[a-z_]+ \(<frozen importlib)[^\n]*(?:\n|$))+$"


def lived_on() -> pl.Expr:
    """Of rows of ``exceptions``: whether the process went on after it."""
    return pl.col("kind").fill_null("").is_in(list(SURVIVED))


@view(rows="exceptions")
def raised(
    exceptions: pl.LazyFrame,
    processes: pl.LazyFrame | None,
    source_ranks: pl.LazyFrame | None,
    source_hosts: pl.LazyFrame | None,
    comms: pl.LazyFrame | None,
    worker_exits: pl.LazyFrame | None,
    training_steps: pl.LazyFrame | None = None,
    training_ends: pl.LazyFrame | None = None,
) -> pl.LazyFrame:
    """``exceptions`` with the kind ``survived`` for those that their ranks were seen to get over, and with ``rank`` filled in where the text itself does not state it: by what a launcher set before the line (a rank; a
    local rank, of its host where it tells one; a task of the scheduler, which is a rank where NCCL's lines or the ends of tasks say so), by
    the pid, and at last by the source. Null where none of these tells."""
    rows = exceptions.sort("source_id", "line_no").collect()
    unstated = rows.filter(pl.col("rank").is_null()).select(_WRITER).unique(maintain_order=True)
    if not unstated.height:
        return _got_over(rows, comms, training_steps, training_ends).lazy()
    of_source: dict[int, int] = {}
    if source_ranks is not None:
        of_source = dict(source_ranks.filter(pl.col("rank").is_not_null()).select("source_id", "rank").collect().iter_rows())
        # A launcher's own output holds words of several processes, though one alone may bear its rank.
        launchers = _launchers(worker_exits)
        of_source = {source: rank for source, rank in of_source.items() if source not in launchers}
    host_of: dict[int, str] = {}
    if source_hosts is not None:
        host_of = dict(source_hosts.select("source_id", "host").collect().iter_rows())
    by_pid, local_ranks, of_task = Pids(processes), LocalRanks(processes, worker_exits, set(of_source.values())), _of_task(comms)
    ended = worker_exits.collect() if worker_exits is not None else None
    by_end = rank_of_task(ended, processes) if ended is not None else None

    def rank_of(writer: Mapping[str, object]) -> int | None:
        source, scope, hint, host = (writer[name] for name in ("source_id", "hint_scope", "hint_rank", "hint_host"))
        number = int(str(hint)) if hint is not None else None
        if scope == "global" and number is not None:
            return number
        rank = by_pid.rank(writer["pid"], host)
        if rank is None and scope == "local":
            rank = local_ranks.rank(number, str(host) if host is not None else host_of.get(int(str(source))))
        if rank is None and scope == "task" and number is not None:
            rank = of_task.get(number)
            if rank is None and by_end is not None:
                rank = by_end(number, str(host) if host is not None else None)
        return rank if rank is not None else of_source.get(int(str(source)))

    told = unstated.with_columns(pl.Series("told", [rank_of(w) for w in unstated.iter_rows(named=True)], dtype=pl.Int32))
    with_told = rows.join(told, on=_WRITER, how="left", nulls_equal=True, maintain_order="left")
    of_ranks = with_told.with_columns(rank=pl.coalesce("rank", "told")).drop("told")
    return _got_over(of_ranks, comms, training_steps, training_ends).lazy()


def _got_over(rows: pl.DataFrame, comms: pl.LazyFrame | None, steps: pl.LazyFrame | None, ends: pl.LazyFrame | None) -> pl.DataFrame:
    """``rows`` with the kind ``survived`` for what a rank printed, without torch's mark, before it came to its first communicator or told
    that its training is over; and for a module that was missing while the program was loaded, where its rank came to a communicator, or
    all ranks did, or the job came to train, as it does with all. A process's standard output may come late, behind the traceback that ended it: steps
    alone prove nothing."""
    unmarked = (pl.col("kind") == "python") & ~pl.col("marked").fill_null(value=False)
    loading = (pl.col("type").is_in(_IMPORTS) & pl.col("frames").str.contains(_LOADING)).fill_null(value=False)
    rows = rows.with_row_index("row")
    asked = rows.filter(unmarked & (loading | pl.col("rank").is_not_null())).with_columns(loading=loading).lazy()
    over: set[int] = set()
    if comms is not None:
        world = comms.filter(pl.col("rank").is_not_null() & (pl.col("nranks") == pl.col("nranks").max())).sort("source_id", "line_no")
        begun = world.group_by("rank").agg(
            pl.col("source_id").first().alias("in"),
            pl.col("line_no").first().alias("at"),
            pl.col("nranks").first(),
            lives=pl.struct("host", "pid").n_unique(),
        )
        whole = begun.select((pl.len() == pl.col("nranks").max()) & (pl.col("lives") == 1).all()).collect()
        if whole.item() is True:  # all came to the job's communicator, whoever it was
            over.update(_rows(asked.filter("loading")))
        met = asked.join(begun.filter(pl.col("lives") == 1), on="rank")
        over.update(_rows(met.filter(pl.col("loading") | ((pl.col("in") == pl.col("source_id")) & _behind()))))
    if ends is not None:
        over.update(_rows(asked.join(ends.select(*_SPEAKER, at="line_no"), on=_SPEAKER, nulls_equal=True).filter(_behind())))
    if steps is not None:
        last = steps.group_by("source_id").agg(at=pl.col("line_no").max())
        over.update(_rows(asked.filter("loading").join(last, on="source_id").filter(_behind())))
    kind = pl.when(pl.col("row").is_in(sorted(over))).then(pl.lit("survived")).otherwise("kind")
    return rows.with_columns(kind=kind).drop("row")


def _behind() -> pl.Expr:
    return pl.col("at") > pl.col("line_no")


def _rows(frame: pl.LazyFrame) -> list[int]:
    return frame.select("row").collect()["row"].to_list()


def _launchers(worker_exits: pl.LazyFrame | None) -> set[int]:
    """Sources that tell how several processes ended."""
    if worker_exits is None:
        return set()
    told = worker_exits.group_by("source_id").agg(pl.col("pid").drop_nulls().n_unique().alias("n")).filter(pl.col("n") > 1)
    return values_in(told, "source_id")


def _of_task(comms: pl.LazyFrame | None) -> dict[int, int]:
    """The rank whose NCCL lines bear the number of a scheduler's task, where one process alone does: a task may be a launcher with
    several."""
    if comms is None:
        return {}
    told = comms.filter((pl.col("hint_scope") == "task") & pl.col("rank").is_not_null() & (pl.col("nranks") == pl.col("nranks").max()))
    ranks = told.group_by("hint_rank").agg(pl.col("rank").first(), n=pl.struct("host", "pid", "rank").n_unique()).filter(pl.col("n") == 1)
    return dict(ranks.select("hint_rank", "rank").collect().iter_rows())
