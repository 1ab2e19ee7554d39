"""Sends and receives of NCCL's logs that do not pair up between two ranks."""

from __future__ import annotations

import polars as pl

from nccl_forensics.rules.p2p_unpaired import p2p_unlike, p2p_unpaired
from nccl_forensics.views.calls import calls_of
from nccl_forensics.views.pairs import held, unpaired
from nccl_forensics.views.unlike_halves import unlike_halves
from tests.rules.frames import cited, comm, comms, told
from tests.views.frames import groups, operations

#: A ring of three ranks: each sends to the next and receives from the one before, then all reduce.
RING = {r: [f"send {(r + 1) % 3}", f"recv {(r - 1) % 3}", "all_reduce"] for r in range(3)}


def logs(calls: dict[int, list[str]], done: bool = False) -> pl.LazyFrame:
    """``send PEER``, ``recv PEER`` (with a size, ``send PEER 64``) and collectives, of each rank in the order of its lines."""
    parts = []
    for rank, line in calls.items():
        turn = 0
        for order, call in enumerate(line):
            op, *rest = call.split()
            pair = op in ("send", "recv")
            parts.append(
                operations({rank: [op]}, group="0xc0", domain="nccl").with_columns(
                    is_p2p=pl.lit(pair),
                    seq=pl.lit(None if pair else turn, dtype=pl.Int64),
                    peer=pl.lit(int(rest[0]) if pair else None, dtype=pl.Int32),
                    member=pl.lit(rank, dtype=pl.Int32),
                    shape=pl.lit(rest[1] if len(rest) > 1 else "32"),
                    order=pl.lit(order, dtype=pl.Int64),
                    line_no=pl.lit(order + 1, dtype=pl.UInt32),
                    record=pl.lit(None, dtype=pl.String),
                    done=pl.lit(done),
                )
            )
            turn += not pair
    return pl.concat(parts)


def found(calls: pl.LazyFrame, elsewhere: int | None = None) -> pl.LazyFrame:
    """The pairs of logs in which every rank's communicator is made, but for one rank's, which is made in another file."""
    made = [comm(r, 3, source_id=99 if r == elsewhere else r) for r in range(3)]
    return unpaired(calls, comms(*made))


def steps(**changed: list[str]) -> dict[int, list[str]]:
    """Two steps of all ranks; ``r1``: what rank 1 does in the second instead."""
    return {r: [*RING[r], *changed.get(f"r{r}", RING[r])] for r in RING}


def test_the_rank_that_leaves_out_a_send_and_a_receive_is_named() -> None:
    [finding] = p2p_unpaired.check(found(logs(steps(r1=["all_reduce"]))))
    assert told(finding) == ("critical", "medium", (1,))
    assert finding.title == "rank 0 called 2 sends to rank 1, which called 1 receives from it, and 1 more pairs like it"
    assert cited(finding)[0] == (0, 4)


def test_of_one_pair_the_side_that_does_otherwise_than_the_others_is_named_with_less() -> None:
    # A line that was lost would look the same.
    [finding] = p2p_unpaired.check(found(logs(steps(r1=["recv 0", "all_reduce"]))))
    assert told(finding) == ("critical", "low", (1,))


#: A ring of four ranks.
FOUR = {r: [f"send {(r + 1) % 4}", f"recv {(r - 1) % 4}", "all_reduce"] for r in range(4)}


def four(*last: list[str], rounds: int = 2) -> pl.LazyFrame:
    """Pairs of four ranks that go round in a ring, and then do what is given, each what is its own."""
    calls = logs({r: [*FOUR[r] * rounds, *last[r]] for r in FOUR})
    return unpaired(calls, comms(*(comm(r, 4, source_id=r) for r in FOUR)))


