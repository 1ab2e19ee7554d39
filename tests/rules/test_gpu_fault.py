"""Xids, GPU states and tools: what is named, what is a consequence, what stays quiet."""

from __future__ import annotations

import polars as pl
import pytest

from nccl_forensics.facts.sxid import sxid
from nccl_forensics.facts.xid import XIDS, nvlink5_needs_reset
from nccl_forensics.facts.xid import xid as xid_facts
from nccl_forensics.model import Finding
from nccl_forensics.reading.source import read_source
from nccl_forensics.rules import run_rules
from nccl_forensics.rules.gpu_fault import gpu_fault
from nccl_forensics.store import Store
from nccl_forensics.views import Resolver
from nccl_forensics.views.placements import PLACEMENTS_SCHEMA
from tests.corpus import ROOT, corpus
from tests.rules.frames import stalls
from tests.rules.host_frames import processes, table, xid


def check(**inputs: pl.LazyFrame) -> list[Finding]:
    order = (*gpu_fault.inputs.required, *gpu_fault.inputs.optional)
    return gpu_fault.check(*(inputs.get(name) for name in order))


#: A sign that the job failed.
FAILED = pl.LazyFrame({"sign": ["exceptions"]})


def test_a_gpu_off_the_bus_is_named_with_its_rank_and_the_codes_that_follow():
    rows = table("xids", xid(79), xid(154, second=1, action="Node Reboot Required"), xid(45, second=2, pid=4711))
    [finding] = check(xids=rows, processes=processes((3, "node7", 99, "17000"), (4, "node7", 98, "3b000")))
    assert (finding.severity, finding.confidence, finding.ranks) == ("critical", "high", (3,))
    assert finding.culprits[0].gpu == "0000:17:00.0"
    assert "Xid 79" in finding.title
    assert finding.actions[0].action == "reboot_node"
    assert "45" in finding.summary


def test_consequences_alone_are_context_and_never_a_cause():
    [finding] = check(xids=table("xids", xid(45), xid(45, second=1), xid(43, second=2)))
    assert finding.severity == "info"


def test_the_pid_of_a_gsp_timeout_does_not_name_a_rank():
    rows = table("xids", xid(119, pid=4711, comm="nvidia-smi"))
    [finding] = check(xids=rows, processes=processes((5, "node7", 4711, "3b000")))
    assert finding.ranks == ()
    assert finding.culprits[0].pid is None


def test_two_gpus_of_one_host_failing_alike_are_one_finding_about_the_node():
    [finding] = check(xids=table("xids", xid(79), xid(79, bus_id="0000:3b:00.0")))
    assert len(finding.culprits) == 2
    assert "Several GPUs of one host" in finding.summary


def test_the_same_address_on_two_hosts_is_two_findings():
    assert len(check(xids=table("xids", xid(79), xid(79, host="node8")))) == 2


@pytest.mark.parametrize(
    ("code", "severity"),
    [(13, "critical"), (31, "critical"), (63, "warning"), (92, "warning"), (94, "critical"), (95, "critical"), (51, "warning")],
)
def test_each_code_has_its_weight(code: int, severity: str):
    [finding] = check(xids=table("xids", xid(code)), failures=FAILED)
    assert finding.severity == severity


def test_a_fault_that_is_mostly_the_programs_is_said_so():
    [finding] = check(xids=table("xids", xid(31, pid=912)), failures=FAILED)
    assert finding.confidence == "medium"
    assert finding.actions[0].action == "fix_application"
    assert finding.alternatives[0][0] == "software-crash"


def test_an_undated_fault_of_a_process_that_is_none_of_the_jobs_is_context():
    job = processes((3, "node7", 99, "17000"))
    [finding] = check(xids=table("xids", xid(13, pid=5091, time_kind="monotonic")), processes=job)
    assert (finding.severity, finding.confidence, finding.culprits) == ("warning", "low", ())
    for other in (xid(13, pid=99, time_kind="monotonic"), xid(79, pid=5091, time_kind="monotonic")):
        [finding] = check(xids=table("xids", other), processes=job)
        assert finding.severity == "critical"


