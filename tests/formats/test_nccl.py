"""The NCCL debug log: prefix layouts, kinds of lines of all versions, damage, and the signatures of errors."""

from __future__ import annotations

import gzip
import random

import polars as pl
import pytest

from nccl_forensics.formats import _nccl_rows, nccl
from nccl_forensics.formats.base import Reading, Text
from nccl_forensics.grammar.lines import load
from nccl_forensics.reading.source import read_source
from nccl_forensics.tables import TABLES
from tests.corpus import ROOT, corpus

_PREFIX = "node7:100:101 [1] NCCL INFO "
_OPERATION = "AllReduce: opCount 1e sendbuff 0x7f4d52c00000 recvbuff 0x7f4d53000000 count 1048576 datatype 7 op 0 root 0 comm 0x558e72d8e6a0 [nranks=8] stream 0x558e7224b640"


def text(*lines: str) -> Text:
    """Lines as the dispatcher hands them over."""
    frame = pl.DataFrame({"line_no": pl.Series(range(1, len(lines) + 1), dtype=pl.UInt32), "text": pl.Series(lines, dtype=pl.String)})
    empty = {"hint_rank": pl.Int32, "hint_scope": pl.String, "hint_host": pl.String, "hint_pid": pl.Int64}
    clock = {"time_raw_ns": pl.Int64, "time_kind": pl.String}
    frame = frame.with_columns(pl.lit(None, dtype=kind).alias(name) for name, kind in (empty | clock).items())
    return Text(frame.with_columns(hit=pl.col("text").str.contains_any(list(nccl.FORMAT.anchors))))


def read(*lines: str) -> Reading:
    return nccl.read(text(*lines))


def row(table: str, *lines: str) -> dict[str, object]:
    """The only row of a table."""
    frame = read(*lines).frames[table]
    assert frame.height == 1, frame
    return frame.row(0, named=True)


def has(found: dict[str, object], **expected: object) -> bool:
    """The row has these values; the others are not looked at."""
    return {name: found[name] for name in expected} == expected


# --- test vectors of the catalogue ----------------------------------------------------------------------------------------------------


def test_a_list_of_ib_devices_without_relaxed_ordering() -> None:
    line = "r6i6n4:257714:257714 [0] NCCL INFO NET/IB : Using [0]hfi1_0:1/IB [1]hfi1_1:1/IB ; OOB ib0:10.148.7.175<0>"
    network = read(line).frames["nccl_network"]
    devices = network.filter(pl.col("item") == "ib-device")
    assert devices.select("port", "name", "link", "value").rows() == [(0, "hfi1_0:1", "IB", None), (1, "hfi1_1:1", "IB", None)]
    assert network.filter(pl.col("item") == "ib-oob").select("name", "address").rows() == [("ib0", "10.148.7.175<0>")]


def test_a_launcher_prefix_states_the_rank_of_a_version_line() -> None:
    tables = read_source(b"[1,11]<stdout>:test-nccl-worker-1:28:28 [3] NCCL INFO NCCL version 2.22.3+cuda12.2\n").frames
    found = tables["nccl_versions"].row(0, named=True)
    assert has(found, version="2.22.3", cuda="12.2", vendor="nccl", hint_rank=11, host="test-nccl-worker-1", pid=28, dev=3)


def test_a_bare_version_line_names_no_process() -> None:
    assert has(row("nccl_versions", "NCCL version 2.16.5+cuda11.8"), version="2.16.5", cuda="11.8", host=None, pid=None)


def test_init_complete_of_the_2_16_era() -> None:
    line = "n013:164146:164165 [0] NCCL INFO comm 0x5a501a0 rank 0 nranks 2 cudaDev 0 busId 81000 commId 0x1f4e2d03563543e5 - Init COMPLETE"
    expected = {"event": "init-complete", "func": None, "comm": "0x5a501a0", "rank": 0, "nranks": 2, "bus_id": "81000", "nvml_dev": None}
    assert has(row("nccl_comms", line), comm_id="0x1f4e2d03563543e5", **expected)


def test_a_split_start_has_no_blank_before_the_dash_and_no_comm_id() -> None:
    line = (
        "node:78:135 [0] NCCL INFO ncclCommSplit comm 0x55bde656e480 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 75000 "
        "parent 0x55bde5d092d0 splitCount 1 color 923304772 key 0- Init START"
    )
    found = row("nccl_comms", line)
    assert has(
        found, event="init-start", func="ncclCommSplit", parent="0x55bde5d092d0", split_count=1, color=923304772, key=0, comm_id=None
    )


def test_twenty_ranks_of_a_longer_ring_are_known_to_be_cut() -> None:
    ranks = "   0   7   6  13  12  11  10   9   8  15  14  21  20  19  18  17  16  23  22   5"
    found = row("nccl_rings", f"h100-1:497888:497958 [0] NCCL INFO Channel 05/16 : {ranks}")
    assert has(found, channel=5, channels=16, cut=True, ranks=[int(r) for r in ranks.split()])


def test_a_whole_ring_is_not_cut_and_one_of_twenty_ranks_may_be() -> None:
    assert row("nccl_rings", _PREFIX + "Channel 00/24 : 0 1 2 3")["cut"] is False
    assert row("nccl_rings", _PREFIX + "Channel 00/24 : " + " ".join(map(str, range(20))))["cut"] is None
    assert row("nccl_rings", _PREFIX + "Channel 00/24 : 0 1 2 ...")["cut"] is True


