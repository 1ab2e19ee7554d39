"""What a host tells of its GPUs, its memory and its kernel is judged as surely as it is tied to the job at hand."""

from __future__ import annotations

import polars as pl

from nccl_forensics.rules.common.ties import job_of
from nccl_forensics.rules.data_corruption import data_corruption
from nccl_forensics.rules.gpu_fault import gpu_fault
from nccl_forensics.rules.gpu_throttled import gpu_throttled
from nccl_forensics.rules.ib_link import ib_link
from nccl_forensics.rules.job_stopped import job_stopped
from nccl_forensics.rules.node_failed import node_failed
from nccl_forensics.rules.nvlink_fault import nvlink_fault
from nccl_forensics.rules.out_of_memory import out_of_memory
from nccl_forensics.views.job_signs import JOB_SIGNS
from nccl_forensics.views.job_signs import job_signs as signs_of
from nccl_forensics.views.raised import raised as raised_by
from tests.rules.host_frames import SECOND, check, processes, table, xid
from tests.rules.test_fabric_rules import port, ports

HOUR = 3600 * SECOND
FAILED = pl.LazyFrame({"sign": ["exceptions"]})
#: The job ran for a minute, ten hours after the epoch.
TIMES = pl.LazyFrame({"first_raw_ns": [10 * HOUR], "last_raw_ns": [10 * HOUR + 60 * SECOND], "stalled_raw_ns": [None], "yearless": [False]})


def signs(*ranks: tuple[int, str | None, int | None, str | None, str | None]) -> pl.LazyFrame:
    """(rank, host, pid, bus id, sign)."""
    return pl.DataFrame([dict(zip(JOB_SIGNS, (*row, None), strict=True)) for row in ranks], schema=JOB_SIGNS).lazy()


HEALTHY = signs((0, "node1", 10, "0000:17:00.0", None), (1, "node2", 10, "0000:17:00.0", None))
PARTED = signs((0, "node1", 10, "0000:17:00.0", None), (1, "node2", 10, "0000:17:00.0", "parted"))


def lost(time: int | None = None, **more: object) -> pl.LazyFrame:
    """A GPU of node1 that fell off the bus: at a time, or in a log without dates."""
    kind = {"time_kind": "monotonic"} if time is None else {"time_kind": "epoch", "time_raw_ns": time}
    return table("xids", xid(79, host="node1") | kind | more)


def gpu(job: pl.LazyFrame, failed: pl.LazyFrame | None = FAILED, **more: pl.LazyFrame) -> tuple[str | None, str]:
    known = processes((0, "node1", 10, "17000"), (1, "node2", 10, "17000"))
    inputs = {"job_signs": job, "processes": known} | ({"failures": failed} if failed is not None else {}) | more
    finding = next(f for f in check(gpu_fault, **inputs) if "Xid 79" in f.title)
    return finding.severity, finding.confidence


def test_a_gpu_lost_in_the_time_of_the_job_is_the_cause():
    assert gpu(PARTED, xids=lost(10 * HOUR), job_times=TIMES) == ("critical", "high")


def test_a_gpu_of_the_machine_that_a_pod_ran_on_is_that_of_the_pods_rank():
    def named(pod: str) -> list[tuple[int, ...]]:
        known = processes((0, "train-master-0", 10, "17000"), (1, pod, 10, "17000"))
        known = known.with_columns(node=pl.when(pl.col("host") == "train-worker-0").then(pl.lit("node1")))
        job = signs_of(known, *[None] * 6)
        found = check(gpu_fault, job_signs=job, processes=known, failures=FAILED, xids=lost(10 * HOUR), job_times=TIMES)
        return [f.ranks for f in found if "Xid 79" in f.title]

    assert named("train-worker-0") == [(1,)]
    assert named("train-worker-1") == [()]


def test_a_program_s_fault_on_a_gpu_of_unknown_rank_is_not_what_ended_a_rank_by_another_error():
    fault = table("xids", xid(13, host="node9", pid=77, time_kind="epoch", time_raw_ns=10 * HOUR))
    known = processes((0, "node1", 10, "17000"))

    def weighed(sign: str, message: str) -> list[tuple[str | None, str]]:
        error = {"rank": 0, "message": message, "signature": "user", "source_id": 5, "line_no": 9}
        said = raised_by(table("exceptions", error), *[None] * 5)
        job = signs((0, "node1", 10, "0000:17:00.0", sign))
        found = check(gpu_fault, xids=fault, raised=said, processes=known, job_signs=job, failures=FAILED, job_times=TIMES)
        return [(f.severity, f.confidence) for f in found if "Xid 13" in f.title]

    assert weighed("died", "AssertionError: expert index out of range") == [("warning", "low")]
    assert weighed("died", "CUDA error: an illegal memory access was encountered") == [("critical", "medium")]


