"""What a document of somebody else's holds at one place, if it is of the shape that is expected there: else it holds nothing."""

from __future__ import annotations

from collections.abc import Mapping


def mapping(value: object) -> Mapping[str, object]:
    """A mapping; an empty one for anything else."""
    return value if isinstance(value, Mapping) else {}


def items(value: object) -> list[object]:
    """A list; an empty one for anything else."""
    return value if isinstance(value, list) else []


def mappings(value: object) -> list[Mapping[str, object]]:
    """The mappings of a list; none of anything else."""
    return [item for item in items(value) if isinstance(item, Mapping)]
