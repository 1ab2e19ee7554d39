"""What people hand in first: a few lines cut out of a log, without headings, frames or the other ranks. Whole program, text to verdict."""

from __future__ import annotations

from pathlib import Path

import pytest

from nccl_forensics.api import analyze
from nccl_forensics.reading.engine import InlineEngine

FINGERPRINT = (
    "CollectiveFingerPrint(SequenceNumber={seq}, OpType={op}, TensorShape=[{shape}], TensorDtypes=Float, TensorDeviceTypes=TensorOptions("
    "dtype=float (default), device=cuda, layout=Strided (default), requires_grad=false (default), pinned_memory=false (default), "
    "memory_format=(nullopt)))"
)


def fingerprint(seq: int, op: str, shape: str = "") -> str:
    return FINGERPRINT.format(seq=seq, op=op, shape=shape)


def differing(first: str, second: str, aspects: str) -> str:
    return (
        f"RuntimeError: Detected mismatch between collectives on ranks. Rank 2 is running collective: {first}, but Rank 5 is running collective: "
        f"{second}.Collectives differ in the following aspects: \t {aspects}"
    )


def timed_out(rank: int, seq: int, op: str = "ALLREDUCE") -> str:
    return (
        f"[E ProcessGroupNCCL.cpp:474] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType={op}, "
        "Timeout(ms)=600000) ran for 600731 milliseconds before timing out."
    )


def told_to_dump(rank: int, who: str, enqueued: int, completed: int) -> str:
    return (
        f"[rank{rank}]:[E304 07:11:52.204417310 ProcessGroupNCCL.cpp:1858] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] Received a dump signal due to "
        f"a collective timeout from {who} and we will try our best to dump the debug info. Last enqueued NCCL work: {enqueued}, last completed NCCL "
        f"work: {completed}.This is most likely caused by incorrect usages of collectives"
    )


STORE_BARRIER = (
    "RuntimeError: Timed out initializing process group in store based barrier on rank: 3, for key: store_based_barrier_key:2 "
    "(world_size=12, worker_count={}, timeout=0:20:00)"
)
UNIQUE_ID = (
    "RuntimeError: [3] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key '0', but "
    "store->get('0') got error: Socket Timeout"
)
ENDED = "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: 3 (pid: 7788) of binary: /usr/bin/python3"
DDP = (
    "Expected to have finished reduction in the prior iteration before starting a new one. This error indicates that your module has parameters\n"
    "that were not used in producing loss.\n"
    "Parameter indices which did not receive grad for rank 6: 14 15"
)


def verdict(path: Path, text: str) -> tuple[str, str | None, str | None, list[int]]:
    (path / "log.txt").write_text(text + "\n")
    found = analyze([path], engine=InlineEngine()).report["verdict"]
    return found["status"], found["cause"], found["confidence"], sorted(c["rank"] for c in found["culprits"] if c["rank"] is not None)


