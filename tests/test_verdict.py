"""The verdict separates the root from its symptoms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import polars as pl

from nccl_forensics.conclusions.verdict import Grounds, judge
from nccl_forensics.model import Confidence, Culprit, Finding, Severity, blamed_by
from nccl_forensics.registry import inputs_of
from nccl_forensics.rules import Found, Outcome, Rule


def nothing(sources: pl.LazyFrame) -> Iterator[Finding]:
    """A rule that finds nothing."""
    yield from ()


def outcome(
    cause: str,
    *,
    confidence: Confidence = "high",
    severity: Severity = "critical",
    explains: tuple[str, ...] = (),
    ranks: tuple[int, ...] = (1,),
    hosts: tuple[str, ...] = (),
) -> Outcome:
    made_by = Rule(cause, cause.upper(), cause, severity, 1, explains, nothing, inputs_of(nothing))
    finding = Finding(cause, cause=cause, severity=severity, confidence=confidence, ranks=ranks, hosts=hosts)
    return Outcome(made_by, "found", (Found(f"{cause}-1", cause, made_by, finding),), (), {})


def test_no_finding_and_no_sign_of_failure_is_nothing_wrong() -> None:
    whole = judge([], Grounds())
    assert (whole.status, whole.confidence) == ("nothing-wrong", "medium")
    part = judge([], Grounds(complete=False))
    assert (part.status, part.confidence) == ("nothing-wrong", "low")
    # Others may have ended in order: that ranks which left nothing were well is less sure.
    some = judge([], Grounds(everyone=False))
    assert (some.status, some.confidence) == ("nothing-wrong", "low")
    assert judge([], Grounds(complete=False, enough=False)).status == "insufficient-evidence"


def test_of_machines_alone_a_warning_leaves_open_whether_a_job_met_it() -> None:
    port = outcome("ib-link", severity="warning", confidence="low")
    assert judge([port], Grounds(machines_only=True)).status == "insufficient-evidence"
    assert judge([port], Grounds()).status == "nothing-wrong"
    assert judge([outcome("gpu-throttled", severity="warning")], Grounds(machines_only=True)).status == "nothing-wrong"


def test_links_that_break_are_behind_a_gpu_that_stops_on_their_host_and_not_on_another() -> None:
    links = outcome("nvlink-fault", confidence="medium", explains=("gpu-fault",), hosts=("node1",))
    assert [v.root.finding.cause for v in (judge([links, outcome("gpu-fault", hosts=("node1",))], Grounds()),) if v.root] == [
        "nvlink-fault"
    ]
    apart = judge([links, outcome("gpu-fault", hosts=("node2",))], Grounds())
    assert [f.finding.cause for f in (apart.root, *apart.others) if f] == ["gpu-fault", "nvlink-fault"]


def test_a_failure_without_a_finding_is_unexplained_and_never_nothing_wrong() -> None:
    assert judge([], Grounds(("watchdog timeouts",))).status == "unexplained"


def test_evidence_that_tells_of_no_job_is_insufficient() -> None:
    assert judge([], Grounds(has_job=False)).status == "insufficient-evidence"


def test_what_another_finding_explains_is_not_the_root() -> None:
    verdict = judge([outcome("host-stall"), outcome("rank-died", explains=("host-stall",))], Grounds(("x",)))
    assert verdict.root is not None
    assert verdict.root.finding.cause == "rank-died"
    assert verdict.explained_by == {"host-stall-1": "rank-died-1"}


def test_of_two_that_explain_each_other_the_deeper_is_the_root() -> None:
    both = [outcome("rank-died", explains=("out-of-memory",)), outcome("out-of-memory", explains=("rank-died",))]
    verdict = judge(both, Grounds(("x",)))
    assert verdict.root is not None
    assert verdict.root.finding.cause == "out-of-memory"


def test_a_guess_does_not_explain_a_proof_away() -> None:
    both = [outcome("gpu-fault", confidence="low", explains=("rank-died",)), outcome("rank-died")]
    verdict = judge(both, Grounds(("x",)))
    assert verdict.root is not None
    assert verdict.root.finding.cause == "rank-died"


def test_a_difference_is_behind_a_stop_that_is_less_sure_than_it() -> None:
    expected: dict[Confidence, str] = {"medium": "environment-mismatch", "low": "connection-failed"}
    for confidence, root in expected.items():
        differ = outcome("environment-mismatch", severity="error", confidence=confidence, explains=("connection-failed",))
        verdict = judge([differ, outcome("connection-failed", confidence="low")], Grounds(("x",)))
        assert verdict.root is not None
        assert verdict.root.finding.cause == root


def test_independent_roots_are_all_kept() -> None:
    verdict = judge([outcome("gpu-fault"), outcome("collective-skipped", ranks=(5,))], Grounds(("x",)))
    assert verdict.root is not None
    assert [o.finding.cause for o in verdict.others] == ["collective-skipped"]


def test_a_loss_without_a_failure_is_the_verdict() -> None:
    verdict = judge([outcome("p2p-disabled", severity="error")], Grounds())
    assert (verdict.status, verdict.root and verdict.root.finding.cause) == ("explained", "p2p-disabled")


def test_a_rank_known_to_come_late_is_not_held_for_stuck_by_a_few_looks() -> None:
    looked = outcome("host-stall", confidence="low", ranks=(1,))
    for confidence in ("low", "high"):
        verdict = judge([looked, outcome("straggler", severity="error", confidence=confidence, ranks=(1,))], Grounds())
        assert verdict.root is not None
        assert verdict.root.finding.cause == "straggler"
        assert verdict.explained_by == {"host-stall-1": "straggler-1"}
    sure = judge([outcome("host-stall", ranks=(1,)), outcome("straggler", severity="error", confidence="low", ranks=(1,))], Grounds())
    assert sure.root is not None
    assert sure.root.finding.cause == "host-stall"


def test_a_rank_that_comes_late_may_be_stuck_where_the_job_failed_or_another_one_is_late() -> None:
    looked = outcome("host-stall", confidence="low", ranks=(1,))
    slow = outcome("straggler", severity="error", ranks=(1,))
    for others, signs in (([slow], ("timeouts",)), ([outcome("straggler", severity="error", ranks=(2,))], ())):
        verdict = judge([looked, *others], Grounds(signs))
        assert verdict.root is not None
        assert verdict.root.finding.cause == "host-stall"


def test_a_fault_that_nothing_ties_to_a_rank_seen_at_work_on_its_host_does_not_hold_it_up() -> None:
    fault = outcome("gpu-fault", explains=("host-stall",), confidence="medium", hosts=("node1",))
    seen = outcome("host-stall", ranks=(6,))
    verdict = judge([fault, seen], Grounds(("timeouts",)))
    assert verdict.root is not None
    assert verdict.root.finding.cause == "host-stall"
    assert [f.finding.cause for f in verdict.others] == ["gpu-fault"]
    of_that_rank = outcome("gpu-fault", explains=("host-stall",), confidence="medium", ranks=(6,))
    assert judge([of_that_rank, seen], Grounds(("timeouts",))).explained_by == {"host-stall-1": "gpu-fault-1"}
    guessed = outcome("host-stall", confidence="medium", ranks=(6,))
    assert judge([fault, guessed], Grounds(("timeouts",))).explained_by == {"host-stall-1": "gpu-fault-1"}


def test_a_gpu_accounts_for_wrong_numbers_of_its_own_host_alone() -> None:
    fault = outcome("gpu-fault", explains=("data-corruption",), hosts=("node1",))
    assert judge([fault, outcome("data-corruption", severity="error", hosts=("node1",))], Grounds(("x",))).explained_by == {
        "data-corruption-1": "gpu-fault-1"
    }
    elsewhere = judge([fault, outcome("data-corruption", hosts=("node2",))], Grounds(("x",)))
    assert elsewhere.explained_by == {}
    assert len(elsewhere.others) == 1


def test_a_loss_is_not_surely_all_where_processes_lost_others_and_ended_in_no_order() -> None:
    loss = outcome("p2p-disabled", severity="error")
    assert judge([loss], Grounds()).confidence == "high"
    assert judge([loss], Grounds(lost=True)).confidence == "medium"
    assert judge([outcome("rank-died")], Grounds(lost=True)).confidence == "high"


def test_devices_that_a_host_lacks_account_for_its_own_staged_connections_alone() -> None:
    missing = outcome("nic-underused", severity="error", explains=("gdr-disabled",), hosts=("node1",))
    for host, explained in (("node1", {"gdr-disabled-1": "nic-underused-1"}), ("node2", {})):
        assert judge([missing, outcome("gdr-disabled", severity="error", hosts=(host,))], Grounds()).explained_by == explained


def test_a_fault_that_the_driver_proved_is_not_explained_by_memory_that_ran_out() -> None:
    memory = outcome("out-of-memory", explains=("gpu-fault",))
    assert judge([memory, outcome("gpu-fault", confidence="medium")], Grounds(("x",))).explained_by == {"gpu-fault-1": "out-of-memory-1"}
    both = judge([memory, outcome("gpu-fault")], Grounds(("x",)))
    assert both.explained_by == {}
    assert len(both.others) == 1


def test_what_surely_ended_a_rank_of_itself_is_no_effect_of_a_less_sure_link_or_card_of_another_rank() -> None:
    def explained(cause: str, confidence: Confidence, *, ranks: tuple[int, ...] = (), death: Confidence = "high") -> bool:
        fault = outcome(cause, confidence=confidence, explains=("rank-died",), ranks=ranks)
        told = judge([fault, outcome("rank-died", ranks=(2,), confidence=death)], Grounds(("x",)))
        assert told.root is not None
        return told.explained_by == {"rank-died-1": f"{cause}-1"}

    assert not explained("ib-link", "medium")
    assert not explained("gpu-fault", "medium", ranks=(0,))
    assert explained("ib-link", "high")
    assert explained("ib-link", "medium", death="medium")
    assert explained("gpu-fault", "medium", ranks=(2,))
    assert explained("gpu-fault", "medium")


def blaming(name: str, *culprits: Culprit, cause: str = "p2p-disabled", severity: Severity = "error") -> Outcome:
    made_by = Rule(name, name.upper(), cause, severity, 1, (), nothing, inputs_of(nothing))
    finding = Finding(name, cause=cause, severity=severity, confidence="high", culprits=culprits)
    return Outcome(made_by, "found", (Found(f"{name}-1", name, made_by, finding),), (), {})


def test_two_rules_that_blame_the_same_for_the_same_cause_are_one() -> None:
    told = blaming("a", Culprit(rank=1, host="n1"), Culprit(rank=2, host="n1"))
    verdict = judge([told, blaming("b", Culprit(rank=2, host="n1", gpu="f000"))], Grounds())
    assert (verdict.others, verdict.explained_by) == ((), {"b-1": "a-1"})


def test_the_same_cause_of_another_culprit_stays_another() -> None:
    first = blaming("a", Culprit(host="n1", nic="mlx5_0"))
    others = (
        blaming("b", Culprit(host="n1", nic="mlx5_1")),  # another card of that host
        blaming("c", Culprit(host="n2")),
        blaming("d"),  # of nobody
        blaming("e", Culprit(host="n1", nic="mlx5_0"), Culprit(host="n3")),  # of one more
        blaming("f", Culprit(host="n1", nic="mlx5_0"), cause="nic-slow"),
    )
    for other in others:
        verdict = judge([first, other], Grounds())
        assert (len(verdict.others), verdict.explained_by) == (1, {}), other.rule.name


def test_an_empty_list_of_culprits_blames_nobody_and_none_at_all_blames_the_ranks() -> None:
    for culprits, blamed in (((), []), (None, [3])):
        finding = Finding("a", cause="collective-stuck", severity="critical", ranks=(3,), culprits=culprits)
        assert [c.rank for c in blamed_by(finding)] == blamed


def test_of_one_cause_by_two_rules_the_surer_is_the_root() -> None:
    nameless = outcome("gpu-fault", confidence="medium", explains=("nvlink-fault",), ranks=())
    found = nameless.found[0]
    nvlink = Found("gpu-fault-1", found.fingerprint, found.rule, replace(found.finding, cause="nvlink-fault"))
    named = outcome("nvlink-fault", ranks=(11,))
    verdict = judge([replace(nameless, found=(nvlink,)), named], Grounds(("x",)))
    assert verdict.root is not None
    assert (verdict.root.finding.ranks, verdict.confidence) == ((11,), "high")


def test_of_one_cause_by_two_rules_the_one_that_tells_which_of_the_ranks_it_is_stays_the_root() -> None:
    one = outcome("p2p-deadlock", confidence="medium", explains=("p2p-deadlock",), ranks=(5,))
    half = replace(one, found=(replace(one.found[0], rule=replace(one.found[0].rule, name="half")),))
    both = outcome("p2p-deadlock", ranks=(4, 5))
    pair = replace(both, found=(replace(both.found[0], id="p2p-deadlock-2"),))
    verdict = judge([half, pair], Grounds(("x",)))
    assert verdict.root is not None
    assert verdict.root.finding.ranks == (5,)


def test_a_fault_of_the_way_is_behind_a_call_that_all_entered_and_none_finished_though_it_is_not_sure() -> None:
    stuck = outcome("collective-stuck", confidence="medium", ranks=())
    link = outcome("ib-link", confidence="medium", severity="error", explains=("collective-stuck",), ranks=())
    verdict = judge([stuck, link], Grounds(("watchdog timeouts",)))
    assert verdict.root is not None
    assert (verdict.root.finding.cause, verdict.confidence) == ("ib-link", "medium")
    guess = outcome("ib-link", confidence="low", severity="error", explains=("collective-stuck",), ranks=())
    died = outcome("rank-died", confidence="medium")
    slow = outcome("ib-link", confidence="medium", severity="error", explains=("rank-died",), ranks=())
    for others in ([stuck, guess], [died, slow]):
        root = judge(others, Grounds(("watchdog timeouts",))).root
        assert root is not None
        assert root.finding.cause != "ib-link"


def test_where_full_packets_vanish_that_is_behind_a_call_that_all_surely_entered_and_nothing_less_sure_is() -> None:
    stuck = outcome("collective-stuck", ranks=())
    vanish = outcome("mtu-mismatch", severity="error", explains=("collective-stuck",), ranks=())
    verdict = judge([stuck, vanish], Grounds(("watchdog timeouts",)))
    assert verdict.root is not None
    assert (verdict.root.finding.cause, verdict.confidence) == ("mtu-mismatch", "medium")
    set_up = outcome("mtu-mismatch", confidence="medium", severity="error", explains=("collective-stuck",), ranks=())
    slow = outcome("ib-link", severity="error", explains=("collective-stuck",), ranks=())
    verdict = judge([stuck, set_up, slow], Grounds(("watchdog timeouts",)))
    assert verdict.root is not None
    assert (verdict.root.finding.cause, verdict.confidence) == ("collective-stuck", "high")


def test_what_a_host_tells_of_its_card_explains_nothing_of_another_hosts_card() -> None:
    def told(host: str) -> list[str]:
        errors = outcome("ib-link", explains=("ib-link",), ranks=(), hosts=("node7",))
        kernel = outcome("ib-link", confidence="medium", severity="critical", ranks=(), hosts=(host,))
        kernel = replace(kernel, rule=replace(kernel.rule, name="kernel"))
        kernel = replace(kernel, found=(replace(kernel.found[0], id="kernel-1", rule=kernel.rule),))
        return [f.id for f in judge([errors, kernel], Grounds(("x",))).others]

    assert told("node7") == []
    assert told("node8") == ["kernel-1"]
