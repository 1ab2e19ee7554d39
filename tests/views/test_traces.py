"""Traces of several ranks: whose they are, which collectives are the same, who comes last."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from nccl_forensics.reading.bundle import open_bundle
from nccl_forensics.reading.engine import InlineEngine, read_bundle
from nccl_forensics.values.ranklist import as_ranks
from nccl_forensics.views import Resolver
from nccl_forensics.views.trace_bandwidth import platform as one_host
from nccl_forensics.views.trace_lag import chance, trace_arrivals
from nccl_forensics.views.trace_matching import TRACE_MATCHES, shift_of
from tests.corpus import corpus
from tests.trace_samples import ALL_REDUCE, Sample, collective

STEP = 100_000


def job(
    ranks: int = 4, steps: int = 6, *, first: dict[int, int] | None = None, late: dict[int, float] | None = None, **about: bool
) -> list[Sample]:
    """Traces of a data-parallel job: a step of 100 ms computes 40 ms and reduces 5 ms; a late rank computes so much longer, and the others
    wait for it inside the kernel. ``first``: steps that a rank's window leaves out at its begin."""
    made = []
    slowest = max((late or {}).values(), default=0.0)
    for rank in range(ranks):
        trace = Sample(rank, ranks)
        own = (late or {}).get(rank, 0.0)
        for step in range((first or {}).get(rank, 0), steps):
            begin = step * STEP + rank * 7
            if about.get("steps", True):
                trace.step(step, begin, STEP - 1)
            trace.kernel("gemm", begin + 100, 40_000 + own, launch=begin + 50)
            for part, size in enumerate((1024, 2048 if step % 2 else 4096)):
                args = collective(elements=size, seq=step * 2 + part if about.get("seq", False) else None, ranks=range(ranks))
                wait = slowest - own if part == 0 else 0.0
                start = begin + 40_200 + own + part * 6_000 + (slowest - own if part else 0.0)
                trace.kernel(ALL_REDUCE, start, 5_000 + wait + rank % 3, launch=begin + 60 + part, stream=9, args=args)
        made.append(trace)
    return made


def resolver(folder: Path, samples: list[Sample], **header: object) -> Resolver:
    for n, sample in enumerate(samples):
        (folder / f"host{n}.pt.trace.json").write_bytes(sample.text(**header))
    with open_bundle([folder]) as bundle:
        return Resolver(read_bundle(bundle, InlineEngine()))


def rows(found: Resolver, view: str) -> list[dict[str, object]]:
    frame = found.get(view)
    assert frame is not None
    return list(frame.collect().iter_rows(named=True))


@pytest.mark.parametrize("seq", [True, False])
def test_windows_that_begin_at_other_steps_match_all_the_same(tmp_path: Path, seq: bool) -> None:
    matches = resolver(tmp_path, job(first={1: 2, 3: 1}, seq=seq)).get("trace_matches")
    assert matches is not None
    at = matches.collect().group_by("group_key", "position").agg(pl.col("step").n_unique(), pl.col("bytes").n_unique(), pl.len())
    assert at["step"].to_list() == [1] * at.height
    assert at["bytes"].to_list() == [1] * at.height
    assert sorted(at["len"].unique().to_list()) == [2, 3, 4]


def test_groups_of_one_name_and_other_members_are_other_groups(tmp_path: Path) -> None:
    made = []
    for rank in range(4):
        members = [0, 1] if rank < 2 else [2, 3]
        trace = Sample(rank, 4)
        for n in range(3):
            trace.kernel(ALL_REDUCE, n * 1000, 500, args=collective(seq=n, group="tp", ranks=members))
        made.append(trace)
    matched = rows(resolver(tmp_path, made), "trace_matches")
    groups = {r["group_key"] for r in matched}
    assert len(groups) == 2
    assert {frozenset(r["rank"] for r in matched if r["group_key"] == g) for g in groups} == {frozenset({0, 1}), frozenset({2, 3})}


