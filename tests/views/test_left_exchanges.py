"""Exchanges that one rank left out."""

from __future__ import annotations

from typing import TypedDict

import pytest

from nccl_forensics.views.left_exchanges import left_exchanges
from tests.rules.frames import endings
from tests.views.frames import operations

COUNTS, TOKENS = "all_to_all [[4]]", "all_to_all [[8,8]]"
#: Three steps of two exchanges, and the second one of the fourth.
LEFT = [*[COUNTS, TOKENS] * 3, TOKENS]


class Near(TypedDict, total=False):
    """What differs from the case above."""

    calls: list[str]
    got: int
    expected: int
    receivers: tuple[int, ...]


def left(
    calls: list[str], got: int = 64, expected: int = 4, receivers: tuple[int, ...] = (4, 6, 7), rank: int = 5
) -> list[tuple[object, ...]]:
    said = f"[enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. {got} vs {expected}"
    ended = endings(*[{"rank": r, "signature": "gloo-size-mismatch", "message": said} for r in receivers])
    return left_exchanges(ended, operations({rank: calls}, group="pg:2")).collect().select("rank", "seq", "left_shape", "made_shape").rows()


def test_who_went_on_to_the_next_exchange_left_out_the_one_that_all_others_expected() -> None:
    # 256 bytes in parts for four are 64, and 16 are 4.
    assert left(LEFT) == [(5, 7, "[[4]]", "[[8,8]]")]
    assert left([*LEFT, COUNTS]) == [(5, 7, "[[4]]", "[[8,8]]")], "what came to it was shorter and let it go on"


@pytest.mark.parametrize(
    "near",
    [
        {"calls": [*[COUNTS, TOKENS] * 3, COUNTS]},  # it is where its steps foretell
        {"calls": [*[COUNTS, TOKENS] * 3, "all_to_all [[16,8]]"], "got": 128},  # a size that never was
        {"calls": [*[COUNTS, TOKENS] * 3, "all_reduce [[64]]"]},
        {"calls": LEFT, "expected": 8},  # not what each gets of the one that it left out
        {"calls": LEFT, "receivers": (1, 2, 3, 4)},  # more than share in the exchange
        {"calls": LEFT, "receivers": (5,)},  # it aborted itself
    ],
)
def test_a_rank_in_order_and_lengths_of_other_calls_tell_nothing(near: Near) -> None:
    assert left(**near) == []
