"""Calls that NCCL refused."""

from __future__ import annotations

import polars as pl

from nccl_forensics.reading.source import read_source
from nccl_forensics.rules.nccl_errors_usage import bootstrap_disagreement, invalid_usage
from tests.rules.frames import cited, comm, comms, errors, people, told
from tests.rules.host_frames import table

PEOPLE = people((0, "node1", 100), (1, "node1", 101))
REFUSED = {"kind": "no-algorithm", "pid": 101, "message": "Error : no algorithm/protocol available", "line_no": 8}


def test_two_ranks_on_one_gpu_are_both_named_with_the_device() -> None:
    said = {"kind": "duplicate-gpu", "pid": 100, "message": "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 17000"}
    [finding] = invalid_usage.check(errors(said), PEOPLE)
    assert told(finding) == ("critical", "high", (0, 1))
    assert cited(finding) == [(0, 1)]
    assert finding.title == "ranks 0-1 use the same GPU (17000)"


SAME_GPU = "Multiple Ranks are using the same GPU/Partition. Set NCCL_MULTI_RANK_GPU_ENABLE=1 to enable this configuration."


def on_gpus(*buses: str) -> list[dict[str, object]]:
    """A communicator whose ranks 0, 1, ... began on these GPUs of one host."""
    return [comm(rank, len(buses)) | {"host": "node1", "pid": 100 + rank, "bus_id": bus, "line_no": 5} for rank, bus in enumerate(buses)]


def test_where_the_message_names_nobody_the_ranks_are_those_that_began_on_one_gpu() -> None:
    said = errors({"kind": "duplicate-gpu", "pid": 100, "message": SAME_GPU}, {"kind": "duplicate-gpu", "pid": 101, "message": SAME_GPU})
    [finding] = invalid_usage.check(said, PEOPLE, comms(*on_gpus("f000", "f000", "2d000")))
    assert told(finding) == ("critical", "high", (0, 1))
    assert finding.title == "ranks 0-1 use the same GPU (f000)"


def test_the_same_bus_on_two_hosts_is_no_shared_gpu() -> None:
    said = errors({"kind": "duplicate-gpu", "pid": 100, "message": SAME_GPU}, {"kind": "duplicate-gpu", "pid": 101, "message": SAME_GPU})
    here, there, other = on_gpus("f000", "f000", "2d000")
    [finding] = invalid_usage.check(said, PEOPLE, comms(here, there | {"host": "node2"}, other))
    assert told(finding) == ("critical", "high", ())


def test_the_rank_whose_call_was_refused_is_named_with_nccls_words() -> None:
    [finding] = invalid_usage.check(errors(REFUSED), PEOPLE)
    assert told(finding) == ("critical", "high", (1,))
    assert cited(finding) == [(0, 8)]
    assert finding.title == "NCCL refused a call of rank 1: Error : no algorithm/protocol available"


def test_a_gpu_that_is_not_there_was_asked_for_by_the_program() -> None:
    [finding] = invalid_usage.check(
        errors({"kind": "cuda-failure", "pid": 101, "message": "Cuda failure 101 'invalid device ordinal'"}), PEOPLE
    )
    assert told(finding) == ("critical", "high", (1,))
    assert (
        invalid_usage.check(
            errors({"kind": "cuda-failure", "pid": 101, "message": "Cuda failure 719 'unspecified launch failure'"}), PEOPLE
        )
        == []
    )


def test_a_call_that_came_back_as_invalid_is_named_where_no_warning_says_more() -> None:
    code = {
        "kind": "propagation",
        "level": "INFO",
        "pid": 101,
        "file": "enqueue.cc",
        "code": 5,
        "message": "enqueue.cc:3130 -> 5",
        "line_no": 9,
    }
    revoked = {"kind": "abort", "pid": 101, "message": "AllReduce: communicator was revoked", "line_no": 8}
    [finding] = invalid_usage.check(errors(revoked, code), PEOPLE)
    assert told(finding) == ("critical", "high", (1,))
    assert cited(finding) == [(0, 9)]
    assert invalid_usage.check(errors(revoked, code | {"code": 3}), PEOPLE) == []
    assert invalid_usage.check(errors({"kind": "shm", "pid": 101, "message": "x", "line_no": 8}, code), PEOPLE) == []


def test_a_refusal_of_unknown_rank_is_less_sure_and_names_the_host() -> None:
    [finding] = invalid_usage.check(errors(REFUSED | {"pid": 999}), PEOPLE)
    assert (finding.severity, finding.confidence, finding.ranks) == ("critical", "medium", ())
    assert [(c.rank, c.host) for c in finding.culprits] == [(None, "node1")]
    nowhere = errors(REFUSED | {"pid": 999}).with_columns(host=pl.lit(None, pl.String))
    [finding] = invalid_usage.check(nowhere, PEOPLE)
    assert told(finding) == ("critical", "medium", ())


