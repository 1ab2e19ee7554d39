"""Ranks that stand apart from their peers: by their stacks, by a monitored barrier, in a circle of waits; and jobs whose ranks move."""

from __future__ import annotations

from collections import Counter, defaultdict

import polars as pl

from nccl_forensics.evidence import PLACE
from nccl_forensics.frames import ranks_in
from nccl_forensics.stacks.places import PLAIN, WAITING
from nccl_forensics.stacks.tree import parting
from nccl_forensics.values.ranklist import as_ranks
from nccl_forensics.views.levels import ROOTED
from nccl_forensics.views.sibling_stages import batches, last_posted, posted_alike, posted_as_many, siblings

#: What an edge tells of the operation that is waited in.
_WAITED_IN = ("domain", "group_key", "group_name", "group_desc", "comm_id", "seq", "call_site", "in_group")
#: Stacks of so many others at least, before one that is missing says anything.
_LEAST_LOOKED = 3


def unanswering(
    found: dict[int, dict[str, object]], stacks: dict[int, dict[str, object]], progress: pl.LazyFrame | None, written: set[int]
) -> dict[int, dict[str, object]]:
    """The one rank that wrote something (``written``: ranks that did) and answered neither the sampler nor the request for a dump, where
    all others did both, stand still in calls that wait, and at most in sends and receives of which nobody knows the other half."""
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


def missing_at_barriers(
    reports: pl.LazyFrame, blockers: pl.LazyFrame | None, found: dict[int, dict[str, object]]
) -> dict[int, dict[str, object]]:
    """``found`` and the ranks that monitored barriers name as missing; where some of these wait beyond the barrier for those who stand at
    it, these alone."""
    barriers = _barriers(reports)
    beyond = _beyond_the_barrier(barriers, blockers) if blockers is not None and barriers else {}
    return beyond or found | {rank: row for rank, row in barriers.items() if rank not in found}


def _barriers(reports: pl.LazyFrame) -> dict[int, dict[str, object]]:
    """Ranks that monitored barriers name as missing. A line that names one may have stopped at the first. ``reached``: the rank itself says
    that it came to a barrier, so that it came late, or to another one."""
    came = ranks_in(reports, pl.col("kind") == "barrier-ok")
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
                    "reached": rank in came,
                },
            )
    return named


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


def gone_on(found: dict[int, dict[str, object]], stacks: dict[int, dict[str, object]], known: set[int]) -> dict[int, dict[str, object]]:
    """The few that wait for most ranks, where all of these stand in one line in a call that waits as well: they never joined that call.

    Calls that no recorder holds (a new group, a monitored barrier) show in stacks only, so that the walk ends at those who keep to the
    rule.
    """
    lines = {(stacks[r]["op"], stacks[r]["user_frame"]) if r in stacks and stacks[r]["place"] == "collective" else None for r in found}
    few = sorted({w for row in found.values() for w in as_ranks(row["waiters"])} - set(found))
    if len(lines) != 1 or None in lines or not few or len(few) * 2 >= len(found) + len(few) or len(found) * 2 <= len(known):
        return found
    if any(row["kind"] not in ("behind", "unseen", "other-call") or row["op"] == stacks[r]["op"] for r, row in found.items()):
        return found
    if any(stacks[r]["op"] in ROOTED for r in found):
        return found  # recorders hold such a call, and whoever only sends or receives in it has left it while the others stand there
    peer = next(iter(sorted(found)))
    own = {name: found[peer].get(name) for name in PLACE}
    said = {
        "kind": "gone-on",
        "waiters": sorted(found),
        "op": stacks[peer]["op"],
        "call_site": stacks[peer]["user_frame"],
        "seen_by": "stacks",
        "later": f"{found[peer]['op']} #{found[peer]['seq']}",
        **{name: stacks[peer][name] for name in PLACE},
        **{f"own_{name}": value for name, value in own.items()},
    }
    return {rank: said for rank in few if rank in stacks}