def test_a_dated_fault_of_a_process_that_is_none_of_the_jobs_is_context_while_the_job_shows_no_failure():
    job, other = processes((3, "node7", 99, "17000")), table("xids", xid(31, pid=5091, time_kind="epoch"))
    times = pl.LazyFrame({"first_raw_ns": [0], "last_raw_ns": [10**9], "stalled_raw_ns": [None], "yearless": [False]})
    [finding] = check(xids=other, processes=job, job_times=times)
    assert (finding.severity, finding.culprits) == ("warning", ())
    [finding] = check(xids=other, processes=job, job_times=times, failures=FAILED)
    assert (finding.severity, finding.ranks) == ("critical", (3,)), "in a container it knows itself by another pid"


def test_a_fault_of_a_program_that_nothing_ties_to_the_job_is_context():
    job = processes((3, "node7", 99, "17000"))
    elsewhere = table("xids", xid(13, host="node8", pid=5091, time_kind="monotonic"))
    assert [f.severity for f in check(xids=elsewhere, processes=job, failures=FAILED)] == ["warning"]
    told = table("exceptions", {"rank": 3, "message": "CUDA error: an illegal memory access was encountered"})
    assert "warning" in {f.severity for f in check(xids=elsewhere, processes=job, raised=told)}, "the rank that tells is on node7"
    nameless = table("exceptions", {"message": "CUDA error: an illegal memory access was encountered"})
    assert "warning" not in {f.severity for f in check(xids=elsewhere, processes=job, raised=nameless)}


def test_a_rank_that_only_its_neighbours_place_ties_no_old_fault_to_the_job():
    seats = {"host": "node8", "bus_id": "0000:17:00.0", "rank": 9, "source_id": 5, "line_no": 11}
    place = pl.DataFrame([seats], schema=PLACEMENTS_SCHEMA).lazy()
    job = processes((3, "node7", 99, "17000"))
    old = {"xids": table("xids", xid(13, host="node8", pid=5091, time_kind="monotonic")), "processes": job, "placements": place}
    [finding] = check(**old, failures=FAILED)
    assert (finding.severity, finding.ranks) == ("warning", ())
    told = table("exceptions", {"rank": 9, "message": "CUDA error: an illegal memory access was encountered"})
    assert ["critical", (9,)] in [[f.severity, f.ranks] for f in check(**old, failures=FAILED, raised=told)]
    [off_bus] = check(xids=table("xids", xid(79, host="node8", pid=5091)), processes=job, placements=place)
    assert (off_bus.severity, off_bus.ranks) == ("critical", (9,))


def test_the_one_rank_whose_gpu_stands_still_is_on_the_one_gpu_that_broke():
    """Recorder dumps name ranks and no host, the kernel's log names a host and no rank."""
    lost = table("xids", xid(79))
    still: dict[str, object] = {"rank": 3, "cause": "gpu-stall", "own_source_id": 7, "own_record": "entries[4]"}
    [finding] = check(xids=lost, stalls=stalls(still))
    assert (finding.ranks, finding.culprits[0].gpu, finding.confidence) == ((3,), "0000:17:00.0", "high")
    assert any(e.source_id == 7 and e.record == "entries[4]" for e in finding.evidence)
    assert "rank 3 runs on another GPU" in finding.would_refute
    # Two of either, a stall that is not sure or of another kind, a rank that is elsewhere, and a fault that may be the program's tell
    # nothing.
    other = still | {"rank": 5}
    assert [f.ranks for f in check(xids=lost, stalls=stalls(still, other))] == [()]
    assert [f.ranks for f in check(xids=table("xids", xid(79), xid(79, host="node8")), stalls=stalls(still))] == [(), ()]
    assert [f.ranks for f in check(xids=lost, stalls=stalls(still | {"confidence": "low"}))] == [()]
    assert [f.ranks for f in check(xids=lost, stalls=stalls(still | {"cause": "host-stall"}))] == [()]
    assert [f.ranks for f in check(xids=lost, stalls=stalls(still), processes=processes((3, "node9", 99, "18000")))] == [()]
    assert [f.ranks for f in check(xids=table("xids", xid(31)), stalls=stalls(still))] == [()]


def test_the_pid_tells_a_rank_whose_host_is_not_known_where_no_other_has_it():
    """Stacks tell the pid of a rank and not its host."""
    ill = table("xids", xid(48, pid=4711))
    known = processes((2, "", 4711, "")).with_columns(host=pl.lit(None, dtype=pl.String()), bus_id=pl.lit(None, dtype=pl.String()))
    [finding] = check(xids=ill, processes=known)
    assert finding.ranks == (2,)
    twice = pl.concat([known, known.with_columns(rank=pl.lit(6, dtype=pl.Int32()))])
    assert [f.ranks for f in check(xids=ill, processes=twice)] == [()]
    assert [f.ranks for f in check(xids=ill, processes=processes((2, "node8", 4711, "18000")))] == [()]


