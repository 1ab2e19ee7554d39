"""Ranks that lost the store while they waited for the unique id of a communicator."""

from __future__ import annotations

import polars as pl

from nccl_forensics.reading.source import read_source
from nccl_forensics.rules.meeting_failed import host_stall_by_unique_id, store_gone
from tests.rules.frames import endings
from tests.rules.host_frames import check

WAITED = "[{rank}] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key '0', but store->get('0') got error: {why}"


def raised(*said: str) -> pl.LazyFrame:
    text = "\n".join(f"[rank{i}]: torch.distributed.DistBackendError: {line}" for i, line in enumerate(said, 1))
    frame = read_source(text.encode()).frames["exceptions"]
    return frame.with_columns(pl.lit(0, dtype=pl.UInt32()).alias("source_id")).lazy()


def lost(*whys: str) -> pl.LazyFrame:
    return raised(*(WAITED.format(rank=i, why=why) for i, why in enumerate(whys, 1)))


def test_who_loses_the_store_while_it_waits_tells_that_its_holder_is_gone() -> None:
    for why in ("Connection reset by peer", "Broken pipe", "failed to recv, got 0 bytes"):
        [finding] = check(store_gone, exceptions=lost(why, why))
        assert finding.title == "the process that held the job's store was gone while ranks 1-2 waited in init for a unique id"
        assert (finding.confidence, finding.culprits) == ("low", ())
        assert not check(host_stall_by_unique_id, exceptions=lost(why, why))


def test_a_wait_that_timed_out_had_its_store() -> None:
    assert not check(store_gone, exceptions=lost("wait timeout after 600000ms"))


def test_where_a_process_tells_why_it_ended_the_store_went_with_it() -> None:
    own = endings({"rank": 0, "own": True, "kind": "exception"})
    assert not check(store_gone, exceptions=lost("Connection reset by peer"), endings=own)
    assert check(store_gone, exceptions=lost("Connection reset by peer"), endings=endings({"rank": 1, "own": False, "kind": "victim"}))
