"""How many members a group has by what the watchdogs of some of them print."""

from __future__ import annotations

import pytest

from nccl_forensics.views.process_groups import groups
from tests.rules.host_frames import table


def size(op: str, *elements: tuple[int, int]) -> int | None:
    lines = [
        {
            "kind": "timeout",
            "hint_rank": r,
            "hint_scope": "global",
            "pg_rank": r,
            "pg_name": "0",
            "seq": 9,
            "op": op,
            "numel_in": i,
            "numel_out": o,
        }
        for r, (i, o) in enumerate(elements)
    ]
    return groups(None, None, None, None, None, table("watchdog", *lines)).collect()["size"][0]


@pytest.mark.parametrize(("op", "elements"), [("_REDUCE_SCATTER_BASE", (4096, 512)), ("_ALLGATHER_BASE", (512, 4096))])
def test_a_call_that_gathers_or_scatters_equal_parts_tells_of_how_many_ranks(op: str, elements: tuple[int, int]) -> None:
    assert size(op, elements, elements) == 8


def test_other_calls_unequal_sizes_and_fewer_parts_than_ranks_tell_nothing() -> None:
    assert size("ALLREDUCE", (4096, 512)) is None
    assert size("_ALLGATHER_BASE", (512, 4096), (256, 4096)) is None
    assert size("_ALLGATHER_BASE", (512, 4000)) is None
    assert size("_ALLGATHER_BASE", *[(512, 1024)] * 3) is None