def test_a_fault_of_a_program_alone_is_told_and_stops_nothing_that_did_not_stop():
    assert [(f.severity, f.confidence) for f in check(xids=table("xids", xid(13)))] == [("error", "low")]
    assert [(f.severity, f.confidence) for f in check(xids=table("xids", xid(79)))] == [("critical", "high")]


def test_a_dated_fault_needs_a_job_that_is_dated_or_tells_of_it():
    job = processes((3, "node7", 99, "17000"))
    fault = table("xids", xid(13, pid=5091, time_kind="epoch"))
    [finding] = check(xids=fault, processes=job)
    assert (finding.severity, finding.confidence, finding.culprits) == ("warning", "low", ())
    told = table("exceptions", {"rank": 3, "message": "CUDA error: an illegal memory access was encountered"})
    assert "critical" in {f.severity for f in check(xids=fault, processes=job, raised=told)}


def test_a_code_that_any_process_raises_is_pinned_to_the_process_by_what_followed():
    job = processes((3, "node7", 99, None))
    rows = table("xids", xid(119, pid=99), xid(45, pid=99))
    [finding] = [f for f in check(xids=rows, processes=job) if f.severity == "critical"]
    assert finding.ranks == (3,)
    stranger = table("xids", xid(119, pid=4711, comm="nvidia-smi"), xid(45, pid=4712))
    assert [f.ranks for f in check(xids=stranger, processes=job) if f.severity == "critical"] == [()]


def test_nvlink_codes_are_left_to_their_own_rule():
    assert check(xids=table("xids", xid(74))) == []


def test_the_driver_asking_for_a_reset_without_another_code_is_an_error():
    [finding] = check(xids=table("xids", xid(154, action="GPU Reset Required")))
    assert (finding.severity, finding.actions[0].action) == ("error", "reset_gpu")


def gpu(**columns: object) -> pl.LazyFrame:
    return table("gpus", {"host": "node7", "bus_id": "0000:17:00.0", "name": "NVIDIA H100 80GB HBM3", **columns})


@pytest.mark.parametrize(
    ("columns", "severity"),
    [
        ({"problem": "Unknown Error"}, "critical"),
        ({"remap_failed": True}, "error"),
        ({"sram_uncorrected": 3}, "error"),
        ({"retired_single_bit": 60, "retired_double_bit": 5}, "error"),
        ({"recovery_action": "Drain and Reset"}, "error"),
        ({"fabric_state": "In Progress"}, "error"),
        ({"fabric_state": "Completed", "fabric_status": "Failure"}, "error"),
        ({"remap_pending": True}, "warning"),
    ],
)
def test_an_ill_state_is_told(columns: dict[str, object], severity: str):
    [finding] = check(gpus=gpu(**columns))
    assert finding.severity == severity


def test_a_healthy_state_is_quiet():
    healthy = {
        "recovery_action": "None",
        "remap_failed": False,
        "sram_uncorrected": 0,
        "retired_single_bit": 2,
        "retired_double_bit": 1,
        "fabric_state": "Completed",
        "fabric_status": "Success",
        "banks_max": 2560,
        "banks_none": 0,
    }
    assert check(gpus=gpu(**healthy)) == []


def test_two_samples_of_one_gpu_are_one_finding():
    rows = table("gpus", *({"host": "node7", "bus_id": "0000:17:00.0", "remap_failed": True} for _ in range(2)))
    assert len(check(gpus=rows)) == 1


def test_a_gpu_that_nvidia_smi_lost_is_critical_and_missing_permissions_are_not():
    rows = table(
        "gpu_tool_errors",
        {"kind": "gpu-lost", "host": "node7", "bus_id": "0000:91:00.0", "message": "m"},
        {"kind": "permission", "host": "node7", "message": "m"},
    )
    [finding] = check(gpu_tool_errors=rows)
    assert (finding.severity, finding.culprits[0].gpu) == ("critical", "0000:91:00.0")


