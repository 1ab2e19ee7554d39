"""Ranks that went past a collective that the others wait in."""

from __future__ import annotations

import polars as pl
import pytest

from nccl_forensics.views import jumps as view
from nccl_forensics.views.jumps import _breaks, _numbered_after, _usual, broken_steps, jumped_groups, passed_over
from tests.views.frames import operations, progress

BEHIND = {"rank": 2, "kind": "behind", "domain": "fr", "group_key": "pg:7", "seq": 5, "op": "all_to_all", "waiters": [0, 1], "source_id": 0}


def called(orders: dict[int, list[tuple[str, str, int]]]) -> pl.LazyFrame:
    """For each rank its calls in order: group, its description, position."""
    return pl.concat(
        [
            operations({rank: ["all_reduce"]}, group=group, first=seq).with_columns(
                order=pl.lit(order, dtype=pl.Int64), group_desc=pl.lit(desc), record=pl.lit(f"entries[{order}]")
            )
            for rank, calls in orders.items()
            for order, (group, desc, seq) in enumerate(calls)
        ]
    )


FOUR, FIVE = ("pg:7", "expert", 4), ("pg:7", "expert", 5)


def data(rank: int) -> tuple[str, str, int]:
    """Each rank has a data-parallel group of its own."""
    return (f"pg:2{rank}", "data", 9)


def test_a_later_call_that_the_others_made_after_the_missing_one_shows_that_it_was_left_out() -> None:
    waiters = {r: [FOUR, FIVE, data(r)] for r in (0, 1)}
    found = passed_over([BEHIND], called(waiters | {2: [FOUR, data(2)]}))
    assert list(found) == [2]
    fact, ahead = found[2]
    assert (fact["seq"], fact["own_source_id"], fact["own_record"], ahead) == (5, 2, "entries[0]", "pg:22")


def test_one_that_alone_made_the_two_calls_in_that_order_tells_nothing_of_several_others() -> None:
    late = [{**BEHIND, "rank": rank, "waiters": [0, 1]} for rank in (2, 3)]
    tensor = ("pg:5", "tp", 7)
    waiting = {0: [FOUR, FIVE, tensor], 1: [FOUR, FIVE]}
    assert passed_over(late, called(waiting | {2: [FOUR, tensor], 3: [FOUR, tensor]})) == {}
    assert list(passed_over(late[:1], called(waiting | {2: [FOUR, tensor]}))) == [2], "of two either may be the one that errs"


def test_where_batches_of_sends_are_numbered_as_collectives_nothing_was_left_out() -> None:
    calls = called({r: [FOUR, FIVE, data(r)] for r in (0, 1)} | {2: [FOUR, data(2)]})
    counted = operations({0: ["coalesced"] * 2}, group="pg:7", first=3).with_columns(is_p2p=pl.lit(True))
    still = counted.with_columns(seq=pl.lit(0, dtype=pl.Int64))
    assert passed_over([BEHIND], pl.concat([calls, still])) == {}
    assert list(passed_over([BEHIND], pl.concat([calls, still.with_columns(group_key=pl.lit("pg:8"))]))) == [2]
    assert list(passed_over([BEHIND], pl.concat([calls, counted]))) == [2], "batches that have numbers of their own take none"


def test_who_stands_in_the_missing_call_does_not_tell_what_comes_after_it() -> None:
    shared, loss = ("pg:0", "", 8), ("pg:0", "", 9)
    went_on = [FOUR, shared, loss]
    waiters = {0: [FOUR, shared, FIVE], 1: [FOUR, shared, FIVE, loss]}
    assert list(passed_over([BEHIND], called(waiters | {2: went_on}))) == [2], "rank 1 tells it"
    assert passed_over([BEHIND], called({0: waiters[0], 1: waiters[0], 2: went_on})) == {}, "nobody does"
    assert passed_over([BEHIND], called(waiters | {2: [FOUR, shared]})) == {}, "it may be on its way to it"


def test_the_lines_of_a_log_show_it_too_where_members_share_another_group() -> None:
    lines = {"domain": pl.lit("nccl"), "group_desc": pl.lit(None, dtype=pl.String()), "record": pl.lit(None, dtype=pl.String())}
    waiters = {r: [FOUR, FIVE, ("pg:0", "", 9)] for r in (0, 1)}
    behind = BEHIND | {"domain": "nccl"}
    assert list(passed_over([behind], called(waiters | {2: [FOUR, ("pg:0", "", 9)]}).with_columns(**lines))) == [2]
    # It stopped before both.
    assert passed_over([behind], called(waiters | {2: [FOUR]}).with_columns(**lines)) == {}
    # What a recorder holds of another rank is no witness of a log.
    assert passed_over([behind], called(waiters | {2: [FOUR, ("pg:0", "", 9)]})) == {}


