"""The model: ranks, groups, streams, watchdogs."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from nccl_forensics.simulate.aftermath import Death
from nccl_forensics.simulate.case import Case, new_case
from nccl_forensics.simulate.engine import Cut, Entry
from nccl_forensics.simulate.layout import Layout, default_layout
from nccl_forensics.simulate.program import Item, changed, inserted, operations, step_items, without
from nccl_forensics.simulate.world import SECOND


def job(layout: Layout, variant: str = "dump", seed: int = 3) -> Case:
    case = new_case(layout.world, seed, variant, platform="h100", layout=layout, release="2.27.7")
    case.first_step, case.steps, case.timeout_ms = 0, 4, 60_000
    case.training = replace(case.training, layers=1, micro_batches=1, buckets=2, sharded=False)
    return case


LAYOUTS = [
    Layout(8),
    Layout(4, tp=2),
    Layout(2, tp=2, pp=2),
    Layout(2, tp=2, cp=2, pp=2),
    Layout(8, tp=2, ep=4),
    Layout(4, tp=2, ep=2, cp=2, pp=2),
]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_group_has_one_name_that_all_its_members_agree_on(layout: Layout) -> None:
    seen: dict[str, tuple[str, range]] = {}
    for rank in range(layout.world):
        for group in layout.groups(rank):
            assert rank in group.members
            assert seen.setdefault(group.name, (group.role, group.members)) == (group.role, group.members)
    assert sorted(map(int, seen)) == list(range(len(seen)))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_healthy_job_comes_to_its_end_in_every_layout(layout: Layout) -> None:
    world = job(layout).build()
    assert all(s.finished for s in world.model.ranks.values())
    assert not world.model.meetings
    assert {(p.ending.how, p.ending.code) for p in world.processes.values()} == {("exit", 0)}


def test_layouts_chosen_for_a_world_have_as_many_ranks() -> None:
    for world, seed in itertools.product((2, 4, 8, 12, 16, 64, 1024), range(6)):
        assert default_layout(world, seed, 8).world == world


def test_a_rank_that_leaves_out_a_collective_stops_everybody() -> None:
    case = job(Layout(8))
    at = operations(step_items(case.layout, case.training, 0, 2), "dp")[0]
    case.change(5, 2, lambda items: without(items, at))
    world = case.build()
    assert not any(s.finished for s in world.model.ranks.values())
    waiting = {r: s.unfinished()[0].seq for r, s in world.model.ranks.items()}
    assert len({seq for r, seq in waiting.items() if r != 5}) == 1


def test_equal_bytes_of_another_type_meet_and_other_bytes_do_not() -> None:
    for dtype, ends in (("Int", True), ("Half", False)):
        case = job(Layout(8))
        at = operations(step_items(case.layout, case.training, 0, 2), "dp")[0]
        case.change(3, 2, lambda items, dtype=dtype, at=at: changed(items, at, dtype=dtype))  # type: ignore[misc]
        assert all(s.finished for s in case.build().model.ranks.values()) is ends


def test_two_sends_never_meet() -> None:
    case = job(Layout(4, pp=2))

    def send_first(items: list[Item]) -> list[Item]:
        at = next(i for i, x in enumerate(items) if x.op == "recv")
        return inserted(without(items, at), at, replace(items[at], op="send"), items[at])

    case.change(5, 1, send_first)
    world = case.build()
    stuck = {r: s.unfinished()[0].item.op for r, s in world.model.ranks.items() if s.unfinished() and s.unfinished()[0].item.role == "pp"}
    assert stuck == {1: "send", 5: "send"}


def test_the_watchdog_of_the_rank_that_waited_longest_fires_first_and_the_others_see_its_signal() -> None:
    case = job(Layout(16))
    case.change(4, 2, lambda items: inserted(items, 1, Item("host", 1 << 62, items[0].frames)))
    world = case.build()
    fired = [m for p in world.processes.values() for m in p.met if m.kind == "torch.timeout"]
    assert len(fired) == 15
    assert all(59_000 < int(str(m.facts["elapsed_ms"])) < 61_000 for m in fired)
    stalled = world.processes[4]
    assert [m.kind for m in stalled.met] == ["torch.dump"]
    assert (stalled.ending.how, stalled.ending.code, stalled.ending.by) == ("signal", 15, "launcher")
    assert all(p.ending.code == 6 and p.dumped_at is not None for p in world.processes.values() if p.rank != 4)


def test_who_dumps_tells_the_counters_of_the_default_group_whichever_group_timed_out() -> None:
    case = job(Layout(8, tp=4))
    at = operations(step_items(case.layout, case.training, 0, 2), "world")[0]
    case.change(2, 2, lambda items: without(items, at))
    world = case.build()
    told = {p.rank: m.facts for p in world.processes.values() for m in p.met if m.kind == "torch.dump"}
    timed_out = {p.rank: m.facts["entry"] for p in world.processes.values() for m in p.met if m.kind == "torch.timeout"}
    assert {entry.local_group for entry in timed_out.values() if isinstance(entry, Entry)} > {0}
    default = {r: [e.seq for e in world.entries(r) if e.local_group == 0] for r in told}
    assert {r: facts["last_enqueued"] for r, facts in told.items()} == {r: max(seqs) for r, seqs in default.items()}


def test_an_operation_that_outlasts_the_timeout_ends_a_job_that_would_have_gone_on() -> None:
    case = job(Layout(8))
    case.change(0, 2, lambda items: inserted(items, 1, Item("host", 90_000_000, items[0].frames)))
    world = case.build()
    assert all(s.finished for s in world.model.ranks.values())
    assert sum(p.ending.code == 6 for p in world.processes.values()) == 7


def test_a_death_ends_the_others_at_once_where_the_launcher_looks() -> None:
    case = job(Layout(16))
    case.deaths[9] = Death("signal", 9)
    case.change(9, 1, lambda items: inserted(items, 1, Item("die")))
    case.swift = True
    world = case.build()
    died = world.processes[9].ending
    others = [p.ending for p in world.processes.values() if p.rank != 9]
    assert died.code == 9
    assert all(e.code == 15 and e.by == "launcher" and died.at < e.at < died.at + 15 * SECOND for e in others)


def test_a_cut_host_stops_what_crosses_it_and_nothing_else() -> None:
    case = job(Layout(2, tp=8))
    case.cuts.append(Cut(1, 2))
    world = case.build()
    waiting = {s.unfinished()[0].item.role for s in world.model.ranks.values() if s.unfinished()}
    assert "tp" not in waiting
    assert waiting <= {"dp", "world"}


def test_sequence_numbers_go_on_from_the_steps_that_were_not_played() -> None:
    early, later = job(Layout(4, tp=2)), job(Layout(4, tp=2))
    later.first_step, early.steps = 2, 6
    a, b = early.build(), later.build()
    last_a = {(e.group.name, e.seq, e.p2p_seq, e.record_id) for e in a.entries(3) if e.step == 5}
    last_b = {(e.group.name, e.seq, e.p2p_seq, e.record_id) for e in b.entries(3) if e.step == 5}
    assert last_a == last_b
