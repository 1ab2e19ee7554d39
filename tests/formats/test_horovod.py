"""What Horovod's stall inspector prints, old and new."""

from __future__ import annotations

from nccl_forensics.reading.source import read_source

HEAD = "One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks and are waiting for remainder of ranks"


def read(*lines: str) -> list[tuple[object, ...]]:
    return read_source("\n".join(lines).encode() + b"\n").frames["reports"].select("kind", "ranks", "detail").rows()


def test_a_line_per_missing_rank_with_the_tensors_that_wait_for_it():
    stamp = "[2026-11-22 10:00:00.181832: W /build/horovod/common/stall_inspector.cc:105] "
    told = read(f"{stamp}{HEAD} for more than 60 seconds.", "Missing ranks:", "1: [grad_a, grad_b ...]", "3!: [grad_b]", "step 7")
    assert told == [("stalled-tensors", None, None), ("stalled-tensors", [1], "grad_a\ngrad_b ..."), ("stalled-tensors", [3], "grad_b")]


def test_a_line_per_tensor_with_its_missing_ranks():
    told = read(f"WARNING: {HEAD} for more than 60 seconds.", "Stalled ops:bcast_x_0 [missing ranks: 1, 2]", "bcast_y_0 [missing ranks: 2]")
    assert told[1:] == [("stalled-tensors", [1, 2], "bcast_x_0"), ("stalled-tensors", [2], "bcast_y_0")]


def test_a_heading_without_a_report_is_no_business_of_horovod():
    found = read_source(f"{HEAD} for more than 60 seconds.\nstep 7\n1: [a, b]\n".encode())
    assert (found.frames["reports"].height, found.foreign) == (1, 2)


def test_tensors_in_one_line_with_the_ranks_that_are_ready_lack_the_others_up_to_the_last_one_told():
    told = read(
        f"WARNING: {HEAD} for more than 60 seconds. Stalled ops: opt/grad_a_0 [ready ranks: 3, 1, 2], opt/grad_b_0 [ready ranks: 1, 3]",
        "step 7",
    )
    assert told == [
        ("stalled-tensors", None, None),
        ("stalled-tensors", [0], "opt/grad_a_0"),
        ("stalled-tensors", [0, 2], "opt/grad_b_0"),
    ]


def test_a_tensor_for_which_all_are_ready_that_are_told_of_names_nobody():
    assert read(f"{HEAD} for more than 60 seconds. Stalled ops: grad_a_0 [ready ranks: 0, 1, 2]") == [("stalled-tensors", None, None)]


def test_lines_that_mpirun_tagged_at_each_write_are_put_together():
    tag = "[1,0]<stderr>:"
    told = read(
        f"{tag}[{tag}2026-11-22 10:00:00{tag}.{tag}214399{tag}: {tag}W {tag}stall_inspector.cc{tag}:{tag}105{tag}] {tag}{HEAD} for 60 seconds.",
        f"{tag}Stalled ranks:",
        f"{tag}1: [grad_a]{tag}",
    )
    assert told == [("stalled-tensors", None, None), ("stalled-tensors", [1], "grad_a")]
