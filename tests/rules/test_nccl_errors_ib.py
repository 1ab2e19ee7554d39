"""RDMA completions and port events with errors."""

from __future__ import annotations

import polars as pl
import pytest

from nccl_forensics.facts.work_completions import status_words
from nccl_forensics.model import Finding
from nccl_forensics.rules.nccl_errors_ib import ib_error
from nccl_forensics.views.ib_ports import PORTS
from nccl_forensics.views.lost_hosts import LOST
from tests.rules.frames import cited, errors, people, stalls
from tests.rules.host_frames import table
from tests.views.frames import rows

PEOPLE = people((0, "node1", 100), (1, "node1", 101), (2, "node2", 102))
COMPLETION = {
    "kind": "ib-completion",
    "pid": 101,
    "message": "NET/IB: Got completion from peer 10.0.0.7<41234> with status=12 opcode=0 len=0 vendor err 129 (Send) localGid x remoteGid y hca mlx5_0",
    "line_no": 8,
}


def test_a_completion_with_an_error_names_host_and_device() -> None:
    [finding] = ib_error.check(errors(COMPLETION), PEOPLE)
    assert (finding.severity, finding.confidence, finding.cause) == ("critical", "high", "ib-link")
    assert [(c.host, c.nic) for c in finding.culprits] == [("node1", "mlx5_0")]
    assert finding.title == "RDMA over mlx5_0 of node1 to 10.0.0.7 failed: retry exceeded (status 12)"
    assert cited(finding) == [(0, 8)]


def test_a_completion_of_a_job_whose_far_end_is_not_seen_may_be_that_of_a_dead_peer() -> None:
    [finding] = ib_error.check(errors(COMPLETION), people((1, "node1", 101)))
    assert (finding.confidence, finding.alternatives) == ("medium", (("rank-died", (), None),))


@pytest.mark.parametrize(
    ("text", "said", "instead"),
    [
        ("Got completion from peer 10.0.0.7<41234> with status=4 opcode=0 len=0 vendor err 249 hca mlx5_0", "could not reach memory", None),
        ("Got completion with status=IBV_WC_REM_ACCESS_ERR hca mlx5_0", "far end refused", "rank-died"),
        ("Got completion with error 10, opcode 0, len 0, vendor err 249", "far end refused", "rank-died"),
        ("Got completion with status=1 opcode=0 hca mlx5_0", "different sizes", "shape-mismatch"),
        ("Local protection on mlx5_0:1/RoCE (synd 0x4 vend 0x56)", "could not reach memory", None),
    ],
)
def test_errors_that_tell_of_no_link_are_read_as_what_they_are(text: str, said: str, instead: str | None) -> None:
    [finding] = ib_error.check(errors(COMPLETION | {"message": text}), PEOPLE)
    assert finding.confidence == "low"
    assert said in finding.summary
    assert [cause for cause, *_ in finding.alternatives] == [instead] * (instead is not None)
    assert "cable" not in finding.remedy


def test_a_queue_pair_that_finds_no_way_to_its_peer_is_a_matter_of_addresses() -> None:
    text = "Call to ibv_modify_qp failed with error Network is unreachable"
    [finding] = ib_error.check(errors({"kind": "ib-modify-qp", "pid": 101, "message": text, "line_no": 8}), PEOPLE)
    assert ("NCCL_IB_GID_INDEX" in finding.remedy, finding.actions[0].action) == (True, "fix_config")


def test_the_device_of_a_queue_pair_is_named() -> None:
    text = "Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_3:1, curr state INIT, next state RTR, local GID index 3"
    [finding] = ib_error.check(errors({"kind": "ib-modify-qp", "pid": 101, "message": text, "line_no": 8}), PEOPLE)
    assert [c.nic for c in finding.culprits] == ["mlx5_3"]


def test_a_queue_pair_that_is_tried_to_the_end_of_the_log_tells_of_its_address() -> None:
    def found(tries: int, *, last: int, more: tuple[dict[str, object], ...] = ()) -> list[tuple[object, ...]]:
        text = "Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_0:1, curr state RESET, next state RTR, retrying"
        tried = {"kind": "ib-qp-retry", "level": "INFO", "pid": 101, "message": text}
        tails = table("nccl_tails", {"source_id": 0, "host": "node1", "pid": 101, "lines": last, "line_no": last})
        lines = [tried | {"line_no": 8 + n} for n in range(tries)]
        return [
            (f.confidence, [c.nic for c in f.culprits], f.actions[0].action)
            for f in ib_error.check(errors(*lines, *more), PEOPLE, None, tails)
        ]

    assert found(4, last=11) == [("medium", ["mlx5_0"], "fix_config")]
    assert found(4, last=40) == [], "it went on"
    assert found(2, last=9) == [], "it may come through yet"


