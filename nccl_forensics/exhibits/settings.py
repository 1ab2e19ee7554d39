"""Environment differences: settings whose value is not the same on all ranks first."""

from __future__ import annotations

from collections.abc import Sequence

from nccl_forensics.exhibits.base import Block, Item, Report, Table, table
from nccl_forensics.extras import Extras, Setting
from nccl_forensics.plain import plain
from nccl_forensics.presentation import ROWS

_VALUES = 12


def build(report: Report, extras: Extras) -> tuple[Block, ...]:
    """What differs, then what is the same everywhere."""
    if not extras.settings:
        return ()
    ordered = sorted(extras.settings, key=lambda s: s.name)
    differ = [s for s in ordered if s.differs]
    same = [s for s in ordered if not s.differs]
    names = [plain(s.name, 60) for s in differ]
    if names:
        more = f" and {len(names) - 6} more" if len(names) > 6 else ""
        said = f"{', '.join(names[:6])}{more} {'differs' if len(names) == 1 else 'differ'} between ranks."
    else:
        said = (
            f"{len(same):,} {'setting is' if len(same) == 1 else 'settings are'} known, and none differs between the ranks that told them."
        )
    tables = []
    if differ:
        tables.append(_table("Settings that differ between ranks", differ, False))
    if same:
        tables.append(_table("Settings that are the same on all ranks that told them", same, bool(differ) and len(same) > 4))
    return (Block(said, tables=tuple(tables)),)


def _table(caption: str, settings: Sequence[Setting], folded: bool) -> Table:
    body: list[tuple[Item, ...]] = []
    for setting in settings[:ROWS]:
        for n, (value, who) in enumerate(setting.values[:_VALUES]):
            name = Item(plain(setting.name, 80), "code") if n == 0 else Item("")
            body.append((name, Item(plain(value, 160), "code"), Item(plain(who, 120))))
        if len(setting.values) > _VALUES:
            body.append((Item(""), Item(f"… and {len(setting.values) - _VALUES:,} more values"), Item("")))
    return table(caption, ("Setting", "Value", "Ranks"), body, max(0, len(settings) - ROWS), folded=folded)
