"""Where the members of a group part."""

from __future__ import annotations

import polars as pl

from nccl_forensics.views.divergence import divergences
from tests.views.frames import operations

STEP = ["all_gather [8]", "all_reduce [4]", "barrier"]


def read(lines: dict[int, list[str]]) -> list[dict[str, object]]:
    return divergences(operations(lines)).collect().to_dicts()


def test_equal_sequences_do_not_part() -> None:
    assert read({0: STEP, 1: STEP, 2: STEP}) == []


def test_unequal_lengths_are_no_divergence() -> None:
    assert read({0: STEP, 1: STEP[:1], 2: STEP}) == []


def test_a_skipped_operation_is_named_with_its_position() -> None:
    full = [*STEP, *STEP, *STEP]
    [row] = read({0: full, 1: [*STEP, *STEP, "all_gather [8]", "barrier"], 2: full})
    assert (row["kind"], row["seq"], row["ranks"], row["skipped"], row["sure"]) == ("skipped", 8, [1], 1, True)


def test_another_size_is_a_shape_divergence() -> None:
    odd = [*STEP, "all_gather [8]", "all_reduce [6]", "barrier"]
    [row] = read({0: [*STEP, *STEP], 1: odd, 2: [*STEP, *STEP]})
    assert (row["kind"], row["ranks"], row["found_detail"], row["expected_detail"]) == ("shape", [1], "[6]", "[4]")


def test_another_argument_of_a_rank_that_made_a_step_less_is_that_of_a_later_step() -> None:
    """Steps of the same sizes pair up one step apart, until one reduces its norm otherwise."""
    ops = {"all_gather [8]": None, "all_reduce [4]": "sum"}
    kinds = ["sum", "sum", "sum", "max"]

    def called(red_ops: dict[int, list[str]]) -> list[dict[str, object]]:
        frame = operations({rank: [c for _ in own for c in ops] for rank, own in red_ops.items()}).collect()
        wanted = [red if i else None for own in red_ops.values() for red in own for i in range(len(ops))]
        return divergences(frame.with_columns(red_op=pl.Series(wanted, dtype=pl.String())).lazy()).collect().to_dicts()

    [row] = called({0: kinds, 1: [*kinds[:2], "max"], 2: kinds})
    assert (row["kind"], row["ranks"], row["skipped"], row["sure"]) == ("skipped", [1], 2, False)
    # As many calls as its peers, or a last one that is none of theirs.
    [row] = called({0: kinds, 1: [*kinds[:2], "max", "max"], 2: kinds})
    assert (row["kind"], row["ranks"]) == ("argument", [1])
    [row] = called({0: kinds, 1: [*kinds[:2], "min"], 2: kinds})
    assert (row["kind"], row["ranks"]) == ("argument", [1])


def test_as_many_elements_in_another_shape_are_no_divergence() -> None:
    def called(shape: str) -> list[dict[str, object]]:
        odd = [*STEP, "all_gather [8]", f"all_reduce {shape}", "barrier"]
        return read({0: [*STEP, *STEP], 1: odd, 2: [*STEP, *STEP]})

    assert called("[2,2]") == []
    assert [row["kind"] for row in called("[2,3]")] == ["shape"]
    # Of several tensors each has its own size.
    assert [row["kind"] for row in called("[[2],[2]]")] == ["shape"]


def test_sizes_of_an_all_to_all_may_differ() -> None:
    assert read({0: ["all_to_all [3]"], 1: ["all_to_all [5]"]}) == []


def test_of_two_that_alternate_sizes_of_one_operation_the_one_out_of_turn_left_one_out() -> None:
    """As a pair of tensor parallel ranks, where calls bear no line of code: the step tells whose turn it was, not the last size."""
    big, small = "all_reduce [8]", "all_reduce [4]"
    waits, went_on = [big, small, big, small], [big, small, big, big, small]
    for lines in ({2: waits, 3: went_on}, {2: went_on, 3: waits}):
        frame = operations(lines).with_columns(call_site=pl.lit(None, dtype=pl.String()))
        [row] = divergences(frame).collect().to_dicts()
        [odd] = [rank for rank, line in lines.items() if line is went_on]
        assert (row["kind"], row["seq"], row["ranks"]) == ("skipped", 4, [odd])