def test_a_process_that_the_kernel_names_is_a_rank_s_also_where_ranks_have_another_name_for_the_host():
    stuck = {"kind": "lockup", "state": "soft", "value": 110.0, "host": "gpu-9", "comm": "python"}
    known = processes((0, "pod-0", 4711, "17000"), (1, "pod-1", 4712, "17000"))
    job = signs((0, "pod-0", 4711, None, None), (1, "pod-1", 4712, None, "stands"))
    for pid, ranks in ((4712, (1,)), (99, ())):
        lines = table("kernel_events", stuck | {"pid": pid, "time_kind": "epoch", "time_raw_ns": 10 * HOUR})
        [found] = check(node_failed, kernel_events=lines, processes=known, job_signs=job, failures=FAILED, job_times=TIMES)
        assert (found.ranks, found.confidence) == (ranks, "medium" if ranks else "low")


def test_the_one_rank_that_says_that_its_gpu_failed_it_is_on_the_one_that_did() -> None:
    def placed(*said: tuple[int | None, str]) -> list[object]:
        rows = [{"rank": rank, "line_no": n + 1, "message": f"CUDA error: {text}"} for n, (rank, text) in enumerate(said)]
        inputs = {
            "xids": lost(10 * HOUR),
            "raised": table("exceptions", *rows),
            "processes": processes((0, None, 10, None), (1, None, 11, None)),
        }
        found = next(f for f in check(gpu_fault, **inputs, failures=FAILED, job_times=TIMES) if "Xid 79" in f.title)
        return [(c.host, c.rank) for c in found.culprits or ()]

    ill = "an illegal memory access was encountered"
    assert placed((1, ill)) == [("node1", 1)]
    # Two that say so, one of unknown rank, and one that asked for too much memory.
    assert placed((0, ill), (1, ill)) == placed((1, ill), (None, ill)) == placed((1, "out of memory")) == [("node1", None)]


def test_a_gpu_lost_hours_before_is_no_sure_cause_and_less_where_another_rank_failed_by_itself():
    early = lost(2 * HOUR)
    assert gpu(signs((0, "node1", 10, "0000:17:00.0", None)), xids=early, job_times=TIMES) == ("critical", "medium")
    assert gpu(PARTED, xids=early, job_times=TIMES) == ("error", "low")


def test_a_job_that_went_on_lost_no_gpu():
    assert gpu(HEALTHY, None, xids=lost(2 * HOUR), job_times=TIMES) == ("warning", "low")


def test_a_log_without_dates_is_of_the_current_boot_in_which_a_lost_gpu_stays_lost():
    assert gpu(PARTED, xids=lost()) == ("critical", "high")


def test_a_gpu_whose_rank_the_job_does_not_tell_is_that_of_a_rank_of_its_host_that_failed():
    line = table("xids", xid(79, host="node1") | {"time_kind": "monotonic"}).collect()
    blind = signs((0, "node1", 10, None, "stands"), (1, "node2", 10, None, "parted"))
    assert job_of(blind, None, FAILED).tie(line, "node1", gpu="0000:17:00.0", lasting=True) == "own"
    assert job_of(blind, None, FAILED).tie(line, "node2", gpu="0000:17:00.0", lasting=True) == "doubtful", "its rank parted by itself"
    # Something else places the rank: it alone stands still.
    homeless = signs((0, None, None, None, "stands"), (1, None, None, None, None))
    job = job_of(homeless, None, FAILED)
    assert job.tie(line, "node1", gpu="0000:17:00.0", lasting=True) == "doubtful"
    assert job.tie(line, "node1", gpu="0000:17:00.0", of=(0,), lasting=True) == "own"
    # A log that does not say whose it is, of a job on one host.
    alone = signs((0, "node1", 10, None, "gpu"), (1, "node1", 11, None, None))
    assert job_of(alone, None, FAILED).tie(line, None, gpu="0000:17:00.0") == "own"


def test_a_driver_that_was_loaded_anew_since_had_the_gpu_back():
    loaded = table("kernel_events", {"kind": "driver-load", "line_no": 7, "host": "node1"})
    assert gpu(PARTED, xids=lost(), kernel_events=loaded) == ("error", "low")


