"""Jobs whose logs all end at the bootstrap of releases that print no size before it."""

from __future__ import annotations

import polars as pl
import pytest

from nccl_forensics.rules.init_never_finished import init_never_finished
from tests.rules.frames import cited, comm, comms, told
from tests.rules.host_frames import table


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


def test_processes_that_all_end_before_the_bootstrap_wait_for_somebody() -> None:
    [finding] = init_never_finished.check(tails(NETWORK, NETWORK), asked(2), version("2.21.5"), None)
    assert told(finding) == ("critical", "medium", ())
    assert cited(finding) == [(0, 9), (1, 9), (None, None)]
    assert finding.hosts == ("n1",)


@pytest.mark.parametrize(
    ("messages", "bootstraps", "release"),
    [
        ((NETWORK, "Connected all rings"), 2, "2.21.5"),
        ((NETWORK, NETWORK), 1, "2.21.5"),
        ((NETWORK, NETWORK), 2, "2.22.3"),
        ((NETWORK,), 1, "2.21.5"),
    ],
    ids=["one went on", "one does not print INIT lines", "a release that prints Init START first", "one process alone"],
)
def test_other_logs_stay_quiet(messages: tuple[str, ...], bootstraps: int, release: str) -> None:
    assert init_never_finished.check(tails(*messages), asked(bootstraps), version(release), None) == []


def test_a_communicator_that_was_seen_is_another_rules_matter() -> None:
    assert init_never_finished.check(tails(NETWORK, NETWORK), asked(2), version("2.21.5"), comms(comm(0, 2))) == []
