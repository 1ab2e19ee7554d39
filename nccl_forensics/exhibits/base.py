"""What an exhibit is made of: sentences, drawings, figures, trees and tables. All text in it is harmless.

An exhibit is a function of the report and the extras that returns its blocks; none says that there is no evidence of its kind. To add one,
write a module with such a function and name it in ``EXHIBITS`` of the package; no template is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from nccl_forensics.extras import Extras
from nccl_forensics.figures import Figure
from nccl_forensics.plain import plain
from nccl_forensics.words import rank_list

Report = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Item:
    """One table cell. ``kind`` is how it is set: text, num, code, where (to copy), or state (with its word in ``state``)."""

    text: str
    kind: str = "text"
    state: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table with the number of rows that it leaves out. ``folded`` ones open on a click. A ``filter`` name gives it a search field with a
    ``hint``; ``search`` then holds one text per row, and ``packed`` all rows as JSON for searches beyond those shown."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Item, ...], ...]
    more: int = 0
    folded: bool = False
    filter: str = ""
    hint: str = ""
    search: tuple[str, ...] = ()
    packed: str = ""


@dataclass(frozen=True, slots=True)
class Drawing:
    """Inline SVG with the states that its legend explains: ``(state, word)``."""

    label: str
    svg: str
    legend: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class TreeLine:
    """One frame of merged stacks: ``depth`` indents it, ``mark`` is the state of the ranks that stand in it, empty where it is shared."""

    depth: int
    text: str
    where: str = ""
    who: str = ""
    mark: str = ""
    ends: bool = False


@dataclass(frozen=True, slots=True)
class Block:
    """A statement with what shows and proves it, in the order of the fields."""

    statement: str = ""
    title: str = ""
    drawing: Drawing | None = None
    figures: tuple[Figure, ...] = ()
    tree: tuple[TreeLine, ...] = ()
    tables: tuple[Table, ...] = ()
    note: str = ""
    more: str = ""


@dataclass(frozen=True, slots=True)
class Exhibit:
    """One section of the report. ``filler`` says what evidence would fill it."""

    anchor: str
    title: str
    filler: str
    build: Callable[[Report, Extras], tuple[Block, ...]]


def table(caption: str, columns: Sequence[str], body: Sequence[tuple[Item, ...]], more: int = 0, *, folded: bool = False) -> Table:
    """A table without the columns that no row fills."""
    kept = [n for n in range(len(columns)) if n == 0 or any(row[n].text for row in body)]
    return Table(caption, tuple(columns[n] for n in kept), tuple(tuple(row[n] for n in kept) for row in body), more, folded)


def ranks_text(numbers: Iterable[int], at_most: int = 8) -> str:
    """``rank 3``, ``ranks 0-2, 4-7``, with the count where it is no longer seen at once."""
    known = sorted(set(numbers))
    if not known:
        return "no rank"
    listed = f"{'rank' if len(known) == 1 else 'ranks'} {rank_list(known, at_most)}"
    return f"{listed} ({len(known):,} ranks)" if len(known) > 4 and "…" not in listed else listed


def operation_text(op: str | None, seq: int | None) -> str:
    """``all_reduce #18``."""
    name = plain(op, 80)
    return f"{name or 'operation'} #{seq}" if seq is not None else name


def where_text(path: str | None, line: int | None, record: str | None = None) -> str:
    """What one copies: ``path:line``, ``path record`` or ``path``."""
    if not path:
        return ""
    return plain(path, 300) + (f":{line}" if line is not None else f" {plain(record, 80)}" if record else "")


def listed(names: Sequence[str], at_most: int = 4) -> str:
    """``a, b and 3 more``."""
    shown = ", ".join(plain(n, 60) for n in names[:at_most])
    return f"{shown} and {len(names) - at_most:,} more" if len(names) > at_most else shown