def test_without_steps_and_clocks_an_ambiguous_order_is_left_out() -> None:
    plain = pl.DataFrame(
        {"sign": [1, 2] * 6, "step": [None] * 12, "at": [None] * 12}, schema={"sign": pl.UInt64, "step": pl.Int64, "at": pl.Int64}
    )
    assert shift_of(plain, plain.slice(2)) is None
    timed = plain.with_columns(at=pl.int_range(12) * 1_000_000)
    assert shift_of(timed, timed.slice(2)) == (2, "shift")
    assert shift_of(plain, plain) == (0, "order")


def test_nobody_is_late_where_all_are_alike(tmp_path: Path) -> None:
    assert all(row["lost_ms"] == 0 for row in rows(resolver(tmp_path, job()), "trace_lag"))


def test_the_rank_that_waits_least_is_the_late_one_and_its_computation_says_why(tmp_path: Path) -> None:
    found = resolver(tmp_path, job(steps=10, late={2: 30_000}))
    [late] = rows(found, "late_ranks")
    assert (late["rank"], late["last_count"], late["reason"]) == (2, 10, "compute")
    assert late["lost_ms"] == pytest.approx(300, rel=0.01)
    assert float(str(late["p_value"])) < 1e-4
    waited = {r["rank"]: r["waited_ms"] for r in rows(found, "trace_lag")}
    assert float(str(waited[2])) < 0.1
    assert waited[0] == pytest.approx(300, rel=0.01)


def test_bandwidth_counts_the_shortest_duration_so_that_waiting_is_not_billed_to_the_network(tmp_path: Path) -> None:
    found = resolver(tmp_path, job(late={2: 30_000}))
    slow = {r["bytes"]: r for r in rows(found, "trace_bandwidth")}
    assert slow[4096]["alg_bw_gb_s"] == pytest.approx(4096 / 5_000e-6 / 1e9, rel=0.01)
    assert slow[4096]["bus_bw_gb_s"] == pytest.approx(4096 / 5_000e-6 / 1e9 * 1.5, rel=0.01)
    assert (slow[4096]["ranks"], slow[4096]["ranks_seen"]) == (4, 4)


def test_a_second_copy_of_a_trace_counts_once_and_a_later_capture_counts_too(tmp_path: Path) -> None:
    first, second = job(ranks=1)[0], job(ranks=1)[0]
    for event in second.events:
        event["ts"] = float(str(event["ts"])) + 10_000_000
    found = resolver(tmp_path, [first, first, second])
    known = rows(found, "trace_ranks")
    assert [r["duplicate_of"] for r in known] == [None, 0, None]
    assert [r["capture"] for r in known] == [0, 0, 1]
    assert len(rows(found, "trace_measures")) == 4


def test_the_rank_comes_from_the_trace_and_else_from_the_name(tmp_path: Path) -> None:
    (tmp_path / "rank5.json").write_bytes(Sample(None).kernel("a", 0, 1).text())
    (tmp_path / "rank6.json").write_bytes(Sample(2).kernel("a", 0, 1).text())
    with open_bundle([tmp_path]) as bundle:
        found = Resolver(read_bundle(bundle, InlineEngine()))
    assert [(r["rank"], r["named_by"]) for r in rows(found, "trace_ranks")] == [(5, "file name"), (2, "distributedInfo")]


def test_the_chance_of_last_places_is_a_binomial_tail() -> None:
    assert chance(4, 10, 0) == 1.0
    assert chance(2, 10, 10) == pytest.approx(2 / 1024)
    assert chance(4, 3, 3) == pytest.approx(4 / 64)
    assert chance(8, 5000, 2000) < 1e-100