def test_a_failed_configuration_test_of_dcgm_is_only_a_warning():
    rows = table(
        "dcgm_results",
        {"test": "Persistence Mode", "status": "fail"},
        {"test": "PCIe", "status": "fail", "gpu_index": 3},
        {"test": "Memory", "status": "pass"},
    )
    assert [f.severity for f in check(dcgm_results=rows)] == ["warning", "error"]


def test_a_cuda_error_of_a_nameless_process_is_told_unless_the_host_says_more():
    text = table("exceptions", {"kind": "cpp-terminate", "message": "CUDA error: unknown error"})
    [finding] = check(raised=text)
    assert (finding.severity, finding.confidence) == ("critical", "medium")
    assert len(check(raised=text, xids=table("xids", xid(79)))) == 1


def test_a_cuda_error_of_a_wrong_call_is_not_a_fault_of_the_gpu():
    assert check(raised=table("exceptions", {"message": "CUDA error: invalid argument"})) == []


def test_the_catalogue_holds_what_tutorials_get_wrong():
    assert XIDS[43].kind == "consequence"
    assert XIDS[79].kind == "bus"
    assert "contained" in XIDS[94].meaning
    assert XIDS[137].kind == "app"
    assert (xid_facts(51).severity, sxid(20034).fatal, sxid(11012).kind) == ("warning", True, "corrected")


def test_nvlink5_status_words_are_decoded():
    assert nvlink5_needs_reset("NETIR_LINK_EVT", (0x025525C6, 0)) is True
    assert nvlink5_needs_reset("RLW_RXPIPE", (0x0409A0C2, 8)) is None
    assert nvlink5_needs_reset("RLW_SRC_TRACK", (0, 0x01)) is True
    assert nvlink5_needs_reset("RLW_SRC_TRACK", (0, 0x80000000)) is False


def found(*files: str) -> dict[str, list[str]]:
    """Rules that say something of the files, with severities."""
    frames: dict[str, list[pl.DataFrame]] = {}
    for number, file in enumerate(files):
        for name, frame in read_source(
            (ROOT / file if not file.startswith("host/") and not file.startswith("public/") else corpus(file)).read_bytes()
        ).frames.items():
            frames.setdefault(name, []).append(frame.with_columns(source_id=pl.lit(number, dtype=pl.UInt32())))
    store = Store.from_frames({n: pl.concat(f) for n, f in frames.items() if n not in ("unmodelled", "gaps")})
    out = {}
    for outcome in run_rules(Resolver(store)):
        assert outcome.status != "crashed", (outcome.rule.name, outcome.error)
        if outcome.found:
            out[outcome.rule.name] = [str(f.finding.severity) for f in outcome.found]
    return out


def test_the_whole_made_up_log_of_a_lost_gpu_blames_the_gpu_and_not_the_switch():
    result = found("fixtures/kernel_log/node7.dmesg")
    assert result["gpu-fault"] == ["critical", "info"]
    assert "nvlink-fault" not in result


@pytest.mark.corpus
@pytest.mark.parametrize(
    "file",
    [
        "host/dmesg/kmsg.1.log",
        "host/dmesg/kmsg.2.peermem.log",
        "host/syslog/syslog.ib-0flap",
        "host/nvidia-smi/nvlink-status.a100.txt",
        "host/nvidia-smi/nvlink-status.a100-one-gpu.txt",
        "host/nvidia-smi/nvidia-smi-q-d-PAGE_RETIREMENT.good.txt",
        "host/nvidia-smi/nvidia-smi-q-x.a100-sxm4-v12.xml",
        "host/nvidia-smi/nvidia-smi-q-x.a10g.xml",
        "host/nvidia-smi/nvidia-smi-q-x.gtx-1070-ti.xml",
        "host/nvidia-smi/nvidia-smi-q-x.rtx-3080-v12.xml",
        "host/nvidia-smi/nvidia-smi-q-x.rtx-3080-v13.xml",
        "host/nvidia-smi/nvidia-smi-q-x.rtx-3090-v12.xml",
        "host/nvidia-smi/nvidia-smi-q-x.rtx-4000-sff-ada-v13.xml",
        "host/nvidia-smi/nvidia-smi-q-x.tesla-t4.xml",
        "host/lspci/lspci-vvv.gpu-nic-blocks.txt",
        "host/rocm-smi/rocm-smi.mi100_rocm571.json",
        "host/rocm-smi/rocm-smi.mi100_rocm602.json",
        "host/rocm-smi/rocm-smi.vega-20-WKS-GL-XE.json",
        "public/nvidia-smi-h200-gpu-exporter/evidence/linux-x86_64__nvidia-h200__590.48.01.txt",
        "public/nvidia-smi-xml-telegraf/evidence/a10g.xml",
    ],
)
def test_healthy_captures_give_no_error(file: str):
    said = [s for severities in found(file).values() for s in severities]
    assert not {"critical", "error"} & set(said)


