"""The kernel log: every clock style, every form of a line, and what the real captures hold."""

from __future__ import annotations

from datetime import UTC, datetime

import polars as pl
import pytest

from nccl_forensics.grammar.lines import load
from nccl_forensics.reading.source import SourceReading, read_source
from tests.corpus import ROOT, corpus

FIXTURES = ROOT / "fixtures" / "kernel_log"
XID = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1234, name=python, GPU has fallen off the bus."
KINDS = [tuple(line.split("|", 1)) for line in (FIXTURES / "kinds.txt").read_text().splitlines()]


def read(*lines: str) -> SourceReading:
    return read_source("\n".join(lines).encode())


def only(table: str, *lines: str) -> dict[str, object]:
    frame = read(*lines).frames[table]
    assert frame.height == 1, frame
    return frame.row(0, named=True)


def ns(*when: int, micro: int = 0) -> int:
    moment = datetime(*when, tzinfo=UTC)  # type: ignore[arg-type, misc]
    return int(moment.timestamp()) * 1_000_000_000 + micro * 1000


@pytest.mark.parametrize(
    ("line", "time", "kind", "host"),
    [
        (f"[171167.620236] {XID}", 171167620236000, "monotonic", None),
        (f"[    7.000001] {XID}", 7000001000, "monotonic", None),
        (f"<4>[  201.654822] {XID}", 201654822000, "monotonic", None),
        (f"4,3964,206764307,-;{XID}", 206764307000, "monotonic", None),
        (f"[Sun Feb 23 16:24:18 2025] {XID}", ns(2025, 2, 23, 16, 24, 18), "local-unzoned", None),
        (f"[So Mär  2 16:24:18 2025] {XID}", ns(2025, 3, 2, 16, 24, 18), "local-unzoned", None),
        (f"[日  7月 25 06:18:01 2027] {XID}", ns(2027, 7, 25, 6, 18, 1), "local-unzoned", None),
        (f"[일 12월  5 06:18:01 2027] {XID}", ns(2027, 12, 5, 6, 18, 1), "local-unzoned", None),
        (f"kern: warning: [2027-02-21T04:41:44.283302001Z]: {XID}", ns(2027, 2, 21, 4, 41, 44, micro=283302) + 1, "epoch", None),
        (f"juil. 25 06:18:01 node7 kernel: {XID}", ns(2000, 7, 25, 6, 18, 1), "local-yearless", "node7"),
        (f"2025-01-21T04:41:44,283302+00:00 {XID}", ns(2025, 1, 21, 4, 41, 44, micro=283302), "epoch", None),
        (f"kern  :warn  : 2025-01-21T05:41:44,283302+01:00 {XID}", ns(2025, 1, 21, 4, 41, 44, micro=283302), "epoch", None),
        (f"kern  :warn  : [  201.654822] {XID}", 201654822000, "monotonic", None),
        (f"Aug  7 06:18:01 node7 kernel: {XID}", ns(2000, 8, 7, 6, 18, 1), "local-yearless", "node7"),
        (f"2024-05-06T07:08:09+0200 node7 kernel: {XID}", ns(2024, 5, 6, 5, 8, 9), "epoch", "node7"),
        (
            f"2024-05-06T07:08:09.250000+02:00 node7.cluster.local kernel: {XID}",
            ns(2024, 5, 6, 5, 8, 9, micro=250000),
            "epoch",
            "node7.cluster.local",
        ),
        (f"kernel: {XID}", None, None, None),
        (XID, None, None, None),
    ],
)
def test_an_xid_is_read_in_every_clock_style_and_its_time_is_kept_as_written(
    line: str, time: int | None, kind: str | None, host: str | None
):
    row = only("xids", line)
    assert (row["code"], row["bus_id"], row["pid"], row["comm"]) == (79, "0000:9b:00.0", 1234, "python")
    assert (row["time_raw_ns"], row["time_kind"], row["host"]) == (time, kind, host)


@pytest.mark.parametrize("address", ["PCI:...", "PCI:xxxx:xx:00", "PCI:0000:XX:00", "PCI:<redacted>", "****"])
def test_an_xid_whose_address_was_taken_out_is_an_xid_of_an_unknown_gpu(address: str) -> None:
    row = only("xids", f"kernel: NVRM: Xid ({address}): 145, RLW_RXPIPE Fatal XC0 i0 Link 11 (0x04)")
    assert (row["code"], row["bus_id"], row["link"], row["fatal"], row["host"]) == (145, None, 11, True, None)