def test_who_sends_to_or_receives_from_another_peer_than_ever_is_named_though_others_went_on() -> None:
    # Rank 1 sends to 3 and not to 2: these two wait, and 0 and 3 come to the next step.
    stuck = four([*FOUR[0], *FOUR[0][:2]], ["send 3", "recv 0"], FOUR[2][:2], [*FOUR[3], *FOUR[3][:2]])
    [finding] = p2p_unpaired.check(stuck)
    assert told(finding) == ("critical", "medium", (1,))
    # Rank 3 receives from 1 and not from 2.
    stuck = four([*FOUR[0], *FOUR[0][:2]], [*FOUR[1], *FOUR[1][:2]], FOUR[2][:2], ["send 0", "recv 1"])
    [finding] = p2p_unpaired.check(stuck)
    assert told(finding) == ("critical", "medium", (3,))
    # Ranks 1 and 3 have exchanged before: that it is one for the other nothing tells.
    before = ["send 3", "recv 0"], FOUR[2][:2], ["recv 1", *FOUR[3], *FOUR[3][:2]]
    [finding] = p2p_unpaired.check(four([*FOUR[0], *FOUR[0][:2]], ["send 3", *before[0]], before[1], before[2]))
    assert told(finding)[2] != (3,)


def test_of_two_ranks_alone_nobody_is_named() -> None:
    [finding] = p2p_unpaired.check(found(logs({0: ["send 1", "send 1", "all_reduce"], 1: ["recv 0", "all_reduce"]})))
    assert told(finding) == ("critical", "low", ())


def test_another_size_names_who_sends_it() -> None:
    [finding] = p2p_unpaired.check(found(logs(steps(r1=["send 2 16", "recv 0", "all_reduce"]))))
    assert (finding.cause, finding.ranks, finding.confidence) == ("shape-mismatch", (1,), "medium")
    assert finding.title == "rank 1 sent rank 2 16 Float, which awaits 32 Float"


def test_pairs_that_agree_are_quiet_whatever_their_order_and_sizes() -> None:
    assert p2p_unpaired.check(found(logs(steps(r1=["recv 0", "send 2", "all_reduce"])))) == []
    uneven = {0: ["send 1 8", "recv 1 4", "all_reduce"], 1: ["recv 0 8", "send 0 4", "all_reduce"]}
    assert p2p_unpaired.check(found(logs(uneven))) == []


def test_a_log_that_was_copied_while_the_job_worked_ends_anywhere() -> None:
    # The last collective that both have called stands before the call that one of them lacks.
    copied = steps()
    copied[0] = [*copied[0], "send 1"]
    assert p2p_unpaired.check(found(logs(copied))) == []


def test_a_rank_that_went_past_what_its_peers_wait_in_left_it_out() -> None:
    # Its exchange of the step after makes the numbers of all equal again; of its neighbours none came to the collective that it made
    # before.
    ahead = {r: [*RING[r], *RING[r][:2]] for r in RING} | {1: ["send 2", "recv 0", "all_reduce", "all_reduce", "send 2", "recv 0"]}
    frame = found(logs(ahead))
    [finding] = p2p_unpaired.check(frame)
    assert told(finding) == ("critical", "medium", (1,))
    assert finding.title.startswith(
        "rank 0 called 2 sends to rank 1, which called 1 receives from it, before rank 1 went on to a collective (#1) to which rank 0 never came"
    )
    assert held(frame, None) == {0, 2}


def test_who_waits_behind_a_call_that_a_peer_left_alone_is_held_with_it() -> None:
    # Three stages: 0 leaves the send of the second step out and goes on, so that 1 waits, and what it sends to 2 has not begun.
    step = {0: ["send 1", "all_reduce"], 1: ["recv 0", "send 2", "all_reduce"], 2: ["recv 1", "all_reduce"]}
    second = {0: ["all_reduce"], 1: ["recv 0", "send 2"], 2: ["recv 1"]}
    calls = logs({r: [*step[r], *second[r]] for r in step})
    assert held(found(calls), calls_of(calls)) == {1, 2}
    # One that came to a collective behind them stands for another reason.
    calls = logs({r: [*step[r], *second[r], *(["all_reduce"] if r == 2 else [])] for r in step})
    assert held(found(calls), calls_of(calls)) == {1}


