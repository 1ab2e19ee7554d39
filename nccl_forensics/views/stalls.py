"""Ranks that hold the others up, with what they themselves are doing: the cause of each stall as far as evidence carries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import polars as pl

from nccl_forensics.evidence import PLACE
from nccl_forensics.folding import FoldedTable
from nccl_forensics.frames import has_rows, ranks_in, typed
from nccl_forensics.stacks.places import PLAIN, WAITING
from nccl_forensics.values.ranklist import as_ranks
from nccl_forensics.views import view
from nccl_forensics.views.call_paths import apart_from_peers, by_another_path, in_one_loop, no_swap, stands_before
from nccl_forensics.views.calls import Calls, calls_of
from nccl_forensics.views.columns import GROUP, read_at
from nccl_forensics.views.deaths import gave_up
from nccl_forensics.views.gpu_starts import not_begun
from nccl_forensics.views.jumps import broken_steps, jumped_groups, passed_over
from nccl_forensics.views.levels import (
    alone_in_group,
    awaited_alone,
    came_after_all,
    entered_all,
    finished_apart,
    held_together,
    in_a_rooted_call,
    stand_by_themselves,
)
from nccl_forensics.views.log_ends import tails
from nccl_forensics.views.looks import ordinary
from nccl_forensics.views.matching import of_nccl
from nccl_forensics.views.motion import advances
from nccl_forensics.views.of_two import odd_of_two
from nccl_forensics.views.own_pace import in_one_order
from nccl_forensics.views.pairs import held
from nccl_forensics.views.silences import in_one_half, silent, silent_watchdogs, unheard_of
from nccl_forensics.views.stack_pairs import beside_waiters, halted_alike
from nccl_forensics.views.stall_causes import P2P, cause_of, with_unheard
from nccl_forensics.views.stall_doubts import doubted
from nccl_forensics.views.stall_scene import (
    Found,
    Scene,
    at_a_moment,
    gave_up_waiting,
    gone,
    held_for_long,
    left_over,
    telling,
    waiting_shares,
)
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
from nccl_forensics.views.step_leads import reduced_in_backward, step_further
from nccl_forensics.views.turns import in_turn

STALLS = typed(
    "rank:i32 cause:str confidence:str place:str user_frame:str why:str waiters:list[i32] in_group:list[i32] partners:list[i32]",
    GROUP,
    "comm_id:str seq:i64 op:str call_site:str",
    read_at(),
    read_at("own_"),
    read_at("stack_"),
    "seen_by:str stands:bool alternative:str against:str",
)


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
    never_called: pl.LazyFrame | None = None,
    step_leads: pl.LazyFrame | None = None,
    inversions: pl.LazyFrame | None = None,
    training_steps: pl.LazyFrame | None = None,
    thread_states: pl.LazyFrame | None = None,
    moved_between: pl.LazyFrame | None = None,
) -> pl.LazyFrame:
    """One row per rank that others wait for: ``cause`` is input-stall, host-stall, gpu-stall, p2p-deadlock, group-deadlock,
    collective-skipped or rank-died (its program is over). Ranks that died by their own fault are left out: their death says it all.

    ``seen_by`` says what singled the rank out: progress (its operations end before its peers'), barrier (a monitored barrier named it),
    stacks (the others stand in a collective and it does not, or is the only one without a stack) or endings (the others timed out and it
    did not). ``stands``: several samples of its stack agree; ``alternative``: another cause that would look the same, and what speaks
    ``against`` it (null: nothing does).
    """
    calls = calls_of(operations) if operations is not None else None
    scene = Scene(
        stacks=telling(last_calls, gave_up(endings)),
        calls=calls,
        progress=progress,
        absent=[frame for frame in (never_entered, never_called) if frame is not None],
        groups=groups,
        divergences=divergences,
        timed_out=gave_up_waiting(rank_reports, watchdog, endings) or held_for_long(looks, motion),
        at_a_moment=at_a_moment(dumps, worker_exits, training_steps),
        moved_between=frozenset(ranks_in(moved_between)),
        ended=has_rows(training_ends),
        parted=has_rows(divergences),
        dead=gone(endings, gone_peers),
        waiting_share=waiting_shares(trace_measures),
    )
    written = ranks_in(source_ranks)
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
        found = odd_in_circle(found, progress, calls.every, groups)
    if not found and not scene.parted and not scene.dead:
        found = silent(endings, progress) if endings is not None else {}
        if not found and endings is not None and progress is not None and groups is not None:
            found = unheard_of(endings, progress, groups)
        if not found and training_steps is not None and watchdog is not None:
            found = _untimed(scene, training_steps, source_ranks, watchdog, endings, written)
    if found:
        found = gone_on(found, scene.stacks, set(scene.stacks) | scene.known()) or found
    found = unanswering(found, scene.stacks, progress, written - scene.dead) or found
    if endings is not None and not scene.parted and not scene.dead and in_one_half(found, scene.stacks):
        # Stages behind one that does not send look like a pair that both receive.
        found = silent(endings, progress, scene.stacks.keys(), written) or found
    if step_leads is not None and not scene.parted and not scene.dead:
        found = step_further(found, step_leads, scene.stacks, missing)
        found = reduced_in_backward(found, fr_entries) if fr_entries is not None else found
    if not scene.timed_out and (
        advances(motion) or advancing(found, scene.stacks) or (not scene.dead and moving_beside(found, scene.stacks))
    ):
        found = {}
    if not scene.timed_out and looks is not None and ordinary(looks, len(scene.known())):
        # What is open has been so for no longer than what ended: nobody is seen to wait.
        found = {r: row for r, row in found.items() if row["seen_by"] != "progress" or row["kind"] in ("jumped", "swapped")}
    if inversions is not None:
        # What their hosts wait for stands on the GPUs of those who took two groups the other way.
        held_up = set(inversions.filter(~pl.col("entered")).select(pl.col("others").explode()).collect()["others"].to_list())
        found = {rank: row for rank, row in found.items() if rank not in held_up}
    scene = replace(scene, stacks=scene.stacks | left_over(found, scene.stacks, thread_states, scene.job() | scene.known()))
    tail = tails(calls, found) if calls is not None else {}
    if unpaired is not None:
        tail |= dict.fromkeys(held(unpaired, calls), "held")
    if unseen := [r for r, row in found.items() if row["kind"] == "unseen"]:
        alone = _alone_unrecorded(scene, dumps, written, thread_states)
        for rank in unseen:
            found[rank] = found[rank] | {"alone_unrecorded": rank == alone}
    rows = doubted(scene, found, _with_causes(scene, found, tail), tail, written)
    return pl.DataFrame(rows, schema=STALLS, infer_schema_length=None).lazy()


def _alone_unrecorded(scene: Scene, dumps: pl.LazyFrame | None, written: set[int], thread_states: pl.LazyFrame | None) -> int | None:
    """The one rank of the job of which there is no file, where NCCL's recorders are there of all the others, several: gloo's write nothing
    by themselves. Where as many processes were sampled as the job has ranks, it lived."""
    sampled = thread_states.filter(pl.col("role").is_null()).select(pl.len()).collect().item() if thread_states is not None else 0
    if sampled >= len(scene.job()):
        return None
    recorded = ranks_in(dumps, pl.col("use") == "chosen", of_nccl())
    rest = scene.job() - recorded
    return rest.pop() if len(rest) == 1 < len(recorded) and rest.isdisjoint(written | scene.stacks.keys()) else None


def _untimed(
    scene: Scene,
    training_steps: pl.LazyFrame,
    source_ranks: pl.LazyFrame | None,
    watchdog: pl.LazyFrame,
    endings: pl.LazyFrame | None,
    written: set[int],
) -> Found:
    """Ranks that only their watchdog's silence singles out."""
    if scene.progress is None or scene.groups is None:
        return {}
    job = frozenset(scene.job() | scene.known() | written | scene.stacks.keys())
    found = silent_watchdogs(training_steps, source_ranks, watchdog, scene.progress, endings, scene.groups, job)
    return {} if found.keys() & scene.stacks.keys() else found


def _awaited(scene: Scene, blockers: pl.LazyFrame | None) -> Found:
    """Ranks at which the walk over the waits ends; where recorders tell more, those whose GPU has not begun what its peers' have."""
    found: Found = {}
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
    scene: Scene, found: Found, blockers: pl.LazyFrame | None, fr_entries: pl.LazyFrame | FoldedTable | None, missing: bool
) -> Found:
    """Ranks that passed over a call and went on, alone, where some did; ``found`` where none did or a GPU stands. ``missing``: a monitored
    barrier waited in vain, as the one does that DETAIL puts before every call; recorders may not know then who is in which group."""
    progress, calls = scene.progress, scene.calls
    if any(row["kind"] in ("gpu", "not-begun") for row in found.values()):
        return found
    jumped = _jumped(scene, found, blockers, missing)
    if jumped and calls is not None:
        jumped = in_one_order(jumped, calls.every, fr_entries)
    if not jumped:
        return found
    swapped = _swapped(jumped, found)
    how: dict[str, object] = {"kind": "swapped", "partners": sorted(jumped)} if swapped else {"kind": "jumped"}
    passed = {rank: row for rank, row in found.items() if rank in jumped}
    named = _named(scene.groups)
    for rank, (behind, ahead) in jumped.items():
        waits = _waiting_in(progress, behind) if progress is not None and not behind.get("waiters") else {}
        group = named.get((behind["domain"], behind["group_key"]), {})
        passed[rank] = {**passed.get(rank, {}), **behind, **group, **how, **waits, "ahead": ahead, "seen_by": "progress"}
        if behind.get("once_more"):
            passed[rank]["kind"] = "once-more"
    if calls is not None and fr_entries is not None and not swapped:
        went_on = {r: ahead for r, (_, ahead) in jumped.items()}
        for rank, why in no_swap(calls, went_on).items():
            passed[rank]["no_swap"] = why
        apart = dict.fromkeys(apart_from_peers(scene.stacks, went_on), "")
        for rank, line in (apart | by_another_path(calls, fr_entries, went_on)).items():
            passed[rank] |= {"another_path": True, "no_swap": None, "own_branch": stands_before(line, passed[rank].get("call_site"))}
        for rank in in_one_loop(calls, fr_entries, went_on, {r: str(behind["group_key"]) for r, (behind, _) in jumped.items()}):
            passed[rank] |= {"one_loop": True, "no_swap": None}
        for rank, _ in went_on.items() & (_all_done(progress) if progress is not None else set()):
            passed[rank]["no_swap"] = "what it went on to is over, and it did not come back to the call"
    return passed