@pytest.mark.parametrize(
    ("text", "cause", "confidence", "ranks"),
    [
        (STORE_BARRIER.format(9), "rank-never-joined", "medium", []),
        (STORE_BARRIER.format(24), "bad-setting", "medium", []),
        (
            differing(fingerprint(4, "ALLGATHER", "7, 3"), fingerprint(4, "ALLGATHER", "8, 3"), "Tensor shapes: 7 3vs 8 3"),
            "shape-mismatch",
            "low",
            [],
        ),
        # The other rank has no tensors: what torch prints of it is noise, its number above all.
        (
            "2025-02-03 04:05:06 trainer ERROR step failed - "
            + differing(
                fingerprint(31, "ALLGATHER", "1"),
                "CollectiveFingerPrint(SequenceNumber=0OpType=REDUCE)",
                "Sequence number: 31vs 0  Op type: ALLGATHERvs REDUCE",
            ),
            "collective-mismatch",
            "low",
            [],
        ),
        ("RuntimeError: " + DDP, "ddp-unused-parameter", "high", [6]),
        ('RuntimeErrorout = net(batch)  File "train.py", line 8, in step\n: \n' + DDP, "ddp-unused-parameter", "high", [6]),
        (
            "RuntimeError: [enforce fail at /src/gloo/gloo/transport/tcp/device.cc:84] ifa != nullptr. Unable to find address for: ^docker0",
            "wrong-interface",
            "high",
            [],
        ),
        (
            "RuntimeError: Gloo connectFullMesh failed with [/src/gloo/gloo/transport/tcp/pair.cc:144] timed out connecting: SO_ERROR: Connection "
            "refused, remote=[127.0.1.1]:40111 (rank=9, size=24, local=[127.0.1.1])",
            "wrong-interface",
            "low",
            [],
        ),
        (
            "RuntimeError: The server socket has failed to listen on any local network address. The server socket has failed to bind to [::]:23456 "
            "(errno: 98 - Address already in use).",
            "connection-failed",
            "medium",
            [],
        ),
        (
            "[E socket.cpp:957] [c10d] The client socket has timed out after 300s while trying to connect to (head-0, 23456).",
            "connection-failed",
            "medium",
            [],
        ),
        (
            "[E socket.cpp:753] [c10d] The client socket has failed to connect to any network address of (head-0, 23456).",
            "connection-failed",
            "medium",
            [],
        ),
        (UNIQUE_ID, "host-stall", "medium", [0]),
        # The launcher's line of the same process is the end of that exception, and no fault of its own.
        (
            f'Traceback (most recent call last):\n  File "run.py", line 5, in <module>\n    main()\n{UNIQUE_ID}\n{ENDED}',
            "host-stall",
            "medium",
            [0],
        ),
        (
            "XlaRuntimeError: INTERNAL: NCCL operation ncclCommInitRank(...) failed: invalid usage (run with NCCL_DEBUG=WARN for details). Last NCCL "
            "warning(error) log entry (may be unrelated) 'Bootstrap : no socket interface found'.",
            "wrong-interface",
            "high",
            [],
        ),
        (
            "[trainer2|6]:ncclInternalError: Internal check failed.\n[trainer2|6]:Last error:\n"
            "[trainer2|6]:ncclSocketInit: connecting to address  with family 4112 is neither AF_INET(2) nor AF_INET6(10)",
            "wrong-interface",
            "medium",
            [],
        ),
        (
            "[rank9]:[E212 03:04:05.100200300 ProcessGroupNCCL.cpp:1515] [PG 0 (default_pg) Rank 9] Process group watchdog thread terminated with "
            "exception: CUDA error: uncorrectable ECC error encountered",
            "gpu-fault",
            "high",
            [9],
        ),
        (
            "[2024-05-06 07:08:09,123] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 911\n[2024-05-06 07:08:09,456] [ERROR] "
            "[launch.py:325:sigkill_handler] ['/opt/python', '-u', 'fit.py', '--local_rank=5', '--bf16'] exits with return code = -9",
            "rank-died",
            "medium",
            [],
        ),
        (
            "  host      : gpu7\n  rank      : 5 (local_rank: 1)\n  exitcode  : -11 (pid: 8123)\n  error_file: <N/A>\n"
            "  traceback : Signal 11 (SIGSEGV) received by PID 8123",
            "rank-died",
            "high",
            [5],
        ),
        ("Cuda failure common.cu:412 'CUDA driver version is insufficient for CUDA runtime version'", "version-mismatch", "medium", []),
        (
            "n4:70:70 [2] init.cc:1101 NCCL WARN Mismatched collective detected, please check your collective calls at and around rank 13.",
            "collective-mismatch",
            "medium",
            [],
        ),
        (
            "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
            "shm-exhausted",
            "high",
            [],
        ),
        ("RuntimeError: DataLoader worker (pid 5150) is killed by signal: Bus error.", "shm-exhausted", "high", []),
        ("RuntimeError: DataLoader worker (pid(s) 5150, 5151) exited unexpectedly", "rank-died", "low", []),
        ("n8:61:90 [3] graph/xml.h:70 NCCL WARN Attribute vendor of node cpu not found", "bad-setting", "medium", []),
        ("transport/nvls.cc:211 NCCL WARN Cuda failure 1 'invalid argument'\nNCCL INFO init.cc:1358 -> 1", "nvls-disabled", "medium", []),
        ("RuntimeError: NCCL Error 5: invalid usage (run with NCCL_DEBUG=WARN for details)", "invalid-usage", "medium", []),
        (
            "2025-06-07T08:09:10.111Z | [rank4]: torch.distributed.DistBackendError: NCCL error in: /src/NCCLUtils.hpp:317, invalid usage, NCCL version 2.26.2\n"
            "2025-06-07T08:09:10.111Z | [rank4]: ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n"
            "2025-06-07T08:09:10.111Z | [rank4]: Last error:\n"
            "2025-06-07T08:09:10.111Z | [rank4]: Duplicate GPU detected : rank 4 and rank 6 both on CUDA device 4000",
            "invalid-usage",
            "high",
            [4, 6],
        ),
        # Rank 1 still is at 56 of the default group: it timed out in nothing, and the others wait for it in 57. That it did not leave 57
        # out no line tells.
        (
            "\n".join(
                [timed_out(r, 57).replace("[E P", f"[rank{r}]:[E P") for r in (0, 2)]
                + [
                    told_to_dump(0, "this local rank", 57, 56),
                    told_to_dump(1, " rank 0", 56, 56),
                    told_to_dump(2, "this local rank", 57, 56),
                ]
            ),
            "host-stall",
            "medium",
            [1],
        ),
    ],
)
def test_a_few_lines_tell_the_cause(tmp_path: Path, text: str, cause: str, confidence: str, ranks: list[int]) -> None:
    assert verdict(tmp_path, text) == ("explained", cause, confidence, ranks)


