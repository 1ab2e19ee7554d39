"""Prefixes of launchers and collectors are peeled, and what looks like one is left alone."""

from __future__ import annotations

import polars as pl
import pytest

from nccl_forensics.reading.prefixes import peel

NCCL = "node01:2345:2412 [3] NCCL INFO Using network IB"


def peeled(*lines: str) -> list[dict[str, object]]:
    frame = pl.DataFrame({"line_no": range(1, len(lines) + 1), "text": lines}, schema={"line_no": pl.UInt32, "text": pl.String})
    return peel(frame).to_dicts()


def texts(*lines: str) -> list[object]:
    return [row["text"] for row in peeled(*lines)]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (f"[1,11]<stdout>:{NCCL}", {"hint_rank": 11, "hint_scope": "global"}),
        (f"[1,0]<stderr>:{NCCL}", {"hint_rank": 0, "hint_scope": "global"}),
        (f"[prterun-host-123@1,3]<stdout>: {NCCL}", {"hint_rank": 3, "hint_scope": "global"}),
        (
            f"Tue Jul  1 10:22:33 2025[1,3]<stdout>:{NCCL}",
            {"hint_rank": 3, "time_kind": "local-unzoned", "time_raw_ns": 1751365353000000000},
        ),
        (f"[rank3]: {NCCL}", {"hint_rank": 3, "hint_scope": "global"}),
        (f"[rank3]:{NCCL}", {"hint_rank": 3, "hint_scope": "global"}),
        (f"[rank=3] {NCCL}", {"hint_rank": 3, "hint_scope": "global"}),
        (f"[default3]:{NCCL}", {"hint_rank": 3, "hint_scope": "local"}),
        (f"[default3]:[rank11]:{NCCL}", {"hint_rank": 11, "hint_scope": "global"}),
        (f"(WorkerDict pid=3490362) {NCCL}", {"hint_pid": 3490362}),
        (f"(model_worker/6 pid=20319) {NCCL}", {"hint_pid": 20319}),
        (f"(VllmWorker rank=7 pid=410) {NCCL}", {"hint_pid": 410, "hint_rank": 7, "hint_scope": "global"}),
        (f"(main_task pid=7, ip=10.0.0.5) {NCCL}", {"hint_pid": 7, "hint_host": "10.0.0.5"}),
        (f"\x1b[36m(worker pid=7)\x1b[0m {NCCL}", {"hint_pid": 7}),
        (f"[36m(worker pid=7)[0m {NCCL}", {"hint_pid": 7}),
        (f"2025-07-01T10:22:33.123456789Z {NCCL}", {"time_kind": "epoch", "time_raw_ns": 1751365353123456789}),
        (f"2025-07-01T12:22:33.123456789+02:00 stderr F {NCCL}", {"time_kind": "epoch", "time_raw_ns": 1751365353123456789}),
        (f"2025-07-01T10:22:33Z stdout P [pod/worker-3/pytorch] {NCCL}", {"hint_host": "worker-3", "time_kind": "epoch"}),
        (f"[pod/job-worker-3/pytorch] [1,5]<stdout>:{NCCL}", {"hint_host": "job-worker-3", "hint_rank": 5}),
        (f"Jul  1 10:22:33 node07 torchrun[811]: {NCCL}", {"hint_host": "node07", "hint_pid": 811, "time_raw_ns": None}),
        (
            f"2025-07-01T12:22:33.5+02:00 node07 python[811]: {NCCL}",
            {"hint_host": "node07", "time_kind": "epoch", "time_raw_ns": 1751365353500000000},
        ),
        (f"resnet50.node3 [stderr] {NCCL}", {"hint_host": None}),
        (f"ERROR 04-15 00:31:11 worker_base.py:574] {NCCL}", {"hint_rank": None}),
        (f"(Worker pid=7) INFO 04-15 00:31:11 [gpu_worker.py:57] {NCCL}", {"hint_pid": 7}),
        (f"[2025-02-22 08:19:45 DP1 TP26] {NCCL}", {"hint_rank": None}),
        (f"[2025-04-15 00:31:11,815 E 808 17795] (raylet) logging.cc:108: {NCCL}", {"hint_pid": 808}),
        (f"(raylet, ip=10.2.0.9) {NCCL}", {"hint_host": "10.2.0.9"}),
        (f"18:11:06.680 [rank4]:{NCCL}", {"hint_rank": 4}),
        (f"[80746] [rank4]:{NCCL}", {"hint_rank": 4}),
        (f"    [rank4]:{NCCL}", {"hint_rank": 4}),
        (f"[2025-07-01T10:22:33.48675097Z] [rank4]:{NCCL}", {"hint_rank": 4, "time_raw_ns": 1751365353486750970}),
        (f"2024-11-20 14:37:16 [rank3]: {NCCL}", {"hint_rank": 3}),
        (f"pretrain-8b/0 [default3]:[rank11]:{NCCL}", {"hint_rank": 11, "hint_scope": "global"}),
        (f"pretrain-8b/1 [default3]:{NCCL}", {"hint_rank": 3, "hint_scope": "local"}),
        (f"(head, rank=0, pid=2410) {NCCL}", {"hint_rank": None, "hint_pid": None}),
        (f"(worker3, rank=3, pid=2410, ip=10.2.0.9) {NCCL}", {"hint_rank": None, "hint_pid": None, "hint_host": "10.2.0.9"}),
        (f"[gpu-health] [WARN] GPU-1b2c3d4e-aaaa: XID: {NCCL}", {"hint_rank": None}),
        (f"\r 10%|#   | 2/20 [00:01<00:09,  1.9it/s]\r 15%|##  | 3/20 [00:02<00:09,  1.90s/it, loss=2.1]{NCCL}", {"hint_rank": None}),
        (f"Epoch 1: 100%|####| 9/9 [00:01<00:00,  8.31it/s]\r{NCCL}", {"hint_rank": None}),
        (f"Map (num_proc=8):  70%|####   | 652/930 [00:39<00:31, 17.07 examples/s]{NCCL}", {"hint_rank": None}),
        (f"trainer-0-x7k2p pytorch {NCCL}", {"hint_host": "trainer-0-x7k2p"}),
        (f"Jul  1 10:22:33 {NCCL}", {"hint_host": None, "time_raw_ns": None}),
        (f"2025-07-01T10:22:33\t{NCCL}", {"time_kind": "local-unzoned", "time_raw_ns": 1751365353000000000}),
        (f"2025-07-01 10:22:33,5 {NCCL}", {"time_kind": "local-unzoned", "time_raw_ns": 1751365353500000000}),
        (f"Tue Jul  1 10:22:33 2025 {NCCL}", {"time_kind": "local-unzoned", "time_raw_ns": 1751365353000000000}),
        (
            f'{{"log":"{NCCL}\\n","stream":"stdout","time":"2025-07-01T10:22:33.5Z"}}',
            {"time_kind": "epoch", "time_raw_ns": 1751365353500000000},
        ),
        (
            f'{{"log": "{NCCL}\\n", "stream": "stdout", "time": "2025-07-01T10:22:33.5Z"}}',
            {"time_kind": "epoch", "time_raw_ns": 1751365353500000000},
        ),
        (f'{{"event": "line", "data": "{NCCL}\\n", "pipe": "stderr"}}', {"hint_rank": None, "time_raw_ns": None}),
        (
            f'{{"labels": {{"pod": "run-0", "x": "{{}}"}}, "line": "{NCCL}", "timestamp": "2026-04-03T08:09:10.5Z"}}',
            {"time_raw_ns": 1_775_203_750_500_000_000},
        ),
        (f"2026-11-22 10:00:00 UTC worker.1 -- [1,3]<stderr>:{NCCL}", {"hint_rank": 3, "hint_scope": "global"}),
        (f"[1,3]<stderr>:{NCCL[:9]}[1,3]<stderr>:{NCCL[9:]}[1,3]<stderr>:", {"hint_rank": 3}),
    ],
)
def test_a_prefix_is_peeled_off_and_what_it_says_is_kept(line, told):
    [row] = peeled(line)
    assert row["text"] == NCCL
    assert {name: row[name] for name in told} == told