def test_a_network_name_may_hold_a_blank() -> None:
    line = "test-nccl-worker-0:28:71 [3] NCCL INFO Channel 00/0 : 3[3] -> 2[2] [send] via NET/AWS Libfabric/5/GDRDMA"
    found = row("nccl_connections", line)
    expected = {"src": 3, "dst": 2, "direction": "send", "network": "AWS Libfabric", "net_dev": 5, "gdr": True, "proxy_rank": None}
    assert has(found, transport="NET", detail="NET/AWS Libfabric/5/GDRDMA", conn=0, **expected)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("Ring 00 : 0 -> 1 [send] via NET/Socket/0", {"src_dev": None, "network": "Socket", "gdr": False, "direction": "send"}),
        ("Channel 02 : 3[43000] -> 2[3b000] via direct shared memory", {"transport": "SHM", "src_dev": "43000"}),
        ("Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/4(5)/GDRDMA(PCI)/Shared", {"net_dev": 4, "proxy_rank": 5, "gdr": True}),
        ("Channel 00/0 : 1[1] -> 5[5] via P2P/indirect/3[3]/read", {"detail": "P2P/indirect/3[3]/read"}),
        ("Channel 05/1 : 0[1b000] -> 1[43000] via P2P/IPC/read comm 0x5581e0 nRanks 08", {"comm": "0x5581e0", "conn": 1}),
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/direct pointer", {"detail": "P2P/direct pointer"}),
        ("CollNet 00/0 : 3 [receive] via COLLNET/SHARP/0/GDRDMA", {"transport": "COLLNET", "src": 3, "dst": None, "gdr": True}),
    ],
)
def test_transports_of_all_releases(message: str, expected: dict[str, object]) -> None:
    assert has(row("nccl_connections", _PREFIX + message), **expected)


def test_shared_memory_connections_have_no_connection_index() -> None:
    found = row("nccl_connections", "stone:2984737:2984737 [2] NCCL INFO Channel 00 : 2[3] -> 0[1] via SHM/direct/direct")
    assert has(found, transport="SHM", conn=None, src=2, src_dev="3", dst=0, dst_dev="1", gdr=None)


def test_op_count_is_hex() -> None:
    line = (
        "stone:2984737:2984737 [2] NCCL INFO Send: opCount a sendbuff (nil) recvbuff 0x7f4d52c00800 count 512 datatype 2 op 0 root 0 "
        "comm 0x55f7d902f5e0 [nranks=4] stream 0x558e7224b640"
    )
    assert has(row("nccl_ops", line), op="Send", op_count=10, root=0, nranks=4, from_call=False, torn=False)


def test_call_lines_have_no_device() -> None:
    line = "stone:2984736:2984736 NCCL CALL ncclSend(0,7f4d52c01000,256,2,0,3,0x558e72d8e6a0,0x558e7224b640)"
    found = row("nccl_ops", line)
    assert has(found, op="Send", count=256, dtype=2, root=3, comm="0x558e72d8e6a0", from_call=True, op_count=None, dev=None)


def test_algorithm_numbers_are_named_and_redacted_prefixes_accepted() -> None:
    found = row("nccl_tuning", "[0] NCCL INFO 805306368 Bytes -> Algo 1 proto 2 time 3970.683594")
    assert has(found, op=None, bytes=805306368, algo="RING", proto="SIMPLE", time_us=3970.683594, channels=None, dev=0)


def test_hand_aligned_blanks_are_accepted() -> None:
    found = row("nccl_tuning", "NCCL INFO Broadcast:    32768 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..0}")
    assert has(found, op="Broadcast", bytes=32768, algo="RING", channels=1, host=None)


def test_a_path_line_of_the_topology_is_known() -> None:
    line = "n013:164147:164167 [1] NCCL INFO GPU/A1090 :GPU/81000 (2/24.000000/PHB) GPU/A1090 (0/5000.000000/LOC) CPU/1 (1/24.000000/PHB) "
    reading = read(line)
    assert reading.lines.to_list() == [1]
    assert reading.unmodelled.is_empty()


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("      + NET[12.5] - NET/0 (1e0c10003840a90/1/12.500000)", {"kind": "net-link", "a": "0", "value": 12.5}),
        ("      + NET[50.0] - NET/0-7 (0/8e0c10003840a90/1/50.000000)", {"kind": "net-link", "a": "0-7", "value": 50.0}),
        ("      + NET[1.2] - NET/0-0 (0/0/0/1.250000)", {"kind": "net-link", "a": "0-0", "value": 1.25}),
        ("socketProgressOpt: abort called", {"kind": "abort-called"}),
    ],
)
def test_what_rules_use_of_the_topology_and_of_an_abort_is_a_note(message: str, expected: dict[str, object]) -> None:
    assert has(row("nccl_notes", "node01:2345:2398 [0] NCCL INFO " + message), **expected)


