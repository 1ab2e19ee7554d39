"""Tracebacks, terminate blocks, fatal signals, error files."""

from __future__ import annotations

import json
import time

import pytest

from nccl_forensics.reading.source import SourceReading, read_source
from tests.corpus import corpus

TORCH = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
TRACEBACK = f"""Traceback (most recent call last):
  File "/home/u/train.py", line 50, in <module>
    main()
    ^^^^^^
  File "/home/u/train.py", line 39, in step
    dist.all_reduce(x)
  File "{TORCH}", line 2700, in all_reduce
    work.wait()
RuntimeError: [/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:19333. This is typically caused by a remote worker crashing."""


def read(text: str) -> SourceReading:
    return read_source(text.encode() + b"\n")


def rows(text: str, table: str = "exceptions") -> list[dict[str, object]]:
    frame = read(text).frames.get(table)
    return [] if frame is None else [{k: v for k, v in r.items() if v is not None} for r in frame.to_dicts()]


def prefixed(text: str, prefix: str) -> str:
    return "\n".join(prefix + line for line in text.split("\n"))


def test_a_traceback_gives_type_message_frames_and_peer():
    [found] = rows(TRACEBACK)
    assert found == {
        "line_no": 1,
        "end_line": 9,
        "kind": "python",
        "type": "RuntimeError",
        "message": "[/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:19333. "
        "This is typically caused by a remote worker crashing.",
        "signature": "gloo-closed",
        "frame": "step (train.py:39)",
        "frames": f"all_reduce ({TORCH}:2700)\nstep (/home/u/train.py:39)\n<module> (/home/u/train.py:50)",
        "peer": "[127.0.0.1]:19333",
    }


def test_every_line_of_a_traceback_is_a_record_line_and_the_rest_is_not():
    reading = read("epoch 1\n" + TRACEBACK + "\n\nbye")
    assert (reading.lines, reading.records, reading.foreign, reading.gap_lines) == (12, 9, 3, 0)


def test_tracebacks_of_two_ranks_that_interleave_are_kept_apart():
    first, second = prefixed(TRACEBACK, "[rank0]: ").split("\n"), prefixed(TRACEBACK.replace("line 39", "line 77"), "[rank1]: ").split("\n")
    mixed = "\n".join(line for pair in zip(first, second, strict=True) for line in pair)
    assert [(r["hint_rank"], r["frame"]) for r in rows(mixed)] == [(0, "step (train.py:39)"), (1, "step (train.py:77)")]


def test_prefixed_lines_do_not_break_a_traceback_without_prefix():
    lines = TRACEBACK.split("\n")
    lines.insert(
        4,
        "[rank5]:[E709 17:05:38.162555850 ProcessGroupNCCL.cpp:632] [Rank 5] To avoid data inconsistency, we are taking the entire process down.",
    )
    [found] = rows("\n".join(lines))
    assert found["frame"] == "step (train.py:39)"


CHAINED = (
    """Traceback (most recent call last):
  File "/home/u/data.py", line 7, in load
    raise ValueError("bad shard 17")
ValueError: bad shard 17

The above exception was the direct cause of the following exception:

"""
    + TRACEBACK
)


def test_of_chained_exceptions_the_root_gives_the_row():
    [found] = rows(CHAINED)
    assert (found["type"], found["frame"], found["end_line"]) == ("ValueError", "load (data.py:7)", 16)
    assert str(found["message"]).startswith("bad shard 17\nRuntimeError: [/gloo/")


def test_a_user_exception_behind_which_a_known_one_stands_is_known_by_that_one():
    [found] = rows(
        CHAINED.replace(
            "The above exception was the direct cause of the following exception:",
            "During handling of the above exception, another exception occurred:",
        )
    )
    assert found["signature"] == "gloo-closed"


NCCL_ERROR = """torch.distributed.DistBackendError: NCCL error in: /pytorch/ProcessGroupNCCL.cpp:3690, unhandled cuda error, NCCL version 2.27.5
ncclUnhandledCudaError: Call to CUDA function failed.
Last error:
Cuda failure 2 'out of memory'"""


