"""What bandwidth tests measured."""

from __future__ import annotations

import polars as pl

from nccl_forensics.facts.bandwidth import LARGE_BYTES
from nccl_forensics.views.bandwidth import bandwidth_measures
from tests.rules.host_frames import table


def measured(about: dict[str, object], *sizes: dict[str, object]) -> pl.DataFrame:
    platform = {"test": 0, "collective": "all_reduce", "ranks": 8, "gpus": ["NVIDIA A100-SXM4-80GB"], "hosts": ["node1"]}
    return bandwidth_measures(
        table("bandwidth_tests", platform | about), table("bandwidth_rows", *[{"test": 0, "dtype": "float"} | s for s in sizes])
    ).collect()


def test_the_better_placement_of_each_size_counts_and_large_sizes_know_their_goal() -> None:
    found = measured({}, *[{"bytes": b, "bus_bw_gb_s": bw} for b, bw in ((LARGE_BYTES, 100.0), (LARGE_BYTES, 110.0), (1024, 0.1))])
    assert found.select("bytes", "bus_bw_gb_s", "expected_gb_s").rows() == [(LARGE_BYTES, 110.0, 228.0), (1024, 0.1, None)]


def test_other_collectives_and_unknown_platforms_have_no_goal() -> None:
    large = {"bytes": LARGE_BYTES, "bus_bw_gb_s": 100.0}
    assert measured({"collective": "all_gather"}, large)["expected_gb_s"].to_list() == [None]
    assert measured({"gpus": ["Some GPU"]}, large)["expected_gb_s"].to_list() == [None]
    assert measured({"hosts": ["node1", "node2"]}, large)["expected_gb_s"].to_list() == [None]