def test_a_failed_completion_keeps_status_and_device_and_the_empty_line_before_it() -> None:
    line = (
        "[2026-03-03 12:11:38] node7:185303:186751 [1] transport/net_ib.cc:2453 NCCL WARN NET/IB: Got completion from peer "
        "10.99.91.63<51161> with status=4 opcode=32614 len=32614 vendor err 81 (Send) localGid ::ffff:10.99.92.59 "
        "remoteGids::ffff:10.99.91.63 hca mlx5_1"
    )
    reading = read("", line)
    found = reading.frames["nccl_errors"].row(0, named=True)
    assert has(found, kind="ib-completion", number=4, peer="10.99.91.63<51161>", detail="mlx5_1", level="WARN", line_no=2, pid=185303)
    assert has(found, file="transport/net_ib.cc", file_line=2453, time_kind="local-unzoned", time_raw_ns=1772539898 * 10**9)
    assert reading.lines.to_list() == [1, 2]


def test_propagation_lines_with_and_without_the_function() -> None:
    old = row("nccl_errors", "node7:185303:186751 [1] NCCL INFO transport/net.cc:1227 -> 6")
    new = row("nccl_errors", "node7:1:9 [1] NCCL INFO transport/net.cc:1227 (sendProxyProgress) -> 6")
    assert has(old, kind="propagation", level="INFO", file="transport/net.cc", file_line=1227, func=None, code=6)
    assert has(new, kind="propagation", file_line=1227, func="sendProxyProgress", code=6)


def test_a_torn_line_gives_its_first_part_flagged_and_the_rest_read_anew() -> None:
    line = (
        "stone:1:1 [2] NCCL INFO Recv: opCount 406 sendbuff (nil) recvbuff 0x7f1f count 131072 datatype 2 op 0 root 3 comm 0x55f7 "
        "[nranks=4] sstone:2984736:2984736 NCCL CALL ncclRecv(0,7f1fd3"
    )
    clean = "stone:2984736:2984736 NCCL CALL ncclGroupStart()"
    reading = read(clean, line)
    assert has(reading.frames["nccl_ops"].row(0, named=True), op="Recv", op_count=0x406, comm="0x55f7", nranks=4, torn=True, pid=1)
    piece = reading.frames["nccl_notes"].row(0, named=True)
    assert has(piece, kind="torn", host="stone", pid=2984736, message="ncclRecv(0,7f1fd3")
    assert reading.lines.to_list() == [1, 2]


def test_rccl_states_the_global_rank() -> None:
    line = (
        "frontier04908:2941387:2941576 [0] NCCL INFO AllGather: opCount 2 sendbuff 0x7f0 recvbuff 0x7f1 count 4 datatype 0 op 0 root 0 "
        "comm 0x55a [nranks=8] stream 0x55b task 0 globalrank 5"
    )
    assert has(row("nccl_ops", line), op="AllGather", global_rank=5, torn=False)


RCCL = "gpu018:60299:60310 [0] NCCL INFO "


def test_a_communicator_of_rccl_is_made_by_a_function_of_its_own_name() -> None:
    line = "ncclCommInitRankConfig_impl comm 0x2bc1f840 rank 1 nranks 2 cudaDev 1 nvmlDev 1 busId d000 commId 0xcde2 - Init COMPLETE"
    expected = {"func": "ncclCommInitRankConfig_impl", "comm": "0x2bc1f840", "rank": 1, "nranks": 2, "comm_id": "0xcde2"}
    assert has(row("nccl_comms", RCCL + line), **expected)


def test_an_operation_of_rccl_names_a_buffer_to_accumulate_in() -> None:
    line = (
        "AllReduce: opCount 1f sendbuff 0x7a1b recvbuff 0x7a1b acc (nil) count 12 datatype 7 op 0 root 0 comm 0x3ab1b680 [nranks=2] "
        "stream (nil) task 0 globalrank 1"
    )
    assert has(row("nccl_ops", RCCL + line), op="AllReduce", op_count=31, count=12, comm="0x3ab1b680", nranks=2, global_rank=1, torn=False)


def test_channels_and_trees_of_rccl_say_whose_they_are() -> None:
    counts = "comm:0x2bc1f840, nRanks:16, nNodes:2, coll channels:64 collnet channels:32, nvls channels:0, p2p channels:48, p2p channels per peer:2"
    assert has(row("nccl_channels", RCCL + counts), coll=64, collnet=32, nvls=0, p2p=48, p2p_per_peer=2)
    trees = read(RCCL + "Trees [0] 1/-1/-1->0->-1 [1] -1/-1/-1->0->1 comm 0x2bc1f840 nRanks 02 busId 3000")
    assert trees.frames["nccl_trees"].select("channel", "down", "rank", "up").rows() == [(0, [1], 0, None), (1, [], 0, 1)]
    assert not read(RCCL + "Connected all rings comm 0x2bc1f840 nRanks 08 busId 3000").unmodelled.len()


def test_the_lines_of_rccls_banner_belong_to_it_and_what_follows_does_not() -> None:
    banner = [
        "HIP version  : 7.2.26015-fc00",
        "ROCm version : 7.2.0.0-43-fc00",
        "Hostname     : gpu018",
        "Librccl path : /opt/librccl.so.1",
    ]
    found = read(RCCL + "RCCL version : 2.27.7-HEAD:0d2c4fd", *banner, "loss 3.1")
    assert found.lines.to_list() == [1, 2, 3, 4, 5]
    assert has(found.frames["nccl_versions"].row(0, named=True), version="2.27.7", vendor="rccl")