def test_of_two_ranks_the_one_that_leaves_the_habit_deviates() -> None:
    [row] = read({0: [*STEP, "all_gather [8]", "all_reduce [9]"], 1: [*STEP, "all_gather [8]", "all_reduce [4]"]})
    assert (row["kind"], row["ranks"]) == ("shape", [0])


def test_of_two_at_lines_of_their_own_the_one_that_is_out_of_turn_left_the_due_call_out() -> None:
    """Behind the loss came the gradients, and once what is shared out when the first step is over."""
    first = ["all_reduce [25]", "all_reduce [1]", "broadcast [11]"]
    step = ["all_reduce [25]", "all_reduce [1]"]

    def parting(then: dict[int, list[str]], before: list[str]) -> list[tuple[object, ...]]:
        calls = operations({rank: [*before, *own] for rank, own in then.items()})
        lines = {"[25]": "fit (t.py:70)", "[1]": "fit (t.py:83)"}
        told = calls.with_columns(call_site=pl.col("shape").replace_strict(lines, default=None, return_dtype=pl.String()))
        return [(r["kind"], r["ranks"], r["sure"]) for r in divergences(told).collect().to_dicts()]

    assert parting({1: ["all_reduce [1]"], 3: ["all_reduce [25]"]}, [*first, *step, *step]) == [("skipped", [1], True)]
    assert parting({1: ["all_reduce [25]"], 3: ["all_reduce [1]"]}, [*first, *step, *step]) == [("skipped", [3], True)]
    # The loss came twice in a row after one such beginning, and the gradients after another: neither is due.
    either = ["barrier", *step, "all_reduce [1]", "broadcast [2]", *step, "all_reduce [25]", "broadcast [3]", *step]
    [(_, _, sure)] = parting({1: ["all_reduce [1]"], 3: ["all_reduce [25]"]}, either)
    assert not sure


def test_of_two_of_whom_nothing_before_is_kept_what_both_go_on_with_tells_what_leads_up_to_it() -> None:
    layers = ["reduce_scatter [4]", "all_gather [8]"] * 3
    [row] = read({0: ["all_reduce [8]", *layers], 1: ["all_gather [8]", *layers]})
    assert (row["kind"], row["ranks"], row["sure"]) == ("different", [0], True)
    # Before such a call neither of the two is ever made.
    [row] = read({0: ["all_reduce [8]", *layers], 1: ["broadcast [8]", *layers]})
    assert not row["sure"]


def test_of_two_the_one_whose_next_calls_are_on_record_of_the_other_left_some_out() -> None:
    """Two heads of one size, then the trunk: what comes behind one head is the other, or the trunk. One rank has no gradients of the
    second."""
    head, trunk = ["all_reduce [4]", "all_reduce [64]"], ["all_reduce [16]", "all_reduce [32]", "all_reduce [16]", "all_reduce [32]"]
    step = [*head, *head, *trunk, "broadcast [1]"]
    before = ["broadcast [8]", *step, "all_gather [1]", *step]
    [row] = read({1: [*before, *head, *trunk], 3: [*before, *head, *head, *trunk]})
    assert (row["kind"], row["ranks"], row["skipped"], row["sure"]) == ("skipped", [1], 2, True)
    # What only one of them ever called may be a call too many.
    [row] = read({1: [*before, *head, *trunk], 3: [*before, *head, "all_reduce [5]", "all_reduce [6]", *trunk]})
    assert (row["kind"], row["sure"]) != ("skipped", True)


