"""Who sent what a process of gloo could not receive."""

from __future__ import annotations

import polars as pl

from nccl_forensics.views.gloo_rings import ring_receivers, ring_senders, sent_more
from tests.rules.frames import endings
from tests.rules.host_frames import table
from tests.views.frames import groups, operations, progress

KNOWN = groups({"pg:0": [0, 1, 2, 3]})


def told(said: str, records: dict[int, list[str]], receiver: int = 3) -> list[tuple[object, ...]]:
    aborted = endings(
        {"rank": receiver, "signature": "gloo-size-mismatch", "message": f"op.preamble.length <= op.nbytes. {said}. Received data"}
    )
    last = progress({"pg:0": {rank: (len(calls), None) for rank, calls in records.items()}})
    found = ring_senders(aborted, operations(records), last, KNOWN).collect()
    return found.select("sender", "agreeing", "got_bytes", "expected_bytes").rows()


def test_the_next_member_is_the_one_that_sent_more_than_all_others_recorded() -> None:
    # 1,024 floats on 4 members are 8 segments of 512 bytes.
    assert told("768 vs 512", {2: ["all_reduce [[1024]]"]}) == [(0, [2, 3], 768, 512)]


def test_segments_are_whole_elements() -> None:
    # 1,000 bytes on 8 segments are 125, rounded up to whole floats.
    assert told("256 vs 128", {1: ["all_reduce [[250]]"]}, receiver=0) == []
    assert told("256 vs 128", {2: ["all_reduce [[250]]"]}, receiver=0) == [(1, [0, 2], 256, 128)]


def test_a_receiver_whose_own_size_is_the_odd_one_blames_nobody() -> None:
    assert told("768 vs 256", {2: ["all_reduce [[1024]]"]}) == []


def test_neither_a_recorded_sender_nor_members_that_disagree_nor_another_operation_is_blamed() -> None:
    assert told("768 vs 512", {0: ["all_reduce [[1024]]"], 2: ["all_reduce [[1024]]"]}) == []
    assert told("768 vs 512", {1: ["all_reduce [[512]]"], 2: ["all_reduce [[1024]]"]}) == []
    assert told("768 vs 512", {2: ["broadcast [[1024]]"]}) == []
    assert told("768 vs 512", {3: ["all_reduce [[1024]]"]}) == []


def test_a_sender_that_is_further_than_the_witness_has_recorded_it_too() -> None:
    calls = ["all_reduce [[4800]]", "all_reduce [[1024]]"]
    assert told("768 vs 512", {0: [*calls, "all_reduce [[16]]"], 2: calls}) == []


def test_a_length_of_what_comes_next_in_each_step_shows_a_sender_that_is_there_already() -> None:
    """A loss, and then gradients of 1,024 floats: 8 segments of 512 bytes."""

    def ahead(said: str, *calls: str) -> list[tuple[object, ...]]:
        message = f"op.preamble.length <= op.nbytes. {said}. Received data"
        aborted = endings({"rank": 3, "signature": "gloo-size-mismatch", "message": message})
        last = progress({"pg:0": {2: (len(calls), None)}})
        found = ring_senders(aborted, operations({2: list(calls)}), last, KNOWN).collect()
        return found.select("sender", "ahead", "ahead_shape").rows()

    step = ["all_reduce [[1024]]", "all_reduce [[1]]"]
    assert ahead("512 vs 4", *step, *step) == [(0, 1, "[[1024]]")]
    assert ahead("512 vs 4", *step, "barrier", *step) == [(0, 2, "[[1024]]")]
    # No call has that length; such a call was not made in steps before; a few bytes are the length of many calls.
    assert ahead("516 vs 4", *step, *step) == [(0, None, None)]
    assert ahead("512 vs 4", *step) == [(0, None, None)]
    assert ahead("8 vs 4", "all_reduce [[16]]", "all_reduce [[1]]", "all_reduce [[16]]", "all_reduce [[1]]") == [(0, None, None)]


def exchanged(said: str, *sizes: int, op: str = "all_to_all") -> list[tuple[object, ...]]:
    """Ranks 0, 1, 2 … brought so many floats; the next one, which left no record, received another length than it expected."""
    records = {rank: [f"{op} [[{size}, 64]]"] for rank, size in enumerate(sizes)}
    message = f"op.preamble.length <= op.nbytes. {said}. Received data"
    aborted = endings({"rank": len(sizes), "signature": "gloo-size-mismatch", "message": message})
    last = progress({"pg:0": dict.fromkeys(records, (1, None))})
    found = sent_more(aborted, operations(records), last).collect()
    return found.select("sender", "receiver", "agreeing", "usual_shape").rows()


def test_who_brought_as_much_more_as_was_received_too_much_is_named() -> None:
    # Five rows of 64 floats.
    assert exchanged("1792 vs 512", 11, 11, 16) == [(2, 3, [0, 1], "[[11, 64]]")]
    # Another length, two that differ, no two that agree, less than the others, another operation.
    assert exchanged("1536 vs 512", 11, 11, 16) == []
    assert exchanged("1792 vs 512", 11, 11, 16, 16) == []
    assert exchanged("1792 vs 512", 11, 16) == []
    assert exchanged("1792 vs 512", 16, 16, 11) == []
    assert exchanged("1792 vs 512", 11, 11, 16, op="all_reduce") == []


