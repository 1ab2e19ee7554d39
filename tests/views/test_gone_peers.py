"""Processes that others saw go while they themselves went on."""

from __future__ import annotations

import polars as pl

from nccl_forensics.views.gone_peers import gone_peers
from nccl_forensics.views.nccl_facts import BOOTSTRAPPED
from tests.rules.frames import comm, comms, errors
from tests.rules.host_frames import table
from tests.views.frames import progress, rows

CLOSED = "[Service thread] Connection closed by localRank 2"


def by(of: int, **more: object) -> dict[str, object]:
    return {"source_id": of, "host": "node1", "pid": 100 + of, **more}


def gone(
    *notes: dict[str, object],
    ends: str = "AllReduce: opCount 3",
    refused: tuple[int, ...] = (),
    failed: tuple[int, ...] = (),
    lengths: tuple[int, ...] = (90, 90, 90),
    members: tuple[int, ...] = (0, 1, 3),
    joined: bool = True,
    reached: dict[int, int] | None = None,
    at: int = 88,
) -> list[tuple[object, ...]]:
    known = rows(BOOTSTRAPPED, *([{"comm_key": "0xc0", "source_id": 0, "line_no": 9}] if joined else []))
    tails = [by(r, lines=n, line_no=90, message=ends) for r, n in zip(members, lengths, strict=True)]
    place = [by(r, rank=r, local_rank=r, nranks=4, line_no=8) for r in members]
    lines = [by(r, kind="connect-retry", level="INFO", message="Connection refused, retrying", line_no=40) for r in refused]
    lines += [
        by(r, kind="peer-closed", level="WARN", message="socketProgress: Connection closed by remote peer", line_no=45) for r in failed
    ]
    found = gone_peers(
        comms(*[comm(r, 4) for r in members]),
        known,
        table("nccl_placement", *place),
        table("nccl_notes", *notes),
        errors(*lines),
        table("nccl_tails", *tails),
        calls_until(reached, at) if reached is not None else None,
    )
    return found.collect().select("rank", "how", "seen_by", "source_id", "line_no").rows()


def calls_until(last: dict[int, int], at: int) -> pl.LazyFrame:
    """The numbers of the last calls of ranks, and their line."""
    called = progress({"0xc0": {r: (n, None) for r, n in last.items()}})
    return called.with_columns(domain=pl.lit("nccl"), line_no=pl.lit(at, pl.UInt32))


def closed(rank: int, line: int = 50, local: int = 2) -> dict[str, object]:
    return by(rank, kind="local-peer-closed", value=float(local), line_no=line)


def test_a_rank_without_a_line_whose_connection_was_closed_while_others_wrote_on_is_gone() -> None:
    assert gone(closed(0), closed(3, 60)) == [(2, "closed", [0, 3], 0, 50)]


def test_connections_that_close_when_all_end_tell_nothing() -> None:
    assert gone(closed(0, 90), ends=CLOSED) == []


def test_who_ends_its_communicator_after_that_and_tells_of_no_error_may_have_been_done() -> None:
    ended = "comm 0x55e18e5a2aa0 rank 1 nranks 4 cudaDev 1 busId 2d000 - Abort COMPLETE"
    lost = [closed(0), closed(0, 52, local=1), closed(3), closed(3, 52, local=1)]
    assert gone(*lost, ends=ended) == []
    assert gone(*lost, ends=ended, failed=(3,)) == [(2, "closed", [3], 3, 50)]
    # Who lost nobody else gave up on that one.
    assert gone(closed(0), ends=ended) == [(2, "closed", [0], 0, 50)]


def test_the_first_lost_connection_counts_and_a_rank_with_lines_of_its_own_is_no_matter() -> None:
    assert gone(closed(0, 40, local=1), closed(0, 50)) == []


