"""Topology files that describe other links than their neighbours have."""

from __future__ import annotations

import polars as pl

from nccl_forensics.rules.topology_file import topology_file
from tests.rules.frames import cited, settings
from tests.rules.host_frames import table

USED = settings("NCCL_TOPO_FILE", ("/etc/topo.xml", [0, 1, 2, 3]))


def topo(**links: dict[str, int]) -> pl.LazyFrame:
    """NVLinks by GPU and the GPU at their other end; the file is source 9."""
    ends = [(gpu, to, n) for gpu, others in links.items() for to, n in others.items()]
    return table(
        "nccl_topo",
        *[
            {"element": "nvlink", "bus_id": gpu, "target": to, "count": n, "source_id": 9, "line_no": line, "record": f"nvlink[{line}]"}
            for line, (gpu, to, n) in enumerate(ends, 1)
        ],
    )


def test_a_file_whose_two_ends_of_one_link_disagree_is_wrong() -> None:
    [finding] = topology_file.check(USED, topo(a={"b": 4, "c": 4}, b={"a": 4, "c": 4}, c={"a": 1, "b": 1}))
    assert (finding.cause, finding.severity, finding.confidence, finding.ranks) == ("bad-setting", "error", "high", ())
    assert cited(finding) == [(0, 2), (9, 5)]
    assert "the topology gives c 2 NVLinks where other GPUs have 8" in finding.title


def test_where_both_ends_agree_the_hardware_may_really_have_fewer_links() -> None:
    [finding] = topology_file.check(USED, topo(a={"b": 4, "c": 1}, b={"a": 4, "c": 1}, c={"a": 1, "b": 1}))
    assert finding.confidence == "medium"


def test_an_even_topology_or_one_that_nobody_forced_stays_quiet() -> None:
    assert topology_file.check(USED, topo(a={"b": 4}, b={"a": 4})) == []
    assert topology_file.check(settings("NCCL_ALGO", ("Ring", [0])), topo(a={"b": 4, "c": 4}, b={"a": 4}, c={"a": 4})) == []
