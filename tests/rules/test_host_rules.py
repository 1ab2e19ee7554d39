"""NVLink, PCIe, clocks, memory and nodes: each rule has a case that fires and a near miss that stays quiet."""

from __future__ import annotations

import polars as pl
import pytest

from nccl_forensics.model import Finding
from nccl_forensics.rules import Rule
from nccl_forensics.rules.gpu_fault import gpu_fault
from nccl_forensics.rules.gpu_throttled import gpu_throttled
from nccl_forensics.rules.memlock_limit import memlock_limit
from nccl_forensics.rules.node_failed import node_failed
from nccl_forensics.rules.nvlink_fault import nvlink_fault
from nccl_forensics.rules.out_of_memory import out_of_memory
from nccl_forensics.rules.pcie_degraded import pcie_degraded
from nccl_forensics.rules.process_stopped import process_stopped
from nccl_forensics.rules.shm_exhausted import shm_exhausted
from nccl_forensics.views.placements import PLACEMENTS_SCHEMA
from tests.rules.host_frames import SECOND, check, processes, table, xid

ALL = (gpu_fault, gpu_throttled, memlock_limit, node_failed, nvlink_fault, out_of_memory, pcie_degraded, process_stopped, shm_exhausted)


@pytest.mark.parametrize("rule", [r for r in ALL if not r.inputs.required], ids=lambda r: r.name)
def test_without_evidence_a_rule_says_nothing(rule: Rule):
    assert check(rule) == []


# ---- NVLink ----


def test_a_fatal_nvlink_error_names_gpu_link_and_rank():
    rows = table("xids", xid(74, link=14, message="NVLink: fatal error detected on link 14(0x0)"))
    [finding] = check(nvlink_fault, xids=rows, processes=processes((2, "node7", 1, "17000")))
    assert (finding.severity, finding.ranks, finding.culprits[0].link) == ("critical", (2,), "NVLink 14")


def test_a_nonfatal_nvlink5_event_is_only_watched():
    rows = table("xids", xid(149, unit="NETIR_BER_EVENT", fatal=False, link=3, message="NETIR_BER_EVENT Nonfatal XC0 i0 Link 03 (0x0 0x1)"))
    [finding] = check(nvlink_fault, xids=rows)
    assert finding.severity == "warning"


def test_links_of_a_gpu_that_fell_off_the_bus_are_its_consequence():
    assert check(nvlink_fault, xids=table("xids", xid(79), xid(74, message="fatal error"))) == []


def switch(second: int) -> pl.LazyFrame:
    return table(
        "sxids",
        {
            "code": 20034,
            "host": "node7",
            "bus_id": "0000:86:00.0",
            "link": 30,
            "fatal": True,
            "time_raw_ns": second * SECOND,
            "reporter": "kernel",
        },
    )


def test_a_switch_link_that_goes_down_is_a_fault_unless_a_gpu_fell_off_just_before():
    [finding] = check(nvlink_fault, sxids=switch(12))
    assert finding.severity == "critical"
    assert check(nvlink_fault, sxids=switch(12), xids=table("xids", xid(79, second=0))) == []
    assert len(check(nvlink_fault, sxids=switch(500), xids=table("xids", xid(79, second=0)))) == 1
    assert len(check(nvlink_fault, sxids=switch(12), xids=table("xids", xid(79, second=0, host="node8")))) == 1


def test_corrected_switch_errors_are_quiet():
    assert check(nvlink_fault, sxids=table("sxids", {"code": 11012, "host": "node7", "bus_id": "0000:86:00.0", "reporter": "kernel"})) == []


def links(down: int, name: str = "NVIDIA L40S") -> pl.LazyFrame:
    rows = []
    for gpu in range(2):
        for link in range(4):
            up = not (gpu == 1 and link < down)
            rows.append(
                {
                    "host": "node7",
                    "gpu_index": gpu,
                    "uuid": f"GPU-{gpu}",
                    "name": name,
                    "link": link,
                    "active": up,
                    "rate_gb_s": 25.0 if up else None,
                }
            )
    return table("nvlinks", *rows)


def test_a_gpu_with_fewer_links_than_its_neighbour_is_named():
    [finding] = check(nvlink_fault, nvlinks=links(1))
    assert (finding.severity, finding.confidence) == ("error", "high")
    assert "3 of 4" in finding.title
    assert len(finding.evidence) == 1


def test_a_gpu_without_any_link_is_critical_and_equal_gpus_are_quiet():
    [finding] = check(nvlink_fault, nvlinks=links(4))
    assert finding.severity == "critical"
    assert check(nvlink_fault, nvlinks=links(0)) == []