def test_a_bar_before_a_line_of_torchs_logging_is_peeled_off():
    line = "WARNING:torch.distributed.elastic.agent.server.api:Received 1 death signal, shutting down workers"
    [row] = peeled(f" 16%|#6   | 4084/25120 [3:02:22<16:20:02,  2.80s/it]{line}")
    assert row["text"] == line
    # What another process writes over it cuts it off.
    [row] = peeled(" 16%|#6   | 4084/25120 [3:02:22<16:20:02,  2.80s/i[rank0]:[E ProcessGroupNCCL.cpp:523] text")
    assert row["text"].endswith("[E ProcessGroupNCCL.cpp:523] text")
    assert "%" not in row["text"]
    # A message of the program itself stays behind its bar.
    [row] = peeled(" 16%|#6   | 4084/25120 [3:02:22<16:20:02,  2.80s/it]WARNING:trainer:slow step")
    assert row["text"].startswith(" 16%")


@pytest.mark.parametrize(
    ("prefix", "told"),
    [
        ("{i}: ", {"hint_rank": 1, "hint_scope": "task"}),
        (" {i}: ", {"hint_rank": 1, "hint_scope": "task"}),
        ("[{i}] node02 says ", {"hint_rank": 1, "hint_scope": "global"}),
        ("[2026-11-23 20:55:55,771] [rank {i}] ", {"hint_rank": 1, "hint_scope": "global"}),
        ("svc-{i}  | ", {"hint_host": "svc-1"}),
        ("gpu-node{i}.cluster: ", {"hint_host": "gpu-node1.cluster"}),
        ("[actor{i}]:", {"hint_rank": 1, "hint_scope": "local"}),
        ("[{i}]:", {"hint_rank": 1, "hint_scope": "local"}),
        ("  | 2023-10-05T04:00:22.604-07:00 | [{i}]:", {"hint_rank": 1, "time_kind": "epoch"}),
    ],
)
def test_a_prefix_that_could_be_text_is_peeled_where_nearly_all_lines_carry_it(prefix, told):
    lines = [prefix.replace("gpu-node", "dgx").format(i=n % 2) + f"{NCCL} {n}" for n in range(20)]
    rows = peeled(*lines, "a line of another writer")
    told = {k: str(v).replace("gpu-node", "dgx") if k == "hint_host" else v for k, v in told.items()}
    assert str(rows[1]["text"]).endswith(f"{NCCL} 1")
    assert str(rows[1]["text"]) in (f"{NCCL} 1", f"node02 says {NCCL} 1")
    assert {name: rows[1][name] for name in told} == told
    assert rows[-1]["text"] == "a line of another writer"


