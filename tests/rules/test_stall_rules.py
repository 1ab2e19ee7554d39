"""The rules that read the ``stalls`` view: each takes its own cause, names the ranks and cites both sides and the stack."""

from __future__ import annotations

import pytest

from nccl_forensics.rules import Rule
from nccl_forensics.rules.gpu_stall import gpu_stall
from nccl_forensics.rules.group_deadlock import group_deadlock
from nccl_forensics.rules.host_stall import host_stall
from nccl_forensics.rules.input_stall import input_stall
from nccl_forensics.rules.p2p_deadlock import p2p_deadlock
from nccl_forensics.rules.rank_died import rank_ended
from tests.rules.frames import cited, stalls, told

ALL = (gpu_stall, group_deadlock, host_stall, input_stall, p2p_deadlock, rank_ended)


@pytest.mark.parametrize("rule", ALL, ids=lambda r: r.name)
def test_the_stalled_rank_is_named_with_its_stack_a_waiter_and_its_own_last_operation(rule: Rule) -> None:
    [finding] = rule.check(stalls({"rank": 2, "cause": rule.cause, "user_frame": "step (train.py:9)"}))
    assert told(finding) == ("critical", "high", (2,))
    assert cited(finding) == [(7, 3), (0, "entries[6]"), (2, "entries[5]")]
    assert finding.divergence is not None
    assert (finding.divergence.seq, finding.divergence.op) == (6, "all_reduce")
    assert "step (train.py:9)" in finding.title


def test_who_has_done_what_a_gpu_has_not_is_not_said_to_wait_in_it() -> None:
    waiting = {"rank": 2, "waiters": [0, 1, 3, 4], "in_group": [0, 1]}
    [gpu] = gpu_stall.check(stalls(waiting | {"cause": "gpu-stall"}))
    assert "; ranks 0-1 wait for it, at all_reduce #6 of " in gpu.title
    assert gpu.title.endswith(" or beyond, and 2 others behind them")
    assert {"a peer's all_reduce"} <= {e.why for e in gpu.evidence}
    [host] = host_stall.check(stalls(waiting | {"cause": "host-stall"}))
    assert "; ranks 0-1 wait in all_reduce #6 of " in host.title
    assert host.title.endswith(" and 2 others behind them")


@pytest.mark.parametrize("rule", ALL, ids=lambda r: r.name)
def test_a_stall_of_another_cause_is_left_to_its_rule(rule: Rule) -> None:
    others = [{"rank": n, "cause": r.cause} for n, r in enumerate(ALL) if r is not rule]
    assert rule.check(stalls(*others)) == []


def test_ranks_of_one_confidence_share_a_finding_and_the_surest_comes_first() -> None:
    found = host_stall.check(
        stalls(
            {"rank": 5, "cause": "host-stall", "confidence": "low"},
            {"rank": 2, "cause": "host-stall"},
            {"rank": 3, "cause": "host-stall"},
        )
    )
    assert [told(f) for f in found] == [("critical", "high", (2, 3)), ("critical", "low", (5,))]


def test_without_a_group_no_divergence_is_claimed() -> None:
    [finding] = host_stall.check(stalls({"rank": 2, "cause": "host-stall", "group_key": None}))
    assert finding.divergence is None


def test_only_members_of_the_group_are_said_to_wait_in_its_operation() -> None:
    [finding] = host_stall.check(stalls({"rank": 5, "cause": "host-stall", "waiters": [0, 1, 2, 3, 4], "in_group": [4]}))
    assert finding.title.endswith("; rank 4 waits in all_reduce #6 of process group default_pg (0) and 4 others behind it")
    assert finding.metrics["waiting_ranks"] == 5
    [finding] = host_stall.check(stalls({"rank": 5, "cause": "host-stall", "waiters": [3, 4], "in_group": [3, 4]}))
    assert finding.title.endswith("; ranks 3-4 wait in all_reduce #6 of process group default_pg (0)")


def test_a_rank_alone_in_a_receive_is_told_and_not_blamed() -> None:
    lone = {"rank": 3, "cause": "p2p-deadlock", "confidence": "medium", "user_frame": "pass_on (train.py:77)", "partners": []}
    [finding] = p2p_deadlock.check(stalls(lone))
    assert (finding.severity, finding.confidence, finding.ranks, finding.culprits) == ("critical", "medium", (3,), ())
    assert finding.title.startswith("rank 3 waits in a send or receive that does not pair up at pass_on (train.py:77)")
    assert "does not tell which" in finding.summary
    pair = [{"rank": r, "cause": "p2p-deadlock", "partners": [5 - r]} for r in (2, 3)]
    assert p2p_deadlock.check(stalls(*pair))[0].ranks == (2, 3)


def test_several_that_send_to_one_that_waits_for_another_are_told_and_not_blamed() -> None:
    lone = [{"rank": r, "cause": "p2p-deadlock", "confidence": "medium", "partners": []} for r in (3, 4)]
    [finding] = p2p_deadlock.check(stalls(*lone))
    assert (finding.ranks, finding.culprits) == ((3, 4), ())
    assert finding.title.startswith("ranks 3-4 wait in sends or receives that do not pair up")