def _named(groups: pl.LazyFrame | None) -> dict[tuple[object, object], dict[str, object]]:
    """Names of each group (domain, key): ``group_name``, ``group_desc``, ``comm_id``."""
    if groups is None:
        return {}
    rows = groups.select("domain", "group_key", "group_name", "group_desc", "comm_id").collect()
    return {(row.pop("domain"), row.pop("group_key")): row for row in rows.iter_rows(named=True)}


def _jumped(scene: Scene, found: Found, blockers: pl.LazyFrame | None, missing: bool) -> dict[int, tuple[dict[str, object], str]]:
    """Ranks that passed over a call, each with that call and what it went on to: by its members in the group, by a habit of earlier steps
    that it broke, or by what the others had enqueued before they came to the call."""
    progress, calls = scene.progress, scene.calls
    placed = pl.concat([progress, *scene.absent]) if progress is not None and found else None
    if placed is not None and (jumped := _not_in_turn(scene, jumped_groups(placed, calls.every if calls is not None else None))):
        return jumped
    if calls is None:
        return {}
    # Where all that is waited for has ended by itself, a habit that somebody else broke tells less than that.
    if missing or any(rank not in scene.dead for rank in found):
        # Whoever has finished all and enqueued nothing more holds the others up, whatever a habit of theirs foretold.
        at_rest = bool(found) and all(row["kind"] == "behind" and row["pending"] is False for row in found.values())
        if jumped := {rank: fact for rank, fact in broken_steps(calls).items() if rank in found or not at_rest}:
            return jumped
    # NCCL's logs tell calls as they are made: of a circle, too, those who made both calls tell the order.
    ends = [row for row in found.values() if row["kind"] == "behind" or (row["kind"] == "cycle" and row["domain"] == "nccl")]
    if not ends and blockers is not None:
        ends = blockers.filter(pl.col("kind") == "passed").collect().to_dicts()
    return odd_of_two(_not_in_turn(scene, passed_over(ends, calls)), calls.counts)