@pytest.mark.parametrize(
    ("rate", "told"), [(20.0, ["0000:01:00.0 of node7 has NVLinks at 20 GB/s where its neighbours run at 25"]), (23.0, [])]
)
def test_a_gpu_whose_links_are_a_good_deal_slower_than_its_neighbours_is_named(rate: float, told: list[str]) -> None:
    speed = pl.when(pl.col("gpu_index") == 1).then(rate).otherwise("rate_gb_s")
    found = check(nvlink_fault, nvlinks=links(0).with_columns(bus_id=pl.format("0000:0{}:00.0", "gpu_index"), rate_gb_s=speed))
    assert [f.title.removeprefix("GPU ") for f in found] == told
    assert [f.summary for f in found] == ["NVIDIA L40S. All of its links are up." for _ in told]


def test_the_last_gpu_of_a_listing_that_was_cut_off_has_no_fewer_links():
    def listed(*gpus: int) -> pl.LazyFrame:
        rows = [
            {"host": "node7", "gpu_index": g, "name": "NVIDIA L40S", "link": n, "active": True} for g in gpus for n in range(2 if g else 4)
        ]
        return table("nvlinks", *({"line_no": n} | row for n, row in enumerate(rows, 1)))

    assert check(nvlink_fault, nvlinks=listed(0, 1)) == []
    [finding] = check(nvlink_fault, nvlinks=listed(1, 0))
    assert "2 of 4" in finding.title


def test_an_index_of_nvidia_smi_leads_to_the_rank_on_that_gpu():
    seats = processes((6, "node7", 1, "17000"), (7, "node7", 2, "3b000")).with_columns(gpu_index=pl.Series([0, 1], dtype=pl.Int32))
    [finding] = check(nvlink_fault, nvlinks=links(1), processes=seats)
    assert finding.ranks == (7,)


def test_all_gpus_below_their_model_are_told_against_the_model():
    found = check(nvlink_fault, nvlinks=links(0, "NVIDIA A100-SXM4-80GB"))
    assert len(found) == 2
    assert all("4 of 12" in f.title for f in found)


def matrix(weak: str | None) -> pl.LazyFrame:
    names = [f"GPU{i}" for i in range(4)]
    rows = []
    for a in names:
        for b in names:
            relation = "X" if a == b else "SYS" if weak in (a, b) else "NV18"
            rows.append({"host": "node7", "a": a, "b": b, "relation": relation, "nvlinks": 18 if relation == "NV18" else None})
    return table("gpu_topology", *rows)


def xgmi_matrix(*without: int) -> pl.LazyFrame:
    pairs = [(a, b) for a in range(8) for b in range(8) if a != b]
    kinds = [{"a": f"GPU{a}", "b": f"GPU{b}", "relation": "PCIE" if {a, b} & set(without) else "XGMI", "host": "node7"} for a, b in pairs]
    return table("gpu_topology", *kinds)


def test_a_gpu_off_xgmi_and_errors_of_xgmi_are_named():
    [finding] = check(nvlink_fault, gpu_topology=xgmi_matrix(3))
    assert finding.title == "GPU3 of node7 reaches 7 of 7 GPUs without xGMI (PCIE)"
    counter = {"counter": "xGMI errors", "value": 2.0, "raw": "2", "gpu_index": 1, "host": "node7"}
    [errors] = check(nvlink_fault, nvlink_counters=table("nvlink_counters", counter))
    assert errors.culprits[0].gpu == "index 1"


def test_gpus_all_joined_by_xgmi_in_two_halves_and_without_errors_are_quiet():
    assert check(nvlink_fault, gpu_topology=xgmi_matrix()) == []
    assert check(nvlink_fault, gpu_topology=xgmi_matrix(0, 1, 2, 3, 4)) == []
    none = {"counter": "xGMI errors", "value": 0.0, "raw": "0", "gpu_index": 1}
    assert check(nvlink_fault, nvlink_counters=table("nvlink_counters", none)) == []


def test_one_gpu_off_the_nvlink_fabric_stands_out_in_the_matrix():
    [finding] = check(nvlink_fault, gpu_topology=matrix("GPU2"))
    assert finding.culprits[0].gpu == "GPU2"
    assert check(nvlink_fault, gpu_topology=matrix(None)) == []


def test_gpus_without_any_nvlink_between_them_are_told_where_their_model_has_some():
    pairs = [(a, b) for a in range(8) for b in range(8) if a != b]
    none = table("gpu_topology", *({"a": f"GPU{a}", "b": f"GPU{b}", "relation": "PHB", "host": "node7"} for a, b in pairs))

    def of(name: str) -> list[Finding]:
        return check(
            nvlink_fault, gpu_topology=none, gpus=table("gpus", *({"host": "node7", "gpu_index": n, "name": name} for n in range(8)))
        )

    [finding] = of("NVIDIA H100 80GB HBM3")
    assert (finding.title, finding.hosts) == ("no two GPUs of node7 are joined by NVLink, of a model that has 18 each", ("node7",))
    assert of("NVIDIA L40S") == []


