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