def test_the_last_error_line_of_nccl_belongs_to_the_message_and_decides():
    [found] = rows(TRACEBACK.rsplit("\n", 1)[0] + "\n" + NCCL_ERROR)
    assert (found["signature"], found["type"], found["end_line"]) == ("cuda-oom", "torch.distributed.DistBackendError", 12)


CUDA = """RuntimeError: CUDA error: an illegal memory access was encountered
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.

Exception raised from c10_cuda_check_implementation at /pytorch/c10/cuda/CUDAException.cpp:43 (most recent call first):
frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x98 (0x7f in /venv/libc10.so)
frame #1: clone + 0x43 (0x15 in /lib64/libc.so.6)"""


@pytest.mark.parametrize(
    ("line", "signature"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB", "cuda-oom"),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "cuda-error"),
        ("RuntimeError: Triton Error [CUDA]: an illegal memory access was encountered", "cuda-error"),
        ("torch.distributed.DistStoreError: Timed out after 1801 seconds waiting for clients. 1/3 clients joined.", "store-timeout"),
        ("TimeoutError: The client socket has timed out after 1800s while trying to connect to (127.0.0.1, 5738).", "store-unreachable"),
        ("RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)", "nccl-cuda"),
        ("RuntimeError: NCCL error in: ../ProcessGroupNCCL.cpp:1970, remote process exited or there was a network error", "nccl-remote"),
        ("RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.2.0.9]:28048", "gloo-closed"),
    ],
)
def test_the_last_line_of_a_traceback_counts_without_its_frames_where_a_library_wrote_it(line: str, signature: str):
    [found] = rows(f"step 3\n{line}\n\nstep 4")
    assert (found["signature"], found["line_no"], found["end_line"]) == (signature, 2, 2)


def test_a_programs_own_exception_without_its_frames_is_text():
    assert rows("step 3\nValueError: Timed out after lunch\nstep 4") == []


def test_nccls_last_warning_is_read_where_the_lines_above_it_are_torn():
    text = (
        "torch.distributedtorch.distributed.DistBackendError.: DistBackendErrorNCCL error in: ../NCCLUtils.hpp:275, invalid usage\n"
        "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\n"
        "Duplicate GPU detected : rank 3 and rank 2 both on CUDA device 8e000"
    )
    [found] = rows(text, "nccl_errors")
    assert (found["kind"], found["line_no"]) == ("duplicate-gpu", 4)


def test_a_native_stack_belongs_to_the_traceback_and_not_to_its_message():
    reading = read(TRACEBACK.rsplit("\n", 1)[0] + "\n" + CUDA + "\n\nafterwards")
    [found] = reading.frames["exceptions"].to_dicts()
    assert (found["signature"], found["end_line"], reading.foreign) == ("cuda-error", 16, 2)
    assert "frame #0" not in found["message"]


def test_what_is_printed_after_an_exception_is_not_its_message():
    [found] = rows(TRACEBACK + "\n2026-11-21 00:00:01 rank 3 saves\nmore")
    assert found["end_line"] == 9


@pytest.mark.parametrize("cut", [2, 5, 8])
def test_a_truncated_traceback_is_a_gap(cut: int):
    reading = read("\n".join(TRACEBACK.split("\n")[:cut]))
    assert "exceptions" not in reading.frames
    assert reading.frames["gaps"].select("line_no", "end_line", "reason").rows() == [(1, cut, "truncated or torn traceback")]
    assert (reading.records, reading.gap_lines, reading.foreign) == (0, cut, 0)


def test_headings_inside_a_torn_traceback_are_not_tried_again():
    started = time.process_time()
    reading = read("Traceback (most recent call last):\n" + "  Traceback (most recent call last):\n" * 20_000)
    assert reading.gap_lines + reading.foreign == reading.lines == 20_002
    assert time.process_time() - started < 20


def test_the_launchers_own_traceback_is_no_exception_of_a_rank():
    text = TRACEBACK.rsplit("\n", 1)[0] + "\ntorch.distributed.elastic.multiprocessing.api.SignalException: Process 2245 got signal: 15"
    assert rows(text) == []
    assert read(text).foreign == 0