def test_recovery_errors_that_grow_between_two_samples_of_a_link_are_an_error():
    def sample(source: int, value: float) -> dict[str, object]:
        return {
            "source_id": source,
            "host": "node7",
            "uuid": "GPU-1",
            "gpu_index": 1,
            "link": 4,
            "counter": "Recovery Errors",
            "value": value,
        }

    [grown] = check(nvlink_fault, nvlink_counters=table("nvlink_counters", *(sample(n, v) | {"raw": str(v)} for n, v in enumerate((1, 9)))))
    assert (grown.severity, grown.title) == ("error", "GPU index 1 of node7: NVLink error counters grow (link 4 Recovery Errors 9)")
    [still] = check(nvlink_fault, nvlink_counters=table("nvlink_counters", *(sample(n, 9.0) | {"raw": "9"} for n in (0, 1))))
    assert still.severity == "warning"


def test_recovery_errors_and_outliers_are_counted_and_small_noise_is_not():
    def counter(value: float, name: str) -> list[dict[str, object]]:
        return [
            {"host": "node7", "gpu_index": 0, "uuid": "GPU-0", "link": i, "counter": name, "value": value if i == 5 else 1.0, "raw": "1"}
            for i in range(6)
        ]

    quiet = counter(0.0, "Recovery Errors")
    for row in quiet:
        row["value"] = 0.0
    assert check(nvlink_fault, nvlink_counters=table("nvlink_counters", *quiet)) == []
    assert check(nvlink_fault, nvlink_counters=table("nvlink_counters", *counter(50.0, "Replay Errors"))) == []
    [finding] = check(nvlink_fault, nvlink_counters=table("nvlink_counters", *counter(5e6, "Replay Errors")))
    assert finding.severity == "warning"


# ---- PCIe ----


def lanes(*widths: int, load: float = 0.0, gen: int = 5) -> pl.LazyFrame:
    return table(
        "gpus",
        *(
            {
                "host": "node7",
                "bus_id": f"0000:{i + 16:02x}:00.0",
                "name": "H100",
                "pcie_width": w,
                "pcie_width_max": 16,
                "pcie_gen": gen,
                "pcie_gen_max": 5,
                "utilization_percent": load,
            }
            for i, w in enumerate(widths)
        ),
    )


def test_one_gpu_with_fewer_lanes_than_its_neighbours_is_an_error():
    [finding] = check(pcie_degraded, gpus=lanes(16, 8, 16))
    assert (finding.severity, finding.culprits[0].gpu) == ("error", "0000:11:00.0")


def test_all_gpus_alike_are_how_the_machine_is_built():
    assert [f.severity for f in check(pcie_degraded, gpus=lanes(8, 8))] == ["warning", "warning"]
    card = {"role": "nic", "device": "ConnectX-7", "bus_id": "0000:18:00.0", "width_max": 16}
    two = [card | {"source_id": n, "host": host, "width": width} for n, (host, width) in enumerate((("node7", 8), ("node8", 16)))]
    [beside] = check(pcie_degraded, pcie_links=table("pcie_links", *two))
    assert (beside.severity, beside.confidence, beside.hosts) == ("error", "medium", ("node7",))
    assert check(pcie_degraded, gpus=lanes(16, 16)) == []


def test_a_low_generation_counts_only_under_load():
    assert check(pcie_degraded, gpus=lanes(16, 16, gen=1)) == []
    assert len(check(pcie_degraded, gpus=lanes(16, 16, gen=3, load=99.0))) == 2


@pytest.mark.parametrize(("role", "cause", "gpu"), [("gpu", "gpu-fault", "0000:3b:00.0"), ("nic", "pcie-degraded", None)])
def test_a_device_that_lspci_finds_no_more_has_fallen_off_the_bus(role: str, cause: str | None, gpu: str | None) -> None:
    card = {"host": "node7", "bus_id": "0000:3b:00.0", "device": "a card", "role": role, "width": 16, "width_max": 16}
    [finding] = check(pcie_degraded, pcie_links=table("pcie_links", card | {"gone": True}), processes=processes((5, "node7", 1, "3b000")))
    assert (finding.severity, finding.confidence, finding.cause) == ("critical", "high", cause)
    assert (finding.culprits[0].gpu, finding.culprits[0].rank) == (gpu, 5)
    assert check(pcie_degraded, pcie_links=table("pcie_links", card | {"gone": False})) == []


