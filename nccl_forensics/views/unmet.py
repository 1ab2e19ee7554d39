"""Ranks that went on without the other half of a send or receive in which a peer waits."""

from __future__ import annotations

import polars as pl

from nccl_forensics.views import view
from nccl_forensics.views.calls import Calls, calls_of
from nccl_forensics.views.pair_waits import unfinished

UNMET = {
    "rank": pl.Int32(),
    "waiter": pl.Int32(),
    "op": pl.String(),
    "waits_in": pl.String(),
    "number": pl.Int64(),
    "group_name": pl.String(),
    "group_desc": pl.String(),
    "call_site": pl.String(),
    "source_id": pl.UInt32(),
    "line_no": pl.UInt32(),
    "record": pl.String(),
    "beyond_name": pl.String(),
    "beyond_desc": pl.String(),
    "beyond_seq": pl.Int64(),
    "own_source_id": pl.UInt32(),
    "own_line_no": pl.UInt32(),
    "own_record": pl.String(),
}
_HALVES = {"send": "recv", "recv": "send"}
_PAIR = ("group_key", "rank", "op", "peer")


@view(rows="ranks")
def unmet(operations: pl.LazyFrame | Calls, dumps: pl.LazyFrame, progress: pl.LazyFrame, groups: pl.LazyFrame) -> pl.LazyFrame:
    """Ranks that have called fewer sends to a peer than that one waits for (or receives), the ``number``-th of the pair, and have enqueued an operation of a
    group of both (``beyond_seq``) that the peer enqueued after it: they went past it. One row per rank and waiter.

    The two halves of a pair meet in order, so they are counted, which needs recorders that have kept all entries of both. Two that each lack a half
    of the other are left out. Cites the waiter's call (``source_id`` …) and the rank's own operation beyond it (``own_…``).
    """
    calls = calls_of(operations)
    left = unfinished(calls)
    if left is None:
        return pl.LazyFrame(schema=UNMET)
    chosen = dumps.filter((pl.col("use") == "chosen") & (pl.col("first_record_id") == 0) & pl.col("rank").is_not_null())
    whole = chosen.select("rank").unique().collect()["rank"].to_list()
    paired = pl.col("op").is_in(list(_HALVES)) & pl.col("peer").is_not_null() & pl.col("rank").is_in(whole)
    waiting = left.filter(pl.col("is_p2p") & paired).sort("order").group_by(_PAIR, maintain_order=True)
    first = waiting.agg(
        pl.len().alias("open"), *(pl.col(c).first() for c in ("order", "call_site", "source_id", "line_no", "record"))
    ).collect()
    if first.is_empty():
        return pl.LazyFrame(schema=UNMET)
    called = _counted(calls, paired)
    info = {str(g["group_key"]): g for g in groups.filter(pl.col("domain") == "fr").collect().iter_rows(named=True)}
    reached: dict[int, dict[str, dict[str, object]]] = {}
    for place in progress.filter(pl.col("domain") == "fr").collect().iter_rows(named=True):
        reached.setdefault(place["rank"], {})[place["group_key"]] = place
    known = set(whole)
    number_of = {key: {rank: n for n, rank in enumerate(info[key]["members"])} for key in first["group_key"].unique() if key in info}
    rows: list[dict[str, object]] = []
    for row in first.iter_rows(named=True):
        group, numbers = info.get(row["group_key"]), number_of.get(row["group_key"], {})
        members = group["members"] if group is not None else []
        if group is None or row["rank"] not in numbers or not 0 <= row["peer"] < len(members) or members[row["peer"]] not in known:
            continue
        peer, half = members[row["peer"]], _HALVES[row["op"]]
        number = called[tuple(row[c] for c in _PAIR)] - row["open"] + 1
        if called.get((row["group_key"], peer, half, numbers[row["rank"]]), 0) >= number:
            continue
        theirs = reached.get(peer, {})
        after = sorted((p for p in reached.get(row["rank"], {}).values() if _number(p, "pending_order") > row["order"]), key=_by_order)
        beyond = next((p for p in after if _number(theirs.get(str(p["group_key"]), {}), "last_seq") >= _number(p, "first_pending")), None)
        if beyond is None:
            continue
        key = str(beyond["group_key"])
        told = {c: row[c] for c in ("call_site", "source_id", "line_no", "record")} | {c: group[c] for c in ("group_name", "group_desc")}
        told |= {
            "rank": peer,
            "waiter": row["rank"],
            "op": half,
            "waits_in": row["op"],
            "number": number,
            "beyond_seq": beyond["first_pending"],
        }
        told |= {f"beyond_{c}": info[key][f"group_{c}"] for c in ("name", "desc")}
        rows.append(told | {f"own_{c}": theirs[key][c] for c in ("source_id", "line_no", "record")})
    accused = {(r["rank"], r["waiter"]) for r in rows}
    rows = [r for r in rows if (r["waiter"], r["rank"]) not in accused]
    return (
        pl.DataFrame(rows, schema=UNMET, infer_schema_length=None)
        .unique(["rank", "waiter"], keep="first", maintain_order=True)
        .sort("rank", "waiter")
        .lazy()
    )


def _number(place: dict[str, object], name: str) -> int:
    """A number of a rank's progress in a group; -1 where it is not known."""
    value = place.get(name)
    return -1 if value is None else int(str(value))


def _by_order(place: dict[str, object]) -> int:
    return _number(place, "pending_order")


def _counted(calls: Calls, paired: pl.Expr) -> dict[tuple[object, ...], int]:
    """How often each rank called a send to, or a receive from, each peer."""
    recorded = calls.recorded
    if recorded is None:
        every = calls.every.filter((pl.col("domain") == "fr") & paired).with_columns(calls=pl.lit(1, dtype=pl.Int64))
    else:
        every = recorded.words.lazy().filter(paired)
    return {tuple(row[:-1]): row[-1] for row in every.group_by(_PAIR).agg(pl.col("calls").sum()).collect().iter_rows()}
