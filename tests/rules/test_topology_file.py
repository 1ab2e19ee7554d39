"""Topology files that cannot be right."""

from __future__ import annotations

import polars as pl

from nccl_forensics.rules.topology_file import topology_file
from nccl_forensics.store import Store
from nccl_forensics.views.settings import SETTINGS
from tests.rules.frames import comm, comms


def settings(name: str = "NCCL_TOPO_FILE") -> pl.LazyFrame:
    row = {
        "name": name,
        "value": "/x.xml",
        "ranks": [0],
        "hosts": ["a"],
        "processes": 1,
        "of": 1,
        "differs": False,
        "source_id": 0,
        "line_no": 4,
    }
    return pl.DataFrame([row], schema=SETTINGS).lazy()


def links(counts: list[tuple[str, str, int]], sources: tuple[int, ...] = (1,)) -> pl.LazyFrame:
    rows = [
        {"source_id": source, "record": f"l{i}", "line_no": i, "element": "nvlink", "bus_id": a, "target": b, "count": n}
        for source in sources
        for i, (a, b, n) in enumerate(counts)
    ]
    return Store.from_frames({"nccl_topo": pl.DataFrame(rows)}).scan("nccl_topo")


def test_two_ends_of_a_link_that_disagree_prove_the_file_wrong() -> None:
    [finding] = topology_file.check(settings(), links([("g0", "g1", 1), ("g1", "g0", 12)]))
    assert (finding.cause, finding.confidence) == ("bad-setting", "high")


def test_unequal_gpus_behind_a_switch_are_less_sure() -> None:
    [finding] = topology_file.check(settings(), links([("g0", "sw", 8), ("g1", "sw", 18)]))
    assert finding.confidence == "medium"


def test_equal_gpus_are_quiet() -> None:
    assert topology_file.check(settings(), links([("g0", "g1", 12), ("g1", "g0", 12)])) == []


def test_a_file_that_nobody_forces_is_no_setting() -> None:
    assert topology_file.check(settings("NCCL_DEBUG"), links([("g0", "g1", 1), ("g1", "g0", 12)])) == []


def test_a_file_and_its_dump_are_one_finding_that_cites_both() -> None:
    [finding] = topology_file.check(settings(), links([("g0", "g1", 1), ("g1", "g0", 12)], sources=(1, 2)))
    assert [e.source_id for e in finding.evidence] == [0, 1, 2]


def test_a_file_with_other_gpus_than_the_jobs_is_that_of_another_machine() -> None:
    torn = links([("0000:31:00.0", "0000:b1:00.0", 1), ("0000:b1:00.0", "0000:31:00.0", 12)])
    ours, others = (comms(comm(0, nranks=8, bus_id=bus)) for bus in ("31000", "f000"))
    assert len(topology_file.check(settings(), torn, ours)) == 1
    assert topology_file.check(settings(), torn, others) == []
