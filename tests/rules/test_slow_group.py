from __future__ import annotations

from nccl_forensics.rules.slow_group import slow_group
from tests.rules.test_trace_rules import measures, sizes

Row = dict[str, object]


def groups(bandwidths: list[float], **known: object) -> list[Row]:
    """Groups of four ranks, each with a collective of these GB/s bus bandwidth in 20 ms at 10 GB/s."""
    return [
        {"group_key": f"g{n}", "group_name": str(n), "bytes": 1 << 26, "dtype": "float", "ranks": 4, "ranks_seen": 4}
        | {"members": list(range(4 * n, 4 * n + 4)), "count": 10, "bus_bw_gb_s": bw, "best_bus_bw_gb_s": bw, "median_ms": 200 / bw}
        | known
        for n, bw in enumerate(bandwidths)
    ]


def test_a_group_far_behind_all_like_it_is_named() -> None:
    [found] = slow_group.check(sizes(*groups([200, 210, 30, 190])), measures(40, 60, 55))
    assert found.ranks == (8, 9, 10, 11)
    assert found.metrics == {"bus_bw_gb_s": 30, "usual_gb_s": 195}


def test_one_of_two_groups_is_named_where_the_other_is_four_times_as_fast() -> None:
    [found] = slow_group.check(sizes(*groups([200, 30])), measures(40, 60, 55))
    assert (found.ranks, found.confidence) == ((4, 5, 6, 7), "low")
    assert "among the other group of as many ranks 200.0 GB/s" in found.title
    assert slow_group.check(sizes(*groups([200, 60])), measures(40, 60, 55)) == []
    meeting = [r | {"members": [n, 7, 8, 9]} for n, r in enumerate(groups([200, 30]))]
    assert slow_group.check(sizes(*meeting), measures(40, 60, 55)) == [], "groups with a common rank are of two kinds"


def test_groups_that_are_few_unlike_partly_traced_or_lose_little_are_quiet() -> None:
    for quiet in (
        groups([200, 210, 60]),
        groups([200, 120, 30]),
        groups([200, 100, 30, 190]),
        groups([200, 210, 120, 190]),
        groups([200, 210, 30, 190], ranks_seen=3),
        groups([200, 210, 30, 190], count=1),
        [r | {"median_ms": float(str(r["median_ms"])) / 100} for r in groups([200, 210, 30, 190])],
    ):
        assert slow_group.check(sizes(*quiet), measures(40, 60, 55)) == []
