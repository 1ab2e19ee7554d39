"""Processes that never came to the store of the rendezvous."""

from __future__ import annotations

import polars as pl

from nccl_forensics.rules.clients_missing import clients_never_joined
from tests.rules.frames import cited
from tests.rules.host_frames import table


def said(*messages: str) -> pl.LazyFrame:
    return table(
        "exceptions", *({"type": "torch.distributed.DistStoreError", "message": m, "signature": "store-timeout"} for m in messages)
    )


def test_the_count_of_the_store_is_told_and_nobody_is_named() -> None:
    [finding] = clients_never_joined.check(said("Timed out after 601 seconds waiting for clients. 8/12 clients joined."))
    assert finding.title == "4 of 12 processes never came to the rendezvous: its store waited for them in vain"
    assert (finding.confidence, finding.culprits, cited(finding)) == ("medium", (), [(0, 1)])


def test_a_store_that_counted_all_or_that_does_not_count_is_quiet() -> None:
    assert clients_never_joined.check(said("Timed out after 601 seconds waiting for clients. 12/12 clients joined.")) == []
    assert clients_never_joined.check(said("wait timeout after 300000ms, keys: /default_pg/0//cpu//0")) == []
