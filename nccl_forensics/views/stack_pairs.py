"""Sends and receives in which stacks stand, with the rank that each is for."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from nccl_forensics.stack_places import WAITING

#: The half that ends a wait in this one.
_ANSWERS = {"send": "recv", "recv": "send"}


def circles(stacks: Mapping[int, Mapping[str, object]], job: Collection[int]) -> dict[int, list[int]]:
    """Ranks that wait for each other in sends and receives, each with all of its circle.

    Whom a send or a receive is for stands in the arguments of the call, where they were taken too (``peer``); in a job of two ranks it can only be
    the other one. A rank whose peer stands in the half that answers it waits for nobody.
    """
    awaited: dict[int, int] = {}
    for rank, row in stacks.items():
        if row["place"] != "p2p" or row["op"] not in _ANSWERS:
            continue
        peer = _peer(rank, row, job)
        other = stacks.get(peer) if peer is not None else None
        if peer is None or other is None or other["place"] != "p2p":
            continue
        if other["op"] == _ANSWERS[str(row["op"])] and _peer(peer, other, job) in (rank, None):
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
    """The rows of stalls, with those of ranks that wait for each other in sends and receives in place of what else stands in such calls: who waits for one of
    a circle is no part of it."""
    pairs = circles(stacks, job)
    if not pairs:
        return rows
    kept = {int(str(r["rank"])): r for r in rows}
    out: list[dict[str, object]] = [r for r in rows if r["place"] != "p2p" and r["rank"] not in pairs]
    waiting = sorted(r for r, s in stacks.items() if s["place"] in WAITING and r not in pairs)
    for rank, circle in sorted(pairs.items()):
        own, partner = stacks[rank], stacks[circle[circle.index(rank) - 1]]
        twice = own["moved"] is False and partner["moved"] is False
        place = {name: partner[name] for name in ("source_id", "line_no", "record")} | {
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
                "why": f"ranks {', '.join(map(str, circle))} wait for each other's send or receive in a circle: it stands in {own['op']} at {own['user_frame']}",
                **{f"stack_{name}": own[name] for name in ("source_id", "line_no", "record")},
            }
        )
    return out