def test_a_call_of_another_type_that_comes_next_anyway_was_reached_too_early() -> None:
    step = ["broadcast [7]", "all_reduce [64]", "broadcast [1]"]

    def typed(lines: dict[int, list[str]]) -> list[dict[str, object]]:
        object_size = (pl.col("op") == "broadcast") & (pl.col("shape") == "[1]")
        calls = operations(lines).with_columns(dtype=pl.when(object_size).then(pl.lit("Long")).otherwise("dtype"))
        return divergences(calls).collect().to_dicts()

    whole = [*step, *step, *step, *step[:2]]
    early = [*step, *step, *step[:2], *step[:2]]
    [row] = typed({0: whole, 1: whole, 2: whole, 3: early})
    assert (row["kind"], row["ranks"], row["seq"]) == ("skipped", [3], 9)


def test_a_call_from_a_line_that_nobody_called_it_from_before_stands_in_place_of_the_peers_call() -> None:
    full = [*STEP, *STEP, *STEP]
    short = [*STEP, *STEP, "all_gather [8]", "barrier"]

    def at(line: str) -> list[dict[str, object]]:
        """Rank 1 calls the barrier in place of the reduction, from this line; each operation has a line of its own otherwise."""
        frame = operations({0: full, 1: short, 2: full})
        odd = (pl.col("rank") == 1) & (pl.col("seq") == 8)
        return (
            divergences(frame.with_columns(call_site=pl.when(odd).then(pl.lit(line)).otherwise(pl.col("op") + " (t.py:9)")))
            .collect()
            .to_dicts()
        )

    [skipped], [another] = at("barrier (t.py:9)"), at("barrier (t.py:77)")
    assert (skipped["kind"], skipped["ranks"]) == ("skipped", [1])
    assert (another["kind"], another["ranks"], another["sure"]) == ("different", [1], True)


def test_a_size_that_its_own_line_always_has_is_another_call_than_that_of_the_peers() -> None:
    # The first step is interrupted: no step foretells what follows two reductions.
    turns = ["all_reduce [530]", "broadcast [11]", "all_reduce [530]", "all_reduce [1]", "all_reduce [530]"]

    def parting(size: str, line: str = "score (t.py:7)") -> tuple[object, ...]:
        """Rank 4 reduces this size from this line where the others reduce their gradients; what has one element is a score otherwise."""
        frame = operations({r: [*turns, f"all_reduce [{size}]" if r == 4 else "all_reduce [530]"] for r in range(5)})
        of_size = pl.when(pl.col("shape") == "[1]").then(pl.lit("score (t.py:7)")).otherwise(pl.lit("step (t.py:30)"))
        odd = (pl.col("rank") == 4) & (pl.col("seq") == 6)
        [row] = divergences(frame.with_columns(call_site=pl.when(odd).then(pl.lit(line)).otherwise(of_size))).collect().to_dicts()
        return row["kind"], row["ranks"], row["doubt"] is not None

    assert parting("1") == ("skipped", [4], True)
    # Of a size that this line never had, or at the line of the peers, it is the same call with another size.
    assert parting("3") == ("shape", [4], False)
    assert parting("3", "step (t.py:30)") == ("shape", [4], False)
    assert parting("1", "step (t.py:30)") == ("shape", [4], False)


def beside_three(theirs: list[str], *own: str) -> tuple[object, ...]:
    """How the fourth rank parts from three that make the same calls."""
    [row] = divergences(operations({0: theirs, 1: theirs, 2: theirs, 3: list(own)})).collect().to_dicts()
    return row["kind"], row["ranks"], row["sure"]


def test_a_call_of_another_size_behind_which_all_calls_of_the_peers_come_is_one_more() -> None:
    theirs = ["all_reduce [4]", "all_reduce [9]", "all_reduce [5]"]

    assert beside_three(theirs, "all_reduce [7]", *theirs) == ("extra", [3], True)
    assert beside_three(theirs, "all_reduce [7]", *theirs[1:]) == ("shape", [3], True), "it stands in place of the peers' first"


def test_where_nothing_before_is_kept_what_the_peers_call_next_was_called_too_early_and_not_with_another_size() -> None:
    """By one call alone that is not sure; one that went on, and the habit of a step before, tell more."""
    theirs = ["all_reduce [4]", "all_reduce [9]"]

    assert beside_three(theirs, "all_reduce [9]") == ("skipped", [3], False)
    assert beside_three(theirs, "all_reduce [8]") == ("shape", [3], True)
    assert beside_three(theirs, "all_reduce [9]", "all_reduce [9]") == ("shape", [3], True), "it went on in step with them"


