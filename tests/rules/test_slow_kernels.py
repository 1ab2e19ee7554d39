"""Ranks whose device takes longer for the same kernels."""

from __future__ import annotations

import polars as pl

from nccl_forensics.model import Finding
from nccl_forensics.rules.gpu_throttled import gpu_throttled
from nccl_forensics.rules.pcie_degraded import pcie_degraded
from nccl_forensics.rules.slow_kernels import slow_kernels
from nccl_forensics.views.identity import PROCESSES_SCHEMA
from nccl_forensics.views.kernel_pace import KERNEL_PACE
from tests.rules.host_frames import check, table
from tests.views.frames import rows as rows_of


def paces(*pace: float, **known: object) -> pl.LazyFrame:
    """One rank for each pace, in traces of a second."""
    rows = [
        {
            "kind": "compute",
            "rank": rank,
            "ranks": len(pace),
            "names": 5,
            "launches": 400,
            "pace": p,
            "least_pace": p,
            "agreeing_share": 1.0,
            "excess_ms": 600 * (p - 1),
            "span_ms": 1000.0,
            "source_id": rank,
            "record": "traceEvents",
        }
        | known
        for rank, p in enumerate(pace)
    ]
    return pl.DataFrame(rows, schema=KERNEL_PACE, infer_schema_length=None).lazy()


def test_the_rank_whose_kernels_take_twice_as_long_is_named() -> None:
    [finding] = slow_kernels.check(paces(1.0, 1.02, 2.0, 0.99))
    assert (finding.ranks, finding.confidence, finding.severity) == ((2,), "high", "error")
    assert finding.evidence


def test_two_slow_ranks_of_eight_are_named_together() -> None:
    [finding] = slow_kernels.check(paces(1.0, 1.8, 1.0, 1.0, 1.0, 2.5, 1.0, 1.0))
    assert finding.ranks == (1, 5)


def test_copies_of_as_many_bytes_that_take_much_longer_tell_a_slow_way_to_the_device() -> None:
    [finding] = slow_kernels.check(paces(1.0, 40.0, kind="memcpy", launches=4))
    assert (finding.ranks, finding.confidence, finding.subject[1]) == ((1,), "medium", "copies")
    assert slow_kernels.check(paces(1.0, 1.0, 1.8, 1.0, kind="memcpy", launches=40)) == [], "copies share their way with others"
    assert slow_kernels.check(paces(1.0, 40.0, kind="memcpy", launches=4, excess_ms=5.0)) == []
    assert slow_kernels.check(paces(1.0, 40.0, kind="memcpy", launches=2)) == []


def test_half_of_the_ranks_and_one_of_two_are_less_sure() -> None:
    [half] = slow_kernels.check(paces(1.6, 1.6, 1.0, 1.0))
    assert (half.ranks, half.confidence) == ((0, 1), "medium")
    [pair] = slow_kernels.check(paces(1.0, 1.6))
    assert (pair.ranks, pair.confidence) == ((1,), "medium")


def test_work_that_is_shared_out_unevenly_is_nobodys_fault() -> None:
    assert slow_kernels.check(paces(1.0, 1.2, 1.35, 1.1)) == [], "all differ from each other"
    assert slow_kernels.check(paces(1.0, 1.0, 1.6, 1.0, least_pace=1.0)) == [], "a longer batch now and then"
    assert slow_kernels.check(paces(1.0, 1.0, 1.6, 1.0, agreeing_share=0.5)) == [], "one kernel alone"
    assert slow_kernels.check(paces(1.0, 1.6, 1.6, 1.6)) == [], "most are alike"
    assert slow_kernels.check(paces(1.0, 1.0, 1.6, 1.0, excess_ms=20.0)) == [], "it costs next to nothing"
    assert slow_kernels.check(paces(1.0, 1.0, 1.6, 1.0, launches=10)) == [], "too few to compare"
    assert slow_kernels.check(paces(1.0, 1.05, 1.15, 1.0)) == []
    assert slow_kernels.check(paces(2.0)) == [], "nobody to compare with"


