"""Rules that read profiler traces: each with a case that fires and a near miss that stays quiet."""

from __future__ import annotations

import polars as pl

from nccl_forensics.model import Finding
from nccl_forensics.rules.communication_bound import communication_bound
from nccl_forensics.rules.host_stall import host_stall
from nccl_forensics.rules.input_stall import input_stall
from nccl_forensics.rules.low_bus_bandwidth import low_bus_bandwidth
from nccl_forensics.rules.low_overlap import low_overlap
from nccl_forensics.rules.nccl_settings import few_channels_by_setting
from nccl_forensics.rules.small_buckets import small_buckets
from nccl_forensics.rules.straggler import straggler
from nccl_forensics.rules.transports import few_channels
from nccl_forensics.views.lag import LAG
from nccl_forensics.views.late_ranks import LATE_RANKS
from nccl_forensics.views.trace_bandwidth import TRACE_BANDWIDTH
from nccl_forensics.views.trace_lag import TRACE_LAG
from nccl_forensics.views.trace_measures import MEASURES
from nccl_forensics.views.trace_pair_waits import TRACE_PAIR_WAITS
from nccl_forensics.views.trace_ranks import TRACE_RANKS

Frame = pl.LazyFrame


def frame(schema: dict[str, pl.DataType], *rows: dict[str, object]) -> Frame:
    return pl.DataFrame([{c: r.get(c) for c in schema} for r in rows], schema=schema, infer_schema_length=None).lazy()


def measures(
    compute: float, communication: float, exposed: float, *, stretch: float = 0.0, ranks: int = 4, device: str = "gpu", steps: int = 5
) -> Frame:
    """Traces of 100 ms of steps; the arguments are ms."""
    known = {"span_ms": 100.0, "compute_ms": compute, "communication_ms": communication, "exposed_ms": exposed, "device": device}
    known["stretch_ms"] = stretch
    overlap = (communication - exposed) / communication if communication else None
    rest = {"window": "steps", "steps": steps, "overlap_fraction": overlap, "record": "traceEvents[1]", "capture": 0}
    return frame(MEASURES, *({"source_id": r, "rank": r, **known, **rest} for r in range(ranks)))


def waits(ms: float, ranks: int = 4) -> Frame:
    return frame(TRACE_LAG, *({"group_key": "g", "rank": r, "waited_ms": ms} for r in range(ranks)))


def late(**known: object) -> Frame:
    row = {
        "group_key": "trace:0:0,1,2,3",
        "group_name": "0",
        "group_desc": "default_pg",
        "group_known": True,
        "rank": 2,
        "members": 4,
        "collectives": 20,
        "material": 10,
        "last_count": 10,
        "p_value": 4 / 4**10,
        "lost_ms": 600.0,
        "lost_share": 0.95,
        "window_share": 0.4,
        "reason": "loader",
        "reason_ms": 590.0,
        "reason_share": 0.98,
        "span_source_id": 2,
        "span_record": "traceEvents[7]",
        "span_name": "enumerate(DataLoader)",
        "source_id": 2,
        "record": "traceEvents[9]",
    }
    return frame(LATE_RANKS, row | known)


def sizes(*rows: dict[str, object]) -> Frame:
    base = {
        "source_id": 0,
        "record": "traceEvents[3]",
        "group_key": "g",
        "backend": "nccl",
        "collective": "all_reduce",
        "ranks": 8,
        "ranks_seen": 8,
    }
    return frame(TRACE_BANDWIDTH, *(base | r for r in rows))


def only(found: list[Finding]) -> Finding:
    [finding] = found
    assert finding.evidence
    return finding


def test_much_exposed_transfer_is_communication_bound_and_an_error_where_it_is_sure() -> None:
    assert only(communication_bound.check(measures(40, 60, 55), waits(5.0))).severity == "error"
    assert only(communication_bound.check(measures(40, 60, 55, device="cpu"), waits(5.0))).severity == "warning"
    assert only(communication_bound.check(measures(40, 60, 55, ranks=1), None)).confidence == "low"


def test_a_third_of_the_time_is_an_error_where_nobody_is_left_to_wait_for() -> None:
    third = measures(60, 36, 36), waits(0.0), None
    traced = frame(TRACE_RANKS, *({"source_id": r, "rank": r, "world_size": 4} for r in range(4)))
    more = frame(TRACE_RANKS, *({"source_id": r, "rank": r, "world_size": 8} for r in range(4)))
    assert only(communication_bound.check(*third, traced)).severity == "error"
    assert only(communication_bound.check(*third, more)).severity == "warning"


