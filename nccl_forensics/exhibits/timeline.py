"""The divergence timeline: what each class of ranks called at each position of a group."""

from __future__ import annotations

from dataclasses import replace

from nccl_forensics.drawings import timeline as drawing
from nccl_forensics.drawings.svg import CELL_WORDS, legend
from nccl_forensics.exhibits.base import Block, Drawing, Item, Report, ranks_text, table, where_text
from nccl_forensics.extras import Cell, Extras, GroupTimeline, TimelineRow
from nccl_forensics.plain import plain
from nccl_forensics.words import sentence, verb

#: Groups that are drawn, rows of a drawing, columns of a table.
GROUPS, ROWS, COLUMNS = 4, 16, 9


def build(report: Report, extras: Extras) -> tuple[Block, ...]:
    """One block for each group, those that part first."""
    ordered = sorted(extras.timeline, key=lambda t: t.first_divergence is None)
    blocks = [_block(_cut(t), t) for t in ordered[:GROUPS]]
    rest = len(ordered) - GROUPS
    if rest > 0:
        blocks.append(Block(more=f"… and {rest:,} more groups, in tables/."))
    return tuple(blocks)


def main_timeline(extras: Extras) -> GroupTimeline | None:
    """The group whose divergence a first screen shows, cut to its telling rows."""
    first = next((t for t in extras.timeline if t.first_divergence in t.columns), None)
    return _cut(first) if first else None


def _cut(timeline: GroupTimeline) -> GroupTimeline:
    """The rows that differ first, in their order."""
    kept = sorted(timeline.rows, key=lambda r: not any(c.state in ("diverged", "missing") for c in r.cells))[:ROWS]
    rows = tuple(r for r in timeline.rows if r in kept)
    return replace(timeline, rows=rows)


def _block(drawn: GroupTimeline, whole: GroupTimeline) -> Block:
    name = _name(whole)
    comm = plain(whole.comm_id, 60)
    facts = [f"{whole.size:,} ranks" if whole.size is not None else "", f"communicator {comm}" if comm and comm not in name else ""]
    said = ", ".join(f for f in facts if f)
    title = sentence(name) + (f": {said}" if said else "")
    text = statement(whole)
    columns = drawing.around(drawn, COLUMNS // 2, COLUMNS)
    body = []
    for row in drawn.rows:
        cells = [drawing.cell_of(drawn, row, c) for c in columns]
        cite = _cite(row, drawn)
        body.append(
            (Item(ranks_text(row.ranks)), Item(plain(row.host, 60)), *(_item(c) for c in cells), Item(cite, "where" if cite else "text"))
        )
    caption = f"Operations of {name} by sequence number"
    rows = table(caption, ("Ranks", "Host", *(f"#{c}" for c in columns), "Evidence"), body, len(whole.rows) - len(drawn.rows), folded=True)
    marks = legend((c.state for r in drawn.rows for c in r.cells), CELL_WORDS)
    return Block(text, title, Drawing(title, drawing.timeline(drawn, text), marks), tables=(rows,))


def _name(timeline: GroupTimeline) -> str:
    """The group as it is given, where that says already what it is; else description and name."""
    group, desc = plain(timeline.group, 60), plain(timeline.desc, 60)
    if group.startswith(("process group", "communicator", "group")):
        return group
    return f"process group {desc} ({group})" if desc and desc != group else f"process group {group}"


def _item(cell: Cell) -> Item:
    name, word = " ".join(t for t in (plain(cell.text, 60), f"at {plain(cell.site, 80)}" if cell.site else "") if t), CELL_WORDS[cell.state]
    return Item(f"{name} ({word})" if name else word, "state", cell.state)


def _cite(row: TimelineRow, timeline: GroupTimeline) -> str:
    """Where the row's cell at the divergence stands, else the last cell that stands anywhere."""
    if timeline.first_divergence in timeline.columns:
        cell = drawing.cell_of(timeline, row, timeline.first_divergence or 0)
        if cell.path:
            return where_text(cell.path, cell.line, cell.record)
    return next((where_text(c.path, c.line, c.record) for c in reversed(row.cells) if c.path), "")


def statement(timeline: GroupTimeline) -> str:
    """What happened at the divergence, in one sentence."""
    if timeline.first_divergence not in timeline.columns:
        return "No divergence is seen in the operations that were recorded."
    by_state: dict[tuple[str, str], list[int]] = {}
    for row in timeline.rows:
        cell = drawing.cell_of(timeline, row, timeline.first_divergence or 0)
        by_state.setdefault((cell.state, plain(cell.text, 60)), []).extend(row.ranks)
    phrases = {
        "diverged": "{who} called {op} instead",
        "waiting": "{who} {wait} in {op}",
        "completed": "{who} completed {op}",
        "missing": "{who} never entered it",
        "unknown": "of {who} nothing is recorded",
    }
    order = ("waiting", "diverged", "missing", "completed", "unknown")
    said = [
        phrases[state].format(who=ranks_text(numbers), op=op or "an operation", wait=verb(numbers, "waits", "wait"))
        for (state, op), numbers in sorted(by_state.items(), key=lambda item: (order.index(item[0][0]), item[1]))
    ]
    shown = said[:5] + ([f"and {len(said) - 5} more classes of ranks"] if len(said) > 5 else [])
    told = f"At #{timeline.first_divergence} " + "; ".join(shown) + "."
    if timeline.moved:
        told += f" From there on calls of {ranks_text(timeline.moved)} stand one place later than they are numbered: a rank counts its own calls."
    return told
