"""Communicators that never got all their ranks."""

from __future__ import annotations

import pytest

from nccl_forensics.rules.rank_never_joined import rank_never_joined
from tests.rules.frames import cited, comm, comms, told


def test_the_rank_that_no_log_shows_is_named_with_those_that_wait() -> None:
    [finding] = rank_never_joined.check(comms(*[comm(r, 4) for r in (0, 1, 3)]), None)
    assert told(finding) == ("critical", "high", (2,))
    assert cited(finding) == [(0, 5), (1, 5), (3, 5), (None, None)]
    assert finding.evidence[-1].kind == "absence"
    assert finding.title == "rank 2 of 4 never joined; 3 ranks wait in init"


def test_where_most_logs_are_missing_they_were_perhaps_not_collected() -> None:
    [finding] = rank_never_joined.check(comms(comm(0, 4)), None)
    assert told(finding) == ("critical", "medium", (1, 2, 3))


@pytest.mark.parametrize(
    "members",
    [[comm(r, 4) for r in range(4)], [comm(r, 4, completed=r == 0) for r in (0, 1, 3)], [comm(0, 4) | {"nranks": None}]],
    ids=["all ranks came", "one completed it", "of unknown size"],
)
def test_other_communicators_stay_quiet(members: list[dict[str, object]]) -> None:
    assert rank_never_joined.check(comms(*members), None) == []