def test_each_rank_s_own_shares_are_quoted() -> None:
    said = [e.why for e in only(communication_bound.check(measures(40, 60, 55), waits(5.0))).evidence]
    assert said[:1] == [
        "rank 0: of 100 ms traced, 55% communication alone, 40% computation and 8% of communication hidden behind computation"
    ]
    assert len({*said}) == 4


def test_exposed_communication_that_is_waiting_for_a_late_rank_is_not() -> None:
    assert communication_bound.check(measures(40, 60, 55), waits(40.0)) == []
    assert communication_bound.check(measures(70, 30, 25), waits(0.0)) == []


def test_the_bubbles_of_a_pipeline_are_waiting_and_no_transfer() -> None:
    bubbles = frame(TRACE_PAIR_WAITS, *({"rank": r, "calls": 8, "waited_ms": 30.0} for r in range(4)))
    assert communication_bound.check(measures(40, 60, 55), waits(10.0), bubbles) == []
    assert communication_bound.check(measures(40, 60, 55), None, bubbles)[0].confidence == "medium", "of which some is known to be transfer"
    assert low_overlap.check(measures(60, 30, 28), None, bubbles) == []


def test_communication_beside_idle_computation_has_low_overlap() -> None:
    assert only(low_overlap.check(measures(60, 30, 28), waits(0.0))).metrics["gain_share"] == 0.28


def test_communication_in_one_stretch_of_each_step_is_an_error_and_one_after_each_layer_is_not() -> None:
    assert only(low_overlap.check(measures(60, 30, 28, stretch=25), waits(0.0))).severity == "error"
    for found in (
        low_overlap.check(measures(60, 30, 28, stretch=3), waits(0.0)),
        low_overlap.check(measures(60, 30, 28, stretch=25), waits(16.0)),
        low_overlap.check(measures(60, 30, 28, stretch=25, steps=2), waits(0.0)),
        low_overlap.check(measures(60, 30, 28, stretch=25, device="cpu"), waits(0.0)),
        low_overlap.check(measures(60, 30, 28, stretch=25), None),
    ):
        assert only(found).severity == "warning"


def test_hidden_communication_and_one_that_nothing_could_hide_are_quiet() -> None:
    assert low_overlap.check(measures(60, 30, 10), waits(0.0)) == []
    assert low_overlap.check(measures(2, 90, 90), waits(0.0)) == [], "there is nothing to hide it behind"
    assert low_overlap.check(measures(60, 30, 28), waits(25.0)) == [], "it is waiting, not transfer"


def test_many_small_collectives_that_take_time_are_small_buckets() -> None:
    small = {"bytes": 65536, "count": 200, "median_ms": 0.1}
    large = {"bytes": 1 << 26, "count": 5, "median_ms": 2.0}
    assert only(small_buckets.check(sizes(small, large), measures(60, 30, 28))).metrics["per_step"] == 40.0
    assert small_buckets.check(sizes(small | {"median_ms": 0.01}, large), measures(60, 30, 28)) == [], "they take no time"
    assert small_buckets.check(sizes(small | {"count": 50}, large), measures(60, 30, 28)) == [], "they are few"
    assert small_buckets.check(sizes(small, large | {"count": 500}), measures(60, 30, 28)) == [], "most are large"
    assert only(small_buckets.check(sizes(small, large), measures(60, 30, 28))).severity == "warning"
    queued = small | {"queued_ms": 18.0}
    assert only(small_buckets.check(sizes(queued, large), measures(60, 30, 28))).severity == "error"
    assert only(small_buckets.check(sizes(queued, large), measures(40, 60, 55))).severity == "warning", "most of what runs alone is others"
    assert only(small_buckets.check(sizes(queued, large), measures(60, 30, 28, device="cpu"))).severity == "warning"
    alone = small | {"ranks_seen": 1, "count": 200}
    assert small_buckets.check(sizes(alone), measures(60, 30, 28)) == [], "counted once for each of four ranks"


def test_a_rank_that_loads_data_while_the_others_wait_is_an_input_stall_and_a_straggler() -> None:
    found = only(input_stall.check(None, late()))
    assert (found.ranks, found.severity, found.confidence) == ((2,), "error", "medium")
    assert only(input_stall.check(None, late(p_value=1e-8))).confidence == "high"
    assert only(straggler.check(None, late())).ranks == (2,)
    assert host_stall.check(None, late()) == []