def test_a_memory_error_that_ended_one_process_may_have_been_an_earlier_jobs():
    contained = table("xids", xid(94, host="node1", pid=4711) | {"time_kind": "monotonic"})
    known = processes((0, "node1", 10, "17000"), (1, "node2", 10, "17000"))
    [found] = check(gpu_fault, xids=contained, job_signs=PARTED, processes=known, failures=FAILED)
    assert found.confidence == "low"


def test_a_rank_that_says_so_itself_bears_out_what_its_host_says():
    hurt = signs((0, "node1", 10, "0000:17:00.0", "gpu"), (1, "node2", 10, "0000:17:00.0", None))
    assert gpu(hurt, xids=lost(2 * HOUR), job_times=TIMES) == ("critical", "high")


def test_a_gpu_that_no_rank_of_the_host_has_is_not_the_jobs():
    assert gpu(PARTED, xids=lost(bus_id="0000:c0:00.0")) == ("warning", "low")


def test_a_host_of_another_job_is_known_by_a_name_of_the_same_make():
    assert gpu(PARTED, xids=lost(host="node7")) == ("warning", "low")
    assert gpu(PARTED, xids=lost(host="ip-10-0-0-1")) == ("error", "low")
    assert gpu(HEALTHY, xids=lost(host="ip-10-0-0-1")) == ("critical", "medium")


def test_without_a_job_a_host_is_judged_by_itself():
    assert job_of(None, None, None).tie(None, "node1") == "own"
    assert job_of(signs(), None, None).tie(None, "node1") == "own"


def test_hosts_of_ranks_that_left_nothing_are_not_known():
    partly = job_of(signs((0, "node1", 10, None, None), (1, None, None, None, None)), None, FAILED)
    assert (partly.tie(None, "node7"), partly.place("node7")) == ("open", "open")
    whole = job_of(HEALTHY, None, FAILED)
    assert (whole.place("node1"), whole.place("node7"), whole.place("login")) == ("own", "apart", "open")


def test_a_process_of_another_user_that_ran_out_of_memory_is_no_rank():
    kill = {"host": "node1", "pid": 771, "comm": "python3", "anon_kb": 1 << 26, "constraint": "CONSTRAINT_MEMCG", "time_kind": "monotonic"}
    [other] = check(out_of_memory, oom_kills=table("oom_kills", kill), job_signs=PARTED, failures=FAILED)
    assert (other.severity, other.confidence) == ("error", "low")
    close = table("oom_kills", kill | {"time_kind": "epoch", "time_raw_ns": 10 * HOUR})
    [other] = check(out_of_memory, oom_kills=close, job_signs=PARTED, failures=FAILED, job_times=TIMES)
    assert (other.severity, other.confidence) == ("error", "low")
    [idle] = check(out_of_memory, oom_kills=table("oom_kills", kill), job_signs=HEALTHY)
    assert (idle.severity, idle.confidence) == ("warning", "low")
    gone = signs((0, "node1", 10, None, "taken"), (1, "node2", 10, None, None))
    [found] = check(out_of_memory, oom_kills=table("oom_kills", kill), job_signs=gone, failures=FAILED)
    assert (found.severity, found.confidence) == ("critical", "high")


def job(number: str, state: str, start: int, end: int, node: str = "node1") -> dict[str, object]:
    return {"job_id": number, "state": state, "start_raw_ns": start, "end_raw_ns": end, "nodes": [node]}


def test_of_a_listing_of_jobs_the_one_that_ran_then_and_there_is_judged():
    earlier, own = job("7", "TIMEOUT", 0, 2 * HOUR), job("8", "COMPLETED", 10 * HOUR, 11 * HOUR)
    [found] = check(job_stopped, scheduler_jobs=table("scheduler_jobs", earlier, own), job_signs=HEALTHY, job_times=TIMES)
    assert (found.severity, found.confidence) == ("warning", "low")
    stopped = job("8", "TIMEOUT", 10 * HOUR, 11 * HOUR)
    [found] = check(job_stopped, scheduler_jobs=table("scheduler_jobs", stopped), job_signs=HEALTHY, job_times=TIMES)
    assert (found.severity, found.confidence) == ("critical", "high")


def test_a_time_limit_after_ranks_had_parted_only_ended_the_wait():
    stopped = job("8", "TIMEOUT", 10 * HOUR, 11 * HOUR)
    [found] = check(job_stopped, scheduler_jobs=table("scheduler_jobs", stopped), job_signs=PARTED, job_times=TIMES)
    assert (found.severity, found.confidence) == ("info", "low")