@pytest.mark.corpus
def test_dlrm_rank_7_comes_last_to_the_first_all_to_all_and_rank_1_waits_longest() -> None:
    with open_bundle([corpus("public/kineto-param-dlrm-8r/evidence")]) as bundle:
        found = Resolver(read_bundle(bundle, InlineEngine()))
    arrivals = [r for r in rows(found, "trace_arrivals") if r["op"] == "all_to_all"]
    first = [r for r in arrivals if r["position"] == min(int(str(a["position"])) for a in arrivals)]
    assert len(first) == 8
    assert max(first, key=lambda r: int(str(r["lag_ns"])))["rank"] == 7
    assert max(first, key=lambda r: int(str(r["wait_ns"])))["rank"] == 1
    waited = {r["rank"]: float(str(r["waited_ms"])) for r in rows(found, "trace_lag")}
    assert max(waited, key=lambda r: waited[r]) == 1


@pytest.mark.corpus
def test_the_lab_runs_come_out_in_order() -> None:
    shares: dict[str, tuple[float, float]] = {}
    for name in ("compute_heavy", "comm_overlap", "comm_heavy"):
        with open_bundle([corpus(f"lab/{name}/evidence/traces")]) as bundle:
            measured = [r for r in rows(Resolver(read_bundle(bundle, InlineEngine())), "trace_measures") if r["window"] == "whole"]
        count = len(measured)
        shares[name] = (
            sum(float(str(r["compute_fraction"])) for r in measured) / count,
            sum(float(str(r["overlap_fraction"])) for r in measured) / count,
        )
    assert shares["compute_heavy"][0] > 0.85 > shares["comm_overlap"][0] > 0.3 > 0.05 > shares["comm_heavy"][0]
    assert shares["comm_overlap"][1] > 0.4
    assert shares["comm_heavy"][1] < 0.05
    assert shares["compute_heavy"][1] < 0.1


def lost_by(rank: int, starts: dict[int, list[int]], ends: list[int], alone: int | None = None) -> float:
    """What was lost to a rank, in ms, of collectives that ranks began and that ended on all of them at these times; ``alone``: how long of
    each nothing computes."""
    told = [
        dict.fromkeys(TRACE_MATCHES)
        | {"group_key": "g", "capture": 0, "position": at, "rank": r, "op": "all_reduce", "start_ns": start, "duration_ns": end - start}
        | {"exposed_ns": None if alone is None else alone * 10**6}
        for r, own in starts.items()
        for at, (start, end) in enumerate(zip(own, ends, strict=True))
    ]
    frame = pl.DataFrame(told, schema=TRACE_MATCHES).lazy()
    ms = 10**6
    frame = frame.with_columns(start_ns=pl.col("start_ns") * ms, duration_ns=pl.col("duration_ns") * ms)
    return float(trace_arrivals(frame).filter(pl.col("rank") == rank).select(pl.col("lost_ns").sum()).collect().item()) / ms


def test_collectives_begun_in_a_row_lose_their_time_once() -> None:
    early = [0, 1, 2, 500]
    assert lost_by(2, {0: early, 1: early, 2: [300, 301, 302, 500]}, [400, 401, 402, 510]) == 302
    # Each waited for before the next began: lost each time.
    assert lost_by(2, {0: [0, 410, 820], 1: [0, 410, 820], 2: [300, 710, 1120]}, [400, 810, 1220]) == 900


def test_a_wait_behind_which_computation_runs_on_loses_nothing() -> None:
    waits = {0: [0, 410, 820], 1: [0, 410, 820], 2: [300, 710, 1120]}
    assert lost_by(2, waits, [400, 810, 1220], alone=100) == 300
    assert lost_by(2, waits, [400, 810, 1220], alone=0) == 0


