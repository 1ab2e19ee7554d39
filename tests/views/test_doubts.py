"""What a divergence rests on where damaged evidence would look the same."""

from __future__ import annotations

import pytest

from nccl_forensics.values.damage import cut_off, one_bit
from nccl_forensics.views.divergence import divergences
from tests.views.frames import operations

STEP = ["all_gather [8]", "all_reduce [4]", "broadcast [2]"]
FULL = STEP * 4
#: One all_reduce left out in the third step.
SHORT = [*STEP * 2, STEP[0], STEP[2], *STEP]


def read(lines: dict[int, list[str]], counts: dict[int, list[int]] | None = None) -> list[tuple[object, ...]]:
    found = divergences(operations(lines, group="0xc0", first=0, domain="nccl", counts=counts)).collect()
    return found.select("kind", "ranks", "doubt").rows()


def test_a_call_left_out_of_a_log_that_numbers_no_calls_may_be_a_lost_line() -> None:
    [(kind, ranks, doubt)] = read({0: FULL, 1: SHORT, 2: FULL}, {0: [0] * 12, 1: [0] * 11, 2: [0] * 12})
    assert (kind, ranks) == ("skipped", [1])
    assert "a lost or doubled line" in str(doubt)


def test_an_opcount_without_a_hole_proves_that_the_call_was_not_made() -> None:
    counts = {0: list(range(12)), 1: list(range(11)), 2: list(range(12))}
    assert read({0: FULL, 1: SHORT, 2: FULL}, counts) == [("skipped", [1], None)]


def test_an_opcount_with_a_hole_proves_that_the_line_was_lost_and_nobody_is_named() -> None:
    counts = {0: list(range(12)), 1: [*range(7), *range(8, 12)], 2: list(range(12))}
    assert read({0: FULL, 1: SHORT, 2: FULL}, counts) == []


def test_behind_a_lost_line_of_one_rank_the_call_that_another_left_out_is_found() -> None:
    lost = [STEP[0], *STEP[2:], *STEP * 3]
    counts = {0: list(range(12)), 1: list(range(11)), 2: list(range(12)), 3: [0, *range(2, 12)]}
    assert read({0: FULL, 1: SHORT, 2: FULL, 3: lost}, counts) == [("skipped", [1], None)]


def test_an_opcount_that_moves_on_alike_on_all_ranks_hides_no_line() -> None:
    # The first two calls of a communicator may share a number (0, 0, 1, 2), so that one habit of few calls tells nothing.
    lines = {r: ["all_reduce [9]", "all_reduce [5]"] * 2 for r in range(3)}
    lines[1] = [*lines[1][:3], "all_reduce [7]"]
    [(kind, ranks, _)] = read(lines, {r: [0, 0, 1, 2] for r in range(3)})
    assert (kind, ranks) == ("shape", [1])


def test_an_opcount_written_twice_is_a_doubled_line() -> None:
    doubled = [*STEP[:2], STEP[1], *STEP[2:], *STEP * 3]
    counts = {0: list(range(12)), 1: [0, 1, 1, *range(2, 12)], 2: list(range(12))}
    assert read({0: FULL, 1: doubled, 2: FULL}, counts) == []


def test_a_call_that_the_opcount_does_not_count_leaves_a_doubt() -> None:
    # From NCCL 2.27 on only work for the proxy is counted: here all_reduce is not.
    whole = [n for step in range(4) for n in (2 * step, 2 * step + 1, 2 * step + 1)]
    counts = {0: whole, 1: [*whole[:7], *whole[8:]], 2: whole}
    [(kind, ranks, doubt)] = read({0: FULL, 1: SHORT, 2: FULL}, counts)
    assert (kind, ranks) == ("skipped", [1])
    assert doubt is not None


def test_a_communicator_that_is_told_by_its_size_alone_leaves_a_doubt() -> None:
    lines = {0: STEP * 2, 1: [*STEP, STEP[0], "all_reduce [3]"], 2: STEP * 2}
    found = divergences(operations(lines, group="size3", first=0, domain="nccl")).collect()
    assert found.select("kind", "ranks").rows() == [("shape", [1])]
    assert "by its size" in str(found["doubt"][0])


def test_another_size_that_nobody_ever_used_is_no_line_out_of_place() -> None:
    odd = [*STEP, STEP[0], "all_reduce [6]"]
    assert read({0: STEP * 2, 1: odd, 2: STEP * 2}) == [("shape", [1], "a flipped bit would look the same")]
    odd = [*STEP, STEP[0], "all_reduce [3]"]
    assert read({0: STEP * 2, 1: odd, 2: STEP * 2}) == [("shape", [1], None)]


def test_a_size_that_comes_one_call_early_may_be_a_lost_line() -> None:
    growing = [f"all_reduce [{size}]" for size in (3, 3, 3, 4096, 4096, 4096, 70000, 70000, 70000)]
    [(kind, ranks, doubt)] = read({0: growing, 1: growing[1:], 2: growing})
    assert (kind, ranks) == ("skipped", [1])
    assert "lost" in str(doubt)


@pytest.mark.parametrize(
    ("a", "b", "alike"),
    [("Float", "Gloat", True), ("1024", "1536", True), ("1024", "3072", True), ("1024", "1000", False), ("Float", "Half", False)],
)
def test_texts_and_numbers_that_one_bit_tells_apart(a: str, b: str, alike: bool) -> None:
    assert one_bit(a, b) is one_bit(b, a) is alike


def test_a_cut_leaves_a_beginning_and_not_nothing() -> None:
    assert cut_off("2.2", "2.27.7")
    assert not cut_off("2.27.7", "2.27.7")
    assert not cut_off("", "2.27.7")