def test_a_gpu_with_fewer_lanes_than_others_of_its_kind_is_named_by_lspci_too() -> None:
    cards = [
        {"host": "node7", "bus_id": f"0000:{n}1:00.0", "device": "H100", "role": "gpu", "width": width, "width_max": 16}
        for n, width in enumerate((16, 8, 16))
    ]
    [finding] = check(pcie_degraded, pcie_links=table("pcie_links", *cards))
    assert (finding.severity, finding.confidence, finding.culprits[0].gpu) == ("error", "high", "0000:11:00.0")
    assert check(pcie_degraded, pcie_links=table("pcie_links", cards[0], cards[2])) == []


def test_management_ports_are_not_judged():
    rows = table("pcie_links", {"host": "n", "bus_id": "0000:01:00.0", "role": "nic", "width": 1, "width_max": 2, "gone": False})
    assert check(pcie_degraded, pcie_links=rows) == []


def event(kind: str, **more: object) -> dict[str, object]:
    return {"host": "node7", "kind": kind, "severity": "fatal", "message": f"{kind} text", **more}


def test_a_storm_of_corrected_errors_is_told_and_a_few_are_not():
    def errors(count: int) -> pl.LazyFrame:
        return table(
            "kernel_events",
            *(event("pcie-error", severity="info", state="corrected", device="0000:17:00.0", time_raw_ns=i * SECOND) for i in range(count)),
        )

    assert check(pcie_degraded, kernel_events=errors(10)) == []
    [finding] = check(pcie_degraded, kernel_events=errors(200))
    assert finding.severity == "warning"


def test_a_link_that_goes_down_above_a_device_is_critical():
    [finding] = check(pcie_degraded, kernel_events=table("kernel_events", event("pcie-down", device="0000:16:01.0")))
    assert finding.severity == "critical"


# ---- clocks ----


def clocks(**columns: object) -> pl.LazyFrame:
    peers = [
        {"host": "node7", "bus_id": f"0000:{i:02x}:00.0", "name": "H100", "sm_clock_mhz": 1900.0, "utilization_percent": 100.0}
        for i in range(3)
    ]
    return table("gpus", *peers, peers[0] | {"bus_id": "0000:99:00.0"} | columns)


@pytest.mark.parametrize(
    "columns",
    [{"throttle": ["hw-slowdown", "hw-thermal"]}, {"throttle": ["power-brake"]}, {"sm_clock_mhz": 900.0}, {"temperature_margin_c": 0.0}],
)
def test_a_gpu_that_is_held_down_is_named(columns: dict[str, object]):
    [finding] = check(gpu_throttled, gpus=clocks(**columns))
    assert (finding.severity, finding.culprits[0].gpu) == ("error", "0000:99:00.0")


@pytest.mark.parametrize(
    "columns",
    [
        {"throttle": ["sw-power-cap"]},
        {"throttle": ["idle"]},
        {"sm_clock_mhz": 345.0, "utilization_percent": 0.0},
        {"temperature_margin_c": 20.0},
    ],
)
def test_what_is_normal_stays_quiet(columns: dict[str, object]):
    assert check(gpu_throttled, gpus=clocks(**columns)) == []


def job_figure(test: str, percent: float) -> pl.LazyFrame:
    figure = {"category": "Job statistics", "test": test, "number": percent, "gpu_index": 3, "host": "node7", "status": "warn"}
    return table("dcgm_results", figure)


def test_a_gpu_slowed_by_heat_for_a_part_of_its_job_is_named():
    [finding] = check(gpu_throttled, dcgm_results=job_figure("slowdown by heat", 12.5))
    assert (finding.severity, finding.hosts, finding.culprits[0].gpu) == ("warning", ("node7",), "index 3")
    assert "12.5 % of it in a slowdown by heat" in finding.title


def test_a_short_slowdown_and_other_figures_of_a_job_are_quiet():
    assert check(gpu_throttled, dcgm_results=job_figure("slowdown by heat", 0.5)) == []
    assert check(gpu_throttled, dcgm_results=job_figure("PCIe replays", 50.0)) == []


# ---- memory ----


def kill(**more: object) -> pl.LazyFrame:
    return table(
        "oom_kills",
        {
            "host": "node7",
            "pid": 2211,
            "comm": "pt_main_thread",
            "anon_kb": 1 << 20,
            "constraint": "CONSTRAINT_NONE",
            "message": "m",
            **more,
        },
    )


def test_a_killed_rank_is_named_by_its_pid():
    [finding] = check(out_of_memory, oom_kills=kill(), processes=processes((6, "node7", 2211, "17000")))
    assert (finding.severity, finding.confidence, finding.ranks) == ("critical", "high", (6,))
    assert "the host ran out of memory" in finding.title