def test_a_syslog_line_with_a_second_clock_keeps_host_and_wall_time():
    row = only("xids", f"Aug 17 06:18:01 node7 kernel: [171167.620236] {XID}")
    assert (row["host"], row["code"]) == ("node7", 79)
    assert (row["time_raw_ns"], row["time_kind"]) == (ns(2000, 8, 17, 6, 18, 1), "local-yearless")


@pytest.mark.parametrize(("kind", "text"), KINDS)
def test_every_form_is_named_alike_by_both_forms_of_the_grammar(kind: str, text: str):
    grammar = load("kernel_log")
    extraction = grammar.extract(pl.Series([text]))
    parsed = grammar.parse(text)
    assert extraction.kind.to_list() == [kind]
    assert parsed is not None
    assert parsed == (kind, extraction.frames[kind].drop("row").row(0, named=True))


def test_every_form_becomes_a_row_or_part_of_one():
    # Parts of a kill or of an error that has a row of its own, and lines that alone do not betray a kernel log.
    without_row = {"oom_invoked", "oom_usage", "oom_reaped", "probe_gpu", "pcie_bit", "dropped"}
    for kind, text in KINDS:
        frames = read(text).frames
        assert kind in without_row or set(frames) & {"xids", "sxids", "oom_kills", "kernel_events"}, (kind, text)


@pytest.mark.parametrize(
    ("text", "severity"),
    [
        ("{14}poison is consumed by client 12, kick off gpu reset flow", "fatal"),
        ("amdgpu: Saved bad pages 150 reaches threshold value 128", "fatal"),
        ("amdgpu: ib ring test failed (-110).", "fatal"),
        ("amdgpu: ring vpe uses VM inv eng 7 on hub 8", "info"),
        ("{15}Poison is created", "info"),
        ("amdgpu: Loading 3 bad pages", "info"),
    ],
)
def test_memory_errors_that_stop_an_amd_gpu_are_fatal(text: str, severity: str):
    row = only("kernel_events", f"[ 9120.531245] amdgpu 0000:02:00.0: {text}")
    assert (row["severity"], row["device"]) == (severity, "0000:02:00.0")


