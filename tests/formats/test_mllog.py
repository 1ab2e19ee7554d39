"""MLPerf's log of a training run."""

from __future__ import annotations

from nccl_forensics.reading.source import read_source
from tests.corpus import ROOT

SAMPLE = (ROOT / "fixtures" / "mllog" / "sample.txt").read_bytes()


def test_tracked_losses_are_steps_and_a_run_that_reached_its_target_is_over() -> None:
    found = read_source(SAMPLE)
    assert (found.formats, found.gap_lines, found.foreign) == (("mllog",), 0, 0)
    rows = found.frames["training_steps"].select("line_no", "step", "loss", "time_raw_ns", "time_kind").rows()
    assert rows == [(3, 10, 2.5, 1790000011 * 10**9, "epoch"), (5, 20, 2.25, 1790000021 * 10**9, "epoch")]
    assert found.frames["training_ends"].select("line_no", "message").rows() == [(7, "MLPerf: run_stop, status success")]


def test_without_a_loss_the_evaluations_tell_how_far_it_was_and_an_aborted_run_is_no_end() -> None:
    found = read_source(SAMPLE.replace(b"train_loss", b"grad").replace(b"success", b"aborted"))
    assert found.frames["training_steps"].select("line_no", "step", "loss").rows() == [(6, 160, None)]
    assert "training_ends" not in found.frames


def test_a_line_that_was_cut_is_a_gap_and_the_rank_before_it_is_kept() -> None:
    lines = SAMPLE.decode().splitlines()
    found = read_source("".join(f"1: {line}\n" for line in [*lines[:6], lines[6][:90]]).encode())
    assert (found.gap_lines, found.frames["training_steps"]["hint_rank"].to_list()) == (1, [1, 1])
