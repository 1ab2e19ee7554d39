"""Where the members of a group part: the first operation in which they disagree, and how the odd ones are to be read."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import polars as pl

from nccl_forensics.alignment import Reading, came_behind, candidates, deviants, expect, fewer_by, fits_later, read_divergence
from nccl_forensics.facts.collective_kernels import REDUCTIONS
from nccl_forensics.frames import typed
from nccl_forensics.values.damage import one_bit
from nccl_forensics.values.ranklist import as_ranks
from nccl_forensics.values.shapes import elements
from nccl_forensics.views import view
from nccl_forensics.views.calls import OPERATIONS, Calls, calls_of, placed, with_sized
from nccl_forensics.views.columns import GROUP, read_at
from nccl_forensics.views.doubts import Row, counted, followed, holed, in_step, moved_alike, repeated, shifted, unheard_of
from nccl_forensics.views.group_calls import AFTER, ONE_SIDED, ByRank, CallLine, PartedGroup, groups_around, signature, whole
from nccl_forensics.views.habits import by_habit
from nccl_forensics.views.nccl_calls import BY_SIZE

DIVERGENCES = typed(
    "domain:str",
    GROUP,
    "comm_id:str kind:str seq:i64 ranks:list[i32] others:list[i32] expected_op:str expected_detail:str found_op:str found_detail:str",
    "skipped:i32 sure:bool in_place:bool why:str doubt:str call_site:str peer_call_site:str",
    read_at(),
    read_at("peer_"),
    "later_seqs:i64 last_seq:i64",
)

#: So many positions in a row that no rank recorded: more are the beginning of what recorders kept.
_UNRECORDED = 4
#: The domain of calls that torch compared before it made them.
_COMPARED = "detail"
#: Ranks of one group whose logs may be damaged before the group is given up.
_MOST_DAMAGED = 16


@view(rows="groups")
def divergences(operations: pl.LazyFrame | Calls) -> pl.LazyFrame:
    """The first disagreement of each group: ``kind`` is skipped, different, extra, shape, dtype or argument; ``ranks`` deviate from
    ``others``; ``doubt`` says what else would look the same. Cites the deviant's operation (``source_id`` …) and a peer's
    (``peer_source_id`` …).

    A log that by its own opCount lacks a line, or holds one twice, is no witness: the first disagreement of the others is looked for."""
    calls = calls_of(operations)
    rows: list[dict[str, object]] = []
    for _ in range(_MOST_DAMAGED):
        found, damaged = _first_of_each(calls)
        rows += found
        if not damaged:
            break
        bad = pl.LazyFrame(damaged, schema={c: OPERATIONS[c] for c in ("domain", "group_key", "rank")}, orient="row")
        rest = calls.every.join(bad, on=["domain", "group_key"], how="semi").join(bad, on=["domain", "group_key", "rank"], how="anti")
        calls = Calls.of(rest, calls.counts)
    settled = [by_habit(row, calls.every) if row["domain"] == _COMPARED and not row["sure"] else row for row in rows]
    return pl.DataFrame(settled, schema=DIVERGENCES, infer_schema_length=None).lazy()


def _first_of_each(calls: Calls) -> tuple[list[dict[str, object]], list[tuple[str, str, int]]]:
    """The first disagreement of each group, or else the ranks whose logs are damaged there (domain, group, rank)."""
    sized = pl.col("sized")
    typed = ~pl.col("op").is_in(ONE_SIDED)
    # The calls of a batch share a position; they are compared by the first.
    one_call = (pl.col("seq") != pl.col("seq").shift(1).over("domain", "group_key", "rank")).fill_null(value=True)
    per_seq = (
        with_sized(calls.apart.filter(placed()).filter(one_call), calls.counts)
        .group_by("domain", "group_key", "seq")
        .agg(
            pl.col("op").n_unique().alias("ops"),
            pl.col("shape").filter(sized).drop_nulls().n_unique().alias("shapes"),
            pl.col("dtype").filter(typed).drop_nulls().n_unique().alias("dtypes"),
            pl.col("red_op").drop_nulls().n_unique().alias("red_ops"),
            pl.col("root").drop_nulls().n_unique().alias("roots"),
            pl.col("rank").n_unique().alias("n"),
        )
    )
    odd = (pl.col("ops") > 1) | (pl.col("shapes") > 1) | (pl.col("dtypes") > 1) | (pl.col("red_ops") > 1) | (pl.col("roots") > 1)
    first = (
        per_seq.filter((pl.col("n") > 1) & odd)
        .group_by("domain", "group_key")
        .agg(pl.col("seq").min().alias("at"), pl.len().alias("later_seqs"))
        .sort("domain", "group_key")
        .collect()
    )
    rows: list[dict[str, object]] = []
    damaged: list[tuple[str, str, int]] = []
    for group in sorted(groups_around(calls, first), key=lambda group: (str(group.base["domain"]), str(group.base["group_key"]))):
        row, bad = _read_group(group)
        damaged += [(str(group.base["domain"]), str(group.base["group_key"]), rank) for rank in bad]
        if row is not None and not bad:
            rows.append(row)
    return _with_records(rows, calls), damaged


#: In place of a record, the number of its row.
_RECORDS = ("record", "peer_record")


def _with_records(rows: list[dict[str, object]], calls: Calls) -> list[dict[str, object]]:
    """The same with the records of entries that are told by the numbers of their rows."""
    numbers = [number for row in rows for name in _RECORDS if isinstance(number := row[name], int)]
    if calls.recorded is None or not numbers:
        return rows
    known = dict(calls.recorded.named(pl.Series(numbers, dtype=pl.UInt32())).select("row", "record").collect().iter_rows())
    return [row | {name: known[number] for name in _RECORDS if isinstance(number := row[name], int)} for row in rows]


def _read_group(group: PartedGroup) -> tuple[dict[str, object] | None, list[int]]:
    """The disagreement, and the ranks whose logs are damaged where it is seen."""
    at, by_rank = group.at, group.by_rank
    told = _disagreement(group)
    if told is None or (
        told["kind"] in _MISSED and told["domain"] == "nccl" and all(r["done"] for r in by_rank[as_ranks(told["ranks"])[0]].values())
    ):
        return None, []  # a communicator that was taken down in order has no call left that somebody missed
    odd, peers = as_ranks(told["ranks"]), as_ranks(told["others"])
    if told["domain"] == "nccl":
        theirs = _called(by_rank[peers[0]], at, told["skipped"])
        left_out = {r: counted(by_rank[r], at, theirs, signature) for r in odd}
        bad = _damaged(by_rank, left_out, peers, at, told["skipped"])
        return told | {"doubt": None if bad else _doubt_lines(told, by_rank, left_out, peers, at)}, bad
    return told | {"doubt": _doubt_records(told, by_rank, odd, peers, at)}, []


_MISSED = ("skipped", "different", "extra")


def _damaged(
    by_rank: Mapping[int, Mapping[int, Row]], left_out: Mapping[int, bool | None], peers: Sequence[int], at: int, skipped: object
) -> list[int]:
    """Ranks whose own opCount says that a line is missing or doubled just before ``at``; ``left_out``: what those of the odd ones
    ``counted``."""
    twice = [r for r in (*left_out, *peers) if repeated(by_rank[r], at, signature)]
    lost = [r for r, told in left_out.items() if told is False and not moved_alike(by_rank[r], [by_rank[p] for p in peers], at)]
    # Of two alone either may be the one that lacks a line.
    if len(left_out) >= len(peers):
        ours = _called(by_rank[next(iter(left_out))], at, skipped)
        theirs = [by_rank[r] for r in left_out]
        lost += [r for r in peers if counted(by_rank[r], at, ours, signature) is False and not moved_alike(by_rank[r], theirs, at)]
    return sorted({*twice, *lost})


def _called(line: Mapping[int, Row], at: int, skipped: object) -> list[Hashable]:
    return [signature(line[n]) for n in range(at, at + (int(str(skipped)) if skipped else 1)) if n in line]


_LOST = "a lost or doubled line would look the same"
_MOVED = "a line lost or out of place would look the same"
_BIT = "a flipped bit would look the same"
_BY_SIZE = "no line tells how the communicator was made: that these processes share it is told by its size"
_EXTRA = "a call made once too often would look the same"
_HOLE = "the recorder's own numbers are not in order here"


def _doubt_lines(
    told: Mapping[str, object],
    by_rank: Mapping[int, Mapping[int, Row]],
    left_out: Mapping[int, bool | None],
    peers: Sequence[int],
    at: int,
) -> str | None:
    """What else would look the same in logs of lines that we count; ``left_out`` as above."""
    if str(told["group_key"]).startswith(BY_SIZE):
        return _BY_SIZE
    if told["kind"] in ("skipped", "extra"):
        if told["kind"] == "skipped":
            proved = all(left_out.values())
        else:
            proved = all(followed(by_rank[r], n, signature) for r in left_out for n in (at, at + 1))
        firm = proved and (len(peers) > len(left_out) or all(followed(by_rank[r], at, signature) for r in peers))
        return None if firm else _LOST
    if told["kind"] != "different" and one_bit(_bare(told["found_detail"]), _bare(told["expected_detail"])):
        return _BIT
    lines = [by_rank[p] for p in peers]
    for rank in left_out:
        own = by_rank[rank]
        in_place = in_step(own, lines, at, whole) and not shifted(own, lines[0], at, whole)
        if not in_place and not unheard_of(own[at], by_rank, rank, at, whole):
            return _MOVED
    return None


def _doubt_records(
    told: Mapping[str, object], by_rank: Mapping[int, Mapping[int, Row]], odd: Sequence[int], peers: Sequence[int], at: int
) -> str | None:
    """What else would look the same in records that bear numbers of their own."""
    if any(holed(by_rank[r], at) for r in odd) or (len(odd) >= len(peers) and any(holed(by_rank[r], at) for r in peers)):
        return _HOLE
    if told["kind"] == "skipped" and told["skipped"] is None:
        return _EXTRA
    if any(line[at]["state"] == "detail-mismatch" for line in by_rank.values() if at in line):
        return None  # torch itself compared the calls
    found, expected = str(told["found_detail"]), str(told["expected_detail"])
    if told["kind"] in ("shape", "dtype", "argument") and one_bit(found, expected):
        # What a call brings and what it takes away are written apart: both would have to be damaged.
        out = {str(by_rank[r][at]["out_shape"]) for r in peers}
        if told["kind"] != "shape" or any(str(by_rank[r][at]["out_shape"]) in out for r in odd):
            return _BIT
    return None


def _disagreement(group: PartedGroup) -> dict[str, object] | None:
    at, by_rank = group.at, group.by_rank
    here = {rank: seqs[at] for rank, seqs in by_rank.items() if at in seqs}
    history = _history(by_rank, at)
    base = group.base | {"seq": at}
    # Which aspect differs first: the operation itself, its type, its size, its other arguments.
    foretold = candidates(history)
    # Steps that are not all alike may foretell two operations: neither tells then who of two is right.
    foretold = foretold if len(foretold) == 1 or history else candidates(_gone_on_with(by_rank, at)[::-1])
    signatures = {rank: signature(row) for rank, row in here.items()}
    if len(foretold) > 1:
        foretold = [call for call in foretold if call in signatures.values()]
    foretold = foretold if len(foretold) == 1 else []
    odd, right, certain = deviants(signatures, foretold[0] if foretold else None, len(by_rank))
    ops = {rank: row["op"] for rank, row in here.items()}
    if len(set(ops.values())) > 1:
        odd = tuple(r for r in odd if ops[r] != right[0]) if isinstance(right, tuple) else odd
        peers = [r for r in sorted(here) if signatures[r] == right]
        return _different_op(group, base, history, odd, peers, certain)
    for kind, name in (("dtype", "dtype"), ("shape", "shape"), ("argument", "red_op"), ("argument", "root")):
        values: dict[int, Hashable] = {r: str(row[name]) for r, row in here.items() if row[name] is not None}
        if len(set(values.values())) < 2:
            continue
        at_its_line = _usual_at_its_line(by_rank, at, name, here)
        earlier: Hashable | None = next(iter(at_its_line)) if len(at_its_line) == 1 else None
        if earlier not in values.values() and foretold and isinstance(foretold[0], tuple) and foretold[0][0] in ops.values():
            # A line that makes calls of several sizes, such as that of a reducer, tells no size: their order does.
            earlier = dict(zip(("op", "shape", "dtype"), foretold[0], strict=True)).get(name)
        if earlier not in values.values() and not at_its_line:
            earlier = _usual_behind_the_same(by_rank, at, name, here)
        odd, right, certain = deviants(values, earlier, len(by_rank))
        peers = [r for r in sorted(values) if values[r] == right]
        # A jump may land on the same operation with another size or type: ask the alignment before calling it a wrong argument.
        if kind in ("shape", "dtype"):
            jump = _jumped(group, history, odd, peers)
            if not certain and len(values) == 2:
                odd, peers, jump = _one_that_jumped(group, history, (odd, peers, jump))
                certain = jump is not None
            if jump is not None and certain:
                return _row(base, "skipped", by_rank, odd, peers, at, jump.skipped, jump.sure, jump.why)
            if certain and (once_more := _went_on_as_peers(group, history, odd, peers)) is not None:
                return _row(base, "extra", by_rank, odd, peers, at, None, True, once_more.why)
            if certain and _made_next(group, history, odd, peers):
                why = "its next operation, of which no more is recorded, is the one that its peers do 1 later"
                return _row(base, "skipped", by_rank, odd, peers, at, 1, False, why)
            if certain and _from_its_own_line(group, odd, peers):
                theirs, own = _longest(by_rank, peers, at), _line(by_rank[odd[0]], at)
                reading = read_divergence(history, theirs, own)
                if reading.kind == "different" and reading.sure and len(own) > 1 and not fits_later(history, theirs, own):
                    return _row(base, "different", by_rank, odd, peers, at, None, True, reading.why)
                why = f"its next operation is the one that is called at {here[odd[0]]['call_site']}, as before; its peers call theirs elsewhere"
                return _row(base, "skipped", by_rank, odd, peers, at, None, True, why)
            if kind == "shape" and jump is None and len({_elements(str(value)) for value in values.values()}) == 1:
                continue  # as many elements in another shape: nothing that is sent or reduced differs
        if kind == "argument" and certain and (fewer := _fewer(by_rank, odd, peers, at)):
            why = f"its calls from here on, arguments and all, are those that its peers do {fewer} later"
            return _row(base, "skipped", by_rank, odd, peers, at, fewer, False, why)
        label = {"red_op": "reduce op", "root": "root"}.get(name, name)
        told = [_detail(here[rank], name) for rank in (odd[0], peers[0])]
        return _row(base, kind, by_rank, odd, peers, at, None, certain, f"{label} {told[0]} against {told[1]}", name)
    return None


def _gone_on_with(by_rank: ByRank, at: int) -> list[Hashable]:
    """What all of them called after ``at``, in one order: where nothing before it is kept, it tells what leads up to such calls."""
    lines = [_line(line, at + 1) for line in by_rank.values() if at in line]
    shortest = min(lines, key=len, default=[])
    return shortest if all(line[: len(shortest)] == shortest for line in lines) else []


def _fewer(by_rank: ByRank, odd: Sequence[int], peers: Sequence[int], at: int) -> int | None:
    longest = max(peers, key=lambda rank: by_rank[rank].run(at, 1))
    lines = [tuple(whole(by_rank[r][n]) for n in range(at, at + by_rank[r].run(at, 1))) for r in (*odd, longest)]
    return fewer_by(lines[0], lines[-1]) if len(set(lines[:-1])) == 1 and len(lines[-1]) <= AFTER else None


def _elements(shapes: str) -> object:
    """The number of elements of one tensor (``[[6,8]]``, ``[48]`` or, in NCCL's logs, ``48``); the shapes as they stand where there are
    several."""
    found = elements(shapes)
    return found[0] if len(found) == 1 else shapes


def _history(by_rank: ByRank, at: int) -> list[Hashable]:
    """What all did before: the longest contiguous run of one rank that ends just before ``at``. Positions that nobody recorded do not end
    it: a monitored barrier takes numbers and leaves no record."""
    longest = max(sorted(by_rank), key=lambda rank: by_rank[rank].run(at - 1, -1))
    line = by_rank[longest]
    history: list[Hashable] = []
    end = at
    while length := line.run(end - 1, -1):
        history[:0] = [signature(line[n]) for n in range(end - length, end)]
        end -= length
        passed = 0
        while passed < _UNRECORDED and end - 1 not in line and not any(end - 1 in other for other in by_rank.values()):
            end, passed = end - 1, passed + 1
    return history


def _usual_at_its_line(by_rank: ByRank, at: int, name: str, here: Mapping[int, Row]) -> set[str]:
    """The arguments that the same calls had before at the same lines of code, for ties. Where they call from lines of which each had an
    argument of its own, that tells nothing."""
    told: set[str] = set()
    for rank, own in sorted(here.items()):
        if own["call_site"] is None:
            continue
        line = by_rank[rank]
        alike = (line[s] for s in sorted((s for s in line if s < at), reverse=True))
        same = (r[name] for r in alike if (r["call_site"], r["op"]) == (own["call_site"], own["op"]) and r[name] is not None)
        told |= {str(value) for value in [next(same, None)] if value is not None}
    return told


def _usual_behind_the_same(by_rank: ByRank, at: int, name: str, here: Mapping[int, Row]) -> Hashable | None:
    """The argument that the same operation had where it last followed the same operation: what is left to tell where neither lines of code
    nor the steps before do."""
    for rank in sorted(here):
        seqs, op = by_rank[rank], here[rank]["op"]
        before = seqs.get(at - 1)
        for seq in sorted((s for s in seqs if s < at), reverse=True):
            row, previous = seqs[seq], seqs.get(seq - 1)
            same_place = (previous["op"] if previous else None) == (before["op"] if before else None)
            if row["op"] == op and same_place and row[name] is not None:
                return str(row[name])
    return None


def _line(line: CallLine, at: int) -> list[Hashable]:
    return [signature(line[n]) for n in range(at, at + line.run(at, 1))]


def _longest(by_rank: ByRank, ranks: Sequence[int], at: int) -> list[Hashable]:
    """What is called from ``at`` on, by the first of these ranks that goes on longest."""
    return _line(by_rank[max(ranks, key=lambda rank: by_rank[rank].run(at, 1))], at)


def _jumped(group: PartedGroup, history: Sequence[Hashable], odd: Sequence[int], peers: Sequence[int]) -> Reading | None:
    at, by_rank = group.at, group.by_rank
    own = _line(by_rank[odd[0]], at)
    peer = _longest(by_rank, peers, at)
    reading = read_divergence(history, peer, own)
    if reading.kind != "skipped" or not reading.sure or len(own) + len(history) < 2:
        return None
    here, there = by_rank[odd[0]][at], by_rank[peers[0]][at]
    # At the same line of code it is the same call, unless that line is where calls of its size are made.
    same_line = here["call_site"] is not None and here["call_site"] == there["call_site"] and len(own) < 3
    return None if same_line and here["call_site"] not in group.sites(odd[0]) else reading


def _went_on_as_peers(group: PartedGroup, history: Sequence[Hashable], odd: Sequence[int], peers: Sequence[int]) -> Reading | None:
    """How to read the odd call where all that the ranks called behind it is all that their peers have called from it on: it is one more, and
    no call of another size or type."""
    theirs = _longest(group.by_rank, peers, group.at)
    lines = [_line(group.by_rank[r], group.at) for r in odd]
    reading = read_divergence(history, theirs, lines[0])
    return reading if reading.kind == "extra" and reading.sure and all(line[1:] == theirs for line in lines) else None


def _made_next(group: PartedGroup, history: Sequence[Hashable], odd: Sequence[int], peers: Sequence[int]) -> bool:
    """Whether nothing is kept before, the odd ranks have made no call since, and the one that they made is what their peers, who wait
    as well, call right after: a wrong size or type would be that one by chance alone."""
    at, by_rank = group.at, group.by_rank
    theirs = _longest(by_rank, peers, at)
    return not history and all(_line(by_rank[r], at) == theirs[1:2] for r in odd)


_Sides = tuple[tuple[int, ...], list[int], Reading | None]


def _one_that_jumped(group: PartedGroup, history: Sequence[Hashable], sides: _Sides) -> _Sides:
    """Of two that differ the one whose next operations are on record of the other, behind calls that both made in the steps before."""
    odd, peers, _ = sides
    found: list[_Sides] = []
    for ours, theirs in ((odd, peers), (tuple(peers), list(odd))):
        jump = _jumped(group, history, ours, theirs)
        left_out = _line(group.by_rank[theirs[0]], group.at)[: jump.skipped] if jump is not None else []
        if jump is not None and jump.seen and all(operation in history for operation in left_out):
            found.append((ours, theirs, jump))
    return found[0] if len(found) == 1 else (odd, peers, None)


def _from_its_own_line(group: PartedGroup, odd: Sequence[int], peers: Sequence[int]) -> bool:
    """Whether the odd ranks call, from a line of the program from which none of their peers calls here, what is called from that line
    otherwise too: such a call has no other size or type than it should, it is another call."""
    lines = {group.by_rank[r][group.at]["call_site"] for r in odd}
    theirs = {group.by_rank[r][group.at]["call_site"] for r in peers}
    return None not in lines | theirs and not lines & theirs and lines <= group.sites(odd[0])


def _first_step(history: Sequence[Hashable], own: Hashable) -> bool:
    """Whether less than a step is kept before: nothing is foretold, or only that a run of calls, none of them like this one, goes on."""
    return expect(history, 1) in ([], [call for call in history[-1:] if call != own])


def _goes_on(group: PartedGroup, rank: int, peer_line: Sequence[Hashable]) -> bool:
    """Whether a rank did more after its odd call, and that was not what its peers did after theirs."""
    own = _line(group.by_rank[rank], group.at)
    return len(own) > 1 and own[1] not in peer_line[1:2]


def _different_op(
    group: PartedGroup, base: dict[str, object], history: Sequence[Hashable], odd: Sequence[int], peers: Sequence[int], certain: bool
) -> dict[str, object]:
    at, by_rank = group.at, group.by_rank
    peer_line = _longest(by_rank, peers, at)
    readings = {r: read_divergence(history, peer_line, _line(by_rank[r], at)) for r in odd}
    reading = readings[odd[0]]
    kind = reading.kind
    own = by_rank[odd[0]][at]
    # Who went on stands where its peers will: a line of the program that no call like it came from before is one more, in place of theirs.
    lines = group.sites(odd[0]) if kind == "skipped" and certain and own["call_site"] is not None else set()
    if lines and None not in lines and own["call_site"] not in lines:
        why = f"{own['op']} at {own['call_site']}, a line from which nobody had called it before; its peers call it elsewhere"
        return _row(base, "different", by_rank, odd, peers, at, None, certain, why)
    goes_on = _goes_on(group, odd[0], peer_line) or came_behind(history, peer_line[0], signature(own))
    goes_on |= by_rank[odd[0]].run(at, 1) == 1 and signature(own) in candidates(history)[:1]  # the steps before foretell that call
    line = _line(by_rank[odd[0]], at)
    goes_on &= line[1:2] != peer_line[:1] or fits_later(history, peer_line, line)  # who makes their call next made the two the other way
    if kind == "different" and certain and goes_on and _from_its_own_line(group, odd, peers):
        why = f"it goes on with what is called at {own['call_site']}, as before; its peers call something else elsewhere"
        return _row(base, "skipped", by_rank, odd, peers, at, None, True, why)
    if (
        kind == "different"
        and certain
        and signature(own) in history
        and peer_line[0] not in history
        and _first_step(history, signature(own))
    ):
        # What comes again was made in its turn, as it seems, and not in place of another.
        why = "what it called had been called before, and what its peers call had not: it is in its next step, as it seems"
        return _row(base, "skipped", by_rank, odd, peers, at, None, False, why)
    # Without a majority, the reading that sees a jump on one side only tells who skipped.
    if not certain and len(peers) >= 1:
        own_line = _longest(by_rank, odd, at)
        reverse = read_divergence(history, own_line, peer_line)
        if reading.kind != "skipped" and reverse.kind == "skipped" and reverse.sure:
            return _row(base, "skipped", by_rank, peers, odd, at, reverse.skipped, len(history) >= 2, reverse.why)
        # Nothing kept before tells a call that only one side made, and the other may have to make, from one that it made once too often.
        certain = reading.kind == "skipped" and reverse.kind != "skipped" and reading.sure and bool(history)
    sure = reading.sure or (kind == "different" and _of_the_same_tensor(own, by_rank[peers[0]][at]))
    return _row(base, kind, by_rank, odd, peers, at, reading.skipped, certain and sure, reading.why)


#: Elements of a tensor of which two calls that have nothing to do with each other seldom have as many.
_MANY = 16


def _of_the_same_tensor(own: Row, theirs: Row) -> bool:
    """Whether two calls of different operations are for tensors of one size and type, as where one stands in place of the other."""
    size = _elements(str(own["shape"]))
    alike = own["shape"] is not None and (own["shape"], own["dtype"]) == (theirs["shape"], theirs["dtype"])
    return alike and isinstance(size, int) and size >= _MANY


def _row(
    base: dict[str, object],
    kind: str,
    by_rank: ByRank,
    odd: Sequence[int],
    peers: Sequence[int],
    at: int,
    skipped: int | None,
    sure: bool,
    why: str,
    detail: str = "shape",
) -> dict[str, object]:
    own, peer = by_rank[odd[0]][at], by_rank[peers[0]][at]
    return base | {
        "kind": kind,
        "ranks": list(odd),
        "others": list(peers),
        "expected_op": peer["op"],
        "expected_detail": _detail(peer, detail),
        "found_op": own["op"],
        "found_detail": _detail(own, detail),
        "skipped": skipped,
        "sure": sure,
        "why": why,
        "call_site": own["call_site"],
        "peer_call_site": peer["call_site"],
        "source_id": own["source_id"],
        "line_no": own["line_no"],
        "record": own["record"],
        "peer_source_id": peer["source_id"],
        "peer_line_no": peer["line_no"],
        "peer_record": peer["record"],
    }


def _detail(row: Row, name: str) -> str | None:
    value = row[name]
    word = REDUCTIONS.get(value) if name == "red_op" and isinstance(value, int) else None
    return None if value is None else f"{value} ({word})" if word else str(value)


def _bare(detail: object) -> str:
    """A detail as it is written in the evidence."""
    return str(detail).partition(" (")[0]