def test_information_lines_and_other_warnings_stay_quiet() -> None:
    assert invalid_usage.check(errors(REFUSED | {"level": "INFO"}, REFUSED | {"kind": "peer-closed"}), PEOPLE) == []


def test_texts_about_the_machine_and_its_addresses_are_no_refused_calls() -> None:
    said = (
        "Error : could not find CPU close to GPU 3",
        "GetXmlFromCpu : could not find CPU numa ID.",
        "Net : unsupported IP family",
        "AllReduce: communicator was revoked",
    )
    log = "".join(f"\nnode1:101:201 [1] graph/xml.cc:12 NCCL WARN {text}\n" for text in said)
    frame = read_source(log.encode()).frames["nccl_errors"].lazy().with_columns(source_id=0)
    assert invalid_usage.check(frame, PEOPLE) == []


def test_who_uses_a_communicator_before_it_came_up_waits_for_it() -> None:
    text = "Attempt to use communicator before the previous operation returned ncclSuccess"
    early = errors({"kind": "invalid-usage", "pid": 101, "message": text, "line_no": 9})
    assert invalid_usage.check(early, PEOPLE, comms(comm(1, 4))) == []
    [finding] = invalid_usage.check(early, PEOPLE, comms(comm(1, 4, completed=True)))
    assert told(finding) == ("critical", "high", (1,))


def test_who_uses_a_communicator_after_its_own_warning_uses_one_that_failed() -> None:
    text = "Attempt to use communicator before the previous operation returned ncclSuccess"
    late = {"kind": "invalid-usage", "pid": 101, "message": text, "line_no": 9}
    gone = {"kind": "ib-completion", "pid": 101, "message": "NET/IB: Got completion from peer with status=12", "line_no": 4}
    assert invalid_usage.check(errors(gone, late), PEOPLE, comms(comm(1, 4, completed=True))) == []
    for another in (gone | {"pid": 100}, gone | {"line_no": 12}):
        [finding] = invalid_usage.check(errors(another, late), PEOPLE, comms(comm(1, 4, completed=True)))
        assert told(finding) == ("critical", "high", (1,))


# ---- processes that disagree on who they are ----

SIZES = {"kind": "rank-mismatch", "pid": 100, "message": "Bootstrap Root : mismatch in rank count from procs 8 : 4", "line_no": 9}


def begun(*sizes: int, comm_id: str = "0xc0") -> list[dict[str, object]]:
    """A communicator that ranks 0, 1, ... began with these numbers of ranks; line 5 of source number rank."""
    return [
        {"event": "init-start", "comm_id": comm_id, "rank": r, "nranks": n, "host": "node1", "pid": 100 + r, "source_id": r, "line_no": 5}
        for r, n in enumerate(sizes)
    ]


def test_the_rank_that_two_processes_claim_is_named_and_not_the_one_that_says_so() -> None:
    twice = {"kind": "duplicate-rank", "number": 3, "pid": 100, "message": "Bootstrap Root : rank 3 of 8 ranks has already checked in"}
    [finding] = bootstrap_disagreement.check(errors(twice), None)
    assert told(finding) == ("critical", "high", (3,))
    assert cited(finding) == [(0, 1)]
    assert invalid_usage.check(errors(twice), PEOPLE) == []


def test_the_ranks_that_came_with_another_number_of_ranks_are_named() -> None:
    [finding] = bootstrap_disagreement.check(errors(SIZES), table("nccl_comms", *begun(8, 8, 4, 8)))
    assert told(finding) == ("critical", "high", (2,))
    assert cited(finding) == [(0, 9), (2, 5)]


def test_nobody_is_named_where_no_number_of_ranks_has_the_majority() -> None:
    [finding] = bootstrap_disagreement.check(errors(SIZES), table("nccl_comms", *begun(8, 4)))
    assert told(finding) == ("critical", "medium", ())
    [finding] = bootstrap_disagreement.check(errors(SIZES), table("nccl_comms", *begun(8, 8, 8), *begun(4, 4, 4, comm_id="0xd0")))
    assert told(finding) == ("critical", "medium", ())


def test_other_errors_of_the_bootstrap_are_no_disagreement() -> None:
    assert bootstrap_disagreement.check(errors(SIZES | {"kind": "truncated-message"}, SIZES | {"level": "INFO"}), None) == []
