"""Ranks that stand where others do and lack a call that those made on their way: by lines of code, where recorders tell no group."""

from __future__ import annotations

from collections import defaultdict

import polars as pl

from nccl_forensics.evidence import PLACE
from nccl_forensics.frames import typed
from nccl_forensics.stacks.frames import line_of_code
from nccl_forensics.stacks.places import WAITING
from nccl_forensics.views import view
from nccl_forensics.views.calls import Calls, calls_of
from nccl_forensics.views.columns import read_at
from nccl_forensics.views.stuck import ranks_named

PASSED_OVER = typed(
    "rank:i32 waiters:list[i32] others:list[i32] op:str call_site:str stands_in:str stands_at:str",
    read_at(),
    read_at("own_"),
)
#: So many stand with the rank and made the call, at least.
_LEAST = 2


@view(rows="ranks")
def passed_over(last_calls: pl.LazyFrame, operations: pl.LazyFrame | Calls) -> pl.LazyFrame:
    """Ranks that stand in the same line as ``others`` (``stands_in``, ``stands_at``) and have not made, since they were last there, the
    call in which ``waiters`` stand (``op``, ``call_site``), as all of the others have.

    Only calls of groups without a name: with TORCH_DISTRIBUTED_DEBUG=DETAIL recorders tell none of sub-groups, and a call that is still
    being compared is in no record. Cites the stack of one that waits (``source_id`` …) and the rank's own (``own_…``).
    """
    stood = last_calls.filter((pl.col("place") == "collective") & pl.col("user_frame").is_not_null() & pl.col("op").is_not_null())
    places = stood.sort("rank").collect().partition_by("user_frame", "op", maintain_order=True)
    rows: list[dict[str, object]] = []
    if len(places) > 1:
        nameless = pl.col("group_name").fill_null("") == ""
        made = calls_of(operations).recent().filter((pl.col("domain") == "fr") & nameless & pl.col("call_site").is_not_null())
        lines = {line_of_code(part["user_frame"][0]) for part in places}
        sites = [site for site in made.select(pl.col("call_site").unique()).collect()["call_site"] if line_of_code(site) in lines]
        orders = made.filter(pl.col("call_site").is_in(sites)).group_by("rank", "call_site")
        known = {
            (rank, line_of_code(site)): (last, n)
            for rank, site, last, n in orders.agg(pl.col("order").max().alias("last"), pl.len().alias("n")).collect().iter_rows()
        }
        for beyond in places:
            rows += [row for waiting in places if waiting is not beyond for row in _passed(beyond, waiting, known)]
    found = pl.DataFrame(rows, schema=PASSED_OVER, infer_schema_length=None)
    return found.unique("rank", keep="first", maintain_order=True).sort("rank").lazy()


def _passed(
    beyond: pl.DataFrame, waiting: pl.DataFrame, known: dict[tuple[int, tuple[str, str, str]], tuple[int, int]]
) -> list[dict[str, object]]:
    """Of those that stand in one line, the few that passed over the call in which others stand."""
    here, there = beyond.row(0, named=True), waiting.row(0, named=True)
    ranks = beyond["rank"].to_list()
    own = {rank: known.get((rank, line_of_code(here["user_frame"]))) for rank in ranks}
    call = {rank: known.get((rank, line_of_code(there["user_frame"]))) for rank in ranks}
    # Who was there as often as the others is in the same step as they.
    if (
        any(o is None or c is None for o, c in zip(own.values(), call.values(), strict=True))
        or len({n for _, n in filter(None, own.values())}) != 1
    ):
        return []
    made = [rank for rank in ranks if (c := call[rank]) is not None and (o := own[rank]) is not None and c[0] > o[0]]
    lacking = [rank for rank in ranks if rank not in made]
    if not lacking or len(made) < _LEAST or len(lacking) >= len(made):
        return []
    told = {"waiters": waiting["rank"].to_list(), "others": made, "op": there["op"], "call_site": there["user_frame"]}
    told |= {"stands_in": here["op"], "stands_at": here["user_frame"]} | {name: there[name] for name in PLACE}
    own_rows = beyond.filter(pl.col("rank").is_in(lacking))
    return [told | {"rank": row["rank"]} | {f"own_{name}": row[name] for name in PLACE} for row in own_rows.iter_rows(named=True)]


NEW_LINES = typed("rank:i32 others:list[i32] op:str call_site:str waits_in:str waits_at:str in_pairs:bool", read_at(), read_at("own_"))
#: Calls of a rank in the records, and at the line in which another stands, that make steps.
_STEPS, _AGAIN = 3, 2


@view(rows="ranks")
def new_lines(last_calls: pl.LazyFrame, operations: pl.LazyFrame | Calls, processes: pl.LazyFrame | None = None) -> pl.LazyFrame:
    """The few that stand in a collective (``op``) at a line of code from which no rank has called before, where all ``others`` of the job
    stand in calls of the steps before, or in sends and receives (``in_pairs``): these left their steps, or made a call too many.

    Only where all ranks of the job are seen to wait. Cites the stack of one of the others (``source_id`` …) and the rank's own (``own_…``).
    """
    places = last_calls.filter(pl.col("rank").is_not_null()).sort("rank").collect()
    still = places.filter(pl.col("place").is_in(WAITING) & pl.col("user_frame").is_not_null() & ~pl.col("moved").fill_null(value=False))
    whole = range(max(places.height, ranks_named(processes)))
    if places.height < _STEPS or still.height != places.height or places["rank"].to_list() != list(whole):
        return pl.LazyFrame(schema=NEW_LINES)
    made = calls_of(operations).recent().filter((pl.col("domain") == "fr") & pl.col("call_site").is_not_null())
    counts = made.group_by("rank", "call_site").len().collect()
    calls = dict(counts.group_by("rank").agg(pl.col("len").sum()).iter_rows())
    callers: dict[object, dict[int, int]] = defaultdict(dict)
    for rank, site, n in counts.iter_rows():
        callers[line_of_code(site)][rank] = n
    new: list[dict[str, object]] = []
    # A wait of which no call is told may be for a send or receive, of which gloo's recorders hold none.
    for row in places.filter((pl.col("place") == "collective") & pl.col("op").is_not_null()).iter_rows(named=True):
        at, rank = callers.get(line_of_code(row["user_frame"]), {}), row["rank"]
        if calls.get(rank, 0) >= _STEPS and set(at) <= {rank} and at.get(rank, 0) <= 1:
            new.append(row)
    others = places.filter(~pl.col("rank").is_in([row["rank"] for row in new]))
    pairs = others.filter(pl.col("place") == "p2p")
    before = {site for site, at in callers.items() if max(at.values()) >= _AGAIN}
    if not new or len({row["user_frame"] for row in new}) > 1 or len(new) >= others.height:
        return pl.LazyFrame(schema=NEW_LINES)
    if not {line_of_code(frame) for frame in others.filter(pl.col("place") == "collective")["user_frame"]} <= before:
        return pl.LazyFrame(schema=NEW_LINES)
    peer = others.row(0, named=True)
    told = {"others": others["rank"].to_list(), "waits_in": peer["op"], "waits_at": peer["user_frame"], "in_pairs": pairs.height > 0}
    told |= {name: peer[name] for name in PLACE}
    rows = [
        told | {"rank": row["rank"], "op": row["op"], "call_site": row["user_frame"]} | {f"own_{name}": row[name] for name in PLACE}
        for row in new
    ]
    return pl.DataFrame(rows, schema=NEW_LINES, infer_schema_length=None).lazy()