@pytest.mark.parametrize(
    "message",
    [
        "[node_id = 2; gpu_id = 25016; unique_id = 66680; location_id = 3328; bdf = 3328; domain = 0; partition = 0], ",
        "CONFIG_PCI_P2PDMA=y in /boot/config-7.0.0-30-generic",
        "DMA_BUF Support Enabled",
        "GFX9 cheap fence is OFF",
        "[RINGS]  00->01",
        "initialized internal alternative rsmi functionality",
        "rocm_smi_lib: version 2.8.0.0",
        "pre-adjustment threadThreshold:16 nBytes:4 nc:2",
        "post-adjustment based on threadThreshold:16 nBytes:4 nc:1",
        "minNChannels:-2",
        "Comm config Blocking set to 1",
    ],
)
def test_rccls_chatter_is_understood(message: str) -> None:
    assert not read(RCCL + message).unmodelled.len()


def test_automatic_numa_balancing_is_a_warning_of_rccl() -> None:
    said = "NUMA auto balancing enabled which can lead to variability in the RCCL performance!"
    line = f"[2025-11-12 11:11:57] gpu018:927:927 [0] /build/rccl/hipify/src/init.cc:140 NCCL WARN {said}"
    assert row("nccl_errors", line)["kind"] == "rccl-balancing"


# --- prefix ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        ("node01:2345:2398 [0] NCCL INFO ", {"host": "node01", "pid": 2345, "tid": 2398, "dev": 0}),
        ("[2025-07-01 10:22:33] node01:2345:2398 [0] NCCL INFO ", {"host": "node01", "time_kind": "local-unzoned"}),
        ("[2025-07-01 10:22:33.250] node01:2345:2398 [0] NCCL INFO ", {"time_raw_ns": 1751365353_250000000}),
        ("ip-10-0-0-1:1:1 [7] NCCL INFO ", {"host": "ip-10-0-0-1", "dev": 7}),
        ("Jul  1 10:22:33 node01:2345:2398 [0] NCCL INFO ", {"host": "node01", "pid": 2345, "time_raw_ns": None}),
        ("node [0] NCCL INFO ", {"host": "node", "pid": None, "dev": 0}),
        ("node.example.com:XXXXXX [5] NCCL INFO ", {"host": "node.example.com", "pid": None, "dev": 5}),
        ("[2026-03-13 22:26:02] node-1:xxx:<tid> [0] NCCL INFO ", {"host": "node-1", "pid": None, "time_kind": "local-unzoned"}),
        ("[0] NCCL INFO ", {"host": None, "dev": 0}),
        ("NCCL INFO ", {"host": None, "dev": None}),
        ("any words [3] NCCL INFO ", {"host": None, "dev": 3}),
    ],
)
def test_every_prefix_layout_is_read(prefix: str, expected: dict[str, object]) -> None:
    found = row("nccl_network", f"{prefix}Using network IB")
    assert found["name"] == "IB"
    assert has(found, **expected)


def test_the_signature_of_a_plugins_function_stands_in_place_of_its_file() -> None:
    place = "int cm_req_handle_error_entry(nccl_net_ofi_context_t*, fid_cq*, fi_cq_err_entry*, uint16_t):46"
    found = row(
        "nccl_errors", f"[2026-01-01 12:08:32] node-0:194:710 [0] {place} NCCL WARN NET/OFI Request 0x7f completed with error. RC: 103"
    )
    assert has(found, level="WARN", kind="plugin-error", host="node-0", pid=194, dev=0, file=None, file_line=46)
    assert (
        row("nccl_errors", "node-0:194:710 [0] net_ofi.cc:46 NCCL WARN NET/OFI Request 0x7f completed with error")["file"] == "net_ofi.cc"
    )


def test_a_sentence_about_nccl_is_foreign() -> None:
    reading = read("run it with NCCL_DEBUG and look for NCCL INFO lines", "see the NCCL version in use")
    assert reading.lines.is_empty()
    assert reading.records == 0
    assert reading.gaps == ()


def test_a_line_with_an_unknown_message_is_a_record_of_which_only_the_prefix_is_understood() -> None:
    reading = read(_PREFIX + "Wholly new words of a later release", _PREFIX + "Using network IB")
    assert reading.unmodelled.to_list() == [1]
    assert reading.lines.to_list() == [1, 2]
    assert reading.records == 2


def test_the_host_of_a_torn_line_is_told_by_clean_lines() -> None:
    reading = read(
        "stone:1:1 [0] NCCL INFO Using network IB",
        "Channel 00 : 2[3] -> 0[1] via SHM/direct/directstone:2:2 [1] NCCL INFO Using network IB",
    )
    assert reading.frames["nccl_network"]["host"].to_list() == ["stone", "stone"]
    assert reading.frames["nccl_notes"]["message"].to_list() == ["Channel 00 : 2[3] -> 0[1] via SHM/direct/direct"]


