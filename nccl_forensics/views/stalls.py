"""Ranks that hold the others up, with what they themselves are doing: the cause of each stall as far as evidence carries."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

import polars as pl

from nccl_forensics.folding import FoldedTable
from nccl_forensics.ranklist import as_ranks
from nccl_forensics.stack_frames import split_frame
from nccl_forensics.stack_places import WAITING
from nccl_forensics.views import view
from nccl_forensics.views.call_paths import by_another_path
from nccl_forensics.views.calls import OP_WORDS, Calls, calls_of
from nccl_forensics.views.deaths import ended_themselves
from nccl_forensics.views.gpu_starts import not_begun
from nccl_forensics.views.jumps import broken_steps, jumped_groups, passed_over
from nccl_forensics.views.levels import (
    alone_in_group,
    awaited_alone,
    came_after_all,
    finished_apart,
    held_together,
    in_a_rooted_call,
    mostly_idle,
    still_enqueuing,
)
from nccl_forensics.views.log_ends import tails
from nccl_forensics.views.silences import FEW_UNSEEN, scattered, silent, unheard_of
from nccl_forensics.views.stack_pairs import beside_waiters, in_circles
from nccl_forensics.views.waits import never_in
from nccl_forensics.words import ranks_words, verb

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
}
_P2P = ("send", "recv")
_INPUT = ("data-loader",)
_HOST = ("lock", "gil", "checkpoint", "gc", "compile", "import", "file-io", "sleep", "compute", "user-code", "evaluation")


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
) -> pl.LazyFrame:
    """One row per rank that others wait for: ``cause`` is input-stall, host-stall, gpu-stall, p2p-deadlock, group-deadlock or
    collective-skipped. Ranks that died by their own fault are left out: their death says it all.

    ``seen_by`` says what singled the rank out: progress (its operations end before its peers'), barrier (a monitored barrier named it),
    stacks (the others stand in a collective and it does not, or is the only one without a stack) or endings (the others timed out and it did not).
    """
    calls = calls_of(operations) if operations is not None else None
    operations = calls.every if calls is not None else None
    stacks: dict[int, dict[str, object]] = {}
    if last_calls is not None:
        for row in last_calls.collect().iter_rows(named=True):
            # Where an exception was raised is not where the time went, except inside a call that waits for others.
            if row["witness"] == "stack" or row["place"] in WAITING:
                stacks[row["rank"]] = row
    timed_out = rank_reports is not None and rank_reports.filter(pl.col("kind") == "barrier-missing").collect().height > 0
    timed_out |= (
        watchdog is not None and watchdog.filter(pl.col("kind").is_in(["timeout", "failure", "heartbeat-stuck"])).collect().height > 0
    )
    dead = ended_themselves(endings)
    if endings is not None:
        timed_out |= endings.filter(pl.col("kind") == "victim").collect().height > 0
    if gone_peers is not None:
        dead |= set(gone_peers.filter(pl.col("how") == "left").collect()["rank"].to_list())
    found: dict[int, dict[str, object]] = {}
    if blockers is not None:
        for row in blockers.collect().iter_rows(named=True):
            stack = stacks.get(row["rank"])
            if row["kind"] != "unseen" or row["walked"]:
                found[row["rank"]] = dict(row) | {"seen_by": "progress"}
            elif stack is not None and (stack["place"] not in WAITING or (stack["place"] == "collective" and stack["op"] != row["op"])):
                # Nothing of its progress is known, but it stands elsewhere than those who wait for it.
                kind = "other-call" if stack["place"] == "collective" else "unseen"
                found[row["rank"]] = dict(row) | {"kind": kind, "seen_by": "stacks"}
    all_wait = all(row["kind"] in ("unseen", "cycle") or (row["kind"] == "behind" and row["pending"]) for row in found.values())
    if calls is not None and progress is not None and all_wait and _recorded_open(progress):
        # What GPUs have begun tells more than ranks of which nothing is seen, and than ranks that wait themselves.
        late = {r: row | {"seen_by": "progress", "timed_out": timed_out} for r, row in not_begun(calls).items()}
        late = {} if late and finished_apart(progress) else late
        found = late or found
    stuck_gpu = any(row["kind"] in ("gpu", "not-begun") for row in found.values())
    jumped = jumped_groups(_with_absent(progress, groups), operations) if progress is not None and found and not stuck_gpu else {}
    if not jumped and found and calls is not None and not stuck_gpu:
        jumped = broken_steps(calls.recent())
    if not jumped and calls is not None and not stuck_gpu:
        jumped = passed_over([row for row in found.values() if row["kind"] == "behind"], calls)
    if jumped:
        swapped = _swapped(jumped, found)
        found = {rank: row for rank, row in found.items() if rank in jumped}
        for rank, (behind, ahead) in jumped.items():
            how: dict[str, object] = {"kind": "swapped", "partners": sorted(jumped)} if swapped else {"kind": "jumped"}
            found[rank] = {**found.get(rank, {}), **behind, **how, "ahead": ahead, "seen_by": "progress"}
        if calls is not None and fr_entries is not None and not swapped:
            for rank in by_another_path(calls, fr_entries, {r: ahead for r, (_, ahead) in jumped.items()}):
                found[rank]["another_path"] = True
    if rank_reports is not None:
        barriers = _barriers(rank_reports)
        beyond = _beyond_the_barrier(barriers, blockers) if blockers is not None and barriers else {}
        found = beyond or found
        for rank, row in barriers.items() if not beyond else ():
            found.setdefault(rank, row)
    on_host = {r for r in found if r in stacks and stacks[r]["witness"] == "stack" and stacks[r]["place"] not in (*WAITING, "unknown")}
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
    if progress is not None:
        stood = {r: stacks[r]["op"] for r, row in found.items() if row["kind"] == "behind" and r in stacks}
        apart = in_a_rooted_call(stood, progress)
        found = {r: row for r, row in found.items() if r not in apart}
    if progress is not None and stuck is not None and any(row["kind"] == "behind" for row in found.values()):
        # One that stands with all members of another group in an operation that none of them leaves is held up there as they are.
        held = held_together(stuck, progress)
        found = {r: row for r, row in found.items() if row["kind"] != "behind" or r not in held or r in on_host}
    # One that waits in a group of which nothing else is known: whoever it waits for is at the end of the walk.
    parted = divergences is not None and divergences.collect().height > 0
    if progress is not None:
        lone = alone_in_group(progress)
        known = set(lone["rank"].to_list())
        waiting = {r for r in found if r in known and r in stacks and stacks[r]["place"] == "collective"}
        found = {r: row for r, row in found.items() if r not in waiting}
        if waiting and not found and not parted and groups is not None:
            host = [r for r, s in stacks.items() if s["witness"] == "stack" and s["place"] not in (*WAITING, "unknown") and not s["moved"]]
            found = awaited_alone(lone.filter(pl.col("rank").is_in(sorted(waiting))), groups, progress, host)
    if not found and not parted and stacks:
        seen = {r: s for r, s in stacks.items() if s["witness"] == "stack"}
        # Where there are stacks, the stack views tell who stands apart; tracebacks alone are read here.
        found = _odd_stacks(seen) if seen else _odd_calls(stacks)
        if seen and not timed_out:
            # One look at a thread that sleeps in its own function tells nothing; the stack views weigh a second one.
            found = {rank: row for rank, row in found.items() if stacks[rank]["place"] != "user-code"}
        if found and not timed_out and not dead and progress is not None:
            # Recorders that are level do not speak for calls that differ.
            found = {
                rank: row
                for rank, row in found.items()
                if row["kind"] == "other-call"
                or not came_after_all(rank, as_ranks(row["waiters"]), row["op"], progress, stacks[rank]["place"])
            }
    if progress is not None and operations is not None and any(row["kind"] == "cycle" for row in found.values()):
        found = _odd_in_circle(found, progress, operations)
    if not found and not parted and not dead and endings is not None:
        found = silent(endings, progress)
        if not found and progress is not None and groups is not None:
            found = unheard_of(endings, progress, groups)
    if found:
        everybody = set(stacks) | (set(progress.select("rank").collect()["rank"].to_list()) if progress is not None else set())
        found = _gone_on(found, stacks, everybody) or found
    written = set(source_ranks.select("rank").collect()["rank"].drop_nulls().to_list()) if source_ranks is not None else set()
    found = _unanswering(found, stacks, progress, written - dead) or found
    if not timed_out and (_advancing(found, stacks) or (not dead and _moving_beside(found, stacks))):
        found = {}
    tail = tails(calls, found) if calls is not None else {}
    job = {r for members in groups.select("members").collect()["members"].to_list() for r in members or ()} if groups is not None else set()
    unheard = sorted(job - set(stacks) - dead)
    # Who made another call in place of its peers' did not leave one out.
    other = (
        divergences.filter(pl.col("kind") == "different").select("group_key", "ranks").collect().rows() if divergences is not None else []
    )
    another = {(group, rank) for group, ranks in other for rank in ranks or ()}
    circles = {tuple(as_ranks(row.get("cycle"))) for row in found.values() if row["kind"] == "cycle" and row.get("op") not in _P2P}
    rows: list[dict[str, object]] = []
    for rank in sorted(found):
        if rank in dead or (found[rank]["kind"] == "jumped" and (found[rank].get("group_key"), rank) in another):
            continue
        if tuple(as_ranks(found[rank].get("cycle"))) in circles:
            found[rank] = {**found[rank], "mixed": any(found[r].get("op") in _P2P for r in as_ranks(found[rank]["cycle"]) if r in found)}
        stall = _one_way(_classify(rank, found[rank], stacks, tail.get(rank)), stacks, unheard)
        rows += [stall] if stall is not None else []
    alone = [r for r in rows if r["seen_by"] == "progress" and r["place"] is None]
    goes_on, may = (
        still_enqueuing(progress, groups, len(alone)) if alone and progress is not None and groups is not None else (False, False)
    )
    if goes_on and not timed_out:
        # A job that goes on looks the same at the moment at which its recorders were looked at.
        rows = [r for r in rows if r not in alone]
    if not timed_out and progress is not None and (may or mostly_idle(progress, {_rank(r) for r in rows})):
        rows = [_unsure(r) if r["seen_by"] == "progress" and stacks.get(_rank(r), {}).get("witness") != "stack" else r for r in rows]
    known = set(progress.select("rank").collect()["rank"].to_list()) if progress is not None else set()
    bare = {r["rank"] for r in rows if r["cause"] in ("host-stall", "gpu-stall") and r["place"] is None and r["seen_by"] == "progress"}
    if len(known) >= 4 and len(bare) * 2 >= len(known):
        # Most of the job cannot be what the rest waits for: the end of the walk is not in the evidence, or is no rank at all.
        rows = [r for r in rows if r["rank"] not in bare]
    kinds = {rank: row.get("kind") for rank, row in found.items()}
    paused = [r for r in rows if kinds[_rank(r)] == "behind" and tail.get(_rank(r)) is not None]
    if not timed_out and len(paused) > FEW_UNSEEN and len(paused) * _PAUSED > len(known):
        # Logs that were copied while the job ran end an operation apart.
        rows = [r for r in rows if r not in paused]
    rows = in_circles(rows, stacks, job | known, sure=timed_out)
    # Files that are missing here and there were lost, and their ranks may wait as the others do.
    unseen = [_rank(r) for r in rows if r["cause"] == "host-stall" and kinds[_rank(r)] == "unseen" and r["rank"] not in stacks]
    # What GPUs have done, and recorders of a job that goes on do not know of yet, is left open here and there as well.
    gpus = [_rank(r) for r in rows if r["cause"] == "gpu-stall" and kinds[_rank(r)] == "gpu" and not timed_out]
    rows = [r for r in rows if not any(r["rank"] in ranks for ranks in (unseen, gpus) if scattered(ranks))]
    return pl.DataFrame(rows, schema=STALLS, infer_schema_length=None).lazy()


def _with_absent(progress: pl.LazyFrame, groups: pl.LazyFrame | None) -> pl.LazyFrame:
    """The same, with ranks that stand before an operation of a group of which their recorders hold nothing."""
    return progress if groups is None else pl.concat([progress, never_in(progress.collect(), groups).lazy()])


def _rank(row: Mapping[str, object]) -> int:
    return int(str(row["rank"]))


def _unsure(row: dict[str, object]) -> dict[str, object]:
    """A stall that may be a moment of a job that goes on."""
    why = f"{row['why']}; nothing has timed out, and hosts stand here and there or most ranks have nothing open, as in a job that goes on"
    return row | {"confidence": "low", "why": why}


def _recorded_open(progress: pl.LazyFrame) -> bool:
    """Whether a recorder holds work that is not completed: NCCL's lines, which may be many, are looked through for nothing else."""
    return progress.filter((pl.col("domain") == "fr") & pl.col("first_pending").is_not_null()).head(1).collect().height > 0


def _swapped(jumped: Mapping[int, tuple[Mapping[str, object], object]], found: dict[int, dict[str, object]]) -> bool:
    """Whether several ranks passed over an operation, each of another group, and so wait for each other in a circle.

    One rank that leaves out a call of one of two groups that cross closes no circle: the other members of its next group have passed, and it goes
    on. Where several do so at once, an order of groups of their own is likelier than as many calls left out by chance.
    """
    circle = {r for r, row in found.items() if row["kind"] == "cycle"}
    return len(jumped) > 1 and set(jumped) <= circle and len({behind.get("group_key") for behind, _ in jumped.values()}) == len(jumped)


#: One rank in so many that ends before its peers: then they are no exception.
_PAUSED = 4


def _unanswering(
    found: dict[int, dict[str, object]], stacks: dict[int, dict[str, object]], progress: pl.LazyFrame | None, written: set[int]
) -> dict[int, dict[str, object]]:
    """The one rank that wrote something (``written``: ranks that did) and answered neither the sampler nor the request for a dump, where all
    others did both, stand still in calls that wait, and at most in sends and receives of which nobody knows the other half."""
    looked = {r: s for r, s in stacks.items() if s["witness"] == "stack"}
    silent = written - set(stacks)
    if len(silent) != 1 or written - silent != set(looked) or len(looked) < _LEAST_LOOKED or progress is None:
        return {}
    recorder = progress.filter(pl.col("domain") == "fr").select("rank", "first_pending").collect()
    # A wait for a request leaves no frame: what its recorder has not finished tells of it.
    pending = set(recorder.filter(pl.col("first_pending").is_not_null())["rank"].to_list())
    waits = {r for r, s in looked.items() if s["place"] in WAITING or (s["place"] == "user-code" and r in pending)}
    if set(recorder["rank"].to_list()) != set(looked) or waits != set(looked) or any(s["moved"] for s in looked.values()):
        return {}
    if any(row["kind"] != "unseen" and (row["kind"] != "behind" or looked[r]["place"] != "p2p") for r, row in found.items()):
        return {}
    if len({looked[r]["op"] for r in found if r in looked}) < len([r for r in found if r in looked]):
        return {}  # two in the same half may wait for each other
    first = next(iter(found.values()), {})
    peer = looked[min(looked)]
    place = {k: first.get(k, peer.get(k)) for k in (*_WAITED_IN, "op", "source_id", "line_no", "record")}
    return {r: place | {"kind": "unanswered", "waiters": sorted(looked), "seen_by": "stacks"} for r in silent}


#: What an edge tells of the operation that is waited in.
_WAITED_IN = ("domain", "group_key", "group_name", "group_desc", "comm_id", "seq", "call_site", "in_group")
#: Stacks of so many others at least, before one that is missing says anything.
_LEAST_LOOKED = 3


def _barriers(reports: pl.LazyFrame) -> dict[int, dict[str, object]]:
    """Ranks that monitored barriers name as missing. A line that names one may have stopped at the first."""
    lines = reports.filter((pl.col("kind") == "barrier-missing") & pl.col("ranks").is_not_null()).sort("source_id", "line_no").collect()
    named: dict[int, dict[str, object]] = {}
    for row in lines.iter_rows(named=True):
        for rank in row["ranks"]:
            named.setdefault(
                rank,
                {
                    "kind": "barrier",
                    "waiters": [],
                    "op": "monitored_barrier",
                    "source_id": row["source_id"],
                    "line_no": row["line_no"],
                    "seen_by": "barrier",
                },
            )
    return named


def _advancing(found: dict[int, dict[str, object]], stacks: dict[int, dict[str, object]]) -> bool:
    """Whether most of those who wait, or half of all, moved between two samples of their stacks: a job that advances is slow, not stuck."""
    looked = [s["moved"] for s in stacks.values() if s["witness"] == "stack" and s["moved"] is not None]
    if sum(bool(m) for m in looked) > 1 and sum(bool(m) for m in looked) * 2 >= len(looked):
        return True
    waiters = {w for row in found.values() for w in as_ranks(row["waiters"])} - set(found)
    waiters = waiters or set(stacks) - set(found)
    sampled = [stacks[w]["moved"] for w in waiters if w in stacks and stacks[w]["witness"] == "stack" and stacks[w]["moved"] is not None]
    return len(sampled) > 1 and sum(bool(m) for m in sampled) * 2 > len(sampled)


def _moving_beside(found: dict[int, dict[str, object]], stacks: dict[int, dict[str, object]]) -> bool:
    """Whether stacks alone single ranks out, and another rank moved between two samples: nothing else says that the job stood still."""
    return all(row["seen_by"] == "stacks" for row in found.values()) and any(s["moved"] for r, s in stacks.items() if r not in found)


def _gone_on(found: dict[int, dict[str, object]], stacks: dict[int, dict[str, object]], known: set[int]) -> dict[int, dict[str, object]]:
    """The few that wait for most ranks, where all of these stand in one line in a call that waits as well: they never joined that call.

    Calls that no recorder holds (a new group, a monitored barrier) show in stacks only, so that the walk ends at those who keep to the rule.
    """
    lines = {(stacks[r]["op"], stacks[r]["user_frame"]) if r in stacks and stacks[r]["place"] == "collective" else None for r in found}
    few = sorted({w for row in found.values() for w in as_ranks(row["waiters"])} - set(found))
    if len(lines) != 1 or None in lines or not few or len(few) * 2 >= len(found) + len(few) or len(found) * 2 <= len(known):
        return found
    if any(row["kind"] not in ("behind", "unseen") or row["op"] == stacks[r]["op"] for r, row in found.items()):
        return found
    peer = next(iter(sorted(found)))
    own = {name: found[peer].get(name) for name in ("source_id", "line_no", "record")}
    said = {
        "kind": "gone-on",
        "waiters": sorted(found),
        "op": stacks[peer]["op"],
        "call_site": stacks[peer]["user_frame"],
        "seen_by": "stacks",
        "later": f"{found[peer]['op']} #{found[peer]['seq']}",
        **{name: stacks[peer][name] for name in ("source_id", "line_no", "record")},
        **{f"own_{name}": value for name, value in own.items()},
    }
    return {rank: said for rank in few if rank in stacks}


def _odd_in_circle(found: dict[int, dict[str, object]], progress: pl.LazyFrame, operations: pl.LazyFrame) -> dict[int, dict[str, object]]:
    """Of ranks that wait in a circle, those that are not where most ranks are that have groups as they have; all of them where there is no such
    majority.

    Where a rank is, is how far it got in each of its groups; groups of one description are alike, as are those of data or tensor
    parallelism. Whoever did what most did is not the one that changed the order.
    """
    described = operations.filter(pl.col("domain") == "fr").select("group_key", "group_desc").unique()
    state = (
        progress.filter((pl.col("domain") == "fr") & pl.col("last_seq").is_not_null())
        .join(described, on="group_key", how="left")
        .with_columns(role=pl.coalesce("group_desc", "group_key"))
        .sort("rank", "role")
        .group_by("rank", maintain_order=True)
        .agg(pl.col("role"), pl.col("last_seq"))
        .collect()
    )
    where = {rank: (tuple(roles), tuple(seqs)) for rank, roles, seqs in state.iter_rows()}
    alike: dict[tuple[str, ...], Counter[tuple[int, ...]]] = defaultdict(Counter)
    for roles, seqs in where.values():
        alike[roles][seqs] += 1
    usual = {roles: told.most_common(1)[0] for roles, told in alike.items()}
    circle = {r for r, row in found.items() if row["kind"] == "cycle"}
    if any(r not in where or usual[where[r][0]][1] * 2 <= alike[where[r][0]].total() for r in circle):
        return found
    odd = {r for r in circle if where[r][1] != usual[where[r][0]][0]}
    if not odd or odd == circle:
        return found
    return {r: row | {"odd": True} if r in odd else row for r, row in found.items() if r not in circle or r in odd}


def _beyond_the_barrier(barriers: dict[int, dict[str, object]], blockers: pl.LazyFrame) -> dict[int, dict[str, object]]:
    """Ranks that a barrier names as missing and that wait, in a later operation, for those who stand at the barrier."""
    ends = blockers.filter(pl.col("kind") == "behind").collect().to_dicts()
    out: dict[int, dict[str, object]] = {}
    for row in ends:
        for rank in row["direct_waiters"]:
            if rank in barriers and row["rank"] not in barriers:
                out[rank] = (
                    barriers[rank]
                    | {k: row[k] for k in ("domain", "group_key", "group_name", "group_desc", "comm_id")}
                    | {
                        "kind": "beyond",
                        "waiters": sorted({r["rank"] for r in ends} - set(barriers)),
                        "later": f"{row['op']} #{row['seq']}",
                        "own_source_id": row["source_id"],
                        "own_line_no": row["line_no"],
                        "own_record": row["record"],
                    }
                )
    return out


def _odd_stacks(stacks: dict[int, dict[str, object]]) -> dict[int, dict[str, object]]:
    """Where most ranks stand in one collective, the few that do not (and are not moving)."""
    waiting = {r: s for r, s in stacks.items() if s["place"] in WAITING}
    others = {r: s for r, s in stacks.items() if r not in waiting and not s["moved"]}
    if len(waiting) < 2 or not others or len(others) * 2 >= len(stacks):
        return {}
    op = Counter(str(s["op"]) for s in waiting.values()).most_common(1)[0][0]
    peer = next(s for s in waiting.values() if str(s["op"]) == op)
    return {
        r: {
            "kind": "stack",
            "waiters": sorted(waiting),
            "op": peer["op"],
            "call_site": peer["user_frame"],
            "source_id": peer["source_id"],
            "line_no": peer["line_no"],
            "record": peer["record"],
            "seen_by": "stacks",
        }
        for r in others
    }


def _odd_calls(stacks: dict[int, dict[str, object]]) -> dict[int, dict[str, object]]:
    """Where all ranks stand (or died) in collectives, the few that do in another one than the rest."""
    calls = {r: (str(s["op"]), str(s["user_frame"])) for r, s in stacks.items() if s["place"] == "collective"}
    counted = Counter(op for op, _ in calls.values()).most_common()
    if len(counted) < 2 or len(calls) < 3:
        return {}
    (usual, most), rest = counted[0], sum(n for _, n in counted[1:])
    if rest * 2 >= most:
        return {}
    peers = sorted(r for r, (op, _) in calls.items() if op == usual)
    peer = stacks[peers[0]]
    return {
        r: {
            "kind": "other-call",
            "waiters": peers,
            "op": usual,
            "call_site": peer["user_frame"],
            "source_id": peer["source_id"],
            "line_no": peer["line_no"],
            "record": peer["record"],
            "seen_by": "stacks",
        }
        for r, (op, _) in calls.items()
        if op != usual
    }


def _one_way(row: dict[str, object] | None, stacks: dict[int, dict[str, object]], unheard: list[int]) -> dict[str, object] | None:
    """A stall; where all that stand in p2p calls receive, or all send, and somebody's stack is missing, a deadlock among them is a guess: a
    row of stages that wait for one behind them looks the same."""
    if row is None or row["cause"] != "p2p-deadlock" or row["place"] != "p2p" or not row["partners"] or not unheard:
        return row
    if len({stacks[r]["op"] for r in (row["rank"], *as_ranks(row["partners"])) if r in stacks}) > 1:
        return row
    missing = (
        f"{row['why']}; of {ranks_words(unheard)} there is no stack, and all of them may wait for {verb(unheard, 'it', 'one of these')}"
    )
    return row | {"confidence": "low", "why": missing}


def _classify(rank: int, row: dict[str, object], stacks: dict[int, dict[str, object]], tail: str | None) -> dict[str, object] | None:
    stack = stacks.get(rank)
    place = str(stack["place"]) if stack else None
    base = {name: row.get(name) for name in STALLS if name in row} | {
        "rank": rank,
        "place": place,
        "user_frame": stack["user_frame"] if stack else None,
        "stack_source_id": stack["source_id"] if stack else None,
        "stack_line_no": stack["line_no"] if stack else None,
        "stack_record": stack["record"] if stack else None,
        "partners": [],
    }
    others = [r for r, s in stacks.items() if s["place"] in WAITING and r != rank]
    sure = len(others) >= 1
    if stack is not None and place == "p2p":
        # Of two that wait for each other both send, or both receive: a send would end the other's receive.
        # Where somebody stands in the other half, each of them may wait for that one, as those do who send to a rank that waits for another.
        answers = {"send": "recv", "recv": "send"}.get(str(stack["op"]))
        pairs = {r: s["op"] for r, s in stacks.items() if s["place"] == "p2p" and r != rank}
        partners = sorted(pairs) if answers not in pairs.values() else []
        why = f"it stands in {stack['op'] or 'a wait for others'} at {stack['user_frame']}" + (
            ", and so does its partner" if partners else ""
        )
        return base | {"cause": "p2p-deadlock", "confidence": "high" if partners else "medium", "partners": partners, "why": why}
    if row.get("kind") == "other-call" and stack is not None:
        same = split_frame(str(stack["user_frame"] or ""))[0] == split_frame(str(row.get("call_site") or ""))[0]
        why = f"it stands in {stack['op'] or 'a wait for others'} at {stack['user_frame']} while its peers stand in {row['op']} at {row['call_site']}"
        return base | {"cause": "collective-mismatch" if same else "collective-skipped", "confidence": "medium", "why": why}
    if row.get("kind") == "swapped":
        why = (
            f"each entered the next operation of another group ({row['ahead']}) without {row['op']} #{row['seq']} of its own, and they wait for each "
            "other in a circle: they took the groups in another order, or left the call out"
        )
        return base | {"cause": "group-deadlock", "confidence": "medium", "partners": row["partners"], "why": why}
    if row.get("kind") == "jumped":
        why = (
            f"it never entered {row['op']} #{row['seq']} of this group and went on to the next operation of another group ({row['ahead']})"
        )
        if row.get("domain") == "nccl":
            # Lines of a log bear no number over all groups: one that was lost looks like a call left out.
            return base | {
                "cause": "collective-skipped",
                "confidence": "medium",
                "why": f"{why}; a line lost from its log would look the same",
            }
        if row.get("another_path"):
            # Whoever is held up in the call that it went on to never comes to what it would have called next.
            order = f"{why}, to which it came by another path through the program than before: it may as well have taken the two in another order"
            return base | {"cause": "collective-skipped", "confidence": "medium", "why": order}
        # A word that no operation bears is more likely a damaged record.
        known = row["op"] is None or row["op"] in OP_WORDS
        return base | {"cause": "collective-skipped", "confidence": "high" if known else "medium", "why": why}
    if row.get("kind") == "beyond":
        why = f"a monitored barrier names it as missing while it stands beyond that barrier, in {row['later']}, which the others never entered"
        return base | {"cause": "collective-skipped", "confidence": "high", "why": why}
    if row.get("kind") == "gone-on":
        why = f"it went on to {row['later']} while most stand in {row['op']} at {row['call_site']}, which it never joined"
        return base | {"cause": "collective-skipped", "confidence": "medium", "why": why}
    if row.get("kind") == "cycle":
        cycle = row.get("cycle")
        if row.get("mixed"):
            # A stage that is a step ahead closes such a circle too: whoever left a call out need not stand in it alone.
            why = f"ranks {cycle} wait for each other, some in sends and receives and some in collectives"
            return base | {"cause": "group-deadlock", "confidence": "low", "partners": cycle, "why": why}
        if row.get("op") in _P2P:
            why = f"ranks {cycle} wait for each other's send or receive in a circle"
            return base | {"cause": "p2p-deadlock", "confidence": "high", "partners": cycle, "why": why}
        if row.get("odd"):
            why = f"it never entered {row['op']} #{row['seq']} and went on in another group; most ranks that have groups as it has did otherwise"
            return base | {"cause": "collective-skipped", "confidence": "medium", "why": why}
        why = f"ranks {cycle} wait for each other in different groups"
        return base | {"cause": "group-deadlock", "confidence": "medium", "partners": cycle, "why": why}
    if stack is not None and place in _INPUT:
        how = str(stack["reason"])
        return base | {
            "cause": "input-stall",
            "confidence": "high" if sure or row["seen_by"] != "stacks" else "medium",
            "why": f"its stack is in its data loading ({how})",
        }
    # What its host has enqueued, and its GPU not done, is past: where an idle thread stands in its own function, it waits for that GPU.
    waits_for_gpu = place == "user-code" and row.get("kind") in ("gpu", "not-begun")
    if stack is not None and place in _HOST and not waits_for_gpu:
        return base | {
            "cause": "host-stall",
            # An idle thread in the user's own function may wait in a call that leaves no Python frame (Work.wait, a copy from the GPU).
            "confidence": ("low" if row["seen_by"] == "stacks" else "medium")
            if place == "user-code"
            else "high"
            if place != "import" and (sure or row["seen_by"] != "stacks")
            else "medium",
            "why": f"its stack is outside any collective: {place} ({stack['reason']})",
        }
    if row.get("kind") == "not-begun":
        why = (
            f"the GPUs of its peers have begun {row['op']} #{row['seq']}, and its own has not come to it though it is enqueued: work before it holds "
            "it up"
        )
        return base | {"cause": "gpu-stall", "confidence": "medium" if row["timed_out"] else "low", "why": why}
    if row.get("kind") == "gpu":
        why = "work is enqueued on its GPU that its peers of the same group have long completed"
        if row.get("own_record") is None:
            # A watchdog's line counts the calls of its rank: where that rank left some out, its numbers fall behind in the same way.
            return base | {"cause": "gpu-stall", "confidence": "medium", "why": f"{why}, by the count of its watchdog"}
        return base | {"cause": "gpu-stall", "confidence": "high", "why": why}
    # A rank with open work of its own waits for its GPU as all those do that wait for it: that tells nothing of this one.
    alike = [r for r in as_ranks(row.get("waiters")) if r in stacks and stacks[r]["place"] == place]
    if stack is not None and place in ("cuda-sync", "backward") and not (row.get("pending") and len(alike) > 1):
        return base | {
            "cause": "gpu-stall" if place == "cuda-sync" else "host-stall",
            "confidence": "low",
            "why": f"its stack waits in {place} ({stack['reason']})",
        }
    if stack is not None and place == "collective" and row.get("own_last_op") == stack["op"] and row.get("pending") is not False:
        # It is in this very group, in an operation that others have left: a broadcast that ends for each member by itself. Who is wrong about
        # it (the root, a count) no place tells.
        return None
    if stack is not None and place == "collective":
        return base | {
            "cause": "group-deadlock",
            "confidence": "low",
            "why": f"it stands in {stack['op'] or 'a wait for others'} at {stack['user_frame']} that its peers are not in",
        }
    if row.get("kind") == "barrier":
        return base | {"cause": "host-stall", "confidence": "medium", "why": "a monitored barrier names it as missing"}
    if row.get("kind") == "unseen" and stack is None:
        why = "the waits of all others end at it, and nothing in the evidence comes from it"
        return base | {"cause": "host-stall", "confidence": "low", "why": why}
    if row.get("kind") == "unanswered":
        why = "it answered neither the sampler nor the request for a dump, as a process that is stopped or in a system call does; all others wait"
        return base | {"cause": "host-stall", "confidence": "low", "why": why}
    if row.get("kind") == "silent":
        why = "it was alive until the launcher stopped it and never timed out itself, as those did that waited"
        return base | {"cause": "host-stall", "confidence": "low", "why": why}
    if row.get("kind") == "behind":
        if tail == "boundary":
            return base | {
                "cause": "collective-skipped",
                "confidence": "medium",
                "why": "its log ends after a whole number of steps, in which it called fewer collectives than its peers, and nothing says that it died",
            }
        if row.get("pending"):
            return None  # What all members entered and none finished keeps it where it is, or a send or receive of its own.
        if row.get("domain") == "nccl":
            return base | {"cause": "host-stall", "confidence": "low", "why": "its log ends before an operation that its peers entered"}
        if row.get("pending") is False:
            why = "everything it enqueued is completed and it enqueued nothing more, while its peers wait"
            if row.get("own_record") is None:
                # A watchdog's line counts the calls of its rank and names none, so that one left out at the end looks the same.
                return base | {"cause": "host-stall", "confidence": "medium", "why": f"{why}; whether it left the call out no line tells"}
            return base | {"cause": "host-stall", "confidence": "high", "why": why}
        return base | {"cause": "host-stall", "confidence": "medium", "why": "it never entered an operation that its peers wait in"}
    return None