def test_a_rank_whose_lines_end_before_a_call_that_a_peer_made_after_losing_it_has_left() -> None:
    everybody = {"members": (0, 1, 2, 3), "lengths": (90, 90, 60, 90)}
    behind = {0: 3, 1: 3, 2: 2, 3: 3}
    assert gone(closed(0), **everybody, reached=behind) == [(2, "left", [0], 0, 50)]
    # What it says after its call is no matter.
    assert gone(closed(0), **everybody, ends="Call to connect returned Connection refused", reached=behind) == [(2, "left", [0], 0, 50)]


def test_a_rank_that_called_as_much_as_its_peers_may_have_ended_in_good_order() -> None:
    everybody = {"members": (0, 1, 2, 3), "lengths": (90, 90, 60, 90)}
    assert gone(closed(0), **everybody, reached=dict.fromkeys(range(4), 3)) == []
    assert gone(closed(0), **everybody, reached={0: 3, 1: 3, 2: 2, 3: 3}, at=40) == []


def test_the_one_rank_without_lines_is_gone_where_a_peer_is_refused_after_the_bootstrap() -> None:
    assert gone(refused=(3,)) == [(2, "refused", [3], 3, 40)]
    assert gone(refused=(3,), joined=False) == []


def test_a_process_that_got_least_far_alone_may_be_the_one_that_refuses() -> None:
    assert gone(refused=(3,), lengths=(90, 40, 90)) == []


def test_of_several_ranks_without_lines_none_is_known_to_refuse() -> None:
    assert gone(refused=(0,), members=(0, 1), lengths=(90, 90)) == []


def silent(*more: dict[str, object], witness: int = 0) -> list[tuple[object, ...]]:
    """All four ranks have logs, and these hand an error up or say more."""
    members = (0, 1, 2, 3)
    lost = [by(r, kind="peer-closed", level="WARN", message="Connection closed by remote peer", line_no=40) for r in (1, 3)]
    handed_up = [by(r, kind="propagation", level="INFO", code=6, line_no=41) for r in (1, 3)]
    found = gone_peers(
        comms(*[comm(r, 4) for r in members]),
        rows(BOOTSTRAPPED, {"comm_key": "0xc0", "source_id": 0, "line_no": 9}),
        table("nccl_placement", *[by(r, rank=r, local_rank=r, nranks=4, line_no=8) for r in members]),
        table("nccl_notes", closed(witness)),
        errors(*lost, *handed_up, *more),
        table("nccl_tails", *[by(r, lines=90, line_no=90, message="AllReduce: opCount 3") for r in members]),
        None,
    )
    return found.collect().select("rank", "how", "seen_by", "source_id", "line_no").rows()


def test_of_all_that_went_the_one_that_tells_of_no_error_went_first() -> None:
    assert silent() == [(2, "silent", [0], 0, 50)]


def test_where_a_rank_failed_for_a_reason_of_its_own_a_silent_one_may_have_been_ended() -> None:
    assert silent(by(1, kind="cuda", level="WARN", message="Cuda failure 2 'out of memory'", line_no=30)) == []
    # The one that went has an error as well.
    assert silent(by(2, kind="propagation", level="INFO", code=6, line_no=30)) == []


def lost(
    *more: dict[str, object], peer: str = "node2.cl.local<5>", pairs: tuple[tuple[int, int], ...] = ((0, 1), (1, 2)), last: int = 2
) -> list[object]:
    """Of ranks 0 to 3, two to a host, rank 2 called one collective less (``last`` is its number), and rank 1 failed for a connection that closed."""
    members = (0, 1, 2, 3)
    where = {r: {"source_id": r, "host": f"node{r // 2 + 1}", "pid": 100 + r} for r in members}
    closed_by = {
        **where[1],
        "kind": "peer-closed",
        "level": "WARN",
        "peer": peer,
        "message": "Connection closed by remote peer",
        "line_no": 40,
    }
    handed_up = {**where[1], "kind": "propagation", "level": "INFO", "code": 6, "file": "enqueue.cc", "line_no": 41}
    found = gone_peers(
        comms(*[comm(r, 4) | where[r] for r in members]),
        rows(BOOTSTRAPPED, {"comm_key": "0xc0", "source_id": 0, "line_no": 9}),
        None,
        None,
        errors(closed_by, handed_up, *[{**where[1], **m} for m in more]),
        table("nccl_tails", *[{**where[r], "lines": 90, "line_no": 90, "message": "AllReduce: opCount 3"} for r in members]),
        calls_until({0: 3, 1: 3, 2: last, 3: 3}, at=30),
        table("nccl_connections", *[{**where[a], "src": a, "dst": b, "transport": "NET", "line_no": 20} for a, b in pairs]),
        table("nccl_network", {**where[2], "item": "bootstrap", "address": "10.0.0.2<0>", "line_no": 2}),
    )
    return found.collect().select("rank", "how", "seen_by", "source_id", "line_no").rows()


