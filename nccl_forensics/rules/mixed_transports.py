"""One side of a connection speaks RDMA and the other sockets.

## What it finds
A process whose network was reached by one of another kind: the type in NCCL's handshake is that of NET/IB on one side and of NET/Socket on
the other; or hosts of one communicator that say so of themselves, where NCCL failed in a connection between hosts. Of two hosts the one with the
sockets is named: RDMA that works is meant, and the other has lost it or was told to leave it.

## Why it matters
The two can never talk: the job ends in its first collective between the hosts, with errors of connections that look like a network fault.

## What would refute it
The host with RDMA was meant to run without it (NCCL_IB_DISABLE, NCCL_NET on all hosts).

## What to do next
Compare NCCL_IB_DISABLE, NCCL_IB_HCA, NCCL_NET and the RDMA devices of both hosts.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.model import Action, Finding
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.errors import hosts_of, where_reported
from nccl_forensics.words import ranks_words, verb

#: Types of sockets in NCCL's handshake (src/include/socket.h, enum ncclSocketType).
_NET_SOCKET, _NET_IB = 3, 4
#: An error that is handed up in a network transport (net.cc, net_ib.cc, net_ib/connect.cc, net_socket.cc).
_OF_A_NETWORK = (pl.col("kind") == "propagation") & pl.col("file").str.contains(r"transport/net") & pl.col("code").is_between(1, 7)


@rule(
    name="mixed-transports",
    code="NE19",
    cause="environment-mismatch",
    severity="error",
    at_most=16,
    explains=("connection-failed", "rank-died", "rank-never-joined", "host-stall", "collective-stuck", "software-crash", "timeout"),
)
def mixed_transports(
    nccl_errors: pl.LazyFrame,
    processes: pl.LazyFrame,
    comms: pl.LazyFrame | None,
    nccl_placement: pl.LazyFrame | None,
    networks: pl.LazyFrame | None = None,
) -> Iterator[Finding]:
    """One finding for each host that says so."""
    lines = nccl_errors.filter(
        (pl.col("kind") == "handshake-mismatch") & (pl.col("level") == "WARN") & pl.col("message").str.contains("wrong type", literal=True)
    )
    types = pl.col("message").str.extract_groups(r"wrong type (?<theirs>\d{1,2}) != (?<ours>\d{1,2})").struct
    told = where_reported(lines, processes).with_columns(
        theirs=types.field("theirs").cast(pl.Int32), ours=types.field("ours").cast(pl.Int32)
    )
    of_networks = pl.col("theirs", "ours").is_in([_NET_SOCKET, _NET_IB]).fill_null(value=True)  # a cut line may lack its numbers
    told = told.filter(pl.all_horizontal(of_networks))
    seen = set(told.select("theirs", "ours").drop_nulls().unique().rows())
    # Each side says of the other what the other says of itself: no line that was cut or printed late makes that.
    both = seen == {(_NET_SOCKET, _NET_IB), (_NET_IB, _NET_SOCKET)} and told["host"].n_unique() == len(seen)
    chosen = _chose_sockets(networks, comms) if networks is not None else ()
    if not told.height and chosen and networks is not None and comms is not None:
        yield from _by_their_own_words(chosen, networks, comms, where_reported(nccl_errors.filter(_OF_A_NETWORK), processes))
    for _, rows in told.group_by("host", maintain_order=True):
        hosts, message = hosts_of(rows), str(rows["message"][0])
        kinds = set(rows.select("theirs", "ours").drop_nulls().unique().rows())
        slow = chosen or _on_sockets(kinds, hosts, comms, nccl_placement)
        # Who says so has its own side of it right: what is to be mended is on the hosts of those on sockets.
        at = [h for h, r in processes.select("host", "rank").collect().iter_rows() if r in slow and h is not None]
        where = tuple(sorted(set(at))) or hosts
        who = ", ".join(hosts) or "a host whose name is not in the evidence"
        named = f"; {ranks_words(slow)} {verb(slow, 'speaks', 'speak')} sockets" if slow else ""
        yield Finding(
            title=f"a peer answered for another transport: one side uses RDMA and the other sockets ({who}){named}: {message[:140]}",
            summary="NCCL says so itself." + (" The other host of the job has RDMA, which is then meant to be used." if slow else ""),
            confidence="high" if slow and both else "medium",
            ranks=slow,
            hosts=where,
            subject=("mixed-transports", *hosts),
            evidence=cite(rows, "said by NCCL"),
            evidence_total=rows.height,
            remedy="Compare NCCL_IB_DISABLE, NCCL_IB_HCA, NCCL_NET and the RDMA devices of both hosts.",
            prevention="Set NCCL_NET=IB: a host without RDMA then fails at once and says why.",
            would_refute=("another rank had failed before this line was printed", "the job was meant to run over sockets"),
            actions=(Action("fix_config", hosts=where, ranks=slow, confidence="medium"),),
        )


def _by_their_own_words(chosen: tuple[int, ...], networks: pl.LazyFrame, comms: pl.LazyFrame, failed: pl.DataFrame) -> Iterator[Finding]:
    """One finding at most: the ranks on sockets share a communicator with ranks on RDMA, and a connection of the network failed. From 2.28
    on the process that is answered by the wrong kind may be waiting when the log ends, and its peer only sees the connection closed."""
    fast = networks.filter(pl.col("network") == "IB").collect()
    others = {r for ranks in fast["ranks"].to_list() for r in ranks}
    members = comms.filter(pl.col("rank").is_not_null()).group_by("comm_key").agg("rank").collect()["rank"].to_list()
    if not failed.height or not any(set(chosen) & set(ranks) and others & set(ranks) for ranks in members):
        return
    slow = networks.filter(pl.col("network") == "Socket").collect()
    hosts = tuple(sorted(set(slow["host"].to_list())))
    yield Finding(
        title=f"{', '.join(hosts[:4])} {verb(hosts, 'speaks', 'speak')} sockets to hosts that speak RDMA: no connection between them can be made",
        summary=f"{ranks_words(chosen)} chose sockets, {len(fast)} other host{'s' if len(fast) != 1 else ''} of the communicator RDMA, and a connection of the network failed.",
        confidence="medium",
        ranks=chosen,
        hosts=hosts,
        subject=("mixed-transports", *hosts),
        evidence=(*cite(slow, "chose sockets"), *cite(fast, "chose RDMA"), *cite(failed.head(4), "a connection of the network failed")),
        remedy="Compare NCCL_IB_DISABLE, NCCL_IB_HCA, NCCL_NET and the RDMA devices of both hosts.",
        prevention="Set NCCL_NET=IB: a host without RDMA then fails at once and says why.",
        would_refute=("the hosts are of different jobs", "the job was meant to run over sockets"),
        actions=(Action("fix_config", hosts=hosts, ranks=chosen, confidence="medium"),),
    )


def _chose_sockets(networks: pl.LazyFrame, comms: pl.LazyFrame | None) -> tuple[int, ...]:
    """Ranks of the hosts whose own lines say that they use sockets, where those of most hosts say InfiniBand and none says both; of two
    hosts that are all of the job, those of the one."""
    told = networks.filter(pl.col("host").is_not_null()).collect()
    slow, fast = (set(told.filter(pl.col("network") == name)["host"].to_list()) for name in ("Socket", "IB"))
    size = comms.select(pl.col("nranks").max()).collect().item() if comms is not None else None
    whole = size is not None and len(fast) == 1 and len({r for ranks in told["ranks"].to_list() for r in ranks}) == size
    if slow & fast or not slow or len(slow) > len(fast) or (len(slow) == len(fast) and not whole):
        return ()
    ranks = told.filter(pl.col("host").is_in(sorted(slow)))["ranks"].to_list()
    return tuple(sorted({r for own in ranks for r in own})) if all(ranks) else ()


def _on_sockets(
    kinds: set[tuple[object, ...]], hosts: tuple[str, ...], comms: pl.LazyFrame | None, nccl_placement: pl.LazyFrame | None
) -> tuple[int, ...]:
    """Ranks of the host that speaks sockets, in a job of two hosts; none where that is not to be told."""
    if comms is None or nccl_placement is None or len(hosts) != 1 or len(kinds) != 1:
        return ()
    nodes = nccl_placement.select(pl.col("nodes").max()).collect().item()
    known = comms.filter(pl.col("rank").is_not_null() & pl.col("nranks").is_not_null()).collect()
    if nodes != 2 or not known.height:
        return ()
    size = int(str(known["nranks"].max()))
    members = known.filter(pl.col("nranks") == size)
    here = set(members.filter(pl.col("host") == hosts[0])["rank"].to_list())
    local = (
        nccl_placement.filter((pl.col("host") == hosts[0]) & (pl.col("nranks") == size))
        .select(pl.col("local_ranks").max())
        .collect()
        .item()
    )
    if len(here) != local:
        return ()  # logs of this host are missing: its ranks are not all known
    if kinds == {(_NET_SOCKET, _NET_IB)}:
        return tuple(sorted(set(range(size)) - here))
    return tuple(sorted(here)) if kinds == {(_NET_IB, _NET_SOCKET)} else ()