@pytest.mark.parametrize("number", ["[{i}] ", "{i}: ", "{i} ", "{i}\t", "  {i}  "])
def test_line_numbers_of_a_viewer_are_peeled_where_they_rise_and_a_job_speaks(number):
    lines = [f"step {n}" for n in range(6)] + [NCCL]
    assert texts(*(number.format(i=812 + n) + line for n, line in enumerate(lines))) == lines
    assert texts(*(number.format(i=812 + n) + f"step {n}" for n in range(7)))[0] != "step 0"
    assert NCCL not in texts(*(number.format(i=812 - n) + line for n, line in enumerate(lines)))


def test_a_progress_bar_before_text_that_is_no_jobs_stays():
    line = " 15%|##  | 3/20 [00:02<00:09,  1.90s/it] loss 2.1"
    assert texts(line) == [line]


def test_a_task_prefix_outside_and_a_local_rank_inside_both_go_and_the_inner_one_counts():
    rows = peeled(*(f"{n % 2}: [default3]:{NCCL}" for n in range(10)))
    assert {r["text"] for r in rows} == {NCCL}
    assert {(r["hint_rank"], r["hint_scope"]) for r in rows} == {(3, "local")}


def test_a_global_rank_is_not_replaced_by_a_local_one_inside():
    [row] = peeled(f"[1,11]<stdout>:[default3]:{NCCL}")
    assert (row["text"], row["hint_rank"], row["hint_scope"]) == (NCCL, 11, "global")


