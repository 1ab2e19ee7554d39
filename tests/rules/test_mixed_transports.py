"""One side of a connection speaks RDMA and the other sockets."""

from __future__ import annotations

import polars as pl

from nccl_forensics.rules.mixed_transports import mixed_transports
from tests.rules.frames import cited, comm, comms, errors, people, told
from tests.rules.host_frames import table

PEOPLE = people((0, "node1", 100), (1, "node1", 101))
MEMBERS = comms(comm(0, 4), comm(1, 4))


def placed(nodes: int = 2) -> pl.LazyFrame:
    return table("nccl_placement", {"host": "node1", "pid": 100, "rank": 0, "nranks": 4, "nodes": nodes, "local_ranks": 2, "local_rank": 0})


def said(message: str) -> pl.LazyFrame:
    return errors({"kind": "handshake-mismatch", "level": "WARN", "host": "node1", "pid": 100, "message": message, "line_no": 60})


RDMA_HERE = said("socketFinalizeAccept from 10.0.0.2<5000>: wrong type 3 != 4")


def test_of_two_hosts_the_one_with_sockets_is_named_by_the_other() -> None:
    [finding] = mixed_transports.check(RDMA_HERE, PEOPLE, MEMBERS, placed())
    assert (finding.cause, *told(finding)) == ("environment-mismatch", "error", "medium", (2, 3))
    assert cited(finding) == [(0, 60)]
    assert "ranks 2-3 speak sockets" in finding.title
    [finding] = mixed_transports.check(RDMA_HERE, people((0, "node1", 100), (1, "node1", 101), (2, "node2", 9)), MEMBERS, placed())
    assert ("node1" in finding.title, finding.hosts, finding.actions[0].hosts) == (True, ("node2",), ("node2",)), "where it is to be mended"


def test_a_host_with_sockets_tells_it_of_itself() -> None:
    sockets_here = said("socketFinalizeAccept from 10.0.0.2<5000>: wrong type 4 != 3")
    [finding] = mixed_transports.check(sockets_here, PEOPLE, MEMBERS, placed())
    assert finding.ranks == (0, 1)


def test_in_a_larger_job_or_without_all_logs_of_the_host_nobody_is_named() -> None:
    for members, where in ((MEMBERS, placed(nodes=3)), (comms(comm(0, 4)), placed()), (None, None)):
        [finding] = mixed_transports.check(RDMA_HERE, PEOPLE, members, where)
        assert (finding.ranks, finding.culprits) == ((), ())


def test_where_both_sides_say_so_it_is_sure() -> None:
    theirs = RDMA_HERE.with_columns(host=pl.lit("node2"), message=pl.lit("socketFinalizeAccept from 10.0.0.1<5000>: wrong type 4 != 3"))
    told_by_both = mixed_transports.check(pl.concat([RDMA_HERE, theirs]), PEOPLE, MEMBERS, placed())
    assert [f.confidence for f in told_by_both if f.ranks == (2, 3)] == ["high"]
    again = mixed_transports.check(pl.concat([RDMA_HERE, RDMA_HERE]), PEOPLE, MEMBERS, placed())
    assert [f.confidence for f in again] == ["medium"]


def test_other_handshakes_are_left_alone() -> None:
    assert mixed_transports.check(said("socketFinalizeAccept: wrong magic 1 != 2"), PEOPLE, MEMBERS, placed()) == []
    other = said("socketFinalizeAccept from 10.0.0.2<5000>: wrong type 1 != 2")
    assert mixed_transports.check(other, PEOPLE, MEMBERS, placed()) == []


def chose(**networks: str) -> pl.LazyFrame:
    return pl.LazyFrame([{"host": host, "network": name, "ranks": [n]} for n, (host, name) in enumerate(networks.items())])


def test_in_a_larger_job_the_hosts_that_say_that_they_use_sockets_are_named() -> None:
    [finding] = mixed_transports.check(RDMA_HERE, PEOPLE, MEMBERS, placed(3), chose(node1="IB", node2="Socket", node3="IB"))
    assert finding.ranks == (1,)
    # Half of the hosts, or one that says both, are no exception.
    for networks in (chose(node1="IB", node2="Socket"), pl.concat([chose(node1="IB", node2="Socket", node3="IB"), chose(node2="IB")])):
        [finding] = mixed_transports.check(RDMA_HERE, PEOPLE, MEMBERS, placed(3), networks)
        assert finding.ranks == ()


def test_of_two_hosts_that_are_all_of_the_job_the_one_that_says_that_it_uses_sockets_is_named() -> None:
    both = chose(node1="IB", node2="Socket").with_columns(ranks=pl.when(pl.col("host") == "node1").then([0, 1]).otherwise([2, 3]))
    [finding] = mixed_transports.check(RDMA_HERE, PEOPLE, comms(*(comm(r, 4) for r in range(4))), None, both)
    assert told(finding) == ("error", "medium", (2, 3))


def test_hosts_that_chose_otherwise_are_named_by_their_own_words_where_a_connection_of_the_network_failed() -> None:
    networks = chose(node1="IB", node2="Socket", node3="IB").with_columns(source_id=pl.lit(0, pl.UInt32), line_no=pl.lit(7, pl.UInt32))
    handed_up = {"kind": "propagation", "level": "INFO", "pid": 100, "file": "transport/net_ib/connect.cc", "code": 6, "line_no": 60}
    members = comms(*(comm(r, 3) for r in range(3)))
    [finding] = mixed_transports.check(errors(handed_up), PEOPLE, members, None, networks)
    assert (finding.cause, *told(finding)) == ("environment-mismatch", "error", "medium", (1,))
    # No connection of a network failed, or these are two jobs.
    elsewhere = errors(handed_up | {"file": "transport/p2p.cc"})
    assert mixed_transports.check(elsewhere, PEOPLE, members, None, networks) == []
    apart = comms(comm(0, 3), comm(1, 3) | {"comm_key": "other"}, comm(2, 3))
    assert mixed_transports.check(errors(handed_up), PEOPLE, apart, None, networks) == []