def test_the_output_of_an_earlier_job_that_lies_beside_tells_nothing_of_this_one():
    line = {"kind": "scheduler", "message": "*** JOB 7 ON node9 CANCELLED AT 1970-01-01T10:00:00 DUE TO TIME LIMIT ***", "host": "node9"}
    days = pl.LazyFrame({"first_raw_ns": [90 * HOUR], "last_raw_ns": [91 * HOUR], "stalled_raw_ns": [None], "yearless": [False]})
    old = table("worker_exits", line | {"time_kind": "local-unzoned", "time_raw_ns": 10 * HOUR})
    assert check(job_stopped, worker_exits=old, job_signs=HEALTHY, job_times=days) == []
    [found] = check(job_stopped, worker_exits=old, job_signs=HEALTHY, job_times=TIMES)
    assert (found.severity, found.confidence) == ("critical", "high")


def test_a_pod_that_is_no_host_of_the_job_ended_nothing_in_a_job_that_went_on():
    evicted = table("pod_events", {"reason": "Evicted", "object": "pod/adapter-1", "message": "low on resource"})
    [found] = check(job_stopped, pod_events=evicted, job_signs=PARTED, failures=FAILED)
    assert (found.severity, found.confidence) == ("error", "low")
    [found] = check(job_stopped, pod_events=evicted, job_signs=HEALTHY)
    assert (found.severity, found.confidence) == ("warning", "low")


def test_an_eviction_of_which_no_pod_is_told_may_be_any_pods():
    [found] = check(job_stopped, pod_events=table("pod_events", {"reason": "Evicted", "message": "low on resource"}))
    assert (found.title, found.confidence) == ("a pod was evicted", "medium")


def test_links_of_a_host_that_is_not_the_jobs_slow_it_not():
    links = [
        {"host": "ws3", "gpu_index": g, "link": n, "active": g < 2, "rate_gb_s": 14.0 if g < 2 else None, "name": "NVIDIA RTX A6000"}
        for g in range(4)
        for n in range(4)
    ]
    found = check(nvlink_fault, nvlinks=table("nvlinks", *links), job_signs=HEALTHY)
    assert {(f.severity, f.confidence) for f in found} == {("warning", "low")}
    found = check(nvlink_fault, nvlinks=table("nvlinks", *(r | {"host": "node1"} for r in links)), job_signs=HEALTHY)
    assert {f.confidence for f in found} == {"high"}


def test_a_line_of_a_switch_that_no_job_missed_is_no_stop():
    down = {
        "code": 20034,
        "bus_id": "0000:05:00.0",
        "host": "node1",
        "link": 30,
        "reporter": "kernel",
        "fatal": True,
        "time_kind": "monotonic",
    }
    [found] = check(nvlink_fault, sxids=table("sxids", down), job_signs=HEALTHY)
    assert (found.severity, found.confidence) == ("warning", "low")
    [found] = check(nvlink_fault, sxids=table("sxids", down))
    assert (found.severity, found.confidence) == ("critical", "medium")


def test_a_port_of_an_adapter_that_nccl_uses_on_no_host_is_not_the_jobs():
    listed = ports(port("node1", "mlx5_8"), port("node2", "mlx5_8", state="down", phys_state="polling")).lazy()
    used = pl.LazyFrame({"host": ["node1", "node2"], "device": ["mlx5_0", "mlx5_0:1"]})
    [found] = check(ib_link, ib_ports=listed, host_nics=used)
    assert (found.severity, found.confidence) == ("warning", "low")
    also = pl.LazyFrame({"host": ["node1", "node2"], "device": ["mlx5_8", "mlx5_0"]})
    [found] = check(ib_link, ib_ports=listed, host_nics=also)
    assert (found.severity, found.confidence) == ("error", "high")


def test_a_gpu_that_is_hot_for_one_sample_of_many_is_not_held_down():
    rows = [
        {"host": "node1", "bus_id": "0000:17:00.0", "name": "H100", "throttle": ["hw-thermal"] if n == 3 else [], "utilization_percent": 99}
        for n in range(20)
    ]
    [found] = check(gpu_throttled, gpus=table("gpus", *rows))
    assert (found.severity, found.confidence) == ("warning", "low")
    hot = table("gpus", *(r | {"throttle": ["hw-thermal"]} for r in rows[:5]), *rows[5:])
    [found] = check(gpu_throttled, gpus=hot, job_signs=HEALTHY)
    assert (found.severity, found.confidence) == ("error", "high")
    [found] = check(gpu_throttled, gpus=hot.with_columns(host=pl.lit("ws3")), job_signs=HEALTHY)
    assert (found.severity, found.confidence) == ("warning", "low")


