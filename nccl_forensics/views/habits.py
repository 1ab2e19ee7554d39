"""Which of two calls that differ is the usual one, by what recorders hold of earlier calls."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import polars as pl

from nccl_forensics.alignment import candidates, read_divergence
from nccl_forensics.values.ranklist import as_ranks
from nccl_forensics.words import ranks_words

#: No size at all, and that of a single element, which flags and losses have in any call.
_ANY = ((), ("1",))
#: What gloo records by the name of another operation (torch 2.13).
_AS_ANOTHER = "reduce_scatter"
_NUMBERS = re.compile(r"\d+")
#: Kinds of disagreement in which the call that was due tells who is wrong.
_TOLD_BY_STEPS = ("shape", "dtype", "different")


def by_habit(row: dict[str, object], operations: pl.LazyFrame) -> dict[str, object]:
    """A comparison of two calls (a row of ``divergences``) in which as many ranks are on one side as on the other: the side whose
    operation, type or size recorders of these ranks hold of earlier calls is right, if they hold none of the other side's. Operations that
    were compared and found to differ were never recorded."""
    if row["kind"] in _TOLD_BY_STEPS and (told := _by_the_steps_before(row, operations)) is not None:
        return told
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


def _by_the_steps_before(row: dict[str, object], operations: pl.LazyFrame) -> dict[str, object] | None:
    """The same where recorders hold the calls that this one follows, alike on those of these ranks that have one, in the one group in which
    each has made all but this, and the steps before foretell the call of one side: the other left it out if it makes what comes after that.
    ``in_place``: it made another one of just that size in its place, as a call that is new to all hardly would be.

    Torch compared all calls before this one as well, so that the record of one speaks for all.
    """
    odd, others = as_ranks(row["ranks"]), as_ranks(row["others"])
    members, column = [*odd, *others], "dtype" if row["kind"] == "dtype" else "shape"
    recorded = (pl.col("domain") == "fr") & pl.col("rank").is_in(members) & ~pl.col("is_p2p") & pl.col("seq").is_not_null()
    made = operations.filter(recorded).select("rank", "group_key", "seq", "op", column).sort("seq").collect()
    lines: dict[int, list[list[tuple[str, object]]]] = {}
    for (rank, _), part in made.group_by("rank", "group_key", maintain_order=True):
        if part["seq"][-1] + 1 == row["seq"]:
            calls = part.select("op", column).iter_rows()
            lines.setdefault(int(str(rank)), []).append([(op.removesuffix("_base"), _plain(column, value)) for op, value in calls])
    first = next(iter(lines.values()), [])
    if len(first) != 1 or any(found != first for found in lines.values()):
        return None
    history = first[0]
    ours, theirs = ((str(row[f"{a}_op"]).removesuffix("_base"), _plain(column, row[f"{a}_detail"])) for a in ("found", "expected"))
    foretold = candidates(history)
    if len(foretold) != 1 or (foretold[0] == ours) == (foretold[0] == theirs):
        return None
    told, call = (crossed(row), theirs) if foretold[0] == ours else (row, ours)
    reading = read_divergence(history, foretold, [call])
    why = f"the {len(history)} calls of this group before foretell the one of {ranks_words(as_ranks(told['others']))}"
    if reading.kind == "skipped" and reading.sure:
        return told | {"kind": "skipped", "skipped": reading.skipped, "sure": True, "why": f"{why}, and {reading.why}"}
    # Gloo records some operations by the name of another one: one that comes next may not be known again.
    sizes = [_plain("shape", row[f"{a}_detail"]) for a in ("found", "expected")]
    alike = sizes[0] == sizes[1] and sizes[0] not in _ANY
    in_place = row["kind"] == "different" and alike and not any(call[0].startswith(_AS_ANOTHER) for call in (ours, theirs))
    return told | {"sure": row["kind"] != "different", "in_place": in_place, "why": f"{row['why']}; {why}"}


def by_company(row: dict[str, Any], stands: Mapping[int, str]) -> dict[str, Any]:
    """A comparison of as many ranks as others, whose calls differ: where all other ranks of the job (two at least) stand at the line of one
    side, that side is right, as it seems; else ``either`` may be, unless one made its call in the place of another. ``stands``: the line of the program in which each rank stood last."""
    odd, others = as_ranks(row["ranks"]), as_ranks(row["others"])
    if row["sure"] or row["in_place"] or len(odd) != len(others):
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