@pytest.mark.parametrize(
    "line",
    [
        f"[2025-07-01 10:22:33] {NCCL}",
        "[2025-07-01 10:22:33] node01:2345:2412 [3] transport/net_ib.cc:2458 NCCL WARN NET/IB: Got completion",
        "[0] NCCL INFO Using network IB",
        "[rank3",
        "[E1118 20:32:23.955028747 ProcessGroupNCCL.cpp:629] [Rank 3] Watchdog caught",
        "[  123.456789] NVRM: Xid (PCI:0000:3b:00): 79",
        "Jul  1 10:22:33 node07 kernel: NVRM: Xid (PCI:0000:3b:00): 79",
        "Jul  1 10:22:33 node07 slurmd[811]: error: job killed",
        "2025-07-01T10:22:33.123456+00:00 node07 kernel: NVRM: Xid (PCI:0000:3b:00): 79",
        "2025-07-01T10:22:33.123456Z node07 kubelet[12]: E0701 evicted",
        '{"log":"unfinished',
    ],
)
def test_lines_with_a_head_of_their_own_are_left_as_they_are(line):
    assert texts(*[line] * 20) == [line] * 20


def test_redacted_nccl_lines_of_several_devices_keep_their_device():
    lines = [f"[{n % 4}] NCCL INFO Channel 0{n} : 0 1 2 3" for n in range(12)]
    assert texts(*lines) == lines


@pytest.mark.parametrize(
    "lines",
    [
        [f"{n}: eth{n}: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 9000" for n in range(1, 9)],
        ["Vendor: Mellanox", "Model: ConnectX-7", "State: Active", "Rate: 400"],
        [f"mlx5_{n % 4}: port {n} is up" for n in range(20)],
        ["INFO: starting", "INFO: still starting", "WARNING: slow", "INFO: done"] * 4,
        ["loss: 0.5", "loss: 0.4", "lr: 3e-4", "loss: 0.3"] * 4,
    ],
    ids=["ip-o-link", "keys", "devices", "levels", "values"],
)
def test_columns_that_are_no_prefix_are_left_as_they_are(lines):
    assert texts(*lines) == lines


def test_in_a_system_log_only_the_units_of_the_job_lose_their_heads():
    job = [f"Jul  1 10:22:3{n} node07 train.sh[99]: {NCCL}" for n in range(3)]
    other = ["Jul  1 10:22:33 node07 slurmd[811]: error: job killed", "Jul  1 10:22:33 node07 kernel: NVRM: Xid 79"]
    follows = "Jul  1 10:22:39 node07 train.sh[99]: RuntimeError: boom"
    assert texts(*job, *other, follows) == [NCCL] * 3 + other + ["RuntimeError: boom"]


def test_among_what_compose_says_of_building_an_image_the_lines_of_the_jobs_container_lose_their_heads():
    built = ["Step 1/3 : FROM base", " ---> 0a1b2c", "web_1  | listening", "Successfully built 0a1b2c", "Attaching to bench_1"]
    job = [f"bench_1  | {text}" for text in ("# nThread 1 nGpus 2", "#", "RuntimeError: boom")]
    assert texts(*built, *job) == [*built, "# nThread 1 nGpus 2", "#", "RuntimeError: boom"]
    assert texts(*built, job[2]) == [*built, job[2]], "no text of a job follows it"


