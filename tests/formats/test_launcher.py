"""What launchers say about the end of workers."""

from __future__ import annotations

import polars as pl
import pytest

from nccl_forensics.grammar.lines import load
from nccl_forensics.reading.source import SourceReading, read_source
from tests.corpus import ROOT, corpus

MESSAGES = (ROOT / "fixtures" / "framework" / "launcher_messages.txt").read_text().rstrip("\n").split("\n")
FIELDS = ("kind", "rank", "local_rank", "host", "pid", "exit_code", "signal", "time_raw_ns")


def read(text: str) -> SourceReading:
    return read_source(text.encode() + b"\n")


def rows(text: str) -> list[dict[str, object]]:
    frame = read(text).frames.get("worker_exits")
    return [] if frame is None else [{k: r[k] for k in FIELDS if r[k] is not None} for r in frame.to_dicts()]


def test_lark_and_the_columns_read_the_messages_alike():
    grammar = load("launcher")
    extraction = grammar.extract(pl.Series(MESSAGES))
    unknown = []
    for number, message in enumerate(MESSAGES):
        parsed = grammar.parse(message)
        if parsed is None:
            unknown.append(message)
            continue
        [columns] = extraction.frames[parsed[0]].filter(pl.col("row") == number).drop("row").to_dicts()
        assert columns == parsed[1]
    assert unknown == ["Something new that nobody knows"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "E1121 00:11:33.863000 20389 torch/distributed/elastic/multiprocessing/api.py:1002] " + MESSAGES[0],
            {"kind": "failed", "exit_code": -9, "signal": "SIGKILL", "local_rank": 2, "pid": 20416, "time_raw_ns": 27994293_863000000},
        ),
        (
            "ERROR:torch.distributed.elastic.multiprocessing.api:" + MESSAGES[0],
            {"kind": "failed", "exit_code": -9, "signal": "SIGKILL", "local_rank": 2, "pid": 20416},
        ),
        (MESSAGES[1], {"kind": "failed", "exit_code": 1, "pid": 123}),
        (
            "WARNING:torch.distributed.elastic.multiprocessing.api:" + MESSAGES[2],
            {"kind": "closing-signal", "signal": "SIGTERM", "pid": 20414},
        ),
        (MESSAGES[3], {"kind": "closing-signal", "signal": "SIGKILL", "pid": 20414}),
        (MESSAGES[4], {"kind": "closing-signal", "signal": "SIGKILL", "pid": 20414}),
        (MESSAGES[5], {"kind": "launcher-signal", "signal": "SIGTERM"}),
        (MESSAGES[6], {"kind": "launcher-signal", "signal": "SIGTERM"}),
        (MESSAGES[7], {"kind": "launcher-signal", "signal": "SIGTERM", "pid": 2245}),
        (MESSAGES[8], {"kind": "restart"}),
        ("srun: error: node3: task 1: Hangup", {"kind": "task", "host": "node3", "rank": 1, "exit_code": -1, "signal": "SIGHUP"}),
        ("srun: error: node3: task 12: Killed", {"kind": "task", "host": "node3", "rank": 12, "exit_code": -9, "signal": "SIGKILL"}),
        (
            "srun: error: node3: task 0: Exited with exit code 139",
            {"kind": "task", "host": "node3", "rank": 0, "exit_code": -11, "signal": "SIGSEGV"},
        ),
        ("srun: error: node3: task 7: Out Of Memory", {"kind": "task", "host": "node3", "rank": 7, "exit_code": -9, "signal": "SIGKILL"}),
        (MESSAGES[14], {"kind": "scheduler", "host": "n1", "time_raw_ns": 1795219200 * 10**9}),
        (MESSAGES[15], {"kind": "scheduler", "host": "n1", "time_raw_ns": 1795219200 * 10**9}),
        (MESSAGES[17], {"kind": "scheduler-oom"}),
        (MESSAGES[18], {"kind": "scheduler-oom"}),
        (MESSAGES[20], {"kind": "scheduler", "host": "n2"}),
        (MESSAGES[21], {"kind": "scheduler-note"}),
        (MESSAGES[23], {"kind": "failure", "rank": 3, "pid": 12345, "host": "n1", "exit_code": -9, "signal": "SIGKILL"}),
        (MESSAGES[33], {"kind": "shell", "pid": 12345, "exit_code": -9, "signal": "SIGKILL"}),
        (MESSAGES[34], {"kind": "shell", "pid": 12345, "exit_code": -11, "signal": "SIGSEGV"}),
        (f"(main pid=9) (raylet) {MESSAGES[37]}", {"kind": "lost", "host": "10.9.0.4", "pid": 4711}),
        (MESSAGES[38], {"kind": "memory-monitor", "host": "10.9.0.4", "pid": 4711}),
        (MESSAGES[40], {"kind": "lost"}),
        (MESSAGES[42], {"kind": "memory-monitor", "host": "10.9.0.4", "pid": 4711}),
        (
            "W1122 13:06:30.482000 12899 torch/multiprocessing/spawn.py:174] Terminating process 13182 via signal SIGTERM",
            {"kind": "closing-signal", "pid": 13182, "signal": "SIGTERM", "time_raw_ns": 28127190_482000000},
        ),
        (
            "torch.multiprocessing.spawn.ProcessExitedException: process 2 terminated with signal SIGSEGV",
            {"kind": "failed", "local_rank": 2, "exit_code": -11, "signal": "SIGSEGV"},
        ),
        (
            "torch.multiprocessing.spawn.ProcessExitedException: process 2 terminated with exit code 3",
            {"kind": "failed", "local_rank": 2, "exit_code": 3},
        ),
        ("-- Process 3 terminated with the following error:", {"kind": "failed", "local_rank": 3, "exit_code": 1}),
        ("[default] worker group successfully finished. Waiting 300 seconds for other agents to finish.", {"kind": "finished"}),
    ],
)
def test_a_line_that_stands_for_itself(line: str, expected: dict[str, object]):
    assert rows(line) == [expected]


