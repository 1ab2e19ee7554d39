"""Signs of silent corruption."""

from __future__ import annotations

import math

import polars as pl

from nccl_forensics.model import Finding
from nccl_forensics.rules.corruption_signs import corruption_signs
from nccl_forensics.rules.loss_jump import loss_jump
from nccl_forensics.rules.replicas_differ import replicas_differ
from nccl_forensics.views.loss_jumps import LOSS_JUMPS
from nccl_forensics.views.replica_norms import replica_norms
from tests.rules.frames import cited
from tests.rules.host_frames import SECOND, processes, table, xid
from tests.views.frames import rows

HOUR = 3600 * SECOND
BUS = "0000:17:00.0"


def jump(**more: object) -> dict[str, object]:
    """The loss jumped at step 700, told in line 9 of source 3."""
    usual = {"source_id": 3, "line_no": 9, "what": "loss", "kind": "jump", "step": 700, "value": 9.5, "before": 2.25}
    return {**usual, "time_raw_ns": 100 * HOUR, "time_kind": "epoch", **more}


def jumps(*found: dict[str, object]) -> pl.LazyFrame:
    return rows(LOSS_JUMPS, *found)


def test_a_break_of_the_curve_is_told_with_its_step_and_blames_nobody() -> None:
    [finding] = loss_jump.check(jumps(jump()))
    assert finding.title == "the loss jumped to 9.5 at step 700, after 2.25 in the median of the steps before, and stayed so"
    assert (finding.severity, finding.confidence, finding.culprits) == ("warning", "low", ())
    assert cited(finding) == [(3, 9)]


def test_the_same_curve_of_many_ranks_is_one_finding_and_kinds_are_told_apart() -> None:
    found = loss_jump.check(jumps(jump(), jump(source_id=4, step=701), jump(kind="not-a-number", value=math.nan, step=702)))
    assert [f.title.split(" at ")[0] for f in found] == ["the loss became not-a-number", "the loss jumped to 9.5"]
    assert found[1].evidence_total == 2


def test_a_curve_without_breaks_is_quiet() -> None:
    assert loss_jump.check(jumps()) == []


def signs(
    errors: pl.LazyFrame | None = None, gpus: pl.LazyFrame | None = None, links: pl.LazyFrame | None = None, *found: dict[str, object]
):
    who = processes((5, "node7", 100, "17000"))
    return corruption_signs.check(jumps(*(found or (jump(),))), errors, gpus, links, who, None, None)


def at(code: int, hour: float, **more: object) -> dict[str, object]:
    return xid(code, time_kind="epoch", **more) | {"time_raw_ns": int(hour * HOUR)}


def test_an_uncontained_error_shortly_before_the_break_is_an_error_of_that_gpu_and_rank() -> None:
    [finding] = signs(table("xids", at(95, 99.5)))
    assert finding.title == "GPU 0000:17:00.0 of node7 had Xid 95, and the training curve broke away at step 700: numbers may be spoiled"
    assert (finding.severity, finding.confidence, finding.ranks) == ("error", "medium", (5,))
    assert cited(finding) == [(0, 1), (3, 9)]


def test_a_contained_error_is_a_weak_sign() -> None:
    [finding] = signs(table("xids", at(94, 99.5)))
    assert (finding.severity, finding.confidence) == ("warning", "low")


def test_errors_long_before_or_after_the_break_other_codes_and_no_break_are_quiet() -> None:
    assert signs(table("xids", at(95, 60))) == []
    assert signs(table("xids", at(95, 104))) == []
    assert signs(table("xids", at(79, 99.5))) == []
    assert corruption_signs.check(jumps(), table("xids", at(95, 99.5)), None, None, None, None, None) == []


def test_an_error_without_a_wall_time_may_be_near() -> None:
    assert len(signs(table("xids", xid(95, time_kind="monotonic")))) == 1


def test_counters_of_uncorrected_errors_count_and_mended_rows_are_weak() -> None:
    gpu = {"host": "node7", "bus_id": BUS, "gpu_index": 0}
    [strong] = signs(None, table("gpus", gpu | {"dram_uncorrected": 2}))
    assert ("dram uncorrected 2" in strong.title, strong.severity) == (True, "error")
    [weak] = signs(None, table("gpus", gpu | {"remapped_uncorrected": 1}))
    assert weak.severity == "warning"
    assert signs(None, table("gpus", gpu | {"dram_uncorrected": 0, "dram_corrected": 900})) == []


def test_many_crc_errors_of_a_link_are_a_weak_sign_and_few_are_none() -> None:
    link = {"host": "node7", "bus_id": BUS, "link": 3, "counter": "CRC Errors"}
    [finding] = signs(None, None, table("nvlink_counters", link | {"value": 50_000.0}))
    assert (finding.severity, "NVLink CRC errors (50000)" in finding.title) == ("warning", True)
    assert signs(None, None, table("nvlink_counters", link | {"value": 3.0})) == []


def differ(steps: pl.LazyFrame) -> list[Finding]:
    return replicas_differ.check(replica_norms(steps, None))


def norms(odd_from: int | None, ranks: int = 4, odd: int = 2, factor: float = 1.5, last: int = 40) -> pl.LazyFrame:
    """Every rank's gradient norm for 40 steps; ``odd`` differs from a step on."""
    made = [
        {
            "source_id": r,
            "line_no": s + 1,
            "hint_rank": r,
            "hint_scope": "global",
            "step": s,
            "loss": 2.0,
            "grad_norm": (1.0 + s / 100) * (factor if odd_from is not None and r == odd and odd_from <= s < last else 1.0),
        }
        for r in range(ranks)
        for s in range(40)
    ]
    return table("training_steps", *made)


def test_the_rank_whose_norm_leaves_all_others_is_named_with_the_step() -> None:
    [finding] = differ(norms(25))
    assert finding.title == "rank 2 computes another gradient norm than all others from step 25 on: 1.875, not 1.25"
    assert (finding.severity, finding.confidence, finding.ranks) == ("error", "medium", (2,))
    assert cited(finding)[0] == (2, 26)


def test_ranks_that_agree_differ_from_the_start_differ_once_or_are_only_two_are_quiet() -> None:
    assert differ(norms(None)) == []
    assert differ(norms(0)) == []
    assert differ(norms(25, last=26)) == []
    assert differ(norms(25, ranks=2, odd=1)) == []
    assert differ(norms(25, factor=1.0005)) == []


def test_a_norm_of_the_own_part_is_quiet() -> None:
    own = [
        {"source_id": r, "line_no": s + 1, "hint_rank": r, "step": s, "grad_norm": 1.0 + r / 3 + ((s * 7 + r) % 5) / 10}
        for r in range(6)
        for s in range(40)
    ]
    assert differ(table("training_steps", *own)) == []