def test_the_indentation_of_a_traceback_survives():
    assert texts('[rank1]: Traceback (most recent call last):', '[rank1]:   File "t.py", line 3, in f', "[rank1]: ", "[rank1]:") == [
        "Traceback (most recent call last):", '  File "t.py", line 3, in f', "", ""
    ]  # fmt: skip
    assert (
        texts("[1,0]<stderr>:Traceback (most recent call last):", '[1,0]<stderr>:  File "t.py", line 3, in f')[1]
        == '  File "t.py", line 3, in f'
    )
    assert texts("[1,0]<stderr>: Traceback (most recent call last):", '[1,0]<stderr>:   File "t.py", line 3')[1] == '  File "t.py", line 3'


def test_colours_carriage_returns_and_nuls_are_removed():
    assert texts("\x1b[1;31mred\x1b[0m\r", "\x00\x00torn\x00", "plain") == ["red", "torn", "plain"]


def test_an_inner_prefix_without_a_host_keeps_the_outer_host():
    [row] = peeled(f"[pod/worker-3/ray] (actor pid=7) {NCCL}")
    assert (row["hint_host"], row["hint_pid"], row["text"]) == ("worker-3", 7, NCCL)


def test_lines_keep_their_numbers_and_their_order():
    rows = peeled(*(f"[1,{n}]<stdout>:{n}" if n % 3 else f'{{"log":"{n}\\n","stream":"stdout","time":"x"}}' for n in range(50)))
    assert [r["line_no"] for r in rows] == list(range(1, 51))
    assert [r["text"] for r in rows] == [str(n) for n in range(50)]


def test_what_pdsh_says_itself_does_not_keep_its_hosts_from_being_a_column() -> None:
    rows = peeled(f"w0: {NCCL}", f"w1: {NCCL}", f"w0: {NCCL}", f"w1: {NCCL}", "pdsh@w0: w1: ssh exited with exit code 255")
    assert [row["hint_host"] for row in rows[:4]] == ["w0", "w1", "w0", "w1"]


def test_a_hostfile_of_addresses_and_localhost_gives_a_column_of_hosts_and_localhost_names_none() -> None:
    rows = peeled(*(f"{host}: {NCCL}" for host in ("localhost", "10.0.7.12", "localhost", "10.0.7.12")))
    assert [(row["hint_host"], row["text"]) for row in rows] == [(None, NCCL), ("10.0.7.12", NCCL)] * 2
    # Addresses with what answers from them are no hosts of a job.
    answers = [f"10.0.7.{n}: icmp_seq={n} ttl=64" for n in range(8)]
    assert texts(*answers) == answers


def test_what_a_batch_script_and_srun_say_themselves_does_not_keep_the_tasks_from_being_a_column() -> None:
    tasks = [f"{n % 4}: {NCCL} {n}" for n in range(20)]
    traced = [f"+ export NCCL_SETTING_{n}=1" for n in range(20)]
    rows = peeled(*traced, "++ hostname", *tasks, "srun: error: n1: task 3: Exited with exit code 1")
    assert [(row["hint_rank"], row["text"]) for row in rows[21:24]] == [(n, f"{NCCL} {n}") for n in range(3)]
    assert rows[0]["text"] == traced[0]


def test_tasks_that_all_speak_as_jobs_do_are_a_column_beside_whatever_their_script_printed() -> None:
    spoken = [f"setting {n}" for n in range(20)]
    tasks = [f"{n % 2}: {said}" for n, said in enumerate((NCCL, "[rank1]: Traceback (most recent call last):", "step 1", "[rank1]: E: x"))]
    told = peeled(*spoken, *tasks)[20:]
    assert [(row["hint_rank"], row["marked"]) for row in told] == [(0, False), (1, True), (0, False), (1, True)]
    listed = [f"{n}: {NCCL if n < 2 else 'text'}" for n in range(3)]
    assert peeled(*spoken, *listed)[20]["text"] == listed[0], "no text of a job behind one of the numbers"


def test_a_reply_that_quotes_a_log_and_a_program_that_passes_on_what_srun_says_are_peeled() -> None:
    assert texts("> [rank2]: Traceback (most recent call last):", "> [rank2]:     train()", ">", "> [rank2]: RuntimeError: gone") == [
        "Traceback (most recent call last):",
        "    train()",
        "",
        "RuntimeError: gone",
    ]
    assert texts("> a reply", "> without a log") == ["> a reply", "> without a log"]
    said = "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0."
    assert texts("all done", f"launch.py: srun#64: {said}", said) == ["all done", said, said]


