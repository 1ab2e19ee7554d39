"""Stages at one place of several pipelines post the same sends and receives: one that lacks a batch, or a half of one, is told."""

from __future__ import annotations

import polars as pl

from nccl_forensics.views.calls import OPERATIONS
from nccl_forensics.views.sibling_stages import batches, left_out, posted_alike, posted_as_many, siblings
from nccl_forensics.views.unmet import unmet
from tests.views.frames import groups, progress, rows

SEND, RECV = ("send", 1), ("recv", 1)
#: What each of the others posted, by number.
USUAL = {n: (RECV,) if n % 3 == 0 else (RECV, SEND) if n % 3 == 1 else (SEND,) for n in range(20, 30)}


def lacking(batch: int) -> dict[int, tuple[tuple[str, int], ...]]:
    """The same without one batch: later ones come one number sooner."""
    return {n: USUAL[n if n < batch else n + 1] for n in range(20, 29)}


def test_a_batch_that_one_stage_alone_lacks_is_told_by_its_number() -> None:
    assert left_out(lacking(25), [USUAL, USUAL]) == (25, USUAL[25])
    assert left_out(USUAL, [USUAL, USUAL]) is None
    assert left_out(lacking(25), [USUAL]) is None, "one other alone may be the odd one"
    assert left_out(lacking(25), [USUAL, lacking(26)]) is None, "the others do not agree"
    assert left_out(lacking(21), [USUAL, USUAL]) is None, "too few agree before it"


def test_a_half_of_a_batch_is_told_where_all_other_batches_agree() -> None:
    own = {**USUAL, 25: (RECV,)}
    told = {**USUAL, 25: (RECV, SEND)}
    assert left_out(own, [told, told]) == (25, (SEND,))
    assert left_out({**own, 28: ()}, [told, told]) is None


def test_siblings_stand_at_one_place_of_groups_of_one_description_and_size() -> None:
    info: dict[str, dict[str, object]] = {
        key: {"group_desc": desc, "members": ranks}
        for key, desc, ranks in (("a", "pp", [0, 4]), ("b", "pp", [1, 5]), ("c", "pp", [2, 6, 9]), ("d", "tp", [3, 7]))
    }
    assert siblings("a", 4, info) == [("b", 5)]
    assert siblings("d", 3, info) == []


def test_as_many_as_all_at_its_place_is_told_of_two_others_that_agree_and_of_groups_that_send_alone() -> None:
    info: dict[str, dict[str, object]] = {
        key: {"group_desc": "undefined", "members": ranks} for key, ranks in (("a", [0, 4]), ("b", [1, 5]), ("c", [2, 6]), ("tp", [3, 7]))
    }
    posted = {("a", 4): 8, ("b", 5): 8, ("c", 6): 8}
    assert posted_as_many(posted, "a", 4, info) is True
    assert posted_as_many(posted | {("a", 4): 9}, "a", 4, info) is False
    assert posted_as_many(posted | {("c", 6): 7}, "a", 4, info) is None, "they do not agree"
    assert posted_as_many({("a", 4): 8, ("b", 5): 8}, "a", 4, info) is None, "one other alone"


def test_as_all_at_its_place_is_told_by_whom_it_sent_to() -> None:
    info: dict[str, dict[str, object]] = {
        key: {"group_desc": "pp", "members": ranks} for key, ranks in (("a", [0, 4]), ("b", [1, 5]), ("c", [2, 6]))
    }
    posted = {("a", 4): USUAL, ("b", 5): USUAL, ("c", 6): USUAL}
    assert posted_alike(posted, "a", 4, info) is True
    other = {**USUAL, 25: (RECV, ("send", 0))}
    assert posted_alike(posted | {("a", 4): other}, "a", 4, info) is False
    assert posted_alike(posted | {("b", 5): other}, "a", 4, info) is None, "they do not agree"
    assert posted_alike(posted | {("a", 4): {n: b for n, b in USUAL.items() if n < 25}}, "a", 4, info) is True, "it has not come further"


def test_the_first_number_of_a_ring_may_be_cut_and_is_not_compared() -> None:
    halves = pl.DataFrame({"group_key": "a", "rank": 0, "seq": [3, 3, 4, 5], "op": ["send", "recv", "send", "recv"], "peer": [1, 1, 1, 1]})
    assert batches(halves) == {("a", 0): {4: (SEND,), 5: (RECV,)}}


def pipelines(without: int | None) -> list[tuple[object, ...]]:
    """Three pipelines of two stages; the first stage sends and receives by turns. Rank 0 posts no send number ``without``, and rank 3 waits
    for it."""
    every: list[dict[str, object]] = []
    for rank in range(6):
        first, place = rank < 3, f"pg:{rank % 3}"
        calls = [n for n in range(10, 20) if not (rank == 0 and n == without)]
        for at, n in enumerate(calls):
            op = ("send" if first else "recv") if n % 2 else ("recv" if first else "send")
            opened = at == len(calls) - 1 or (rank == 3 and n >= 17)
            own = {"group_key": place, "rank": rank, "op": op, "peer": int(first), "is_p2p": True, "seq": calls[0] + at, "order": at}
            every.append(own | {"done": not opened, "pending": opened, "domain": "fr", "source_id": rank, "record": f"entries[{at}]"})
    members = {f"pg:{n}": [n, n + 3] for n in range(3)}
    described = groups(members).with_columns(group_desc=pl.lit("PIPELINE"))
    kept = pl.LazyFrame({"rank": range(6), "use": ["chosen"] * 6, "first_record_id": [700] * 6}, schema_overrides={"rank": pl.Int32})
    frame = unmet(rows(OPERATIONS, *every), kept, progress({"pg:9": dict.fromkeys(range(6), (1, 1))}), described)
    return frame.select("rank", "waiter", "op", "number", "siblings").collect().rows()


def test_a_rank_that_lacks_what_its_siblings_posted_left_it_out() -> None:
    assert pipelines(15) == [(0, 3, "send", 15, [1, 2])]
    assert pipelines(None) == []
