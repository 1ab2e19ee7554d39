"""Processes that never came to the store of the rendezvous."""

from __future__ import annotations

import polars as pl

from nccl_forensics.rules.clients_missing import clients_never_joined
from nccl_forensics.views.last_calls import LAST_CALLS
from tests.rules.frames import cited, endings, told
from tests.rules.host_frames import table
from tests.views.frames import rows


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


def stacks(*places: str) -> pl.LazyFrame:
    at = {"witness": "stack", "user_frame": "load (train.py:7)", "source_id": 5}
    return rows(LAST_CALLS, *(at | {"rank": r, "place": place, "line_no": 4 + r} for r, place in enumerate(places)))


def test_as_many_stacks_elsewhere_as_are_missing_name_them() -> None:
    three_of_four = said("Timed out after 21 seconds waiting for clients. 3/4 clients joined.")
    [finding] = clients_never_joined.check(three_of_four, stacks("rendezvous", "unknown", "unknown", "user-code"))
    assert told(finding) == ("critical", "medium", (3,))
    assert finding.title == "rank 3 never came to the rendezvous: its store waited for it in vain"
    assert (cited(finding), finding.actions[0].where) == ([(0, 1), (5, 7)], "load (train.py:7)")
    for places in (
        ["rendezvous"] * 4,
        ["rendezvous", "import", "rendezvous", "user-code"],
        ["rendezvous", "loader", "checkpoint", "rendezvous"],
    ):
        [finding] = clients_never_joined.check(three_of_four, stacks(*places))
        assert told(finding) == ("critical", "medium", ())


def test_who_is_not_among_as_many_as_came_and_gave_up_is_named() -> None:
    five_of_six = said("Timed out after 26 seconds waiting for clients. 5/6 clients joined.")

    def named(*ranks: int, lost: str = "store-closed") -> tuple[int, ...]:
        said_so = [{"rank": r, "own": False, "signature": lost if r == 3 else "store-timeout"} for r in ranks]
        gave_up = endings(*said_so, {"rank": 5, "signature": "closed"})
        [finding] = clients_never_joined.check(five_of_six, None, gave_up)
        return finding.ranks

    assert named(0, 1, 3, 4, 5) == (2,)
    # Who could not reach the store at all never came.
    assert named(0, 1, 3, 4, 5, lost="store-unreachable") == ()
    assert named(0, 1, 2, 3, 4) == (5,)
    # One more may have come whose words are lost.
    assert named(0, 1, 3, 4) == ()
