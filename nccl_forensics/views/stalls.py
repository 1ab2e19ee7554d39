"""Ranks that hold the others up, with what they themselves are doing: the cause of each stall as far as evidence carries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from nccl_forensics.evidence import PLACE
from nccl_forensics.folding import FoldedTable
from nccl_forensics.frames import has_rows
from nccl_forensics.stacks.places import PLAIN, UNTOLD, WAITING
from nccl_forensics.values.ranklist import as_ranks
from nccl_forensics.views import view
from nccl_forensics.views.call_paths import by_another_path, no_swap
from nccl_forensics.views.calls import Calls, calls_of
from nccl_forensics.views.deaths import ended_themselves, gave_up
from nccl_forensics.views.gpu_starts import not_begun
from nccl_forensics.views.jumps import broken_steps, jumped_groups, passed_over
from nccl_forensics.views.levels import (
    alike_in_another,
    alone_in_group,
    awaited_alone,
    came_after_all,
    entered_all,
    finished_apart,
    held_together,
    in_a_rooted_call,
    mostly_idle,
    stand_by_themselves,
    still_enqueuing,
)
from nccl_forensics.views.log_ends import tails
from nccl_forensics.views.looks import ordinary, standing
from nccl_forensics.views.motion import advances
from nccl_forensics.views.of_two import odd_of_two
from nccl_forensics.views.own_pace import in_one_order
from nccl_forensics.views.pairs import held
from nccl_forensics.views.silences import FEW_UNSEEN, scattered, silent, unheard_of
from nccl_forensics.views.stack_pairs import beside_waiters, halted_alike, in_circles
from nccl_forensics.views.stall_causes import P2P, cause_of, with_unheard
from nccl_forensics.views.standing_apart import (
    advancing,
    gone_on,
    missing_at_barriers,
    moving_beside,
    odd_calls,
    odd_in_circle,
    odd_stacks,
    unanswering,
)

STALLS = {
    "rank": pl.Int32(),
    "cause": pl.String(),
    "confidence": pl.String(),
    "place": pl.String(),
    "user_frame": pl.String(),
    "why": pl.String(),
    "waiters": pl.List(pl.Int32()),
    "in_group": pl.List(pl.Int32()),
    "partners": pl.List(pl.Int32()),
    "group_key": pl.String(),
    "group_name": pl.String(),
    "group_desc": pl.String(),
    "comm_id": pl.String(),
    "seq": pl.Int64(),
    "op": pl.String(),
    "call_site": pl.String(),
    "source_id": pl.UInt32(),
    "line_no": pl.UInt32(),
    "record": pl.String(),
    "own_source_id": pl.UInt32(),
    "own_line_no": pl.UInt32(),
    "own_record": pl.String(),
    "stack_source_id": pl.UInt32(),
    "stack_line_no": pl.UInt32(),
    "stack_record": pl.String(),
    "seen_by": pl.String(),
    "stands": pl.Boolean(),
    "alternative": pl.String(),
    "against": pl.String(),
}

#: Ranks that are singled out, each with how: ``kind``, ``seen_by``, ``waiters`` and what of the operation waited in is known.
_Found = dict[int, dict[str, object]]


@dataclass(frozen=True)
class _Scene:
    """What every stage looks at.

    ``stacks``: the last call of each rank that tells where its time went; ``absent``: who stands before what it never entered;
    ``timed_out``: something gave up waiting, or has waited as long; ``at_a_moment``: recorders were asked at a moment that nothing ties to
    a standstill; ``ended``: the training loop said that it was done; ``parted``: the calls of some group diverge; ``dead``: ranks that
    ended by themselves; ``waiting_share``: of traced ranks, the share of the traced time in which nothing but communication was under way.
    """

    stacks: dict[int, dict[str, object]]
    calls: Calls | None
    progress: pl.LazyFrame | None
    absent: pl.LazyFrame | None
    groups: pl.LazyFrame | None
    divergences: pl.LazyFrame | None
    timed_out: bool
    at_a_moment: bool
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
        return set(self.progress.select("rank").collect()["rank"].to_list()) if self.progress is not None else set()

    def job(self) -> set[int]:
        """Members of all groups."""
        members = self.groups.select("members").collect()["members"].to_list() if self.groups is not None else []
        return {r for ranks in members for r in ranks or ()}


@view(rows="ranks")
def stalls(
    blockers: pl.LazyFrame | None,
    last_calls: pl.LazyFrame | None,
    endings: pl.LazyFrame | None,
    rank_reports: pl.LazyFrame | None,
    divergences: pl.LazyFrame | None,
    operations: pl.LazyFrame | Calls | None,
    progress: pl.LazyFrame | None,
    watchdog: pl.LazyFrame | None,
    groups: pl.LazyFrame | None,
    stuck: pl.LazyFrame | None = None,
    source_ranks: pl.LazyFrame | None = None,
    fr_entries: pl.LazyFrame | FoldedTable | None = None,
    gone_peers: pl.LazyFrame | None = None,
    never_entered: pl.LazyFrame | None = None,
    dumps: pl.LazyFrame | None = None,
    worker_exits: pl.LazyFrame | None = None,
    motion: pl.LazyFrame | None = None,
    trace_measures: pl.LazyFrame | None = None,
    looks: pl.LazyFrame | None = None,
    training_ends: pl.LazyFrame | None = None,
    unpaired: pl.LazyFrame | None = None,
) -> pl.LazyFrame:
    """One row per rank that others wait for: ``cause`` is input-stall, host-stall, gpu-stall, p2p-deadlock, group-deadlock,
    collective-skipped or rank-died (its program is over). Ranks that died by their own fault are left out: their death says it all.

    ``seen_by`` says what singled the rank out: progress (its operations end before its peers'), barrier (a monitored barrier named it),
    stacks (the others stand in a collective and it does not, or is the only one without a stack) or endings (the others timed out and it
    did not). ``stands``: several samples of its stack agree; ``alternative``: another cause that would look the same, and what speaks
    ``against`` it (null: nothing does).
    """
    calls = calls_of(operations) if operations is not None else None
    scene = _Scene(
        stacks=_telling(last_calls, gave_up(endings)),
        calls=calls,
        progress=progress,
        absent=never_entered,
        groups=groups,
        divergences=divergences,
        timed_out=_timed_out(rank_reports, watchdog, endings) or _held(looks, motion),
        at_a_moment=_at_a_moment(dumps, worker_exits),
        ended=has_rows(training_ends),
        parted=divergences is not None and divergences.collect().height > 0,
        dead=_gone(endings, gone_peers),
        waiting_share=_waiting_share(trace_measures),
    )
    written = set(source_ranks.select("rank").collect()["rank"].drop_nulls().to_list()) if source_ranks is not None else set()
    found = _awaited(scene, blockers)
    missing = missing_at_barriers(rank_reports, blockers, {}) if rank_reports is not None else {}
    found = _by_order_of_calls(scene, found, blockers, fr_entries, bool(missing))
    if rank_reports is not None:
        found = missing_at_barriers(rank_reports, blockers, found)
        found = _not_held_by_a_jump(scene, found)
    found = _not_held_up(scene, found, stuck)
    if not found and not scene.parted:
        found = _by_stacks(scene, written)
    if progress is not None and calls is not None and any(row["kind"] == "cycle" for row in found.values()):
        found = odd_in_circle(found, progress, calls.every)
    if not found and not scene.parted and not scene.dead and endings is not None:
        found = silent(endings, progress)
        if not found and progress is not None and groups is not None:
            found = unheard_of(endings, progress, groups)
    if found:
        found = gone_on(found, scene.stacks, set(scene.stacks) | scene.known()) or found
    found = unanswering(found, scene.stacks, progress, written - scene.dead) or found
    if not scene.timed_out and (
        advances(motion) or advancing(found, scene.stacks) or (not scene.dead and moving_beside(found, scene.stacks))
    ):
        found = {}
    if not scene.timed_out and looks is not None and ordinary(looks, len(scene.known())):
        # What is open has been so for no longer than what ended: nobody is seen to wait.
        found = {r: row for r, row in found.items() if row["seen_by"] != "progress" or row["kind"] in ("jumped", "swapped")}
    tail = tails(calls, found) if calls is not None else {}
    if unpaired is not None:
        tail |= dict.fromkeys(held(unpaired), "held")
    rows = _doubted(scene, found, _with_causes(scene, found, tail), tail, written)
    return pl.DataFrame(rows, schema=STALLS, infer_schema_length=None).lazy()


def _telling(last_calls: pl.LazyFrame | None, gave_up: set[int]) -> dict[int, dict[str, object]]:
    """The last call of each rank that tells where its time went: where an exception was raised does not, except inside a call that waits;
    nor does the end of a program that ``gave_up``."""
    rows = last_calls.collect().iter_rows(named=True) if last_calls is not None else ()
    told = {row["rank"]: row for row in rows if row["witness"] == "stack" or row["place"] in WAITING}
    return {rank: row for rank, row in told.items() if row["place"] != "ended" or rank not in gave_up}


def _timed_out(rank_reports: pl.LazyFrame | None, watchdog: pl.LazyFrame | None, endings: pl.LazyFrame | None) -> bool:
    """Whether something gave up waiting: a barrier, a watchdog, a rank."""
    told = (
        (rank_reports, ("barrier-missing",)),
        (watchdog, ("timeout", "failure", "heartbeat-stuck")),
        (endings, ("victim",)),
    )
    return any(table is not None and table.filter(pl.col("kind").is_in(kinds)).collect().height > 0 for table, kinds in told)


def _held(looks: pl.LazyFrame | None, motion: pl.LazyFrame | None) -> bool:
    """Whether recorders tell that what is open has been so for far longer than anything before: as long a wait as one that is given up."""
    return looks is not None and not advances(motion) and standing(looks).head(1).collect().height > 0


def _waiting_share(trace_measures: pl.LazyFrame | None) -> dict[int, float]:
    """Of each rank with a trace, the share of its time in which it communicated or waited, and computed nothing."""
    if trace_measures is None:
        return {}
    whole = trace_measures.filter((pl.col("window") == "whole") & pl.col("rank").is_not_null() & (pl.col("span_ms") > 0))
    told = whole.group_by("rank").agg(pl.col("exposed_ms").sum() / pl.col("span_ms").sum()).drop_nulls().collect()
    return dict(told.iter_rows())


def _at_a_moment(dumps: pl.LazyFrame | None, worker_exits: pl.LazyFrame | None) -> bool:
    """Whether somebody asked for the recorders, as a watchdog that times out writes pickles and no JSON (PyTorch 2.3 to 2.13), or a
    scheduler ended the job: how long the ranks had stood by then, if at all, is not known."""
    if worker_exits is not None and worker_exits.filter(pl.col("kind") == "scheduler").head(1).collect().height:
        return True
    written = dumps.filter(pl.col("use") == "chosen").select("encoding").collect()["encoding"] if dumps is not None else pl.Series([""])
    return bool((written == "json").all()) and written.len() > 0


def _gone(endings: pl.LazyFrame | None, gone_peers: pl.LazyFrame | None) -> frozenset[int]:
    """Ranks that ended by themselves, or that their peers found to have left."""
    left = gone_peers.filter(pl.col("how") == "left").collect()["rank"].to_list() if gone_peers is not None else []
    return frozenset(ended_themselves(endings)) | frozenset(left)


def _awaited(scene: _Scene, blockers: pl.LazyFrame | None) -> _Found:
    """Ranks at which the walk over the waits ends; where recorders tell more, those whose GPU has not begun what its peers' have."""
    found: _Found = {}
    for row in blockers.collect().iter_rows(named=True) if blockers is not None else ():
        if row["kind"] == "passed":
            continue  # no end of the walk
        stack = scene.stacks.get(row["rank"])
        if row["kind"] != "unseen" or row["walked"]:
            found[row["rank"]] = dict(row) | {"seen_by": "progress", "timed_out": scene.timed_out}
        elif stack is not None and (stack["place"] not in WAITING or (stack["place"] == "collective" and stack["op"] != row["op"])):
            # Nothing of its progress is known, but it stands elsewhere than those who wait for it.
            kind = "other-call" if stack["place"] == "collective" else "unseen"
            found[row["rank"]] = dict(row) | {"kind": kind, "seen_by": "stacks"}
    all_wait = all(row["kind"] in ("unseen", "cycle") or (row["kind"] == "behind" and row["pending"]) for row in found.values())
    if scene.calls is not None and scene.progress is not None and all_wait and _recorded_open(scene.progress):
        # What GPUs have begun tells more than ranks of which nothing is seen, and than ranks that wait themselves.
        late = {r: row | {"seen_by": "progress", "timed_out": scene.timed_out} for r, row in not_begun(scene.calls).items()}
        if late and not finished_apart(scene.progress):
            return late
    return found


def _by_order_of_calls(
    scene: _Scene, found: _Found, blockers: pl.LazyFrame | None, fr_entries: pl.LazyFrame | FoldedTable | None, missing: bool
) -> _Found:
    """Ranks that passed over a call and went on, alone, where some did; ``found`` where none did or a GPU stands. ``missing``: a monitored
    barrier waited in vain, as the one does that DETAIL puts before every call; recorders may not know then who is in which group."""
    progress, calls = scene.progress, scene.calls
    if any(row["kind"] in ("gpu", "not-begun") for row in found.values()):
        return found
    jumped: dict[int, tuple[dict[str, object], str]] = {}
    if progress is not None and found:
        placed = progress if scene.absent is None else pl.concat([progress, scene.absent])
        jumped = jumped_groups(placed, calls.every if calls is not None else None)
    # Where all that is waited for has ended by itself, a habit that somebody else broke tells less than that.
    alive = any(rank not in scene.dead for rank in found)
    if not jumped and (alive or missing) and calls is not None:
        # Whoever has finished all and enqueued nothing more holds the others up, whatever a habit of theirs foretold.
        at_rest = bool(found) and all(row["kind"] == "behind" and row["pending"] is False for row in found.values())
        jumped = {rank: fact for rank, fact in broken_steps(calls.recent()).items() if rank in found or not at_rest}
    if not jumped and calls is not None:
        ends = [row for row in found.values() if row["kind"] == "behind"]
        if not ends and blockers is not None:
            ends = blockers.filter(pl.col("kind") == "passed").collect().to_dicts()
        jumped = odd_of_two(passed_over(ends, calls), calls.counts)
    if jumped and calls is not None:
        jumped = in_one_order(jumped, calls.every, fr_entries)
    if not jumped:
        return found
    swapped = _swapped(jumped, found)
    how: dict[str, object] = {"kind": "swapped", "partners": sorted(jumped)} if swapped else {"kind": "jumped"}
    passed = {rank: row for rank, row in found.items() if rank in jumped}
    for rank, (behind, ahead) in jumped.items():
        waits = _waiting_in(progress, behind) if progress is not None and not behind.get("waiters") else {}
        passed[rank] = {**passed.get(rank, {}), **behind, **how, **waits, "ahead": ahead, "seen_by": "progress"}
        if behind.get("once_more"):
            passed[rank]["kind"] = "once-more"
    if calls is not None and fr_entries is not None and not swapped:
        went_on = {r: ahead for r, (_, ahead) in jumped.items()}
        for rank, why in no_swap(calls, went_on).items():
            passed[rank]["no_swap"] = why
        for rank in by_another_path(calls, fr_entries, went_on):
            passed[rank] |= {"another_path": True, "no_swap": None}
        for rank, _ in went_on.items() & (_all_done(progress) if progress is not None else set()):
            passed[rank]["no_swap"] = "what it went on to is over, and it did not come back to the call"
    return passed


def _waiting_in(progress: pl.LazyFrame, missed: Mapping[str, object]) -> dict[str, object]:
    """Ranks whose recorders hold the operation that one left out as their last and not completed, and where; the rank's own last call of
    that group is then cited for it."""
    there = (pl.col("domain") == missed["domain"]) & (pl.col("group_key") == missed["group_key"])
    last = (pl.col("first_pending") == missed["seq"]) & (pl.col("last_seq") == missed["seq"])
    rows = progress.filter(there & last).sort("rank").collect()
    if not rows.height:
        return {}
    ranks = rows["rank"].to_list()
    first = rows.row(0, named=True)
    return {"waiters": ranks, "in_group": ranks} | {n: first[n] for n in PLACE} | {f"own_{n}": missed[n] for n in PLACE}


def _all_done(progress: pl.LazyFrame) -> set[tuple[int, str]]:
    """Ranks and groups in which recorders show everything completed that the rank enqueued there."""
    over = pl.col("last_done").is_not_null() & (pl.col("last_done") >= pl.col("last_seq")) & pl.col("first_pending").is_null()
    return set(progress.filter((pl.col("domain") == "fr") & over).select("rank", "group_key").collect().iter_rows())


def _not_held_by_a_jump(scene: _Scene, found: _Found) -> _Found:
    """Without those that a monitored barrier names as missing and that stood in a call that waits, where another rank left a call out."""
    if not any(row["kind"] == "jumped" for row in found.values()):
        return found
    return {
        r: row for r, row in found.items() if row["kind"] != "barrier" or r not in scene.stacks or scene.stacks[r]["place"] not in WAITING
    }


def _not_held_up(scene: _Scene, found: _Found, stuck: pl.LazyFrame | None) -> _Found:
    """Without those that wait themselves, by their stacks or by the state of their other groups."""
    stacks, progress, groups = scene.stacks, scene.progress, scene.groups
    on_host = {r for r in found if scene.on_host(r)}
    if on_host:
        # Of the ranks that others wait for, those that stand in a call that waits themselves wait for one that does not.
        found = {
            r: row
            for r, row in found.items()
            if r not in stacks or stacks[r]["place"] not in WAITING or row["kind"] in ("jumped", "swapped")
        }
    if any(not stacks[r].get("waits_from") for r in on_host):
        # Beside one that stands where nobody waits, those in the function from which others call what they wait in may wait as well.
        found = {r: row for r, row in found.items() if r not in on_host or not stacks[r].get("waits_from")}
    beside = beside_waiters(found, stacks)
    found = {r: row for r, row in found.items() if r not in beside}
    found |= halted_alike(found, stacks, sure=scene.timed_out)
    on_host |= found.keys() & {r for r in stacks if scene.on_host(r)}
    if stuck is not None and any(row["kind"] == "unseen" for row in found.values()) and stand_by_themselves(stuck):
        found = {r: row for r, row in found.items() if row["kind"] != "unseen" or r in stacks}
    if progress is None:
        return found
    stood = {r: stacks[r]["op"] for r, row in found.items() if row["kind"] == "behind" and r in stacks}
    apart = in_a_rooted_call(stood, progress)
    found = {r: row for r, row in found.items() if r not in apart}
    if stuck is not None and any(row["kind"] == "behind" for row in found.values()):
        # One that stands with all members of another group in an operation that none of them leaves is held up there as they are.
        held = held_together(stuck, progress)
        found = {r: row for r, row in found.items() if row["kind"] != "behind" or r not in held or r in on_host}
    # One that waits in a group of which nothing else is known: whoever it waits for is at the end of the walk.
    lone = alone_in_group(progress)
    known = set(lone["rank"].to_list())
    waiting = {
        r
        for r, row in found.items()
        if r in known and r in stacks and stacks[r]["place"] == "collective" and row["kind"] not in ("jumped", "swapped")
    }
    found = {r: row | {"apart": r in known and r not in stacks} for r, row in found.items() if r not in waiting}
    if waiting and not found and not scene.parted and groups is not None:
        host = [r for r, s in stacks.items() if scene.on_host(r) and not s["moved"]]
        found = awaited_alone(lone.filter(pl.col("rank").is_in(sorted(waiting))), groups, progress, host)
    return found


def _by_stacks(scene: _Scene, written: set[int]) -> _Found:
    """The few that stand elsewhere than most: in stacks, else by where tracebacks say that ranks gave up. ``written``: ranks that files are
    of."""
    stacks = scene.stacks
    seen = {r: s for r, s in stacks.items() if s["witness"] == "stack"}
    # Where there are stacks, the stack views tell who stands apart; tracebacks alone are read here.
    found = odd_stacks(seen) if seen else odd_calls(stacks)
    if seen and not scene.timed_out:
        # One look at a thread that computes, or sleeps in its own function, tells nothing; the stack views weigh a second one of the
        # latter.
        plain = {rank for rank in found if stacks[rank]["place"] in PLAIN and stacks[rank]["moved"] is None}
        found = {rank: row for rank, row in found.items() if rank not in plain and stacks[rank]["place"] != "user-code"}
    if not seen and (scene.dead or not scene.job() | written <= set(stacks)):
        # Whoever gave up in another collective than most may have waited there for a rank that is gone, or that left no word.
        found = {rank: row for rank, row in found.items() if row["kind"] != "other-call" or rank in scene.dead}
    if seen and scene.progress is not None:
        # Whoever has entered all that is open keeps nobody waiting on its host: a full queue of its GPU holds it up, in whatever line it
        # calls that.
        came = entered_all(scene.progress)
        found = {rank: row for rank, row in found.items() if rank not in came or stacks[rank]["place"] not in PLAIN}
    if scene.timed_out or scene.dead or scene.progress is None:
        return found
    # Recorders that are level do not speak for calls that differ.
    return {
        rank: row
        for rank, row in found.items()
        if row["kind"] == "other-call"
        or not came_after_all(rank, as_ranks(row["waiters"]), row["op"], scene.progress, stacks[rank]["place"])
    }


def _with_causes(scene: _Scene, found: _Found, tail: Mapping[int, str]) -> list[dict[str, object]]:
    """Rows of ``STALLS`` for those of ``found`` that a cause is known of."""
    stacks = scene.stacks
    unheard = sorted(scene.job() - set(stacks) - scene.dead)
    # Who made another call in place of its peers' did not leave one out.
    parted = (
        scene.divergences.filter(pl.col("kind") == "different").select("group_key", "ranks").collect()
        if scene.divergences is not None
        else None
    )
    another = {(group, rank) for group, ranks in (parted.iter_rows() if parted is not None else ()) for rank in ranks or ()}
    circles = {tuple(as_ranks(row.get("cycle"))) for row in found.values() if row["kind"] == "cycle" and row.get("op") not in P2P}
    rows: list[dict[str, object]] = []
    for rank, row in sorted(found.items()):
        if rank in scene.dead or (row["kind"] == "jumped" and (row.get("group_key"), rank) in another):
            continue
        if tuple(as_ranks(row.get("cycle"))) in circles:
            row = row | {"mixed": any(found[r].get("op") in P2P for r in as_ranks(row["cycle"]) if r in found)}
        told = cause_of(rank, row, stacks, tail.get(rank))
        if told is not None:
            rows.append(_stall(rank, row, stacks.get(rank)) | with_unheard(told, rank, stacks, unheard)._asdict())
    return rows


def _stall(rank: int, row: Mapping[str, object], stack: Mapping[str, object] | None) -> dict[str, object]:
    """A row without its cause: what of the operation waited in is known, and where the rank stands."""
    own: dict[str, object] = {name: stack[name] if stack else None for name in ("place", "user_frame")}
    own["stands"] = stack is not None and stack["witness"] == "stack" and stack["moved"] is False
    where = {f"stack_{name}": stack[name] if stack else None for name in ("source_id", "line_no", "record")}
    return {name: row.get(name) for name in STALLS if name in row} | {"rank": rank} | own | where


def _doubted(
    scene: _Scene, found: _Found, rows: list[dict[str, object]], tail: Mapping[int, str], written: set[int]
) -> list[dict[str, object]]:
    """The same, without those that would look no different in a job that goes on, or with most of its files lost; those that might, at low
    confidence. ``written``: ranks that files are of."""
    stacks, progress, groups, timed_out = scene.stacks, scene.progress, scene.groups, scene.timed_out
    # Of a stack that was looked at once it is not known whether it stands: a job that goes on has ranks in their loaders, too.
    glimpsed = {rank for rank in found if stacks.get(rank, {}).get("moved") is None}
    # Behind its peers in one group and ahead of them in another is nobody who keeps to the order, whenever each of them was looked at.
    alone = [r for r in rows if r["seen_by"] == "progress" and r["rank"] in glimpsed and found[_rank(r)].get("beyond") is None]
    goes_on, may = (
        still_enqueuing(progress, groups, len(alone)) if alone and progress is not None and groups is not None else (False, False)
    )
    spoken = {r["rank"] for r in alone}
    if goes_on and not timed_out:
        # A job that goes on looks the same at the moment at which its recorders were looked at.
        rows = [r for r in rows if r["rank"] not in spoken]
    # A job that goes on is held up here by a loader and there by a GPU; two faults at once are rare.
    several = len({r["cause"] for r in alone}) > 1
    idle = not timed_out and progress is not None and mostly_idle(progress, {_rank(r) for r in rows})
    if idle:
        # Of a job that stands, those who have finished what a GPU has not wait for it in what comes next.
        rows = [r for r in rows if r["cause"] != "gpu-stall" or r["seen_by"] != "progress" or r["rank"] not in glimpsed]
    if not timed_out and progress is not None and (may or several or idle):
        rows = [_unsure(r) if r["rank"] in spoken else r for r in rows]
    if not timed_out:
        asked = scene.at_a_moment
        rows = [_glimpsed(r) if r["rank"] in glimpsed and (asked or r["place"]) else r for r in rows]
        rows = [_as_traced(r, shares) if (shares := _usual_waits(scene, r)) else r for r in rows]
        rows = [_passed(r) if scene.ended and r["place"] else r for r in rows]
    known = scene.known()
    bare = {r["rank"] for r in rows if r["cause"] in ("host-stall", "gpu-stall") and r["place"] is None and r["seen_by"] == "progress"}
    if len(known) >= 4 and len(bare) * 2 >= len(known):
        # Most of the job cannot be what the rest waits for: the end of the walk is not in the evidence, or is no rank at all.
        rows = [r for r in rows if r["rank"] not in bare]
    if progress is not None and len(bare) > 1:
        # Several that came last to one call of another group wait there for a member of which nothing is seen, rather than stall at once.
        level = alike_in_another(progress, {rank: str(found[rank].get("group_key")) for rank in map(_rank, rows) if rank in bare})
        rows = [r for r in rows if r["rank"] not in level]
    mixed = {r["rank"] for r in rows if r["cause"] == "group-deadlock" and r["confidence"] == "low" and len(as_ranks(r["partners"])) > 1}
    if len(known) >= 4 and len(mixed) * 2 > len(known):
        # Circles of sends and collectives through most of the job: what closes them is none of these ranks alone.
        rows = [r for r in rows if r["rank"] not in mixed]
    kinds = {rank: row.get("kind") for rank, row in found.items()}
    paused = {r["rank"] for r in rows if kinds[_rank(r)] == "behind" and tail.get(_rank(r)) is not None}
    if not timed_out and len(paused) > FEW_UNSEEN and len(paused) * _PAUSED > len(known):
        # Logs that were copied while the job ran end an operation apart.
        rows = [r for r in rows if r["rank"] not in paused]
    rows = [_apart(r) if found[_rank(r)].get("apart") and r["cause"] == "host-stall" else r for r in rows]
    rows = in_circles(rows, stacks, scene.job() | known, sure=timed_out)
    # Files that are missing here and there were lost, and their ranks may wait as the others do.
    unseen = [_rank(r) for r in rows if r["cause"] == "host-stall" and kinds[_rank(r)] == "unseen" and r["rank"] not in stacks]
    # What GPUs have done, and recorders of a job that goes on do not know of yet, is left open here and there as well.
    gpus = [_rank(r) for r in rows if r["cause"] == "gpu-stall" and kinds[_rank(r)] == "gpu" and not timed_out]
    # So are those who have nothing open at the moment while the other part of a job waits for what they work on.
    hosts = [_rank(r) for r in rows if r["rank"] in bare and r["cause"] == "host-stall" and kinds[_rank(r)] == "behind" and not timed_out]
    left_open = {rank for ranks in (unseen, gpus, hosts) if scattered(ranks) for rank in ranks}
    # By the recorder of one peer each they are behind wherever that one was looked at later.
    pairs = [rank for rank in gpus if len(as_ranks(found[rank].get("in_group"))) == 1]
    left_open |= set(pairs) if len(pairs) > 1 else set()
    if not timed_out and len(unseen) > FEW_UNSEEN and written.issuperset(unseen):
        # Of a whole host whose logs are there the dumps were left behind.
        left_open |= set(unseen)
    return [r for r in rows if r["rank"] not in left_open]


def _rank(row: Mapping[str, object]) -> int:
    return int(str(row["rank"]))


def _unsure(row: dict[str, object]) -> dict[str, object]:
    """A stall that may be a moment of a job that goes on."""
    why = f"{row['why']}; nothing has timed out, and ranks stand here and there or most have nothing open, as in a job that goes on"
    return row | {"confidence": "low", "why": why}


def _glimpsed(row: dict[str, object]) -> dict[str, object]:
    """A stall that one look at the stack or at recorders shows: for how long it stood there is not known."""
    if row["confidence"] != "high":
        return row
    return row | {"confidence": "medium", "why": f"{row['why']}; nothing has timed out, and one look does not tell that it stays there"}


def _usual_waits(scene: _Scene, row: Mapping[str, object]) -> float | None:
    """The share of the traced time in which those wait that stacks show to wait for a rank at work, where it is so large that most looks
    find them so. A rank in its data loader or in a lock is held up there in either case."""
    if row["seen_by"] != "stacks" or row["place"] not in UNTOLD:
        return None
    shares = sorted(scene.waiting_share[w] for w in as_ranks(row["waiters"]) if w in scene.waiting_share)
    usual = shares[len(shares) // 2] if shares else 0.0
    return usual if usual >= _MOST_LOOKS else None


def _as_traced(row: dict[str, object], share: float) -> dict[str, object]:
    """A stall by stacks of a job whose traces go on, and show the same waits."""
    why = f"{row['why']}; nothing has timed out, and by their traces the others wait for {share:.0%} of the time in a job that goes on"
    return row | {"confidence": "low", "why": why}


def _passed(row: dict[str, object]) -> dict[str, object]:
    """A stall that stacks show in a job whose training loop came to its end, unless it is at the very end that it stands."""
    return row | {"confidence": "low", "why": f"{row['why']}; the training loop said that it was done, and nothing has timed out"}


def _apart(row: dict[str, object]) -> dict[str, object]:
    """A stall of a rank whose last operation is one of a group of which nobody else left anything: it may wait there as well as be done
    with it."""
    return row | {
        "confidence": "low",
        "why": f"{row['why']}; its last operation is of a group of which no other rank left a record, and it may wait in it",
    }


def _recorded_open(progress: pl.LazyFrame) -> bool:
    """Whether a recorder holds work that is not completed: NCCL's lines, which may be many, are looked through for nothing else."""
    return progress.filter((pl.col("domain") == "fr") & pl.col("first_pending").is_not_null()).head(1).collect().height > 0


def _swapped(jumped: Mapping[int, tuple[Mapping[str, object], object]], found: dict[int, dict[str, object]]) -> bool:
    """Whether several ranks passed over an operation, each of another group, and so wait for each other in a circle.

    One rank that leaves out a call of one of two groups that cross closes no circle: the other members of its next group have passed, and
    it goes on. Where several do so at once, an order of groups of their own is likelier than as many calls left out by chance.
    """
    circle = {r for r, row in found.items() if row["kind"] == "cycle"}
    return len(jumped) > 1 and set(jumped) <= circle and len({behind.get("group_key") for behind, _ in jumped.values()}) == len(jumped)


#: Who waits for such a share of the time is found waiting in a few looks one after the other.
_MOST_LOOKS = 0.5
#: One rank in so many that ends before its peers: then they are no exception.
_PAUSED = 4