def test_two_calls_of_one_operation_in_the_other_order_are_no_call_left_out() -> None:
    step = ["all_reduce [530]", "all_reduce [60]", "all_reduce [4]"]

    def parting(*then: str) -> tuple[object, ...]:
        """Rank 1 makes these calls in its third step; each size has a line of its own."""
        frame = operations({r: [*step, *step, *(then if r == 1 else step)] for r in range(4)})
        lines = {"[530]": "a (t.py:1)", "[60]": "b (t.py:2)", "[4]": "c (t.py:3)"}
        [row] = divergences(frame.with_columns(call_site=pl.col("shape").replace_strict(lines))).collect().to_dicts()
        return row["kind"], row["ranks"], row["seq"]

    assert parting("all_reduce [530]", "all_reduce [4]", "all_reduce [60]") == ("different", [1], 8)
    assert parting("all_reduce [530]", "all_reduce [4]", "all_reduce [530]") == ("skipped", [1], 8)
    assert parting("all_reduce [530]", "all_reduce [4]") == ("skipped", [1], 8)


def test_two_operations_in_the_other_order_are_no_call_left_out_though_a_step_is_cut_off() -> None:
    step = ["all_reduce [530]", "all_reduce [4]"]

    def parting(*then: str) -> tuple[object, ...]:
        """Every other step ends with a broadcast; rank 1 makes these calls in its fourth."""
        full = [*step, *step, "broadcast [1]", *step, *step, "broadcast [1]"]
        frame = operations({r: [*full[:-2], *then] if r == 1 else [*full, *step[:1]] for r in range(4)})
        named = frame.with_columns(call_site=pl.col("op") + pl.col("shape") + pl.lit(" (t.py:1)"))
        [row] = divergences(named).collect().to_dicts()
        return row["kind"], row["ranks"], row["seq"]

    assert parting("broadcast [1]", "all_reduce [4]", "all_reduce [530]") == ("different", [1], 9)
    assert parting("broadcast [1]", "all_reduce [530]", "all_reduce [4]") == ("skipped", [1], 9)


def test_who_goes_on_with_the_usual_calls_left_out_what_its_peers_call_for_the_first_time() -> None:
    step = ["all_reduce [33]", "all_reduce [528]"]

    def parting(*then: str, line: str = "hook (t.py:4)") -> tuple[object, ...]:
        """Rank 2 makes these calls where the others share something out, from this line."""
        calls = operations({r: [*step, *step, *(then if r == 2 else ["broadcast [1]", "scatter [1]"])] for r in (0, 1, 2)})
        usual = pl.when(pl.col("op") == "all_reduce").then(pl.lit("hook (t.py:4)")).otherwise(pl.lit("share (t.py:40)"))
        odd = (pl.col("rank") == 2) & (pl.col("seq") >= 5)
        [row] = divergences(calls.with_columns(call_site=pl.when(odd).then(pl.lit(line)).otherwise(usual))).collect().to_dicts()
        return row["kind"], row["ranks"], row["seq"]

    assert parting(*step) == ("skipped", [2], 5)
    assert parting("all_reduce [33]") == ("skipped", [2], 5), "it is that call's turn"
    # From another line, or out of turn with nothing after it, or in step with its peers again: that call stands in place of theirs.
    assert parting(*step, line="share (t.py:38)") == ("different", [2], 5)
    assert parting("all_reduce [33]", line="share (t.py:38)") == ("different", [2], 5)
    assert parting("all_reduce [528]") == ("different", [2], 5)
    assert parting("all_reduce [33]", "scatter [1]") == ("different", [2], 5)


