"""How many members a group has by what the watchdogs of some of them print, and by the logs of the others."""

from __future__ import annotations

import polars as pl
import pytest

from nccl_forensics.values.claims import NUMBER, WORD
from nccl_forensics.views.process_groups import groups
from nccl_forensics.views.source_ranks import SOURCE_RANKS_SCHEMA
from tests.rules.host_frames import table
from tests.views.frames import operations, rows


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


def test_a_log_that_bears_the_name_of_a_rank_tells_of_a_member_of_the_default_group() -> None:
    known = rows({"use": pl.String(), "rank": pl.Int32()}, {"use": "chosen", "rank": 0})
    named = rows(SOURCE_RANKS_SCHEMA, *({"source_id": r, "rank": r, "strength": s} for r, s in ((1, WORD), (3, WORD), (7, NUMBER))))
    lines = operations({0: ["all_reduce"]})
    told = [groups(lines, None, None, None, known, None, None, None, by).collect()["members"][0].to_list() for by in (named, None)]
    assert told == [[0, 1, 2, 3], [0]], "a bare number in a name may be anything"