def test_a_rank_that_alone_costs_each_of_a_few_steps_dearly_in_the_only_group_is_sure() -> None:
    steps = {"p_value": 0.004, "step_chance": 0.004, "slow_steps": 5, "last_steps": 5, "habit_share": 0.4, "lost_share": 0.99}
    dear = {**steps, "group_known": False, "only_group": True}
    assert only(input_stall.check(None, late(**dear))).confidence == "high"
    unsure: tuple[dict[str, object], ...] = (
        {"only_group": False},
        {"own_share": 0.9},
        {"slow_steps": 3, "last_steps": 3},
        {"habit_share": 0.2},
        {"lost_share": 0.9},
        {"reason_share": 0.7},
    )
    for less in unsure:
        assert only(input_stall.check(None, late(**(dear | less)))).confidence == "medium", less


def test_a_rank_whose_host_is_late_is_a_host_stall() -> None:
    assert only(host_stall.check(None, late(reason="host"))).ranks == (2,)
    assert input_stall.check(None, late(reason="host")) == []
    assert host_stall.check(None, late(reason="compute")) == []


def test_a_gap_in_a_trace_without_a_gpu_says_no_more_than_that_the_rank_is_late() -> None:
    untold = late(reason="host", on_gpu=False)
    assert host_stall.check(None, untold) == []
    assert only(straggler.check(None, untold)).ranks == (2,)
    assert only(host_stall.check(None, late(reason="gc", on_gpu=False))).ranks == (2,)
    assert only(host_stall.check(None, late(reason="host", on_gpu=True))).ranks == (2,)
    assert only(straggler.check(None, late(reason="compute"))).ranks == (2,)


def test_lateness_by_chance_of_little_cost_or_shared_is_nobodys() -> None:
    for quiet in (
        {"p_value": 0.05, "window_share": 0.2},
        {"window_share": 0.01},
        {"lost_share": 0.4},
        {"last_count": 2},
        {"members": 2},
        {"collectives": 4},
    ):
        assert straggler.check(None, late(**quiet)) == [], quiet
        assert input_stall.check(None, late(**quiet)) == [], quiet


def test_three_late_steps_that_cost_a_quarter_of_the_time_need_no_more_to_be_sure() -> None:
    assert only(straggler.check(None, late(p_value=0.0625, last_count=3, material=3))).confidence == "medium"


def test_what_a_rank_is_seen_to_do_on_its_host_makes_up_for_some_chance() -> None:
    unsure = {"p_value": 0.005, "lost_share": 0.7, "window_share": 0.25, "reason_share": 0.65, "slow_steps": 5, "last_steps": 4}
    assert only(straggler.check(None, late(**unsure, step_chance=0.06, reason="lead"))).confidence == "medium"
    for quiet in ({"reason": "compute"}, {"p_value": 0.02}, {"reason_share": 0.5}, {"window_share": 0.15}):
        assert straggler.check(None, late(**unsure | {"step_chance": 0.06, "reason": "lead"} | quiet)) == [], quiet


def test_a_rank_that_is_late_by_its_batch_in_some_steps_is_not_named() -> None:
    by_batch = {"p_value": 1e-9, "slow_steps": 4, "last_steps": 3, "step_chance": 0.2}
    assert straggler.check(None, late(**by_batch)) == []
    assert straggler.check(None, late(p_value=1e-9, slow_steps=3, last_steps=2, step_chance=0.09)) == [], "two of three, among many ranks"
    assert only(straggler.check(None, late(p_value=1e-9, slow_steps=4, last_steps=4, step_chance=0.0156))).confidence == "medium"
    assert only(straggler.check(None, late(p_value=1e-9, slow_steps=7, last_steps=7, step_chance=0.0002))).confidence == "high"


def test_one_of_two_that_collects_garbage_or_loads_in_every_step_is_told_and_one_that_computes_is_not() -> None:
    pair = {"members": 2, "p_value": 0.13, "slow_steps": 3, "last_steps": 3, "step_chance": 0.25, "worst_ms": 230.0, "window_share": 0.9}
    collects = late(**pair, reason="gc")
    assert [f.confidence for f in (*host_stall.check(None, collects), *straggler.check(None, collects))] == ["medium", "medium"]
    assert only(input_stall.check(None, late(**pair))).ranks == (2,)
    for quiet in (
        {"reason": "compute"},
        {"last_steps": 2},
        {"slow_steps": 2, "last_steps": 2},
        {"window_share": 0.1},
        {"reason_share": 0.5},
    ):
        assert straggler.check(None, late(**pair | quiet)) == [], quiet


def test_one_that_loads_in_every_step_of_its_own_group_is_told_beside_another_that_costs_more() -> None:
    second = {"slow_steps": 8, "last_steps": 3, "step_chance": 0.17, "group_step_chance": 0.0005}
    assert only(input_stall.check(None, late(**second))).ranks == (2,)
    for quiet in ({"group_step_chance": 0.05}, {"reason": "compute"}, {"lost_share": 0.7}):
        assert input_stall.check(None, late(**second | quiet)) == [], quiet