TERMINATE = """terminate called after throwing an instance of 'c10::DistBackendError'
  what():  [PG ID 0 PG GUID 0(default_pg) Rank 7] Process group watchdog thread terminated with exception: NCCL error: unhandled cuda error
ncclUnhandledCudaError: Call to CUDA function failed.
Last error:
Cuda failure 719 'unspecified launch failure'
Exception raised from checkTimeout at /torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:565 (most recent call first):
frame #0: c10::Error::Error(c10::SourceLocation) + 0xa9 (0x151c7cd9d6f9 in /x/libc10.so)

Fatal Python error: Aborted"""


def test_a_terminate_block_is_one_row_with_all_lines_of_its_message():
    [found] = rows(TERMINATE)
    assert (found["type"], found["rank"], found["signature"], found["end_line"]) == ("c10::DistBackendError", 7, "cuda-error", 7)
    assert read(TERMINATE).foreign == 1  # the blank line


def test_a_what_line_far_below_its_start_is_found():
    lines = TERMINATE.split("\n")
    noise = [f"[rank3]:[I709 17:05:38.1 ProcessGroupNCCL.cpp:{n}] [Rank 3] ProcessGroupNCCL {n}" for n in range(20)]
    [found] = rows("\n".join([lines[0], *noise, *lines[1:]]))
    assert found["signature"] == "cuda-error"


def test_an_error_of_the_backend_without_its_text_is_no_fault_of_the_rank_that_throws_it():
    [cut] = rows("terminate called after throwing an instance of 'c10::DistBackendError'")
    assert (cut["type"], cut["signature"]) == ("c10::DistBackendError", "nccl-follow-up")
    [own] = rows("terminate called after throwing an instance of 'std::logic_error'\n  what():  table is empty")
    assert own["signature"] == "user"


@pytest.mark.parametrize(
    "line",
    [
        "HW Exception by GPU node-9 (Agent handle: 0x5b5e27441f40) reason :GPU Hang",
        "Memory access fault by GPU node-2 (Agent handle: 0x7f30) on address 0x7f1200000000. Reason: Unknown.",
    ],
)
def test_the_last_words_of_rocms_runtime_tell_of_the_gpu(line: str) -> None:
    [found] = rows(f"{line}\nAborted (core dumped)")[:1]
    assert (found["type"], found["signature"], found["message"]) == ("HSA", "cuda-error", line)
    assert rows(f"see the thread about {line.lower()}") == []


def test_an_abort_that_ends_a_terminate_block_is_not_a_second_fault():
    assert [r["kind"] for r in rows(TERMINATE)] == ["cpp-terminate"]
    assert [r["type"] for r in rows("Fatal Python error: Aborted")] == ["SIGABRT"]


@pytest.mark.parametrize(
    ("line", "signal"),
    [
        ("Fatal Python error: Segmentation fault", "SIGSEGV"),
        ("[cgpu12:56309:2:56362] Caught signal 11 (Segmentation fault: address not mapped to object at address 0x20)", "SIGSEGV"),
        ("*** SIGSEGV received at time=1700000000 on cpu 3 ***", "SIGSEGV"),
        ("[node1:123] Signal: Bus error (7)", "SIGBUS"),
        ("Bus error (core dumped)", "SIGBUS"),
        ("Segmentation fault (core dumped)", "SIGSEGV"),
    ],
)
def test_a_fatal_signal_is_a_row(line: str, signal: str):
    [found] = rows(line)
    assert (found["kind"], found["type"], found["signature"]) == ("fatal-signal", signal, "signal")


def test_the_display_server_that_crashed_is_no_process_of_the_job():
    # A report of nvidia-bug-report.sh holds the log of the display server.
    assert rows("[  1527.588] (EE) Caught signal 11 (Segmentation fault). Server aborting") == []


def test_open_mpis_block_of_one_crash_is_one_row():
    assert len(rows("[n1:12] *** Process received signal ***\n[n1:12] Signal: Segmentation fault (11)\n[n1:12] Signal code: (1)")) == 1


UCX = """[n:56309:2:56362] Caught signal 11 (Segmentation fault: address not mapped to object at address 0x20)
==== backtrace ====
    0  /usr/ucx/lib/libucs.so.0(+0x2293c) [0x2aab23b7a93c]
    1  /usr/ucx/lib/libuct.so.0(uct_rkey_release+0xe) [0x2aab2393f51e]
===================
next"""
OPEN_MPI = """[n1:12] *** Process received signal ***
[n1:12] Signal: Segmentation fault (11)
[n1:12] Signal code: Address not mapped (1)
[n1:12] Failing at address: 0x20
[n1:12] [ 0] /lib64/libpthread.so.0(+0x12ce0)[0x7f1]
[n1:12] [ 1] /opt/libnccl.so.2(ncclAllReduce+0x1f)[0x7f2]
[n1:12] *** End of error message ***
next"""