def test_fields_that_a_tear_may_have_cut_are_null() -> None:
    start = "stone:1:1 [0] NCCL INFO Send: opCount 47 sendbuff (nil) recvbuff 0x7f4d count 3276"
    reading = read("stone:9:9 [0] NCCL INFO Using network IB", f"{start}stone:2:2 NCCL CALL ncclGroupEnd()")
    assert has(reading.frames["nccl_ops"].row(0, named=True), op="Send", op_count=0x47, count=None, comm=None, torn=True)


# --- other kinds ----------------------------------------------------------------------------------------------------------------------


def test_integer_settings_lose_the_full_stop_and_names_of_secrets_their_value() -> None:
    settings = read(
        _PREFIX + "NCCL_IB_DISABLE set by environment to 1.",
        _PREFIX + "NCCL_SOCKET_IFNAME set by environment to eth0.100",
        _PREFIX + "NCCL_AUTH_TOKEN set by environment to abcdef",
        _PREFIX + "Invalid value many for NCCL_NTHREADS, using default 512.",
        _PREFIX + "Comm config Blocking set to 1",
    ).frames["nccl_env"]
    assert settings.select("name", "value", "invalid").rows() == [
        ("NCCL_IB_DISABLE", "1", False),
        ("NCCL_SOCKET_IFNAME", "eth0.100", False),
        ("NCCL_AUTH_TOKEN", "***", False),
        ("NCCL_NTHREADS", "many", True),
        ("Comm config Blocking", "1", False),
    ]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("Bootstrap : Using eth0:10.1.2.126<0>", {"item": "bootstrap", "name": "eth0", "address": "10.1.2.126<0>"}),
        ("Bootstrap: Using eth0:fe80::a%eth0<0>", {"item": "bootstrap", "name": "eth0", "address": "fe80::a%eth0<0>"}),
        ("Bootstrap : Using [0]ib0:10.1.1.1<0> [1]ib1:10.1.1.2<0>", {"item": "bootstrap", "name": "ib0"}),
        (
            "Could not enable P2P between dev 0(=1b000) and dev 1(=43000)",
            {"item": "p2p-not-enabled", "name": "0(=1b000)", "value": "1(=43000)"},
        ),
        ("NET/IB : No device found.", {"item": "ib-none"}),
        ("NET/IB : Using [RO]; OOB eth0:10.0.0.5<0>", {"item": "ib-oob", "name": "eth0"}),
        ("NET/Socket : Using [0]eth0:10.0.0.5<0>", {"item": "socket-interface", "name": "eth0", "port": 0, "address": "10.0.0.5<0>"}),
        ("NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'", {"item": "gdr-nic", "name": "mlx5_0", "value": "Disabled"}),
        (
            "GPU Direct RDMA Disabled for GPU a1090 / HCA 0 (distance 7 > 4)",
            {"item": "gdr-pair", "name": "0", "address": "a1090", "value": "Disabled 7 > 4)"},
        ),
        ("Connected all rings, use ring PXN 0 GDR 1", {"item": "ring-gdr", "value": "1"}),
        ("NVLS multicast support is not available on dev 3", {"item": "nvls", "value": "not available", "port": 3}),
        ("Check P2P Type isAllDirectP2p 0 directMode 1", {"item": "p2p-check", "value": "isAllDirectP2p 0 directMode 1"}),
        (
            "P2P is disabled between connected GPUs 1 and 0. You can repress this message with NCCL_IGNORE_DISABLED_P2P=1.",
            {"item": "p2p-disabled", "name": "1", "value": "0"},
        ),
        ("Using network AWS Libfabric", {"item": "using", "name": "AWS Libfabric"}),
    ],
)
def test_facts_of_the_network_are_rows(message: str, expected: dict[str, object]) -> None:
    frame = read(_PREFIX + message).frames["nccl_network"]
    assert any(has(found, **expected) for found in frame.iter_rows(named=True)), frame


def test_merged_ib_devices_share_an_index() -> None:
    line = _PREFIX + "NET/IB : Using [0]={[0] mlx5_0:1/RoCE, [1] mlx5_1:1/RoCE} [1]mlx5_2:1/RoCE [RO]; OOB eth0:10.0.0.5<0>"
    devices = read(line).frames["nccl_network"].filter(pl.col("item") == "ib-device")
    assert devices.select("port", "name", "value").rows() == [
        (0, "mlx5_0:1", "relaxed-ordering"),
        (0, "mlx5_1:1", "relaxed-ordering"),
        (1, "mlx5_2:1", "relaxed-ordering"),
    ]


def test_trees_of_old_and_new_releases() -> None:
    trees = read(_PREFIX + "Trees [0] 1/-1/-1->0->-1 [1] -1/-1/-1->0->1", _PREFIX + "Trees [0] 2/-1/-1->3->4|4->3->2/-1/-1").frames[
        "nccl_trees"
    ]
    assert trees.select("channel", "rank", "up", "down").rows() == [(0, 0, None, [1]), (1, 0, 1, []), (0, 3, 4, [2])]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("16 coll channels, 16 p2p channels, 2 p2p channels per peer", (16, None, None, 16, 2)),
        ("24 coll channels, 16 nvls channels, 32 p2p channels, 32 p2p channels per peer", (24, None, 16, 32, 32)),
        ("24 coll channels, 0 collnet channels, 16 nvls channels, 32 p2p channels, 32 p2p channels per peer", (24, 0, 16, 32, 32)),
    ],
)
def test_channel_counts_of_all_releases(message: str, expected: tuple[int | None, ...]) -> None:
    assert read(_PREFIX + message).frames["nccl_channels"].select("coll", "collnet", "nvls", "p2p", "p2p_per_peer").row(0) == expected