@pytest.mark.corpus
@pytest.mark.parametrize(
    ("file", "rule"),
    [
        ("public/xid119-gsp-timeout-gpud/evidence/dmesg-with-xid-119.log", "gpu-fault"),
        ("host/nvidia-smi/nvidia-smi-q-d-PAGE_RETIREMENT.bad.txt", "gpu-fault"),
        ("host/nvidia-smi/nvlink-status.a100-all-inactive.txt", "nvlink-fault"),
        ("host/dmesg/pstore-dmesg-full.txt", "node-failed"),
        ("host/dmesg/dmesg.decode.iso.xid13-43-oom.log", "out-of-memory"),
        ("public/crash-bloom-cuda-unknown-error/evidence/chronicles-lines-79-91.md", "gpu-fault"),
    ],
)
def test_ill_captures_are_told(file: str, rule: str):
    assert {"critical", "error"} & set(found(file).get(rule, ()))


def test_a_wrong_address_that_a_nameless_process_met_is_the_programs_until_a_kernel_log_says_more() -> None:
    [finding] = check(raised=table("exceptions", {"message": "CUDA error: misaligned address"}))
    assert (finding.cause, finding.confidence, finding.alternatives[0][0]) == ("software-crash", "medium", "gpu-fault")
    [device] = check(raised=table("exceptions", {"message": "CUDA error: unspecified launch failure"}))
    assert device.cause in (None, "gpu-fault")


def test_a_rank_that_failed_otherwise_had_no_fault_of_its_program_on_the_gpu():
    job = processes((3, "node7", 5091, "17000"))
    fault = table("xids", xid(13, pid=4000, time_kind="epoch"))
    times = pl.LazyFrame({"first_raw_ns": [0], "last_raw_ns": [10**9], "stalled_raw_ns": [None], "yearless": [False]})
    for message, severity in (("NCCL error: remote process exited", "warning"), ("CUDA error: an illegal memory access", "critical")):
        said = table("exceptions", {"rank": 3, "message": message})
        findings = check(xids=fault, processes=job, raised=said, job_times=times)
        assert findings[0].severity == severity, message


UUID = "GPU-509665ad-b600-ac93-3616-d754b23d636d"


def test_an_xid_that_names_a_uuid_is_joined_with_the_rank_on_the_gpu_of_that_uuid() -> None:
    plugin = table("xids", {"code": 79, "uuid": UUID, "host": None, "message": "XidCriticalError: Xid=79", "source_id": 3})
    marked = table("gpu_tool_errors", {"kind": "unhealthy", "uuid": UUID, "message": "marked unhealthy"})
    cards = table("gpus", {"uuid": UUID, "bus_id": "0000:17:00.0", "host": "node7", "source_id": 4})
    [finding] = check(
        xids=plugin, gpu_tool_errors=marked, gpus=cards, processes=processes((3, "node7", 99, "17000"), (4, "node8", 98, "17000"))
    )
    assert (finding.ranks, finding.hosts) == ((3,), ("node7",))
    assert finding.culprits[0].gpu == "0000:17:00.0"
    kernel = table("kernel_events", {"kind": "gpu-name", "device": "0000:3b:00.0", "detail": UUID, "host": "node8"})
    [by_kernel] = check(xids=plugin, kernel_events=kernel)
    assert (by_kernel.hosts, by_kernel.culprits[0].gpu) == (("node8",), "0000:3b:00.0")
    [unknown] = check(xids=plugin)
    assert (unknown.ranks, unknown.hosts, unknown.culprits[0].gpu) == ((), (), UUID)


def test_a_gpu_out_of_service_is_named_where_no_xid_says_why() -> None:
    marked = table("gpu_tool_errors", {"kind": "unhealthy", "uuid": UUID, "host": "node7", "message": "marked unhealthy"})
    [finding] = check(gpu_tool_errors=marked)
    assert (finding.severity, finding.confidence) == ("warning", "medium")
    assert finding.title == f"GPU {UUID} of node7 was taken out of service by Kubernetes' device plugin"


