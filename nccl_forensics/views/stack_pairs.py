"""Sends and receives in which stacks stand, with the rank that each is for."""

from __future__ import annotations

from collections.abc import Collection, Mapping

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