@pytest.mark.parametrize(
    "text",
    [
        # Lines of old releases name no group: ranks of one group are never thousands of operations apart.
        "\n".join([timed_out(0, 5120), timed_out(0, 5121), timed_out(3, 1702)]),
        # The wrapper counts each group by itself and names none: rank 0's numbers fall back.
        "\n".join(
            f"[I ProcessGroupWrapper.cpp:562] [Rank {r}] Running collective: {fingerprint(s, 'ALLREDUCE')}"
            for r, s in ((0, 402), (1, 377), (0, 377))
        ),
        # All of them are at the same operation, and what the signal was for is not in these lines.
        "\n".join([told_to_dump(0, " rank 1", 900, 900), told_to_dump(1, "this local rank", 900, 900)]),
    ],
)
def test_a_few_lines_that_do_not_tell_accuse_nobody(tmp_path: Path, text: str) -> None:
    status, cause, _, ranks = verdict(tmp_path, text)
    assert (cause, ranks) == (None, [])
    assert status != "nothing-wrong"


def test_no_id_because_its_maker_failed_inside_nccl_is_no_stall(tmp_path: Path) -> None:
    text = "node3:9:9 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found\n" + UNIQUE_ID
    assert verdict(tmp_path, text)[1] == "wrong-interface"


def test_a_restart_that_counts_from_the_start_again_is_no_second_group(tmp_path: Path) -> None:
    lines = [
        f"[I ProcessGroupWrapper.cpp:562] [Rank {r}] Running collective: {fingerprint(s, 'ALLREDUCE')}"
        for r, s in ((0, 7), (1, 7), (0, 0), (1, 0), (0, 1), (1, 1))
    ]
    (tmp_path / "log.txt").write_text(
        "\n".join([*lines, differing(fingerprint(2, "BROADCAST", "4"), fingerprint(2, "ALLREDUCE", "4"), "Op type: BROADCASTvs ALLREDUCE")])
        + "\n"
    )
    assert analyze([tmp_path], engine=InlineEngine()).report["verdict"]["cause"] == "collective-mismatch"


def test_only_those_that_tried_a_loopback_address_are_cited_for_it(tmp_path: Path) -> None:
    tried = (
        "RuntimeError: Gloo connectFullMesh failed with [/src/gloo/gloo/transport/tcp/pair.cc:144] timed out connecting: SO_ERROR: Connection refused, "
        "remote=[{0}]:40111 (rank=9, size=24, local=[{0}])\n"
    )
    for number, address in enumerate(("127.0.1.1", "10.1.0.7")):
        (tmp_path / f"log{number}.txt").write_text(tried.format(address))
    findings = analyze([tmp_path], engine=InlineEngine()).report["findings"]
    [found] = [f for f in findings if f["rule"] == "gloo-wrong-interface"]
    assert [e["path"] for e in found["evidence"]] == ["log0.txt"]


def test_gloo_that_names_no_peer_leaves_open_why_it_could_not_connect(tmp_path: Path) -> None:
    said = "RuntimeError: Gloo connectFullMesh failed with [/src/gloo/gloo/transport/tcp/pair.cc:144] no error\n"
    (tmp_path / "log.txt").write_text(said)
    told = analyze([tmp_path], engine=InlineEngine()).report["verdict"]
    assert (told["cause"], told["confidence"], [a["cause"] for a in told["alternatives"]]) == (
        "connection-failed",
        "low",
        ["wrong-interface"],
    )
    # What it logs before it raises is all that is left where the traceback was cut off.
    logged = said.replace("RuntimeError: ", "(Worker pid=71, ip=10.1.0.8) [rank3]:[E528 08:52:46.164295950 ProcessGroupGloo.cpp:145] ")
    (tmp_path / "log.txt").write_text(logged)
    assert analyze([tmp_path], engine=InlineEngine()).report["verdict"]["cause"] == "connection-failed"
    # One that it could not reach is named by others: what became of that one says more.
    (tmp_path / "log.txt").write_text(said.replace("no error", "connect to [10.1.0.7]:40111: Connection refused, remote=[10.1.0.7]:40111"))
    assert analyze([tmp_path], engine=InlineEngine()).report["verdict"]["cause"] != "connection-failed"