def _not_in_turn(scene: Scene, jumped: dict[int, tuple[dict[str, object], str]]) -> dict[int, tuple[dict[str, object], str]]:
    """Without those who have only not come to the call that they seem to have passed over."""
    if not jumped or scene.progress is None or scene.groups is None:
        return jumped
    early = in_turn(jumped, scene.progress, scene.groups)
    return {rank: fact for rank, fact in jumped.items() if rank not in early}


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


def _not_held_by_a_jump(scene: Scene, found: Found) -> Found:
    """Without those that a monitored barrier names as missing and that stood in a call that waits, where another rank left a call out."""
    if not any(row["kind"] == "jumped" for row in found.values()):
        return found
    return {
        r: row for r, row in found.items() if row["kind"] != "barrier" or r not in scene.stacks or scene.stacks[r]["place"] not in WAITING
    }


def _not_held_up(scene: Scene, found: Found, stuck: pl.LazyFrame | None) -> Found:
    """Without those that wait themselves, by their stacks or by the state of their other groups."""
    stacks = scene.stacks
    on_host = {r for r in found if scene.on_host(r)}
    found = _not_waiting(scene, found, on_host)
    beside = beside_waiters(found, stacks)
    found = {r: row for r, row in found.items() if r not in beside}
    found |= halted_alike(found, stacks, sure=scene.timed_out)
    on_host |= found.keys() & {r for r in stacks if scene.on_host(r)}
    if stuck is not None and any(row["kind"] == "unseen" for row in found.values()) and stand_by_themselves(stuck):
        found = {r: row for r, row in found.items() if row["kind"] != "unseen" or r in stacks}
    if scene.progress is None:
        return found
    found = _not_in_another_group(found, scene.progress, stuck, stacks, on_host)
    return _not_alone_in_a_group(scene, found, scene.progress)


