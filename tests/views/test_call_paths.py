"""By which path through the program a rank came to a call."""

from __future__ import annotations

import polars as pl
import pytest

from nccl_forensics.views.call_paths import by_another_path
from nccl_forensics.views.calls import calls_of
from nccl_forensics.views.matching import operations
from tests.rules.host_frames import table
from tests.views.frames import rows

DUMPS = {"source_id": pl.UInt32(), "rank": pl.Int32(), "use": pl.String()}
NORMS, USUAL, SWAPPED = "norms (/opt/job/train.py:14)", "step (/opt/job/train.py:31)", "step (/opt/job/train.py:29)"


def came(*callers: str | None, line: str = NORMS) -> set[int]:
    """Whether rank 2 came to the last of its calls by another path, where each was made by one of these callers."""
    entries = [
        {
            **{"source_id": 0, "record": f"entries[{n}]", "record_id": n, "collective_seq_id": n + 1, "op": "all_reduce", "pg_name": "7"},
            "user_frame": line if n + 1 == len(callers) else NORMS,
            "frames": None if caller is None else f"{line if n + 1 == len(callers) else NORMS}\n{caller}",
        }
        for n, caller in enumerate(callers)
    ]
    known = table("fr_entries", *entries)
    chosen = rows(DUMPS, {"source_id": 0, "rank": 2, "use": "chosen"})
    calls = calls_of(operations(known, chosen, None, None, None, None))
    return by_another_path(calls, known, {2: "pg:7"})


def test_a_call_that_another_branch_made_came_by_another_path() -> None:
    assert came(USUAL, USUAL, SWAPPED) == {2}


@pytest.mark.parametrize("callers", [(USUAL, USUAL, USUAL), (SWAPPED, USUAL, SWAPPED), (USUAL, USUAL, None), (SWAPPED,)])
def test_a_path_that_was_taken_before_or_is_not_known_tells_nothing(callers: tuple[str | None, ...]) -> None:
    assert came(*callers) == set()


def test_another_call_is_not_held_against_these() -> None:
    assert came(USUAL, USUAL, SWAPPED, line="barrier (/opt/job/train.py:50)") == set()