def test_of_a_host_where_one_task_was_killed_the_kernels_kill_is_of_its_rank() -> None:
    def ranks(*killed: int) -> tuple[int, ...]:
        ends = [
            {
                "kind": "task",
                "host": "node7" if r < 16 else "node8",
                "rank": r,
                "signal": "SIGKILL" if r in killed else "SIGABRT",
                "message": "m",
            }
            for r in range(8, 24)
        ]
        return check(out_of_memory, oom_kills=kill(), worker_exits=table("worker_exits", *ends))[0].ranks

    assert ranks(12) == (12,)
    assert ranks(12, 13) == (), "which of two it was is not told"
    assert ranks(17) == (), "on another host"


def test_of_a_host_where_the_launcher_found_one_rank_killed_the_kernels_kill_is_of_it() -> None:
    def ranks(*killed: int) -> tuple[int, ...]:
        ends = [{"kind": "failure", "host": "node7", "rank": r, "pid": 60 + r, "signal": "SIGKILL"} for r in killed]
        return check(out_of_memory, oom_kills=kill(), worker_exits=table("worker_exits", *ends))[0].ranks

    assert ranks(11) == (11,)
    assert ranks(11, 12) == ()


def test_a_cgroup_limit_is_told_from_a_full_host():
    [finding] = check(out_of_memory, oom_kills=kill(constraint="CONSTRAINT_MEMCG", limit_kb=33554432))
    assert "32.0 GiB" in finding.title


def test_workers_that_rays_monitor_killed_are_named_by_their_pid_where_it_is_told():
    counted = {"kind": "memory-monitor", "host": "10.9.0.4", "message": "2 Workers killed"}
    [finding] = check(out_of_memory, worker_exits=table("worker_exits", counted))
    assert (finding.severity, finding.confidence, finding.hosts, finding.ranks) == ("critical", "medium", ("10.9.0.4",), ())
    named = table("worker_exits", {**counted, "host": "node7", "pid": 2211})
    [finding] = check(out_of_memory, worker_exits=named, processes=processes((6, "node7", 2211, "17000")))
    assert (finding.confidence, finding.ranks) == ("high", (6,))
    assert check(out_of_memory, worker_exits=table("worker_exits", {**counted, "kind": "lost"})) == []


def test_who_asked_for_memory_in_a_log_that_breaks_off_is_not_named_as_killed():
    [finding] = check(out_of_memory, oom_kills=kill(comm=None, pid=None, invoked_by="python3", anon_kb=None))
    assert (finding.severity, finding.confidence, finding.culprits) == ("critical", "medium", ())
    assert "when python3 asked" in finding.title
    [other] = check(out_of_memory, oom_kills=kill(comm=None, pid=None, invoked_by="httpd", anon_kb=None))
    assert other.severity == "warning"


def test_the_kill_of_a_stranger_is_only_a_warning():
    [finding] = check(out_of_memory, oom_kills=kill(comm="httpd", pid=5))
    assert finding.severity == "warning"


@pytest.mark.parametrize(("pid", "severity"), [(77, "critical"), (78, "warning")], ids=["named by the job", "another one"])
def test_a_killed_process_of_any_name_is_the_jobs_where_the_job_says_that_it_was_killed(pid: int, severity: str) -> None:
    said = {"type": "RuntimeError", "signature": "worker-killed", "message": "DataLoader worker (pid(s) 76, 77) exited unexpectedly"}
    [finding] = check(out_of_memory, oom_kills=kill(comm="reader", pid=pid), raised=table("exceptions", said))
    assert finding.severity == severity


def test_gpu_memory_that_ran_out_is_told_apart_from_host_memory():
    rows = table(
        "exceptions",
        {"message": "CUDA out of memory. Tried to allocate 2.00 GiB", "rank": 3},
        {"message": "Cannot allocate memory", "type": "OSError", "rank": 4},
        {"message": "something else", "rank": 5},
    )
    assert [(f.title.split(" ")[0], f.ranks) for f in check(out_of_memory, raised=rows)] == [("GPU", (3,)), ("host", (4,))]


def test_a_bus_error_of_the_data_loader_speaks_of_shared_memory():
    rows = table(
        "exceptions",
        {
            "message": "DataLoader worker (pid 9) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory.",
            "rank": 1,
        },
    )
    [finding] = check(shm_exhausted, exceptions=rows)
    assert (finding.severity, finding.ranks) == ("critical", (1,))


def shm(**more: object) -> pl.LazyFrame:
    return table("filesystems", {"host": "node7", "mount": "/dev/shm", "size_kb": 65536.0, "used_percent": 100.0, "inodes": False, **more})


def test_a_full_dev_shm_that_nobody_complains_about_is_an_error_and_a_roomy_one_is_quiet():
    assert [f.severity for f in check(shm_exhausted, filesystems=shm())] == ["error"]
    assert [f.severity for f in check(shm_exhausted, filesystems=shm(used_percent=1.0))] == ["warning"]
    assert check(shm_exhausted, filesystems=shm(size_kb=6.4e7, used_percent=1.0)) == []
    assert check(shm_exhausted, filesystems=shm(mount="/")) == []