def meshed(kept: int | None = None, link: int = 0) -> list[Sample]:
    """Traces of eight ranks, groups of four by tensor parallelism and of two by data; in each step ``kept`` sits in its loader for 30 ms, and
    the collectives of the second group of four take ``link`` µs longer."""
    made = []
    for rank in range(8):
        trace = Sample(rank, 8)
        first = rank < 4
        tensor, data = (range(4) if first else range(4, 8)), [rank % 4, rank % 4 + 4]
        slow = kept is not None and (kept < 4) == first
        for step in range(6):
            begin = step * STEP
            trace.step(step, begin, STEP - 1)
            own = 30_000 if rank == kept else 0
            trace.range("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", begin + 5, own + 20)
            trace.operator("aten::mm", begin + own + 30, 20)
            length = 5_000 + (30_000 - own if slow else 0) + (0 if first else link)
            args = collective(elements=1 << 20, seq=step, group="tp", ranks=tensor)
            trace.kernel(ALL_REDUCE, begin + own + 100, length, launch=begin + own + 60, stream=9, args=args)
            at = begin + own + 100 + length
            trace.kernel("gemm", at, 10_000, launch=begin + own + 70)
            longest = 30_000 if kept is not None else link
            mine = 30_000 if slow else 0 if kept is not None or first else link
            args = collective(elements=1 << 22, seq=step, group="dp", ranks=data)
            trace.kernel(ALL_REDUCE, at + 10_000, 5_000 + longest - mine, launch=begin + own + 80, stream=9, args=args)
        made.append(trace)
    return made


def test_of_ranks_in_several_groups_the_one_that_itself_takes_longer_is_told_apart_and_why(tmp_path: Path) -> None:
    late = [r for r in rows(resolver(tmp_path, meshed(kept=2)), "late_ranks") if float(str(r["lost_ms"])) > 100]
    assert {r["rank"] for r in late} == {0, 1, 2, 3}, "each comes last in its pair"
    assert {r["rank"] for r in late if float(str(r["own_share"])) >= 0.5} == {2}
    assert {r["reason"] for r in late if r["rank"] == 2} == {"loader"}


