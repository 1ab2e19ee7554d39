"""Topology and transports: what links GPUs and hosts, through which devices, in which rings and trees, over how many channels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from nccl_forensics.drawings import links
from nccl_forensics.exhibits.base import Block, Drawing, Item, Report, Table, listed, ranks_text, table, where_text
from nccl_forensics.extras import ChannelCount, Extras, HostNics, LinkMatrix, Ring, TreeShape
from nccl_forensics.plain import plain
from nccl_forensics.presentation import ROWS, amount
from nccl_forensics.words import rank_list

#: Matrices that are drawn, ranks of a ring that are listed.
MATRICES, WALK = 6, 64
_KIND_WORDS = (
    ("direct", "direct"),
    ("near", "through a bridge"),
    ("far", "through host memory"),
    ("net", "over the network"),
    ("other", "other"),
    ("none", "not seen"),
)


def build(report: Report, extras: Extras) -> tuple[Block, ...]:
    """Connections and channels, GPU pairs, network devices, rings and trees."""
    tables = [*_connections(extras), *_channels(extras.channels)]
    blocks: list[Block] = []
    if tables:
        blocks.append(Block(_statement(extras), tables=tuple(tables)))
    blocks += [_matrix(m) for m in extras.matrices[:MATRICES]]
    if extras.nics:
        blocks.append(_nics(extras.nics))
    if extras.rings or extras.trees:
        blocks.append(_shapes(extras.rings, extras.trees))
    return tuple(blocks)


def _statement(extras: Extras) -> str:
    kinds: Counter[str] = Counter()
    for row in extras.transports:
        name = plain(row.transport, 40) + (f" over {plain(row.network, 40)}" if row.network else "")
        kinds[name + {True: " with GPUDirect RDMA", False: " without GPUDirect RDMA", None: ""}[row.gdr]] += row.count
    if not kinds:
        return "No connection lines were found; channels are known."
    return "Connections: " + ", ".join(f"{n:,} {kind}" for kind, n in kinds.most_common(8)) + "."


def _connections(extras: Extras) -> list[Table]:
    if not extras.transports:
        return []
    body = [
        (
            Item(plain(r.source, 80)),
            Item(plain(r.destination, 80)),
            Item(plain(r.transport, 60), "code"),
            Item(plain(r.network, 60)),
            Item({True: "yes", False: "no", None: ""}[r.gdr]),
            Item(amount(r.channels), "num"),
            Item(amount(r.count), "num"),
        )
        for r in extras.transports[:40]
    ]
    columns = ("From", "To", "Transport", "Network", "GPUDirect", "Channels", "Connections")
    return [table("How ranks reach each other", columns, body, max(0, len(extras.transports) - 40))]


def _channels(channels: Sequence[ChannelCount]) -> list[Table]:
    if not channels:
        return []
    body = [
        (
            Item(plain(c.communicator, 80), "code"),
            Item(amount(c.ranks), "num"),
            Item(amount(c.coll_channels), "num"),
            Item(amount(c.p2p_channels), "num"),
            Item(amount(c.nvls_channels), "num"),
        )
        for c in channels[:ROWS]
    ]
    columns = ("Communicator", "Ranks", "Collective channels", "P2P channels", "NVLS channels")
    return [table("Channels", columns, body, max(0, len(channels) - ROWS))]


def _matrix(shown: LinkMatrix) -> Block:
    hosts = listed(shown.hosts)
    title = f"{plain(shown.title, 60)}: {hosts}" + (f" ({len(shown.hosts):,} hosts alike)" if len(shown.hosts) > 1 else "")
    count = len(shown.names)
    words = Counter(plain(w, 40) for r, row in enumerate(shown.cells) for c, w in enumerate(row) if r != c and w)
    pairs = count * (count - 1)
    said = (
        f"{sum(words.values()):,} of {pairs:,} ordered pairs of GPUs are linked: "
        + ", ".join(f"{n:,} {w}" for w, n in words.most_common(6))
        + "."
    )
    if not words:
        said = "No link between GPUs is told." if count > 1 else "There is one GPU only."
    names = tuple(plain(n, 20) for n in shown.names)
    body = [(Item(names[r]), *(Item("" if r == c else plain(w, 40)) for c, w in enumerate(row))) for r, row in enumerate(shown.cells)]
    rows = Table(f"{plain(shown.title, 60)}, row to column", ("", *names), tuple(body), folded=count <= links.MOST)
    kinds = {links.kind_of(plain(w, 40)) if w else "none" for r, row in enumerate(shown.cells) for c, w in enumerate(row) if r != c}
    legend = tuple((f"l-{kind}", word) for kind, word in _KIND_WORDS if kind in kinds)
    picture = Drawing(title, links.matrix(shown, said), legend) if 1 < count <= links.MOST else None
    where = where_text(shown.path, shown.line)
    return Block(said, title, picture, tables=(rows,), note=f"For example {where}." if where else "")


def _nics(nics: Sequence[HostNics]) -> Block:
    idle = [n for n in nics if n.used and set(n.used) < set(n.devices)]
    if idle:
        said = f"{sum(len(n.hosts) for n in idle):,} hosts have network devices that no connection uses."
    elif any(n.used for n in nics):
        said = "Every network device that NCCL listed is used by a connection."
    else:
        said = "Network devices that NCCL listed; which of them connections use is not told."
    body = [
        (
            Item(listed(n.hosts, 3)),
            Item(", ".join(plain(d, 30) for d in n.devices[:16]), "code"),
            Item(", ".join(plain(d, 30) for d in n.used[:16]) if n.used else "not told", "code" if n.used else "text"),
            Item(plain(n.link, 20)),
            Item(f"{n.speed_gbit_s:g} Gbit/s" if n.speed_gbit_s is not None else ""),
            Item(where_text(n.path, n.line), "where"),
        )
        for n in nics[:40]
    ]
    return Block(
        said,
        "Network devices",
        tables=(table("Network devices by host", ("Hosts", "Listed", "Used", "Link", "Speed", "Evidence"), body, max(0, len(nics) - 40)),),
    )


def _shapes(rings: Sequence[Ring], trees: Sequence[TreeShape]) -> Block:
    tables: list[Table] = []
    said = []
    if rings:
        channels = sum(len(r.channels) for r in rings)
        said.append(
            f"{channels:,} ring {'channel' if channels == 1 else 'channels'} in {len(rings):,} {'order' if len(rings) == 1 else 'orders'}"
        )
        body = [
            (
                Item(rank_list(r.channels, 6)),
                Item(
                    " → ".join(str(n) for n in r.ranks[:WALK]) + (f" → … ({len(r.ranks):,} ranks)" if len(r.ranks) > WALK else ""), "code"
                ),
                Item(" → ".join(plain(h, 40) for h in r.hosts[:12]) + (f" → … ({len(r.hosts):,})" if len(r.hosts) > 12 else "")),
                Item(where_text(r.path, r.line), "where"),
            )
            for r in rings[:24]
        ]
        tables.append(
            table(
                "Rings", ("Channels", "Ranks in order", "Hosts in order", "Evidence"), body, max(0, len(rings) - 24), folded=len(rings) > 2
            )
        )
    if trees:
        channels = sum(len(t.channels) for t in trees)
        said.append(
            f"{channels:,} tree {'channel' if channels == 1 else 'channels'} in {len(trees):,} {'shape' if len(trees) == 1 else 'shapes'}"
        )
        shapes = [
            (
                Item(rank_list(t.channels, 6)),
                Item(ranks_text(t.roots, 6) if t.roots else "not told"),
                Item(amount(t.depth), "num"),
                Item(amount(t.widest), "num"),
                Item(amount(t.ranks), "num"),
                Item(where_text(t.path, t.line), "where"),
            )
            for t in trees[:24]
        ]
        columns = ("Channels", "Roots", "Depth", "Most children", "Ranks that told", "Evidence")
        tables.append(table("Trees", columns, shapes, max(0, len(trees) - 24), folded=len(trees) > 2))
    return Block("; ".join(said) + ".", "Rings and trees", tables=tuple(tables))
