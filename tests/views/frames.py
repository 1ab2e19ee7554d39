"""Small builders of frames for views and rules."""

from __future__ import annotations

import polars as pl

from nccl_forensics.views.calls import OPERATIONS, Calls
from nccl_forensics.views.looked_at import looked_at_earlier, never_entered
from nccl_forensics.views.matching import PROGRESS
from nccl_forensics.views.waits import waits


def rows(schema: dict[str, pl.DataType], *found: dict[str, object]) -> pl.LazyFrame:
    """Rows with these columns; what a row leaves out is null."""
    return pl.DataFrame(list(found), schema=schema, infer_schema_length=None).lazy()


def operations(
    lines: dict[int, list[str]],
    *,
    group: str = "pg:0",
    first: int = 1,
    domain: str = "fr",
    done: int = 0,
    counts: dict[int, list[int]] | None = None,
) -> pl.LazyFrame:
    """Operations of one group: for each rank its calls, ``op`` or ``op shape``, from sequence number ``first`` on; ``counts``: opCounts."""
    rows = []
    for rank, calls in lines.items():
        for index, call in enumerate(calls):
            op, _, shape = call.partition(" ")
            rows.append(
                {
                    "domain": domain,
                    "group_key": group,
                    "group_name": group.removeprefix("pg:"),
                    "group_desc": "default_pg" if group == "pg:0" else None,
                    "rank": rank,
                    "seq": first + index,
                    "op": op,
                    "is_p2p": False,
                    "shape": shape or None,
                    "dtype": "Float",
                    "done": first + index <= done if done else None,
                    "order": index,
                    "op_count": counts[rank][index] if counts else None,
                    "source_id": rank,
                    "record": f"entries[{index}]",
                }
            )
    return pl.DataFrame(rows, schema=OPERATIONS).lazy()


def groups(members: dict[str, list[int]], domain: str = "fr") -> pl.LazyFrame:
    """Groups with their members."""
    rows = [
        {
            "domain": domain,
            "group_key": key,
            "group_name": key.removeprefix("pg:"),
            "group_desc": None,
            "comm_id": None,
            "members": ranks,
            "size": len(ranks),
        }
        for key, ranks in members.items()
    ]
    schema = {
        "domain": pl.String(),
        "group_key": pl.String(),
        "group_name": pl.String(),
        "group_desc": pl.String(),
        "comm_id": pl.String(),
        "members": pl.List(pl.Int32()),
        "size": pl.Int32(),
    }
    return pl.DataFrame(rows, schema=schema).lazy()


def progress(last: dict[str, dict[int, tuple[int, int | None]]], domain: str = "fr") -> pl.LazyFrame:
    """Progress per group and rank: (last entered, last completed)."""
    rows = [
        {
            "domain": domain,
            "group_key": key,
            "rank": rank,
            "first_seq": 1,
            "last_seq": entered,
            "last_done": done,
            "first_pending": (done + 1 if done is not None and done < entered else None),
            "count": entered,
            "pending_order": (done + 1 if done is not None and done < entered else None),
            "pending_op": ("all_reduce" if done is not None and done < entered else None),
            "last_op": "all_reduce",
            "last_order": entered,
            "last_created_ns": 1_000 * entered,
            "last_call_site": f"step of {key} (train.py:1)",
            "source_id": rank,
            "record": f"entries[{entered}]",
        }
        for key, ranks in last.items()
        for rank, (entered, done) in ranks.items()
    ]
    return pl.DataFrame(rows, schema=PROGRESS).lazy()


def waits_of(
    calls: pl.LazyFrame | Calls | None,
    state: pl.LazyFrame,
    known: pl.LazyFrame,
    parted: pl.LazyFrame | None,
    last_calls: pl.LazyFrame | None,
    dumps: pl.LazyFrame | None = None,
    rings: pl.LazyFrame | None = None,
    cut_logs: pl.LazyFrame | None = None,
) -> pl.LazyFrame:
    """Who waits for whom, with the views between: whose recorder was looked at earlier, and who never entered a group."""
    earlier = looked_at_earlier(calls, state)
    return waits(calls, state, known, parted, last_calls, earlier, never_entered(state, known, dumps, earlier), rings, cut_logs)
