"""What the kernel says of network cards, tables, disks, processes and drivers: each rule has a case that fires and a near miss."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from nccl_forensics import rules
from nccl_forensics.model import Finding
from nccl_forensics.reading.source import read_source
from nccl_forensics.rules.dma_blocked import dma_blocked
from nccl_forensics.rules.host_differences import driver_refused
from nccl_forensics.rules.host_tables import host_tables_full
from nccl_forensics.rules.nic_events import nic_events
from nccl_forensics.rules.node_failed import node_failed
from nccl_forensics.rules.out_of_memory import out_of_memory
from nccl_forensics.rules.pcie_degraded import pcie_degraded
from nccl_forensics.rules.rank_died import crash_in_kernel_log
from nccl_forensics.tables import TABLES
from nccl_forensics.views.failures import FAILURES
from tests.rules.host_frames import SECOND, check, processes, table

JOB = 1_758_607_200  # 2025-09-23 06:00:00 UTC, where the job begins; it runs for an hour
TIMES = pl.LazyFrame(
    {"first_raw_ns": [JOB * SECOND], "last_raw_ns": [(JOB + 3600) * SECOND], "stalled_raw_ns": [None], "yearless": [False]}
)
PEOPLE = processes((3, "node7", 4711, "0000:41:00.0"))
FAILED = pl.LazyFrame([{"sign": "watchdog timeouts", "count": 1}], schema_overrides=FAILURES)
WELL = pl.LazyFrame(schema=FAILURES)
NIC = "mlx5_core 0000:5e:00.0"
HEALTH = f"{NIC}: print_health_info:458:(pid 0): synd 0x8: unrecoverable hardware error"


def log(*lines: str, at: str = "06:30") -> pl.LazyFrame:
    """The events of an ISO-dated kernel log of node7, one line a second; the time of the first is ``at``."""
    hour, minute = at.split(":")
    text = "\n".join(f"2025-09-23T{hour}:{minute}:{n:02}.000000+00:00 node7 kernel: {line}" for n, line in enumerate(lines))
    return _events(text)


def since_boot(*lines: str, first: int = 100_000) -> pl.LazyFrame:
    """The same with dmesg's own clock, which does not tell when that was."""
    return _events("\n".join(f"[{first + n:>7}.000000] {line}" for n, line in enumerate(lines)))


def _events(text: str) -> pl.LazyFrame:
    return read_source(text.encode()).frames["kernel_events"].with_columns(pl.lit(0, dtype=pl.UInt32()).alias("source_id")).lazy()


def nics(events: pl.LazyFrame, *, failed: bool | None = True, dated: bool = True) -> list[Finding]:
    """``failed``: None where nothing tells of a job."""
    job = {} if failed is None else {"processes": PEOPLE, "failures": FAILED if failed else WELL}
    return check(nic_events, kernel_events=events, **job, **({"job_times": TIMES} if dated and failed is not None else {}))


def grade(findings: list[Finding]) -> list[tuple[str | None, str]]:
    return [(f.severity, f.confidence) for f in findings]


# ---- network cards ----


def test_firmware_that_died_in_the_jobs_time_ends_every_connection_of_the_card():
    [finding] = nics(log(HEALTH, f"{NIC}: poll_health:852:(pid 0): device's health compromised - reached miss count"))
    assert grade([finding]) == [("critical", "high")]
    assert (finding.culprits[0].host, finding.culprits[0].nic) == ("node7", "0000:5e:00.0")
    assert len(finding.evidence) == 2
    assert finding.actions[0].action == "drain_and_reset"


def test_how_sure_it_is_depends_on_what_the_clock_tells():
    assert grade(nics(since_boot(HEALTH))) == [("critical", "medium")]
    assert grade(nics(log(HEALTH), failed=False)) == [("error", "medium")]
    assert grade(nics(log(HEALTH), failed=None)) == [("critical", "medium")]
    assert grade(nics(log(HEALTH, at="09:00"))) == [("info", "medium")]  # another time than the job's


def test_a_command_of_the_firmware_that_is_late_is_no_death():
    events = log(f"{NIC}: wait_func:964:(pid 112): ENABLE_HCA(0x104) timeout. Will cause a leak of a command resource")
    assert grade(nics(events)) == [("error", "low")]


def test_refused_reads_of_counters_are_noise():
    line = f"{NIC}: mlx5_cmd_out_err:838:(pid 7): ACCESS_REG(0x805) op_mod(0x1) failed, status bad resource(0x5), syndrome (0x305684), err(-22)"
    assert nics(log(line)) == []


