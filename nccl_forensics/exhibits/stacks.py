"""Stacks of all ranks merged into one tree: where they run together and where they part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nccl_forensics.exhibits.base import Block, Item, Report, TreeLine, ranks_text, table, where_text
from nccl_forensics.extras import Extras, StackClass
from nccl_forensics.plain import plain
from nccl_forensics.presentation import number, part, rows
from nccl_forensics.stacks.frames import split_frame, without_address
from nccl_forensics.stacks.tree import Node, merge
from nccl_forensics.words import sentence

#: Lines of the tree, classes of the table.
LINES, CLASSES = 160, 24


def build(report: Report, extras: Extras) -> tuple[Block, ...]:
    """The tree, outermost frame first, and the classes of ranks with the place of one of their stacks."""
    if not extras.stacks:
        return ()
    blamed = {r for c in rows(part(report, "verdict"), "culprits") if (r := number(c, "rank")) is not None}
    stacks, native = _comparable(extras.stacks)
    ordered = sorted(stacks, key=lambda s: _standing(s, blamed))
    lines = tuple(_tree(stacks, blamed))
    body = [
        (
            Item(ranks_text(s.ranks)),
            Item(("at fault", "odd one out", "")[_standing(s, blamed)], "state", "culprit"),
            Item(plain(s.frames[0], 160) if s.frames else "empty stack", "code"),
            Item(where_text(s.path, s.line), "where"),
        )
        for s in ordered[:CLASSES]
    ]
    classes = table(
        "Ranks by their stack, innermost frame", ("Ranks", "", "Stands in", "Stack of one of them"), body, max(0, len(ordered) - CLASSES)
    )
    note = "Outermost frame first; a number of ranks stands where they part."
    if native:
        note += " Frames of native code are left out, because not all stacks have them."
    more = f"… and {len(lines) - LINES:,} more frames, in tables/." if len(lines) > LINES else ""
    return (Block(statement(stacks, blamed), tree=lines[:LINES], tables=(classes,), note=note, more=more),)


def _comparable(stacks: Sequence[StackClass]) -> tuple[tuple[StackClass, ...], bool]:
    """Samplers differ in whether they show native frames: where Python frames are known, stacks are compared by those alone."""
    python = [tuple(f for f in s.frames if split_frame(f)[1].endswith((".py", ">"))) for s in stacks]
    mixed = any(python) and any(len(p) < len(s.frames) for p, s in zip(python, stacks, strict=True))
    if not mixed:
        return tuple(stacks), False
    found: dict[tuple[str, ...], StackClass] = {}
    for stack, frames in zip(stacks, python, strict=True):
        frames = frames or stack.frames
        same = found.get(frames)
        if same is None:
            found[frames] = replace(stack, frames=frames)
            continue
        first = same if len(same.ranks) >= len(stack.ranks) else stack
        ranks = tuple(sorted({*same.ranks, *stack.ranks}))
        found[frames] = StackClass(ranks, frames, False, first.path, first.line)
    biggest = max(len(s.ranks) for s in found.values())
    return tuple(replace(s, odd_one_out=len(s.ranks) * 2 <= biggest) for s in found.values()), True


def _standing(stack: StackClass, blamed: set[int]) -> int:
    """0 for ranks at fault, 1 for an odd one out, 2 for the rest."""
    return 0 if blamed and blamed >= set(stack.ranks) else 1 if stack.odd_one_out else 2


def _tree(stacks: Sequence[StackClass], blamed: set[int]) -> list[TreeLine]:
    """One line per frame; only a branch indents, so that deep stacks stay narrow."""
    tree = merge((rank, [without_address(f) for f in s.frames]) for s in stacks for rank in s.ranks)
    ends: dict[tuple[int, ...], StackClass] = {tuple(s.ranks): s for s in stacks}
    odd = {r for s in stacks if _standing(s, blamed) == 1 for r in s.ranks}
    everyone = len(tree.keys)
    out: list[TreeLine] = []
    left: list[tuple[int, Node, bool]] = (
        [(0, child, True) for child in reversed(tree.root.children)] if tree.root.frame is None else [(0, tree.root, True)]
    )
    while left:
        depth, node, opens = left.pop()
        ranks = tuple(k for k in node.keys if isinstance(k, int))
        mark = (
            "culprit"
            if blamed and blamed >= set(ranks)
            else "diverged"
            if odd >= set(ranks)
            else ""
            if len(ranks) == everyone
            else "waiting"
        )
        name, path, line = split_frame(plain(node.frame, 240))
        inside = {k for child in node.children for k in child.keys}
        ending = set(node.keys) - inside
        stack = ends.get(tuple(sorted(k for k in ending if isinstance(k, int)))) if ending else None
        out.append(
            TreeLine(
                depth,
                name,
                f"{path}:{line}" if line is not None else path,
                ranks_text(ranks, 4) if opens and (len(ranks) < everyone or depth == 0) else "",
                mark,
                stack is not None or bool(ending),
            )
        )
        branches = len(node.children) > 1 or (bool(ending) and bool(node.children))
        left += [(depth + branches, child, branches) for child in reversed(node.children)]
    return out


def statement(stacks: Sequence[StackClass], blamed: set[int]) -> str:
    """Who stands where, in one sentence."""
    if len(stacks) == 1:
        return f"All {len(stacks[0].ranks):,} ranks with a stack stand in the same place."
    odd = sorted((s for s in stacks if _standing(s, blamed) < 2), key=lambda s: _standing(s, blamed))
    if not odd:
        return f"{sum(len(s.ranks) for s in stacks):,} ranks stand in {len(stacks)} different places."
    places = [f"{ranks_text(s.ranks)} in {plain(s.frames[0], 120) if s.frames else 'an empty stack'}" for s in odd[:3]]
    rest = f"; {len(odd) - 3} more classes of ranks in other places" if len(odd) > 3 else ""
    verb = " stands in " if len(odd[0].ranks) == 1 else " stand in "
    return sentence(f"{'; '.join(places)}{rest}.".replace(" in ", verb, 1))
