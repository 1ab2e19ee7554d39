"""How a run went, in one word."""

from __future__ import annotations

import polars as pl
import pytest

from nccl_forensics.conclusions.run_outcome import outcome_of
from nccl_forensics.conclusions.verdict import Grounds, judge
from nccl_forensics.rules import Found, Outcome
from nccl_forensics.store import Store
from nccl_forensics.views import Resolver
from nccl_forensics.views.failures import WAITS
from tests.rules.frames import endings
from tests.rules.host_frames import table
from tests.test_verdict import outcome as found_by


class Told(Resolver):
    """Views as given."""

    def __init__(self, **frames: pl.LazyFrame) -> None:
        super().__init__(Store.from_frames({}))
        self._given = frames

    def get(self, name: str) -> pl.LazyFrame | None:
        return self._given.get(name)


def said(outcomes: list[Outcome], *signs: str, **frames: pl.LazyFrame) -> str:
    found: list[Found] = [f for o in outcomes for f in o.found]
    verdict = judge(outcomes, Grounds(signs))
    return outcome_of(verdict, found, Told(failures=pl.LazyFrame({"sign": signs}, schema={"sign": pl.String}), **frames))


@pytest.mark.parametrize(
    ("cause", "word"),
    [("collective-skipped", "hung"), ("out-of-memory", "crashed"), ("job-stopped", "stopped"), ("rank-never-joined", "hung")],
)
def test_a_cause_that_stops_a_job_says_how(cause: str, word: str) -> None:
    assert said([found_by(cause)]) == word
    assert said([]) == "finished"


def test_a_rank_that_is_late_in_every_step_is_slow_and_hangs_nothing() -> None:
    late = found_by("straggler", severity="error")
    stall = found_by("input-stall", explains=("straggler",))
    assert said([stall, late]) == "slow"
    assert said([stall]) == "hung", "nothing measured that it is late step by step"
    assert said([stall, late], WAITS) == "hung", "others wait in what it never came to"
    assert said([stall, late], "watchdog timeouts") == "hung"
    assert said([found_by("gpu-stall", explains=("straggler",)), late]) == "hung", "what its GPU has not done in steps stays undone"


def test_a_loss_is_slow_only_where_nothing_failed() -> None:
    loss, fault = found_by("socket-fallback", severity="error"), found_by("dtype-mismatch")
    assert said([loss]) == "slow"
    assert said([loss], "NCCL errors") == "unknown"
    assert said([fault]) == "unknown", "wrong numbers need not end a job"


def test_else_the_ends_of_the_processes_tell() -> None:
    fault = [found_by("dtype-mismatch")]
    raised = {"rank": 1, "kind": "exception"}
    lost = {"rank": 0, "kind": "victim", "signature": "gloo-closed", "own": False}
    assert said(fault, "exceptions", endings=endings(raised, lost)) == "crashed"
    assert said(fault, "exceptions", endings=endings(lost)) == "crashed"
    assert said(fault, "exceptions", endings=endings(lost | {"signature": "gloo-timeout"})) == "hung"
    assert said(fault, "exceptions", endings=endings(lost), rank_reports=table("reports", {"kind": "barrier-missing"})) == "hung"
    assert said(fault, WAITS, endings=endings({"rank": 0, "kind": "terminated"})) == "hung"
    assert said(fault, "processes ended badly", endings=endings({"rank": 0, "kind": "terminated"})) == "stopped"