def test_a_silent_rank_that_is_behind_is_gone_where_its_only_partner_over_the_network_lost_it() -> None:
    assert lost() == [(2, "lost", [1], 1, 40)]
    assert lost(peer="10.0.0.2<51161>") == [(2, "lost", [1], 1, 40)]


def test_a_lost_connection_to_another_host_or_to_one_of_several_partners_there_tells_of_nobody() -> None:
    assert lost(peer="node9<5>") == []
    assert lost(pairs=((1, 2), (1, 3))) == []


def test_a_connection_whose_other_end_is_not_told_was_to_the_one_partner_that_is_far_behind() -> None:
    both = ((0, 1), (1, 2), (1, 3))
    assert lost(peer="<>", pairs=both, last=1) == [(2, "lost", [1], 1, 40)]
    assert lost(peer="<>", pairs=both, last=2) == [], "one call behind it may have been on its way"
    assert lost(peer="<>", pairs=((0, 1), (1, 3)), last=1) == [], "they do not talk to each other"
    assert lost(peer="node2.cl.local<5>", pairs=both, last=1) == [], "it may have been the other one there"


def test_a_connection_that_was_lost_after_another_fault_tells_of_nobody() -> None:
    assert lost({"kind": "cuda-failure", "level": "WARN", "message": "Cuda failure 2 'out of memory'", "line_no": 30}) == []


def ends_of(
    *notes: dict[str, object],
    said: tuple[dict[str, object], ...] = (),
    ended: dict[int, str] | None = None,
    hosts: int = 2,
    late: tuple[int, ...] = (),
    pairs: tuple[tuple[int, int], ...] = (),
    early: tuple[int, ...] = (),
    level: bool = False,
) -> list[object]:
    """Of ranks 0 to 7, four to a host, all have logs; ``ended`` are those whose communicator ended, and how; ``late`` called one
    less than the others, ``early`` two less, none where they are ``level``; ``pairs`` have a communicator of their own."""
    per = 8 // hosts
    where = {r: {"source_id": r, "host": f"node{r // per}", "pid": 100 + r} for r in range(8)}
    ends = {r: {"ended": how, "end_line_no": 70} for r, how in (ended or {}).items()}
    place = [where[r] | {"rank": r, "local_rank": r % per, "nranks": 8, "line_no": 8} for r in where]
    of_pairs = [
        comm(at, 2) | where[r] | {"comm_key": f"0xd{n}", "comm": f"0xb{n}", "completed": True}
        for n, pair in enumerate(pairs)
        for at, r in enumerate(pair)
    ]
    found = gone_peers(
        comms(*[comm(r, 8) | where[r] | ends.get(r, {}) for r in where], *of_pairs),
        rows(BOOTSTRAPPED, {"comm_key": "0xc0", "source_id": 0, "line_no": 9}),
        table("nccl_placement", *place),
        table("nccl_notes", *[where[int(str(n["by"]))] | {k: v for k, v in n.items() if k != "by"} for n in notes]),
        errors(*[where[int(str(e["by"]))] | {k: v for k, v in e.items() if k != "by"} for e in said]),
        table("nccl_tails", *[where[r] | {"lines": 90, "line_no": 90, "message": CLOSED} for r in where]),
        calls_until({r: 1 if r in early else 2 if r in late else 3 for r in where}, at=40) if late or early or level else None,
    )
    return found.collect().select("rank", "how", "seen_by").rows()