def received(
    said: str, records: dict[int, list[str]], receiver: int, ring: list[int], frames: str = "", sites: dict[str, str] | None = None
) -> list[tuple[object, ...]]:
    aborted = endings(
        {"rank": receiver, "signature": "gloo-size-mismatch", "message": f"op.preamble.length <= op.nbytes. {said}. Received data"}
    )
    at = pl.col("shape").replace_strict(sites or {}, default="step (train.py:9)", return_dtype=pl.String())
    made = operations(records).with_columns(call_site=at)
    entries = [
        {"source_id": rank, "record": f"entries[{n}]", "collective_seq_id": 1 + n, "frames": frames or None}
        for rank, calls in records.items()
        for n in range(len(calls))
    ]
    last = progress({"pg:0": {rank: (len(calls), None) for rank, calls in records.items()}})
    last = last.with_columns(last_op=pl.col("rank").replace_strict({rank: calls[-1].split()[0] for rank, calls in records.items()}))
    found = ring_receivers(aborted, made, last, groups({"pg:0": ring}), table("fr_entries", *entries)).collect()
    return found.select("odd", "agreeing", "seq", "own_seq", "by_reducer").rows()


LAYERS = ["all_reduce [[64]]", "all_reduce [[4800]]", "all_reduce [[80]]", "all_reduce [[1200]]"]


def test_the_length_of_what_came_tells_the_call_that_the_receiver_left_out() -> None:
    # On four members 4,800 floats come in parts of 2,400 bytes, 80 in parts of 40: it was in the call behind.
    three = {0: LAYERS, 1: LAYERS, 3: LAYERS}
    assert received("2400 vs 40", three, 2, [0, 1, 2, 3]) == [(2, [0, 1, 3], 2, 3, False)]
    assert received("2400 vs 36", three, 2, [0, 1, 2, 3]) == [(2, [0, 1, 3], 2, None, False)]
    # Of no call that anybody recorded; of members that do not agree; of a rank that has a record itself.
    assert received("2404 vs 40", three, 2, [0, 1, 2, 3]) == []
    assert received("2400 vs 40", three | {1: ["all_reduce [[64]]", "all_reduce [[160]]"]}, 2, [0, 1, 2, 3]) == []
    assert received("2400 vs 40", three, 3, [0, 1, 2, 3]) == []


def test_what_came_from_those_that_exchange_parts_of_any_size_is_of_no_ring() -> None:
    three = {rank: [*LAYERS, "all_to_all [[7]]"] for rank in (0, 1, 3)}
    assert received("2400 vs 40", three, 2, [0, 1, 2, 3]) == []


def test_one_that_has_a_record_of_the_receivers_call_is_no_witness_against_those_that_agree() -> None:
    usual = ["all_reduce [[4800]]"] * 3
    ahead = [*usual[:2], "all_reduce [[80]]"]
    # Of six members two agree, and one recorded what the receiver was in: 4,800 floats come in parts of 1,600 bytes, 80 in parts of 28.
    assert received("1600 vs 28", {1: usual, 2: usual, 4: ahead}, 0, [0, 1, 2, 3, 4, 5]) == [(0, [1, 2], 3, None, False)]
    assert received("1600 vs 32", {1: usual, 2: usual, 4: ahead}, 0, [0, 1, 2, 3, 4, 5]) == []


def test_a_length_that_never_was_is_at_fault_where_the_sender_left_no_record() -> None:
    usual = ["all_reduce [[33]]", "all_reduce [[528]]"] * 3
    # On three members 33 floats come in parts of 24 bytes, 528 in parts of 352.
    assert received("24 vs 16", {0: usual}, 1, [0, 1, 2]) == [(1, [0], 5, None, False)]
    # The length of another call may be one that the sender left out; of what came but once nothing says that it is right.
    assert received("352 vs 24", {0: usual}, 1, [0, 1, 2]) == []
    assert received("24 vs 16", {0: usual[:2]}, 1, [0, 1, 2]) == []


def test_who_was_in_what_came_next_before_left_a_call_out_to_which_two_came() -> None:
    step = ["all_reduce [[1164]]", "all_reduce [[1]]"]
    line = [*step, "broadcast [[7]]", "barrier", step[0]]
    # On five members 1,164 floats come in parts of 468 bytes.
    assert received("468 vs 4", {1: line, 3: line}, 2, [0, 1, 2, 3, 4]) == [(2, [1, 3], 5, 2, False)]
    assert received("468 vs 8", {1: line, 3: line}, 2, [0, 1, 2, 3, 4]) == []
    assert received("468 vs 4", {3: line}, 2, [0, 1, 2, 3, 4]) == []