@pytest.mark.parametrize("form", ["rank{}: ", "Rank {}: ", "rank{} | "])
def test_a_launcher_may_name_the_rank_before_each_line(form: str) -> None:
    rows = peeled(*[f"{form.format(n % 3)}[rank{n % 3}]: line {n}" for n in range(12)], "launcher: done")
    assert [(row["hint_rank"], row["hint_scope"], row["text"]) for row in rows[:2]] == [(0, "global", "line 0"), (1, "global", "line 1")]
    spoken = [f"step {n}" for n in range(12)]
    assert peeled(*spoken, "rank 3: loss 0.5")[12]["text"] == "rank 3: loss 0.5", "words of the program"


@pytest.mark.parametrize("lead", ["(RayWorkerWrapper pid=4009) ", "(worker1, rank=1, pid=27, ip=10.1.0.4) [rank4]: "])
def test_a_column_of_pytorchs_own_prefix_behind_another_one_tells_global_ranks(lead: str) -> None:
    found = peeled(*[f"{lead}[rank4]: line {n}" for n in range(12)])
    assert {(row["hint_rank"], row["hint_scope"]) for row in found} == {(4, "global")}
    assert found[3]["text"] == "line 3"


def test_the_stamps_of_a_logger_before_each_line_of_a_traceback_are_peeled_and_those_before_other_text_stay() -> None:
    stamp = "[2027-03-04 09:36:12,266] "
    trace = (
        "Traceback (most recent call last):",
        '  File "fit.py", line 7, in main',
        "    step(batch)",
        "shapes.ShapeError: 3 is not 4",
        "KeyError",
    )
    assert texts(*(stamp + line for line in trace)) == list(trace)
    others = [
        stamp + "[INFO] [engine.py:31:step] step 7",
        stamp + "Traceback of 7 steps",
        f"{stamp}{NCCL}",
        "[7] Traceback (most recent call last):",
    ]
    assert texts(*others) == others


def test_a_stamp_goes_where_nearly_all_lines_carry_one_and_a_job_speaks() -> None:
    stamped = [f"Jul  1 10:22:{n:02} {text}" for n, text in enumerate(("Traceback (most recent call last):", '  File "a.py"', "done"))]
    assert [row["text"] for row in peeled(*stamped)] == ["Traceback (most recent call last):", '  File "a.py"', "done"]
    own = [f"2025-07-01 10:22:{n:02} INFO loss {n}" for n in range(9)]
    assert [row["text"] for row in peeled(*own)] == own
    assert next(row["text"] for row in peeled(stamped[0], *["no stamp here"] * 5)) == stamped[0]


@pytest.mark.parametrize(
    "stamped",
    [
        "[2027-03-04 09:36:12,250] [rank 8] step 7",
        "2027-03-04 09:36:12.250 [rank8]: step 7",
        "[2027-03-04 09:36:12,250] Traceback (most recent call last):",
        "[2027-03-04 09:36:12 TP3] step 7",
        "[2027-03-04 09:36:12,250 E 51 77] (raylet) logging.cc:108: step 7",
    ],
)
def test_the_time_of_a_stamp_that_is_peeled_is_kept(stamped: str) -> None:
    first = peeled(*[stamped] * 8)[0]
    assert (str(first["time_raw_ns"])[:10], first["time_kind"]) == ("1804152972", "local-unzoned")


def test_a_clock_with_a_zone_counts_before_one_without_that_stands_nearer_to_the_text() -> None:
    first = peeled(*["2027-03-04T08:36:12Z stderr F [2027-03-04 09:36:12,250] [rank 8] step 7"] * 8)[0]
    assert (first["time_raw_ns"], first["time_kind"], first["hint_rank"]) == (1_804_149_372_000_000_000, "epoch", 8)