def test_a_call_that_the_others_made_before_the_missing_one_shows_nothing() -> None:
    waiters = {r: [FOUR, data(r), FIVE] for r in (0, 1)}
    assert passed_over([BEHIND], called(waiters | {2: [FOUR, data(2)]})) == {}


def test_what_one_rank_alone_says_of_most_others_is_not_believed() -> None:
    most = {r: [FOUR, data(r)] for r in (1, 2)}
    behind = [BEHIND | {"rank": r, "waiters": [0]} for r in (1, 2)]
    assert passed_over(behind, called(most | {0: [FOUR, FIVE, data(0)]})) == {}
    assert list(passed_over(behind[:1], called(most | {0: [FOUR, FIVE, data(0)]}))) == [1]


def test_a_rank_that_called_nothing_more_may_still_come() -> None:
    waiters = {r: [FOUR, FIVE, data(r)] for r in (0, 1)}
    assert passed_over([BEHIND], called(waiters | {2: [FOUR]})) == {}
    # Nor is anything known of one that never called anything in the group.
    assert passed_over([BEHIND], called(waiters | {2: [data(2)]})) == {}


def test_a_dump_of_what_is_open_alone_shows_it_by_a_call_of_a_group_in_common() -> None:
    everybody = ("pg:0", "default_pg", 9)
    waiters = {r: [FOUR, FIVE, everybody] for r in (0, 1)}
    assert list(passed_over([BEHIND], called(waiters | {2: [everybody]}))) == [2]
    before = {r: [FOUR, everybody, FIVE] for r in (0, 1)}
    assert passed_over([BEHIND], called(before | {2: [everybody]})) == {}


def test_where_the_others_do_not_agree_on_the_order_nothing_is_claimed() -> None:
    assert passed_over([BEHIND], called({0: [FIVE, data(0)], 1: [data(1), FIVE], 2: [FOUR, data(2)]})) == {}


STEP = (("pg:1", "data", 0), ("pg:1", "data", 1), ("pg:0", "world", 2))


def steps(rank: int, last: list[int], before: int = 3) -> pl.LazyFrame:
    """Calls of a rank: whole steps of three operations, two in one group and one in another, then those of a last step by their place."""
    places = [place for _ in range(before) for place in range(3)] + last
    seqs: dict[str, int] = {}
    rows = []
    for order, place in enumerate(places):
        group, desc, size = STEP[place]
        seqs[group] = seqs.get(group, 0) + 1
        rows.append(
            operations({rank: [f"all_reduce [{size}]"]}, group=group, first=seqs[group]).with_columns(
                order=pl.lit(order, dtype=pl.Int64), group_desc=pl.lit(desc), record=pl.lit(f"entries[{order}]")
            )
        )
    return pl.concat(rows)


def sending(job: pl.LazyFrame, after: list[int]) -> pl.LazyFrame:
    """The same with a send to another stage after each of these operations of rank 2."""
    job = job.with_columns(order=pl.col("order") * 2)
    own = job.filter((pl.col("rank") == 2) & pl.col("order").is_in([2 * at for at in after]))
    sent = own.with_columns(order=pl.col("order") + 1, op=pl.lit("send"), is_p2p=True, peer=pl.lit(1, pl.Int32), group_key=pl.lit("pg:7"))
    return pl.concat([job, sent])


def test_what_was_left_out_is_told_by_collectives_where_the_sends_are_as_always() -> None:
    """Two microbatches of two collectives, each with a send at its end; rank 2 leaves the third collective out."""
    job = pl.concat([steps(rank, [0, 2] if rank == 2 else [0, 1, 2]) for rank in range(8)])
    assert list(broken_steps(sending(job, [0, 3, 6, 9]))) == [2]
    assert list(broken_steps(sending(job, []))) == [2]