def test_the_end_of_a_pipeline_comes_last_to_what_all_do_then_and_has_waited_longest(tmp_path: Path) -> None:
    """Each step: rank 0 computes for long and sends on, rank 2 receives last, computes, and all meet."""
    made = []
    for rank in range(3):
        trace = Sample(rank, 3)
        for step in range(6):
            begin = step * STEP
            trace.step(step, begin, STEP - 1)
            args = collective(elements=64, group="line", ranks=range(3)) | {"Collective name": "recv" if rank else "send"}
            trace.kernel(ALL_REDUCE, begin + 100, 100 + 25_000 * rank, launch=begin + 50, stream=9, args=args)
            met = begin + 60_000 + 5_000 * rank
            trace.kernel("gemm", begin + 30_000 + 25_000 * rank // 2, met - begin - 30_100 - 25_000 * rank // 2, launch=begin + 60)
            trace.kernel(ALL_REDUCE, met, 71_000 - (met - begin), launch=begin + 70, stream=9, args=collective(seq=step, ranks=range(3)))
        made.append(trace)
    [late] = rows(resolver(tmp_path, made), "late_ranks")
    assert (late["rank"], late["last_count"]) == (2, 6)
    assert float(str(late["own_share"])) < 0


def test_ranks_that_another_group_kept_have_no_time_of_their_own(tmp_path: Path) -> None:
    found = resolver(tmp_path, meshed(link=30_000))
    late = [r for r in rows(found, "late_ranks") if float(str(r["lost_ms"])) > 100]
    assert {r["rank"] for r in late} == {4, 5, 6, 7}
    assert all(abs(float(str(r["own_share"]))) < 0.1 for r in late)
    tensor = {tuple(as_ranks(r["members"])): r["bus_bw_gb_s"] for r in rows(found, "trace_bandwidth") if r["group_name"] == "tp"}
    assert tensor[0, 1, 2, 3] == pytest.approx(7 * tensor[4, 5, 6, 7])


def test_collectives_in_a_row_are_one_stretch_and_stand_in_a_queue(tmp_path: Path) -> None:
    def traced(between: int) -> list[Sample]:
        made = []
        for rank in range(2):
            trace = Sample(rank, 2).step(0, 0, STEP - 1)
            for n in range(4):
                begin = 10_000 + n * (2_000 + between)
                if between:
                    trace.kernel("gemm", begin - between, between, launch=n + 1)
                args = collective(elements=1024, seq=n, ranks=range(2))
                trace.kernel(ALL_REDUCE, begin, 2_000, launch=n + 2, stream=9, args=args)
            made.append(trace.kernel("gemm", 60_000, 1_000, launch=90))
        return made

    for between, stretch, queued in ((0, 8.0, 8.0), (5_000, 2.0, 0.0), (1_000, 2.0, 8.0)):
        folder = tmp_path / str(between)
        folder.mkdir()
        found = resolver(folder, traced(between))
        assert {r["stretch_ms"] for r in rows(found, "trace_measures") if r["window"] == "steps"} == {stretch}
        assert [r["queued_ms"] for r in rows(found, "trace_bandwidth")] == [queued]


def test_computation_that_peers_do_behind_their_wait_is_no_reason_to_be_late(tmp_path: Path) -> None:
    made, parts = [], 6
    for rank in range(4):
        trace = Sample(rank, 4)
        for step in range(6):
            begin, own = step * STEP, 20_000 if rank == 3 else 0
            trace.step(step, begin, STEP - 1)
            trace.range("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", begin + 5, own + 20)
            trace.operator("aten::mm", begin + own + 30, 20)
            for part in range(parts):
                # Each travels while the next part is computed; the others have begun the first long ago, and stand in a queue for the rest.
                trace.kernel("gemm", begin + own + 100 + part * 10_000, 10_000, launch=begin + own + 60)
                until = begin + 32_100 + part * 10_000
                at = until - 2_000 if rank == 3 else begin + 10_100 if part == 0 else until - 10_000
                args = collective(elements=1 << 20, seq=parts * step + part, ranks=range(4))
                trace.kernel(ALL_REDUCE, at, until - at, launch=begin + own + 70 + part, stream=9, args=args)
        made.append(trace)
    [late] = rows(resolver(tmp_path, made), "late_ranks")
    assert (late["rank"], late["reason"]) == (3, "loader")


def test_a_start_that_is_slow_once_is_no_habit(tmp_path: Path) -> None:
    made = job(steps=6, late={2: 100})
    for trace in made:
        first = next(e for e in trace.events if e["name"] == ALL_REDUCE)
        first["dur"] += 0 if trace.rank == 2 else 60_000
    [late] = rows(resolver(tmp_path, made), "late_ranks")
    assert float(str(late["window_share"])) > 0.09
    assert float(str(late["habit_share"])) < 0.01


def test_ranks_with_device_numbers_of_their_own_are_on_one_host(tmp_path: Path) -> None:
    for numbers, hosts in ((range(4), 1), ([0, 1, 0, 1], None)):
        folder = tmp_path / str(hosts)
        folder.mkdir()
        made = job()
        for trace, number in zip(made, numbers, strict=True):
            for event in trace.events:
                if event["cat"] == "kernel":
                    args = event["args"]
                    assert isinstance(args, dict)
                    args["device"] = number
        found = resolver(folder, made).get("trace_ranks")
        assert found is not None
        assert one_host(found)[1] == hosts


def test_the_pace_of_a_device_is_told_by_kernels_of_one_name_alone(tmp_path: Path) -> None:
    made = []
    for rank, times in enumerate((1, 1, 3)):
        trace = Sample(rank, 3)
        for n in range(10):
            trace.kernel("gemm", n * 10_000, 1_000 * times + n)
            trace.kernel("add", n * 10_000 + 5_000, 100 * times)
        trace.kernel(f"only on rank {rank}", 200_000, 50_000)
        trace.kernel("unlike counts", 300_000, 50)
        for n in range(rank * 4):
            trace.kernel("unlike counts", 300_100 + n * 100, 50 * times)
        made.append(trace)
    paces = {r["rank"]: r for r in rows(resolver(tmp_path, made), "kernel_pace")}
    assert {r["kind"] for r in paces.values()} == {"compute"}
    assert [round(float(str(paces[r]["pace"])), 2) for r in range(3)] == [1.0, 1.0, 2.99]
    assert float(str(paces[2]["least_pace"])) == pytest.approx(3.0, rel=0.01)
    assert (paces[2]["agreeing_share"], paces[2]["launches"]) == (1.0, 20)
    assert float(str(paces[2]["excess_ms"])) == pytest.approx(22.0, rel=0.05)
    assert (paces[2]["kernel"], paces[2]["kernel_ms"], paces[2]["usual_ms"]) == (
        "gemm",
        pytest.approx(3.0, rel=0.01),
        pytest.approx(1.0, rel=0.01),
    )


def test_windows_of_other_lengths_are_compared_by_step(tmp_path: Path) -> None:
    made = []
    for rank, (steps, first) in enumerate(((12, 0), (12, 0), (12, 1), (10, 0))):
        trace = Sample(rank, 4)
        for step in range(steps):
            # One window begins within a step, of which only the kernels are in it.
            if step >= 2 * first:
                trace.step(step, step * STEP, STEP - 1)
            for n in range(8):
                trace.kernel("gemm", step * STEP + n * 10_000 + 100, 6_000 if rank == 3 else 3_000, launch=step * STEP + n * 10_000)
        made.append(trace)
    paces = {r["rank"]: r["pace"] for r in rows(resolver(tmp_path, made), "kernel_pace")}
    assert paces == {0: 1.0, 1: 1.0, 2: 1.0, 3: 2.0}


def test_of_two_ranks_the_one_that_collects_garbage_before_its_first_operator_is_told_so(tmp_path: Path) -> None:
    made = []
    for rank in range(2):
        trace = Sample(rank, 2)
        for step in range(4):
            begin, own = step * STEP, 60_000 if rank == 0 else 100
            trace.step(step, begin, STEP - 1)
            trace.range("gc.py(9): collect_now", begin + 10, own - 20)
            trace.operator("aten::mm", begin + own, 50)
            args = collective(elements=1024, seq=step, ranks=range(2))
            trace.kernel(ALL_REDUCE, begin + own + 100, 60_200 - own, launch=begin + own + 60, stream=9, args=args)
        made.append(trace)
    [late] = rows(resolver(tmp_path, made), "late_ranks")
    assert (late["rank"], late["reason"]) == (0, "gc")
    assert float(str(late["reason_share"])) > 0.9


def test_copies_are_compared_by_direction_where_they_move_as_many_bytes(tmp_path: Path) -> None:
    made = []
    for rank, times in enumerate((1, 1, 40)):
        trace = Sample(rank, 3).kernel("gemm", 0, 1_000)
        for n in range(4):
            # Whether the memory of the host is pinned may be what makes a copy slow.
            kind = "Pageable" if rank == 2 else "Pinned"
            trace.copy(10_000 + n * 10_000, 100 * times, name=f"Memcpy HtoD ({kind} -> Device)", size=4 << 20)
            trace.copy(15_000 + n * 10_000, 100 * times, name="Memcpy DtoH (Device -> Pinned)", size=64 * times)
            trace.copy(16_000 + n * 10_000, 100 * times, name="Memcpy DtoD (Device -> Device)")
        made.append(trace)
    paces = {(r["kind"], r["rank"]): r for r in rows(resolver(tmp_path, made), "kernel_pace")}
    slow = paces["memcpy", 2]
    assert (slow["pace"], slow["names"], slow["launches"], slow["kernel"]) == (pytest.approx(40.0), 1, 4, "Memcpy HtoD")
    assert paces["memcpy", 0]["pace"] == pytest.approx(1.0)


def test_what_a_receive_takes_beyond_the_shortest_of_its_size_is_waiting(tmp_path: Path) -> None:
    made = []
    for rank in range(2):
        trace = Sample(rank, 2)
        for n in range(4):
            args = collective(elements=64, group="line", ranks=range(2)) | {"Collective name": "recv" if rank else "send"}
            trace.kernel(ALL_REDUCE, n * 10_000, 500 + 2_000 * rank, stream=9, args=args)
        made.append(trace)
    assert {tuple(as_ranks(r["members"])) for r in rows(resolver(tmp_path, made), "trace_bandwidth")} == {(0,), (1,)}
    waits = {r["rank"]: (r["calls"], round(float(str(r["waited_ms"])), 2)) for r in rows(resolver(tmp_path, made), "trace_pair_waits")}
    assert waits == {0: (4, 0.0), 1: (4, 8.0)}
    alone = tmp_path / "alone"
    alone.mkdir()
    assert rows(resolver(alone, made[:1]), "trace_pair_waits") == [], "of one rank nothing is known"


def test_ranks_at_one_place_of_a_pipeline_are_mates(tmp_path: Path) -> None:
    made = []
    for rank in range(4):
        trace = Sample(rank, 4)
        trace.kernel("gemm", 0, 1_000)
        for group, members, op in (
            ("all", range(4), "allreduce"),
            ("stage", [rank // 2 * 2, rank // 2 * 2 + 1], "allreduce"),
            ("line", [rank % 2, rank % 2 + 2], "send"),
        ):
            args = collective(elements=64, group=group, ranks=members) | {"Collective name": op}
            trace.kernel(ALL_REDUCE, 2_000 + len(group) * 100, 50, stream=9, args=args)
        made.append(trace)
    found = {r["rank"]: (r["stages"], r["mates"]) for r in rows(resolver(tmp_path, made), "kernel_pace")}
    assert found == {0: (True, [1]), 1: (True, [0]), 2: (True, [3]), 3: (True, [2])}


def lengths(slowest: list[int], late: int = 40_000) -> list[Sample]:
    """Traces of one rank each; in step ``n`` the batch of rank ``slowest[n]`` takes longer, and all of the step's collectives wait for
    it."""
    made = []
    for rank in range(4):
        trace = Sample(rank, 4)
        for step, slow in enumerate(slowest):
            begin = step * STEP
            trace.step(step, begin, STEP - 1)
            for part in range(4):
                at = begin + part * 20_000
                own = late // 4 if rank == slow else 0
                trace.kernel("gemm", at + 100, 5_000 + own, launch=at + 50)
                args = collective(elements=1024, seq=step * 4 + part, ranks=range(4))
                trace.kernel(ALL_REDUCE, at + 5_200 + own, 1_000 + late // 4 - own, launch=at + 60, stream=9, args=args)
        made.append(trace)
    return made


def test_a_batch_that_is_longer_in_some_steps_counts_once_for_each_step(tmp_path: Path) -> None:
    [late] = rows(resolver(tmp_path, lengths([2, 1, 2, 0, 2])), "late_ranks")
    assert (late["rank"], late["last_count"], late["slow_steps"], late["last_steps"]) == (2, 12, 5, 3)
    assert float(str(late["p_value"])) > 0.001 or float(str(late["step_chance"])) > 0.3


def test_a_rank_of_a_group_that_never_costs_most_in_the_job_is_no_habit(tmp_path: Path) -> None:
    made = []
    for rank in range(6):
        group, slow = divmod(rank, 3)
        trace = Sample(rank, 6)
        for step in range(6):
            begin, own = step * STEP, (5_000 if group == 0 else 20_000) if slow == (2 if group == 0 else step % 3) else 0
            trace.step(step, begin, STEP - 1)
            args = collective(elements=1024, seq=step, group=f"tp{group}", ranks=range(group * 3, group * 3 + 3))
            trace.kernel(ALL_REDUCE, begin + own, 21_000 - own, launch=begin + 60, stream=9, args=args)
        made.append(trace)
    found = {r["rank"]: r for r in rows(resolver(tmp_path, made), "late_ranks")}
    assert (found[2]["last_count"], found[2]["last_steps"], found[2]["step_chance"]) == (6, 0, 1.0)


def test_a_rank_that_costs_most_in_every_step_is_told_by_steps_too(tmp_path: Path) -> None:
    [late] = rows(resolver(tmp_path, lengths([2] * 6)), "late_ranks")
    assert (late["slow_steps"], late["last_steps"]) == (6, 6)
    assert float(str(late["step_chance"])) == pytest.approx(4 / 4**6)


def test_one_step_that_cost_far_more_does_not_hide_the_others(tmp_path: Path) -> None:
    made = job(steps=8)
    for step, cost in ((1, 90_000), (3, 12_000), (5, 9_000), (7, 11_000)):
        for trace in made:
            for event in trace.events:
                if (
                    event["cat"] == "kernel"
                    and event["name"] == ALL_REDUCE
                    and abs(event["ts"] - step * STEP - 40_200 - 7 * (trace.rank or 0)) < 300
                ):
                    event["dur"] += 0 if trace.rank == 2 else cost
    [late] = rows(resolver(tmp_path, made), "late_ranks")
    assert (late["rank"], late["slow_steps"], late["last_steps"]) == (2, 4, 4)
    assert float(str(late["step_chance"])) == pytest.approx(4 / 4**4)


def test_what_lies_before_the_first_operator_is_no_loading_where_the_loader_has_ranges_of_its_own(tmp_path: Path) -> None:
    def traced(loader: bool) -> list[Sample]:
        made = []
        for rank in range(3):
            trace = Sample(rank, 3)
            for step in range(6):
                begin, held = step * STEP, 40_000 if rank == 1 else 0
                trace.step(step, begin, STEP - 1)
                if loader:
                    trace.range("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", begin + held + 10, 50)
                trace.operator("aten::randn", begin + held + 20, 30)
                trace.kernel("gemm", begin + held + 200, 1_000, launch=begin + held + 100)
                args = collective(elements=1024, seq=step, ranks=range(3))
                trace.kernel(ALL_REDUCE, begin + held + 1_300, 41_000 - held, launch=begin + held + 120, stream=9, args=args)
            made.append(trace)
        return made

    for loader, reason in ((False, "lead"), (True, "host")):
        folder = tmp_path / reason
        folder.mkdir()
        [late] = rows(resolver(folder, traced(loader)), "late_ranks")
        assert (late["rank"], late["reason"]) == (1, reason)


def test_a_stretch_after_the_last_has_come_is_transfer_and_no_wait_for_it() -> None:
    """Three operations that are begun before the work of a step and waited for behind it."""
    told = {0: (0, 700), 1: (0, 700), 2: (500, 200)}
    frame = pl.DataFrame(
        [
            dict.fromkeys(TRACE_MATCHES)
            | {"group_key": "g", "capture": 0, "position": 0, "rank": r, "op": "all_reduce", "start_ns": a, "duration_ns": d}
            | {"exposed_ns": 300, "stretch_ns": 60}
            for r, (a, d) in told.items()
        ],
        schema=TRACE_MATCHES,
    ).with_columns(pl.col("start_ns", "duration_ns", "exposed_ns", "stretch_ns") * 10**6)

    def lost(begins_ms: int) -> float:
        found = trace_arrivals(frame.lazy().with_columns(stretch_at_ns=pl.lit(begins_ms * 10**6))).collect()
        return float(str(found["lost_ns"].sum())) / 1e6

    assert (lost(640), lost(480), lost(100)) == (0, 20, 60)
