"""By which path through the program a rank came to a call."""

from __future__ import annotations

import polars as pl
import pytest

from nccl_forensics.views.call_paths import apart_from_peers, by_another_path, in_one_loop, no_swap, stands_before
from nccl_forensics.views.calls import Calls, calls_of
from nccl_forensics.views.matching import operations
from tests.rules.host_frames import table
from tests.views.frames import rows

DUMPS = {"source_id": pl.UInt32(), "rank": pl.Int32(), "use": pl.String()}
NORMS, USUAL, SWAPPED = "norms (/opt/job/train.py:14)", "step (/opt/job/train.py:31)", "step (/opt/job/train.py:29)"


def recorded(*lines: tuple[str, str | None], groups: str = "", sizes: tuple[int, ...] = ()) -> tuple[Calls, pl.LazyFrame]:
    """The calls of rank 2, each with its line and who called that, in one group or in these in turn."""
    entries = [
        {
            **{"source_id": 0, "record": f"entries[{n}]", "record_id": n, "collective_seq_id": n + 1, "op": "all_reduce"},
            "pg_name": groups[n % len(groups)] if groups else "7",
            "user_frame": line,
            "input_sizes": f"[[{sizes[n]}]]" if sizes else None,
            "frames": None if caller is None else f"{line}\n{caller}",
        }
        for n, (line, caller) in enumerate(lines)
    ]
    known = table("fr_entries", *entries)
    chosen = rows(DUMPS, {"source_id": 0, "rank": 2, "use": "chosen"})
    return calls_of(operations(known, chosen, None, None, None, None)), known


def came(*callers: str | None, line: str = NORMS) -> set[int]:
    """Whether rank 2 came to the last of its calls by another path, where each was made by one of these callers."""
    calls, known = recorded(*[(line if n + 1 == len(callers) else NORMS, caller) for n, caller in enumerate(callers)])
    return set(by_another_path(calls, known, {2: "pg:7"}))


def test_a_call_that_another_branch_made_came_by_another_path() -> None:
    assert came(USUAL, USUAL, SWAPPED) == {2}


@pytest.mark.parametrize("callers", [(USUAL, USUAL, USUAL), (SWAPPED, USUAL, SWAPPED), (USUAL, USUAL, None), (SWAPPED,)])
def test_a_path_that_was_taken_before_or_is_not_known_tells_nothing(callers: tuple[str | None, ...]) -> None:
    assert came(*callers) == set()


def test_another_call_is_not_held_against_these() -> None:
    assert came(USUAL, USUAL, SWAPPED, line="barrier (/opt/job/train.py:50)") == set()


def test_a_call_at_its_usual_line_was_not_taken_before_its_turn() -> None:
    calls, _ = recorded(*[(NORMS, USUAL)] * 4)
    assert no_swap(calls, {2: "pg:7"}) == {2: "it came to the next call at the line at which it always makes it"}


def test_a_call_from_a_line_that_never_made_it_leaves_the_order_open() -> None:
    other = (NORMS.replace("14", "19"), SWAPPED)
    calls, _ = recorded(*[(NORMS, USUAL)] * 3, other)
    assert "open" in no_swap(calls, {2: "pg:7"})[2]
    # One call before it is no habit.
    calls, _ = recorded((NORMS, USUAL), other)
    assert no_swap(calls, {2: "pg:7"}) == {}


def test_a_line_that_calls_in_both_groups_tells_nothing_of_their_order() -> None:
    def loop(*lines: tuple[str, str | None]) -> set[int]:
        calls, known = recorded(*lines, groups="67")
        return in_one_loop(calls, known, {2: "pg:7"}, {2: "pg:6"})

    assert loop(*[(NORMS, USUAL)] * 4) == {2}
    assert loop((NORMS, SWAPPED), (NORMS, USUAL), (NORMS, SWAPPED), (NORMS, USUAL)) == set(), "two callers of one helper"
    assert loop(*[(NORMS, None)] * 4) == set(), "no frames"
    calls, known = recorded(*[(NORMS, USUAL)] * 4, groups="67")
    assert in_one_loop(calls, known, {2: "pg:7"}, {2: "pg:7"}) == set(), "one group has one order"


def test_a_call_of_one_shape_from_a_line_that_never_made_it_came_by_another_path() -> None:
    def told(*sizes: int) -> set[int]:
        other = (NORMS.replace("14", "19"), SWAPPED)
        calls, known = recorded(*[(NORMS, USUAL)] * (len(sizes) - 1), other, sizes=sizes)
        return set(by_another_path(calls, known, {2: "pg:7"}))

    assert told(8, 8, 8) == {2}
    assert told(8, 8, 4) == set(), "it may be a call of another branch that has no other"
    assert told(8, 8) == set(), "one call before it is no habit"


def test_a_rank_that_came_to_the_call_of_its_peers_by_another_line_stands_in_another_branch() -> None:
    def stood(*callers: str, place: str = "collective") -> set[int]:
        at = {"place": place, "op": "all_reduce", "user_frame": NORMS, "witness": "stack"}
        return apart_from_peers({rank: at | {"frames": [NORMS, caller]} for rank, caller in enumerate(callers)}, [2])

    assert stood(USUAL, USUAL, SWAPPED) == {2}
    assert stood(USUAL.replace("step", "Trainer.step"), USUAL, USUAL) == set()
    assert stood(USUAL, SWAPPED, SWAPPED) == set(), "its peers differ, too"
    assert stood(USUAL, USUAL, SWAPPED, place="user-code") == set()


def test_a_branch_stands_before_a_call_of_its_function_and_what_follows_the_loop_behind_it() -> None:
    assert stands_before("train (job/moe.py:60)", "train (/opt/job/moe.py:163)")
    assert not stands_before("train (job/moe.py:170)", "train (job/moe.py:63)")
    assert not stands_before("final (job/moe.py:60)", "train (job/moe.py:63)")
    assert not stands_before("", None)
