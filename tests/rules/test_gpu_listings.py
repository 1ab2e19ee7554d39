"""GPUs that are not there, and GPUs that stand idle among spinning ones: what fires, what nearly does, what is healthy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import polars as pl
import pytest

from nccl_forensics.rules.gpu_idle import gpu_idle
from nccl_forensics.rules.gpu_missing import gpu_missing
from nccl_forensics.views.gpu_samples import gpu_samples
from nccl_forensics.views.job_signs import JOB_SIGNS
from tests.rules.host_frames import check, processes, table
from tests.views.frames import progress, rows

BUSES = ("0000:07:00.0", "0000:0f:00.0", "0000:47:00.0", "0000:4e:00.0", "0000:87:00.0", "0000:90:00.0", "0000:b7:00.0", "0000:bd:00.0")
FAILED = pl.LazyFrame({"sign": ["watchdog timeouts"]})

Row = dict[str, object]


def listing(host: str, buses: Iterable[str] = BUSES, source: int = 0, tool: str = "nvidia-smi", **more: Sequence[object]) -> list[Row]:
    """One listing: a row per GPU, in the order of the tool; columns of ``more`` by position."""
    return [
        {"host": host, "source_id": source, "tool": tool, "gpu_index": i, "bus_id": b, "name": "H100"} | {c: v[i] for c, v in more.items()}
        for i, b in enumerate(buses)
    ]


def samples(*listings: list[Row]) -> pl.LazyFrame:
    return gpu_samples(table("gpus", *(row for listed in listings for row in listed)), None)


def ranks(host: str, first: int = 0, buses: Sequence[str] = BUSES) -> list[tuple[int, str, int, str]]:
    """A rank on every GPU, with the address as NCCL prints it."""
    return [(first + i, host, 4000 + i, b.removeprefix("0000:").replace(":", "").replace(".", "").lstrip("0")) for i, b in enumerate(buses)]


def without(*positions: int) -> list[str]:
    return [b for i, b in enumerate(BUSES) if i not in positions]


# ---- GPUs that are not there ----


def test_a_gpu_that_an_earlier_listing_of_the_same_source_has_is_missing():
    [finding] = check(
        gpu_missing, gpu_samples=samples(listing("node7"), listing("node7", without(3))), processes=processes(*ranks("node7", first=8))
    )
    assert (finding.severity, finding.confidence, finding.ranks, finding.culprits[0].gpu) == ("critical", "high", (11,), BUSES[3])
    assert finding.title == f"GPU {BUSES[3]} of node7 (rank 11) is no longer listed: an earlier listing of the same source has it"
    assert [e.why for e in finding.evidence] == ["listed before", "the last listing begins here"]


def test_a_gpu_that_fell_off_the_bus_and_that_no_listing_of_its_host_has_is_missing():
    def told(buses: Sequence[str], host: str = "node7", code: int = 79, said: str = "invalid device ordinal") -> list[object]:
        found = check(
            gpu_missing,
            gpu_samples=samples(listing("node7", buses)),
            xids=table("xids", {"host": host, "code": code, "bus_id": BUSES[7]}),
            raised=table("exceptions", {"hint_host": "node7", "message": f"CUDA error: {said}"}),
            job_signs=rows(JOB_SIGNS, {"rank": 0, "host": "node7"}, {"rank": 1, "host": "node8", "sign": "died"}),
            failures=FAILED,
        )
        return [(f.severity, f.confidence, [c.gpu for c in f.culprits or ()]) for f in found]

    assert told(without(7)) == [("critical", "high", [BUSES[7]])]
    # Nobody asked for it; it came back; another host's; another code.
    assert [severity for severity, *_ in told(without(7), said="out of memory")] == ["error"]
    assert told(BUSES) == told(without(7), host="node8") == told(without(7), code=63) == []


def test_a_query_of_one_gpu_after_a_whole_listing_is_no_loss():
    assert check(gpu_missing, gpu_samples=samples(listing("node7"), listing("node7", BUSES[2:3]))) == []


def test_a_listing_that_is_cut_off_at_its_end_is_no_loss_until_a_second_one_agrees():
    whole, cut = listing("node7"), listing("node7", BUSES[:6])
    assert check(gpu_missing, gpu_samples=samples(whole, cut)) == []
    [finding] = check(gpu_missing, gpu_samples=samples(whole, cut, cut))
    assert [c.gpu for c in finding.culprits] == list(BUSES[6:])


def test_a_gpu_that_ranks_used_and_their_host_does_not_list_is_missing_with_its_rank():
    [finding] = check(gpu_missing, gpu_samples=samples(listing("node7", without(2))), processes=processes(*ranks("node7")))
    assert (finding.severity, finding.confidence, finding.ranks) == ("critical", "high", (2,))


def test_addresses_of_another_numbering_are_no_missing_gpus():
    virtual = [f"0000:00:{i:02x}.0" for i in range(4, 12)]
    assert check(gpu_missing, gpu_samples=samples(listing("node7", virtual)), processes=processes(*ranks("node7"))) == []


def test_a_host_with_fewer_gpus_than_its_peers_is_named_with_the_address_that_it_lacks():
    peers = [listing(f"node{n}", source=n) for n in range(3)]
    [finding] = check(gpu_missing, gpu_samples=samples(*peers, listing("node3", without(5), source=3)))
    assert finding.title == "node3 lists 7 GPUs (H100), 3 other hosts list 8"
    assert (finding.severity, finding.confidence, finding.culprits[0].gpu) == ("critical", "medium", BUSES[5])
    assert {e.source_id for e in finding.evidence} == {0, 3}


def test_a_host_whose_ranks_fit_what_it_lists_is_only_a_warning_and_one_with_a_share_of_gpus_is_nothing():
    peers = [listing(f"node{n}", source=n) for n in range(3)]
    seven = samples(*peers, listing("node3", without(5), source=3))
    [finding] = check(gpu_missing, gpu_samples=seven, processes=processes(*ranks("node3", first=24, buses=without(5))))
    assert (finding.severity, finding.confidence) == ("warning", "low")
    four = samples(*peers, listing("node3", BUSES[:4], source=3))
    assert check(gpu_missing, gpu_samples=four) == []
    assert check(gpu_missing, gpu_samples=four, processes=processes(*ranks("node3", first=24, buses=BUSES[:4]))) == []


def test_hosts_alike_hosts_of_several_models_and_two_hosts_that_differ_are_quiet():
    assert check(gpu_missing, gpu_samples=samples(*(listing(f"node{n}", source=n) for n in range(4)))) == []
    other = [row | {"name": "L40S"} for row in listing("node3", without(5), source=3)]
    assert check(gpu_missing, gpu_samples=samples(*(listing(f"node{n}", source=n) for n in range(3)), other)) == []
    assert check(gpu_missing, gpu_samples=samples(listing("node0"), listing("node1", without(5), source=1))) == []


def test_a_host_without_any_gpu_is_named_where_the_job_needs_some():
    none = table("gpu_tool_errors", {"kind": "no-devices", "host": "node9", "message": "No devices were found"})
    [finding] = check(gpu_missing, gpu_samples=samples(listing("node7"), listing("node8", source=1)), gpu_tool_errors=none)
    assert finding.title == "node9 has no GPU that the driver finds, 2 other hosts list theirs"
    assert check(gpu_missing, gpu_tool_errors=none) == [], "a login node"


# ---- GPUs that stand idle ----


def load(
    idle: Sequence[int], power: float = 120.0, used: float = 70_000.0, idle_used: float = 65_000.0, busy: float = 100.0
) -> dict[str, list[object]]:
    """Columns of eight GPUs of which some are idle."""
    return {
        "utilization_percent": [0.0 if i in idle else busy for i in range(8)],
        "power_w": [70.0 if i in idle else power for i in range(8)],
        "power_limit_w": [700.0] * 8,
        "memory_used_mib": [idle_used if i in idle else used for i in range(8)],
    }


def test_the_rank_of_the_idle_gpu_is_named_and_a_second_sample_makes_it_a_stop():
    one = listing("node7", **load([5]))
    [finding] = check(gpu_idle, gpu_samples=samples(one), processes=processes(*ranks("node7")))
    assert (finding.cause, finding.severity, finding.confidence, finding.ranks) == ("host-stall", "warning", "low", (5,))
    [finding] = check(gpu_idle, gpu_samples=samples(one, one), processes=processes(*ranks("node7")))
    assert (finding.severity, finding.confidence) == ("critical", "medium")
    assert finding.title == f"GPU {BUSES[5]} of node7 (rank 5) is idle while the 7 others spin at full utilisation: they wait for it"
    assert {e.why for e in finding.evidence} == {"idle", "spins"}


def test_an_idle_gpu_whose_rank_has_work_enqueued_stands_and_its_host_does_not():
    def cause(done: int, held: float = 40_000.0) -> str | None:
        seen = samples(listing("node7", **load([5], idle_used=held)))
        state = progress({"pg:0": dict.fromkeys(range(8), (9, 8)) | {5: (9, done)}})
        [finding] = check(gpu_idle, gpu_samples=seen, processes=processes(*ranks("node7")), failures=FAILED, progress=state)
        return finding.cause

    assert cause(done=6) == "gpu-stall"
    assert cause(done=9) == "host-stall", "it has done all that it was given"
    assert cause(done=6, held=4.0) == "rank-died", "its process is gone"


def test_a_sign_of_failure_makes_one_sample_enough_and_empty_memory_tells_that_the_process_left():
    [finding] = check(
        gpu_idle, gpu_samples=samples(listing("node7", **load([5], idle_used=4.0))), processes=processes(*ranks("node7")), failures=FAILED
    )
    assert (finding.cause, finding.severity, finding.ranks) == ("rank-died", "critical", (5,))


def test_gpus_of_other_hosts_count_and_a_whole_idle_host_is_named():
    busy = [listing(f"node{n}", source=n, **load([])) for n in range(4)]
    [finding] = check(gpu_idle, gpu_samples=samples(*busy, listing("node4", source=4, **load(range(8)))), failures=FAILED)
    assert finding.hosts == ("node4",)
    assert len(finding.culprits) == 8


@pytest.mark.parametrize(
    "columns",
    [load([5], power=640.0), load([]), load(range(4)), load([5], busy=60.0), load([5], idle_used=4.0)],
    ids=["others compute", "none idle", "half idle", "others busy in part", "empty and of no known rank"],
)
def test_work_idle_halves_and_gpus_that_the_job_does_not_use_are_quiet(columns: dict[str, list[object]]):
    assert check(gpu_idle, gpu_samples=samples(listing("node7", **columns)), failures=FAILED) == []


def test_a_gpu_that_no_rank_has_is_none_of_the_job():
    known = processes(*ranks("node7", buses=BUSES[:7]))
    assert check(gpu_idle, gpu_samples=samples(listing("node7", **load([7]))), processes=known, failures=FAILED) == []


def test_another_idle_gpu_in_the_next_sample_means_that_the_job_moves():
    moving = samples(listing("node7", **load([5])), listing("node7", **load([2])))
    assert check(gpu_idle, gpu_samples=moving, failures=FAILED) == []
