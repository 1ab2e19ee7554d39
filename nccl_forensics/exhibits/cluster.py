"""The cluster map, hosts x GPUs by state, and every process of the run to search in."""

from __future__ import annotations

import json
from collections.abc import Sequence

from nccl_forensics.drawings import cluster as drawing
from nccl_forensics.drawings.svg import STATE_WORDS, legend
from nccl_forensics.exhibits.base import Block, Drawing, Item, Report, Table, ranks_text, table
from nccl_forensics.extras import Extras, Host, Process
from nccl_forensics.plain import plain
from nccl_forensics.presentation import ROWS
from nccl_forensics.words import UNKNOWN_HOST, sentence

#: Hosts that are drawn as cards; beyond, all of them are a dense map and those that stand out have cards. Hosts with a title each.
CARDS, TELLING, TITLED = 24, 12, 4096
#: Processes that are listed where all of them are, and where there are more.
ALL, FIRST = 64, 32
_WIDTH = 892
_ORDER = {"culprit": 0, "dead": 1, "missing": 2, "unknown": 4, "waiting": 5, "ok": 6}


def build(report: Report, extras: Extras) -> tuple[Block, ...]:
    """The map, then the processes."""
    blocks: list[Block] = []
    if extras.cluster:
        blocks += _map(extras.cluster)
    if extras.processes:
        blocks.append(Block(tables=(_processes(extras.processes),)))
    return tuple(blocks)


def _map(hosts: Sequence[Host]) -> list[Block]:
    said = statement(hosts)
    ordered = sorted(hosts, key=_telling)
    marks = legend((s.state for h in hosts for s in h.seats), STATE_WORDS)
    rows = _table(ordered, len(hosts) > CARDS)
    if len(hosts) <= CARDS:
        return [Block(said, drawing=Drawing("Hosts and their ranks", drawing.cards(hosts, said), marks), tables=(rows,))]
    odd = [h for h in ordered if _telling(h) < _ORDER["unknown"] and h.name != UNKNOWN_HOST]
    dense = drawing.dense(hosts, said, _WIDTH, titles=len(hosts) <= TITLED)
    blocks = [Block(said, drawing=Drawing("All hosts, a square per rank", dense, marks))]
    if odd:
        shown = odd[:TELLING]
        more = f"… and {len(odd) - len(shown):,} more hosts that stand out." if len(odd) > len(shown) else ""
        title = f"{'The host that stands' if len(odd) == 1 else f'{len(odd):,} hosts that stand'} out"
        blocks.append(Block(title=title, drawing=Drawing(title, drawing.cards(shown, title)), more=more))
    blocks.append(Block(tables=(rows,)))
    return blocks


def _telling(host: Host) -> int:
    own = _ORDER[host.state] if host.state != "unknown" else 9
    return min([own, *(_ORDER[s.state] for s in host.seats), *([3] if host.note else [])])


def _by_state(host: Host) -> dict[str, list[int]]:
    out: dict[str, list[int]] = {}
    for seat in sorted(host.seats, key=lambda s: (_ORDER[s.state], s.rank)):
        out.setdefault(seat.state, []).append(seat.rank)
    return out


def _table(ordered: Sequence[Host], many: bool) -> Table:
    shown = ordered[: 60 if many else ROWS]
    body = tuple(
        (
            Item(plain(h.name, 80)),
            Item(STATE_WORDS[h.state] if h.state != "unknown" else "", "state", h.state),
            Item("; ".join(f"{ranks_text(r)} {STATE_WORDS[s]}" for s, r in _by_state(h).items())),
            Item(plain(h.note, 200)),
        )
        for h in shown
    )
    caption = "Hosts and the state of their ranks" + (", those that stand out first" if many else "")
    return table(caption, ("Host", "Host state", "Ranks", "Note"), body, len(ordered) - len(shown), folded=True)


def statement(hosts: Sequence[Host]) -> str:
    """How many ranks are in which state, and where."""
    by_state: dict[str, list[int]] = {}
    for host in hosts:
        for state, numbers in _by_state(host).items():
            by_state.setdefault(state, []).extend(numbers)
    said = []
    for state in sorted(by_state, key=_ORDER.__getitem__):
        numbers = by_state[state]
        homes = [plain(h.name, 40) for h in hosts if any(s.state == state for s in h.seats) and h.name not in ("", UNKNOWN_HOST)]
        where = "" if not homes else f" on {', '.join(homes)}" if len(homes) <= 3 else f" on {len(homes):,} hosts"
        said.append(f"{ranks_text(numbers, 4)} {STATE_WORDS[state]}{where}")
    return sentence("; ".join(said) + ".") if said else f"{len(hosts):,} hosts; no rank could be placed on them."


_COLUMNS = ("Rank", "Local", "Host", "Pid", "GPU", "NCCL", "State", "Exit", "Last collective")


def _processes(processes: Sequence[Process]) -> Table:
    # Of a missing rank nothing but its number is known: where most are missing, the few that are there tell more.
    first = {"culprit": 0, "dead": 1, "missing": 2 if sum(p.state == "missing" for p in processes) * 2 <= len(processes) else 4}
    ordered = sorted(processes, key=lambda p: (first.get(p.state, 3), p.rank if p.rank is not None else 1 << 40))
    rows = [_row(p) for p in ordered]
    made = table("Processes of the run, those at fault first", _COLUMNS, rows)
    shown = len(rows) if len(rows) <= ALL else FIRST
    search = tuple(" ".join((f"rank{p.rank}", *(i.text for i in row))).lower() for p, row in zip(ordered[:shown], rows, strict=False))
    packed = _packed(rows, made.columns) if len(rows) > shown else ""
    told = "rank12, host, state or collective"
    return Table(made.caption, made.columns, made.rows[:shown], len(rows) - shown, False, "ranks", told, search, packed)


def _row(p: Process) -> tuple[Item, ...]:
    return (
        Item("" if p.rank is None else str(p.rank), "num"),
        Item("" if p.local_rank is None else str(p.local_rank), "num"),
        Item(plain(p.host, 80)),
        Item("" if p.pid is None else str(p.pid), "num"),
        Item(plain(p.gpu, 60)),
        Item(plain(p.nccl_version, 40)),
        Item(STATE_WORDS[p.state], "state", p.state),
        Item(plain(p.exit, 80)),
        Item(plain(p.last_collective, 80), "code"),
    )


def _packed(body: Sequence[tuple[Item, ...]], columns: Sequence[str]) -> str:
    """All rows as JSON by column, each value once: ``[{"kind": …, "words": […], "at": […]}, …]``. 16,384 rows take about 0.6 MB."""
    kept = [_COLUMNS.index(c) for c in columns]
    out = []
    for n in kept:
        words: dict[tuple[str, str], int] = {}
        at = [words.setdefault((row[n].text, row[n].state), len(words)) for row in body]
        out.append({"kind": body[0][n].kind, "words": [w for w, _ in words], "states": [s for _, s in words] if n == 6 else [], "at": at})
    return json.dumps(out, separators=(",", ":"), ensure_ascii=True).replace("<", "\\u003c")