def test_end_of_life_of_a_communicator() -> None:
    found = row("nccl_comms", _PREFIX + "comm 0x55 rank 3 nranks 16 cudaDev 3 busId 43000 - Abort COMPLETE")
    assert has(found, event="abort-complete", rank=3, nranks=16, bus_id="43000")


def test_tutorial_wording_is_flagged() -> None:
    assert has(row("nccl_ops", _PREFIX + "AllReduce: opCount 1e DONE"), op="AllReduce", op_count=30, unofficial=True)
    assert has(row("nccl_connections", _PREFIX + "Channel 00 : 0[0] -> 1[1] via P2P/Disabled"), transport="P2P/Disabled")


def test_chatter_is_a_record_in_no_table() -> None:
    reading = read(_PREFIX + "resp.opId=0x7f8410c29c60 matches expected opId=0x7f8410c29c60")
    assert reading.records == 1
    assert set(reading.frames) == {"nccl_tails"}
    assert reading.unmodelled.is_empty()


def test_lines_that_continue_a_message_belong_to_it() -> None:
    reading = read(
        _PREFIX + "Enabled NCCL Func/Proto/Algo Matrix:",
        "     Function |   LL  LL128  Simple   |          Tree           Ring",
        "    Broadcast |    1      1       1   |             1              1",
        "and a line of the program",
    )
    assert reading.lines.to_list() == [1, 2, 3]


# --- errors ---------------------------------------------------------------------------------------------------------------------------

_SIGNATURES = [
    ("peer-closed", "socketProgress: Connection closed by remote peer node02.cl.local<51161>", {"peer": "node02.cl.local<51161>"}),
    ("peer-closed", "Net : Connection closed by remote peer", {"peer": None}),
    (
        "connect-gave-up",
        "socketPollConnect: connect to 10.0.0.1<4> returned Connection refused, exceeded error retry count (6)",
        {"peer": "10.0.0.1<4>"},
    ),
    ("connect-gave-up", "socketStartConnect: exceeded retries (20000)", {}),
    ("connect-failed", "Net : Connect to 10.0.0.1<4> failed : No route to host", {"detail": "No route to host", "peer": "10.0.0.1<4>"}),
    ("connect-failed", "socketStartConnect: connect to 10.0.0.1<4> failed : Connection refused", {"detail": "Connection refused"}),
    (
        "recv-failed",
        "socketProgressOpt: Call to recv from 10.0.0.1<4> failed : Connection reset by peer",
        {"detail": "Connection reset by peer"},
    ),
    ("no-interface", "Bootstrap : no socket interface found", {}),
    ("rank-mismatch", "Bootstrap Root : mismatch in rank count from procs 8 : 16", {}),
    ("duplicate-rank", "Bootstrap Root : rank 3 of 8 ranks has already checked in", {"number": 3}),
    ("truncated-message", "Message truncated : received 6144 bytes instead of 4096", {"number": 6144, "detail": "4096"}),
    (
        "size-mismatch",
        "NET/Socket : peer 10.0.0.1<4> message truncated : receiving 1024 bytes instead of 256",
        {"number": 1024, "detail": "256"},
    ),
    (
        "size-mismatch",
        "NET/IB : req 0/1 tag 2a peer 10.0.0.1<4> collective mismatch error, local size 8 remote size 16",
        {"peer": "10.0.0.1<4>"},
    ),
    # Up to 2.9
    ("size-mismatch", "NET/IB : collective mismatch error local size 32768 remote 1048576 addr 0 rkey 3beac3 seq adf/adf", {"peer": None}),
    ("ib-completion", "NET/IB : Got completion with error 12, opcode 1, len 0, vendor err 129", {"number": 12, "peer": None}),
    (
        "ib-completion",
        "NET/IB: Got completion from peer 10.0.0.2<5> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_RDMA_WRITE(1) vendor_err=129  hca mlx5_4",
        {"number": 12, "detail": "mlx5_4"},
    ),
    ("ib-async-event", "NET/IB : mlx5_1:1 Got async error event: port error", {"detail": "mlx5_1:1 port error"}),
    (
        "ib-qp-retry",
        "Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_0:1, curr state INIT, next state RTR, retrying 1/3 after 5 msec of sleep",
        {"number": 110},
    ),
    (
        "ib-modify-qp",
        "Call to ibv_modify_qp failed with 22 Invalid argument, on dev mlx5_0:1, curr state INIT, next state RTR",
        {"number": 22},
    ),
    ("ibv-call", "Call to ibv_reg_mr failed with error Cannot allocate memory", {"detail": "reg_mr Cannot allocate memory"}),
    ("cuda-failure", "Cuda failure 'out of memory'", {"detail": "out of memory", "number": None}),
    ("cuda-failure", "Cuda failure 802 'system not yet initialized'", {"detail": "system not yet initialized", "number": 802}),
    ("cuda-alloc", "Failed to CUDA calloc async 1024 bytes", {"number": 1024}),
    ("host-alloc", "Failed to malloc 1024 bytes", {"number": 1024}),
    ("no-slot", "NET/Socket : unable to allocate requests", {"detail": "requests"}),
    ("duplicate-gpu", "Duplicate GPU detected : rank 4 and rank 5 both on CUDA device 89000", {"detail": "4 5 89000"}),
    ("version-mismatch", "Mismatched NCCL version detected : rank 0 version 22105 rank 5 version 22703", {}),
    ("version-mismatch", "NCCL version mismatch with remote peer 10.0.0.1<4> (local: 22602, remote 22707)", {"peer": "10.0.0.1<4>"}),
    ("invalid-argument", "AllReduce : invalid root 9 (root should be in the 0..8 range)", {}),
    ("invalid-usage", "ncclGroupEnd: not in a group call.", {}),
    (
        "no-algorithm",
        "Error : no algorithm/protocol available for function AllGather with datatype ncclInt8. NCCL_ALGO was set to Tree.",
        {},
    ),
    ("no-network", "Error: network IBX not found.", {"detail": "IBX"}),
    ("no-transport", "No transport found for rank 3[4000] -> rank 4[5000]", {}),
    ("shm", "Error: failed to extend /dev/shm/nccl-aB3 to 9637892 bytes, error: No space left on device (28)", {"number": 9637892}),
    ("ipc", "failed to open CUDA IPC handle : 201 invalid device context", {}),
    (
        "nvls-bind",
        "Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 1 'invalid argument'.",
        {"number": 2097152},
    ),
    ("proxy", "[Service thread] Error encountered progressing operation=Connect, res=3, closing connection", {}),
    ("abort", "Comm 0x55d3a48f72d0 is in abort state", {}),
    ("other", "words of a release to come", {"detail": None, "number": None}),
]