def test_what_once_came_right_behind_the_missing_call_was_gone_on_to_though_it_comes_too_seldom_to_be_foretold() -> None:
    """A count in the second step and, on rank 2 alone, in the fourth, where the others still share a metric."""

    def parting(line: str, last: str = "reduce [3]") -> tuple[object, ...]:
        before = ["all_reduce [8]", "all_reduce [5]", "all_reduce [8]", "all_reduce [5]", "reduce [3]", "broadcast [7]"]
        before += ["all_reduce [8]", "all_reduce [5]", "all_reduce [8]"]
        calls = operations({r: [*before, last if r == 2 else "all_reduce [5]"] for r in range(4)})
        usual = pl.col("op").replace_strict({"all_reduce": "metric (t.py:5)", "reduce": "count (t.py:9)"}, default="rate (t.py:2)")
        odd = (pl.col("rank") == 2) & (pl.col("seq") == 10)
        [row] = divergences(calls.with_columns(call_site=pl.when(odd).then(pl.lit(line)).otherwise(usual))).collect().to_dicts()
        return row["kind"], row["ranks"], row["seq"]

    assert parting("count (t.py:9)") == ("skipped", [2], 10)
    # From a line of its own it stands in place of theirs; so does what never came behind the metric.
    assert parting("count (t.py:40)") == ("different", [2], 10)
    assert parting("rate (t.py:2)", "scatter [1]") == ("different", [2], 10)


def compared(*before: str, sizes: tuple[str, str] = ("[4]", "[6]")) -> dict[str, object]:
    """Two ranks whose calls torch found to differ, and what the recorder of the first holds of earlier ones."""
    here = operations({4: [f"all_reduce {sizes[0]}"], 5: [f"all_reduce {sizes[1]}"]}, group="detail", domain="detail", first=26)
    [row] = divergences(pl.concat([here, operations({4: list(before)}, group="pg:3")])).collect().to_dicts()
    return row


def test_of_two_that_differ_the_one_that_calls_as_before_is_right() -> None:
    row = compared("all_reduce [[4]]", "all_reduce [[4]]", "all_gather [[6]]")
    assert (row["ranks"], row["others"], row["found_detail"], row["expected_detail"], row["sure"]) == ([5], [4], "[6]", "[4]", True)
    row = compared("all_reduce [[6]]")
    assert (row["ranks"], row["others"], row["found_detail"], row["source_id"], row["sure"]) == ([4], [5], "[4]", 4, True)


def test_of_two_that_differ_the_order_tells_which_size_was_due_where_a_line_makes_calls_of_several() -> None:
    """Two buckets from one line, then a metric from another one; rank 1 goes on to the metric."""
    step = ["all_reduce [64]", "all_reduce [16]", "all_reduce [10]"]
    lines = operations({0: [*step * 3, *step[:2]], 1: [*step * 3, step[2]]})
    site = pl.when(pl.col("shape") == "[10]").then(pl.lit("accuracy (train.py:9)")).otherwise(pl.lit("backward (train.py:4)"))
    [row] = divergences(lines.with_columns(call_site=site)).collect().to_dicts()
    assert (row["kind"], row["ranks"], row["seq"], row["sure"]) == ("skipped", [1], 10, True)


def test_of_two_that_called_different_operations_the_one_that_did_so_before_is_right() -> None:
    here = operations({4: ["all_reduce [512]"], 5: ["all_to_all"]}, group="detail", domain="detail", first=26)
    before = [("all_to_all [[512]]", "all_reduce [[4]]"), ("all_to_all [[512]]", "all_reduce [[512]]"), ("all_reduce [[512]]",), ()]
    found = [divergences(pl.concat([here, operations({4: list(calls)}, group="pg:3")])).collect().to_dicts()[0] for calls in before]
    usual = found[1]["ranks"]
    assert [row["ranks"] for row in found] == [[4], usual, [5], usual]
    assert not any(row["sure"] for row in found), "a call left out looks the same"
    most = operations({3: ["all_to_all"]}, group="detail", domain="detail", first=26)
    [row] = divergences(pl.concat([here, most, operations({4: ["all_reduce [[512]]"]}, group="pg:3")])).collect().to_dicts()
    assert row["ranks"] == [4], "most ranks outvote a habit"


