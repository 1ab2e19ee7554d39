"""At whom the walk over all waits ends: the ranks that everybody waits for, and circles of ranks."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import polars as pl

from nccl_forensics.frames import typed
from nccl_forensics.views import view
from nccl_forensics.views.calls import Calls, calls_of
from nccl_forensics.views.columns import GROUP, read_at
from nccl_forensics.views.levels import held_together
from nccl_forensics.views.pair_waits import left_open
from nccl_forensics.views.wait_edges import JOINED

BLOCKERS = typed(
    "rank:i32 kind:str waiters:list[i32] direct_waiters:list[i32] in_group:list[i32] domain:str",
    GROUP,
    "comm_id:str seq:i64 op:str behind:i64 cycle:list[i32] walked:bool pending:bool",
    read_at(),
    "call_site:str",
    read_at("own_"),
    "own_last_op:str own_call_site:str",
)

#: Ends of walks up to which all that reach them are listed; of more only those that wait for them directly.
_FEW = 256


@view(rows="ranks")
def blockers(
    waits: pl.LazyFrame, progress: pl.LazyFrame, operations: pl.LazyFrame | Calls | None, stuck: pl.LazyFrame | None = None
) -> pl.LazyFrame:
    """The ranks at the end of the walk: everyone waits for them, directly or through others, and they wait for nobody.

    ``kind``: ``behind``, ``gpu``, ``unseen`` or ``cycle`` (no rank is free: ``cycle`` lists the ranks that wait in a circle); ``passed`` is
    no end: others wait for it, and it hopes for a rank of which nothing is seen. ``direct_waiters``: those who wait for this rank itself;
    ``in_group``: those of them who do so in the group that is cited. ``walked``: the walk led to an ``unseen`` rank through others that
    themselves wait for it, or from several groups. ``pending``: the rank has enqueued work that is not known to be completed. Cites a
    waiter's operation (``source_id`` …) and the blocker's own last one (``own_…``).
    """
    edges = waits.collect()
    if not edges.height:
        return pl.DataFrame(schema=BLOCKERS).lazy()
    graph = _graph(edges)
    ends = _ends(graph, edges, _held(stuck, progress, graph) if stuck is not None else set())
    ranks = sorted({rank for rank, _ in ends.chosen})
    direct = edges.filter(pl.col("awaited").is_in(ranks)).sort("created_ns", "seq", "waiter", nulls_last=True)
    cited = _cited(direct, graph.gpu, ends.cycles)
    own = _own(progress, operations, ranks)
    waiters = {a: sorted(w) for a, w in direct.group_by("awaited").agg(pl.col("waiter").unique()).iter_rows()}
    together = {(a, g): sorted(w) for a, g, w in direct.group_by("awaited", "group_key").agg(pl.col("waiter").unique()).iter_rows()}
    rows: list[dict[str, object]] = []
    for rank, kind in ends.chosen:
        edge = cited[rank]
        mine = own.latest.get(rank, {})
        place = own.in_group.get((rank, str(edge["group_key"])), mine)
        rows.append(
            {name: edge.get(name) for name in BLOCKERS if name in edge}
            | {
                "rank": rank,
                "kind": kind,
                "waiters": sorted(_reach(graph.into, rank) - {rank}) if ends.few and kind != "passed" else waiters[rank],
                "direct_waiters": waiters[rank],
                "in_group": together[rank, edge["group_key"]],
                "cycle": next((c for c in ends.cycles if rank in c), None),
                "walked": rank in ends.walked,
                "pending": rank in own.pending if rank in own.marked else None,
                "own_source_id": place.get("source_id"),
                "own_line_no": place.get("line_no"),
                "own_record": place.get("record"),
                "own_last_op": place.get("last_op"),
                "own_call_site": mine.get("last_call_site"),
            }
        )
    return pl.DataFrame(rows, schema=BLOCKERS, infer_schema_length=None).lazy()


@dataclass(slots=True)
class _Graph:
    """Who waits for whom: ``out`` and ``into`` of ranks that are seen; ``hopes`` (waiter, awaited) for ranks of which nothing is
    ``unseen``."""

    out: dict[int, set[int]]
    into: dict[int, set[int]]
    hopes: list[tuple[int, int]]
    unseen: set[int]
    #: Ranks whose GPU has not finished what their peers have.
    gpu: set[int]
    #: Those of them that have not finished what all members must have joined and several have finished, which keeps nobody waiting.
    standing: set[int]


def _graph(edges: pl.DataFrame) -> _Graph:
    seen = edges.filter(pl.col("kind") != "unseen")
    out: dict[int, set[int]] = defaultdict(set)
    into: dict[int, set[int]] = defaultdict(set)
    for waiter, awaited in seen.select("waiter", "awaited").iter_rows():
        out[waiter].add(awaited)
        into[awaited].add(waiter)
    hopes = edges.filter(pl.col("kind") == "unseen").select("waiter", "awaited").unique(maintain_order=True).rows()
    of_gpu = seen.filter(pl.col("kind") == "gpu")
    joined = of_gpu.filter(pl.col("op").str.contains(JOINED)).group_by("awaited", "group_key").agg(pl.col("waiter").n_unique().alias("n"))
    return _Graph(
        out=out,
        into=into,
        hopes=hopes,
        unseen={awaited for _, awaited in hopes} - out.keys() - into.keys(),
        gpu=set(of_gpu["awaited"].to_list()),
        standing=set(joined.filter(pl.col("n") > 1)["awaited"].to_list()),
    )


@dataclass(slots=True)
class _Ends:
    """Where the walk ends."""

    #: Ranks and the kind of their end, those that are passed last.
    chosen: list[tuple[int, str]]
    cycles: list[list[int]] = field(default_factory=list)
    walked: set[int] = field(default_factory=set)
    few: bool = True


def _ends(graph: _Graph, edges: pl.DataFrame, held: set[int]) -> _Ends:
    """The ends of the walk; ranks of which nothing is seen enter the graph where it ends at them. ``held``: ranks that stand with all
    members of a group in one operation: where some wait for each other in a circle, that is what holds these up."""
    sinks = sorted(rank for rank in graph.into if not graph.out.get(rank))
    # A rank that others wait for and that itself waits for somebody of whom nothing is known is not the end of the walk.
    hoping = {waiter for waiter, awaited in graph.hopes if awaited in graph.unseen}
    passed = {s for s in sinks if s not in graph.gpu and s in hoping}
    sinks = [s for s in sinks if s not in passed]
    if not graph.gpu and held.issuperset(sinks) and _circle(graph)[1]:
        sinks = []
    walked = {awaited for waiter, awaited in graph.hopes if waiter in passed and awaited in graph.unseen}
    if not sinks and not graph.gpu and _pairs(edges, graph):
        walked = set()  # two that send first, or receive first, never end, whoever else is missing
    elif not graph.into:
        walked |= _awaited_in_many(edges, graph.unseen)
    ends = _Ends([], walked=walked)
    if not sinks and not walked:
        sinks, ends.cycles = _circle(graph)
    ends.chosen += [(rank, "gpu" if rank in graph.gpu else "behind") for rank in sinks]
    # Whose GPU has not finished what keeps nobody waiting is stuck by itself.
    if set(sinks) <= graph.gpu:
        ends.chosen += [(rank, "gpu") for rank in sorted(graph.standing - set(sinks))]
    covered = {rank for rank, _ in ends.chosen}
    ends.chosen += [(rank, "cycle") for cycle in ends.cycles for rank in cycle if rank not in covered]
    if walked or not ends.chosen:
        for waiter, awaited in graph.hopes:
            if awaited in graph.unseen:
                graph.into[awaited].add(waiter)
        ends.chosen += [(rank, "unseen") for rank in sorted(walked or graph.unseen)]
    covered = {rank for rank, _ in ends.chosen}
    ends.few = len(covered) <= _FEW
    ends.chosen += [(rank, "passed") for rank in sorted(passed - covered)]
    return ends


def _held(stuck: pl.LazyFrame, progress: pl.LazyFrame, graph: _Graph) -> set[int]:
    """Ranks that stand with all members of a group in one operation, at their end or beside one that waits in a circle, or for one that
    does."""
    held = held_together(stuck, progress)
    inside = {rank for cycle in _circle(graph)[1] for rank in cycle}
    for rank in list(inside):
        inside |= _reach(graph.into, rank)
    whole = stuck.filter((pl.col("domain") == "fr") & (pl.col("ranks").list.len() >= pl.col("size"))).select("ranks").collect()
    return held.union(*(ranks for (ranks,) in whole.iter_rows() if not inside.isdisjoint(ranks)))


def _pairs(edges: pl.DataFrame, graph: _Graph) -> bool:
    """Whether all circles are of two ranks that wait for each other in the same half of a pair."""
    cycles = _circle(graph)[1]
    halves = {(w, a): op for w, a, op in edges.filter(pl.col("kind") == "p2p").select("waiter", "awaited", "op").iter_rows()}
    return bool(cycles) and all(len(c) == 2 and halves.get((c[0], c[1]), 0) == halves.get((c[1], c[0]), 1) for c in cycles)


def _cited(direct: pl.DataFrame, gpu: set[int], cycles: list[list[int]]) -> dict[int, dict[str, object]]:
    """The edge that shows each awaited rank, of those in ``direct``, which are in order: what closes a circle is what its ranks wait in for
    each other, not what others wait in for them; of a GPU that stands, what its peers have finished shows it, first what several of them
    have, and not that others wait for it too; of other ranks the first edge of one that is seen, else the first."""
    circle = pl.DataFrame(
        [(r, n) for n, c in enumerate(cycles) for r in c], schema={"rank": pl.Int32(), "circle": pl.Int64()}, orient="row"
    )
    waiting = direct.join(circle.rename({"rank": "waiter"}), on="waiter", how="inner", maintain_order="left")
    within = waiting.join(circle.rename({"rank": "awaited"}), on=["awaited", "circle"], how="inner", maintain_order="left")
    stands = direct.filter((pl.col("kind") == "gpu") & pl.col("awaited").is_in(sorted(gpu)))
    stands = stands.sort(pl.col("waiter").n_unique().over("awaited", "group_key") < 2, maintain_order=True)
    found: dict[int, dict[str, object]] = {}
    for told in (within, stands, direct.filter(pl.col("kind") != "unseen"), direct):
        for edge in told.unique("awaited", keep="first", maintain_order=True).iter_rows(named=True):
            found.setdefault(edge["awaited"], edge)
    return found


@dataclass(slots=True)
class _Own:
    """What the own evidence of ranks says: rows of their progress, the newest and by group; who has work that is ``pending``, of those for
    whom that is ``marked``."""

    latest: dict[int, dict[str, object]]
    in_group: dict[tuple[int, str], dict[str, object]]
    pending: set[int]
    marked: set[int]


def _own(progress: pl.LazyFrame, operations: pl.LazyFrame | Calls | None, ranks: list[int]) -> _Own:
    own = progress.filter(pl.col("rank").is_in(ranks)).sort("last_created_ns", "last_order", nulls_last=False).collect()
    left = set() if operations is None else left_open(calls_of(operations))
    pending = own.filter((pl.col("last_done") < pl.col("last_seq")) | pl.col("first_pending").is_not_null())
    # Whether work is completed is known only where completion is ever marked (not for gloo, nor in NCCL's log lines).
    # An operation in which a rank's own watchdog timed out is open, whatever else is known of it.
    timed_out = (pl.col("domain") == "watchdog") & pl.col("first_pending").is_not_null()
    marked = own.filter(pl.col("last_done").is_not_null() | timed_out)
    return _Own(
        latest={r["rank"]: r for r in own.iter_rows(named=True) if r["source_id"] is not None},
        # What its recorder holds of a group tells more than the count of its watchdog, which bears no time.
        in_group={(r["rank"], r["group_key"]): r for r in own.iter_rows(named=True)},
        pending=set(pending["rank"].to_list()) | left,
        marked=set(marked["rank"].to_list()) | left,
    )


def _awaited_in_many(edges: pl.DataFrame, unseen: set[int]) -> set[int]:
    """Ranks without evidence for which different ranks wait in different groups, by the first operation that each of them waits in."""
    first = edges.filter(pl.col("awaited").is_in(sorted(unseen)) & pl.col("created_ns").is_not_null())
    first = first.filter(pl.col("created_ns") == pl.col("created_ns").min().over("domain", "waiter"))
    many = first.group_by("awaited").agg(pl.col("group_key").n_unique().alias("groups"), pl.col("waiter").n_unique().alias("waiters"))
    return set(many.filter((pl.col("groups") > 1) & (pl.col("waiters") > 1))["awaited"].to_list())


def _reach(into: dict[int, set[int]], rank: int) -> set[int]:
    seen: set[int] = set()
    todo = [rank]
    while todo:
        for waiter in into.get(todo.pop(), ()):
            if waiter not in seen:
                seen.add(waiter)
                todo.append(waiter)
    return seen


def _circle(graph: _Graph) -> tuple[list[int], list[list[int]]]:
    """Where nobody is free: ranks whose GPU stands still break the circle; else the circles themselves (closed components)."""
    if graph.gpu:
        return sorted(graph.gpu), []
    closed = [c for c in _components(graph.out) if len(c) > 1 and all(target in c for r in c for target in graph.out[r])]
    return [], [sorted(c) for c in closed]


def _components(out: dict[int, set[int]]) -> list[set[int]]:
    """Strongly connected components (Tarjan, iterative)."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on: set[int] = set()
    found: list[set[int]] = []
    for root in sorted(out):
        if root in index:
            continue
        work = [(root, iter(sorted(out[root])))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on.add(root)
        while work:
            node, targets = work[-1]
            step = next((t for t in targets if t not in index or t in on), None)
            if step is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    component: set[int] = set()
                    while True:
                        member = stack.pop()
                        on.discard(member)
                        component.add(member)
                        if member == node:
                            break
                    found.append(component)
            elif step in index:
                low[node] = min(low[node], index[step])
            else:
                index[step] = low[step] = len(index)
                stack.append(step)
                on.add(step)
                work.append((step, iter(sorted(out[step]))))
    return found