def test_a_low_limit_of_locked_memory_alone_is_a_risk():
    low = {"host": "node7", "name": "memlock", "soft": 65536.0, "unlimited": False}
    assert [f.severity for f in check(memlock_limit, limits=table("limits", low))] == ["warning"]
    assert check(memlock_limit, limits=table("limits", low | {"soft": None, "unlimited": True})) == []


def test_a_refused_registration_names_the_host_and_cites_the_limit():
    said = table("exceptions", {"hint_host": "node7", "message": "Call to ibv_reg_mr failed with error Cannot allocate memory"})
    low = table("limits", {"host": "node7", "name": "memlock", "soft": 65536.0, "unlimited": False})
    [finding] = check(memlock_limit, exceptions=said, limits=low, processes=processes((8, "node7", 1, "17000"), (0, "node6", 2, "17000")))
    assert (finding.severity, finding.hosts, finding.ranks) == ("critical", ("node7",), (8,))
    assert len(finding.evidence) == 2


# ---- nodes ----


def test_a_panic_takes_all_ranks_of_its_host():
    [finding] = check(
        node_failed,
        kernel_events=table("kernel_events", event("panic"), event("oops")),
        processes=processes((4, "node7", 1, "1"), (5, "node7", 2, "2"), (0, "node6", 3, "1")),
    )
    assert (finding.severity, finding.ranks, finding.hosts) == ("critical", (4, 5), ("node7",))


def test_a_short_soft_lockup_is_a_warning_and_a_long_one_stops_the_node():
    short = event("lockup", state="soft", value=22.0, pid=7, comm="python3")
    assert [f.severity for f in check(node_failed, kernel_events=table("kernel_events", short))] == ["warning"]
    assert [f.severity for f in check(node_failed, kernel_events=table("kernel_events", short | {"value": 120.0}))] == ["critical"]


def test_storage_that_does_not_answer_counts_when_tasks_of_the_job_hang():
    nfs = event("storage-hang", severity="degraded", ifname="10.1.2.3", state="down")
    hung = event("hung-task", severity="suspect", pid=4242, comm="python", value=120.0)
    assert [f.severity for f in check(node_failed, kernel_events=table("kernel_events", nfs))] == ["warning"]
    [finding] = check(node_failed, kernel_events=table("kernel_events", nfs, hung), processes=processes((3, "node7", 4242, "1")))
    assert (finding.severity, finding.ranks) == ("critical", (3,))
    back = event("storage-ok", severity="info", ifname="10.1.2.3", state="up")
    assert [f.severity for f in check(node_failed, kernel_events=table("kernel_events", nfs, hung, back))] == ["error"]


def test_one_hung_task_of_a_stranger_is_quiet():
    assert (
        check(
            node_failed,
            kernel_events=table("kernel_events", event("hung-task", severity="suspect", pid=1, comm="jbd2/sda1-8", value=120.0)),
        )
        == []
    )


# ---- time ----


def window(first: int, last: int) -> pl.LazyFrame:
    return pl.LazyFrame({"first_raw_ns": [first * SECOND], "last_raw_ns": [last * SECOND], "stalled_raw_ns": [None], "yearless": [False]})


def test_an_xid_of_last_week_is_named_and_not_judged():
    week = 7 * 86400
    rows = table("xids", xid(31, second=1000, time_kind="local-unzoned"))
    [finding] = check(gpu_fault, xids=rows, job_times=window(week, week + 600))
    assert finding.severity == "info"
    assert "outside the time of the job" in finding.title
    [finding] = check(gpu_fault, xids=rows, job_times=window(2000, 3000))
    assert finding.severity == "critical"


def test_an_event_without_wall_time_is_given_the_benefit_of_doubt():
    rows = table("xids", xid(79, second=1000, time_kind="monotonic"))
    assert [f.severity for f in check(gpu_fault, xids=rows, job_times=window(10**9, 10**9))] == ["critical"]


def test_a_time_without_year_is_taken_in_the_year_of_the_job():
    may_6_of_2000, may_6_of_2024 = 957571200, 1714953600
    rows = table("xids", xid(79, second=may_6_of_2000, time_kind="local-yearless"))
    assert [f.severity for f in check(gpu_fault, xids=rows, job_times=window(may_6_of_2024, may_6_of_2024))] == ["critical"]
    later = may_6_of_2024 + 30 * 86400
    assert [f.severity for f in check(gpu_fault, xids=rows, job_times=window(later, later))] == ["info"]