def odd_in_circle(
    found: dict[int, dict[str, object]], progress: pl.LazyFrame, operations: pl.LazyFrame, groups: pl.LazyFrame | None = None
) -> dict[int, dict[str, object]]:
    """Of ranks that wait in a circle, those that are not where most ranks are that have groups as they have; all of them where there is no
    such majority.

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
    placed = all(r in where and usual[where[r][0]][1] * 2 > alike[where[r][0]].total() for r in circle)
    odd = {r for r in circle if where[r][1] != usual[where[r][0]][0]} if placed else set()
    # Whoever waits in a send or receive is held up there, and went on to nothing.
    held = {w for r in circle if found[r].get("op") in ("send", "recv") for w in as_ranks(found[r].get("in_group"))}
    if not odd or odd == circle or not odd.isdisjoint(held):
        odd = _odd_in_sends(circle, operations, groups) or _with_a_new_peer(circle, operations)
    if not odd:
        return found
    return {r: row | {"odd": True} if r in odd else row for r, row in found.items() if r not in circle or r in odd}


def _odd_in_sends(circle: set[int], operations: pl.LazyFrame, groups: pl.LazyFrame | None) -> set[int]:
    """Those of a circle who have not posted as many sends and receives as all at their place of other pipelines, where the others of it
    have: they left some out, or went on to some behind what they left out. Where all have posted as many, those who sent to another stage
    or received from another."""
    posted = last_posted(operations)
    if groups is None or not posted:
        return set()
    info = {str(g["group_key"]): g for g in groups.filter(pl.col("domain") == "fr").collect().iter_rows(named=True)}
    asked = [(key, rank) for key, rank in posted if rank in circle and key in info]
    told = [(rank, posted_as_many(posted, key, rank, info)) for key, rank in asked]
    if {rank for rank, usual in told if usual} == circle:
        ranks = circle | {r for key, rank in asked for _, r in siblings(key, rank, info)}
        halves = operations.filter((pl.col("domain") == "fr") & pl.col("is_p2p") & pl.col("rank").is_in(sorted(ranks)))
        halves = halves.filter(pl.col("op").is_in(["send", "recv"])).select("group_key", "rank", "seq", "op", "peer")
        made = batches(halves.collect())
        told = [(rank, posted_alike(made, key, rank, info)) for key, rank in asked]
    odd = {rank for rank, usual in told if usual is False}
    return odd if odd != circle and odd | {rank for rank, usual in told if usual} == circle else set()


#: So many sends and receives tell with whom a rank exchanges anything: a step of a short pipeline has as many.
_EXCHANGES = 16
#: As many of them with one peer are no slip.
_AS_EVER = 4


def _with_a_new_peer(circle: set[int], operations: pl.LazyFrame) -> set[int]:
    """The one of a circle that posted a single send or receive with a peer, which is not over, and many with others, where all others of the
    circle exchanged with each of their peers as ever."""
    halves = operations.filter((pl.col("domain") == "fr") & pl.col("is_p2p") & pl.col("rank").is_in(sorted(circle)))
    met = (
        halves.filter(pl.col("op").is_in(["send", "recv"]) & pl.col("peer").is_not_null())
        .group_by("rank", "group_key", "peer")
        .agg(posted=pl.len(), over=pl.col("done").any())
        .collect()
    )
    slip = (pl.col("posted") == 1) & ~pl.col("over").fill_null(value=False)
    told = met.group_by("rank").agg(slips=slip.sum(), usual=(slip | (pl.col("posted") >= _AS_EVER)).all(), posted=pl.col("posted").sum())
    told = told.filter(pl.col("usual") & (pl.col("posted") >= _EXCHANGES))
    new = told.filter(pl.col("slips") > 0)["rank"].to_list()
    return set(new) if len(new) == 1 and set(told["rank"].to_list()) == circle else set()


def odd_stacks(stacks: dict[int, dict[str, object]], *, sure: bool = False) -> dict[int, dict[str, object]]:
    """Where most ranks stand in one collective, the few that do not (and are not moving). ``sure``: who waits has given up; then these may
    be half of all, all at one line that tells what they do, and the others at one as well."""
    waiting = {r: s for r, s in stacks.items() if s["place"] in WAITING}
    others = {r: s for r, s in stacks.items() if r not in waiting and not s["moved"]}
    if len(waiting) < 2 or not others or len(others) * 2 > len(stacks):
        return {}
    lines = [{s["user_frame"] for s in side.values()} for side in (waiting, others)]
    half = sure and all(len(side) == 1 for side in lines) and all(s["place"] not in PLAIN for s in others.values())
    if len(others) * 2 == len(stacks) and not half:
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


def odd_calls(stacks: dict[int, dict[str, object]]) -> dict[int, dict[str, object]]:
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
            "parts_at": parting(stacks[r].get("frames"), peer.get("frames")),
        }
        for r, (op, _) in calls.items()
        if op != usual
    }


def advancing(found: dict[int, dict[str, object]], stacks: dict[int, dict[str, object]]) -> bool:
    """Whether most of those who wait moved between two samples of their stacks: a job that advances is slow, not stuck."""
    waiters = {w for row in found.values() for w in as_ranks(row["waiters"])} - set(found)
    waiters = waiters or set(stacks) - set(found)
    sampled = [stacks[w]["moved"] for w in waiters if w in stacks and stacks[w]["witness"] == "stack" and stacks[w]["moved"] is not None]
    return len(sampled) > 1 and sum(bool(m) for m in sampled) * 2 > len(sampled)


def moving_beside(found: dict[int, dict[str, object]], stacks: dict[int, dict[str, object]]) -> bool:
    """Whether stacks alone single ranks out, and another rank moved between two samples: nothing else says that the job stood still."""
    return all(row["seen_by"] == "stacks" for row in found.values()) and any(s["moved"] for r, s in stacks.items() if r not in found)
