"""WARN lines whose text names the cause."""

from __future__ import annotations

import pytest

from nccl_forensics.reading.source import read_source
from nccl_forensics.rules.nccl_errors_named import nccl_named_fault, shape_mismatch_by_nccl
from tests.rules.frames import cited, comms, divergences, errors, people, settings

PEOPLE = people((0, "node1", 100), (1, "node1", 101), (8, "node2", 100))
HEAD = "node1:101:201 [1] transport/x.cc:12 NCCL WARN "
#: (message, cause, severity); each as NCCL 2.19 to 2.30, its plugins or RCCL print it (nccl.md 5.3 to 5.8, 8).
FIRES = [
    ("Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 1 'invalid argument'.", "nvls-disabled", "critical"),
    ("MNNVL (cliqueSize 72) is available but not working on this system. Check the IMEX channel configuration", "nvlink-fault", "critical"),
    ("P2P is disabled between NVLINK connected GPUs 1 and 2. This should not be the case", "nvlink-fault", "critical"),
    ("Call to ibv_reg_mr failed with error Bad address", "gdr-disabled", "critical"),
    ("nvmlInit_v2() failed: Driver/library version mismatch", "version-mismatch", "critical"),
    ("nvmlDeviceGetHandleByPciBusId() failed: GPU is lost", "gpu-fault", "critical"),
    ("Failed to open libnvidia-ml.so.1", "software-crash", "critical"),
    ("Call to socket failed: Too many open files", "bad-setting", "critical"),
    ("NET/IB : Can't merge net devices with different link_layer", "bad-setting", "critical"),
    ("There are mismatched physical devices between local (mlx5_0) and remote (mlx5_0+mlx5_1).", "nic-underused", "warning"),
    ("Detected mixed local Net device counts across ranks (min 7, max 8).", "nic-underused", "critical"),
    ("Cannot initialize CollNet, using point-to-point network instead", "low-bus-bandwidth", "info"),
    ("Could not find any local path from gpu 3 to net.", "nic-underused", "critical"),
    ("NET/OFI Request 0x7f completed with error. RC: 21. Error: 4103: Unresponsive remote", "ib-link", "critical"),
    (
        "NET/OFI Request 0x7f completed with error. RC: 103. Error: 4126 (Unresponsive receiver (reachable by EFA device but handshake failed) "
        "My EFA addr: fi_addr_efa://[fe80::1]:0:1)",
        "connection-failed",
        "critical",
    ),
    ("NET/IB : mlx5_0:1 async fatal event: local catastrophic error", "ib-link", "critical"),
    ("NET/IB: ncclIbTest: Device 1 marked as failed. Initiating recovery? yes", "ib-link", "error"),
    ("failed to open CUDA IPC handle : 400 invalid resource handle", "p2p-disabled", "critical"),
    ("failed to peer with device 3(=3b000): 217 peer access is not supported between these two devices", "p2p-disabled", "critical"),
    ("cudaIpcGetMemHandle failed : invalid argument", "p2p-disabled", "critical"),
    ("Cuda failure 217 'peer access is not supported between these two devices'", "p2p-disabled", "critical"),
    ("Call to ibv_reg_dmabuf_mr failed with error Operation not permitted", "gdr-disabled", "critical"),
    ('Missing "iommu=pt" from kernel command line which can lead to system instablity or hang!', "bad-setting", "warning"),
    ("Mismatched NCCL version detected : rank 0 version 22105 rank 5 version 22703", "version-mismatch", "critical"),
    ("Message truncated : received 6144 bytes instead of 4096", "version-mismatch", "warning"),
    ("Mismatched collective detected, please check your collective calls at and around rank 3.", "collective-mismatch", "critical"),
    ("Coll AllReduce size 8 symmetric registration check failed on rank 3: send buffer window", "argument-mismatch", "critical"),
    ("AllReduce : sendbuff allocated on device 1 mismatchs with NCCL device 0", "invalid-usage", "critical"),
    ("Fatal: host threads racing to launch NCCL on same device.", "invalid-usage", "critical"),
    ("Call to bind failed: Address already in use", "connection-failed", "critical"),
    ("Error: failed to create shared memory file /dev/shm/nccl-aB3, error Permission denied (13)", "bad-setting", "critical"),
    ("Error: Could not map /dev/shm/nccl-aB3 size 9637888, error: Cannot allocate memory (12)", "out-of-memory", "critical"),
    ("ibv_post_send() failed with error Cannot allocate memory, Bad WR 0x5, First WR 0x5", "ib-link", "critical"),
    ("Call to ibv_query_gid failed with error Unknown error -1 errno -1", "bad-setting", "critical"),
    ("NET/IB : Unable to open device mlx5_3", "nic-underused", "warning"),
    ("Failed to create CUDA context on device 3", "gpu-fault", "warning"),
    ("FP8 reduction support begins with sm90 capable devices.", "invalid-usage", "critical"),
    ("nvmlDeviceGetHandleByIndex(3) failed: GPU is lost", "gpu-fault", "critical"),
    ("ncclSocketInit: Socket creation failed : Too many open files", "bad-setting", "critical"),
    ("[Service thread] Accept failed Too many open files", "bad-setting", "critical"),
    ("Thread creation failed: Resource temporarily unavailable", "bad-setting", "critical"),
    ("Invalid NCCL_COMM_ID, please use format: <ipv4>:<port> or [<ipv6>]:<port> or <hostname>:<port>", "bad-setting", "critical"),
    ("Net : error encountered when getting address info : Name or service not known", "bad-setting", "critical"),
    ("XML Parse error : unterminated comment", "bad-setting", "critical"),
    ("Error : XML parser is limited to 1024 nodes", "bad-setting", "critical"),
    ("Message truncated : received 6144,8 bytes instead of 4096,8", "version-mismatch", "warning"),
    ("NCCL library version is too old. This application was compiled with NCCL version 22907", "version-mismatch", "critical"),
    ("NET/IB : Local mergedDev=mlx5_0 has a different number of devices=1 as remoteDev=mlx5_0 nRemDevs=2", "nic-underused", "warning"),
    ("NET/IB: Got CQE with error (devIndex=0, req=0x7f, comm=0x7f (Send), wr_id=7, qp_num=9)", "ib-link", "error"),
    ("NET/IB: ncclIbTest: The error is fatal (Send). Cannot continue.", "ib-link", "error"),
]  # fmt: skip
#: Near misses: the same words where they say nothing.
QUIET = [
    "Call to socket failed: Interrupted system call",
    "socketFinalizeAccept: wrong magic 1 != 2",
    "NET/OFI Only EFA provider is supported",
    "NET/IB: ncclIbTest: Port recovery succeeded",
    "nvmlInit_v2() failed: Not Supported",
    "Call to bind failed: Interrupted system call",
    "Call to ibv_query_gid failed with error No data available",
    "Call to ibv_reg_mr failed with error Resource temporarily unavailable",
    "nvmlDeviceGetP2PStatus(0,1,NVML_P2P_CAPS_INDEX_READ) failed: Not Supported",
    "Thread join failed: No such process",
    "Error : could not find CPU close to GPU 3",
    "Allocation failed. No suitable space found to accommodate size=0x1f within limit=0x1f",
    "AllReduce: communicator was revoked",
    "Retrieve cuMemCreate version 10020 failed with 3 status 0",
]