def test_an_unknown_pid_and_a_missing_message_are_null():
    row = only("xids", "NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
    assert (row["pid"], row["comm"]) == (None, None)
    row = only("xids", "NVRM: Xid (PCI:0000:3f:00): 46")
    assert (row["code"], row["message"]) == (46, None)


def test_nvlink5_lines_give_unit_link_and_severity_and_link_minus_one_is_none():
    row = only(
        "xids",
        "NVRM: Xid (PCI:0018:01:00): 145, pid=876767, name=ray::WorkerDict, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008)",
    )
    assert (row["unit"], row["link"], row["fatal"], row["comm"]) == ("RLW_RXPIPE", 13, False, "ray::WorkerDict")
    row = only("xids", "NVRM: Xid (PCI:0019:01:00): 149, NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x00000000)")
    assert (row["link"], row["fatal"]) == (None, True)


def test_a_gpu_missing_at_probe_is_named_from_the_line_above():
    row = only(
        "xids",
        "[  12.000000] NVRM: The NVIDIA GPU 0000:18:00.0",
        "[  12.000001] NVRM: (PCI ID: 10de:2901) installed in this system has",
        "[  12.000002] NVRM: fallen off the bus and is not responding to commands.",
    )
    assert (row["code"], row["bus_id"], row["implied"]) == (79, "0000:18:00.0", True)


def test_lines_without_a_clock_keep_their_first_word_and_a_host_before_it_is_the_launchers():
    rows = read("NVRM: Xid (PCI:0000:9b:00): 79, gone", "NVRM: Xid (PCI:0000:9c:00): 79, gone").frames["xids"]
    assert rows["hint_host"].to_list() == [None, None]
    rows = read("node01: NVRM: Xid (PCI:0000:9b:00): 79, gone", "node02: NVRM: Xid (PCI:0000:9b:00): 79, gone").frames["xids"]
    assert [a or b for a, b in rows.select("hint_host", "host").rows()] == ["node01", "node02"]
    row = only("xids", f"node03: [Sun Feb 23 16:24:18 2025] {XID}")
    assert (row["host"], row["time_kind"]) == ("node03", "local-unzoned")


def test_the_lines_of_one_memory_kill_are_one_row():
    row = only(
        "oom_kills",
        "[100.000000] python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=-998",
        "[100.000001] memory: usage 33554432kB, limit 33554432kB, failcnt 812",
        "[100.000002] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=x,mems_allowed=0-1,oom_memcg=/slurm/job_77,task_memcg=/slurm/job_77/task_3,task=pt_main_thread,pid=345646,uid=1000",
        "[100.000003] Memory cgroup out of memory: Killed process 345646 (pt_main_thread) total-vm:1641384kB, anon-rss:524092kB, file-rss:192kB, shmem-rss:64kB, UID:1000 pgtables:1234kB oom_score_adj:-998",
    )
    assert (row["pid"], row["comm"], row["constraint"], row["memcg"]) == (345646, "pt_main_thread", "CONSTRAINT_MEMCG", "/slurm/job_77")
    assert (row["limit_kb"], row["anon_kb"], row["shmem_kb"], row["invoked_by"]) == (33554432, 524092, 64, "python")


def test_a_log_that_breaks_off_before_the_first_kill_tells_who_asked_for_memory():
    asked = "[Wed Sep 29 07:12:20 2021] python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0"
    row = only("oom_kills", asked, "[Wed Sep 29 07:12:20 2021]  mem_cgroup_out_of_memory+0xbb/0xd0")
    assert (row["pid"], row["comm"], row["invoked_by"]) == (None, None, "python3")
    killed = "[Wed Sep 29 07:12:21 2021] Out of memory: Killed process 2 (b) total-vm:1kB, anon-rss:1kB, file-rss:0kB"
    assert read(killed, asked).frames["oom_kills"]["pid"].to_list() == [2]


def test_a_constraint_of_another_kill_is_not_mixed_in():
    rows = read(
        "[100.000002] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),task=a,pid=1,uid=0",
        "[900.000003] Out of memory: Killed process 2 (b) total-vm:1kB, anon-rss:1kB, file-rss:0kB",
    ).frames["oom_kills"]
    assert rows.filter(pl.col("pid") == 2)["constraint"].to_list() == [None]


def test_repeated_messages_of_syslog_are_counted():
    row = only(
        "xids", "Aug 17 06:18:01 node7 kernel: message repeated 3 times: [ NVRM: Xid (PCI:0000:9b:00): 31, pid=1, name=python, Ch 1]"
    )
    assert (row["repeats"], row["code"]) == (3, 31)


def test_known_noise_is_benign_with_its_reason():
    events = read(
        "[1.000000] nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing"
    ).frames["kernel_events"]
    assert events["severity"].to_list() == ["benign"]
    assert "process" in str(events["detail"][0])


def test_a_log_that_only_looks_like_dmesg_is_left_alone():
    result = read(
        "[1700000000.123456] [node:1:0] ucp_context.c:1 UCX  WARN something",
        "[1700000001.123456] [node:1:0] ucp_context.c:2 UCX  DEBUG else",
    )
    assert "kernel-log" not in result.formats


def test_an_xid_quoted_by_another_program_is_not_one():
    assert "xids" not in read(f"Aug 17 06:18:01 node7 monitor[77]: {XID}").frames


def test_lines_of_a_kernel_log_that_no_kind_matches_are_counted_as_unmodelled():
    result = read_source((FIXTURES / "node7.dmesg").read_bytes())
    assert (result.lines, result.records, result.unmodelled, result.foreign) == (11, 11, 1, 0)


def test_a_journal_as_json_has_host_and_epoch_times_and_its_torn_line_is_a_gap():
    result = read_source((FIXTURES / "journal.jsonl").read_bytes())
    xids = result.frames["xids"]
    assert result.formats == ("journal-json",)
    assert xids.select("code", "host", "time_kind").rows() == [(48, "node7", "epoch"), (94, "node7", "epoch")]
    assert result.frames["gaps"]["line_no"].to_list() == [4]


@pytest.mark.corpus
def test_the_capture_of_an_xid_119_is_read_whole():
    result = read_source(corpus("public/xid119-gsp-timeout-gpud/evidence/dmesg-with-xid-119.log").read_bytes())
    xids = result.frames["xids"]
    assert result.foreign == 0
    assert set(xids["code"]) == {119}
    assert set(xids["bus_id"]) == {"0000:9b:00.0"}
    assert set(xids["gpu_index"]) == {4}


@pytest.mark.corpus
@pytest.mark.parametrize(
    "name",
    [
        "dmesg.decode.iso.filemax.log",
        "dmesg.decode.iso.nccl-segfault.log",
        "dmesg.decode.iso.xid13-43-oom.log",
        "kmsg.1.log",
        "kmsg.2.peermem.log",
        "pstore-dmesg-erst.txt",
    ],
)
def test_every_line_of_the_captures_belongs_to_the_kernel_log(name: str):
    result = read_source(corpus(f"host/dmesg/{name}").read_bytes())
    assert result.formats == ("kernel-log",)
    assert (result.foreign, result.gap_lines) == (0, 0)


@pytest.mark.corpus
def test_a_flap_in_a_real_syslog_is_seen_as_carrier_events():
    events = read_source(corpus("host/syslog/syslog.ib-6flap").read_bytes()).frames["kernel_events"]
    assert events.group_by("state").len().sort("state").rows() == [("down", 6), ("up", 6)]


def test_calls_refused_until_a_reset_stand_for_an_xid_154_where_no_xid_is_told():
    line = "[  9.000001] NVRM: GPU{} nvCheckOkFailedNoLog: Check failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062) returned from f @ x.c:1"
    found = read(line.format(1), line.format(1), line.format(3)).frames["xids"]
    assert found.select("code", "gpu_index", "action", "implied").rows() == [
        (154, 1, "GPU Reset Required", True),
        (154, 3, "GPU Reset Required", True),
    ]
    assert read(line.format(1), f"[  9.000002] {XID}").frames["xids"].select("code", "implied").rows() == [(79, False)]


def test_a_channel_that_an_earlier_xid_ended_tells_that_one_too():
    after = "[  9.000001] NVRM: Xid (PCI:0000:dc:00): 45, pid=7, name=python3, Ch 0000000{} caused by previous Xid 149"
    first = "[  8.000001] NVRM: Xid (PCI:0000:dc:00): 149, NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x00000000)"
    told = read(after.format(1), after.format(2)).frames["xids"].filter("implied")
    assert told.select("code", "bus_id", "fatal").rows() == [(149, "0000:dc:00.0", True)]
    assert not read(first, after.format(1)).frames["xids"]["implied"].any()


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("ixgbe 0000:03:00.0 eth7: NIC Link is Down", ("carrier", "0000:03:00.0", "eth7", "down")),
        ("bond0: link status definitely down for interface eth1, disabling it", ("bond-down", None, "eth1", "down")),
        ("bond1: now running without any active interface!", ("carrier", None, "bond1", "down")),
        ("IPv6: ADDRCONF(NETDEV_UP): eth2: link is not ready", ("nic-link", None, "eth2", "down")),
        ("IPv6: ADDRCONF(NETDEV_CHANGE): eth2: link becomes ready", ("nic-link", None, "eth2", "up")),
    ],
)
def test_what_drivers_of_ethernet_cards_and_bonds_say_of_their_links(line: str, told: tuple[str | None, ...]):
    row = only("kernel_events", f"[ 9000.000001] {line}")
    assert (row["kind"], row["device"], row["ifname"], row["state"]) == told