RENDEZVOUS = "/env/lib/python3.12/site-packages/torch/distributed/elastic/rendezvous/"
LOST = "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed. See inner exception for details."


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (
            f'  File "{RENDEZVOUS}c10d_rendezvous_backend.py", line 155, in _create_tcp_store\n    raise RendezvousConnectionError(\n{LOST}\n',
            "connection-failed",
        ),
        (
            f'  File "{RENDEZVOUS}c10d_rendezvous_backend.py", line 119, in _call_store\n    raise RendezvousConnectionError(\n{LOST}\n',
            None,
        ),
        (
            f'  File "{RENDEZVOUS}dynamic_rendezvous.py", line 650, in run\n    raise RendezvousTimeoutError\n'
            "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError\n",
            "rank-never-joined",
        ),
    ],
    ids=["never reached", "lost later", "waited in vain"],
)
def test_launchers_that_do_not_meet_are_told_and_one_that_lost_the_store_later_is_not(tmp_path: Path, text: str, cause: str | None) -> None:
    (tmp_path / "log.txt").write_text("Traceback (most recent call last):\n" + text)
    told = analyze([tmp_path], engine=InlineEngine()).report["verdict"]
    assert (told["cause"], told["culprits"], told["confidence"]) == (cause, [], "low")


def test_a_launchers_error_without_its_traceback_says_that_the_job_failed(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text(f"(Agent pid=552, ip=10.1.0.8) {LOST}\n")
    assert analyze([tmp_path], engine=InlineEngine()).report["verdict"]["status"] == "unexplained"


def test_a_port_that_ras_could_not_have_is_no_failure(tmp_path: Path) -> None:
    bind = "node3:9:9 [0] {} NCCL WARN Call to bind failed: Address already in use\n"
    (tmp_path / "log.txt").write_text(
        bind.format("ras/client_support.cc:160") + "node3:9:9 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.3<0>\n"
    )
    assert analyze([tmp_path], engine=InlineEngine()).report["verdict"]["cause"] is None
    (tmp_path / "log.txt").write_text(bind.format("misc/socket.cc:441") + "node3:9:9 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.3<0>\n")
    assert analyze([tmp_path], engine=InlineEngine()).report["verdict"]["cause"] == "connection-failed"


def counted(rank: int, op: str, seq: int, enqueued: int) -> str:
    return (
        f"[rank{rank}]:[E304 07:11:52.204417310 ProcessGroupNCCL.cpp:629] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, "
        f"OpType={op}, NumelIn=64, NumelOut=64, Timeout(ms)=600000) ran for 600031 milliseconds before timing out.\n"
        f"[rank{rank}]:[E304 07:11:52.204419010 ProcessGroupNCCL.cpp:2168] [PG ID 0 PG GUID 0(default_pg) Rank {rank}]  failure detected by watchdog at "
        f"work sequence id: {seq} PG status: last enqueued work: {enqueued}, last completed work: {seq - 1}\n"
    )


@pytest.mark.parametrize(
    ("op", "seqs", "told"),
    [
        ("ALLREDUCE", (42, 41), ("gpu-stall", "medium", [1])),
        ("ALLREDUCE", (43, 41), (None, "low", [])),
        ("ALLREDUCE", (43, 41, 43), ("collective-skipped", "low", [1])),
    ],
    ids=["the next alone", "two further on, one peer", "two further on"],
)
def test_peers_that_completed_what_needs_everybody_count_other_calls(
    tmp_path: Path, op: str, seqs: tuple[int, ...], told: tuple[str | None, str, list[int]]
) -> None:
    (tmp_path / "log.txt").write_text("".join(counted(r, op, s, 45) for r, s in enumerate(seqs)))
    verdict = analyze([tmp_path], engine=InlineEngine()).report["verdict"]
    assert (verdict["cause"], verdict["confidence"], [c["rank"] for c in verdict["culprits"]]) == told


WAITS = "Waiting in store based barrier to initialize process group for rank: {0}, key: store_based_barrier_key:1 (world_size={1}, worker_count={2}, timeout=0:30:00)"


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([WAITS.format(0, 4, 8)] * 3, ("bad-setting", "medium")),
        ([WAITS.format(r, 8, 3) for r in (0, 5, 0, 5)], ("rank-never-joined", "low")),
        ([WAITS.format(0, 2, 1), "Rank 0: Completed store-based barrier for key:store_based_barrier_key:1 with 2 nodes."], (None, None)),
        ([WAITS.format(0, 2, 1), *(f"step {n}: loss 2.{n}" for n in range(60))], (None, None)),
    ],
    ids=["more than there are", "too few", "all came", "went on"],
)
def test_ranks_that_wait_at_the_store_where_the_log_ends_tell_how_many_came(
    tmp_path: Path, lines: list[str], told: tuple[str | None, str | None]
) -> None:
    (tmp_path / "log.txt").write_text(
        "".join(f"05/10/2023 23:07:4{n % 10} - INFO - torch.distributed.distributed_c10d - {line}\n" for n, line in enumerate(lines))
    )
    report = analyze([tmp_path], engine=InlineEngine()).report["verdict"]
    assert report["cause"] == told[0]
    assert report["culprits"] == []
    assert told[1] is None or report["confidence"] == told[1]


