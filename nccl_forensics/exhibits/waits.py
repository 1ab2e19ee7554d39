"""Who waits for whom, across process groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nccl_forensics.drawings.waits import Box, graph
from nccl_forensics.exhibits.base import Block, Drawing, Item, Report, operation_text, ranks_text, table, where_text
from nccl_forensics.extras import Extras, Wait
from nccl_forensics.plain import plain
from nccl_forensics.presentation.case import run_of
from nccl_forensics.presentation.mapping import part, text
from nccl_forensics.values.units import iso
from nccl_forensics.words import rank_list, sentence, verb

#: Rows of the table, boxes of a column and columns of the drawing.
EDGES, TALL, WIDE = 60, 6, 4
#: Characters of the name of a box.
_NAME = 26


def build(report: Report, extras: Extras) -> tuple[Block, ...]:
    """The graph, its end at the right, and every edge with its reason."""
    waits = extras.waits
    moving = _motion(extras, goes_on=_goes_on(report))
    if not waits:
        return moving
    said = statement(waits)
    waiting = {r for w in waits for r in w.waiting}
    ordered = sorted(waits, key=lambda w: not w.waited_for or bool(waiting & set(w.waited_for)))
    body = []
    for wait in ordered[:EDGES]:
        final = bool(wait.waited_for) and not waiting & set(wait.waited_for)
        where = " of ".join(t for t in (operation_text(wait.op, wait.seq), plain(wait.group, 80)) if t)
        target = Item(ranks_text(wait.waited_for), "state" if final else "text", "culprit" if final else "")
        body.append((Item(ranks_text(wait.waiting)), target, Item(where, "code" if where else "text"), Item(plain(wait.why, 300))))
    edges = table(
        "Who waits for whom",
        ("Waiting", "For", "In", "How it is known"),
        body,
        len(waits) - EDGES if len(waits) > EDGES else 0,
        folded=True,
    )
    legend = (("waiting", "waiting"), ("culprit", "waits for nobody that is known"))
    return (Block(said, drawing=Drawing("Who waits for whom", _graph(waits, said), legend), tables=(edges,)), *moving)


def _goes_on(report: Report) -> bool:
    """Whether the run that the verdict is about was slow or well: a rank that stood where it was at each look is not stuck there."""
    return text(run_of(part(report, "case"), part(report, "verdict")), "outcome") in ("slow", "finished")


def _motion(extras: Extras, *, goes_on: bool) -> tuple[Block, ...]:
    """Which ranks move, which are stuck and since when; of a job in which nobody waits, only if something was looked at twice."""
    told = [m for m in extras.motions if m.motion != "unknown"]
    if not told and not (extras.waits and extras.motions):
        return ()
    stuck = sorted({r for m in told if m.motion == "stuck" for r in m.ranks})
    moves = sorted({r for m in told if m.motion == "moving" for r in m.ranks})
    stands = ("stood where it was at each look", "stood where they were at each look") if goes_on else ("is stuck", "are stuck")
    parts = [f"{ranks_text(r)} {verb(r, one, many)}" for r, one, many in ((stuck, *stands), (moves, "moves", "move")) if r]
    body = []
    for m in extras.motions[:EDGES]:
        since = " to ".join(dict.fromkeys(iso(t) or "" for t in (m.since, m.until) if t is not None))
        limit = f"{m.timeout_ms / 1000:g} s" if m.timeout_ms else ""
        late = f"{m.waited_ms / 1000:,.0f} s" if m.waited_ms else ""
        cite = where_text(m.path, m.line, m.record) if m.path else ""
        body.append(
            (
                Item(ranks_text(m.ranks)),
                Item(m.motion, "state", {"stuck": "waiting", "moving": "completed"}.get(m.motion, "")),
                Item(since if m.motion != "moving" else ""),
                Item(limit),
                Item(late),
                Item(plain(m.why, 200)),
                Item(cite, "where" if cite else "text"),
            )
        )
    columns = ("Ranks", "State", "No progress since", "Timeout in force", "Waited", "How it is known", "Evidence")
    rows = table("Which ranks move", columns, body, max(0, len(extras.motions) - EDGES), folded=True)
    if goes_on and stuck:
        parts.append("the job went on all the same")
    said = sentence("; ".join(parts)) + "." if parts else "No rank was looked at twice: which of them still move is not known."
    return (Block(said, tables=(rows,)),)


def statement(waits: Sequence[Wait]) -> str:
    """Where the waiting ends."""
    targets = {r for w in waits for r in w.waited_for}
    waiting = {r for w in waits for r in w.waiting}
    alone = sorted(targets - waiting)
    who = ranks_text(waiting).capitalize()
    if not targets:
        return f"{who} {verb(waiting, 'waits', 'wait')}; for whom is not known."
    if alone:
        return f"{who} {verb(waiting, 'waits', 'wait')} for {ranks_text(alone)}, of which no wait is known."
    return f"{who} wait for each other: the waiting has no outside end."


def _graph(waits: Sequence[Wait], said: str) -> str:
    """Ranks that take part in the same waits on the same side are one box; what does not fit is folded into one box of its column."""
    roles: dict[int, list[tuple[int, str]]] = {}
    for n, wait in enumerate(waits):
        for rank in wait.waiting:
            roles.setdefault(rank, []).append((n, "waits"))
        for rank in wait.waited_for:
            roles.setdefault(rank, []).append((n, "awaited"))
    atoms: dict[tuple[tuple[int, str], ...], list[int]] = {}
    for rank in sorted(roles):
        atoms.setdefault(tuple(roles[rank]), []).append(rank)
    members = list(atoms.items())
    atom_of = {rank: n for n, (_, own) in enumerate(members) for rank in own}
    edges = sorted({(a, b) for w in waits for a in {atom_of[r] for r in w.waiting} for b in {atom_of[r] for r in w.waited_for} if a != b})
    names, parts = _fold([own for _, own in members], edges)
    boxes = []
    for name, own in zip(names, parts, strict=True):
        doing = [waits[n] for atom in own for n, role in members[atom][0] if role == "waits"]
        boxes.append(Box(name, _doing(doing), "waiting" if doing else "culprit"))
    box_of = {atom: n for n, own in enumerate(parts) for atom in own}
    arrows = sorted({(box_of[a], box_of[b]) for a, b in edges if box_of[a] != box_of[b]})
    return graph(boxes, arrows, said)


def _called(ranks: Sequence[int]) -> str:
    """``rank 3``, ``ranks 0, 2, 6``, ``224 ranks: 1-7, 129-135, …``: what fits a box."""
    ranges = rank_list(ranks, 1 << 30).split(", ")
    whole = f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(ranges)}"
    return whole if len(whole) <= _NAME else f"{len(ranks):,} ranks: {', '.join(ranges[:2])}, …"


def _doing(waits: Sequence[Wait]) -> tuple[str, ...]:
    """The operation and its group that a box waits in; the first where it is several."""
    if not waits:
        return ("no wait of its own is known",)
    distinct = list(dict.fromkeys((operation_text(w.op, w.seq), plain(w.group, 80)) for w in waits))
    op, place = distinct[0]
    more = f" and {len(distinct) - 1} more" if len(distinct) > 1 else ""
    return (f"in {op}" if op else "waits", f"{place}{more}".strip())


def _fold(members: Sequence[Sequence[int]], edges: Sequence[tuple[int, int]]) -> tuple[list[str], list[list[int]]]:
    """Boxes by their distance from the end: the largest of each distance alone, the rest of it together."""
    distance = _distances(len(members), edges)
    names: list[str] = []
    parts: list[list[int]] = []
    for column in sorted(set(distance.values())):
        own = sorted((n for n, d in distance.items() if d == column), key=lambda n: (-len(members[n]), members[n][0]))
        alone = own if len(own) <= TALL else own[: TALL - 1]
        for n in sorted(alone, key=lambda n: members[n][0]):
            names.append(_called(members[n]))
            parts.append([n])
        rest = [n for n in own if n not in alone]
        if rest:
            names.append(f"{sum(len(members[n]) for n in rest):,} ranks in {len(rest):,} more classes")
            parts.append(rest)
    return names, parts


def _distances(count: int, edges: Sequence[tuple[int, int]]) -> Mapping[int, int]:
    """Steps to a box that waits for nobody, capped at the columns that fit; boxes of a circle are at most so far."""
    out: dict[int, set[int]] = {n: set() for n in range(count)}
    for a, b in edges:
        out[a].add(b)
    distance = {n: 0 for n in range(count) if not out[n]}
    if not distance:
        return {n: n % WIDE for n in range(count)}
    for step in range(1, WIDE):
        near = [n for n in range(count) if n not in distance and any(distance.get(m) == step - 1 for m in out[n])]
        distance |= dict.fromkeys(near, step)
    return {n: distance.get(n, WIDE - 1) for n in range(count)}