def test_seconds_since_the_line_before_are_no_time_but_the_line_is_the_kernels():
    row = only("kernel_events", "[  +0.000041] pcieport 0000:00:03.0: AER: device recovery failed")
    assert (row["kind"], row["time_raw_ns"], row["time_kind"]) == ("pcie-recovery", None, None)
    row = only("kernel_events", "[Jan21 10:15] pcieport 0000:00:03.0: AER: device recovery failed")
    assert (row["kind"], row["time_raw_ns"]) == ("pcie-recovery", None)


def test_a_port_of_an_old_kernel_that_names_its_device_by_number_is_the_device():
    row = only("kernel_events", "[ 9.000001] pcieport 0000:00:03.1: AER: Uncorrected (Fatal) error received: id=0010")
    assert (row["kind"], row["device"], row["severity"]) == ("pcie-error", "0000:00:03.1", "fatal")


def test_names_of_tasks_that_hang_may_hold_a_colon():
    for name in ("kworker/u32:4", "kworker/3:1H", "python3.12"):
        rows = read_source(f"[  961.200001] INFO: task {name}:8124 blocked for more than 122 seconds.".encode()).frames["kernel_events"]
        assert rows.select("kind", "comm", "pid").row(0) == ("hung-task", name, 8124)


def test_a_hung_task_tells_by_the_first_telling_frame_of_its_stack_what_it_waits_for():
    def waits(*frames: str) -> object:
        said = "INFO: task python:4242 blocked for more than 120 seconds."
        text = "\n".join(f"[  100.000000] {line}" for line in (said, "Call Trace:", *frames))
        return read_source(text.encode()).frames["kernel_events"].filter(pl.col("kind") == "hung-task")["detail"][0]

    assert waits(" __schedule+0x2cd/0x8a0", " rpc_wait_bit_killable+0x24/0xb0 [sunrpc]", " nvidia_ioctl+0x6e/0x810 [nvidia]") == "storage"
    assert waits(" ? os_acquire_rwlock_write+0x35/0x60 [nvidia]") == "gpu"
    assert waits(" ext4_sync_file+0x1/0x2 [ext4]") is None


def test_a_boot_is_an_event():
    events = read_source(b"[    0.000000] Linux version 5.15.0-122-generic (buildd@lcy02)\n").frames["kernel_events"]
    assert events.select("kind", "detail").rows() == [("boot", "5.15.0-122-generic")]