def link(*states: str, name: str = "ib0") -> list[str]:
    return [f"{NIC} {name}: Link {state}" for state in states]


def test_a_link_that_stays_down_when_the_job_fails_stops_it():
    [finding] = nics(log(*link("up", "down")))
    assert grade([finding]) == [("critical", "medium")]
    assert "still down" in finding.title
    assert finding.metrics["times_down"] == 1


def test_flaps_are_counted_by_changes_and_not_by_lines():
    [finding] = nics(log(*link("up", "down", "down", "up", "up", "down", "up")))
    assert (finding.metrics["times_down"], finding.metrics["down_s"]) == (2, 3.0)
    assert "still" not in finding.title
    lost = [f"ib6: {word}" for word in ("lost carrier", "lost carrier", "Gained carrier", "Gained carrier")]
    text = "\n".join(f"Sep 23 06:18:{n:02} node7 systemd-networkd[5398]: {line}" for n, line in enumerate(lost))
    [finding] = nics(_events(text), failed=None)
    assert (finding.metrics["times_down"], finding.culprits[0].nic) == (1, "ib6")
    assert grade([finding]) == [("error", "low")]


def test_a_flap_beside_a_job_that_goes_well_is_a_warning():
    assert grade(nics(log(*link("up", "down", "up")), failed=False)) == [("warning", "medium")]


def test_of_unknown_time_a_flap_is_a_guess():
    assert grade(nics(since_boot(*link("up", "down", "up")))) == [("error", "low")]


def test_ports_without_a_cable_boots_and_virtual_interfaces_are_no_flaps():
    assert nics(since_boot(*link("down"))) == []
    assert nics(since_boot(*link("up", "down", "up"), first=20)) == []
    text = "\n".join(f"Sep 23 06:18:0{n} node7 systemd-networkd[53]: cali12ab: {w} carrier" for n, w in enumerate(("Gained", "lost")))
    assert nics(_events(text), failed=None) == []


@pytest.mark.parametrize(
    ("line", "words", "severity", "action"),
    [
        (f"{NIC}: Port module event[error]: module 0, Cable error, High Temperature", "cable or module", "error", "check_cable_or_optic"),
        ("ena 0000:00:05.0 eth0: Keep alive watchdog timeout.", "reset network card eth0", "error", "update_sw_fw"),
        (
            "bond0: (slave eth1): link status definitely down for interface, disabling slave",
            "out of its bond",
            "warning",
            "check_cable_or_optic",
        ),
        (f"{NIC}: temp_warn: High temperature on sensors with bit set 0x1", "too hot", "warning", "check_power_or_cooling"),
        ("mlx5_core: probe of 0000:3b:00.1 failed with error -22", "could not start network card 0000:3b:00.1", "warning", "update_sw_fw"),
        (f"{NIC}: probe with driver mlx5_core failed with error -12", ": error -12", "warning", "update_sw_fw"),
    ],
)
def test_what_else_a_card_may_suffer(line: str, words: str, severity: str, action: str):
    [finding] = nics(log(line))
    assert words in finding.title
    assert finding.severity == severity
    assert finding.actions[0].action == action


def test_a_card_that_starts_and_a_driver_of_something_else_are_no_event():
    assert not nics(log(f"{NIC}: Port module event: module 0, Cable plugged", "snd_hda_intel: probe of 0000:3b:00.1 failed with error -19"))


# ---- tables of the host ----


@pytest.mark.parametrize(
    ("line", "cause", "expected"),
    [
        ("nf_conntrack: nf_conntrack: table full, dropping packet", "packet-loss", ("critical", "medium")),
        ("neighbour: arp_cache: neighbor table overflow!", "connection-failed", ("critical", "medium")),
        ("VFS: file-max limit 1000000 reached", "bad-setting", ("critical", "medium")),
        ("TCP: request_sock_TCP: Possible SYN flooding on port 29500. Sending cookies.", "connection-failed", ("warning", "low")),
    ],
)
def test_a_full_table_of_the_host_bears_the_cause_of_what_it_does(line: str, cause: str, expected: tuple[str, str]):
    [finding] = check(host_tables_full, kernel_events=log(line), job_times=TIMES, failures=FAILED)
    assert finding.cause == cause
    assert grade([finding]) == [expected]
    assert finding.hosts == ("node7",)
    [well] = check(host_tables_full, kernel_events=log(line), job_times=TIMES, failures=WELL)
    assert well.severity == "warning"
    [old] = check(host_tables_full, kernel_events=log(line, at="20:00"), job_times=TIMES, failures=FAILED)
    assert old.severity == "info"