def test_ranks_that_take_sends_and_collectives_in_orders_of_their_own_are_not_compared_there() -> None:
    calls = {0: ["send 1", "all_reduce", "send 1"], 1: ["all_reduce", "recv 0", "all_reduce", "recv 0"], 2: ["all_reduce"]}
    assert p2p_unpaired.check(found(logs(calls))) == []


def test_a_log_whose_beginning_is_lost_may_lack_any_call() -> None:
    assert p2p_unpaired.check(found(logs(steps(r1=["all_reduce"])), elsewhere=1)) == []


def test_pairs_without_a_rank_that_lacks_calls_in_all_of_them_look_like_lost_lines() -> None:
    assert p2p_unpaired.check(found(logs(steps(r1=["recv 0", "all_reduce"], r2=["recv 1", "all_reduce"])))) == []


def test_what_was_taken_down_in_order_had_all_its_calls() -> None:
    assert p2p_unpaired.check(found(logs(steps(r1=["all_reduce"]), done=True))) == []


def test_a_peer_whose_log_is_missing_tells_nothing() -> None:
    assert p2p_unpaired.check(found(logs({0: steps()[0], 1: steps()[1]}))) == []


def stages(sizes: dict[int, list[str]], over: int = 3) -> pl.LazyFrame:
    """Sends and receives that recorders of a pipeline of three hold, ``send PEER SIZE``, of which the first ``over`` are completed."""
    parts = []
    for rank, line in sizes.items():
        for order, call in enumerate(line):
            op, peer, size = call.split()
            part = operations({rank: [op]}, first=order + 1).with_columns(
                is_p2p=pl.lit(True),
                peer=pl.lit(int(peer), dtype=pl.Int32),
                shape=pl.lit(size),
                order=pl.lit(order, dtype=pl.Int64),
                record=pl.lit(f"entries[{order}]"),
                done=pl.lit(order < over),
                pending=pl.lit(order >= over),
            )
            parts.append(part)
    return pl.concat(parts)


def test_an_open_send_of_another_size_than_the_receive_that_awaits_it_is_told_with_the_rank_whose_size_is_odd() -> None:
    everyone = groups({"pg:0": [0, 1, 2]})
    first, last = ["send 1 32"] * 3, ["recv 1 32"] * 3
    calls = {0: [*first, "send 1 64"], 1: [*["recv 0 32"] * 3, "recv 0 32"], 2: last}
    [finding] = p2p_unlike.check(unlike_halves(stages(calls), everyone))
    assert (finding.cause, *told(finding)) == ("shape-mismatch", "critical", "medium", (0,))
    assert cited(finding) == [(0, "entries[3]"), (1, "entries[3]")]


def test_sizes_that_change_from_call_to_call_or_agree_tell_nothing() -> None:
    everyone = groups({"pg:0": [0, 1, 2]})
    usual = ["send 1 32"] * 3
    assert unlike_halves(stages({0: [*usual, "send 1 32"], 1: ["recv 0 32"] * 4}), everyone).collect().is_empty()
    assert unlike_halves(stages({0: [*usual, "send 1 64"], 1: [*["recv 0 32"] * 3, "recv 0 64"]}), everyone).collect().is_empty()
    changing = {0: ["send 1 32", "send 1 48", "send 1 32", "send 1 64"], 1: ["recv 0 32", "recv 0 48", "recv 0 32", "recv 0 32"]}
    assert unlike_halves(stages(changing), everyone).collect().is_empty()
    assert unlike_halves(stages({0: [*usual, "send 1 64"], 1: ["recv 0 32"] * 3}), everyone).collect().is_empty(), "a half is missing"