def test_a_line_that_makes_several_in_a_row_is_left_as_a_whole() -> None:
    # Buckets of 4,485 and 1,088 floats from one line, in parts of 2,244 and 544 bytes, and one float from another.
    step = ["all_reduce [[4485]]", "all_reduce [[1088]]", "all_reduce [[1]]"]
    line, elsewhere = [*step, *step[:2]], {"[[1]]": "log (train.py:30)"}
    assert received("2244 vs 4", {1: line, 3: line}, 2, [0, 1, 2, 3], sites=elsewhere) == [(2, [1, 3], 4, 3, False)]
    assert received("2244 vs 4", {1: line, 3: line}, 2, [0, 1, 2, 3]) == []
    assert received("2244 vs 8", {1: line, 3: line}, 2, [0, 1, 2, 3], sites=elsewhere) == []


def test_of_two_the_one_that_left_what_its_steps_foretell_is_odd() -> None:
    burst = [f"all_reduce [[{n}]]" for n in (4, 48, 12, 144, 12, 144)]
    step = [*burst, "broadcast [[1]]"]
    # On two members floats come in parts of as many bytes. One that made all calls: the other left one out.
    assert received("144 vs 12", {0: [*step, *step, *burst]}, 1, [0, 1])[0][0] == 1
    # One that left out two: the other has the call that was foretold.
    assert received("144 vs 12", {0: [*step, *step, *burst[:2], *burst[3:]]}, 1, [0, 1])[0][0] == 0
    # Another length than that of the call that was foretold; no steps before.
    assert received("144 vs 48", {0: [*step, *step, *burst[:2], *burst[3:]]}, 1, [0, 1]) == []
    assert received("144 vs 12", {0: burst}, 1, [0, 1]) == []


def test_a_call_below_which_nothing_of_python_stands_was_made_by_the_reducer() -> None:
    three = {0: LAYERS, 1: LAYERS, 3: LAYERS}
    engine = "_engine_run_backward (/venv/torch/autograd/graph.py:1113)\nbackward (/job/train.py:9)"
    assert received("2400 vs 40", three, 2, [0, 1, 2, 3], engine)[0][-1]
    # What it was in then is nothing that follows one.
    assert not received("2400 vs 36", three, 2, [0, 1, 2, 3], engine)[0][-1]
    assert not received("2400 vs 40", three, 2, [0, 1, 2, 3], "hook (/job/train.py:4)\n" + engine)[0][-1]


def test_of_two_the_one_whose_size_is_another_than_ever_is_odd() -> None:
    usual = ["all_reduce [[800]]", "all_reduce [[800]]", "all_reduce [[800]]"]
    # On two members 800 floats come in parts of 800 bytes.
    assert received("800 vs 732", {0: usual}, 2, [0, 2]) == [(2, [0], 3, None, False)]
    assert received("900 vs 800", {0: [*usual[:2], "all_reduce [[900]]"]}, 2, [0, 2]) == [(0, [0], 3, None, False)]
    # Two calls make no habit, nor do calls of as many sizes.
    assert received("800 vs 732", {0: usual[:2]}, 2, [0, 2]) == []
    assert received("800 vs 732", {0: ["all_reduce [[400]]", "all_reduce [[600]]", "all_reduce [[800]]"]}, 2, [0, 2]) == []


def test_of_an_all_gather_halves_come_from_the_member_before() -> None:
    usual = ["all_gather [[8]]"] * 3
    # What each brings, 16 floats here and 8 before, goes round in halves.
    longer = [*usual, "all_gather [[16]]"]
    assert received("32 vs 16", {0: longer}, 1, [0, 1]) == [(0, [0], 4, None, False)]
    assert received("32 vs 16", {0: longer, 2: [*usual, "all_gather [[8]]"]}, 1, [0, 1, 2]) == [(0, [0], 4, None, False)]
    assert received("32 vs 16", {2: longer, 0: [*usual, "all_gather [[8]]"]}, 1, [0, 1, 2]) == []
    # Half of that is as long as many other things: it was called last.
    assert received("32 vs 16", {0: [*longer, "all_reduce [[1]]"]}, 1, [0, 1]) == []


def test_of_several_groups_with_a_call_of_that_length_the_one_in_which_somebody_stood_last_is_meant() -> None:
    made = pl.concat(
        operations({0: calls}, group=group, first=1).with_columns(order=pl.int_range(pl.len()) + at)
        for group, calls, at in (
            ("pg:1", ["all_reduce [[8]]"] * 3 + ["all_reduce [[16]]"], 0),
            ("pg:0", ["all_reduce [[8]]"] * 3 + ["all_reduce [[16]]"], 9),
        )
    ).with_columns(call_site=pl.lit("step (train.py:9)"), record=pl.format("entries[{}]", "order"))
    aborted = endings({"rank": 1, "signature": "gloo-size-mismatch", "message": "op.preamble.length <= op.nbytes. 16 vs 8. Received data"})
    last = progress({"pg:0": {0: (4, None)}}).with_columns(last_op=pl.lit("all_reduce"))
    rings = groups({"pg:0": [0, 1], "pg:1": [0, 1]})
    assert ring_receivers(aborted, made, last, rings, table("fr_entries")).collect()["group_name"].to_list() == ["0"]