# ---- IOMMU ----


def test_dma_of_a_ranks_gpu_that_the_iommu_blocks_names_the_rank():
    line = "DMAR: [DMA Write NO_PASID] Request device [{}] fault addr 0x3ffe0000 [fault reason 0x05] PTE Write access is not set"
    inputs = {"processes": PEOPLE, "job_times": TIMES, "failures": FAILED}
    [finding] = check(dma_blocked, kernel_events=log(line.format("41:00.0")), **inputs)
    assert (finding.severity, finding.confidence, finding.ranks) == ("critical", "medium", (3,))
    [finding] = check(dma_blocked, kernel_events=log(line.format("99:00.0")), **inputs)
    assert (finding.severity, finding.confidence, finding.ranks) == ("error", "low", ())
    [finding] = check(dma_blocked, kernel_events=log(line.format("99:00.0")), **inputs | {"failures": WELL})
    assert finding.severity == "warning"


# ---- crashes ----

CRASH = "{}[4242]: segfault at 8 ip 00007f7c7ac69996 sp 00007f7c12fd7c30 error 4 in {}[7f7c7ac00000+d3d3000]"


def crashes(events: pl.LazyFrame, **more: pl.LazyFrame) -> list[Finding]:
    return check(crash_in_kernel_log, kernel_events=events, **more)


def test_a_crash_of_a_process_that_trains_is_told_with_its_library():
    [finding] = crashes(log(CRASH.format("pt_main_thread", "libnccl.so.2")))
    assert grade([finding]) == [("critical", "medium")]
    assert "in libnccl.so.2" in finding.title
    assert (finding.culprits[0].pid, finding.ranks) == (4242, ())


def test_processes_that_crash_in_one_library_fell_over_a_fault_of_software():
    def several(*pids: int) -> pl.LazyFrame:
        return log(*(CRASH.format("pt_main_thread", "libtorch_cuda.so").replace("4242", str(pid)) for pid in pids))

    [finding] = crashes(several(11, 12, 13, 14, 15))
    assert (finding.cause, finding.confidence, finding.culprits, finding.hosts) == ("software-crash", "medium", (), ())
    assert "(pid 11, 12, 13, 14 and 1 more)" in finding.title
    [two] = crashes(several(11, 12))
    assert two.cause in (None, "rank-died")
    assert [c.pid for c in two.culprits] == [11, 12]


def test_beside_ranks_whose_pids_are_known_a_crash_of_another_process_is_a_guess():
    events, job = log(CRASH.format("python3", "libc.so.6")), {"job_times": TIMES, "failures": FAILED}
    assert grade(crashes(events, processes=PEOPLE, **job)) == [("critical", "low")]
    assert grade(crashes(events, processes=processes((3, "node8", 4711, "0000:41:00.0")), **job)) == [("critical", "medium")]


def test_crashes_of_others_or_beside_a_job_that_goes_well_stop_nothing():
    assert crashes(log(CRASH.format("gnome-shell", "libgtk-3.so.0"))) == []
    job = {"processes": PEOPLE, "job_times": TIMES, "failures": WELL}
    assert grade(crashes(log(CRASH.format("python3", "libc.so.6")), **job)) == [("warning", "low")]
    assert crashes(log(CRASH.format("python3", "libc.so.6"), at="20:00"), **job) == []


# ---- drivers, disks, processors, memory, slots ----


def test_a_driver_that_refuses_a_library_names_the_host():
    line = "NVRM: API mismatch: the client has the version 535.104.05, but"
    [finding] = check(driver_refused, kernel_events=log(line), job_times=TIMES)
    assert (finding.severity, finding.confidence, finding.hosts) == ("error", "medium", ("node7",))
    assert check(driver_refused, kernel_events=log(line, at="20:00"), job_times=TIMES) == []


@pytest.mark.parametrize(
    ("line", "words", "severity"),
    [
        (
            "EXT4-fs error (device nvme1n1p1): ext4_find_entry:1455: inode #2: comm python: reading directory lblock 0",
            "local disk",
            "error",
        ),
        ("nvme nvme0: I/O 258 QID 4 timeout, aborting", "answers late", "warning"),
        ("mce: CPU12: Package temperature above threshold, cpu clock throttled (total events = 1)", "too hot", "warning"),
        ("EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0 (channel:0 slot:0)", "errors of its host memory", "error"),
    ],
)
def test_a_node_that_is_not_well(line: str, words: str, severity: str):
    [finding] = check(node_failed, kernel_events=log(line))
    assert words in finding.title
    assert finding.severity == severity


