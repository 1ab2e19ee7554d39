"""Ranks whose stacks stand beside each other: in sends and receives, with the rank that each is for, and in one line of code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from nccl_forensics.evidence import PLACE
from nccl_forensics.stacks.places import OWN_HOST, WAITING
from nccl_forensics.values.ranklist import as_ranks
from nccl_forensics.views.wait_edges import OTHER_HALF
from nccl_forensics.words import ranks_words

#: Places of a host at work, at which a look may find a rank of a job that goes on.
_AT_WORK = ("data-loader", "user-code", "compute")
#: One rank in so many: at a line of the program many may stand, in a wait that leaves no frame.
_FEW_AT_A_LINE = 4


def circles(stacks: Mapping[int, Mapping[str, object]], job: Collection[int]) -> dict[int, list[int]]:
    """Ranks that wait for each other in sends and receives, each with all of its circle.

    Whom a send or a receive is for stands in the arguments of the call, where they were taken too (``peer``); in a job of two ranks it can
    only be the other one. A rank whose peer stands in the half that answers it waits for nobody.
    """
    awaited: dict[int, int] = {}
    for rank, row in stacks.items():
        if row["place"] != "p2p" or row["op"] not in OTHER_HALF:
            continue
        peer = _peer(rank, row, job)
        other = stacks.get(peer) if peer is not None else None
        if peer is None or other is None or other["place"] != "p2p":
            continue
        # The half that ends a wait in this one.
        if other["op"] == OTHER_HALF[str(row["op"])] and _peer(peer, other, job) in (rank, None):
            continue
        awaited[rank] = peer
    found: dict[int, list[int]] = {}
    for rank in awaited:
        walked = [rank]
        while (following := awaited.get(walked[-1])) is not None and following not in walked:
            walked.append(following)
        if following == rank:
            found[rank] = sorted(walked)
    return found


def _peer(rank: int, row: Mapping[str, object], job: Collection[int]) -> int | None:
    told = row.get("peer")
    if told is not None:
        return int(str(told))
    others = set(job) - {rank}
    return others.pop() if len(others) == 1 and rank in job else None


def in_circles(
    rows: list[dict[str, object]], stacks: Mapping[int, dict[str, object]], job: Collection[int], *, sure: bool
) -> list[dict[str, object]]:
    """The rows of stalls, with those of ranks that wait for each other in sends and receives in place of what else stands in such calls:
    who waits for one of a circle is no part of it."""
    pairs = circles(stacks, job)
    if not pairs:
        return rows
    kept = {int(str(r["rank"])): r for r in rows}
    out: list[dict[str, object]] = [r for r in rows if r["place"] != "p2p" and r["rank"] not in pairs]
    waiting = sorted(r for r, s in stacks.items() if s["place"] in WAITING and r not in pairs)
    for rank, circle in sorted(pairs.items()):
        own, partner = stacks[rank], stacks[circle[circle.index(rank) - 1]]
        twice = own["moved"] is False and partner["moved"] is False
        place = {name: partner[name] for name in PLACE} | {
            "op": partner["op"],
            "waiters": waiting,
            "seen_by": "stacks",
        }
        out.append(
            place
            | kept.get(rank, {})
            | {
                "rank": rank,
                "cause": "p2p-deadlock",
                "confidence": "high" if sure or twice else "medium",
                "place": "p2p",
                "user_frame": own["user_frame"],
                "partners": circle,
                "why": f"{ranks_words(circle)} wait for each other's send or receive in a circle, in {own['op']} at {own['user_frame']}",
                **{f"stack_{name}": own[name] for name in PLACE},
            }
        )
    return out


def halted_alike(
    found: Mapping[int, dict[str, object]], stacks: Mapping[int, Mapping[str, object]], *, sure: bool
) -> dict[int, dict[str, object]]:
    """Ranks whose hosts stand at the very line of one at which the waits end, where hardly anybody else does: what stopped that one has
    stopped them too, and their waits, for what they had enqueued before, only lead to it. ``sure``: one look at a stack is enough."""
    lines = {r: (s["place"], s["user_frame"]) for r, s in stacks.items() if s["witness"] == "stack" and s["user_frame"] is not None}
    there = Counter(lines.values())
    ends: dict[tuple[object, object], dict[str, object]] = {}
    for rank, row in sorted(found.items()):
        if rank in lines and row["kind"] in ("behind", "unseen"):
            ends.setdefault(lines[rank], row)
    alike: dict[int, dict[str, object]] = {}
    for rank, line in lines.items():
        told = line[0] in OWN_HOST or (line[0] in _AT_WORK and (sure or stacks[rank]["moved"] is False))
        few = there[line] * (2 if line[0] in OWN_HOST else _FEW_AT_A_LINE) <= len(lines)
        if rank not in found and line in ends and told and few:
            alike[rank] = ends[line] | {"rank": rank, "own_source_id": None, "own_line_no": None, "own_record": None}
    return alike


def beside_waiters(found: Mapping[int, Mapping[str, object]], stacks: Mapping[int, Mapping[str, object]]) -> set[int]:
    """Ranks of whose operations nothing is known that stand in the very line in which most of those stand that wait for them, or that have
    some open and stand where most of all stand: they wait as those do, in a call that leaves no frame (a copy from the GPU)."""
    everywhere = Counter(s["user_frame"] for s in stacks.values())
    beside: set[int] = set()
    for rank, row in found.items():
        own = stacks.get(rank)
        if own is None or not own["user_frame"]:
            continue
        line = own["user_frame"]
        if row["kind"] == "behind" and row["pending"] and own["place"] == "user-code":
            there, others = everywhere[line] - 1, len(stacks) - 1
        elif row["kind"] == "unseen":
            lines = [stacks[w]["user_frame"] for w in as_ranks(row["waiters"]) if w in stacks and w not in found]
            there, others = lines.count(line), len(lines)
        else:
            continue
        if others > 1 and there * 2 > others:
            beside.add(rank)
    return beside
