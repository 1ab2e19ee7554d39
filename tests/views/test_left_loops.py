"""Ranks that stand behind the loop in which their peers are."""

from __future__ import annotations

import polars as pl
import pytest

from nccl_forensics.rules.collective_mismatch import collective_mismatch
from nccl_forensics.views.left_loops import LEFT_LOOPS, left_loops
from tests.rules.frames import divergences
from tests.rules.host_frames import check, table
from tests.views.frames import operations, rows

OUTER = "main (/job/train.py:99)"
WRAPPED = "all_reduce (/venv/torch/distributed/distributed_c10d.py:3252)\n{}\n" + OUTER


def gone(
    own: str, steps: tuple[str, ...] = ("fit (/job/train.py:40)", "log (/job/train.py:8)\nfit (/job/train.py:44)")
) -> list[tuple[object, ...]]:
    """Two steps of two calls each; then rank 2 calls a barrier at ``own``, where its peers make the first call of the next step."""
    calls = ["all_reduce [[400]]", "all_reduce [[1]]"] * 2
    made = operations({0: [*calls, "all_reduce [[400]]"], 2: [*calls, "barrier"]}).with_columns(call_site=pl.lit("a line"))
    entries = [
        {
            "source_id": r,
            "record": f"entries[{n}]",
            "collective_seq_id": n + 1,
            "frames": WRAPPED.format(own if (r, n) == (2, 4) else steps[n % 2]),
        }
        for r in (0, 2)
        for n in range(5)
    ]
    told = divergences("different", [2], [0, 1], seq=5, group_key="pg:0")
    return left_loops(told, made, table("fr_entries", *entries)).collect().select("rank", "seq", "loop", "last_line").rows()


def test_whoever_stands_behind_the_last_line_of_its_steps_left_the_loop() -> None:
    assert gone("fit (/job/train.py:50)") == [(2, 5, "fit (train.py)", 44)]


@pytest.mark.parametrize(
    "own",
    [
        # Another call in place of the one that is due, at a line of the steps, in a function that these call, or from elsewhere.
        "fit (/job/train.py:42)",
        "fit (/job/train.py:44)",
        "log (/job/train.py:9)\nfit (/job/train.py:44)",
        "evaluate (/job/train.py:70)",
    ],
)
def test_a_call_within_the_steps_is_another_call(own: str) -> None:
    assert gone(own) == []


def test_where_the_due_call_is_the_last_of_the_steps_nothing_tells_the_end_of_the_loop() -> None:
    assert gone("fit (/job/train.py:50)", ("fit (/job/train.py:44)", "fit (/job/train.py:40)")) == []


def test_who_left_the_loop_left_out_what_the_others_wait_in() -> None:
    def told(left: pl.LazyFrame | None) -> tuple[object, ...]:
        given = {} if left is None else {"left_loops": left}
        [finding] = check(collective_mismatch, divergences=divergences("different", [2], [0, 1, 3], found_op="barrier"), **given)
        return finding.cause, finding.confidence, finding.culprits[0].rank

    assert told(rows(LEFT_LOOPS, {"rank": 2, "loop": "fit (train.py)", "last_line": 44})) == ("collective-skipped", "medium", 2)
    assert told(rows(LEFT_LOOPS, {"rank": 1})) == told(None) == ("collective-mismatch", "high", 2)