@pytest.mark.parametrize(
    ("text", "frames"),
    [(UCX, "?? (libucs.so.0)\nuct_rkey_release (libuct.so.0)"), (OPEN_MPI, "?? (libpthread.so.0)\nncclAllReduce (libnccl.so.2)")],
)
def test_the_native_stack_below_a_signal_belongs_to_it(text: str, frames: str):
    [found] = rows(text)
    assert (found["type"], found["frames"], found["end_line"]) == ("SIGSEGV", frames, text.count("\n"))
    assert read(text).foreign == 1


FINGERPRINT = "CollectiveFingerPrint(SequenceNumber=17, OpType={}, TensorShape=[{}], TensorDtypes=Float, TensorDeviceTypes=TensorOptions(dtype=float (default), device=cpu))"
MISMATCH = (
    f"RuntimeError: Detected mismatch between collectives on ranks. Rank 3 is running collective: {FINGERPRINT.format('BROADCAST', 2)}, "
    f"but Rank 0 is running collective: {FINGERPRINT.format('ALLREDUCE', 1)}.Collectives differ in the following aspects: "
    "\t Op type: BROADCASTvs ALLREDUCE \t Tensor Tensor shapes: 2vs 1"
)


def test_a_mismatch_tells_both_sides_and_in_what_they_differ():
    text = 'Traceback (most recent call last):\n  File "/home/u/t.py", line 1, in f\n' + MISMATCH
    [found] = rows(text, "reports")
    assert found == {
        "line_no": 1,
        "end_line": 3,
        "kind": "detail-mismatch",
        "rank": 3,
        "ranks": [0],
        "seq": 17,
        "op": "BROADCAST",
        "other_op": "ALLREDUCE",
        "differs": "op,shape",
        "detail": "[2] Float",
        "other_detail": "[1] Float",
    }


@pytest.mark.parametrize(
    ("message", "report"),
    [
        (
            "[Rank 0]: Ranks 2, 4 failed to pass monitoredBarrier in 12000 ms",
            {"kind": "barrier-missing", "ranks": [2, 4], "timeout_ms": 12000},
        ),
        ("[Rank 0]: Rank 3 timed out in monitoredBarrier after 50 ms.", {"kind": "barrier-missing", "ranks": [3], "timeout_ms": 50}),
        ("Rank 1 successfully reached monitoredBarrier, but received errors while waiting", {"kind": "barrier-ok", "rank": 1}),
        (
            "Expected to have finished reduction in the prior iteration\nParameters which did not receive grad for rank 1: aux.bias, aux.weight\n"
            "Parameter indices which did not receive grad for rank 1: 2 3",
            {"kind": "ddp-unused", "rank": 1, "ranks": [1], "detail": "aux.bias, aux.weight"},
        ),
        (
            "Expected to have finished reduction in the prior iteration\nParameter indices which did not receive grad for rank 1: 2 3",
            {"kind": "ddp-unused", "rank": 1, "ranks": [1], "detail": "indices 2 3"},
        ),
    ],
)
def test_what_a_message_says_about_ranks_is_a_report(message: str, report: dict[str, object]):
    [found] = rows('Traceback (most recent call last):\n  File "/home/u/t.py", line 1, in f\nRuntimeError: ' + message, "reports")
    assert {k: v for k, v in found.items() if k not in ("line_no", "end_line")} == report


def test_secrets_in_a_message_are_masked():
    [found] = rows(TRACEBACK.rsplit("\n", 1)[0] + "\nValueError: cannot reach https://me:hunter2@host/x with api_key=abcdef123456")
    assert "hunter2" not in str(found)
    assert "abcdef123456" not in str(found)