def test_an_error_that_the_hardware_corrected_is_no_warning():
    lines = (
        "{1}[Hardware Error]: It has been corrected by h/w and requires no further action",
        "{1}[Hardware Error]: event severity: corrected",
    )
    assert check(node_failed, kernel_events=log(*lines, "EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0")) == []
    [finding] = check(node_failed, kernel_events=log("{2}[Hardware Error]: event severity: fatal"))
    assert finding.severity == "warning"


def test_pages_that_were_not_found_are_a_sign_of_slowness():
    [finding] = check(out_of_memory, kernel_events=log("kworker/3:1: page allocation failure: order:4, mode:0xcc0(GFP_KERNEL)"))
    assert grade([finding]) == [("warning", "low")]
    assert "order 4" in finding.summary


def test_a_recovery_that_failed_loses_the_device_and_a_slot_may_lack_power():
    [finding] = check(pcie_degraded, kernel_events=log("pcieport 0000:16:01.0: AER: device recovery failed"))
    assert finding.severity == "critical"
    assert check(pcie_degraded, kernel_events=log("pcieport 0000:16:01.0: AER: device recovery successful")) == []
    [finding] = check(
        pcie_degraded, kernel_events=log(f"{NIC}: mlx5_pcie_event:299:(pid 268269): Detected insufficient power on the PCIe slot (27W).")
    )
    assert finding.severity == "warning"


# ---- nothing that is read is left unjudged ----

#: Kinds that go with another line, or say what is missing from the log.
_TELL_NOTHING = {"gpu-crash-dump", "pcie-error-status", "lost-lines"}


def test_every_kind_of_event_is_judged_by_a_rule():
    kinds = {word.strip() for word in str(TABLES["kernel_events"].columns["kind"][1]).split(",")}
    sources = "\n".join(path.read_text(encoding="utf-8") for path in Path(str(rules.__file__)).parent.rglob("*.py"))
    assert {kind for kind in kinds if f'"{kind}"' not in sources} == _TELL_NOTHING


# ---- at the stop of the job ----

STALLED = pl.LazyFrame(
    {"first_raw_ns": [JOB * SECOND], "last_raw_ns": [(JOB + 600) * SECOND], "stalled_raw_ns": [JOB * SECOND], "yearless": [False]}
)
HUNG = pl.LazyFrame({"sign": ["watchdog timeouts"]})


def at(second: int, kind: str, **more: object) -> dict[str, object]:
    return {"kind": kind, "host": "node7", "time_raw_ns": second * SECOND, "time_kind": "local-unzoned", "message": "text", **more}


def of_node(*rows: dict[str, object], failures: pl.LazyFrame | None = HUNG) -> list[Finding]:
    inputs = {"kernel_events": table("kernel_events", *rows), "job_times": STALLED, "processes": processes((3, "node7", 42, "1"))}
    return check(node_failed, **inputs, **({"failures": failures} if failures is not None else {}))


def test_a_short_lockup_that_begins_when_the_job_stops_stops_the_node_and_a_later_one_warns() -> None:
    [finding] = of_node(at(JOB + 5, "lockup", severity="fatal", state="rcu"))
    assert (finding.severity, finding.ranks, [c.rank for c in finding.culprits or ()]) == ("critical", (3,), [3])
    assert [f.severity for f in of_node(at(JOB + 400, "lockup", severity="fatal", state="rcu"))] == ["warning"]


def test_one_report_of_a_hung_rank_is_enough_where_the_job_failed_and_its_stack_names_the_cause() -> None:
    hung = at(JOB + 130, "hung-task", severity="suspect", comm="python", pid=42, value=120.0)
    [finding] = of_node(hung | {"detail": "storage"})
    assert (finding.cause, finding.severity, finding.ranks) == ("host-stall", "critical", (3,))
    assert [f.cause for f in of_node(hung | {"detail": "gpu"})] == ["gpu-stall"]
    assert of_node(hung | {"pid": 43}) == []
    assert of_node(hung, failures=None) == []


def test_storage_that_stops_with_the_job_and_does_not_come_back_stalls_the_host() -> None:
    nfs = at(JOB + 5, "storage-hang", severity="degraded", ifname="nas1", state="down")
    [finding] = of_node(nfs)
    assert (finding.cause, finding.severity) == ("host-stall", "critical")
    assert [f.severity for f in of_node(nfs, at(JOB + 9, "storage-ok", severity="info", ifname="nas1"))] == ["warning"]
    assert [f.severity for f in of_node(nfs | {"time_raw_ns": (JOB + 400) * SECOND})] == ["warning"]


