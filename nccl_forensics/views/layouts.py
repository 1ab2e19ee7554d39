"""Members of process groups that nothing lists, from the layout of the groups beside them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

_NUMBER = re.compile(r"\d+")


@dataclass(slots=True)
class Group:
    """A process group or communicator: the columns of the view ``groups``."""

    domain: str
    group_key: str
    group_name: str | None = None
    group_desc: str | None = None
    comm_id: str | None = None
    members: list[int] = field(default_factory=list)
    #: As stated; None where nothing states it.
    size: int | None = None


def unlisted_members(groups: Iterable[Group], everyone: Iterable[int]) -> dict[tuple[str, str], list[int]]:
    """Members that groups of unknown size must have beside those that evidence names, by (domain, group_key).

    Groups of one parallel dimension (``tp_0``, ``tp_1`` …; a device mesh gives all of them one description) hold every rank of the job
    exactly once and are laid out alike: each is the same pattern of ranks, moved. So where some of them lack ranks and ranks of the job are
    in none, the pattern of the whole ones says who is missing where, if in one way only. Nothing is told of a dimension of which no group
    is whole, whose groups overlap, or which leaves ranks of the job over.
    """
    world = set(everyone)
    families: dict[tuple[str, str], list[tuple[str, set[int]]]] = {}
    for group in groups:
        if group.group_desc is None or group.size is not None or not group.members:
            continue
        family = _NUMBER.sub("#", group.group_desc)
        families.setdefault((group.domain, family), []).append((group.group_key, set(group.members)))
    found: dict[tuple[str, str], list[int]] = {}
    for (domain, _), parts in families.items():
        for key, ranks in _filled(parts, world).items():
            found[domain, key] = ranks
    return found


def _filled(parts: Sequence[tuple[str, set[int]]], world: set[int]) -> dict[str, list[int]]:
    """Missing members of the groups of one dimension."""
    named = [rank for _, members in parts for rank in members]
    left = world - set(named)
    whole = max(len(members) for _, members in parts)
    patterns = {_pattern(members) for _, members in parts if len(members) == whole}
    short = [(key, members) for key, members in parts if len(members) < whole]
    if len(named) != len(set(named)) or whole < 2 or len(patterns) != 1 or len(parts) == len(short) or not left:
        return {}
    pattern = next(iter(patterns))
    found: dict[str, list[int]] = {}
    for key, members in short:
        lowest, free = min(members), members | left
        # Any of them stands somewhere in the pattern; most places of it take ranks of other groups with their first ranks.
        places = [lowest - step for step in pattern if all(lowest - step + s in free for s in pattern)]
        fitting = [moved for place in places if members <= (moved := {place + s for s in pattern})]
        if len(fitting) != 1:
            return {}
        found[key] = sorted(fitting[0] - members)
    added = [rank for ranks in found.values() for rank in ranks]
    return found if sorted(added) == sorted(left) else {}


def _pattern(members: set[int]) -> tuple[int, ...]:
    """Ranks counted from the lowest one."""
    lowest = min(members)
    return tuple(rank - lowest for rank in sorted(members))