def test_the_same_fault_of_the_program_on_many_gpus_is_no_proof_against_them():
    rows = table("xids", *(xid(31, bus_id=f"0000:{i:02x}:00.0") for i in range(4)))
    [finding] = check(gpu_fault, xids=rows)
    assert finding.confidence == "low"


# ---- processes ----


def ps(state: str, wchan: str | None = None, command: str = "python train.py") -> pl.LazyFrame:
    return table("host_processes", {"host": "node7", "pid": 4242, "state": state, "wchan": wchan, "command": command})


def test_a_stopped_rank_is_named():
    [finding] = check(process_stopped, host_processes=ps("Tl"), processes=processes((3, "node7", 4242, "1")))
    assert (finding.severity, finding.confidence, finding.ranks) == ("critical", "high", (3,))


def stopped_beside(known: dict[int, int], parents: tuple[int, ...] = (7, 7, 7), ranks: tuple[int, ...] = (0, 1, 2)) -> tuple[int, ...]:
    """Ranks named where pids 40, 41 and 42 have these parents, 41 is stopped, ``known`` gives the ranks of pids and files are there of
    ``ranks``."""
    listing = [
        {"pid": 40 + n, "ppid": parent, "state": "Tl" if n == 1 else "Sl", "command": "python -m train"} for n, parent in enumerate(parents)
    ]
    told = processes(*((rank, "node7", pid, "1") for pid, rank in known.items()))
    files = pl.LazyFrame({"rank": list(ranks)}, schema_overrides={"rank": pl.Int32()})
    [finding] = check(process_stopped, host_processes=table("host_processes", *listing), processes=told, source_ranks=files)
    return finding.ranks


def test_a_stopped_process_is_the_one_rank_without_a_pid_where_its_siblings_have_theirs():
    assert stopped_beside({40: 0, 42: 2}) == (1,)
    assert stopped_beside({40: 0}) == (), "another sibling is not known either"
    assert stopped_beside({40: 0, 42: 2}, ranks=(0, 1, 2, 3)) == (), "two ranks without a pid"
    assert stopped_beside({40: 0, 42: 2}, parents=(7, 8, 7)) == (), "started by somebody else"


def test_a_rank_that_hangs_in_a_file_server_is_told_from_one_that_only_reads():
    [finding] = check(process_stopped, host_processes=ps("Dl", "nfs_wait_bit_killable"))
    assert "file system" in finding.title
    assert check(process_stopped, host_processes=ps("Dl", "folio_wait_bit")) == []
    assert check(process_stopped, host_processes=ps("Sl", "futex_wait")) == []


def test_a_traced_process_is_doubtful_where_a_sampler_was_at_work():
    assert [f.severity for f in check(process_stopped, host_processes=ps("t"))] == ["error"]
    assert [f.severity for f in check(process_stopped, host_processes=ps("t"), stacks=table("stacks", {"pid": 1}))] == ["warning"]


def test_a_stopped_stranger_is_quiet():
    assert check(process_stopped, host_processes=ps("T", command="vim notes.txt")) == []


def test_a_gpu_whose_rank_only_its_neighbours_tell_is_named_with_their_lines() -> None:
    seat = {"host": "node8", "bus_id": "0000:17:00.0", "rank": 9, "source_id": 5, "line_no": 11, "after_source_id": 6, "after_line_no": 12}
    place = pl.DataFrame([seat], schema=PLACEMENTS_SCHEMA).lazy()
    states = table("gpus", {"bus_id": "0000:17:00.0", "throttle": ["hw-thermal"], "name": "NVIDIA H100"})
    where = pl.LazyFrame({"source_id": [0], "host": ["node8"]}, schema_overrides={"source_id": pl.UInt32()})
    [finding] = check(gpu_throttled, gpus=states, source_hosts=where, placements=place)
    assert finding.ranks == (9,)
    assert {(e.source_id, e.line) for e in finding.evidence} >= {(5, 11), (6, 12)}
    assert "another order" in finding.would_refute[-1]
    [without] = check(gpu_throttled, gpus=states, source_hosts=where)
    assert without.ranks == ()


def pod(name: str = "worker-0", **more: object) -> pl.LazyFrame:
    return table(
        "pods", {"pod": name, "status": "OOMKilled", "reason": "OOMKilled", "node": "node7", "namespace": "train", "last": False, **more}
    )


def test_a_pod_that_was_killed_for_memory_is_named_with_its_rank():
    [alone] = check(out_of_memory, pods=pod())
    assert alone.title == "the container of pod worker-0 on node7 was killed: its memory limit was met (OOMKilled)"
    assert (alone.severity, alone.confidence, alone.hosts) == ("critical", "medium", ("worker-0",))
    [known] = check(out_of_memory, pods=pod(last=True), processes=processes((3, "worker-0", 99, "17000")))
    assert (known.severity, known.ranks) == ("critical", (3,))