def test_what_torchrun_prints_of_the_exception_of_its_own_parent_is_no_second_end():
    prefix = "E1122 12:59:38.091000 5747 torch/distributed/elastic/multiprocessing/api.py:836] "
    assert rows(prefix + "torch.multiprocessing.spawn.ProcessExitedException: process 2 terminated with signal SIGABRT") == []


def test_several_tasks_of_several_hosts_are_one_row_each_without_a_host():
    assert [(r["rank"], r["exit_code"], r.get("host")) for r in rows(MESSAGES[10])] == [(8, 1, None), (9, 1, None), (12, 1, None)]


def test_open_mpis_wrapped_line_is_read_with_the_one_below():
    text = MESSAGES[24] + "\nsignal 11 (Segmentation fault)."
    assert rows(text) == [{"kind": "failure", "rank": 3, "pid": 12345, "host": "n1", "exit_code": -11, "signal": "SIGSEGV"}]
    assert read(text).foreign == 0


def test_horovod_tells_the_rank_or_the_slot_of_the_process_that_ended_first():
    said = "RuntimeError: Horovod detected that one or more processes exited with non-zero status, thus causing the job to be terminated."
    assert rows(f"{said} The first process to do so was:\nProcess name: 6\nExit code: 137\n") == [
        {"kind": "failure", "rank": 6, "exit_code": -9, "signal": "SIGKILL"}
    ]
    assert rows("Process name: train-worker-4[1]\nExit code: 1\n") == [
        {"kind": "failure", "host": "train-worker-4", "local_rank": 1, "exit_code": 1}
    ]
    assert rows("Process 2 exit with status code 139.") == [{"kind": "failure", "rank": 2, "exit_code": -11, "signal": "SIGSEGV"}]
    assert rows("Process name: python3\nProcess 2 exits with a status code") == []


def test_a_launcher_of_ones_own_tells_how_its_ranks_ended():
    assert rows("launcher: rank 3 (pid 4711) exited with code -11") == [
        {"kind": "failure", "rank": 3, "pid": 4711, "exit_code": -11, "signal": "SIGSEGV"}
    ]
    assert rows("rank 2 exit code 137") == [{"kind": "failure", "rank": 2, "exit_code": -9, "signal": "SIGKILL"}]
    assert rows("rank 2 exited with exit code 0") == []
    assert rows("rank 2 of the mesh has no exit code 3") == []