def loses(by: int, local: int) -> dict[str, object]:
    return {"by": by, "kind": "local-peer-closed", "value": float(local), "line_no": 50}


def test_ranks_of_one_host_that_alone_are_lost_went_before_all_others() -> None:
    assert ends_of(loses(4, 2), loses(4, 3), loses(6, 3)) == [(6, "first", [4]), (7, "first", [4])]
    # The other host loses one of its own too, or all but one went: they may have ended one after the other.
    assert ends_of(loses(4, 2), loses(0, 1)) == []
    assert ends_of(loses(4, 2), loses(4, 3), loses(4, 1)) == []
    # All made the same calls to the end: they may have exited in this order.
    assert ends_of(loses(4, 2), loses(4, 3), loses(6, 3), level=True) == []
    # Somebody failed and says why.
    failed = {"by": 6, "kind": "cuda", "level": "WARN", "message": "Cuda failure 'out of memory'", "line_no": 30}
    assert ends_of(loses(4, 2), said=(failed,)) == []


def test_on_the_only_host_two_must_lose_the_rank_that_went() -> None:
    assert ends_of(loses(4, 2), loses(1, 2), hosts=1) == [(2, "first", [1, 4])]
    assert ends_of(loses(4, 2), hosts=1) == []


def test_of_two_on_a_host_the_one_that_is_behind_and_lost_went() -> None:
    assert ends_of(loses(4, 1), hosts=4, late=(5,)) == [(5, "first", [4])]
    # The other of them may have ended after it, in order.
    assert ends_of(loses(4, 1), hosts=4) == []
    assert ends_of(loses(4, 1), hosts=4, late=(3,)) == []
    assert ends_of(loses(4, 1), hosts=4, late=(4, 5)) == [(5, "first", [4])]
    # On several hosts it may be the end of all, unless those that were lost are the very ones that are behind.
    assert ends_of(loses(4, 1), loses(1, 0), hosts=4, late=(0, 5)) == [(0, "first", [1]), (5, "first", [4])]
    assert ends_of(loses(4, 1), loses(1, 0), hosts=4, late=(0, 3, 5)) == ends_of(loses(4, 1), loses(1, 0), hosts=4) == []


def test_others_that_fail_for_lost_connections_alone_do_not_hide_the_one_that_is_behind_and_lost() -> None:
    lost = {"by": 2, "kind": "peer-closed", "level": "WARN", "message": "socketProgress: Connection closed by remote peer", "line_no": 60}
    full = {"by": 2, "kind": "no-slot", "level": "WARN", "message": "NET/Socket : unable to allocate requests", "line_no": 61}
    assert ends_of(loses(4, 1), hosts=4, said=(lost, full), late=(5,)) == [(5, "first", [4])]
    assert ends_of(loses(4, 1), hosts=4, said=(lost, full)) == [], "nobody is behind"
    assert ends_of(loses(4, 1), hosts=4, said=(lost, full), late=(0, 5)) == [], "another one is behind too"
    other = {"by": 6, "kind": "cuda-failure", "level": "WARN", "message": "Cuda failure 'out of memory'", "line_no": 30}
    assert ends_of(loses(4, 1), hosts=4, said=(lost, other), late=(5,)) == []


def test_who_ended_the_communicator_long_before_the_last_call_of_its_peers_has_left() -> None:
    assert ends_of(ended={5: "destroy-complete"}, early=(5,)) == [(5, "ended", [0, 1, 2, 3, 4, 6, 7])]
    # It called but one less, as a rank does that left one out; most ended it; or somebody failed.
    assert ends_of(ended={5: "destroy-complete"}, late=(5,)) == []
    assert ends_of(ended=dict.fromkeys(range(5), "destroy-complete"), early=(0,)) == []
    lost = {"by": 2, "kind": "peer-closed", "level": "WARN", "message": "socketProgress: Connection closed by remote peer", "line_no": 60}
    assert ends_of(ended={5: "abort-complete"}, early=(5,), said=(lost,)) == []


