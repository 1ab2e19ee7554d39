"""Text of the NCCL library."""

from __future__ import annotations

import polars as pl

from nccl_forensics.tables.base import F64, I32, I64, NCCL, B, S, Table

#: Characters kept of a piece of a torn line.
TORN_AT_MOST = 200

TABLES: tuple[Table, ...] = (
    Table(
        "nccl_versions",
        "NCCL or RCCL version lines.",
        {**NCCL, "version": (S, "2.27.7"), "cuda": (S, "CUDA it was built with"), "vendor": (S, "nccl or rccl"), "raw": (S, "")},
    ),
    Table(
        "nccl_comms",
        "Life cycle of communicators: Init START / COMPLETE, Destroy, Abort.",
        {
            **NCCL,
            "event": (
                S,
                "init-start, init-complete, destroy-start, destroy-complete, abort-start, abort-complete, revoke-start, revoke-complete; "
                "call-init, call-split from CALL lines",
            ),
            "func": (S, "ncclCommInitRank, ncclCommSplit ...; null where not printed"),
            "comm": (S, "process-local pointer"),
            "rank": (I32, "rank inside the communicator"),
            "nranks": (I32, ""),
            "cuda_dev": (I32, ""),
            "nvml_dev": (I32, ""),
            "bus_id": (S, "as printed, hex"),
            "comm_id": (S, "commId, equal on all ranks (2.16+)"),
            "parent": (S, "pointer of the parent communicator in this process"),
            "split_count": (I32, "splitCount / childCount"),
            "color": (I64, ""),
            "key": (I64, ""),
        },
    ),
    Table(
        "nccl_placement",
        "'comm … nRanks … nNodes … localRanks … localRank …' lines.",
        {
            **NCCL,
            "comm": (S, ""),
            "rank": (I32, ""),
            "nranks": (I32, ""),
            "nodes": (I32, ""),
            "local_ranks": (I32, ""),
            "local_rank": (I32, ""),
            "mnnvl": (I32, ""),
        },
    ),
    Table(
        "nccl_ops",
        "Operation lines (COLL) and CALL lines: written at enqueue, once per call and rank.",
        {
            **NCCL,
            "op": (S, "AllReduce, Broadcast, Send ... as printed"),
            "op_count": (I64, "opCount, printed in hex; not comparable between ranks from 2.27"),
            "count": (I64, "elements as given by the caller"),
            "dtype": (I32, "ncclDataType number"),
            "red_op": (I32, "ncclRedOp number"),
            "root": (I32, "root, or the peer of Send/Recv"),
            "comm": (S, "process-local pointer"),
            "nranks": (I32, ""),
            "stream": (S, ""),
            "global_rank": (I32, "RCCL only"),
            "unofficial": (B, "wording that NCCL itself never prints"),
            "from_call": (B, "row of a CALL line; a log with COLL and CALL on states each operation twice"),
            "torn": (B, "another line's text broke in; fields after the break are null"),
        },
        own=("line_no", "op_count", "time_raw_ns"),
    ),
    Table(
        "nccl_connections",
        "'Channel c : a[d] -> b[d] via …' lines.",
        {
            **NCCL,
            "channel": (I32, ""),
            "conn": (I32, "connection index"),
            "src": (I32, "communicator rank"),
            "src_dev": (S, "bus id hex up to 2.18.1, later NVML index"),
            "dst": (I32, ""),
            "dst_dev": (S, ""),
            "direction": (S, "send, receive; null for P2P and SHM, which the sender prints"),
            "transport": (S, "P2P, SHM, NET, COLLNET"),
            "detail": (S, "text after via, as printed"),
            "network": (S, "network name of NET, such as IB, Socket, AWS Libfabric"),
            "net_dev": (I32, "network device index"),
            "proxy_rank": (I32, "PXN rank"),
            "gdr": (B, "GDRDMA suffix present; null for other transports"),
            "comm": (S, "only where printed (RCCL)"),
        },
    ),
    Table(
        "nccl_rings",
        "Ring order per channel, printed by communicator rank 0.",
        {
            **NCCL,
            "channel": (I32, ""),
            "channels": (I32, "total"),
            "ranks": (pl.List(pl.Int32()), ""),
            "cut": (B, "list is known to be incomplete"),
        },
    ),
    Table(
        "nccl_trees",
        "Tree neighbours per channel and rank.",
        {**NCCL, "channel": (I32, ""), "rank": (I32, ""), "up": (I32, "null = none"), "down": (pl.List(pl.Int32()), "")},
    ),
    Table(
        "nccl_channels",
        "'N coll channels, …' lines.",
        {**NCCL, "coll": (I32, ""), "collnet": (I32, ""), "nvls": (I32, ""), "p2p": (I32, ""), "p2p_per_peer": (I32, "")},
    ),
    Table(
        "nccl_env",
        "Settings: '… set by environment to …', Comm config and the like.",
        {**NCCL, "name": (S, ""), "value": (S, "secrets masked"), "invalid": (B, "NCCL refused the value and used its default")},
    ),
    Table(
        "nccl_network",
        "What NCCL chose and saw of the network: bootstrap interface, devices, chosen network, plugins.",
        {
            **NCCL,
            "item": (
                S,
                "bootstrap, using, ib-device, ib-none, socket-interface, plugin, gdr-nic, gdr-pair, ring-gdr, nvls, p2p-check, mnnvl, dmabuf, p2p-disabled, "
                "p2p-not-enabled, ib-virtual, ib-oob, plugin-failed",
            ),
            "name": (S, "interface, device or network name"),
            "port": (I32, ""),
            "link": (S, "IB, RoCE"),
            "address": (S, ""),
            "speed_mbps": (I64, ""),
            "value": (S, "the rest"),
        },
    ),
    Table(
        "nccl_notes",
        "Other understood INFO lines that rules may use: bootstrap and init timings, connected marks, drivers, search results; kind "
        "'torn' is a piece of a line that another line's text broke off.",
        {
            **NCCL,
            "kind": (S, "kind of line, the grammar's rule name"),
            "a": (S, "first field"),
            "b": (S, "second field"),
            "value": (F64, "number"),
            "message": (S, "text after the prefix"),
        },
    ),
    Table(
        "nccl_errors",
        "WARN lines and error propagation lines ('file:line -> code').",
        {
            **NCCL,
            "level": (S, "WARN, INFO"),
            "kind": (S, "signature name, such as peer-closed, connect-failed, ib-completion, cuda-failure, shm, propagation, other"),
            "file": (S, "source file of NCCL, without the line"),
            "file_line": (I32, "line in that source file"),
            "func": (S, ""),
            "code": (I32, "ncclResult of a propagation line"),
            "peer": (S, "address of the peer"),
            "detail": (S, "errno text, CUDA text, device or setting named in the message"),
            "number": (I64, "status, size or count named in the message"),
            "message": (S, "text after the prefix"),
        },
    ),
    Table(
        "nccl_tuning",
        "'N Bytes -> Algo …' lines.",
        {
            **NCCL,
            "op": (S, ""),
            "bytes": (I64, ""),
            "algo": (S, "RING, TREE, NVLS ..."),
            "proto": (S, "LL, LL128, SIMPLE"),
            "channels": (I32, ""),
            "time_us": (F64, ""),
        },
    ),
    Table(
        "nccl_tails",
        "Where the NCCL lines of one process end in a source: how many there are and what the last one says.",
        {**NCCL, "lines": (I64, "NCCL lines of the process in this source"), "message": (S, "text of the last line")},
    ),
)