def test_pals_tells_who_died_and_whom_it_ended_itself():
    died = rows(
        "x2001c0s3b1n0.hsn.example: rank 5 died from signal 6 and dumped core\nx2001c0s3b1n0.hsn.example: rank 4 died from signal 15\n"
    )
    host = "x2001c0s3b1n0.hsn.example"
    assert died == [
        {"kind": "failure", "rank": 5, "host": host, "exit_code": -6, "signal": "SIGABRT"},
        {"kind": "closing-signal", "rank": 4, "host": host, "signal": "SIGTERM"},
    ]
    assert rows("nid001234: rank 0 exited with code 1") == [{"kind": "failure", "rank": 0, "host": "nid001234", "exit_code": 1}]
    assert rows("nid001234: rank 0 exited with code 0") == []
    assert rows("the patient of rank 2 died from signal loss") == []


def test_workers_that_a_function_was_started_in_are_closed_in_other_words():
    prefix = "W1123 21:21:50.614000 10404 torch/distributed/elastic/multiprocessing/api.py:871] "
    assert [(r["kind"], r["pid"], r["signal"]) for r in rows(prefix + "Closing process 10510 via signal SIGTERM")] == [
        ("closing-signal", 10510, "SIGTERM")
    ]


def test_an_mpi_abort_tells_rank_and_code():
    assert rows(MESSAGES[25] + "\nwith errorcode 7.") == [{"kind": "failure", "rank": 2, "exit_code": 7}]


def test_open_mpis_process_name_tells_the_rank():
    text = "mpirun detected that one or more processes exited with non-zero status\n\n  Process name: [[24154,1],3]\n  Exit code:    1"
    assert rows(text) == [{"kind": "failure", "rank": 3, "exit_code": 1}]


def test_hydras_block_is_one_row():
    block = "===\n=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   RANK 3 PID 1234 RUNNING AT node1\n=   KILLED BY SIGNAL: 9 (Killed)\n==="
    assert rows(block) == [{"kind": "failure", "rank": 3, "pid": 1234, "host": "node1", "exit_code": -9, "signal": "SIGKILL"}]


def test_hydras_last_line_tells_the_signal_too():
    block = "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   EXIT CODE: 135\nTHE END"
    said = block.replace("THE END", "APPLICATION TERMINATED WITH THE EXIT STRING: Bus error (signal 7)")
    for text in (block, said, said.replace("=   EXIT CODE: 135\n", "")):
        [row] = rows(text)
        assert row["signal"] == "SIGBUS"


BLOCK = """============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-21_00:11:47
  host      : node-a
  rank      : 8 (local_rank: 0)
  exitcode  : -15 (pid: 20748)  (SIGTERM)
  error_file: /tmp/x/attempt_0/0/error.json
  traceback : Traceback (most recent call last):
    File "/venv/lib/python3.11/site-packages/torch/distributed/elastic/multiprocessing/errors/__init__.py", line 367, in wrapper
      return f(*args, **kwargs)
             ^^^^^^^^^^^^^^^^^^
    File "/home/u/train.py", line 37, in sync
      dist.all_reduce(flat)
  RuntimeError: bad shard
  password=hunter2

------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_00:11:47
  host      : node-a
  rank      : 9 (local_rank: 1)
  exitcode  : -9 (pid: 20749)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 20749
============================================================"""


def test_a_failure_block_gives_a_row_for_each_worker():
    assert rows(BLOCK) == [
        {
            "kind": "failure",
            "rank": 8,
            "local_rank": 0,
            "host": "node-a",
            "pid": 20748,
            "exit_code": -15,
            "signal": "SIGTERM",
            "time_raw_ns": 1795219907 * 10**9,
        },
        {
            "kind": "root-cause",
            "rank": 9,
            "local_rank": 1,
            "host": "node-a",
            "pid": 20749,
            "exit_code": -9,
            "signal": "SIGKILL",
            "time_raw_ns": 1795219907 * 10**9,
        },
    ]


def test_every_line_of_a_failure_block_is_a_record_line():
    reading = read("before\n" + BLOCK + "\nafter")
    assert (reading.records, reading.foreign, reading.gap_lines) == (29, 2, 0)