def test_an_error_file_tells_exception_frame_and_time():
    message = {"message": "RuntimeError: bad shard", "extraInfo": {"py_callstack": TRACEBACK, "timestamp": "1795219527"}}
    reading = read_source(json.dumps({"message": message}).encode())
    [found] = [{k: v for k, v in r.items() if v is not None} for r in reading.frames["exceptions"].drop("frames").to_dicts()]
    assert reading.formats == ("torchelastic-error",)
    assert found == {
        "line_no": 1,
        "kind": "error-file",
        "type": "RuntimeError",
        "message": "bad shard",
        "signature": "user",
        "frame": "step (train.py:39)",
        "time_raw_ns": 1795219527 * 10**9,
        "time_kind": "epoch",
    }


def test_a_broken_error_file_is_a_gap():
    reading = read_source(b'{"message": {"message": "RuntimeError: x", "extraInfo": {"py_call')
    assert reading.error is not None


def test_each_rank_of_the_lab_that_raised_has_one_exception():
    paths = [p for p in sorted(corpus("lab").glob("*/evidence/logs/**/stderr.log")) if "Traceback (most" in p.read_text()]
    assert paths
    for path in paths:
        found = read_source(path.read_bytes()).frames["exceptions"]
        assert found["kind"].to_list() == ["python"], path
        assert found["frame"].null_count() == 0, path


def test_the_aborting_rank_of_a_size_mismatch_is_no_second_fault():
    path = corpus("lab/dtype_mismatch_rank2/evidence/logs/attempt_0/1/stderr.log")
    assert read_source(path.read_bytes()).frames["exceptions"]["signature"].to_list() == ["gloo-size-mismatch"]


def test_a_crash_of_a_gpu_in_a_real_log_is_known():
    path = corpus("public/crash-bloom-cuda-unknown-error/evidence/chronicles-lines-79-91.md")
    [found] = read_source(path.read_bytes()).frames["exceptions"].to_dicts()
    assert (found["type"], found["signature"], found["message"]) == ("c10::CUDAError", "cuda-error", "CUDA error: unknown error")


def test_every_rank_of_a_real_hang_is_named_by_its_terminate_block():
    path = corpus("public/nccl220-polaris-8r-ofi-hang-20250626/evidence/with_aws.log")
    found = read_source(path.read_bytes()).frames["exceptions"]
    assert sorted(found["rank"]) == list(range(8))
    assert found["signature"].unique().to_list() == ["nccl-timeout"]


UNHANDLED = """torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:317, unhandled system error, NCCL version 2.26.2
ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.
Last error:
"""


def test_the_last_error_of_nccl_in_an_exception_is_a_warning_of_nccl():
    text = TRACEBACK.rsplit("\n", 1)[0] + "\n" + UNHANDLED + "Call to ibv_reg_mr failed with error Cannot allocate memory"
    [found] = rows(prefixed(text, "[rank3]: "), "nccl_errors")
    assert (found["line_no"], found["level"], found["kind"], found["hint_rank"]) == (12, "WARN", "ibv-call", 3)
    assert found["message"] == "Call to ibv_reg_mr failed with error Cannot allocate memory"


def test_it_is_found_in_what_a_watchdog_throws_too():
    said = "[PG ID 0 PG GUID 0(default_pg) Rank 9] Process group watchdog thread terminated with exception: " + UNHANDLED
    end = "NET/IB: Got completion from peer 10.8.0.13<41003> with status=12 opcode=1 len=0 vendor err 129 (Send) hca mlx5_3"
    block = f"terminate called after throwing an instance of 'c10::DistBackendError'\n  what():  {said}{end}\nException raised from checkForNCCLErrorsInternal at ../x.cpp:1 (most recent call first):"
    [found] = rows(block, "nccl_errors")
    assert (found["line_no"], found["kind"], found["peer"], found["number"]) == (5, "ib-completion", "10.8.0.13<41003>", 12)


def test_a_message_whose_lines_a_terminal_padded_and_ran_together_tells_it_too():
    wide = " " * 70
    told = f"step 3 ncclRemoteError: A call failed.{wide}Last error:{wide}NET/IB : Got completion from peer 10.2.0.9<3856> with error 5, opcode 48"
    [found] = rows(f"{told}{wide}Exception raised from f at x.cpp:9", "nccl_errors")
    assert (found["kind"], found["peer"]) == ("ib-completion", "10.2.0.9<3856>")
    assert rows(f"step 3 ncclRemoteError: A call failed.{wide}Last error:{wide}", "nccl_errors") == []


