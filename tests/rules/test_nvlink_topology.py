"""GPUs with fewer NVLinks than their neighbours."""

from __future__ import annotations

import polars as pl

from nccl_forensics.rules.nvlink_topology import nvlink_topology
from nccl_forensics.views.nccl_facts import GPU_LINKS
from tests.rules.frames import cited, settings, told
from tests.views.frames import rows


def links(*bandwidth: float) -> pl.LazyFrame:
    """GPUs of node1 with ranks from 0; GPU n is at bus n and line n."""
    return rows(
        GPU_LINKS,
        *[{"host": "node1", "gpu": f"{n}b000", "rank": n, "nvlink_gb_s": b, "source_id": 0, "line_no": n} for n, b in enumerate(bandwidth)],
    )


def test_the_gpu_with_fewer_links_is_named_beside_a_whole_one() -> None:
    [finding] = nvlink_topology.check(links(370, 185, 370, 370))
    assert told(finding) == ("error", "high", (1,))
    assert finding.culprits[0].gpu == "1b000"
    assert cited(finding) == [(0, 1), (0, 0)]
    assert finding.title == "GPU 1b000 of node1 (rank 1) has 185 GB/s of NVLink, its neighbours 370"


def test_the_share_below_which_a_gpu_is_named_can_be_set() -> None:
    assert nvlink_topology.check(links(370, 185, 370, 370), below=0.4) == []


def test_equal_gpus_gpus_without_nvlink_and_halves_stay_quiet() -> None:
    assert nvlink_topology.check(links(370, 370, 370, 370)) == []
    assert nvlink_topology.check(links(0, 0, 0, 0)) == []
    assert nvlink_topology.check(links(370, 370, 185, 185)) == []


def test_of_two_gpus_of_a_host_those_of_other_hosts_tell_which_is_the_odd_one() -> None:
    def job(*bandwidth: float) -> pl.LazyFrame:
        pairs = [{"host": f"node{n // 2}", "gpu": f"{n % 2}b000", "rank": n, "nvlink_gb_s": b} for n, b in enumerate(bandwidth)]
        return rows(GPU_LINKS, *(pair | {"source_id": 0, "line_no": n} for n, pair in enumerate(pairs)))

    [finding] = nvlink_topology.check(job(370, 370, 370, 123))
    assert told(finding) == ("error", "high", (3,))
    assert finding.title == "GPU 1b000 of node1 (rank 3) has 123 GB/s of NVLink, its neighbours 370"
    assert nvlink_topology.check(job(370, 123)) == [], "one host of two"
    assert nvlink_topology.check(job(123, 123, 123, 370)) == [], "most are as weak"
    assert nvlink_topology.check(job(185, 185, 370, 370)) == [], "hosts of another kind"


def test_a_gpu_whose_process_alone_was_given_another_topology_file_has_a_wrong_file() -> None:
    def found(*files: tuple[str, list[int]]) -> tuple[object, ...]:
        [finding] = nvlink_topology.check(links(370, 0, 370, 370), settings("NCCL_TOPO_FILE", *files))
        return finding.cause, *told(finding)[1:]

    assert found(("/etc/h100.xml", [1]), ("/etc/topo.xml", [0, 2, 3])) == ("bad-setting", "medium", (1,))
    assert found(("/etc/h100.xml", [1])) == ("bad-setting", "medium", (1,))
    assert found(("/etc/topo.xml", [0, 1, 2, 3])) == ("nvlink-fault", "high", (1,)), "all were given one file"
    assert found(("/etc/other.xml", [0]), ("/etc/topo.xml", [1, 2, 3])) == ("nvlink-fault", "high", (1,)), "a neighbour has another"