def test_one_retry_among_other_errors_tells_of_a_link() -> None:
    local = COMPLETION | {"message": str(COMPLETION["message"]).replace("status=12", "status=4"), "line_no": 9}
    [finding] = ib_error.check(errors(COMPLETION, local), PEOPLE)
    assert (finding.confidence, "stopped answering" in finding.summary) == ("high", True)


def beside(lost: str | None = None, dark: str | None = None, *lines: dict[str, object]) -> list[Finding]:
    """What is said of ``COMPLETION`` (and ``lines``) beside a host at 10.0.0.7 that was lost, and a host whose port is down."""
    gone = rows(LOST, *([{"host": lost, "address": "10.0.0.7", "ranks": [2], "why": "rank 2 had ended there"}] if lost else []))
    nics = pl.DataFrame({"host": ["node1", "node2"], "device": ["mlx5_0", "mlx5_0:1"]}).lazy()
    state = [{"host": h, "device": "mlx5_0", "state": "Down" if h == dark else "Active"} for h in ("node1", "node2")]
    network = table("nccl_network", {"item": "bootstrap", "host": "node2", "address": "10.0.0.7<0>"})
    return ib_error.check(errors(COMPLETION, *lines), PEOPLE, None, None, gone, nics, rows(PORTS, *state), network)


@pytest.mark.parametrize(("lost", "dark"), [("node2", None), (None, "node2")])
def test_a_far_end_that_is_gone_or_whose_port_is_down_blames_nobody_who_tells_of_it(lost: str | None, dark: str | None) -> None:
    [finding] = beside(lost, dark)
    assert (finding.severity, finding.cause, finding.culprits) == ("warning", "connection-failed", ())
    assert cited(finding) == [(0, 8)]


def test_a_host_whose_own_port_is_down_is_named_whoever_was_lost() -> None:
    [finding] = beside("node2", "node1")
    assert (finding.severity, finding.cause, [c.host for c in finding.culprits]) == ("critical", "ib-link", ["node1"])


def test_another_peer_that_did_not_answer_or_another_error_tells_of_a_link() -> None:
    text = str(COMPLETION["message"])
    for other in (text.replace("10.0.0.7", "10.0.0.9"), text.replace("status=12", "status=9")):
        [finding] = beside("node2", None, COMPLETION | {"message": other, "line_no": 9})
        assert (finding.severity, finding.cause) == ("critical", "ib-link")


def test_what_torch_prints_again_without_a_host_is_no_second_trouble() -> None:
    again = {"host": None, "pid": None, "message": "NET/IB: Got completion from peer 10.0.0.7<41234> with status=12 opcode=0", "line_no": 9}
    assert [f.hosts for f in beside(None, None, again)] == [("node1",)]


def test_each_host_has_a_finding_of_its_own() -> None:
    event = {
        "kind": "ib-async-event",
        "host": "node2",
        "pid": 102,
        "message": "NET/IB : mlx5_3:1 Got async event : port error",
        "line_no": 9,
    }
    found = ib_error.check(errors(COMPLETION, event), PEOPLE)
    assert [(c.host, c.nic) for f in found for c in f.culprits] == [("node1", "mlx5_0"), ("node2", "mlx5_3")]
    # The port that failed is told by its own host; the other one is the far end.
    assert [f.severity for f in found] == ["warning", "critical"]


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("Got async event : local catastrophic error", "an adapter of node1 reports: local catastrophic error"),
        ("mlx5_3:1 Got async error event: port error", "mlx5_3 of node1 reports: port error"),
        ("mlx5_3:1 Got non-fatal async event: port error(10)", "mlx5_3 of node1 reports: port error"),
    ],
)
def test_events_that_are_faults_are_named_in_the_words_of_every_release(text: str, title: str) -> None:
    [finding] = ib_error.check(errors({"kind": "ib-async-event", "pid": 101, "message": f"NET/IB : {text}"}), PEOPLE)
    assert (finding.severity, finding.title) == ("critical", title)
    assert finding.hosts == ("node1",)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_RDMA_WRITE(1)", "retry exceeded (status 12)"),
        (
            "Got completion with error (devIndex=0, wc->status=(IBV_WC_LOC_PROT_ERR)4, wc->opcode=(IBV_WC_SEND)0",
            "local protection error (status 4)",
        ),
        ("UCX completed with error 13, vendor", "receiver not ready (status 13)"),
        ("with status=21 opcode=1", "status 21"),
        ("Call to ibv_modify_qp failed with error Connection timed out", None),
    ],
)
def test_the_status_of_a_completion_is_told_in_words(line: str, words: str | None) -> None:
    assert status_words(line) == words


def test_an_error_without_a_device_is_less_sure() -> None:
    [finding] = ib_error.check(errors(COMPLETION | {"message": "Got completion with status=12"}), PEOPLE)
    assert finding.confidence == "medium"