def _not_waiting(scene: Scene, found: Found, on_host: set[int]) -> Found:
    """Without those whose stacks stand in a call that waits, beside those ``on_host``."""
    stacks = scene.stacks
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
    return found


def _not_in_another_group(
    found: Found,
    progress: pl.LazyFrame,
    stuck: pl.LazyFrame | None,
    stacks: Mapping[int, Mapping[str, object]],
    on_host: set[int],
) -> Found:
    """Without those that are behind as they wait in a call of another group."""
    stood = {r: stacks[r]["op"] for r, row in found.items() if row["kind"] == "behind" and r in stacks}
    apart = in_a_rooted_call(stood, progress)
    found = {r: row for r, row in found.items() if r not in apart}
    if stuck is not None and any(row["kind"] == "behind" for row in found.values()):
        # One that stands with all members of another group in an operation that none of them leaves is held up there as they are.
        held = held_together(stuck, progress)
        found = {r: row for r, row in found.items() if row["kind"] != "behind" or r not in held or r in on_host}
    return found


def _not_alone_in_a_group(scene: Scene, found: Found, progress: pl.LazyFrame) -> Found:
    """Without those that wait in a group of which nothing else is known: whoever such a rank waits for is at the end of the walk, or, where
    nobody else is left, a member of that group that stands on its host. Others of such a group are marked ``apart``."""
    stacks = scene.stacks
    lone = alone_in_group(progress)
    known = set(lone["rank"].to_list())
    waiting = {
        r
        for r, row in found.items()
        if r in known and r in stacks and stacks[r]["place"] == "collective" and row["kind"] not in ("jumped", "swapped")
    }
    found = {r: row | {"apart": r in known and r not in stacks} for r, row in found.items() if r not in waiting}
    if waiting and not found and not scene.parted and scene.groups is not None:
        host = [r for r, s in stacks.items() if scene.on_host(r) and not s["moved"]]
        found = awaited_alone(lone.filter(pl.col("rank").is_in(sorted(waiting))), scene.groups, progress, host)
    return found


