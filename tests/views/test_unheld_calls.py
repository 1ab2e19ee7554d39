"""Calls that recorders count and do not hold."""

from __future__ import annotations

from nccl_forensics.folding import FoldedTable
from nccl_forensics.tables import TABLES
from nccl_forensics.views.source_ranks import SOURCE_RANKS_SCHEMA
from nccl_forensics.views.unheld_calls import unheld_calls
from tests.rules.host_frames import table
from tests.views.frames import rows

OWNERS = rows(SOURCE_RANKS_SCHEMA, {"source_id": 0, "rank": 3}, {"source_id": 1, "rank": 4})


def told(*entries: dict[str, object]) -> list[tuple[object, ...]]:
    usual = {"backend": "gloo", "op": "all_reduce", "is_p2p": False, "pg_id": 0, "source_id": 0}
    frame = table("fr_entries", *[usual | e for e in entries])
    own = unheld_calls(frame, OWNERS).collect().rows()
    assert own == unheld_calls(FoldedTable.of(frame, TABLES["fr_entries"].own), OWNERS).collect().rows()
    return own


def test_numbers_between_collectives_tell_of_sends_and_receives() -> None:
    assert told(
        {"op_id": 3, "collective_seq_id": 1}, {"op_id": 6, "collective_seq_id": 2}, {"source_id": 1, "op_id": 1, "collective_seq_id": 1}
    ) == [(3, 4)]


def test_nccls_recorder_holds_them() -> None:
    assert told({"backend": "nccl", "op_id": 6, "collective_seq_id": 2}) == []