@pytest.mark.parametrize(
    "harmless",
    [
        {"message": "NET/IB: Got completion from peer 10.0.0.7<41234> with status=5 opcode=0 len=0 vendor err 249 hca mlx5_0"},
        {"message": "NET/IB : Got completion with error 5, opcode 0, len 0, vendor err 249"},
        {"kind": "ib-async-event", "message": "NET/IB : mlx5_0:1 Got async event : GID table change"},
        {"kind": "ib-async-event", "message": "NET/IB : mlx5_0:1 Got non-fatal async event: port active(9)"},
        {"kind": "ib-async-event", "message": "NET/IB : mlx5_0:1 Got non-fatal async event: client reregistration(17)"},
        {"level": "INFO"},
    ],
    ids=["flush", "flush of old releases", "harmless event", "port that came up", "subnet manager", "information"],
)
def test_consequences_and_harmless_events_stay_quiet(harmless: dict[str, object]) -> None:
    assert ib_error.check(errors(COMPLETION | harmless), PEOPLE) == []


def test_a_rank_of_another_host_that_fell_silent_may_be_the_far_end_that_is_gone():
    silent = stalls({"rank": 4, "cause": "host-stall", "confidence": "low"})
    hosts = people((0, "node1", 101), (4, "node2", 101))
    [finding] = ib_error.check(errors(COMPLETION), hosts, silent)
    assert (finding.confidence, finding.alternatives[0][:2]) == ("medium", ("rank-died", (4,)))
    [finding] = ib_error.check(errors(COMPLETION), hosts, stalls({"rank": 0, "cause": "host-stall", "confidence": "low"}))
    assert (finding.confidence, finding.alternatives) == ("high", ())


def test_adapters_are_told_in_the_order_of_their_numbers() -> None:
    lines = [COMPLETION | {"message": str(COMPLETION["message"]).replace("mlx5_0", f"mlx5_{n}"), "line_no": n} for n in (10, 9, 11)]
    [finding] = ib_error.check(errors(*lines), PEOPLE)
    assert finding.title == "RDMA over mlx5_[9-11] of node1 to 10.0.0.7 failed: retry exceeded (status 12)"


def test_retries_towards_the_one_unknown_address_of_a_job_that_lost_a_node_tell_of_no_link() -> None:
    gone = rows(LOST, {"host": "node9", "address": None, "ranks": [], "why": "the node went away"})
    [finding] = ib_error.check(errors(COMPLETION), PEOPLE, None, None, gone)
    assert (finding.cause, finding.severity) == ("connection-failed", "warning")
    # Two addresses are of two hosts, and the one that another host gives as its own is that host's.
    other = COMPLETION | {"message": COMPLETION["message"].replace("10.0.0.7", "10.0.0.8"), "line_no": 9}
    [finding] = ib_error.check(errors(COMPLETION, other), PEOPLE, None, None, gone)
    assert finding.cause == "ib-link"
    told = table("nccl_network", {"item": "bootstrap", "host": "node2", "address": "10.0.0.7<0>"})
    [finding] = ib_error.check(errors(COMPLETION), PEOPLE, None, None, gone, None, None, told)
    assert finding.cause == "ib-link"


def test_the_host_at_an_end_of_all_unanswered_connections_of_several_hosts_is_the_one() -> None:
    def lines(*links: tuple[int, int]) -> pl.LazyFrame:
        """Hosts by number that got no answer from another."""
        texts = [(near, COMPLETION["message"].replace("10.0.0.7", f"10.0.0.{far}")) for near, far in links]
        return errors(*(COMPLETION | {"host": f"node{near}", "pid": 99 + near, "message": text, "line_no": near} for near, text in texts))

    people_of_three = people((0, "node1", 100), (1, "node2", 101), (2, "node3", 102))
    network = table("nccl_network", *({"item": "bootstrap", "host": f"node{n}", "address": f"10.0.0.{n}<0>"} for n in (1, 2, 3)))

    def told(*links: tuple[int, int]) -> list[tuple[str | None, list[str | None]]]:
        found = ib_error.check(lines(*links), people_of_three, None, None, None, None, None, network)
        return [(f.severity, [c.host for c in f.culprits or ()]) for f in found]

    # node3 says so itself, or says nothing.
    assert ("critical", ["node3"]) in told((1, 3), (2, 3), (3, 1))
    assert ("critical", ["node1"]) not in told((1, 3), (2, 3), (3, 1))
    assert told((1, 3), (2, 3))[0] == ("critical", ["node3"])
    # One link tells nothing of its ends, and a ring of three none that all share.
    assert told((1, 3)) == [("critical", ["node1"])]
    assert [blamed for severity, blamed in told((1, 2), (2, 3), (3, 1)) if severity == "critical"] == [["node1"], ["node2"], ["node3"]]
