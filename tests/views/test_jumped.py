"""Ranks that went on in another group: what they called between two operations of it is counted in scans."""

from __future__ import annotations

import random

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from nccl_forensics.views.jumps import jumped_groups
from tests.views.frames import operations

Line = list[tuple[str, int, str]]


def calls_between(line: Line, group: str, first: int, second: int, op: str) -> int | None:
    """Calls of an operation between two positions of a group, of a rank's (group, position, operation) in order."""
    place = {seq: at for at, (own, seq, _) in enumerate(line) if own == group}
    if first not in place or second not in place:
        return None
    return sum(name == op for *_, name in line[place[first] + 1 : place[second]])


def earlier_calls(line: Line, group: str, end: int, op: str) -> list[int]:
    """The same for earlier pairs of the group that are like the pair that ends at a position."""
    kinds = {seq: name for own, seq, name in line if own == group}
    pairs = [k for k in kinds if k < end and k - 1 in kinds and (kinds[k - 1], kinds[k]) == (kinds[end - 1], kinds[end])]
    return [n for k in pairs if (n := calls_between(line, group, k - 1, k, op)) is not None]


@settings(max_examples=120, deadline=None)
@given(st.integers(0, 10**6))
def test_a_jump_counts_the_calls_between_two_operations_of_the_group_gone_on_to(seed: int) -> None:
    rng = random.Random(seed)
    ranks = range(4)
    lines: dict[int, list[tuple[str, int, str]]] = {}
    for rank in ranks:
        seqs = {"pg:1": 0, "pg:2": rng.randrange(2)}
        lines[rank] = []
        for _ in range(rng.randrange(3, 14)):
            group = rng.choice(list(seqs))
            seqs[group] += 1
            lines[rank].append((group, seqs[group], rng.choice(("all_reduce", "all_gather"))))
    ops = pl.concat(
        [
            operations({rank: [op]}, group=group, first=seq).with_columns(order=pl.lit(order, dtype=pl.Int64))
            for rank, line in lines.items()
            for order, (group, seq, op) in enumerate(line)
        ]
    )
    last = {g: {r: max((s for own, s, _ in lines[r] if own == g), default=None) for r in ranks} for g in ("pg:1", "pg:2")}
    rows = [
        {"domain": "fr", "group_key": g, "rank": r, "last_seq": s, "last_op": "all_reduce", "last_call_site": None}
        | {"source_id": r, "line_no": None, "record": None}
        for g, ends in last.items()
        for r, s in ends.items()
    ]
    progress = pl.DataFrame(rows, infer_schema_length=None).lazy()
    candidates = jumped_groups(progress, None)
    found = jumped_groups(progress, ops)
    told: dict[int, bool | None] = {}
    for rank, (fact, ahead) in candidates.items():
        end, op = int(str(fact["beyond"])), str(fact["op"])
        reached = {r: s for r, s in last[str(fact["group_key"])].items() if s is not None}
        front = [r for r, s in reached.items() if s == max(reached.values())]
        assert end == 1 + max(s for r in front if (s := last[ahead][r]) is not None), "the first that the peers never came to"
        mine = calls_between(lines[rank], ahead, end - 1, end, op)
        counted = {r: calls_between(lines[r], ahead, end - 1, end, op) for r in ranks if r != rank}
        theirs = [n for r, n in counted.items() if n is not None and (n or any(name == op for *_, name in lines[r]))]
        told[rank] = None
        if mine is None:
            continue
        usual = theirs or earlier_calls(lines[rank], ahead, end, op)
        if theirs:
            told[rank] = mine < max(theirs, key=lambda n: (theirs.count(n), n))
        elif usual and not mine == max(usual) == 0 and (mine < min(usual) or mine >= max(usual)):
            told[rank] = mine < max(usual)
    # Of two alone in a group either is one only by the calls that it lacks: those are no candidates without the operations.
    found = {r: f for r, f in found.items() if sum(s is not None for s in last[str(f[0]["group_key"])].values()) > 2}
    missed = {r for r in told if told[r]}
    if missed:
        assert set(found) == missed
    else:
        assert set(found) <= {r for r in told if told[r] is None}
