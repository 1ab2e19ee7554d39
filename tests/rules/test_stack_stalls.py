"""Rules that speak by stacks alone."""

from __future__ import annotations

import polars as pl
import pytest

from nccl_forensics.rules import Rule
from nccl_forensics.rules.stack_stalls import (
    collective_mismatch_by_stacks,
    collective_skipped_by_stacks,
    host_stall_by_stacks,
    input_stall_by_stacks,
    p2p_deadlock_by_stacks,
    rank_ended_by_stacks,
    straggler_by_stacks,
)
from nccl_forensics.stacks.tree import BUSY, CHAINED, PASSED, UNANSWERED
from nccl_forensics.views.stack_stalls import STACK_STALLS
from nccl_forensics.views.stack_views import THREAD_STATES
from nccl_forensics.views.stack_work import stack_work
from tests.views.frames import rows


def stall(**values: object) -> dict[str, object]:
    return {
        "cause": "input-stall",
        "confidence": "medium",
        "pid": 99,
        "place": "data-loader",
        "user_frame": "train (train.py:55)",
        "why_place": "frame 2: _try_get_data",
        "parts_at": "train (train.py:55)",
        "others_at": "train (train.py:59)",
        "others_op": "all_reduce",
        "others_count": 7,
        "reason": BUSY,
        "source_id": 3,
        "line_no": 4,
        "peer_source_id": 1,
        "peer_line_no": 5,
        **values,
    }


def table(*found: dict[str, object]) -> pl.LazyFrame:
    return rows(STACK_STALLS, *found)


def test_a_rank_that_loads_data_is_blamed_with_both_stacks_as_proof() -> None:
    [finding] = input_stall_by_stacks.check(table(stall(rank=5, host="gpu-07")))
    assert finding.ranks == (5,)
    assert finding.cause == "input-stall"
    assert [(e.source_id, e.line) for e in finding.evidence] == [(3, 4), (1, 5)]
    assert "train (train.py:55)" in finding.title


def test_a_process_of_unknown_rank_is_named_by_pid_and_host() -> None:
    [finding] = input_stall_by_stacks.check(table(stall(host="node 48")))
    assert finding.ranks == ()
    assert [(c.pid, c.host) for c in finding.culprits] == [(99, "node 48")]
    assert finding.title.startswith("process 99 on node 48 stands apart")


def test_who_waits_in_a_collective_that_most_have_passed_is_not_blamed() -> None:
    [finding] = collective_skipped_by_stacks.check(table(stall(cause="collective-skipped", rank=6, reason=PASSED)))
    assert finding.ranks == ()
    assert finding.culprits == ()


def test_who_waits_in_a_send_that_nobody_answers_is_not_blamed() -> None:
    waits = {"cause": "p2p-deadlock", "place": "p2p", "reason": UNANSWERED, "confidence": "low"}
    [alone] = p2p_deadlock_by_stacks.check(table(stall(rank=3, others=[0, 1, 2], others_count=3, **waits)))
    assert (alone.ranks, alone.culprits) == ((), ())
    assert alone.title == "rank 3 waits in a send or a receive that nobody answers at train (train.py:55); 3 others stand in all_reduce"
    [chain] = p2p_deadlock_by_stacks.check(table(*(stall(rank=r, **waits | {"reason": CHAINED, "confidence": "medium"}) for r in range(3))))
    assert (chain.confidence, chain.culprits) == ("medium", ())
    [everybody] = p2p_deadlock_by_stacks.check(table(*(stall(rank=r, others=[0, 1], **waits) for r in range(2))))
    assert everybody.title == "ranks 0-1 wait in a send or a receive that nobody answers at train (train.py:55)"


def test_ranks_alike_give_one_finding_and_sure_ones_stand_first() -> None:
    sure, doubtful = input_stall_by_stacks.check(table(stall(rank=1), stall(rank=2), stall(rank=7, confidence="high")))
    assert (sure.ranks, sure.confidence, doubtful.ranks) == ((7,), "high", (1, 2))


def test_what_stacks_alone_may_show_as_well_is_told() -> None:
    [late] = input_stall_by_stacks.check(table(stall(rank=5)))
    assert late.alternatives == (("straggler", (5,), None),)
    [own] = host_stall_by_stacks.check(table(stall(cause="host-stall", place="user-code", confidence="low", rank=5)))
    assert [cause for cause, *_ in own.alternatives] == ["gpu-stall", "straggler"]
    [sure] = input_stall_by_stacks.check(table(stall(rank=5, confidence="high")))
    assert sure.alternatives == ()


def test_other_causes_are_quiet() -> None:
    assert host_stall_by_stacks.check(table(stall(rank=1))) == []


@pytest.mark.parametrize(
    ("rule", "cause"),
    [
        (input_stall_by_stacks, "input-stall"),
        (host_stall_by_stacks, "host-stall"),
        (p2p_deadlock_by_stacks, "p2p-deadlock"),
        (rank_ended_by_stacks, "rank-died"),
        (collective_skipped_by_stacks, "collective-skipped"),
        (collective_mismatch_by_stacks, "collective-mismatch"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_cause_is_the_matter_of_one_rule(rule: Rule, cause: str) -> None:
    others = sorted({"input-stall", "host-stall", "p2p-deadlock", "rank-died", "collective-skipped", "collective-mismatch"} - {cause})
    assert [f.cause for f in rule.check(table(stall(rank=1, cause=cause)))] == [cause]
    assert rule.check(table(*[stall(rank=1, cause=other) for other in others])) == []


def looked(*waits: int, samples: int = 3, place: str = "compute", others: str = "backward", moved: bool = True) -> list[tuple[int, ...]]:
    """Whom looks at each rank's stack name, of which so many found it waiting."""
    states = [
        {
            "rank": r,
            "samples": samples,
            "waits": w,
            "moved": moved and w < samples,
            "place": others if w else place,
            "user_frame": "step (fit.py:9)",
        }
        | {"source_id": r, "line_no": 4}
        for r, w in enumerate(waits)
    ]
    found = straggler_by_stacks.check(stack_work(rows(THREAD_STATES, *states)))
    assert all((f.confidence, f.severity, len(f.evidence)) == ("low", "error", 2) for f in found)
    return [f.ranks for f in found]


def test_the_one_rank_that_every_look_finds_at_work_while_all_others_wait_is_a_guess() -> None:
    assert looked(3, 0, 3) == [(1,)]
    assert looked(3, 0, 3, 3, others="collective", place="data-loader") == [(1,)]


def test_looks_that_find_others_at_work_too_or_that_are_few_tell_nobody() -> None:
    assert looked(3, 1, 3) == [], "it waited, too"
    assert looked(3, 0, 2) == [], "another one was at work, too"
    assert looked(3, 0, 0, 3) == []
    assert looked(3, 0) == []
    assert looked(2, 0, 2, samples=2) == []
    assert looked(3, 0, 3, moved=False) == [], "it stands: what others ask of stacks tells that"
    assert looked(3, 0, 3, place="evaluation") == [], "one does that for all"
    assert looked(3, 0, 3, others="p2p") == [], "stages of a pipeline wait in turns"
