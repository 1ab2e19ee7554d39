"""Where training curves break."""

from __future__ import annotations

import math

import polars as pl

from nccl_forensics.views.loss_jumps import loss_jumps
from tests.rules.host_frames import table

NAN = math.nan
COURSE = [3.0 - 0.01 * n + 0.02 * (n % 3) for n in range(60)]


def found(losses: list[float], norms: list[float] | None = None) -> list[tuple[str, str, int]]:
    """What, kind and step of each break; steps count from 0."""
    rows = [{"step": n, "loss": x, "grad_norm": norms[n] if norms else None} for n, x in enumerate(losses)]
    frame = loss_jumps(table("training_steps", *rows)).collect()
    return [(w, k, s) for w, k, s in frame.select("what", "kind", "step").iter_rows()]


def test_a_steady_course_and_a_single_spike_are_no_breaks() -> None:
    assert found(COURSE) == []
    assert found([*COURSE[:40], 30.0, *COURSE[40:]]) == []


def test_a_loss_that_jumps_and_stays_is_told_at_its_first_step() -> None:
    assert found([*COURSE[:40], *[9.0 + x for x in COURSE[40:]]]) == [("loss", "jump", 40)]


def test_a_loss_that_is_no_number_from_a_step_on_is_told_and_a_single_one_is_not() -> None:
    assert found([*COURSE[:20], *[NAN] * 10]) == [("loss", "not-a-number", 20)]
    assert found([*COURSE[:20], NAN]) == [("loss", "not-a-number", 20)]
    assert found([*COURSE[:20], NAN, *COURSE[20:]]) == []


def test_a_log_that_never_had_a_number_tells_no_break() -> None:
    assert found([NAN] * 30) == []


def test_a_norm_may_triple_but_not_grow_twentyfold_for_good() -> None:
    norms = [1.0 + 0.1 * (n % 5) for n in range(60)]
    assert found(COURSE, [*norms[:40], *[3 * x for x in norms[40:]]]) == []
    assert found(COURSE, [*norms[:40], *[20 * x for x in norms[40:]]]) == [("grad-norm", "jump", 40)]


def test_too_few_steps_tell_nothing() -> None:
    assert found([*COURSE[:8], *[9.0] * 8]) == []


def test_curves_of_two_logs_are_judged_apart() -> None:
    rows = [{"source_id": s, "line_no": n + 1, "step": n, "loss": x * (1 + 9 * s)} for s in (0, 1) for n, x in enumerate(COURSE)]
    assert loss_jumps(table("training_steps", *rows)).collect().height == 0
    assert isinstance(loss_jumps(table("training_steps")), pl.LazyFrame)
