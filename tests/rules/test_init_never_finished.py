"""Jobs whose logs all end at the bootstrap of releases that print no size before it."""

from __future__ import annotations

import polars as pl
import pytest

from nccl_forensics.rules.init_never_finished import init_never_finished
from tests.rules.frames import cited, comm, comms, told
from tests.rules.host_frames import table
from tests.views.frames import progress


def tails(*messages: str) -> pl.LazyFrame:
    """The last NCCL lines of the processes 100, 101, … on one host."""
    return table(
        "nccl_tails",
        *(
            {"source_id": i, "line_no": 9, "host": "n1", "pid": 100 + i, "dev": i, "lines": 9, "message": text}
            for i, text in enumerate(messages)
        ),
    )


def asked(count: int) -> pl.LazyFrame:
    return table(
        "nccl_network",
        *({"source_id": i, "line_no": 2, "host": "n1", "pid": 100 + i, "item": "bootstrap", "name": "eth0"} for i in range(count)),
    )


def version(text: str) -> pl.LazyFrame:
    return table("nccl_versions", {"source_id": 0, "line_no": 1, "version": text})


NETWORK = "Using network Socket"


@pytest.mark.parametrize("release", ["2.21.5", "2.22.3"])
def test_processes_that_all_end_before_the_bootstrap_wait_for_somebody(release: str) -> None:
    [finding] = init_never_finished.check(tails(NETWORK, NETWORK), asked(2), version(release), None)
    assert told(finding) == ("critical", "medium", ())
    assert cited(finding) == [(0, 9), (1, 9), (None, None)]
    assert finding.hosts == ("n1",)


@pytest.mark.parametrize(
    ("messages", "bootstraps", "release"),
    [
        ((NETWORK, "Connected all rings"), 2, "2.21.5"),
        ((NETWORK, NETWORK), 1, "2.21.5"),
        ((NETWORK, NETWORK), 2, "2.23.4"),
        ((NETWORK,), 1, "2.21.5"),
    ],
    ids=["one went on", "one does not print INIT lines", "a release that prints Init START first", "one process alone"],
)
def test_other_logs_stay_quiet(messages: tuple[str, ...], bootstraps: int, release: str) -> None:
    assert init_never_finished.check(tails(*messages), asked(bootstraps), version(release), None) == []


def test_calls_that_recorders_show_as_over_had_a_communicator_whatever_the_logs_leave_out() -> None:
    def found(done: int | None) -> int:
        recorded = progress({"pg:0": {0: (9, done), 1: (9, done)}})
        return len(init_never_finished.check(tails(NETWORK, NETWORK), asked(2), version("2.21.5"), None, None, recorded))

    assert (found(8), found(None)) == (0, 1)


def test_logs_that_were_copied_in_part_do_not_say_where_their_process_ended() -> None:
    cut = table("cut_ends", {"source_id": 1, "line_no": 9, "buffer": False})
    assert init_never_finished.check(tails(NETWORK, NETWORK), asked(2), version("2.21.5"), None, cut_ends=cut) == []


def test_where_a_communicator_was_seen_and_all_wait_nobody_is_known_to_be_left_out() -> None:
    assert init_never_finished.check(tails(NETWORK, NETWORK), asked(2), version("2.21.5"), comms(comm(0, 2)), PEOPLE) == []


PEOPLE = pl.LazyFrame({"host": ["n1"] * 4, "pid": [100, 101, 102, 103], "rank": [0, 1, 2, 3]})


def test_the_one_process_that_does_not_wait_for_a_later_communicator_is_named() -> None:
    ends = tails(NETWORK, "Init timings: rank 1", NETWORK, NETWORK)
    [finding] = init_never_finished.check(ends, asked(4), version("2.22.3"), comms(comm(0, 4)), PEOPLE)
    assert told(finding) == ("critical", "medium", (1,))
    assert cited(finding)[0] == (1, 9)


def test_two_processes_that_do_not_wait_may_belong_to_no_later_communicator() -> None:
    ends = tails(NETWORK, "Init timings: rank 1", "Init timings: rank 2", NETWORK)
    assert init_never_finished.check(ends, asked(4), version("2.22.3"), comms(comm(0, 4)), PEOPLE) == []