def test_without_a_text_under_it_there_is_none():
    nothing = TRACEBACK.rsplit("\n", 1)[0] + "\n" + UNHANDLED
    assert rows(nothing, "nccl_errors") == []
    assert rows(nothing + "\nException raised from x at y.cpp:1 (most recent call first):", "nccl_errors") == []
    assert rows("Last error:\nCall to ibv_reg_mr failed", "nccl_errors") == []


@pytest.mark.parametrize(
    ("line", "signature"),
    [
        ("CUDA error: uncorrectable ECC error encountered (code #214, ERROR_ECC_UNCORRECTABLE)", "cuda-error"),
        ("E0101 core.cc:9] failed call to cuDevicePrimaryCtxRetain: CUDA_ERROR_ECC_UNCORRECTABLE", "cuda-error"),
        ("ERROR - scoring: Task was killed due to the node running low on memory.", "host-oom"),
        ("E external/xla/a.cc:9] NCCL operation ncclCommInitRank(&comm, n, id, rank) failed: unhandled cuda error", "nccl-cuda"),
        (
            "E xla/a.cc:9] Aborting communicator: 0x55d0 due to async NCCL error: remote process exited or there was a network error",
            "nccl-remote",
        ),
    ],
)
def test_a_sentence_that_says_all_counts_in_any_programs_words(line: str, signature: str):
    [row] = read_source(line.encode() + b"\n").frames["exceptions"].to_dicts()
    assert (row["kind"], row["signature"]) == ("said", signature)


@pytest.mark.parametrize("path", ["../third_party/gloo", "/pytorch/third_party/gloo", "/opt/conda/conda-bld/torch_1/work/third_party/gloo"])
def test_gloos_error_without_a_traceback_above_it_is_read_wherever_torch_was_built(path: str) -> None:
    [row] = rows(f"    loss.backward()\nRuntimeError: [{path}/gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.1.2.3]:12717")
    assert (row["type"], row["peer"]) == ("RuntimeError", "[10.1.2.3]:12717")


def test_the_advice_to_look_for_such_an_error_is_none():
    assert "exceptions" not in read_source(b"nvidia-smi -q -d ECC lists every uncorrectable ECC error counter\n").frames


def test_an_error_file_alone_tells_which_collectives_differ():
    def own(rank: int, shape: str) -> str:
        mine = f"CollectiveFingerPrint(SequenceNumber=7, OpType=ALLREDUCE, TensorShape=[{shape}], TensorDtypes=Float, TensorDeviceTypes=T(dtype=float))"
        theirs = "CollectiveFingerPrint(SequenceNumber=7, OpType=ALLREDUCE, TensorShape=[8], TensorDtypes=Float, TensorDeviceTypes=T(dtype=float))"
        return (
            f"RuntimeError: Detected mismatch between collectives on ranks. Rank {rank} is running collective: {mine}, but Rank 0 is running "
            f"collective: {theirs}.Collectives differ in the following aspects:   Tensor Tensor shapes: {shape}vs 8"
        )

    document = {
        "message": {"message": own(2, "10"), "extraInfo": {"py_callstack": "Traceback (most recent call last):\n", "timestamp": "1"}}
    }
    [said] = read_source(json.dumps(document).encode()).frames["reports"].to_dicts()
    assert (said["kind"], said["rank"], said["ranks"], said["seq"], said["differs"]) == ("detail-mismatch", 2, [0], 7, "shape")
    document["message"]["message"] = "RuntimeError: the collectives of rank 2 differ"
    assert "reports" not in read_source(json.dumps(document).encode()).frames


SPAWNED = """
torch.multiprocessing.spawn.ProcessRaisedException:

-- Process 3 terminated with the following error:
Traceback (most recent call last):
  File "/home/u/train.py", line 35, in body
    raise RuntimeError("mesh is not watertight")
RuntimeError: mesh is not watertight
"""


