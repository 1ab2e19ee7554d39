"""Ranks that left an operation out and went on in another group, told by progress and by the order of their own operations."""

from __future__ import annotations

from collections import Counter

import polars as pl

from nccl_forensics.alignment import REACH, expect, read_divergence


def jumped_groups(progress: pl.LazyFrame, operations: pl.LazyFrame | None) -> dict[int, tuple[dict[str, object], str]]:
    """Ranks that are behind their peers in one group and at the same time ahead of these very peers in another: they left an operation of
    the first group out and went on to the second. In a plain chain of waits nobody is ahead of those who wait for it.

    Those who wait for such a rank look alike: they stand in the operation that it left out, and never came to the one it went on to. Of
    ranks that accuse each other so, those remain that made fewer of the missed calls since their last operation of the other group than
    their peers there, or than they themselves made before.
    """
    state = progress.filter(pl.col("last_seq").is_not_null() & pl.col("rank").is_not_null()).collect()
    last: dict[tuple[str, str], dict[int, int]] = {}
    facts: dict[tuple[str, str, int], dict[str, object]] = {}
    for row in state.iter_rows(named=True):
        key = (row["domain"], row["group_key"])
        last.setdefault(key, {})[row["rank"]] = row["last_seq"]
        facts[(*key, row["rank"])] = row
    out: dict[int, tuple[dict[str, object], str]] = {}
    for key, ranks in last.items():
        front = max(ranks.values())
        behind = [r for r, s in ranks.items() if s < front]
        peers = [r for r, s in ranks.items() if s == front]
        pair = len(behind) == len(peers) == 1
        if not behind or (len(behind) >= len(peers) and not (pair and operations is not None)):
            continue
        for rank in behind:
            for other, theirs in last.items():
                if other == key or other[0] != key[0] or rank not in theirs:
                    continue
                shared = [p for p in peers if p in theirs]
                if shared and all(theirs[rank] > theirs[p] for p in shared):
                    peer = facts[(*key, peers[0])]
                    mine = facts[(*key, rank)]
                    out[rank] = (
                        {
                            "domain": key[0],
                            "group_key": key[1],
                            "waiters": sorted(set(peers) | {r for r in theirs if r != rank}),
                            "seq": ranks[rank] + 1,
                            "op": peer["last_op"],
                            "call_site": peer["last_call_site"],
                            "source_id": peer["source_id"],
                            "line_no": peer["line_no"],
                            "record": peer["record"],
                            "own_source_id": mine["source_id"],
                            "own_line_no": mine["line_no"],
                            "own_record": mine["record"],
                        },
                        other[1],
                    )
                    break
    if out and operations is not None:
        fewer = _fewer_calls(out, last, operations)
        missed = {r: v for r, v in out.items() if fewer[r]}
        # Of two alone in a group either may be the one that went on: only calls that are missing tell.
        out = missed or {r: v for r, v in out.items() if fewer[r] is None and len(last[(str(v[0]["domain"]), str(v[0]["group_key"]))]) > 2}
    return out


def _fewer_calls(
    jumps: dict[int, tuple[dict[str, object], str]], last: dict[tuple[str, str], dict[int, int]], operations: pl.LazyFrame
) -> dict[int, bool | None]:
    """Which of the ranks made fewer calls like the missed one between their last two operations of the group they went on to, than any
    peer did between the same two, or without such peers than they did one operation earlier; None where that cannot be counted.

    Calls are alike by operation and line of code, in whatever group: other ranks make them in groups of their own.
    """
    domains = sorted({str(fact["domain"]) for fact, _ in jumps.values()})
    frame = (
        operations.filter(pl.col("domain").is_in(domains) & pl.col("rank").is_not_null() & ~pl.col("is_p2p"))
        .select("domain", "group_key", "rank", "seq", "op", "call_site", "shape", "order", "source_id")
        .collect()
    )
    # Of several dumps of one rank the one with the most operations counts the calls.
    most = frame.group_by("domain", "rank", "source_id").len().sort("len", "source_id", descending=[True, False])
    frame = frame.join(most.unique(["domain", "rank"], keep="first", maintain_order=True), on=["domain", "rank", "source_id"])
    lines = {key: part.sort("order").to_dicts() for key, part in frame.group_by("domain", "rank")}
    out: dict[int, bool | None] = dict.fromkeys(jumps)
    for rank, (fact, ahead) in jumps.items():
        domain = str(fact["domain"])
        end = last[(domain, ahead)][rank]
        alike = (fact["op"], fact["call_site"])
        mine = _calls_between(lines.get((domain, rank), []), ahead, end - 1, end, alike)
        members = [r for r in last[(domain, ahead)] if r != rank]
        theirs = [n for r in members if (n := _calls_between(lines.get((domain, r), []), ahead, end - 1, end, alike)) is not None]
        if mine is None:
            continue
        earlier = _calls_between(lines.get((domain, rank), []), ahead, end - 2, end - 1, alike)
        usual = max(theirs) if theirs else earlier
        if usual is not None:
            out[rank] = mine < usual
    return out


