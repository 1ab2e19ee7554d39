"""Ranks of hosts whose own logs are not kept."""

from __future__ import annotations

import polars as pl

from nccl_forensics.views.communicators import COMMS_SCHEMA
from nccl_forensics.views.identity import PROCESSES_SCHEMA
from nccl_forensics.views.placements import placements
from tests.views.frames import rows

BUSES = ("1b000", "3d000")


def job(*hosts: int, ranks: int = 2, **changed: object) -> pl.LazyFrame:
    """Processes of these hosts, ``ranks`` on each, host 1 with rank 0: what their logs tell."""
    known = [
        {"rank": (h - 1) * ranks + n, "host": f"node{h:02}", "pid": 7, "bus_id": BUSES[n], "gpu_index": n, "source_id": h, "line_no": 1}
        for h in hosts
        for n in range(ranks)
    ]
    return rows(PROCESSES_SCHEMA, *[k | {n: v for n, v in changed.items() if k["rank"] == 4} for k in known])


def placed(processes: pl.LazyFrame, *hosts: str, world: int = 16) -> dict[tuple[str, str], int]:
    """Rank by host and bus."""
    told = pl.LazyFrame({"source_id": list(range(len(hosts))), "host": list(hosts)}, schema_overrides={"source_id": pl.UInt32()})
    found = placements(processes, rows(COMMS_SCHEMA, {"nranks": world}), told).collect()
    return {(h, b): r for h, b, r in found.select("host", "bus_id", "rank").iter_rows()}


ALL = tuple(f"node{h:02}" for h in range(1, 9))


def test_hosts_between_known_ones_have_the_ranks_between() -> None:
    found = placed(job(1, 3, 6), *ALL)
    assert found[("node02", "0000:1b:00.0")] == 2
    assert found[("node05", "0000:3d:00.0")] == 9
    assert found[("node08", "0000:3d:00.0")] == 15
    assert len(found) == 10


def test_a_host_missing_among_them_leaves_its_neighbours_unplaced_and_the_others_placed() -> None:
    found = placed(job(1, 3, 6), *[h for h in ALL if h != "node05"])
    assert {h for h, _ in found} == {"node02", "node07", "node08"}


def test_hosts_of_other_jobs_and_login_nodes_are_not_counted() -> None:
    assert len(placed(job(1, 3, 6), *ALL, "login1")) == 10
    assert {h for h, _ in placed(job(1, 3, 6), *ALL, "node09")} == {"node02", "node04", "node05"}


def test_two_known_hosts_prove_no_order() -> None:
    assert placed(job(1, 3), *ALL) == {}


def test_ranks_that_do_not_ascend_with_the_names_prove_no_order() -> None:
    swapped = job(1, 3, 6).with_columns(host=pl.col("host").replace({"node03": "node06", "node06": "node03"}))
    assert placed(swapped, *ALL) == {}


def test_ranks_dealt_out_host_by_host_prove_no_order() -> None:
    cyclic = job(1, 3, 6).with_columns(rank=pl.col("gpu_index") * 8 + pl.col("source_id") - 1)
    assert placed(cyclic, *ALL) == {}


def test_another_order_of_gpus_on_one_host_proves_no_order() -> None:
    assert placed(job(1, 3, 6, bus_id="3d000").with_columns(pl.col("bus_id")), *ALL) == {}
    mixed = job(1, 3, 6).with_columns(bus_id=pl.when(pl.col("host") == "node03").then(pl.col("bus_id").reverse()).otherwise("bus_id"))
    assert placed(mixed, *ALL) == {}


def test_a_host_of_which_some_ranks_are_known_has_the_others() -> None:
    found = placed(pl.concat([job(1, 3, 6), job(8).head(1)]), *ALL)
    assert found[("node08", "0000:3d:00.0")] == 15


def test_logs_that_are_lost_on_every_host_still_tell_the_order_together() -> None:
    every = job(1, 3, 5, 6, 7, 8)
    # No host is whole: nodes 1, 5 and 7 tell of their first GPU, nodes 3, 6 and 8 of their second.
    lost = every.filter((pl.col("source_id").is_in([1, 5, 7])) == (pl.col("gpu_index") == 0))
    found = placed(lost, *ALL)
    assert found[("node02", "0000:1b:00.0")] == 2
    assert found[("node03", "0000:1b:00.0")] == 4
    assert len(found) == 10
    # With two that tell of the second GPU its place is not sure.
    assert placed(lost.filter(pl.col("source_id") != 8), *ALL) == {}
