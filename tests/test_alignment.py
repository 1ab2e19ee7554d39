"""Aligning one rank's operations with its peers'."""

from __future__ import annotations

from nccl_forensics.alignment import candidates, deviants, expect, opens_in_a_run, read_divergence

STEP = ["gather", "reduce", "scatter", "loss"]


def test_the_next_operation_is_foretold_by_the_steps_before() -> None:
    assert expect([*STEP, *STEP, "gather"], 3) == ["reduce", "scatter", "loss"]


def test_how_much_of_a_run_is_left_is_told_by_what_came_before_it() -> None:
    """Tensor parallelism calls the same for layer after layer, more often than any fixed number of operations would see."""
    run = ["layer", "exchange"] * 24
    step = ["batch", *run, *STEP]
    for done in range(0, len(run) + 1, 2):
        assert expect([*step, *step, "batch", *run[:done]], 3) == [*run, *STEP][done : done + 3]


def test_the_latest_of_equally_long_contexts_counts() -> None:
    assert expect(["start", *STEP, "save", *STEP, "log", *STEP], 1) == ["log"]


def test_steps_that_are_not_alike_may_foretell_two_operations() -> None:
    assert candidates(["save", *STEP, "log", *STEP]) == ["log"]
    assert candidates(["start", *STEP, "save", "end", *STEP, "log", "first", *STEP]) == ["log", "save"]
    assert candidates(["a", "b", "c"]) == []


def test_nothing_is_foretold_without_a_repetition() -> None:
    assert expect(["a", "b", "c"], 2) == []


def test_a_rank_whose_next_operations_are_its_peers_later_ones_has_skipped() -> None:
    reading = read_divergence([*STEP, *STEP, "gather"], ["reduce", "scatter", "loss"], ["scatter", "loss"])
    assert (reading.kind, reading.skipped, reading.sure) == ("skipped", 1, True)


def test_a_rank_that_goes_on_in_step_after_its_odd_call_has_called_something_else() -> None:
    reading = read_divergence([*STEP, "gather"], ["reduce", "scatter", "loss"], ["broadcast", "scatter", "loss"])
    assert reading.kind == "different"


def test_two_calls_in_the_other_order_are_no_skip_where_as_many_were_made() -> None:
    reading = read_divergence("abab", "ab", "ba")
    assert reading.kind == "different"
    assert "in the other order" in reading.why
    assert read_divergence("abab", "abc", "bac").kind == "different"
    # One call less, or one more step: the first was left out.
    assert read_divergence("abab", "ab", "b").kind == "skipped"
    assert read_divergence("abab", "abab", "baba").kind == "skipped"


def test_an_odd_last_call_is_a_skip_only_if_the_steps_foretell_it() -> None:
    history = [*STEP, *STEP, "gather"]
    assert read_divergence(history, ["reduce"], ["scatter"]).kind == "skipped"
    assert read_divergence(history, ["reduce"], ["broadcast"]).kind == "different"


def test_of_a_first_step_one_odd_call_is_read_and_not_surely() -> None:
    assert not read_divergence(STEP[:2], ["clip"], ["share"]).sure, "it may be what the others would have called next"
    assert read_divergence(STEP[:2], ["clip"], ["share", "reduce"]).sure
    assert read_divergence([*STEP, *STEP], STEP[:1], ["share"]).sure, "the steps before tell what comes next"


def test_one_call_that_is_foretold_far_ahead_is_no_sure_skip() -> None:
    near, far = read_divergence([*STEP, *STEP, "gather"], ["reduce"], ["scatter"]), read_divergence([*STEP, *STEP], ["gather"], ["loss"])
    assert (near.kind, near.skipped, near.sure) == ("skipped", 1, True)
    assert (far.kind, far.skipped, far.sure) == ("skipped", 3, False)
    assert read_divergence([*STEP, *STEP], STEP, ["loss"]).sure, "its peers have come there"


def test_an_additional_call_is_neither() -> None:
    reading = read_divergence(STEP, ["reduce", "scatter", "loss"], ["probe", "reduce", "scatter", "loss"])
    assert reading.kind == "extra"


def test_a_call_made_twice_before_the_very_calls_of_its_peers_is_one_more_and_no_jump_into_the_next_step() -> None:
    step = ["params", "gather", "reduce", "loss"]
    history = [*step, "params", "gather"]
    reading = read_divergence(history, ["reduce", "loss"], ["gather", "reduce", "loss"])
    assert (reading.kind, reading.sure) == ("extra", False)
    # The peers themselves did what it does next, or it has not gone on as far as they.
    assert read_divergence(history, ["reduce", "loss", "params", "gather"], ["gather", "reduce", "loss"]).kind == "skipped"
    assert read_divergence(history, ["reduce", "loss"], ["gather", "reduce"]).kind == "skipped"


def test_the_minority_deviates() -> None:
    assert deviants({0: "a", 1: "a", 2: "b"}, None) == ((2,), "a", True)


def test_a_tie_is_uncertain_unless_the_steps_before_decide_it() -> None:
    assert deviants({0: "a", 1: "b"}, None)[2] is False
    assert deviants({0: "a", 1: "b"}, "b") == ((0,), "b", True)


def test_the_most_of_those_that_are_left_are_no_majority_of_a_group_of_which_many_lines_end_before() -> None:
    there = dict.fromkeys(range(4), "next") | dict.fromkeys(range(4, 7), "this")
    assert deviants(there, "this", 12) == ((0, 1, 2, 3), "this", True)
    # The most of the whole group; nobody is missing; or one rank alone does what is foretold.
    assert deviants(there, "this", 7) == ((4, 5, 6), "next", True)
    assert deviants(there | {7: "next", 8: "next", 9: "next"}, "this", 12) == ((4, 5, 6), "next", True)
    assert deviants({0: "next", 1: "next", 2: "this"}, "this", 12) == ((2,), "next", True)


def test_the_end_of_a_run_whose_beginning_is_lost_does_not_tell_how_long_it_is() -> None:
    assert opens_in_a_run([*"ttrg", *"tt"])  # two of who knows how many, and then r
    assert opens_in_a_run([*"tctrg", *"tct"])
    assert not opens_in_a_run([*"trg", *"ttrg", *"tt"])
    assert not opens_in_a_run([*"rgtl", *"rgt"])
    assert not opens_in_a_run([*"abcd"])


def test_a_line_of_equal_steps_tells_what_comes_next_in_a_step() -> None:
    step = [*"rrrrrra"]
    assert not opens_in_a_run(step * 4 + step[:3])
    assert not opens_in_a_run(step[4:] + step * 4 + step[:5])
    assert not opens_in_a_run([*"abcabcab"])