def test_wrong_results_of_a_test_on_other_hosts_are_not_the_jobs():
    test = {"test": 0, "collective": "AllReduce", "ranks": 8, "out_of_bounds": 2, "out_of_bounds_ok": False}
    rows = table("bandwidth_rows", {"test": 0, "bytes": 1024, "wrong": 2})
    [other] = check(
        data_corruption, bandwidth_tests=table("bandwidth_tests", test | {"hosts": ["oldbox"]}), bandwidth_rows=rows, job_signs=HEALTHY
    )
    assert (other.severity, other.confidence) == ("warning", "low")
    own = table("bandwidth_tests", test | {"hosts": ["node1", "oldbox"]})
    [found] = check(data_corruption, bandwidth_tests=own, bandwidth_rows=rows, job_signs=HEALTHY)
    assert (found.severity, found.confidence) == ("critical", "high")


def test_signs_are_of_the_ranks_that_failed_by_themselves_and_ranks_that_left_nothing_are_listed():
    ended = pl.LazyFrame({"rank": [1, 2], "own": [True, False], "kind": ["killed", "victim"]})
    parted = pl.LazyFrame({"sure": [True], "ranks": [[0]]})
    groups = pl.LazyFrame({"size": [4], "members": [[0, 1]]})
    found = signs_of(processes((0, "node1.cluster", 10, "17000")), ended, None, None, None, parted, groups).collect()
    assert found["sign"].to_list() == ["parted", "taken", None, None]
    assert found.row(0) == (0, "node1", 10, "0000:17:00.0", "parted", None)


def test_an_error_of_the_fabric_manager_in_a_job_that_went_on_is_a_warning():
    line = {"kind": "multicast-handle", "severity": "fatal", "message": "failed to find the GPU handle", "host": "node1", "line_no": 3}
    [found] = check(nvlink_fault, fabric_events=table("fabric_events", line), job_signs=HEALTHY)
    assert (found.severity, found.confidence) == ("warning", "low")
    [found] = check(nvlink_fault, fabric_events=table("fabric_events", line))
    assert (found.severity, found.confidence) == ("error", "medium")
    old = line | {"time_kind": "local-unzoned", "time_raw_ns": -90 * 24 * HOUR}
    [found] = check(nvlink_fault, fabric_events=table("fabric_events", old), job_signs=PARTED, job_times=TIMES, failures=FAILED)
    assert found.severity == "info"


# ---- times, zones and names ----

STOOD = pl.LazyFrame(
    {
        "first_raw_ns": [10 * HOUR],
        "last_raw_ns": [10 * HOUR + 600 * SECOND],
        "stalled_raw_ns": [10 * HOUR],
        "yearless": [False],
    }
)


def test_what_no_zone_puts_into_the_time_of_the_job_is_none_of_its_and_a_half_hour_of_zones_leaves_it_open() -> None:
    def told(time: int) -> list[tuple[object, object]]:
        rows = table("xids", xid(95, host="node1", time_kind="local-unzoned") | {"time_raw_ns": time})
        found = check(gpu_fault, xids=rows, job_signs=HEALTHY, job_times=STOOD, failures=FAILED)
        return [(f.severity, f.confidence) for f in found]

    assert told(10 * HOUR + 60 * SECOND) == [("critical", "high")]
    assert told(5 * HOUR + 60 * SECOND) == [("critical", "medium")]
    assert told(5 * HOUR - 900 * SECOND) == [("warning", "low")]


def test_a_fault_of_a_program_after_the_job_told_of_its_end_follows_from_it() -> None:
    def told(second: int) -> list[object]:
        rows = table("xids", xid(31, host="node1", pid=10, time_kind="local-unzoned") | {"time_raw_ns": 10 * HOUR + second * SECOND})
        return [f.severity for f in check(gpu_fault, xids=rows, job_signs=HEALTHY, job_times=STOOD, failures=FAILED)]

    assert told(630) == ["warning"]
    assert told(300) == ["critical"]