@pytest.mark.parametrize(("message", "cause", "severity"), FIRES, ids=[m[:28] for m, _, _ in FIRES])
def test_a_line_that_names_its_cause_is_a_finding(message: str, cause: str, severity: str) -> None:
    frame = read_source(f"\n{HEAD}{message}\n".encode()).frames["nccl_errors"].lazy()
    [finding] = nccl_named_fault.check(frame.with_columns(source_id=0), PEOPLE)
    assert (finding.cause, finding.severity) == (cause, severity)
    assert finding.hosts == ("node1",)
    assert cited(finding) == [(0, 2)]


@pytest.mark.parametrize("message", QUIET)
def test_a_line_with_like_words_is_none(message: str) -> None:
    frame = read_source(f"\n{HEAD}{message}\n".encode()).frames["nccl_errors"].lazy()
    assert nccl_named_fault.check(frame.with_columns(source_id=0), PEOPLE) == []


def test_a_driver_of_another_release_without_which_the_communicator_came_up_is_a_warning() -> None:
    said = errors({"kind": "nvml", "message": "nvmlInit_v2() failed: Driver/library version mismatch", "pid": 101, "line_no": 4})
    up = {"host": "node1", "pid": 101, "source_id": 0, "started": True, "completed": True, "line_no": 8, "end_line_no": 8}
    [finding] = nccl_named_fault.check(said, PEOPLE, comms(up))
    assert (finding.cause, finding.severity) == ("version-mismatch", "warning")
    [finding] = nccl_named_fault.check(said, PEOPLE, comms(up | {"completed": False}))
    assert finding.severity == "critical"


def test_each_host_has_its_finding_with_the_ranks_that_said_so() -> None:
    lost = {"kind": "nvml", "message": "nvmlX() failed: GPU is lost"}
    found = nccl_named_fault.check(errors({**lost, "pid": 101}, {**lost, "host": "node2", "pid": 100}), PEOPLE)
    assert [(f.hosts, f.ranks) for f in found] == [(("node1",), (1,)), (("node2",), (8,))]


def test_a_line_at_info_level_is_no_fault() -> None:
    assert nccl_named_fault.check(errors({"kind": "nvlink-p2p", "level": "INFO", "message": "x"}), PEOPLE) == []


WRONG_SIZE = {"kind": "size-mismatch", "message": "NET/Socket : peer 10.0.0.2<5> message truncated", "peer": "10.0.0.2<5>"}


def test_sizes_that_differ_are_told_where_nothing_else_tells_them() -> None:
    [finding] = shape_mismatch_by_nccl.check(errors(WRONG_SIZE), None, None)
    assert (finding.cause, finding.confidence, finding.ranks) == ("shape-mismatch", "medium", ())
    assert "node1 received another number of bytes than expected from 10.0.0.2" in finding.title


def test_sizes_are_left_to_the_operations_and_to_the_settings_where_these_differ() -> None:
    assert shape_mismatch_by_nccl.check(errors(WRONG_SIZE), divergences("shape", [3], [0, 1]), None) == []
    assert shape_mismatch_by_nccl.check(errors(WRONG_SIZE), None, settings("NCCL_ALGO", ("Ring", [0]), ("Tree", [1]))) == []
    assert shape_mismatch_by_nccl.check(errors({"kind": "other", "message": "x"}), None, None) == []