def _calls_between(line: list[dict[str, object]], group: str, first: int, second: int, alike: tuple[object, object]) -> int | None:
    """Calls of this operation and line of code between two operations of a group in one rank's own order; None where one is not there."""
    place = {row["seq"]: i for i, row in enumerate(line) if row["group_key"] == group}
    if first not in place or second not in place:
        return None
    return sum((row["op"], row["call_site"]) == alike for row in line[place[first] + 1 : place[second]])


_STEPS_BACK, _TAIL = 256, 24


def broken_steps(operations: pl.LazyFrame) -> dict[int, tuple[dict[str, object], str]]:
    """Ranks whose operations over all groups, in their own order, leave out one that their own earlier steps foretell.

    Only the end of each sequence is looked at, and only a minority of the ranks may break its habit: a habit that many break is a new
    phase of the program. Where peers called the same two operations one after the other too, nothing was left out between them.
    """
    recent = (
        operations.filter(pl.col("rank").is_not_null() & ~pl.col("is_p2p") & pl.col("domain").is_in(["fr", "nccl"]))
        .sort("domain", "rank", "source_id", "order")
        .group_by("domain", "rank", maintain_order=True)
        .tail(_STEPS_BACK)
        .select(
            "domain",
            "rank",
            "group_key",
            "group_name",
            "group_desc",
            "comm_id",
            "op",
            "shape",
            "dtype",
            "seq",
            "source_id",
            "line_no",
            "record",
            "call_site",
        )
        .collect()
    )
    found: dict[tuple[str, int], list[tuple[tuple[object, ...], dict[str, object], str]]] = {}
    alike: Counter[tuple[object, ...]] = Counter()
    members: Counter[str] = Counter()
    lines = {(str(d), int(str(r))): part.to_dicts() for (d, r), part in recent.group_by("domain", "rank", maintain_order=True)}
    places = {key: {(r["group_key"], r["seq"]): i for i, r in enumerate(rows)} for key, rows in lines.items()}
    for (domain, rank), rows in lines.items():
        members[domain] += 1
        line = [(r["group_key"], r["op"], r["shape"], r["dtype"]) for r in rows]
        for at in range(max(2, len(line) - _TAIL), len(line)):
            foretold = expect(line[:at], 1)
            if not foretold or foretold[0] == line[at] or foretold[0] not in line[:at]:
                continue
            reading = read_divergence(line[:at], expect(line[:at], REACH), line[at:])
            if reading.kind != "skipped":
                continue
            missed = foretold[0]
            earlier = next(r for r in reversed(rows[:at]) if (r["group_key"], r["op"], r["shape"], r["dtype"]) == missed)
            fact = {
                k: earlier[k]
                for k in ("domain", "group_key", "group_name", "group_desc", "comm_id", "op", "call_site", "source_id", "line_no", "record")
            }
            fact |= {
                "seq": int(earlier["seq"]) + 1,
                "own_source_id": rows[at]["source_id"],
                "own_line_no": rows[at]["line_no"],
                "own_record": rows[at]["record"],
                "waiters": [],
            }
            place = (domain, rows[at]["op"], rows[at]["seq"], earlier["op"])
            alike[place] += 1
            if not _done_alike(rows[at - 1], rows[at], domain, rank, lines, places):
                found.setdefault((domain, rank), []).append((place, fact, str(rows[at]["group_key"])))
    out: dict[int, tuple[dict[str, object], str]] = {}
    for (domain, rank), breaks in found.items():
        # A habit that many break at the same place is a new phase of the program, or was no habit yet.
        own = [b for b in breaks if alike[b[0]] * 4 <= members[domain]]
        if own:
            out.setdefault(rank, (own[0][1], own[0][2]))
    ranks = max(members.values(), default=0)
    return out if len(out) * 4 <= ranks else {}


_Rows = list[dict[str, object]]


def _done_alike(
    before: dict[str, object],
    behind: dict[str, object],
    domain: str,
    rank: int,
    lines: dict[tuple[str, int], _Rows],
    places: dict[tuple[str, int], dict[tuple[object, object], int]],
) -> bool:
    """Whether of the other ranks that called both operations (by group and position) at least half called nothing between the two."""
    one, two = (before["group_key"], before["seq"]), (behind["group_key"], behind["seq"])
    apart: list[bool] = []
    for key, at in places.items():
        if key[0] != domain or key[1] == rank or one not in at or two not in at:
            continue
        theirs = lines[key][at[two]]
        same = all(theirs[k] == behind[k] for k in ("op", "shape", "dtype"))
        apart.append(not same or at[two] != at[one] + 1)
    return bool(apart) and sum(apart) * 2 <= len(apart)
