"""Traits of a run: what can be laid beside another run, with the place it was read from, and nothing for what is not shown."""

from __future__ import annotations

import polars as pl

from nccl_forensics import api
from nccl_forensics.conclusions.assemble import RunResult
from nccl_forensics.conclusions.census import Census
from nccl_forensics.conclusions.runs import Run
from nccl_forensics.conclusions.traits import traits
from nccl_forensics.conclusions.verdict import Verdict
from nccl_forensics.reading.engine import InlineEngine
from nccl_forensics.store import SOURCES, Store
from nccl_forensics.views import Resolver
from tests.corpus import ROOT


def of(frames: dict[str, list[dict[str, object]]], outcome: str = "finished") -> dict[tuple[str, str], dict[str, object]]:
    """Traits of a run with these tables, by area and subject; every row is given a place."""
    placed = {
        name: pl.DataFrame(
            [{"source_id": 0, "line_no": n + 1, "host": "a", "pid": 1, **row} for n, row in enumerate(rows)], infer_schema_length=None
        )
        for name, rows in frames.items()
    }
    sources = pl.DataFrame([{"source_id": 0, "path": "nccl.log"}], schema_overrides=SOURCES)
    store = Store.from_frames(placed, pl.concat([pl.DataFrame(schema=SOURCES), sources], how="diagonal_relaxed"))
    result = RunResult(
        Run(0, frozenset(), frozenset()),
        Resolver(store),
        (),
        Verdict("nothing-wrong", None, "low"),
        outcome,
        Census(None, frozenset(), 0, 0),
    )
    return {(str(t["area"]), str(t["subject"])): t for t in traits(result, store)}


def connection(transport: str, detail: str, network: str | None = None, gdr: bool | None = None) -> dict[str, object]:
    return {"transport": transport, "detail": detail, "network": network, "gdr": gdr}


def test_transports_are_told_apart_by_place_and_carry_their_line() -> None:
    got = of({"nccl_connections": [connection("P2P", "P2P/CUMEM/read"), connection("NET", "NET/IB/0/GDRDMA", "IB", True)]})
    assert got["transport", "transport within hosts"]["value"] == "P2P/CUMEM"
    network = got["transport", "transport over the network"]
    assert (network["value"], network["path"], network["line"]) == ("NET/IB", "nccl.log", 2)
    assert got["gdr", "GPUDirect RDMA"]["value"] == "on"


def test_gdr_on_some_connections_only_is_partly_and_cites_one_without() -> None:
    got = of({"nccl_connections": [connection("NET", "NET/IB/0/GDRDMA", "IB", True), connection("NET", "NET/IB/0", "IB", False)]})
    assert (got["gdr", "GPUDirect RDMA"]["value"], got["gdr", "GPUDirect RDMA"]["line"]) == ("partly", 2)


def test_sockets_have_no_trait_of_gpudirect() -> None:
    assert ("gdr", "GPUDirect RDMA") not in of({"nccl_connections": [connection("NET", "NET/Socket/0", "Socket", False)]})


def test_a_setting_that_some_processes_show_says_of_how_many() -> None:
    inits = [{"event": "init-start", "comm": f"0x{pid}", "rank": pid, "nranks": 2, "pid": pid} for pid in (0, 1)]
    got = of({"nccl_env": [{"name": "NCCL_ALGO", "value": "Ring"}], "nccl_comms": inits})
    assert (got["setting", "NCCL_ALGO"]["value"], got["setting", "NCCL_ALGO"]["note"]) == ("Ring", "1 of 2 processes show it")


def test_a_setting_with_two_values_lists_both() -> None:
    got = of({"nccl_env": [{"name": "NCCL_ALGO", "value": "Ring"}, {"name": "NCCL_ALGO", "value": "Tree", "pid": 2}]})
    assert got["setting", "NCCL_ALGO"]["value"] == "Ring (ranks unknown); Tree (ranks unknown)"
    assert got["setting", "NCCL_ALGO"]["note"] == "differs between ranks"


def test_what_the_evidence_does_not_show_has_no_trait() -> None:
    assert {area for area, _ in of({"nccl_env": [{"name": "NCCL_ALGO", "value": "Ring"}]})} == {"outcome", "setting"}
    assert of({}, outcome="unknown") == {}


def test_a_link_whose_ends_disagree_is_asymmetric() -> None:
    link = {"element": "nvlink", "record": "x"}
    even = [{**link, "bus_id": "a", "target": "b", "count": 12}, {**link, "bus_id": "b", "target": "a", "count": 12}]
    uneven = [even[0], {**even[1], "count": 1}]
    key = ("topology", "NVLinks per GPU in the topology file")
    assert (of({"nccl_topo": even})[key]["value"], of({"nccl_topo": even})[key]["note"]) == ("12", None)
    assert of({"nccl_topo": uneven})[key]["value"] == "1-12, asymmetric"


def test_a_secret_in_a_setting_is_masked() -> None:
    got = of({"environment": [{"name": "NCCL_PROXY", "value": "http://user:hunter22@proxy:80"}]})
    assert "hunter22" not in str(got["setting", "NCCL_PROXY"]["value"])


def test_the_traits_of_a_report_are_ordered_and_cited() -> None:
    report = api.analyze([ROOT / "fixtures" / "incidents" / "nccl-healthy-8r" / "evidence"], engine=InlineEngine()).report
    rows = report["traits"]
    assert isinstance(rows, list)
    found = {(t["area"], t["subject"]): t for t in rows}
    assert len(found) == len(rows)
    assert found["topology", "ranks"]["value"] == "8"
    assert found["version", "NCCL"]["path"]
    assert all(t["path"] for t in rows if t["area"] != "outcome")
