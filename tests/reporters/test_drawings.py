"""Drawings stay small, and say with words what they say with colour."""

import re

import pytest

from nccl_forensics.drawings import cluster, events, waits
from nccl_forensics.drawings.waits import Box
from nccl_forensics.exhibits import EXHIBITS, exhibit
from nccl_forensics.exhibits import stacks as stacks_exhibit
from nccl_forensics.exhibits import waits as waits_exhibit
from nccl_forensics.extras import Extras, Host, Seat, StackClass, Wait
from nccl_forensics.figures import figure, themes
from tests.reporters.samples import hang, healthy, measured


def hosts(count, per_host=8, odd=5):
    return [
        Host(f"node{n}", tuple(Seat(n * per_host + g, "culprit" if n * per_host + g == odd else "ok") for g in range(per_host)))
        for n in range(count)
    ]


def size(svg):
    return tuple(float(n) for n in re.search(r'width="([\d.]+)" height="([\d.]+)"', svg).groups())


@pytest.mark.parametrize("ranks", [64, 4096, 16384])
def test_the_first_screen_has_room_for_any_number_of_ranks(ranks):
    width, height = size(cluster.mosaic(hosts(ranks // 8), "", 344, 190))
    assert width <= 344
    assert height <= 225


@pytest.mark.parametrize("ranks", [64, 200, 4096, 16384])
def test_rings_at_the_edges_are_drawn_whole(ranks):
    everyone = [Host(h.name, tuple(Seat(s.rank, "culprit") for s in h.seats)) for h in hosts(ranks // 8)]
    for ordered in (everyone, everyone[::-1]):
        drawn = cluster.mosaic(ordered, "", 344, 190)
        width, height = size(drawn)
        rings = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)" r="([\d.]+)"', drawn)
        assert rings
        for x, y, r in (map(float, ring) for ring in rings):
            assert r + 0.7 <= x <= width - r - 0.7
            assert r + 0.7 <= y <= height - r - 0.7


def test_ranks_that_most_of_the_job_is_like_are_not_ringed():
    most_missing = [Host(f"node{n}", tuple(Seat(n * 8 + g, "missing" if n < 480 else "waiting") for g in range(8))) for n in range(512)]
    few_missing = [Host(f"node{n}", tuple(Seat(n * 8 + g, "missing" if n < 2 else "waiting") for g in range(8))) for n in range(512)]
    for draw in (lambda h: cluster.mosaic(h, "", 344, 190), lambda h: cluster.dense(h, "", 800)):
        assert 'class="ring"' not in draw(most_missing)
        assert 'class="ring"' in draw(few_missing)


def test_the_map_of_sixteen_thousand_ranks_is_small_and_rings_the_one_at_fault():
    drawn = cluster.dense(hosts(2048), "said", 892)
    assert len(drawn) < 700_000
    assert drawn.count('class="ring"') == 1
    assert "<title>node0: 0-4, 6-7 no fault seen" not in drawn
    assert "<title>node0: 5 at fault, 0-4, 6-7 no fault seen</title>" in drawn


def test_ranks_without_a_host_are_drawn_in_blocks_and_not_as_one_tower():
    drawn = cluster.dense([Host("host unknown", tuple(Seat(r, "ok") for r in range(4096)))], "", 892)
    assert size(drawn)[1] < 800
    assert drawn.count(">host unknown</text>") == 1


def test_a_pause_is_drawn_shorter_than_it_is_and_says_how_long_it_was():
    minute = 60_000_000_000
    marks = [events.Mark(t, "watchdog", "x", False, 1) for t in (0, minute, 2 * minute, 602 * minute)]
    drawn = events.axis(marks, "")
    assert ">10.0 h<" in drawn
    xs = [float(x) for x in re.findall(r'cx="([\d.]+)"', drawn)]
    assert xs == sorted(xs)
    assert xs[-1] - xs[-2] < 0.75 * (xs[-1] - xs[0])


def test_evidence_of_the_verdict_has_another_shape_than_other_events():
    drawn = events.axis([events.Mark(1, "a", "x", True, 1), events.Mark(2, "a", "y", False, 1)], "")
    assert 'class="event decisive"' in drawn
    assert drawn.count("<circle") == 1


def test_arrows_point_from_those_that_wait_to_the_end_of_the_waiting():
    drawn = waits.graph([Box("a", (), "waiting"), Box("b", (), "waiting"), Box("c", (), "culprit")], [(0, 1), (1, 2)], "")
    lefts = {name: float(x) for x, name in re.findall(r'<text x="([\d.]+)"[^>]*>([abc])</text>', drawn)}
    assert lefts["a"] < lefts["b"] < lefts["c"]


def test_a_circle_of_waits_is_drawn_and_ends():
    drawn = waits.graph([Box("a", (), "waiting"), Box("b", (), "waiting")], [(0, 1), (1, 0)], "")
    assert drawn.count('class="tip"') == 2


def test_hundreds_of_classes_of_ranks_are_folded_into_few_boxes():
    graph = [Wait((2 * n,), (2 * n + 1,), f"g{n}", "all_reduce", n) for n in range(200)]
    [block] = waits_exhibit.build({}, Extras(waits=tuple(graph)))
    assert block.drawing.svg.count('class="node') <= 24
    assert "195 ranks in 195 more classes" in block.drawing.svg
    assert block.tables[0].more == 140


def test_stacks_with_and_without_native_frames_are_one_class():
    python = ("all_reduce (torch/distributed/distributed_c10d.py:9)", "train (train.py:3)")
    native = ("pthread_cond_wait (libc.so.6)", *python, "_start (python3.11)")
    extras = Extras(
        stacks=(StackClass((0,), native), StackClass((1, 2), python), StackClass((3,), ("load (data.py:4)", "train (train.py:2)"), True))
    )
    [block] = stacks_exhibit.build({}, extras)
    assert [line.who for line in block.tree if line.who] == ["ranks 0-2", "rank 3"]
    assert "Frames of native code are left out" in block.note
    assert "pthread" not in str(block.tree)


def test_stacks_of_native_frames_alone_are_kept():
    extras = Extras(stacks=(StackClass((0, 1), ("poll (libc.so.6)", "main (a.out)")),))
    [block] = stacks_exhibit.build({}, extras)
    assert [line.text for line in block.tree] == ["main", "poll"]


def test_what_has_no_evidence_is_listed_with_what_would_fill_it():
    shown = exhibit(healthy().report, Extras())
    assert shown.shown == ()
    assert [title for title, _ in shown.absent] == [e.title for e in EXHIBITS]
    assert all(filler for _, filler in shown.absent)


def test_every_exhibit_of_a_full_report_has_a_statement_and_a_table():
    sample = measured()
    shown = exhibit(sample.report, sample.extras)
    assert [s.anchor for s in shown.shown] == [e.anchor for e in EXHIBITS]
    for one in shown.shown:
        assert any(b.statement for b in one.blocks), one.anchor
        assert any(b.tables for b in one.blocks), one.anchor


def test_names_of_figures_are_unique_and_fit_an_id():
    shown = exhibit(measured().report, hang().extras)
    names = [f.name for s in shown.shown for b in s.blocks for f in b.figures]
    assert len(names) == len(set(names)) == 3
    assert all(re.fullmatch(r"[a-z0-9-]+", n) for n in names)


def test_a_kind_of_trace_that_the_bundle_cannot_draw_is_refused():
    with pytest.raises(ValueError, match="scatter3d"):
        figure("x", "x", [{"type": "scatter3d"}], {})


def test_text_in_a_figure_cannot_leave_its_script():
    assert "</script" not in figure("x", "x", [{"type": "bar", "name": "</script><b>"}], {}).json
    assert "<" not in themes()