def test_another_order_of_sends_is_the_start_of_a_pipeline() -> None:
    job = pl.concat([steps(rank, [0, 2] if rank == 2 else [0, 1, 2]) for rank in range(8)])
    assert list(broken_steps(sending(job, [1, 4, 7, 9]))) == [2]
    assert list(broken_steps(sending(job, [2, 5, 8, 9]))) == []


def test_what_all_ended_together_in_the_very_group_shows_that_nothing_was_left_out_there() -> None:
    """Gather and scatter in one group, a step's end in another: rank 2 scatters without having gathered."""

    def left_out(done: bool) -> list[int]:
        kinds = {"[0]": "all_gather", "[1]": "reduce_scatter", "[2]": "all_reduce"}
        lines = []
        for rank in range(8):
            last = [0, 2] if rank != 2 else [1]
            own = steps(rank, last).with_columns(done=pl.lit(True) if done else None)
            lines.append(own.with_columns(op=pl.col("shape").replace_strict(kinds, return_dtype=pl.String)))
        return list(broken_steps(pl.concat(lines)))

    assert left_out(done=False) == [2]
    assert left_out(done=True) == []


def missing(last: list[int]) -> dict[int, tuple[object, object]]:
    """Group and position of what each rank left out, where rank 2 called these places in the last step and seven others all."""
    job = pl.concat([steps(rank, last if rank == 2 else [0, 1, 2]) for rank in range(8)])
    return {rank: (fact["group_key"], fact["seq"]) for rank, (fact, _) in broken_steps(job).items()}


def test_a_step_that_lacks_an_operation_tells_its_group_and_its_place_among_all_of_that_group() -> None:
    assert missing([0, 2]) == {2: ("pg:1", 8)}
    assert missing([0, 1, 2]) == {}


