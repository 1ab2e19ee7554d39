"""Small readers: facts of hosts, daemons of Slurm, UCX, DCGM's other outputs, Kubernetes as YAML, and single tables."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from nccl_forensics.decoding.safe_yaml import BadYaml, load_all
from nccl_forensics.reading.source import SourceReading, read_source
from tests.corpus import ROOT

FIXTURES = ROOT / "fixtures"


def read(name: str) -> SourceReading:
    return read_source((FIXTURES / Path(name)).read_bytes())


def rows(name: str, table: str, *columns: str) -> list[tuple[object, ...]]:
    return read(name).frames[table].select(columns).rows()


def test_facts_of_a_host_keep_kind_name_and_value() -> None:
    found = rows("host_facts/sample.txt", "host_facts", "kind", "name", "value", "number")
    assert ("module", "nvidia_uvm", "loaded", None) in found
    assert ("version", "kernel", "5.15.0-1053-nvidia", None) in found
    assert ("version", "nvidia-driver", "550.127.08", None) in found
    assert ("clock", "offset", "0.123456789 s slow", -0.123456789) in found
    assert ("clock", "synchronized", "no", None) in found
    assert ("bmc", "Power Supply #0x51", "Failure detected", None) in found
    assert ("load", "iowait-percent", "73.0", 73.0) in found
    [bmc] = read("host_facts/sample.txt").frames["host_facts"].filter(pl.col("name") == "Power Supply #0x51").to_dicts()
    assert (bmc["time_raw_ns"], bmc["time_kind"]) == (1_714_979_289_000_000_000, "local-unzoned")


@pytest.mark.parametrize("text", ["Linux is great\n", "Module 3 has failed\nx 1 2\n", "used by 3\n", "asserted | 3\n"])
def test_prose_with_like_words_is_no_fact(text: str) -> None:
    assert "host_facts" not in read_source(text.encode()).frames


def test_slurms_daemons_tell_of_nodes() -> None:
    assert rows("slurm_daemon/sample.txt", "scheduler_nodes", "node", "state", "flags", "reason") == [
        ("node07", "DOWN", ["NOT_RESPONDING"], "Not responding"),
        ("node08", None, ["DRAIN"], "Kill task failed"),
        ("node07", "DOWN", ["REBOOT"], "Node unexpectedly rebooted"),
        ("node07", None, ["COMPLETING"], "a job on it does not end"),
    ]


def test_slurms_daemons_tell_of_nodes_through_syslog_and_the_journal_too() -> None:
    text = (
        b"Nov 21 15:17:39 head slurmctld[77]: error: Nodes node7 not responding, setting DOWN\n"
        b"2026-11-21T15:17:39.618334+0000 head slurmctld[77]: error: Nodes node[8-9] not responding\n"
        b"2026-11-21T15:17:40.618334+0000 head other[78]: error: Nodes node3 not responding\n"
    )
    found = read_source(text).frames["scheduler_nodes"]
    assert found.select("line_no", "node", "reason_raw_ns").rows() == [
        (1, "node7", None),
        (2, "node8", 1_795_274_259_000_000_000),
        (2, "node9", 1_795_274_259_000_000_000),
    ]


def test_ucx_errors_are_read_as_what_they_mean() -> None:
    found = rows("ucx/sample.txt", "nccl_errors", "level", "kind", "host", "pid", "file", "time_kind")
    assert found == [
        ("WARN", "ib-async-event", "node01", 1234, "ib_device.c", "epoch"),
        ("WARN", "ib-completion", "node01", 1234, "ib_mlx5_log.c", "epoch"),
    ]
    warned = read_source(b"[1714979289.123456] [node01:1234 :0]  parser.c:1 UCX  WARN  unused environment variable: UCX_X\n")
    assert warned.frames["nccl_errors"].select("level", "kind").rows() == [("INFO", "plugin")]


def test_what_ucx_prints_before_it_gives_up_and_completions_of_libfabric_are_errors() -> None:
    last = b"[n1:77:0:78] ib_mlx5_log.c:143  Transport retry count exceeded on mlx5_0:1/IB (synd 0x15 vend 0x81 hw_synd 0/0)\n"
    assert read_source(last).frames["nccl_errors"].select("level", "kind", "host", "pid").rows() == [("WARN", "ib-completion", "n1", 77)]
    efa = b"libfabric:9:1708520807::efa:cq:efa_rdm_txe_handle_error():737<warn> err: 5, message: Invalid address My EFA addr: x\n"
    assert read_source(efa).frames["nccl_errors"].select("level", "kind", "detail").rows() == [("WARN", "plugin", "libfabric")]
    memory = b"libfabric:9:1708520807::efa:mr:efa_mr_reg_impl():512<warn> Unable to register MR: Cannot allocate memory\n"
    assert read_source(memory).frames["nccl_errors"]["message"].to_list() == ["Unable to register MR: Cannot allocate memory"]
    # At its start it warns of what it does without.
    assert (
        "nccl_errors"
        not in read_source(b"libfabric:9:1708520807::core:core:fi_getinfo_():1392<warn> provider efa output empty list\n").frames
    )


def test_dcgms_grid_of_nvlinks_leaves_out_what_is_no_link() -> None:
    links = read("dcgm/nvlink.txt").frames["nvlinks"]
    assert links.group_by("gpu_index").len().sort("gpu_index").rows() == [(0, 18), (1, 18)]
    assert links.filter(~pl.col("active")).select("gpu_index", "link").rows() == [(1, 5)]
    none = read_source(b"GPUs:\n    gpuId 0:\n        U X _ D\n").frames["nvlinks"]
    assert none.select("link", "active").rows() == [(0, True), (3, False)]


def test_gauges_of_the_exporter_that_say_something_become_results() -> None:
    found = rows("dcgm/exporter.txt", "dcgm_results", "host", "gpu_index", "test", "status", "message")
    assert found == [("gpu-node-7", 0, "row_remap_failure", "fail", "row_remap_failure 1")]
    last = read("dcgm/exporter.txt").frames["xids"]
    assert last.select("host", "gpu_index", "code", "time_kind").rows() == [("gpu-node-7", 0, 79, None)]
    harmless = b'DCGM_FI_DEV_XID_ERRORS{gpu="0",UUID="GPU-a"} 43\n'
    assert "xids" not in read_source(harmless).frames


def test_a_pod_as_yaml_gives_what_its_json_gives() -> None:
    found = read("kubernetes/pod.yaml")
    assert found.formats == ("kubernetes-yaml",)
    assert found.frames["pods"].select("pod", "node", "status", "reason", "exit_code").rows() == [
        ("train-worker-3", "gpu-node-7", "Failed", "Evicted", None),
        ("train-worker-3", "gpu-node-7", "Terminated", "OOMKilled", 137),
    ]
    assert found.frames["environment"].select("host", "name", "value").rows() == [("gpu-node-7", "NCCL_IB_DISABLE", "1")]


def test_the_events_at_the_end_of_a_description_are_read_without_what_they_describe() -> None:
    lines = (
        "Events:",
        "  Type     Reason   Age    From     Message",
        "  ----     ------   ----   ----     -------",
        "  Normal   Started  12m    kubelet  Started container trainer",
        '  Warning  Evicted  9m38s  kubelet  Usage of EmptyDir volume "dshm" exceeds the limit "1Gi".',
        "and that was it",
    )
    found = read_source("\n".join(lines).encode())
    assert found.frames["pod_events"].select("reason", "object", "age").rows() == [("Started", None, "12m"), ("Evicted", None, "9m38s")]
    assert found.foreign == 2
    assert "pod_events" not in read_source(b"Type  Reason  Age  From  Message\nA letter  of mine  to you  from  home\n").frames


def test_what_a_traced_shell_sets_is_its_environment_and_a_hint_is_not() -> None:
    def told(*lines: str) -> list[tuple[object, ...]]:
        frames = read_source("\n".join((*lines, "")).encode()).frames
        return frames["environment"].select("line_no", "name", "value").rows() if "environment" in frames else []

    assert told("+ export NCCL_IB_DISABLE=1", "+ mpirun -np 16 -x NCCL_NET=Socket -x PATH ./all_reduce_perf -g 1") == [
        (1, "NCCL_IB_DISABLE", "1"),
        (2, "NCCL_NET", "Socket"),
    ]
    assert told("+ env", "+ grep ^NCCL", "NCCL_P2P_DISABLE=1", "+ ./all_reduce_perf -g 8") == [(3, "NCCL_P2P_DISABLE", "1")]
    assert told("user@node1:~$ env | grep NCCL", "NCCL_P2P_DISABLE=1", "NCCL_DEBUG=INFO") == [
        (2, "NCCL_P2P_DISABLE", "1"),
        (3, "NCCL_DEBUG", "INFO"),
    ]
    assert told("I then tried", "NCCL_P2P_DISABLE=1", "and it worked with export NCCL_IB_DISABLE=1") == []


def test_secrets_of_a_pod_are_masked_and_its_rank_is_known() -> None:
    assert rows("documents/kubernetes.json", "environment", "rank", "name", "value") == [
        (0, "RANK", "0"),
        (0, "NCCL_DEBUG", "INFO"),
        (0, "HF_TOKEN", "***"),
    ]


@pytest.mark.parametrize(
    ("name", "node", "state"), [("kubernetes/node.txt", "gpu-node-7", "DOWN"), ("documents/kubernetes.json", "node1", "READY")]
)
def test_a_node_with_fewer_gpus_to_give_says_so(name: str, node: str, state: str) -> None:
    [found] = read(name).frames["scheduler_nodes"].to_dicts()
    assert (found["node"], found["state"]) == (node, state)
    assert "7 of 8 GPUs allocatable" in found["reason"]


def test_words_of_a_node_without_its_name_are_nothing_and_no_gap() -> None:
    found = read_source(b"Allocatable:\n  nvidia.com/gpu:     7\nMemoryPressure\n")
    assert (found.formats, found.gap_lines) == ((), 0)


@pytest.mark.parametrize("text", [b"a: &x [1]\nb: *x\n", b"a: [", b"\xff\xfe\x00", b"!!python/object/apply:os.system [ls]\n"])
def test_hostile_yaml_is_refused(text: bytes) -> None:
    with pytest.raises(BadYaml):
        load_all(text)


def test_broken_yaml_of_kubernetes_is_a_gap() -> None:
    found = read_source(b"apiVersion: v1\nkind: Pod\nmetadata: {name: [\n")
    assert found.records == 0
    assert found.error is not None


def test_other_yaml_is_not_kubernetes() -> None:
    assert read_source(b"model: llama\nbatch_size: 8\n").formats == ()


def test_mlxlinks_json_gives_the_columns_of_its_text() -> None:
    assert rows("mlxlink/sample.json", "link_quality", "state", "speed", "width", "opcode", "link_downs") == [("active", "IB-NDR", 4, 0, 2)]


def test_peer_access_of_topo_p2p_is_a_row_per_pair() -> None:
    assert rows("nvidia_smi/topo-p2p.txt", "gpu_bandwidth", "tool", "row", "column", "value", "message") == [
        ("topo-p2p", "0", "1", 0.0, "NS"),
        ("topo-p2p", "1", "0", 0.0, "CNS"),
    ]


def test_bandwidth_test_of_the_samples_is_one_cell() -> None:
    assert rows("gpu_bandwidth/bandwidth_test.txt", "gpu_bandwidth", "tool", "test", "value", "unit") == [
        ("bandwidthtest", "host to device", 26.0, "gb_s")
    ]


def test_a_column_of_memory_types_does_not_shift_the_numbers() -> None:
    found = rows("nccl_tests/rccl_memtype.txt", "bandwidth_rows", "bytes", "dtype", "red_op", "root", "placement", "time_us")
    assert found == [(8, "float", "sum", None, "out-of-place", 20.11), (8, "float", "sum", None, "in-place", 19.81)]


def test_iperf3_json_without_a_cookie_is_read() -> None:
    assert [r[0] for r in rows("iperf3/compact.json", "tcp_tests", "retransmits")] == [12345, None]


@pytest.mark.parametrize(
    "message",
    [
        "Invalid value 4 MB for NCCL_BUFFSIZE, using default 4194304.",
        "AllReduce: tuner chunk size 4 exceeds buffer max 3, clamping",
        "Rank 3 ncclRmaProxyPollDesc enqueued",
        "didn't receive a valid magic from 10.0.0.2<4321>",
        "socket magic mismatch from 10.0.0.2<4321>, discarding",
        "ncclOsSocketTryAccept: handshake receive from 10.0.0.2<4321> failed, discarding",
        "Poll failed: Interrupted system call",
        "gIB: version 1.0.6",
        "[SHARP] job id",
        "PLUGIN NET/IB : No device found.",
        "IBext_v8 : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'",
        "              + CXB[20.0] - CXB/0-0",
    ],
)
def test_further_lines_of_nccl_and_its_plugins_are_understood(message: str) -> None:
    found = read_source(f"node01:2345:2412 [3] NCCL INFO {message}\n".encode())
    assert (found.records, found.unmodelled, found.gap_lines) == (1, 0, 0)


def test_nodes_that_kubectl_lists_are_ready_or_down_and_the_list_ends_where_it_does() -> None:
    text = (
        b"NAME    STATUS                        ROLES    AGE   VERSION\n"
        b"n01     Ready                         worker   91d   v1.29.3\n"
        b"n02     NotReady,SchedulingDisabled   worker   91d   v1.29.3\n"
        b"\n"
        b"n03     NotReady                      worker   91d   v1.29.3\n"
    )
    told = read_source(text).frames["scheduler_nodes"].select("node", "state", "flags").rows()
    assert told == [("n01", "READY", []), ("n02", "DOWN", ["DRAIN"])]