def test_mpirun_names_the_rank_though_its_pid_was_struck_out(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("mpirun noticed that process rank 6 with PID xxxxx on node tiger exited on signal 9 (Killed).\n")
    told = analyze([tmp_path], engine=InlineEngine()).report["verdict"]
    assert (told["cause"], [c["rank"] for c in told["culprits"]]) == ("rank-died", [6])


def test_gloo_that_fell_back_to_loopback_took_the_wrong_interface_where_its_mesh_failed(tmp_path: Path) -> None:
    fell = (
        "(Worker pid=71, ip=10.1.0.8) [rank3]:[W ProcessGroupGloo.cpp:721] Warning: Unable to resolve hostname to a (local) address. Using the loopback address "
        "as fallback. Manually set the network interface to bind to with GLOO_SOCKET_IFNAME. (function operator())\n"
    )
    mesh = "(Worker pid=72, ip=10.1.0.9) [rank4]:[E ProcessGroupGloo.cpp:144] Gloo connectFullMesh failed with [/gloo/transport/tcp/pair.cc:144] no error\n"
    (tmp_path / "log.txt").write_text(fell + mesh)
    told = analyze([tmp_path], engine=InlineEngine()).report["verdict"]
    assert (told["cause"], told["confidence"], told["culprits"]) == ("wrong-interface", "medium", [])
    # On one host that is as it should be.
    (tmp_path / "log.txt").write_text(fell)
    assert analyze([tmp_path], engine=InlineEngine()).report["verdict"]["cause"] is None


@pytest.mark.parametrize(("own", "cause"), [("10.2.0.4", "wrong-interface"), ("169.254.20.11", "connection-failed")])
def test_a_link_local_address_that_a_peer_gave_to_those_on_another_network_is_the_wrong_one(tmp_path: Path, own: str, cause: str) -> None:
    (tmp_path / "log.txt").write_text(
        f"node3:9:9 [0] NCCL INFO Bootstrap : Using eth0:{own}<0>\n"
        "node3:9:9 [0] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 169.254.20.10<43369> failed : Software caused connection abort\n"
    )
    told = analyze([tmp_path], engine=InlineEngine()).report["verdict"]
    assert told["cause"] == cause


def test_a_heartbeat_monitor_that_names_its_rank_twice_says_that_the_job_failed(tmp_path: Path) -> None:
    stuck = "ProcessGroupNCCL's watchdog got stuck for 600 seconds without making progress in monitoring enqueued collectives."
    (tmp_path / "log.txt").write_text(f"[rank4]:[F ProcessGroupNCCL.cpp:1169] [PG 0 Rank 4] [PG 0 Rank 4] {stuck}\n")
    told = analyze([tmp_path], engine=InlineEngine()).report["verdict"]
    assert (told["status"], told["culprits"]) == ("unexplained", [])


def test_an_environment_alone_says_nothing_of_how_the_job_fared(tmp_path: Path) -> None:
    (tmp_path / "env.txt").write_text(
        "HOME=/home/user\nNCCL_DEBUG=INFO\nPATH=/usr/bin:/bin\nPWD=/home/user\nWORLD_SIZE=4\nMASTER_ADDR=node-a\n"
    )
    (tmp_path / "job.log").write_text("node-a1: rank 2 died from signal 15\n")
    assert analyze([tmp_path], engine=InlineEngine()).report["verdict"]["status"] == "insufficient-evidence"
