"""The domain of hosts that share memory over NVLink."""

from __future__ import annotations

import polars as pl

from nccl_forensics.model import Finding
from nccl_forensics.rules.imex_domain import imex_domain
from tests.rules.frames import cited
from tests.rules.host_frames import processes, table


def check(nodes: pl.LazyFrame | None = None, events: pl.LazyFrame | None = None, job: pl.LazyFrame | None = None) -> list[Finding]:
    return imex_domain.check(nodes, events, job, None, None)


def node(number: int, state: str = "READY", broken: tuple[str, ...] = (), domain: str = "DEGRADED", **more: object) -> dict[str, object]:
    return {"node": number, "address": f"10.0.0.{number}", "state": state, "broken": list(broken), "domain_state": domain, **more}


def test_a_node_of_the_job_that_is_not_ready_is_named() -> None:
    rows = table("imex_nodes", node(0, broken=("1 invalid",)), node(1, "UNAVAILABLE", ("0 invalid",), name="node8"))
    [finding] = check(rows, job=processes((3, "node8", 99, "17000")))
    assert finding.title == "the IMEX domain is DEGRADED: node 1 (node8) is UNAVAILABLE"
    assert (finding.severity, finding.hosts, cited(finding)) == ("error", ("node8",), [(0, 2)])


def test_a_node_that_nothing_ties_to_the_job_is_a_warning_without_a_culprit() -> None:
    [finding] = check(table("imex_nodes", node(0), node(1, "UNAVAILABLE")), job=processes((3, "node8", 99, "17000")))
    assert (finding.severity, finding.confidence, finding.culprits) == ("warning", "low", ())


def test_nodes_that_do_not_agree_on_their_version_and_a_domain_that_is_down_are_errors() -> None:
    [differ] = check(table("imex_nodes", node(0, broken=("1 version-mismatch",)), node(1, broken=("0 version-mismatch",))))
    assert differ.severity == "error"
    assert "node 0 (10.0.0.0) is not connected to 1 (version-mismatch)" in differ.title
    [down] = check(table("imex_nodes", node(0, "UNAVAILABLE", domain="DOWN")))
    assert down.severity == "error"


def test_a_lost_connection_in_the_log_is_a_warning() -> None:
    event = {"kind": "imex-disconnect", "host": "node7", "message": "Node disconnect event detected for node 1", "severity": "degraded"}
    [finding] = check(events=table("fabric_events", event))
    assert finding.title == "node7 lost IMEX connections to other hosts"


def test_a_domain_that_is_up_and_other_lines_of_the_log_are_quiet() -> None:
    assert check(table("imex_nodes", node(0, domain="UP"), node(1, domain="UP")), table("fabric_events", {"kind": "info"})) == []
