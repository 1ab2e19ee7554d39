"""Which of two calls that differ is the usual one, by what recorders hold of earlier calls."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import polars as pl

from nccl_forensics.values.ranklist import as_ranks

_NUMBERS = re.compile(r"\d+")


def by_habit(row: dict[str, object], operations: pl.LazyFrame) -> dict[str, object]:
    """A comparison of two calls (a row of ``divergences``) in which as many ranks are on one side as on the other: the side whose
    operation, type or size recorders of these ranks hold of earlier calls is right, if they hold none of the other side's. Operations that
    were compared and found to differ were never recorded."""
    another = row["kind"] == "different"
    column = "shape" if another else str(row["kind"])
    odd, others = as_ranks(row["ranks"]), as_ranks(row["others"])
    if column not in ("dtype", "shape") or (another and len(odd) != len(others)):
        return row
    members = [*odd, *others]
    sides = {"ranks": ("found_op", "found_detail"), "others": ("expected_op", "expected_detail")}
    # A recorder of gloo knows the calls of one tensor by the name of those of a list (torch 2.13).
    names = {str(row[op]): str(row[op]).removesuffix("_base") for op, _ in sides.values()}
    recorded = (pl.col("domain") == "fr") & pl.col("rank").is_in(members) & pl.col("op").is_in([*names, *names.values()])
    before = operations.filter(recorded).select("op", column).unique().collect()
    calls = {(op.removesuffix("_base"), _plain(column, value)) for op, value in before.iter_rows() if value is not None}
    known = []
    for side, (op, detail) in sides.items():
        name, value = names[str(row[op])], row[detail]
        # Of an operation whose sizes may differ between ranks no size is compared.
        if (name, _plain(column, value)) in calls or (value is None and any(name == made for made, _ in calls)):
            known.append(side)
    if len(known) != 1:
        return row
    why = f"{row['why']}; recorders of these ranks hold earlier calls with one of the two only"
    # That it was called for the first time does not tell another call from one left out.
    sure = not another
    if known == ["others"]:
        return row | {"sure": sure, "why": why}
    return crossed(row) | {"sure": sure, "why": why}


def by_company(row: dict[str, Any], stands: Mapping[int, str]) -> dict[str, Any]:
    """A comparison of as many ranks as others, whose calls differ: where all other ranks of the job (two at least) stand at the line of one
    side, that side is right, as it seems; else ``either`` may be. ``stands``: the line of the program in which each rank stood last."""
    odd, others = as_ranks(row["ranks"]), as_ranks(row["others"])
    if row["sure"] or len(odd) != len(others):
        return row
    sides = [{stands.get(rank) for rank in side} for side in (odd, others)]
    company = [line for rank, line in stands.items() if rank not in (*odd, *others)]
    if len(company) < _COMPANY or len(set(company)) > 1 or sides[0] & sides[1] or {company[0]} not in sides:
        return row | {"either": True}
    told = row | {"why": f"{row['why']}; {len(company)} ranks of other groups stand where the others do"}
    return crossed(told) if sides[0] == {company[0]} else told


#: Ranks beside the two sides that must stand at the line of one of them.
_COMPANY = 2


def crossed(row: Mapping[str, Any]) -> dict[str, Any]:
    """The same comparison with the sides exchanged."""
    swapped = {"found": "expected", "expected": "found"}
    other = {a + end: row[b + end] for a, b in swapped.items() for end in ("_op", "_detail")}
    places = ("call_site", "source_id", "line_no", "record")
    exchanged = {name: row[f"peer_{name}"] for name in places} | {f"peer_{name}": row[name] for name in places}
    return {**row, **other, **exchanged, "ranks": row["others"], "others": row["ranks"]}


def _plain(column: str, value: object) -> object:
    """A type as it stands, and the numbers of a shape: a recorder puts the shape of each tensor into a list of shapes."""
    return tuple(_NUMBERS.findall(str(value))) if column == "shape" else str(value)