def test_a_whole_stage_of_a_pipeline_may_have_more_to_do() -> None:
    stages = paces(1.0, 1.0, 1.3, 1.3).collect().with_columns(stages=pl.lit(True))
    mates = pl.Series([[1], [0], [3], [2]], dtype=pl.List(pl.Int32))
    [whole] = slow_kernels.check(stages.with_columns(mates=mates).lazy())
    assert (whole.ranks, whole.severity, whole.confidence) == ((2, 3), "warning", "low")
    [much] = slow_kernels.check(paces(1.0, 1.0, 1.6, 1.6).collect().with_columns(stages=pl.lit(True), mates=mates).lazy())
    assert (much.ranks, much.severity, much.confidence) == ((2, 3), "error", "low")
    [one] = slow_kernels.check(paces(1.0, 1.0, 1.0, 1.4).collect().with_columns(stages=pl.lit(True), mates=mates).lazy())
    assert (one.ranks, one.severity, one.confidence) == ((3,), "error", "high"), "its mate of the stage is not slow"
    [alone] = slow_kernels.check(paces(1.0, 1.0, 1.0, 2.5, stages=True).lazy())
    assert (alone.ranks, alone.severity, alone.confidence) == ((3,), "error", "low")


def test_a_device_of_another_kind_is_slow_by_nature() -> None:
    kinds = pl.Series([["A"], ["A"], ["A"], ["B"]], dtype=pl.List(pl.String))
    rows = paces(1.0, 1.0, 1.0, 2.0, kernel="gemm", kernel_ms=7.0, usual_ms=3.5).collect().with_columns(gpus=kinds)
    [other] = slow_kernels.check(rows.lazy())
    assert (other.ranks, other.confidence) == ((3,), "medium")
    assert "Its device is another one: B, and the others' A." in other.summary
    assert other.evidence[0].why == "gemm takes 7.0 ms a run, on the others 3.5 ms"
    [alike] = slow_kernels.check(rows.with_columns(gpus=kinds.slice(0, 1).new_from_index(0, 4)).lazy())
    assert (alike.confidence, len(alike.would_refute)) == ("high", 1)


def held_down(pace: pl.LazyFrame, *hosts: str) -> list[Finding]:
    """The GPU of node7 that is too hot, beside traces of ranks on these hosts."""
    people = rows_of(PROCESSES_SCHEMA, *({"rank": r, "host": h} for r, h in enumerate(hosts)))
    hot = table("gpus", *({"host": "node7", "bus_id": f"0000:{i:02x}:00.0", "throttle": ["hw-thermal"] * (i == 1)} for i in range(4)))
    return check(gpu_throttled, gpus=hot, processes=people, kernel_pace=pace)


def test_the_one_slow_rank_of_a_host_runs_on_the_one_gpu_of_it_that_is_held_down() -> None:
    [found] = held_down(paces(1.0, 1.0, 1.5, 1.6), "node7", "node7", "node7", "node8")
    assert (found.ranks, found.culprits[0].gpu) == ((2,), "0000:01:00.0")
    assert "rank 2 runs on another GPU" in found.would_refute
    [nobody] = held_down(paces(1.0, 1.5, 1.5, 1.0), "node7", "node7", "node7", "node8")
    assert nobody.ranks == (), "two of the host are slow"
    [unknown] = held_down(paces(1.0, 1.5, 1.0))
    assert unknown.ranks == (1,), "no trace tells its host"
    [elsewhere] = held_down(paces(1.0, 1.0, 1.0, 1.5), "node7", "node7", "node7", "node8")
    assert elsewhere.ranks == ()


def test_listings_that_name_no_host_are_of_hosts_of_their_own() -> None:
    def listed(*hot: tuple[int, int]) -> pl.LazyFrame:
        rows = [{"source_id": s, "gpu_index": i, "throttle": ["hw-thermal"] * ((s, i) in hot)} for s in (1, 2) for i in range(4)]
        return table("gpus", *rows)

    [found] = check(gpu_throttled, gpus=listed((2, 1)), kernel_pace=paces(1.0, 1.0, 1.5, 1.0))
    assert (found.ranks, found.summary) == ((2,), "The GPU in 1 sample.")
    both = check(gpu_throttled, gpus=listed((1, 1), (2, 1)), kernel_pace=paces(1.0, 1.0, 1.5, 1.0))
    assert [f.ranks for f in both] == [(), ()], "two are held down and one rank is slow"


def test_slow_copies_place_a_rank_on_the_gpu_with_few_lanes() -> None:
    people = rows_of(PROCESSES_SCHEMA, *({"rank": r, "host": "node7"} for r in range(3)))
    lanes = [
        {"host": "node7", "bus_id": f"0000:{i:02x}:00.0", "name": "A", "pcie_width": w, "pcie_width_max": 16}
        for i, w in enumerate((16, 4, 16))
    ]
    [found] = check(pcie_degraded, gpus=table("gpus", *lanes), processes=people, kernel_pace=paces(1.0, 3.0, 1.0, kind="memcpy"))
    assert (found.ranks, found.culprits[0].gpu) == ((1,), "0000:01:00.0")
