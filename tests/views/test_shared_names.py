"""Groups that bear one name."""

from __future__ import annotations

import polars as pl

from nccl_forensics.views.calls import Parts
from nccl_forensics.views.matching import dumps, operations, progress
from nccl_forensics.views.process_groups import groups
from nccl_forensics.views.shared_names import shared_names
from nccl_forensics.views.source_ranks import SOURCE_RANKS_SCHEMA
from tests.rules.host_frames import SECOND, table
from tests.views.frames import rows

PAIRS = table(
    "fr_groups", *[{"source_id": rank, "pg_name": "1", "pg_desc": "dp", "ranks": "0,2" if rank % 2 == 0 else "1,3"} for rank in range(4)]
)


def test_lists_without_a_rank_in_common_are_several_groups_of_one_name() -> None:
    assert shared_names(PAIRS).collect().rows() == [(0, "1", "0,2"), (2, "1", "0,2"), (1, "1", "1,3"), (3, "1", "1,3")]


def test_lists_that_overlap_are_accounts_of_one_group() -> None:
    told = table("fr_groups", {"source_id": 0, "pg_name": "1", "ranks": "0-3"}, {"source_id": 1, "pg_name": "1", "ranks": "0-2"})
    assert shared_names(told).collect().rows() == []


def test_the_parts_of_a_split_group_are_never_compared() -> None:
    entry = {"pg_name": "1", "pg_desc": "dp", "op": "all_reduce", "backend": "nccl", "is_p2p": False, "state": "completed", "pg_id": 1}
    entries = table("fr_entries", *[entry | {"source_id": r, "collective_seq_id": 5 + r % 2, "record_id": 1} for r in range(4)])
    kept = {"encoding": "pickle", "comm_lib_version": "2.27.7", "first_created_ns": 0, "last_created_ns": SECOND}
    owners = rows(SOURCE_RANKS_SCHEMA, *[{"source_id": r, "rank": r, "strength": 4} for r in range(4)])
    chosen = dumps(table("fr_dumps", *[kept | {"source_id": r} for r in range(4)]), owners)
    made = operations(entries, chosen, None, None, None, None, shared_names(PAIRS))
    calls = made.calls() if isinstance(made, Parts) else made
    found = groups(calls, PAIRS, None, None, chosen, None, shared_names(PAIRS)).collect()
    assert found.select("group_key", "group_name", "members", "size").rows() == [
        ("pg:1 of 0,2", "1", [0, 2], 2),
        ("pg:1 of 1,3", "1", [1, 3], 2),
    ]
    status = table("fr_status", *[{"source_id": r, "pg_id": 1, "last_enqueued": 7, "last_completed": 7} for r in range(4)])
    numbers = pl.DataFrame(
        {"source_id": range(4), "pg_id": 1, "pg_name": "1"}, schema_overrides={"source_id": pl.UInt32, "pg_id": pl.Int32}
    )
    state = progress(calls, status, numbers.lazy(), chosen, None, shared_names(PAIRS)).collect()
    assert state.select("rank", "group_key", "last_seq").sort("rank").rows() == [
        (r, "pg:1 of 0,2" if r % 2 == 0 else "pg:1 of 1,3", 7) for r in range(4)
    ]