@pytest.mark.parametrize(("kind", "message", "expected"), _SIGNATURES)
def test_a_warning_has_the_name_of_its_signature(kind: str, message: str, expected: dict[str, object]) -> None:
    found = row("nccl_errors", f"node7:1:9 [1] init.cc:12 (caller) NCCL WARN {message}")
    assert has(found, kind=kind, level="WARN", message=message, **expected)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("connect-retry", "socketPollConnect: connect to 10.0.0.1<4> returned Connection refused, retrying (1/6) after sleep for 100 msec"),
        ("connect-retry", "Call to connect returned Connection refused, retrying"),
        ("connect-failed", "Call to connect timeout : Connection refused"),
        ("connect-failed", "Call to connect failed : Connection timed out"),
        ("shm", "Call to posix_fallocate failed : No space left on device"),
        ("ib-modify-qp", "Call to ibv_modify_qp failed with error Network is unreachable"),
        ("plugin-error", "NET/OFI Couldn't open AV. RC: -22, ERROR: Invalid argument"),
        ("fallback", "Could not find a path for pattern 1, falling back to simple order"),
        ("fallback", "Cannot initialize CollNet, using point-to-point network instead"),
        ("cuda-failure", "HIP failure: 'invalid device pointer'"),
        ("ras-dead", "RAS declaring peer 10.0.0.1<5> as DEAD; rasDeadPeersHash 0x1"),
        ("ras-timeout", "RAS keep-alive timeout warning (5s) on socket connection with 10.0.0.1<4>"),
        ("shm", "fallocate: Failed to extend /dev/shm/nccl-x to 10 bytes, error: No space left on device (28) - retrying"),
        ("cuda-failure", "include/alloc.h:103 Cuda failure 'out of memory'"),
        ("peer-closed", "socketProgress: Connection closed by remote peer node02<5>"),
    ],
)
def test_a_known_error_text_counts_at_info_level_too(kind: str, message: str) -> None:
    assert has(row("nccl_errors", _PREFIX + message), kind=kind, level="INFO")


def test_normal_plugin_and_ras_lines_are_no_errors() -> None:
    reading = read(
        _PREFIX + "NET/Plugin: Could not find: libnccl-net.so.",
        _PREFIX + "RAS thread started",
        _PREFIX + "NET/OFI Using Libfabric version 1.2",
    )
    assert "nccl_errors" not in reading.frames


# --- whole logs -----------------------------------------------------------------------------------------------------------------------


def test_frames_have_the_columns_of_their_tables() -> None:
    reading = read(_PREFIX + _OPERATION, _PREFIX + "Using network IB", "node7:1:9 [1] init.cc:12 NCCL WARN Cuda failure 'x'")
    assert reading.frames
    for name, frame in reading.frames.items():
        assert dict(frame.schema) == TABLES[name].schema
        assert name in nccl.FORMAT.tables


@pytest.mark.parametrize("name", ["stub-2.18.5-rank0.log", "stub-2.27.7-rank0.log", "stub-2.30.7-rank0.log"])
def test_every_line_of_the_fixtures_is_understood(name: str) -> None:
    lines = (ROOT / "fixtures" / "nccl" / name).read_text(encoding="utf-8").split("\n")
    reading = read(*lines)
    assert reading.unmodelled.is_empty()
    assert reading.gaps == ()
    assert reading.frames["nccl_comms"]["event"].to_list()[:2] == ["init-start", "init-complete"]
    assert set(reading.lines) >= {n for n, line in enumerate(lines, start=1) if " NCCL INFO " in line}


