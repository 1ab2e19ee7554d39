"""What every stage of the search for those who hold the others up looks at, and what of it has to be asked of several sources first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from nccl_forensics.frames import has_rows, ranks_in
from nccl_forensics.stacks.places import PLAIN, WAITING, WAITING_ON_GPU
from nccl_forensics.views.calls import Calls
from nccl_forensics.views.deaths import ended_themselves
from nccl_forensics.views.gone_peers import FOUND_GONE
from nccl_forensics.views.last_calls import by_stack
from nccl_forensics.views.looks import standing
from nccl_forensics.views.motion import advances

#: Ranks that are singled out, each with how: ``kind``, ``seen_by``, ``waiters`` and what of the operation waited in is known.
Found = dict[int, dict[str, object]]


@dataclass(frozen=True)
class Scene:
    """What every stage looks at.

    ``stacks``: the last call of each rank that tells where its time went; ``absent``: who stands before what they never entered;
    ``timed_out``: something gave up waiting, or has waited as long; ``at_a_moment``: recorders were asked at a moment that nothing ties to
    a standstill; ``moved_between``: ranks whose recorders were written before their peers', as the job moved; ``ended``: the training loop
    said that it was done; ``parted``: the calls of some group diverge; ``dead``: ranks that ended by themselves; ``waiting_share``: of
    traced ranks, the share of the traced time in which nothing but communication was under way.
    """

    stacks: dict[int, dict[str, object]]
    calls: Calls | None
    progress: pl.LazyFrame | None
    absent: list[pl.LazyFrame]
    groups: pl.LazyFrame | None
    divergences: pl.LazyFrame | None
    timed_out: bool
    at_a_moment: bool
    moved_between: frozenset[int]
    ended: bool
    parted: bool
    dead: frozenset[int]
    waiting_share: Mapping[int, float]

    def on_host(self, rank: int) -> bool:
        """Whether its stack stands where nobody is waited for."""
        stack = self.stacks.get(rank)
        return stack is not None and stack["witness"] == "stack" and stack["place"] not in (*WAITING, "unknown")

    def known(self) -> set[int]:
        """Ranks of which some progress is known."""
        return ranks_in(self.progress)

    def job(self) -> set[int]:
        """Members of all groups."""
        members = self.groups.select("members").collect()["members"].to_list() if self.groups is not None else []
        return {r for ranks in members for r in ranks or ()}

    def of_one_group(self) -> bool:
        """Whether recorders know of one group alone: nobody waits across groups."""
        told = self.groups.filter(pl.col("domain") == "fr").select(pl.len()).collect().item() if self.groups is not None else 0
        return bool(told == 1)


def telling(last_calls: pl.LazyFrame | None, gave_up: set[int]) -> dict[int, dict[str, object]]:
    """The last call of each rank that tells where its time went: where an exception was raised does not, except inside a call that waits;
    nor does the end of a program that ``gave_up``."""
    rows = last_calls.collect().iter_rows(named=True) if last_calls is not None else ()
    told = {row["rank"]: row for row in rows if row["witness"] == "stack" or row["place"] in WAITING}
    return {rank: row for rank, row in told.items() if row["place"] != "ended" or rank not in gave_up}


#: How a rank is found that did not come to what others wait in, wherever it stands.
_CAME_NOT = ("behind", "unseen")
#: Where a thread stands that waits for a GPU in a call that leaves no frame of Python.
_NO_FRAME = ("compute", "user-code")


def left_over(
    found: Found, stacks: Mapping[int, object], thread_states: pl.LazyFrame | None, job: set[int]
) -> dict[int, dict[str, object]]:
    """The stack of the one rank that all others wait for, where nothing tells the ranks of stacks: there is one of each rank of the job, and
    all but one wait for others or for their GPU. A wait for it may leave no frame, so that one that is known to stand on its host is told
    from those in functions of the program, too."""
    if thread_states is None or len(found) != 1:
        return {}
    [(rank, row)] = found.items()
    mains = thread_states.filter(pl.col("role").is_null()).collect()
    waits = mains["place"].is_in([*WAITING, *WAITING_ON_GPU])
    apart = mains.filter(~waits & (mains["place"] != "unknown"))
    known = apart.filter(~pl.col("place").is_in(PLAIN))
    apart, others = (known, waits | mains["place"].is_in(_NO_FRAME)) if known.height else (apart, waits)
    if rank in stacks or row["kind"] not in _CAME_NOT or mains.height != len(job) or apart.height != 1 or others.sum() != mains.height - 1:
        return {}
    own = apart.row(0, named=True)
    if own["rank"] is not None:
        return {}
    where = "a wait" if bool(waits.sum() == mains.height - 1) else "a wait or a function of the program"
    reason = f"{own['reason']}; the file tells no rank, and no other of {mains.height} stacks is elsewhere than in {where}"
    return {rank: by_stack(own | {"rank": rank, "reason": reason})}


def gave_up_waiting(rank_reports: pl.LazyFrame | None, watchdog: pl.LazyFrame | None, endings: pl.LazyFrame | None) -> bool:
    """Whether something gave up waiting: a barrier, a watchdog, a rank."""
    told = (
        (rank_reports, ("barrier-missing",)),
        (watchdog, ("timeout", "failure", "heartbeat-stuck")),
        (endings, ("victim",)),
    )
    return any(has_rows(table, pl.col("kind").is_in(kinds)) for table, kinds in told)


def held_for_long(looks: pl.LazyFrame | None, motion: pl.LazyFrame | None) -> bool:
    """Whether recorders tell that what is open has been so for far longer than anything before: as long a wait as one that is given up."""
    return looks is not None and not advances(motion) and has_rows(standing(looks))


def waiting_shares(trace_measures: pl.LazyFrame | None) -> dict[int, float]:
    """Of each rank with a trace, the share of its time in which it communicated or waited, and computed nothing."""
    if trace_measures is None:
        return {}
    whole = trace_measures.filter((pl.col("window") == "whole") & pl.col("rank").is_not_null() & (pl.col("span_ms") > 0))
    told = whole.group_by("rank").agg(pl.col("exposed_ms").sum() / pl.col("span_ms").sum()).drop_nulls().collect()
    return dict(told.iter_rows())


def at_a_moment(dumps: pl.LazyFrame | None, worker_exits: pl.LazyFrame | None, training_steps: pl.LazyFrame | None) -> bool:
    """Whether somebody asked for the recorders, as a watchdog that times out writes pickles and no JSON (PyTorch 2.3 to 2.13), or a
    scheduler ended the job, or its own output is there, in which loops tell their steps: how long the ranks had stood by then, if at all,
    is not known where nothing timed out."""
    if has_rows(training_steps):
        return True
    if has_rows(worker_exits, pl.col("kind") == "scheduler"):
        return True
    written = dumps.filter(pl.col("use") == "chosen").select("encoding").collect()["encoding"] if dumps is not None else pl.Series([""])
    return bool((written == "json").all()) and written.len() > 0


def gone(endings: pl.LazyFrame | None, gone_peers: pl.LazyFrame | None) -> frozenset[int]:
    """Ranks that ended by themselves, or that their peers found to have gone: their logs end for that, whatever they had yet to call."""
    left = gone_peers.filter(pl.col("how").is_in(FOUND_GONE)).collect()["rank"].to_list() if gone_peers is not None else []
    return frozenset(ended_themselves(endings)) | frozenset(left)
