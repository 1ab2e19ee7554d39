"""Training loops that tell their loss."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import polars as pl
import pytest

from nccl_forensics.reading.source import read_source
from tests.corpus import ROOT


def test_the_layouts_of_the_frameworks_are_read_and_other_losses_are_not() -> None:
    found = read_source((ROOT / "fixtures" / "training_log" / "sample.txt").read_bytes())
    assert (found.formats, found.records, found.gap_lines, found.foreign) == (("training-log",), 9, 0, 5)
    rows = found.frames["training_steps"].select("line_no", "step", "loss", "grad_norm").rows()
    assert [row for row in rows if row[0] != 8] == [
        (1, 100, 2.345678, 1.234),
        (2, None, 2.3456, 0.875),
        (3, 10, 4.1234, 1.2345),
        (4, 100, 2.3456, None),
        (5, 100, 2.3001, None),
        (6, 10, 2.31, None),
        (7, 100, 12.3, 2.31),
        (9, 12, 2.25, 0.9),
    ]
    [(_, step, loss, norm)] = [row for row in rows if row[0] == 8]
    assert (step, math.isnan(loss), math.isinf(norm)) == (101, True, True)


def test_rank_and_time_are_kept() -> None:
    rows = read_source((ROOT / "fixtures" / "training_log" / "sample.txt").read_bytes()).frames["training_steps"]
    told = {n: (rank, time, kind) for n, rank, time, kind in rows.select("line_no", "hint_rank", "time_raw_ns", "time_kind").iter_rows()}
    start = int(datetime(2026, 5, 1, 10, tzinfo=UTC).timestamp())
    assert told[1] == (None, start * 10**9, "local-unzoned")
    assert told[3][0] == 3
    assert told[4] == (None, None, None)


def test_a_loss_without_a_step_is_no_training_step() -> None:
    assert read_source(b"the loss: 3.2 was high\nloss 1.0\n").formats == ()
    assert read_source(b"8 it/s, 3 bits, loss 1.0\n").formats == ()


def test_a_short_word_for_a_step_is_read() -> None:
    rows = read_source(b"2026-11-28 10:17:42,762 INFO [0] train: epoch 0 it 1 loss -0.7239\n").frames["training_steps"]
    assert rows.select("step", "loss").rows() == [(1, -0.7239)]


@pytest.mark.parametrize(
    "text",
    [
        "[7] loss=0.51\n[8] loss=0.44\n[9] loss=0.43\n",
        "update 7 | norm 2.0\nupdate 8 | norm 2.1\nupdate 9 | norm 2.1\n",
        "rank 1: round 7/12 mean +0.3\nrank 1: round 8/12 mean +0.3\nrank 1: round 9/12 mean +0.2\n",
        "2026-11-28 10:17:42,762 INFO train: it=7 tokens=512\n2026-11-28 10:17:43,100 INFO train: it=8 tokens=512\nit=9 tokens=512\n",
        "epoch 0 batch 7 loss 0.4\nepoch 0 batch 8 loss 0.4\nepoch 0 batch 9 loss 0.4\n",
        "round 2 step 7 loss 0.4\nround 2 step 8 loss 0.4\nround 2 step 9 loss 0.4\n",
    ],
)
def test_steps_by_other_names_are_read(text: str) -> None:
    assert read_source(text.encode()).frames["training_steps"]["step"].to_list() == [7, 8, 9]


def test_a_number_in_brackets_that_does_not_rise_is_no_step() -> None:
    assert read_source(b"[0] loss=0.51\n[1] loss=0.44\n[2] loss=0.43\n[0] loss=0.40\n").formats == ()


def test_times_are_read_where_they_tell_their_unit() -> None:
    def times(line: str) -> tuple[float | None, float | None]:
        [told] = read_source(f"{line}\n".encode()).frames["training_steps"].select("step_ms", "input_ms").rows()
        return told

    assert times("step 3 | loss 0.05 | step_time 702.0 ms | data 610.5 ms | fwd 43.0 ms") == (702.0, 610.5)
    assert times("rank=3 step=4 loss=0.1 iter_s=0.5 data_s=0.25 fwd_s=0.1") == (500.0, 250.0)
    assert times("iteration 5/ 9 | elapsed time per iteration (ms): 5200.5 | lm loss: 2.0E+00 | batch-generator: 12.5 ms") == (5200.5, 12.5)
    assert times("Iter 7: loss 2.0, step time: 0.5, data time: 0.125") == (500.0, 125.0)
    assert times("step 3 loss 0.5 data 7 batch 32 input 512") == (None, None), "counts"


def test_a_count_of_skipped_iterations_is_read() -> None:
    found = read_source(b"iteration 5/ 9 | lm loss: 2.0E+00 | number of skipped iterations:   2 |\n")
    assert found.frames["training_steps"].select(pl.col("skipped")).item() == 2


def test_the_word_that_the_training_is_over_is_read_behind_the_last_step() -> None:
    text = (
        b"training done soon\nstep 1 loss 2.0\nevaluating\nTraining completed. Do not forget to share your model\n{'train_runtime': 3.1}\n"
    )
    found = read_source(text).frames["training_ends"]
    assert found.select("line_no", "message").rows() == [
        (4, "Training completed. Do not forget to share your model"),
        (5, "{'train_runtime': 3.1}"),
    ]
    assert "training_ends" not in read_source(b"warmup training finished\nstep 1 loss 2.0\n").frames


def test_the_last_of_as_many_steps_as_there_are_says_that_it_is_over() -> None:
    rounds = "".join(f"rank 1: round {n}/9 mean 0.5\n" for n in range(6, 10))
    found = read_source(rounds.encode())
    assert found.frames["training_ends"].select("line_no", "message").rows() == [(4, "round 9/9 mean 0.5")]
    assert (found.records, found.foreign) == (4, 0)
    assert "training_ends" not in read_source(rounds.replace("9/9", "9/19").encode()).frames


def test_lines_that_begin_with_a_step_and_hold_values_are_read_where_they_are_a_series() -> None:
    rows = read_source(b"step 0 rank 5\nstep 1 rank 5\n").frames["training_steps"]
    assert rows.select("rank", "step", "loss").rows() == [(5, 0, None), (5, 1, None)]
    rows = read_source(b"[2026-05-01 10:00:00] iter    7 | out=-0.024 | lr=1e-3\n[2026-05-01 10:00:01] iter    8 | out=0.1\n").frames[
        "training_steps"
    ]
    assert rows.select("step", "time_kind").rows() == [(7, "local-unzoned"), (8, "local-unzoned")]


@pytest.mark.parametrize(
    "text",
    [
        "step 7 rank 5\n",
        "step 7 rank 5\nstep 7 rank 5\n",
        "step 1 rank 0\nstep 2 rank 1\n",
        "Step 1: checking drivers\nStep 2: installing packages\n",
        "Step 1/2 : FROM base:22.04\nStep 2/2 : RUN make\n",
        "checkpoint at step 5\ncheckpoint at step 6\n",
    ],
)
def test_a_step_alone_and_steps_of_anything_else_are_no_training_steps(text: str) -> None:
    assert read_source(text.encode()).formats == ()