@pytest.mark.corpus
@pytest.mark.parametrize("part", ["public", "nccl-stub"])
def test_of_real_logs_at_most_a_few_lines_are_not_understood(part: str) -> None:
    paths = [path for path in sorted(corpus(part).rglob("*")) if path.is_file() and path.suffix in (".log", ".txt", ".out", ".gz")]
    chosen = paths if part == "public" else random.Random(3).sample(paths, 40)
    seen = 0
    for path in chosen:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        lines = data.decode("utf-8", "replace").split("\n")
        nccls = sum("NCCL INFO" in line or "NCCL WARN" in line or "NCCL CALL" in line for line in lines)
        if nccls < 20:
            continue
        reading = read(*lines)
        seen += 1
        assert len(reading.gaps) <= 0.02 * nccls, path.name
        assert len(reading.gaps) + reading.unmodelled.len() <= 0.03 * nccls, path.name
    assert seen >= 8


# --- damage ---------------------------------------------------------------------------------------------------------------------------


def test_no_lines_give_no_frames() -> None:
    reading = read()
    assert (reading.frames, reading.records, reading.gaps) == ({}, 0, ())


def test_mangled_lines_never_raise_and_every_claimed_line_exists() -> None:
    """Lines of a fixture, cut and glued at random places as several writers on one pipe do."""
    lines = (ROOT / "fixtures" / "nccl" / "stub-2.27.7-rank0.log").read_text(encoding="utf-8").split("\n")
    rng = random.Random(17)
    for _ in range(10):
        mangled = []
        for _ in range(60):
            a, b = rng.choice(lines), rng.choice(lines)
            mangled.append(
                rng.choice(
                    [
                        a,
                        a[: rng.randrange(len(a) + 1)],
                        a[: rng.randrange(len(a) + 1)] + b,
                        a[rng.randrange(len(a) + 1) :],
                        a + "\x00\ufffd",
                    ]
                )
            )
        reading = read(*mangled)
        accounted = {*reading.lines, *(gap.line_no for gap in reading.gaps)}
        assert accounted <= set(range(1, len(mangled) + 1))
        unread = [line for n, line in enumerate(mangled, start=1) if " [0] NCCL INFO " in line and n not in accounted]
        assert unread == []


def test_devices_of_the_ib_line_are_what_larks_tree_holds():
    lists = (
        "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.1.2.3<0>",
        "NET/IB : Using [0]={[0] mlx5_0:1/RoCE, [1] mlx5_1:1/RoCE} [1]mlx5_bond_0:1/IB [RO]; OOB ib0:10.1.2.3<0>",
        "NET/IB: Using [0]rocep27s0:1/RoCE ; OOB eth0:fe80::1%eth0<0>",
        "NET/IB : Using",
    )
    for message in lists:
        tree = load("nccl").tree(message, "ib_devices")
        assert tree is not None
        tokens = [token for token in tree.scan_values(lambda _: True) if token.type in ("IB_INDEX", "IB_DEV")]
        index, expected = "", []
        for token in tokens:
            if token.type == "IB_INDEX":
                index = token.strip("[]")
            else:
                expected.append((index, *token.rsplit("/", 1)))
        assert _nccl_rows._devices(message) == expected


def test_the_device_of_a_process_is_not_that_of_a_thread_that_sets_none() -> None:
    lines = "node01:2345:2345 [3] NCCL INFO Using network IB", "node01:2345:2398 [0] NCCL INFO RAS thread started"
    assert has(row("nccl_tails", *lines), dev=3, lines=2, message="RAS thread started")


def test_lines_of_the_first_releases_do_not_name_the_library() -> None:
    found = read(
        "gpu1:53:53 [0] INFO NET : Using interface eno1:10.0.0.7<0>",
        "gpu1:53:61 [0] INFO comm 0x7fa42c00a3b0 rank 0 nranks 2",
        "gpu1:53:60 [0] include/socket.h:360 WARN Call to connect failed : Connection timed out",
        "gpu1:53:60 [0] INFO bootstrap.cu:119 -> 2 [bthread]",
        "gpu1:53:61 [0] INFO comm 0x7fa42c00a3b0 rank 0 nranks 2 - COMPLETE",
    )
    assert found.lines.to_list() == [1, 2, 3, 4, 5]
    errors = found.frames["nccl_errors"].select("host", "pid", "kind", "line_no").rows()
    assert ("gpu1", 53, "connect-failed", 3) in errors
    assert found.frames["nccl_comms"].select("event", "rank", "nranks").rows() == [("init-start", 0, 2), ("init-complete", 0, 2)]


def test_a_socket_for_no_address_means_that_no_interface_was_found() -> None:
    line = "e66a:31:31 [0] include/socket.h:311 WARN Socket creation failed : "
    assert row("nccl_errors", line + "Address family not supported by protocol")["kind"] == "no-interface"
    assert row("nccl_errors", line + "Too many open files")["kind"] == "system-call"


def test_lines_of_other_programs_with_such_levels_are_not_nccls() -> None:
    assert read("[main] INFO starting", "node7 12:30 WARN disk 80 WARN of 100", "a:1:2 [0] INFORMATION").lines.to_list() == []