def test_pods_of_the_system_of_no_rank_or_started_again_do_not_explain_a_stop():
    strange = processes((3, "worker-9", 99, "17000"))
    for rows, job in ((pod(namespace="kube-system"), None), (pod(last=True), None), (pod(), strange)):
        [finding] = check(out_of_memory, pods=rows, processes=job)
        assert (finding.severity, finding.confidence, finding.culprits) == ("warning", "low", ())
    assert check(out_of_memory, pods=table("pods", {"pod": "worker-0", "status": "Running"})) == []


def test_a_sibling_of_the_pods_of_known_ranks_is_the_jobs_own():
    both = pl.concat([pod(), table("pods", {"pod": "worker-1", "status": "Error", "node": "node8", "namespace": "train"})])
    [by_node] = check(out_of_memory, pods=both, processes=processes((3, "node8", 99, "17000")))
    assert (by_node.severity, by_node.hosts, by_node.ranks) == ("critical", ("node7",), ())
    [by_name] = check(out_of_memory, pods=both, processes=processes((3, "worker-1", 99, "17000")))
    assert (by_name.severity, by_name.hosts) == ("critical", ("worker-0",))
    other = pl.concat([pod(), table("pods", {"pod": "eval-1", "status": "Error", "node": "node8", "namespace": "train"})])
    [strange] = check(out_of_memory, pods=other, processes=processes((3, "node8", 99, "17000")))
    assert strange.severity == "warning"


def test_a_kill_that_is_reported_as_an_event_is_named_by_its_process():
    said = "Memory cgroup out of memory: Killed process 345646 (python) total-vm:1641384kB"
    event = {"reason": "OOMKilling", "object": "node/node7", "message": said}
    [finding] = check(out_of_memory, pod_events=table("pod_events", event))
    assert finding.title == "the kernel killed python (pid 345646) on node7: OOMKilling"
    assert (finding.severity, finding.hosts) == ("critical", ("node7",))
    [other] = check(out_of_memory, pod_events=table("pod_events", {**event, "message": "victim process: fluentd, pid: 12"}))
    assert other.severity == "warning"
    assert check(out_of_memory, pod_events=table("pod_events", {**event, "reason": "Pulled"})) == []


def test_one_kill_told_by_kernel_kubelet_and_agent_is_one_cause():
    said = "Memory cgroup out of memory: Killed process 2211 (python) total-vm:1641384kB"
    event = table("pod_events", {"reason": "OOMKilling", "object": "node/node7", "message": said})
    assert [f.severity for f in check(out_of_memory, oom_kills=kill(), pods=pod(), pod_events=event)] == ["critical", "info", "info"]
    assert [f.severity for f in check(out_of_memory, pods=pod(), pod_events=event)] == ["critical", "info"]


# ---- what a listing of a host lacks ----


def listed(*pids: int) -> pl.LazyFrame:
    return table("host_processes", *({"host": "node7", "pid": pid, "state": "Rl", "command": "python -m train"} for pid in pids))


FOUR = processes(*((n, "node7", 40 + n, str(n)) for n in range(4)))
HUNG = pl.LazyFrame({"sign": ["watchdog timeouts"]})


def gave_up(*ranks: int) -> pl.LazyFrame:
    return pl.LazyFrame({"rank": list(ranks)})


def test_a_rank_whose_process_a_listing_of_its_host_lacks_is_gone():
    [finding] = check(process_stopped, host_processes=listed(40, 41, 42), processes=FOUR, failures=HUNG, watchdog_calls=gave_up(0, 1, 2))
    assert (finding.cause, finding.severity, finding.ranks) == ("rank-died", "critical", (3,))
    assert check(process_stopped, host_processes=listed(40, 41, 42), processes=FOUR) == [], "the job is over"
    told = gave_up(0, 1, 2, 3)
    assert check(process_stopped, host_processes=listed(40, 41, 42), processes=FOUR, failures=HUNG, watchdog_calls=told) == []
    assert check(process_stopped, host_processes=listed(40), processes=FOUR, failures=HUNG, watchdog_calls=gave_up(0)) == [], "a part"


def test_a_traced_rank_that_the_others_gave_up_on_stops_the_job():
    rows = table("host_processes", {"host": "node7", "pid": 43, "state": "t", "command": "python -m train"})
    others = {"host_processes": rows, "processes": FOUR, "failures": HUNG}
    [finding] = check(process_stopped, **others, watchdog_calls=gave_up(0, 1, 2))
    assert (finding.severity, finding.ranks) == ("critical", (3,))
    assert [f.severity for f in check(process_stopped, **others, watchdog_calls=gave_up(0, 1, 2, 3))] == ["error"]