def test_the_traceback_of_a_failure_block_is_an_exception_of_that_rank():
    [found] = read(BLOCK).frames["exceptions"].to_dicts()
    assert (found["rank"], found["pid"], found["type"], found["frame"]) == (8, 20748, "RuntimeError", "sync (train.py:37)")
    assert found["message"] == "bad shard\npassword=***"
    exits = read(BLOCK).frames["worker_exits"]
    assert exits["has_traceback"].to_list() == [True, False]
    assert exits["message"][0].startswith("RuntimeError: bad shard")


def test_a_lone_root_cause_is_read():
    text = BLOCK.replace(BLOCK[BLOCK.index("[1]:") : BLOCK.index("---", BLOCK.index("[1]:"))], "  <NO_OTHER_FAILURES>\n")
    assert [(r["kind"], r["rank"]) for r in rows(text)] == [("root-cause", 9)]
    assert read(text).foreign == 0


def test_blocks_of_two_agents_that_interleave_are_kept_apart():
    other = BLOCK.replace("node-a", "node-b").replace("rank      : 8", "rank      : 16").replace("rank      : 9", "rank      : 17")
    mixed = [line for a, b in zip(BLOCK.split("\n"), other.split("\n"), strict=True) for line in ("0: " + a, "1: " + b)]
    assert sorted((str(r["host"]), r["rank"]) for r in rows("\n".join(mixed))) == [
        ("node-a", 8),
        ("node-a", 9),
        ("node-b", 16),
        ("node-b", 17),
    ]


def test_a_traceback_that_is_cut_off_before_what_was_raised_says_nothing():
    lines = BLOCK.split("\n")
    at = next(n for n, line in enumerate(lines) if "traceback : Traceback" in line)
    [row] = read("\n".join(lines[: at + 2])).frames["worker_exits"].select("rank", "has_traceback", "message").rows()
    assert row == (8, True, None)


def test_a_block_that_is_cut_off_does_not_swallow_what_follows():
    cut = "\n".join(BLOCK.split("\n")[:9]) + "\n2026-11-21 00:12:00 next run\n  indented\n" * 3
    reading = read(cut)
    assert [(r["rank"], r["exit_code"]) for r in rows(cut)] == [(8, -15)]
    assert reading.foreign == 9


def test_the_word_failures_alone_makes_no_row():
    reading = read("Failures:\nnone so far\n[1]:\n  rank      : 1 (local_rank: 1)")
    assert "worker_exits" not in reading.frames


def test_launcher_logs_of_the_lab_leave_nothing_unread():
    paths = sorted(corpus("lab").glob("*/evidence/logs/torchrun.log"))
    assert paths
    for path in paths:
        if not path.stat().st_size:
            continue
        reading = read_source(path.read_bytes())
        blank = sum(1 for line in path.read_text().split("\n") if not line.strip())
        assert reading.gap_lines == 0, path
        assert reading.unmodelled == 0, path
        assert reading.foreign <= blank, path


def test_the_end_of_a_real_slurm_job_is_read():
    frame = read_source(corpus("public/corigpu-mpi-cuda-segv/evidence/slurm-405737.out").read_bytes()).frames["worker_exits"]
    ends = frame.filter(pl.col("kind") == "task").select("host", "rank", "signal").rows()
    assert ends == [("cgpu12", 0, "SIGSEGV"), ("cgpu12", 1, "SIGTERM")]


def test_a_job_that_slurm_ended_is_told_with_and_without_the_time() -> None:
    [timed] = rows("slurmstepd: error: *** JOB 42221 ON clr1247 CANCELLED AT 2022-04-14T16:20:46 DUE TO TIME LIMIT ***")
    [bare] = rows("slurmstepd: error: *** JOB 42221 ON clr1247 CANCELLED DUE TO TIME LIMIT ***")
    assert timed.pop("time_raw_ns") is not None
    assert bare == timed == {"kind": "scheduler", "host": "clr1247"}
    assert rows("slurmstepd: error: *** JOB 42221 ON clr1247 WAS CANCELLED ***") == []