def test_double_bit_errors_that_dcgm_counted_over_a_job_are_an_error_and_replays_are_not() -> None:
    figure = {"category": "Job statistics", "gpu_index": 3, "host": "node7", "number": 1.0}
    [finding] = check(
        dcgm_results=table(
            "dcgm_results",
            {**figure, "test": "double-bit ECC errors", "status": "fail"},
            {**figure, "test": "PCIe replays", "status": "warn"},
        )
    )
    assert finding.title == "GPU index 3 of node7: DCGM counted double-bit ECC errors while it watched"
    assert finding.severity == "error"


def test_a_gpu_that_told_its_driver_nothing_is_a_warning_and_no_proof() -> None:
    silent = table("gpu_tool_errors", {"kind": "gpu-silent", "bus_id": "0000:3b:00.0", "host": "node7", "message": "Video BIOS: ??"})
    [finding] = check(gpu_tool_errors=silent)
    assert (finding.severity, finding.confidence, finding.actions[0].action) == ("warning", "medium", "collect_more")


def test_the_last_words_of_rocms_runtime_speak_of_a_gpu_that_nobody_names() -> None:
    said = "HW Exception by GPU node-9 (Agent handle: 0x5b5e27441f40) reason :GPU Hang"
    told = {"kind": "fatal-signal", "type": "HSA", "signature": "cuda-error", "line_no": 1, "source_id": 0}
    [finding] = check(raised=table("exceptions", told | {"message": said}))
    assert finding.title == "the GPU of a rank that the evidence does not name failed: ROCm reported 'GPU Hang'"
    assert finding.confidence == "medium"
    assert check(raised=table("exceptions", told | {"message": "no GPU node-9 in this job"})) == []


def test_a_test_of_dcgm_that_fails_by_nvlinks_tells_of_them() -> None:
    row = {"category": "Hardware", "test": "PCIe", "status": "fail", "gpu_index": 0}
    [links] = check(dcgm_results=table("dcgm_results", row | {"message": "GPU 0's NvLink link 3 is currently down"}))
    [plain] = check(dcgm_results=table("dcgm_results", row | {"message": "bandwidth below the limit"}))
    assert (links.cause, plain.cause) == ("nvlink-fault", "gpu-fault")


def test_a_code_that_other_words_stand_for_is_said_to_be_so() -> None:
    told = xid(154, None, action="GPU Reset Required", implied=True)  # type: ignore[arg-type]
    [finding] = check(xids=table("xids", told))
    assert (finding.severity, finding.confidence) == ("error", "medium")
    assert "what stands for Xid 154" in finding.title


def test_an_error_of_an_nvlink_is_one_cause_whoever_tells_it() -> None:
    said = "CUDA failure 220 'uncorrectable NVLink error detected during the execution'"
    told = {"kind": "exception", "type": "RuntimeError", "signature": "cuda-error", "line_no": 1, "source_id": 0, "message": said}
    [finding] = check(raised=table("exceptions", told))
    assert finding.cause == "nvlink-fault"


def test_a_check_of_an_agent_is_named_after_it() -> None:
    row = {"category": "Node health check", "test": "check_gpu_ecc", "status": "fail", "gpu_index": 2, "message": "Row remap pending"}
    [finding] = check(dcgm_results=table("dcgm_results", row))
    assert finding.title.endswith("failed the check check_gpu_ecc of the node health check (NHC)")
    assert (finding.severity, finding.summary) == ("error", "Row remap pending")
    assert check(dcgm_results=table("dcgm_results", row | {"status": "warn"})) == []


def test_a_fault_of_a_program_beside_a_test_of_collectives_that_came_to_its_end_is_anothers() -> None:
    fault = table("xids", xid(13, pid=771))
    [other] = check(xids=fault, bandwidth_tests=table("bandwidth_tests", {"complete": True}))
    assert (other.severity, other.confidence, other.culprits) == ("warning", "low", ())
    for broken in ({"complete": False}, {"complete": True, "error": "unhandled cuda error"}):
        [own] = check(xids=fault, bandwidth_tests=table("bandwidth_tests", broken))
        assert own.severity != "warning"