def test_a_boot_while_the_job_stood_took_all_ranks_of_the_host_and_one_before_or_after_did_not() -> None:
    [finding] = of_node(at(JOB + 300, "boot", severity="info"))
    assert (finding.severity, finding.ranks) == ("critical", (3,))
    assert of_node(at(JOB - 3600, "boot", severity="info"), at(JOB + 4000, "boot", severity="info")) == []


# ---- GPUs and cards that a line of the bus names ----


def test_a_gpu_that_the_bus_lost_is_named_with_its_rank_and_a_bridge_above_it_is_left_out() -> None:
    lost = log(
        "pcieport 0000:40:00.0: AER: Uncorrected (Fatal) error received: 0000:41:00.0",
        "nvidia 0000:41:00.0:    [ 5] SDES                  (First)",
        "pcieport 0000:40:00.0: AER: device recovery failed",
    )
    [finding] = check(pcie_degraded, kernel_events=lost, processes=PEOPLE)
    assert (finding.cause, finding.severity, finding.ranks) == ("gpu-fault", "critical", (3,))
    [bridge] = check(pcie_degraded, kernel_events=log("pcieport 0000:40:00.0: AER: device recovery failed"), processes=PEOPLE)
    assert (bridge.cause, bridge.ranks) == ("pcie-degraded", ())


def test_errors_that_were_not_corrected_are_a_warning_of_the_card() -> None:
    rows = log("mlx5_core 0000:5e:00.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer, (Requester ID)")
    [finding] = check(pcie_degraded, kernel_events=rows, processes=PEOPLE)
    assert (finding.severity, [c.nic for c in finding.culprits or ()]) == ("warning", ["0000:5e:00.0"])
    corrected = log("mlx5_core 0000:5e:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)")
    assert check(pcie_degraded, kernel_events=corrected, processes=PEOPLE) == []


def test_a_cable_that_is_unplugged_in_the_time_of_the_job_is_an_error_and_at_another_time_a_warning() -> None:
    line = f"{NIC}: Port module event: module 0, Cable unplugged"
    inputs = {"processes": PEOPLE, "job_times": TIMES, "failures": FAILED}
    assert [f.severity for f in check(nic_events, kernel_events=log(line), **inputs)] == ["error"]
    assert check(nic_events, kernel_events=log(line.replace("unplugged", "plugged")), **inputs) == []


def test_a_library_that_the_driver_refused_is_an_error_unless_the_job_went_well() -> None:
    rows = log("NVRM: API mismatch: the client has the version 550.54.15, but")
    signs = pl.LazyFrame({"rank": [0], "host": ["node7"], "pid": [1], "bus_id": [None], "sign": [None], "node": [None]})
    assert [f.severity for f in check(driver_refused, kernel_events=rows, job_times=TIMES, job_signs=signs, failures=FAILED)] == ["error"]
    assert [f.severity for f in check(driver_refused, kernel_events=rows, job_times=TIMES, job_signs=signs, failures=WELL)] == ["warning"]


def test_a_worker_of_a_data_loader_that_the_kernel_killed_is_its_ranks() -> None:
    kill = table("oom_kills", {"host": "node7", "pid": 900, "comm": "pt_data_worker", "anon_kb": 1 << 25})
    said = {"rank": 3, "signature": "worker-killed", "message": "DataLoader worker (pid 900) is killed by signal: Killed."}
    [finding, *_] = check(out_of_memory, oom_kills=kill, raised=_raised(said), processes=PEOPLE)
    assert (finding.ranks, finding.confidence) == ((3,), "high")
    other = said | {"message": "DataLoader worker (pid 901) is killed by signal: Killed."}
    [finding, *_] = check(out_of_memory, oom_kills=kill, raised=_raised(other), processes=PEOPLE)
    assert finding.ranks == ()


def test_memory_that_ran_out_in_a_thread_is_told_though_the_ends_of_ranks_are_judged_elsewhere() -> None:
    said = {"rank": 3, "signature": "cuda-oom", "message": "CUDA out of memory. Tried to allocate 2.00 GiB", "kind": "thread"}
    [finding] = check(out_of_memory, raised=_raised(said), processes=PEOPLE)
    assert (finding.ranks, finding.confidence) == ((3,), "medium")
    assert check(out_of_memory, raised=_raised(said | {"kind": "python"}), processes=PEOPLE) == []


def _raised(*rows: dict[str, object]) -> pl.LazyFrame:
    return table("exceptions", *rows)
