"""GPUs that listings give by an index, and GPUs of one host that suffer alike."""

from __future__ import annotations

from typing import Any

import polars as pl

from nccl_forensics.rules.gpu_fault import gpu_fault
from nccl_forensics.rules.gpu_throttled import gpu_throttled
from nccl_forensics.rules.nvlink_fault import nvlink_fault
from nccl_forensics.rules.nvlink_topology import topology_dump
from tests.rules.host_frames import check, table
from tests.rules.host_frames import processes as known

PEOPLE = known((8, "node7", 1, "17000"), (9, "node7", 2, "1a000"), (10, "node7", 3, "1b000"), (11, "node7", 4, "1c000")).with_columns(
    gpu_index=(pl.col("rank") - 8).cast(pl.Int32)
)


def gpu(index: int, **facts: object) -> dict[str, object]:
    return {"hint_host": "node7", "gpu_index": index, "name": "NVIDIA H100", "utilization_percent": 99.0, **facts}


def test_a_failed_test_of_dcgm_names_the_rank_on_that_index() -> None:
    failed = table("dcgm_results", {"host": "node7", "gpu_index": 2, "category": "Hardware", "test": "memory", "status": "fail"})
    [finding] = check(gpu_fault, dcgm_results=failed, processes=PEOPLE)
    assert finding.ranks == (10,)
    [finding] = check(gpu_fault, dcgm_results=failed, processes=known((8, "node8", 1, "17000")))
    assert finding.ranks == ()


def test_the_matrix_of_the_topology_names_the_rank_of_a_gpu_without_links() -> None:
    names = [f"GPU{n}" for n in range(4)]
    pairs = [(a, b) for a in names for b in names if a != b]
    rows = [{"hint_host": "node7", "a": a, "b": b, "relation": "SYS" if "GPU3" in (a, b) else "NV18"} for a, b in pairs]
    told = [{**row, "nvlinks": None if row["relation"] == "SYS" else 18} for row in rows]
    [finding] = check(nvlink_fault, gpu_topology=table("gpu_topology", *told), processes=PEOPLE)
    assert finding.ranks == (11,)


def test_gpus_of_a_host_that_are_held_down_alike_are_one_finding_and_others_are_not() -> None:
    held = [gpu(n, throttle=["hw-slowdown", "power-brake"]) for n in range(3)]
    [finding] = check(gpu_throttled, gpus=table("gpus", *held, gpu(3)), processes=PEOPLE)
    assert (finding.ranks, len(finding.culprits or ())) == ((8, 9, 10), 3)
    apart = check(gpu_throttled, gpus=table("gpus", *held[:1], gpu(3, throttle=["sw-thermal"])), processes=PEOPLE)
    assert [f.ranks for f in apart] == [(8,), (11,)]


def test_clocks_of_a_listing_without_models_are_compared_within_it() -> None:
    clocks = [gpu(n, name=None, sm_clock_mhz=900.0 if n == 2 else 1980.0) for n in range(4)]
    [finding] = check(gpu_throttled, gpus=table("gpus", *clocks), processes=PEOPLE)
    assert finding.ranks == (10,)
    assert check(gpu_throttled, gpus=table("gpus", *(c | {"sm_clock_mhz": 1980.0} for c in clocks)), processes=PEOPLE) == []


# ---- the dump of NCCL's topology ----


def dump(links: tuple[int, ...], lanes: tuple[int, ...] = (16, 16, 16, 16)) -> pl.LazyFrame:
    rows: list[dict[str, Any]] = []
    for n, (links_of, width) in enumerate(zip(links, lanes, strict=True)):
        of = {"host_hash": "0x1", "bus_id": f"0000:{('17', '1a', '1b', '1c')[n]}:00.0"}
        rows += [of | {"element": "pci", "link_width": width}, of | {"element": "gpu", "dev": n, "rank": 8 + n}]
        rows += [of | {"element": "nvlink", "count": links_of, "target": "ffff:ff:ff.0"}] if links_of else []
    return table("nccl_topo", *rows)


HOSTS = pl.LazyFrame({"source_id": [0], "host": ["node7"]}, schema={"source_id": pl.UInt32, "host": pl.String})


def test_a_gpu_without_nvlinks_in_the_dump_of_the_topology_is_named() -> None:
    [finding] = check(topology_dump, nccl_topo=dump((18, 18, 0, 18)), processes=PEOPLE, source_hosts=HOSTS)
    assert (finding.cause, finding.ranks) == ("nvlink-fault", (10,))
    [finding] = check(topology_dump, nccl_topo=dump((18, 18, 18, 18), (16, 16, 8, 16)), processes=PEOPLE, source_hosts=HOSTS)
    assert (finding.cause, finding.ranks) == ("pcie-degraded", (10,))


def test_a_dump_with_equal_gpus_and_a_file_that_nccl_was_given_are_quiet() -> None:
    assert check(topology_dump, nccl_topo=dump((18, 18, 18, 18)), processes=PEOPLE, source_hosts=HOSTS) == []
    given = pl.LazyFrame({"name": ["NCCL_TOPO_FILE"]})
    assert check(topology_dump, nccl_topo=dump((18, 18, 0, 18)), job_settings=given, processes=PEOPLE, source_hosts=HOSTS) == []


def test_a_gpu_that_one_look_names_by_address_and_another_by_its_uuid_alone_is_one() -> None:
    hot = {"host": "node1", "uuid": "GPU-1", "name": "H100", "throttle": ["hw-slowdown", "hw-thermal"]}
    looks = [hot | {"bus_id": "0000:17:00.0"}, hot | {"gpu_index": 0, "source_id": 1}]
    [finding] = check(gpu_throttled, gpus=table("gpus", *looks))
    assert [c.gpu for c in finding.culprits or ()] == ["0000:17:00.0"]
    # Another UUID is another GPU.
    [both] = check(gpu_throttled, gpus=table("gpus", looks[0], looks[1] | {"uuid": "GPU-2"}))
    assert [c.gpu for c in both.culprits or ()] == ["0000:17:00.0", "GPU-2"]
