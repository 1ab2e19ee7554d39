"""Most ranks wait for a group to be made, one is elsewhere."""

from __future__ import annotations

import polars as pl
import pytest

from nccl_forensics.rules.rank_never_joined_stacks import rank_never_joined_by_stacks
from nccl_forensics.views.last_calls import LAST_CALLS
from tests.rules.frames import cited, told
from tests.views.frames import rows


def calls(*places: str, moved: int | None = None) -> pl.LazyFrame:
    """The place of each rank; ``moved``: the one whose samples differ."""
    return rows(
        LAST_CALLS,
        *(
            {
                "rank": r,
                "place": p,
                "witness": "stack",
                "moved": r == moved,
                "user_frame": f"f{r} (train.py:{r})",
                "source_id": r,
                "line_no": 4,
            }
            for r, p in enumerate(places)
        ),
    )


def test_the_rank_that_stays_away_is_named() -> None:
    [finding] = rank_never_joined_by_stacks.check(calls("rendezvous", "rendezvous", "user-code"))
    assert told(finding) == ("critical", "medium", (2,))
    assert cited(finding) == [(2, 4), (0, 4), (1, 4)]
    assert "f2 (train.py:2)" in finding.summary


def test_ranks_that_gave_up_waiting_in_initialisation_waited_too() -> None:
    seen = calls("rendezvous", "rendezvous", "user-code")
    raised = seen.with_columns(witness=pl.when(pl.col("place") == "rendezvous").then(pl.lit("exception")).otherwise("witness"))
    assert [told(f) for f in rank_never_joined_by_stacks.check(raised)] == [("critical", "medium", (2,))]
    # Where an exception was raised is not where a rank stood while the others waited.
    assert rank_never_joined_by_stacks.check(seen.with_columns(witness=pl.lit("exception"))) == []


@pytest.mark.parametrize(
    "frame",
    [
        calls("rendezvous", "rendezvous", "collective"),  # past the call: its wait is another one
        calls("rendezvous", "rendezvous", "import"),  # a start that takes its time
        calls("rendezvous", "user-code", "user-code"),
        calls("rendezvous", "rendezvous", "rendezvous"),
        calls("rendezvous", "rendezvous", "user-code", moved=2),
        calls("rendezvous", "rendezvous", "user-code", moved=0),
    ],
    ids=["passed", "importing", "most away", "all there", "it moves", "they move"],
)
def test_others_are_not(frame: pl.LazyFrame) -> None:
    assert rank_never_joined_by_stacks.check(frame) == []