def test_several_that_load_in_groups_of_their_own_are_told_together() -> None:
    both = pl.concat([late(p_value=1e-8), late(rank=6, group_key="trace:1:4-7", group_name="1", group_desc="tp")])
    found = only(input_stall.check(None, both))
    assert (found.ranks, found.confidence, len(found.culprits)) == ((2, 6), "medium", 2)
    assert found.summary.startswith("Rank 2: ")
    assert " Rank 6: " in found.summary


def test_a_recorder_of_the_whole_run_speaks_for_a_host_and_not_for_its_gpu() -> None:
    """A host that runs ahead of its GPU enqueues in time, however slow the GPU is."""
    whole = frame(LAG, *({"rank": r, "members": 4, "collectives": 400, "lost_ms": 1.0, "span_ms": 9000.0} for r in range(4)))
    assert straggler.check(whole, late(reason="compute", on_gpu=False)) == []
    assert only(straggler.check(whole, late(reason="compute", on_gpu=True))).ranks == (2,)
    assert straggler.check(whole, late(reason="loader", on_gpu=True)) == []


def test_a_few_long_pauses_of_one_rank_of_many_are_told_by_steps() -> None:
    pauses = {"reason": "host", "p_value": 1.0, "slow_steps": 3, "last_steps": 3, "step_chance": 0.001, "members": 2, "worst_ms": 400.0}
    assert only(straggler.check(None, late(**pauses))).confidence == "medium"
    assert straggler.check(None, late(**pauses | {"step_chance": 0.06})) == []
    assert straggler.check(None, late(**pauses | {"window_share": 0.05})) == []


def test_a_late_rank_that_another_group_kept_or_that_was_slow_once_is_not_named() -> None:
    for known in ({"own_share": 0.1}, {"habit_share": 0.01}):
        for rule in (input_stall.check, host_stall.check):
            assert rule(None, late(**known)) == []
        assert straggler.check(None, late(**known)) == []
    assert only(input_stall.check(None, late(own_share=0.9, habit_share=0.3))).ranks == (2,)


def test_traced_all_reduces_far_below_the_platform_are_low_bandwidth() -> None:
    slow = {"bytes": 1 << 29, "count": 10, "best_bus_bw_gb_s": 200.0, "expected_gb_s": 431.0}
    assert only(low_bus_bandwidth.check(None, None, None, None, None, None, sizes(slow))).severity == "warning"
    broken = slow | {"best_bus_bw_gb_s": 60.0}
    assert only(low_bus_bandwidth.check(None, None, None, None, None, None, sizes(broken))).severity == "error"
    for quiet in (slow | {"best_bus_bw_gb_s": 300.0}, slow | {"ranks_seen": 1}, slow | {"bytes": 1 << 20}, slow | {"expected_gb_s": None}):
        assert low_bus_bandwidth.check(None, None, None, None, None, None, sizes(quiet)) == [], quiet


def test_a_channel_limit_cites_the_kernels_that_show_it() -> None:
    setting = {
        "name": "NCCL_MAX_NCHANNELS",
        "value": "2",
        "processes": 2,
        "of": 2,
        "ranks": [0, 1],
        "hosts": ["a"],
        "source_id": 0,
        "line_no": 4,
    }
    [found] = few_channels_by_setting.check(pl.DataFrame([setting]), sizes({"channels": 2, "bytes": 1 << 20}))
    assert "2 blocks" in found.evidence[-1].why


#: AllReduces of 512 MiB on eight GPUs over NVLink.
_LARGE = {"bytes": 512 << 20, "count": 10, "expected_gb_s": 228.0}


def test_few_blocks_in_slow_large_allreduces_are_few_channels_by_traces_alone() -> None:
    found = only(few_channels.check(None, sizes(_LARGE | {"channels": 2, "best_bus_bw_gb_s": 40.0})))
    assert (found.cause, found.severity, found.metrics["channels"]) == ("few-channels", "warning", 2)


def test_few_blocks_are_quiet_where_the_bandwidth_is_there_or_the_size_needs_no_more() -> None:
    fast = _LARGE | {"channels": 2, "best_bus_bw_gb_s": 200.0}
    small = _LARGE | {"channels": 2, "best_bus_bw_gb_s": 40.0, "bytes": 1 << 20}
    many = _LARGE | {"channels": 24, "best_bus_bw_gb_s": 40.0}
    unknown = _LARGE | {"channels": 2, "best_bus_bw_gb_s": 40.0, "expected_gb_s": None}
    assert few_channels.check(None, sizes(fast, small, many, unknown)) == []
