"""Exchanges of all with all in which the members together send something else than they together await."""

from __future__ import annotations

import re
from math import prod

import polars as pl

from nccl_forensics.evidence import PLACE
from nccl_forensics.views import view
from nccl_forensics.views.calls import EXCHANGES, Calls, calls_of
from nccl_forensics.views.wait_edges import OF_GROUP

UNEQUAL_EXCHANGES = {
    **OF_GROUP,
    "seq": pl.Int64(),
    "op": pl.String(),
    "ranks": pl.List(pl.Int32()),
    "sent": pl.Int64(),
    "awaited": pl.Int64(),
    "odd": pl.Int32(),
    "own": pl.Int64(),
    "usual": pl.Int64(),
    "call_site": pl.String(),
    "source_id": pl.UInt32(),
    "line_no": pl.UInt32(),
    "record": pl.String(),
}
_SHAPE = re.compile(r"\[(\d+(?:, ?\d+)*)\]")
#: So many others, of one size, make the usual size.
_OTHERS = 2
#: Sizes of these operations are not trusted by PyTorch's own analyzer up to schema 2.3.
_TRUSTED = 4


@view(rows="groups")
def unequal_exchanges(stuck: pl.LazyFrame, operations: pl.LazyFrame | Calls, dumps: pl.LazyFrame) -> pl.LazyFrame:
    """All-to-alls that all members of a group entered and none finished, whose inputs and outputs do not sum up to the same: ``sent`` and
    ``awaited`` elements. ``odd``: the one member whose input (or output) differs from those of all others, which are alike, by what is too
    much or too little (``own`` against ``usual``); null where sizes differ anyway. Cites the odd one's entry, else the first."""
    early = (pl.col("version_major") < 2) | ((pl.col("version_major") == 2) & (pl.col("version_minor") < _TRUSTED))
    untrusted = dumps.filter((pl.col("use") == "chosen") & early.fill_null(value=True))
    waited = stuck.filter((pl.col("domain") == "fr") & pl.col("op").is_in(EXCHANGES) & (pl.col("ranks").list.len() >= pl.col("size")))
    rows: list[dict[str, object]] = []
    if untrusted.head(1).collect().height == 0:
        calls = calls_of(operations)
        for row in waited.sort("group_key").collect().iter_rows(named=True):
            place = (pl.col("domain") == "fr") & (pl.col("group_key") == row["group_key"]) & (pl.col("seq") == row["seq"])
            made = calls.every.filter(place & (pl.col("op") == row["op"])).sort("rank").collect()
            told = _told(made) if made["rank"].to_list() == sorted(row["ranks"]) else None
            if told is not None:
                cited = next((e for e in made.iter_rows(named=True) if e["rank"] == told["odd"]), made.row(0, named=True))
                rows.append(
                    {name: row[name] for name in (*OF_GROUP, "seq", "op", "ranks")}
                    | told
                    | {name: cited[name] for name in ("call_site", *PLACE)}
                )
    return pl.DataFrame(rows, schema=UNEQUAL_EXCHANGES, infer_schema_length=None).lazy()


def _told(made: pl.DataFrame) -> dict[str, object] | None:
    """What is sent and awaited, and by whom it differs; None where both are the same, or not known."""
    sides = [[_elements(shape) for shape in made[side]] for side in ("shape", "out_shape")]
    if any(size is None for side in sides for size in side):
        return None
    inputs, outputs = ([int(str(size)) for size in side] for side in sides)
    over = sum(inputs) - sum(outputs)
    if not over:
        return None
    told: dict[str, object] = {"sent": sum(inputs), "awaited": sum(outputs), "odd": None, "own": None, "usual": None}
    for sizes, surplus in ((inputs, over), (outputs, -over)):
        usual = max(set(sizes), key=sizes.count)
        odd = [at for at, size in enumerate(sizes) if size != usual]
        if len(odd) == 1 and len(sizes) > _OTHERS and sizes[odd[0]] - usual == surplus:
            return told | {"odd": made["rank"][odd[0]], "own": sizes[odd[0]], "usual": usual}
    return told


def _elements(shapes: str | None) -> int | None:
    """The elements of all tensors of a call (``[[6,8],[2]]``, or ``[48]`` of one)."""
    found = _SHAPE.findall(shapes or "")
    return sum(prod(int(size) for size in shape.split(",")) for shape in found) if found else None