def test_a_gpu_of_an_unknown_host_is_not_surely_the_jobs_that_knows_its_hosts() -> None:
    rows = table("xids", xid(79, host=None, time_kind="local-unzoned") | {"time_raw_ns": 10 * HOUR})
    [finding] = check(gpu_fault, xids=rows, job_signs=HEALTHY, job_times=STOOD, failures=FAILED)
    assert finding.confidence == "medium"


def test_a_node_that_the_scheduler_missed_while_the_job_stood_is_what_stopped_it() -> None:
    def told(time: int, *gave_up: int, tool: str = "slurmctld") -> list[object]:
        row = {
            "tool": tool,
            "node": "node2",
            "state": "DOWN",
            "flags": ["NOT_RESPONDING"],
            "reason": "Not responding",
            "reason_raw_ns": time,
        }
        calls = pl.LazyFrame({"rank": list(gave_up)})
        inputs = {"job_signs": HEALTHY, "job_times": STOOD, "failures": FAILED, "watchdog_calls": calls}
        return [(f.severity, f.ranks) for f in check(job_stopped, scheduler_nodes=table("scheduler_nodes", row), **inputs)]

    assert told(10 * HOUR + 60 * SECOND, 0) == [("critical", (1,))]
    assert told(10 * HOUR + 60 * SECOND, 0, 1) == [("warning", ())], "its rank was there at the end"
    assert told(2 * HOUR, 0) == [("warning", ())]
    assert told(2 * HOUR, 0, tool="mpirun") == [("critical", (1,))]


def test_a_job_that_the_accounting_has_as_out_of_memory_is_the_cause_unless_it_ran_elsewhere() -> None:
    def told(*nodes: str) -> list[object]:
        rows = table("scheduler_jobs", {"job_id": "9", "state": "OUT_OF_MEMORY", "nodes": list(nodes)})
        return [f.severity for f in check(out_of_memory, scheduler_jobs=rows, job_signs=HEALTHY, failures=FAILED)]

    assert told("node1", "node2") == ["critical"]
    assert told("node9") == ["warning"]


def test_a_pod_that_is_evicted_from_a_node_that_is_not_ready_has_lost_its_node() -> None:
    taken = {"reason": "TaintManagerEviction", "object": "pod/adapter-1", "message": "Marking for deletion Pod train/adapter-1"}
    pod, node = ({"reason": "NodeNotReady", "object": name, "message": "not ready"} for name in ("pod/adapter-1", "node/gpu7"))
    lost = [f for f in check(job_stopped, pod_events=table("pod_events", node, pod, taken), failures=FAILED) if f.severity == "critical"]
    assert [(f.cause, f.hosts) for f in lost] == [("node-failed", ("gpu7",))]
    other = [f for f in check(job_stopped, pod_events=table("pod_events", node, taken), failures=FAILED) if f.severity == "critical"]
    assert [f.cause for f in other] == ["job-stopped"], "the node of another pod"


def test_of_a_listing_the_job_is_one_that_has_all_hosts_of_the_ranks_whatever_zone_its_times_are_of() -> None:
    other = {"job_id": "7", "state": "TIMEOUT", "nodes": ["node1"], "start_raw_ns": 9 * HOUR, "end_raw_ns": 11 * HOUR}
    own = {"job_id": "9", "state": "COMPLETED", "nodes": ["node1", "node2"], "start_raw_ns": 18 * HOUR, "end_raw_ns": 19 * HOUR}
    [apart] = check(job_stopped, scheduler_jobs=table("scheduler_jobs", other, own), job_signs=HEALTHY, job_times=TIMES)
    assert (apart.severity, apart.confidence) == ("warning", "low")
    small = [other, own | {"nodes": ["node2", "node3"]}]
    [unsure] = check(job_stopped, scheduler_jobs=table("scheduler_jobs", *small), job_signs=HEALTHY, job_times=TIMES)
    assert unsure.severity == "critical", "a listing that is cut names some hosts of each"


def test_a_number_below_anothers_that_left_nothing_is_a_rank_whose_host_is_not_known() -> None:
    named = processes((0, "node1", 5, "17000"), (2, "node3", 7, "17000"))
    there = job_of(signs_of(named, None, None, None, None, None, None), TIMES, FAILED)
    near = table("xids", xid(79, host="node2", second=36_030, time_kind="epoch")).collect()
    assert there.tie(near, "node2", gpu="0000:17:00.0") == "open"
    both = processes((0, "node1", 5, "17000"), (1, "node3", 7, "17000"))
    assert job_of(signs_of(both, None, None, None, None, None, None), TIMES, FAILED).tie(near, "node2", gpu="0000:17:00.0") == "apart"
