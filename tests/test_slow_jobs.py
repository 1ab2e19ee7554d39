"""What a rank does for too long in each step of a job that goes on is a loss, and no stop."""

from __future__ import annotations

from nccl_forensics.conclusions.run_outcome import as_it_went
from nccl_forensics.conclusions.verdict import Grounds, Verdict, judge
from nccl_forensics.model import Culprit, Finding, Severity
from nccl_forensics.rules import Found, Outcome, Rule
from nccl_forensics.rules.input_stall import input_stall
from nccl_forensics.rules.straggler import straggler


def _found(rule: Rule, ident: str, title: str, severity: Severity) -> Found:
    finding = Finding(
        title=title,
        summary="its stack is in its data loading.",
        cause=rule.cause,
        severity=severity,
        confidence="high",
        ranks=(2,),
        culprits=(Culprit(rank=2),),
        would_refute=(f"refutes {ident}",),
    )
    return Found(ident, ident, rule, finding)


def _went(outcome: str) -> tuple[Verdict, Found, Found]:
    stall = _found(input_stall, "ST02-1", "rank 2 sits in its data loading", "critical")
    late = _found(straggler, "ST01-1", "rank 2 was last in 15 of 53 collectives", "error")
    outcomes = [Outcome(f.rule, "found", (f,), (), {}) for f in (stall, late)]
    verdict, told = as_it_went(judge(outcomes, Grounds()), outcomes, outcome)
    return verdict, told[0].found[0], told[1].found[0]


def test_a_rank_found_in_its_loader_in_a_job_that_goes_on_stopped_nothing() -> None:
    verdict, stall, late = _went("slow")
    assert verdict.root == stall
    assert stall.finding.severity == "error"
    assert stall.finding.summary.startswith("The job goes on and is slow: rank 2 was last in 15 of 53 collectives. Its stack")
    assert stall.finding.would_refute == late.finding.would_refute


def test_where_the_job_hangs_the_same_finding_explains_a_stop() -> None:
    verdict, stall, _ = _went("hung")
    assert (verdict.root, stall.finding.severity) == (stall, "critical")
    assert stall.finding.would_refute == ("refutes ST02-1",)