@pytest.mark.parametrize("rows", [1, 20])
def test_ranks_whose_calls_are_looked_at_apart_tell_the_same(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setattr(view, "_ROWS", rows)
    assert missing([0, 2]) == {2: ("pg:1", 8)}
    assert missing([0, 1, 2]) == {}


def test_an_operation_that_comes_later_in_the_step_was_called_in_another_order_and_not_left_out() -> None:
    assert missing([0, 2, 1]) == {}


def test_what_comes_after_a_call_that_was_called_before_its_turn_was_not_left_out_either() -> None:
    average, norm = 3, 2
    steps_of_two_kinds = (0, 1, norm, average, 0, 1, norm) * 3
    found = dict(b[:2] for b in _breaks((*steps_of_two_kinds, 0, 1, average, norm), cut=False))
    assert not set(found) & {len(steps_of_two_kinds) + 2, len(steps_of_two_kinds) + 3}


def in_a_mesh(rank: int, turns: str, side: int = 3, apart: int = 0) -> pl.LazyFrame:
    """Calls of a rank of a square mesh: in the group of its row (r), of its column (c), of all (a). Rows and columns begin to count
    ``apart``."""
    names = {"r": (f"pg:1{rank // side}", "row"), "c": (f"pg:2{rank % side}", "column"), "a": ("pg:0", "all")}
    rows = []
    for order, turn in enumerate(turns):
        group, desc = names[turn]
        rows.append(
            operations(
                {rank: [f"all_reduce [{ord(turn)}]"]}, group=group, first=turns[: order + 1].count(turn) + apart * int(group[3:])
            ).with_columns(order=pl.lit(order, dtype=pl.Int64), group_desc=pl.lit(desc), record=pl.lit(f"entries[{order}]"))
        )
    return pl.concat(rows)


def left_out_in_a_mesh(own: str, others: str, apart: int = 0) -> list[int]:
    return list(broken_steps(pl.concat([in_a_mesh(rank, own if rank == 0 else others, apart=apart) for rank in range(9)])))


def test_what_the_others_do_in_groups_of_the_same_role_tells_that_nothing_was_left_out() -> None:
    # In a mesh nobody else is in both a rank's row and its column. All go on with a third turn, as they did before the first call of all.
    assert left_out_in_a_mesh("rcrcrcarcrcrc", "rcrcrcarcrcrca") == []
    assert left_out_in_a_mesh("rcarcarcrc", "rcarcarcarc") == [0]


def test_what_peers_of_one_group_did_next_tells_it_where_groups_of_a_role_count_apart() -> None:
    assert left_out_in_a_mesh("rcrcrcarcrcrc", "rcrcrcarcrcrca", apart=40) == []
    assert left_out_in_a_mesh("rcarcarcrc", "rcarcarcarc", apart=40) == [0]


def left_out_beside_one_that_stopped(others: str) -> list[int]:
    """Who left something out, where groups have no description: rank 0's pair in the rows has stopped, and ``others`` of its column went
    on."""
    turns = {0: "racracracrc"} | dict.fromkeys(range(2, 12), others)
    lines = [in_a_mesh(rank, turns.get(rank, "racracrac"), side=2, apart=40) for rank in range(48)]
    return list(broken_steps(pl.concat(lines).with_columns(group_desc=pl.lit(None, pl.String))))


def numbered(own: str, others: str) -> list[int]:
    """As ``left_out_in_a_mesh``, where recorders call a group by a number that each process counts for itself."""
    job = pl.concat([in_a_mesh(rank, own if rank == 0 else others) for rank in range(9)])
    one = pl.when(pl.col("group_key") == "pg:0").then("group_key")
    own_number = pl.format("pg_id:{} of rank {}", pl.col("group_key").str.slice(3, 1), "rank")
    return list(broken_steps(job.with_columns(group_key=pl.coalesce(one, own_number), group_desc=pl.lit(None, pl.String))))


def test_groups_that_are_only_numbered_have_the_role_of_their_number() -> None:
    assert numbered("rca" * 4 + "ca", "rca" * 4 + "r") == [0]
    assert numbered("rca" * 4 + "ca", "rca" * 4 + "ca") == []


def test_what_peers_called_before_the_second_operation_tells_it_where_nobody_else_called_the_first() -> None:
    assert left_out_beside_one_that_stopped("racracracrc") == []
    assert left_out_beside_one_that_stopped("racracracrac") == [0]


def on_hosts(rank: int, turns: str) -> pl.LazyFrame:
    """Calls of a rank of hosts of two: in the group of its host (down: d, up: u), of all leaders (l), of all (a)."""
    host = (f"pg:1{rank // 2}", f"host{rank // 2}")
    names = {"d": host, "u": host, "l": ("pg:9", "leaders"), "a": ("pg:0", "all")}
    rows = []
    for order, turn in enumerate(turns):
        group, desc = names[turn]
        first = sum(names[t] == names[turn] for t in turns[: order + 1])
        rows.append(
            operations({rank: [f"all_reduce [{ord(turn)}]"]}, group=group, first=first).with_columns(
                order=pl.lit(order, dtype=pl.Int64), group_desc=pl.lit(desc), record=pl.lit(f"entries[{order}]")
            )
        )
    return pl.concat(rows)


def left_out_on_hosts(leader: str, other: str) -> dict[int, tuple[object, object]]:
    turns = {0: other, 1: "du" * 6, 2: leader, 3: "du" * 6}
    found = broken_steps(pl.concat([on_hosts(rank, calls) for rank, calls in turns.items()]))
    return {rank: (fact["group_key"], fact["seq"]) for rank, (fact, _) in found.items()}


def test_those_who_lead_no_host_do_not_tell_that_a_leader_left_nothing_out() -> None:
    without = "dul" * 3 + "du" + "dul" * 2
    assert left_out_on_hosts(without, "dul" * 5) == {2: ("pg:9", 4)}
    # All leaders go on without it: a new phase.
    assert left_out_on_hosts(without, without) == {}


def test_a_ring_that_begins_amid_a_run_does_not_tell_how_long_the_run_is() -> None:
    # Two reductions of a run, the six calls that end a step, and eleven reductions of the next: of a whole line the third would be a jump.
    ring = (0, 0, 1, 2, 3, 4, 5, 6, *(0,) * 11)
    assert list(_breaks(ring, cut=False)) != []
    assert list(_breaks(ring, cut=True)) == []


def test_a_ring_of_equal_steps_whose_beginning_is_lost_tells_what_was_left_out() -> None:
    step = (0, 1, 0, 1, 0, 1, 2)
    ring = (*step[4:], *step * 6, *step[:3], *step[4:], 0, 1)
    assert [b[:2] for b in _breaks(ring, cut=True)] == [(48, 46)]
    assert list(_breaks((*step[4:], *step * 6, 0, 1), cut=True)) == []


def test_a_barrier_of_some_steps_hides_no_call_that_was_left_out_in_another() -> None:
    """Reduce in an island, average among the leaders, hand down; a barrier after every third step. The fifth step comes without the
    average."""
    island, leaders, down, barrier = range(4)
    step = (island, leaders, down)
    done = (*step * 3, barrier, *step)
    average = (14, 11)
    assert average in [b[:2] for b in _breaks((*done, island, down, *step, barrier), cut=False)]
    # Called after it, it was not left out.
    assert average not in [b[:2] for b in _breaks((*done, island, down, leaders, *step, barrier), cut=False)]


def among_experts(rank: int, steps: int, last: list[str]) -> pl.LazyFrame:
    """Calls of one of six ranks: tokens sent to the experts and brought back, as many as the router says, then gradients and a loss;
    ``last``: the calls of the last step."""
    calls = ["send", "back", "gradients", "loss"] * steps + last
    rows = []
    for order, call in enumerate(calls):
        tokens = 18 if call == "send" else 6 * (2 + (rank + order // 4) % 3)
        group, op = ("pg:1", "all_reduce [1]") if call == "loss" else ("pg:0", "all_reduce [64]")
        told = f"all_to_all [{tokens}]" if call in ("send", "back") else op
        first = 1 + sum((c == "loss") == (call == "loss") for c in calls[:order])
        own = operations({rank: [told]}, group=group, first=first)
        rows.append(own.with_columns(order=pl.lit(order, dtype=pl.Int64), call_site=pl.lit(f"{call} (moe.py:9)")))
    return pl.concat(rows)


def left_out_among_experts(ends: dict[int, list[str]]) -> dict[int, object]:
    job = pl.concat([among_experts(rank, 3, end) for rank, end in ends.items()])
    return {rank: (fact["op"], fact["call_site"], fact["seq"]) for rank, (fact, _) in broken_steps(job).items()}


def test_tokens_that_a_router_shares_out_otherwise_in_each_step_are_no_call_left_out() -> None:
    # Rank 4 sends and gets back as many in its last step as in its first, and never so in between.
    assert left_out_among_experts({rank: ["send", "back"][: 1 + (rank > 1)] for rank in range(5)}) == {}
    ends = {rank: ["send", "back"] for rank in range(5)}
    assert left_out_among_experts(ends | {4: ["send", "gradients"]}) == {4: ("all_to_all", "back (moe.py:9)", 11)}


def stepped(rank: int, group: str, last: list[str], steps: int = 2) -> tuple[pl.LazyFrame, dict[str, int]]:
    """Calls of a rank, and how many of each group: whole steps of two buckets in its data-parallel group and one call in everybody's, then
    ``last``."""
    calls = ["one", "two", "all"] * steps + last
    counted: dict[str, int] = {}
    rows = []
    for order, call in enumerate(calls):
        where = "pg:0" if call == "all" else group
        counted[where] = counted.get(where, 0) + 1
        line = "loss.py:9" if call == "all" else "sync.py:4"
        rows.append(
            operations({rank: [f"all_reduce [{len(call) if call == 'all' else call}]"]}, group=where, first=counted[where]).with_columns(
                order=pl.lit(order, dtype=pl.Int64), call_site=pl.lit(line)
            )
        )
    return pl.concat(rows), counted


def jumps(tails: dict[int, list[str]]) -> dict[int, object]:
    """What each rank left out (group, position), where ranks 0 and 2, and 1 and 3 share data-parallel groups; ``tails``: their last
    steps."""
    frames: list[pl.LazyFrame] = []
    last: dict[str, dict[int, tuple[int, int | None]]] = {}
    for rank, tail in tails.items():
        frame, counted = stepped(rank, f"pg:{1 + rank % 2}", tail)
        frames.append(frame)
        for group, count in counted.items():
            last.setdefault(group, {})[rank] = (count, None)
    line = pl.when(pl.col("group_key") == "pg:0").then(pl.lit("loss.py:9")).otherwise(pl.lit("sync.py:4"))
    found = jumped_groups(progress(last).with_columns(last_call_site=line), pl.concat(frames))
    return {rank: (fact["group_key"], fact["seq"]) for rank, (fact, _) in found.items()}


def test_of_two_that_each_lack_what_the_other_called_the_one_that_broke_the_order_left_it_out() -> None:
    whole = ["one", "two", "all"]
    # Rank 2 goes on to everybody's group; rank 0 waits for it in its second bucket and so never comes there.
    assert jumps({0: ["one", "two"], 1: whole, 2: ["one", "all"], 3: whole}) == {2: ("pg:1", 6)}


def test_of_two_that_both_left_such_a_call_out_neither_tells_how_many_are_usual() -> None:
    early, late = ["one", "all"], ["one", "two"]
    assert jumps({0: late, 1: early, 2: early, 3: late}) == {1: ("pg:2", 6), 2: ("pg:1", 6)}


def among_leaders(ends: dict[int, str]) -> dict[int, object]:
    """What each rank left out (group, position), where ranks 0, 2 and 4 lead the pairs of a job of six; ``ends``: calls of each rank among
    the leaders (l), in its pair (p) and of all (a)."""
    frames: list[pl.LazyFrame] = []
    last: dict[str, dict[int, tuple[int, int | None]]] = {}
    for rank, calls in ends.items():
        for order, call in enumerate(calls):
            group = {"l": "pg:1", "p": f"pg:2{rank // 2}", "a": "pg:0"}[call]
            counted = calls[: order + 1].count(call)
            frames.append(
                operations({rank: [f"all_reduce [{ord(call)}]"]}, group=group, first=counted).with_columns(
                    order=pl.lit(order, dtype=pl.Int64), call_site=pl.lit(f"{call} (train.py:9)")
                )
            )
            last.setdefault(group, {})[rank] = (counted, None)
    line = pl.when(pl.col("group_key") == "pg:1").then(pl.lit("l (train.py:9)")).otherwise(pl.lit("a (train.py:9)"))
    found = jumped_groups(progress(last).with_columns(last_call_site=line), pl.concat(frames))
    return {rank: (fact["group_key"], fact["seq"]) for rank, (fact, _) in found.items()}


def test_what_several_peers_tell_is_said_before_what_the_other_one_of_a_pair_does() -> None:
    world = {0: (1, 1), 1: (1, 1), 2: (1, 1), 3: (2, 1)}
    many, pair = {"pg:1": {0: (6, 5), 1: (6, 5), 2: (6, 5), 3: (5, 5)}}, {"pg:2": {2: (4, 3), 3: (3, 3)}}
    calls = operations({3: ["barrier"]})
    for last in ({"pg:0": world} | many | pair, {"pg:0": world} | pair | many):
        assert {r: fact["group_key"] for r, (fact, _) in jumped_groups(progress(last), calls).items()} == {3: "pg:1"}
    # Of the two of a pair alone either may have gone on.
    assert jumped_groups(progress({"pg:0": world} | pair), calls) == {}


def test_those_who_never_make_such_a_call_do_not_tell_that_it_was_not_left_out() -> None:
    # Rank 2 left out one call among the leaders; its pair went on to the call of all, to which the others never came. Rank 3 leads nobody.
    leads, follows = "plpl", "pp"
    ends = {0: "plpl" + "a" + "plpl", 4: "plpl" + "a" + "plpl", 2: "plpl" + "a" + "ppl" + "a"}
    ends |= {1: "pp" + "a" + "pp", 5: "pp" + "a" + "pp", 3: "pp" + "a" + "pp" + "a"}
    assert among_leaders(ends) == {2: ("pg:1", 4)}
    assert among_leaders({r: (leads if r % 2 == 0 else follows) + "a" for r in range(6)}) == {}


def half_evaluates(ends: dict[int, str]) -> dict[int, object]:
    """What each rank left out, where the first half of six evaluates (e) in a group of its own between two calls of all (x, b)."""
    frames: list[pl.LazyFrame] = []
    last: dict[str, dict[int, tuple[int, int | None]]] = {}
    for rank, calls in ends.items():
        for order, call in enumerate(calls):
            counted = sum((c == "e") == (call == "e") for c in calls[: order + 1])
            group = "pg:1" if call == "e" else "pg:0"
            told = operations({rank: [f"{'broadcast' if call == 'b' else 'all_reduce'} [{ord(call)}]"]}, group=group, first=counted)
            frames.append(told.with_columns(order=pl.lit(order, dtype=pl.Int64), call_site=pl.lit(f"{call} (train.py:9)")))
            last.setdefault(group, {})[rank] = (counted, None)
    evaluates = pl.col("group_key") == "pg:1"
    front = progress(last).with_columns(
        last_op=pl.when(evaluates).then(pl.lit("all_reduce")).otherwise(pl.lit("broadcast")),
        last_call_site=pl.when(evaluates).then(pl.lit("e (train.py:9)")).otherwise(pl.lit("b (train.py:9)")),
    )
    return {rank: (fact["group_key"], fact["seq"]) for rank, (fact, _) in jumped_groups(front, pl.concat(frames)).items()}


def test_what_a_rank_itself_called_there_before_tells_where_nobody_else_in_both_groups_came() -> None:
    ends = {0: "xebxe", 2: "xebxe", 1: "xebxb"} | dict.fromkeys((3, 4, 5), "xbxb")
    assert half_evaluates(ends) == {1: ("pg:1", 2)}


def saved(ends: dict[int, str]) -> dict[int, object]:
    """What each of four ranks left out, where pairs share data (d), and all a loss (a) and a barrier before a checkpoint (s)."""
    frames: list[pl.LazyFrame] = []
    last: dict[str, dict[int, tuple[int, int | None]]] = {}
    for rank, calls in ends.items():
        for order, call in enumerate(calls):
            counted = sum((c == "d") == (call == "d") for c in calls[: order + 1])
            group = f"pg:{1 + rank % 2}" if call == "d" else "pg:0"
            told = operations({rank: ["barrier" if call == "s" else "all_reduce"]}, group=group, first=counted)
            frames.append(told.with_columns(order=pl.lit(order, dtype=pl.Int64), call_site=pl.lit(f"{call} (train.py:9)")))
            last.setdefault(group, {})[rank] = (counted, None)
    everybody = pl.col("group_key") == "pg:0"
    front = progress(last).with_columns(
        last_op=pl.when(everybody).then(pl.lit("barrier")).otherwise(pl.lit("all_reduce")),
        last_call_site=pl.when(everybody).then(pl.lit("s (train.py:9)")).otherwise(pl.lit("d (train.py:9)")),
    )
    return {rank: (fact["group_key"], fact["seq"]) for rank, (fact, _) in jumped_groups(front, pl.concat(frames)).items()}


def test_a_call_that_a_rank_never_made_there_before_is_not_foretold_by_that() -> None:
    assert saved({0: "dadas", 1: "dadas", 2: "dadad", 3: "dadas"}) == {2: ("pg:0", 3)}
    assert saved({0: "dadas", 1: "dadas", 2: "dada", 3: "dadas"}) == {}, "it may yet come"


def test_a_peer_that_left_a_call_out_does_not_set_the_count_for_the_others() -> None:
    assert _usual([2, 4, 2, 2]) == 2
    assert _usual([2, 4]) == 4


@pytest.mark.parametrize(("numbers", "lost"), [((4, 6), True), ((4, 5), False), ((4, None), False), ((None, 6), False)])
def test_a_number_that_is_passed_over_is_a_lost_record_and_one_that_is_not_there_tells_nothing(
    numbers: tuple[int | None, int | None], lost: bool
) -> None:
    recent = pl.DataFrame({"group_key": ["pg:7"] * 2, "seq": numbers, "rank": [0, 0]}, schema_overrides={"seq": pl.Int64})
    assert _numbered_after(recent, 1, 0) is lost


def test_what_came_after_the_same_calls_before_is_no_call_left_out() -> None:
    """Two reductions a step, a checkpoint after the third: after two more steps either may come."""
    grads, loss, sizes, objects = range(4)
    done = (grads, loss) * 3
    assert list(_breaks((*done, sizes, objects, grads, loss, grads, loss, grads), cut=False)) == []
    assert [b[:2] for b in _breaks((*done, sizes, objects, *done, grads), cut=False)] == [(14, 6)]


def test_those_who_wait_for_one_that_never_came_to_their_group_did_not_leave_out_what_it_went_on_to() -> None:
    # Rank 3 is a member of the group of 0, 1 and 2 and went on with the others, who are no members.
    world = {rank: (3 if rank < 3 else 4, 3) for rank in range(8)}
    calls = operations({3: ["barrier"]})
    assert set(jumped_groups(progress({"pg:0": world, "pg:9": {0: (1, 0), 1: (1, 0), 2: (1, 0), 3: (0, None)}}), calls)) == {3}
    # One that alone went on to it, while all others in both went to that of all, is the exception itself.
    few = {rank: (3 if rank == 0 else 4, 3) for rank in range(8)}
    assert set(jumped_groups(progress({"pg:0": few, "pg:9": {0: (1, 0), 3: (0, None), 4: (0, None)}}), calls)) == {0}