def test_what_a_parent_prints_of_a_process_that_it_started_is_that_process_s():
    [found] = rows('Traceback (most recent call last):\n  File "/home/u/main.py", line 12, in <module>\n    spawn(f)' + SPAWNED)
    assert (found["type"], found["hint_rank"], found["hint_scope"]) == ("RuntimeError", 3, "local")
    [found] = rows(SPAWNED.replace("-- Process 3 terminated with the following error:", "of process 3:"))
    assert "hint_rank" not in found


CAUGHT = """Traceback (most recent call last):
  File "/w/hub.py", line 9, in fetch
    raise ConnectionError(host)
ConnectionError: hub
"""


def test_a_traceback_after_which_its_writer_goes_on_did_not_end_it():
    assert rows(CAUGHT + "INFO retry 2 of 5 brought it\nstep 1 loss 2.31\nstep 2 loss 2.30")[0]["kind"] == "survived"


def test_a_traceback_at_the_end_of_a_process_is_one_that_ended_it():
    parting = "[rank0]:[W1121 ProcessGroupNCCL.cpp:1250] Warning: process group has NOT been destroyed\n/usr/lib/python3/resource_tracker.py:224: UserWarning: leaked"
    assert rows(CAUGHT + parting)[0]["kind"] == "python"
    marked = prefixed(CAUGHT.rstrip("\n") + "\nepoch 1\nepoch 2\nepoch 3", "[rank2]: ")
    assert rows(marked)[0]["kind"] == "python"


def test_the_end_of_a_traceback_that_lost_its_heading_tells_what_torch_distributed_raised():
    cut = '  File "/opt/torch/distributed/distributed_c10d.py", line 318, in _store_based_barrier\n    store.add(store_key, 1)\n'
    [found] = rows(cut + "RuntimeError: Connection reset by peer\n")
    assert (found["type"], found["message"], found["end_line"]) == ("RuntimeError", "Connection reset by peer", 3)
    assert found["frames"].startswith("_store_based_barrier (/opt/torch/distributed/")
    assert rows(cut.replace("torch/distributed", "app") + "RuntimeError: Connection reset by peer\n") == []
    assert rows("RuntimeError: Connection reset by peer\n") == []


def test_the_rest_of_what_cpp_prints_as_it_ends_a_process_is_no_work_of_it():
    thrown = (
        "terminate called after throwing an instance of 'c10::Error'\n  what():  CUDA error: device-side assert triggered\n"
        "For debugging consider passing CUDA_LAUNCH_BLOCKING=1.\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n\n"
        "Exception raised from check at CUDAException.cpp:43 (most recent call first):\n"
        "frame #0: c10::cuda::check() + 0x118 (0x7f33 in libc10_cuda.so)\nframe #1: <unknown function> + 0x1d8 (0x7f33 in python)\n"
    )
    assert [r["kind"] for r in rows(CAUGHT + thrown)] == ["python", "cpp-terminate"]
    assert rows(CAUGHT + thrown + "step 1 loss 2.31\nstep 2 loss 2.30")[0]["kind"] == "survived"


def test_what_ended_the_workers_of_a_loader_that_is_taken_down_ended_no_rank():
    gone = "terminate called without an active exception\n"
    heading = "Exception ignored in: <function _MultiProcessingDataLoaderIter.__del__ at 0x7f>\n" + CAUGHT.rsplit("ConnectionError", 1)[0]
    told = heading + "RuntimeError: DataLoader worker (pid 8321) is killed by signal: Aborted. \n"
    assert [r["kind"] for r in rows(gone + gone + told)] == ["survived", "survived", "unraisable"]
    assert rows(gone + "loss 2.1\nloss 2.0\nloss 1.9\n" + told)[0]["kind"] == "cpp-terminate"
    assert rows(gone + told.replace("Aborted", "Killed"))[0]["kind"] == "cpp-terminate"


def test_what_python_could_raise_nowhere_and_what_ended_a_thread_is_told_apart():
    assert rows("Exception ignored in: <function Iter.__del__ at 0x7f>\n" + CAUGHT)[0]["kind"] == "unraisable"
    assert rows("Exception in thread NetStatThr:\n" + CAUGHT)[0]["kind"] == "thread"
    task = "Task exception was never retrieved\nfuture: <Task finished name='Task-12' coro=<run() done, defined at /w/up.py:20> exception=ConnectionError()>\n"
    assert rows(task + CAUGHT)[0]["kind"] == "thread"