def test_slurms_daemon_may_bear_the_name_of_its_node() -> None:
    [job] = rows("slurmstepd-gpu-07: error: *** JOB 42221 ON gpu-07 CANCELLED AT 2025-04-14T16:20:46 DUE TO PREEMPTION ***")
    assert (job["kind"], job["host"]) == ("scheduler", "gpu-07")
    assert rows("slurmstepd-gpu-07: error: Detected 2 oom_kill events in StepId=11.0.") == [{"kind": "scheduler-oom", "host": "gpu-07"}]
    assert rows("slurmstepd-gpu-07: error: couldn't chdir to /tmp/x: No such file or directory: going to /tmp instead") == []


def test_rays_count_of_workers_tells_those_that_it_killed_and_those_that_ended_by_themselves():
    stamp = "[2026-11-22 10:00:00,117 E 77 77] (raylet) node_manager.cc:3069: "
    at = {"host": "10.9.0.4", "time_raw_ns": 1_795_341_600_117_000_000}
    assert rows(stamp + MESSAGES[41]) == [{"kind": "memory-monitor", **at}, {"kind": "lost", **at}]
    assert [r["kind"] for r in rows(MESSAGES[41].replace("2 Workers", "0 Workers"))] == ["lost"]


def test_an_actor_that_ended_as_it_was_asked_to_is_no_loss():
    assert rows(MESSAGES[39]) == []


def test_of_a_chain_in_a_failure_block_the_root_is_what_the_rank_died_of():
    chained = BLOCK.replace(
        "  RuntimeError: bad shard\n",
        "  torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 40.00 MiB.\n  \n"
        "  The above exception was the direct cause of the following exception:\n  \n"
        "  Traceback (most recent call last):\n"
        '    File "/job/stage.py", line 7, in forward\n      raise RuntimeError(told) from e\n'
        "  RuntimeError: \n              [Stage 1] failed to run forward:\n",
    )
    assert chained != BLOCK
    [found] = read(chained).frames["exceptions"].to_dicts()
    assert (found["rank"], found["type"], found["frame"]) == (8, "torch.OutOfMemoryError", "sync (train.py:37)")
    assert "RuntimeError: \n[Stage 1] failed to run forward:" in found["message"]


def test_an_exception_whose_message_begins_in_the_next_line_is_read():
    [found] = read(BLOCK.replace("RuntimeError: bad shard", "RuntimeError: \n          bad shard")).frames["exceptions"].to_dicts()
    assert (found["rank"], found["type"]) == (8, "RuntimeError")
    assert found["message"].startswith("\nbad shard")


@pytest.mark.parametrize("line", ["dist_world_size=16", "  global_world_sizes=[16, 16]", "global_world_sizes=[16]"])
def test_a_launcher_tells_how_many_ranks_it_starts(line: str) -> None:
    head = "[2026-01-07 10:00:00,123] [INFO] [launch.py:164:main] " if line.startswith("dist") else ""
    [row] = read(f"{head}{line}\n").frames["launches"].to_dicts()
    assert (row["nranks"], row["line_no"]) == (16, 1)


def test_torchs_logging_of_2_1_stands_before_what_torchrun_says() -> None:
    [row] = rows(
        "[2024-03-04 05:06:07,089] torch.distributed.elastic.multiprocessing.api: [ERROR] failed (exitcode: -6) local_rank: 5 (pid: 41) of binary: /usr/bin/python3\n"
    )
    assert (row["kind"], row["local_rank"], row["signal"]) == ("failed", 5, "SIGABRT")


def test_slurms_daemon_may_stamp_its_words_in_place_of_its_name() -> None:
    text = "[2026-01-07T13:04:00.979] error: *** JOB 99 ON n7 CANCELLED AT 2026-01-07T13:04:00 DUE to SIGNAL Terminated ***\n[2026-01-07T13:05:00.1] error: Detected 1 oom_kill event in StepId=99.0. Some of the step tasks have been OOM Killed.\n"
    assert [row["kind"] for row in rows(text)] == ["scheduler", "scheduler-oom"]
    assert rows("[2026-01-07T13:05:00.1] error: Detected 1 bad sector\n") == []


def test_a_worker_that_vllm_misses_is_lost_without_its_rank() -> None:
    [row] = rows("Worker proc VllmWorker-3 died unexpectedly (exit code: None), shutting down executor.\n")
    assert (row["kind"], row.get("rank")) == ("lost", None)