def test_calls_of_one_tensor_are_known_by_the_name_that_a_recorder_gives_them() -> None:
    here = operations({4: ["all_gather_base [4]"], 5: ["all_gather_base [6]"]}, group="detail", domain="detail", first=26)
    for before, found in (("all_gather [[6]]", [4]), ("all_reduce [[6]]", [5])):
        [row] = divergences(pl.concat([here, operations({4: [before]}, group="pg:3")])).collect().to_dicts()
        assert (row["ranks"], row["sure"]) == (found, found == [4])


def test_of_two_that_differ_nobody_is_sure_where_both_sizes_or_neither_came_before() -> None:
    assert not compared("all_reduce [[4]]", "all_reduce [[6]]")["sure"]
    assert not compared("all_reduce [[8]]")["sure"]
    assert not compared()["sure"]


def across(gap: int, lost: tuple[int, ...] = ()) -> list[tuple[object, ...]]:
    """Two kinds of calls in turn, ``gap`` numbers that no rank recorded, and then a rank that makes the second kind's next turn; ``lost``:
    ranks that alone lack the numbers of the gap."""
    turns = ["all_reduce [30]", "all_gather [5]"] * 3
    before = operations(dict.fromkeys((3, 4, 5), turns))
    between = operations({r: ["barrier"] * gap for r in (3, 4, 5) if r not in lost}, first=7) if lost else operations({})
    parting = {3: ["all_reduce [30]", "all_gather [5]"], 4: ["all_reduce [30]"] * 2, 5: ["all_reduce [30]", "all_gather [5]"]}
    found = divergences(pl.concat([before, between, operations(parting, first=7 + gap)])).collect()
    return found.select("kind", "ranks", "seq", "sure").rows()


def test_numbers_that_nobody_recorded_do_not_end_the_habit_of_a_group() -> None:
    assert across(0) == [("skipped", [4], 8, True)]
    assert across(2) == [("skipped", [4], 10, True)]


def test_records_that_one_rank_lost_end_what_is_known_of_it_alone() -> None:
    assert [kind for kind, *_ in across(2, lost=(4,))] == ["skipped"]


def test_where_nothing_is_foretold_a_call_that_came_before_is_in_its_next_turn_and_not_surely() -> None:
    assert across(12) == [("skipped", [4], 20, False)], "beyond a long stretch of numbers without a record"
    [row] = read({0: ["reduce_scatter [8]", "all_gather [5]"], 1: ["reduce_scatter [8]"] * 2, 2: ["reduce_scatter [8]", "all_gather [5]"]})
    assert (row["kind"], row["ranks"], row["seq"], row["sure"]) == ("skipped", [1], 2, False)
    [row] = read(
        {0: ["reduce_scatter [8]", "all_gather [5]"], 1: ["reduce_scatter [8]", "barrier"], 2: ["reduce_scatter [8]", "all_gather [5]"]}
    )
    assert (row["kind"], row["ranks"]) == ("different", [1])


def test_in_the_first_step_that_a_run_goes_on_foretells_neither_call() -> None:
    step = ["all_gather [6]", "all_gather [6]", "reduce_scatter [36]", "reduce_scatter [36]"]

    def parting(call: str) -> tuple[object, ...]:
        [row] = read({rank: [*step, call if rank == 1 else "all_reduce [1]"] for rank in range(3)})
        return row["kind"], row["ranks"], row["seq"], row["sure"]

    assert parting("all_gather [6]") == ("skipped", [1], 5, False)
    assert parting("broadcast [1]") == ("different", [1], 5, False), "it had not been called before, and what comes next is not known"
    assert parting("reduce_scatter [36]")[:3] == ("different", [1], 5), "one more of the run is no next step"