def test_a_local_rank_is_known_where_all_communicators_of_who_lost_it_mean_the_same_one() -> None:
    lost = (loses(1, 2), loses(3, 2))
    assert ends_of(*lost) == [(2, "first", [1, 3])]
    assert ends_of(*lost, pairs=((1, 3), (2, 6))) == [(2, "first", [1, 3])], "these count to 1"
    assert ends_of(loses(1, 1), loses(3, 1)) == [(1, "first", [3])]
    assert ends_of(loses(0, 1), loses(3, 1), pairs=((0, 3),)) == [], "rank 1, or rank 3"


def test_a_rank_whose_address_ras_declares_dead_is_gone() -> None:
    here = [{"by": r, "kind": "ras-socket", "a": f"10.0.0.{r}<4000>", "line_no": 3} for r in range(8)]
    dead = {"by": 1, "kind": "ras-dead", "level": "INFO", "peer": "10.0.0.5<4000>", "message": "RAS declaring peer as DEAD", "line_no": 60}
    assert ends_of(*here, said=(dead,)) == [(5, "dead", [1])]
    # Its communicator ended in order, or nobody tells whose the address is.
    assert ends_of(*here, said=(dead,), ended={5: "destroy-complete"}) == []
    assert ends_of(said=(dead,)) == []


def test_the_one_host_whose_ranks_do_not_abort_with_all_others_was_gone() -> None:
    aborted = dict.fromkeys(range(4), "abort-complete")
    assert ends_of(ended=aborted) == [(r, "unended", [0, 1, 2, 3]) for r in range(4, 8)]
    # One of its ranks aborted as well, or one of the others did not.
    assert ends_of(ended=aborted | {5: "abort-complete"}) == []
    assert ends_of(ended=dict.fromkeys(range(3), "abort-complete")) == []
    # Who lost another one of that host outlived it, and may still be aborting.
    lost = [*(loses(r, 0) for r in (5, 6, 7)), loses(0, 1)]
    assert ends_of(*lost, ended=aborted) == [(4, "unended", [0, 1, 2, 3])]


def refused_by(*calling: int, target: str = "10.0.0.2", more: tuple[dict[str, object], ...] = ()) -> list[tuple[object, ...]]:
    """Two ranks to a host, all with logs; rank 1 gave up connecting; ``calling`` have called the collective."""
    where = {r: {"source_id": r, "host": f"node{r // 2}", "pid": 100 + r} for r in range(4)}
    text = f"socketPollConnect: connect to {target}<38773> returned Connection refused, exceeded error retry count after 35 attempts"
    found = gone_peers(
        comms(*[comm(r, 4) | where[r] for r in where]),
        rows(BOOTSTRAPPED, {"comm_key": "0xc0", "source_id": 0, "line_no": 9}),
        None,
        None,
        errors(
            {**where[1], "kind": "connect-gave-up", "level": "WARN", "message": text, "line_no": 50}, *[{**where[1], **m} for m in more]
        ),
        table("nccl_tails", *[{**where[r], "lines": 90, "line_no": 90, "message": "AllReduce: opCount 0"} for r in where]),
        calls_until(dict.fromkeys(calling, 0), at=30),
        table("nccl_connections"),
        table("nccl_network", {**where[2], "item": "bootstrap", "address": "10.0.0.2<0>", "line_no": 2}),
    )
    return found.collect().select("rank", "how", "seen_by", "source_id", "line_no").rows()


def test_where_a_port_is_refused_after_the_bootstrap_the_one_rank_there_that_never_called_is_gone() -> None:
    assert refused_by(0, 1, 3) == [(2, "lost", [1], 1, 50)]
    # All called, two did not, the port is another host's, or something else went wrong.
    assert refused_by(0, 1, 2, 3) == refused_by(0, 1) == refused_by(0, 1, 3, target="10.0.0.9") == []
    failed: dict[str, object] = {"kind": "cuda-failure", "level": "WARN", "message": "Cuda failure 2 'out of memory'", "line_no": 30}
    assert refused_by(0, 1, 3, more=(failed,)) == []