def _by_stacks(scene: Scene, written: set[int]) -> Found:
    """The few that stand elsewhere than most: in stacks, else by where tracebacks say that ranks gave up. ``written``: ranks that files are
    of."""
    stacks = scene.stacks
    seen = {r: s for r, s in stacks.items() if s["witness"] == "stack"}
    # Where there are stacks, the stack views tell who stands apart; tracebacks alone are read here.
    found = odd_stacks(seen, sure=scene.timed_out) if seen else odd_calls(stacks)
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


def _with_causes(scene: Scene, found: Found, tail: Mapping[int, str]) -> list[dict[str, object]]:
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
    one = scene.of_one_group()
    circles = {tuple(as_ranks(row.get("cycle"))) for row in found.values() if row["kind"] == "cycle" and row.get("op") not in P2P}
    rows: list[dict[str, object]] = []
    for rank, row in sorted(found.items()):
        if rank in scene.dead or (row["kind"] == "jumped" and (row.get("group_key"), rank) in another):
            continue
        if tuple(as_ranks(row.get("cycle"))) in circles:
            row = row | {"mixed": any(found[r].get("op") in P2P for r in as_ranks(row["cycle"]) if r in found)}
        halves = {found[r].get("op") for r in as_ranks(row.get("cycle")) if r in found}
        told = cause_of(rank, row | {"one_group": one, "both_halves": len(halves) > 1}, stacks, tail.get(rank))
        if told is not None:
            rows.append(_stall(rank, row, stacks.get(rank)) | with_unheard(told, rank, stacks, unheard)._asdict())
    return rows


def _stall(rank: int, row: Mapping[str, object], stack: Mapping[str, object] | None) -> dict[str, object]:
    """A row without its cause: what of the operation waited in is known, and where the rank stands."""
    own: dict[str, object] = {name: stack[name] if stack else None for name in ("place", "user_frame")}
    own["stands"] = stack is not None and stack["witness"] == "stack" and stack["moved"] is False
    where = {f"stack_{name}": stack[name] if stack else None for name in PLACE}
    return {name: row.get(name) for name in STALLS if name in row} | {"rank": rank} | own | where


def _recorded_open(progress: pl.LazyFrame) -> bool:
    """Whether a recorder holds work that is not completed: NCCL's lines, which may be many, are looked through for nothing else."""
    return has_rows(progress, (pl.col("domain") == "fr") & pl.col("first_pending").is_not_null())


def _swapped(jumped: Mapping[int, tuple[Mapping[str, object], object]], found: dict[int, dict[str, object]]) -> bool:
    """Whether several ranks passed over an operation, each of another group, and so wait for each other in a circle.

    One rank that leaves out a call of one of two groups that cross closes no circle: the other members of its next group have passed, and
    it goes on. Where several do so at once, an order of groups of their own is likelier than as many calls left out by chance.
    """
    circle = {r for r, row in found.items() if row["kind"] == "cycle"}
    return len(jumped) > 1 and set(jumped) <= circle and len({behind.get("group_key") for behind, _ in jumped.values()}) == len(jumped)