def test_in_a_first_step_another_operation_with_the_tensor_of_the_peers_stands_in_place_of_theirs() -> None:
    def sure(call: str, theirs: str) -> object:
        [row] = read({rank: ["all_reduce [80]", call if rank == 1 else theirs] for rank in range(3)})
        assert (row["kind"], row["ranks"]) == ("different", [1])
        return row["sure"]

    assert sure("broadcast [48]", "all_reduce [48]")
    assert not sure("broadcast [40]", "all_reduce [48]")
    assert not sure("broadcast [1]", "all_reduce [1]"), "many calls are of one element"


def test_a_reduction_is_told_by_its_number_and_its_name() -> None:
    calls = operations({rank: ["all_reduce [8]"] for rank in range(3)}, domain="nccl", group="0xc0")
    other = calls.with_columns(red_op=pl.when(pl.col("rank") == 1).then(pl.lit(2)).otherwise(pl.lit(0)).cast(pl.Int32))
    [row] = divergences(other).collect().to_dicts()
    assert (row["kind"], row["ranks"], row["found_detail"], row["expected_detail"]) == ("argument", [1], "2 (max)", "0 (sum)")
    assert row["doubt"], "one bit of the number would look the same"


def test_of_two_that_were_compared_the_steps_before_tell_which_call_was_due() -> None:
    """26 calls of the group before, three in each step; the 27th is the third."""
    step = ["all_reduce [[4]]", "all_reduce [[6]]", "all_reduce [[6]]"]
    before = operations(dict.fromkeys((4, 5), (step * 9)[:26]), group="pg:3")

    def parting(sizes: tuple[str, str], *more: pl.LazyFrame) -> tuple[object, ...]:
        here = operations({4: [f"all_reduce {sizes[0]}"], 5: [f"all_reduce {sizes[1]}"]}, group="detail", domain="detail", first=27)
        [row] = divergences(pl.concat([here, before, *more])).collect().to_dicts()
        return row["kind"], row["ranks"], row["sure"]

    assert parting(("[4]", "[6]")) == ("skipped", [4], True)
    assert parting(("[6]", "[4]")) == ("skipped", [5], True)
    assert parting(("[6]", "[9]")) == ("shape", [5], True)
    away = operations({4: ["all_reduce [6]"], 5: ["all_to_all [6]"]}, group="detail", domain="detail", first=27)
    [row] = divergences(pl.concat([away, before])).collect().to_dicts()
    assert (row["kind"], row["ranks"], row["sure"]) == ("different", [5], False), "the next call may bear another name in the recorder"
    assert row["in_place"], "another call of that very size is no new one of all"
    for own, other in (("[9]", "all_to_all"), ("[6]", "reduce_scatter")):  # a new call of all, or one that recorders call an all_reduce
        away = operations({4: ["all_reduce [6]"], 5: [f"{other} {own}"]}, group="detail", domain="detail", first=27)
        assert not divergences(pl.concat([away, before])).collect()["in_place"][0]
    one = operations({4: (step * 9)[:26]}, group="pg:3")  # all calls before were compared too: the record of one speaks for both
    away = operations({4: ["all_reduce [6]"], 5: ["all_to_all [6]"]}, group="detail", domain="detail", first=27)
    assert divergences(pl.concat([away, one])).collect().select("ranks", "in_place").rows() == [([5], True)]
    other = operations(dict.fromkeys((4, 5), ["all_reduce [[4]]"] * 26), group="pg:4")
    assert not parting(("[4]", "[6]"), other)[2], "another group has made as many calls"


def test_of_two_of_whom_nothing_before_is_kept_a_call_of_one_alone_may_be_left_out_or_made_once_too_often() -> None:
    cut = operations({0: ["broadcast [1]", "all_reduce [8]"], 1: ["all_reduce [8]"]}, first=46)
    [row] = divergences(cut).collect().to_dicts()
    assert (row["kind"], row["seq"], row["sure"]) == ("skipped", 46, False)
    before = ["all_reduce [8]", "broadcast [1]"] * 2
    [row] = read({0: [*before, "all_reduce [8]", "broadcast [1]", "all_reduce [8]"], 1: [*before, "all_reduce [8]", "all_reduce [8]"]})
    assert (row["kind"], row["ranks"], row["sure"]) == ("skipped", [1], True)
