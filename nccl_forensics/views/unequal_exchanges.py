"""Exchanges of all with all in which the members together send something else than they together await."""

from __future__ import annotations

import polars as pl

from nccl_forensics.evidence import PLACE
from nccl_forensics.frames import has_rows, typed
from nccl_forensics.values.shapes import elements
from nccl_forensics.views import view
from nccl_forensics.views.calls import EXCHANGES, Calls, calls_of
from nccl_forensics.views.columns import read_at
from nccl_forensics.views.wait_edges import OF_GROUP

UNEQUAL_EXCHANGES = typed(
    OF_GROUP,
    "seq:i64 op:str ranks:list[i32] sent:i64 awaited:i64 odd:i32 own:i64 usual:i64 call_site:str",
    read_at(),
    "ended:bool",
)
#: So many others, of one size, make the usual size.
_OTHERS = 2
#: So many sizes at most are brought to exchanges of one group whose sizes are meant to be alike.
_FEW_SIZES = 8
#: Calls of one group that are looked at one by one.
_LOOKED_AT = 16
#: Sizes of these operations are not trusted by PyTorch's own analyzer up to schema 2.3.
_TRUSTED = 4


@view(rows="groups")
def unequal_exchanges(stuck: pl.LazyFrame, operations: pl.LazyFrame | Calls, dumps: pl.LazyFrame, groups: pl.LazyFrame) -> pl.LazyFrame:
    """All-to-alls that all members of a group entered and whose inputs and outputs do not sum up to the same: ``sent`` and ``awaited``
    elements. ``odd``: the one member whose input (or output) differs from those of all others, which are alike, by what is too much or too
    little (``own`` against ``usual``); null where sizes differ anyway. Of each group the one that none finished, or else the first that
    ``ended`` and in which there is an odd one: gloo takes a message that is shorter than it should be for the whole
    (gloo/transport/tcp/pair.cc). Cites the odd one's entry, else the first."""
    early = (pl.col("version_major") < 2) | ((pl.col("version_major") == 2) & (pl.col("version_minor") < _TRUSTED))
    untrusted = dumps.filter((pl.col("use") == "chosen") & early.fill_null(value=True))
    if has_rows(untrusted):
        return pl.LazyFrame(schema=UNEQUAL_EXCHANGES)
    calls = calls_of(operations)
    waited = stuck.filter((pl.col("domain") == "fr") & pl.col("op").is_in(EXCHANGES) & (pl.col("ranks").list.len() >= pl.col("size")))
    places = pl.concat([waited.select(*OF_GROUP, "seq", "op", ended=pl.lit(False)), _apart(calls, groups)]).sort(
        "group_key", "ended", "seq"
    )
    rows: dict[object, dict[str, object]] = {}
    for row in places.collect().iter_rows(named=True):
        there = (pl.col("domain") == "fr") & (pl.col("group_key") == row["group_key"]) & (pl.col("seq") == row["seq"])
        if row["group_key"] in rows:
            continue
        made = calls.every.filter(there & (pl.col("op") == row["op"])).sort("rank").collect()
        told = _told(made)
        if told is None or (row["ended"] and told["odd"] is None):
            continue
        cited = next((e for e in made.iter_rows(named=True) if e["rank"] == told["odd"]), made.row(0, named=True))
        rows[row["group_key"]] = row | {"ranks": made["rank"].to_list()} | told | {name: cited[name] for name in ("call_site", *PLACE)}
    return pl.DataFrame(list(rows.values()), schema=UNEQUAL_EXCHANGES, infer_schema_length=None).lazy()


def _apart(calls: Calls, groups: pl.LazyFrame) -> pl.LazyFrame:
    """Exchanges that all members of their group have made and ended, to which one brought a size that nobody else ever brings there: columns
    of the group, ``seq``, ``op`` and ``ended``. Not where members bring many sizes, as those do whose sizes differ by right."""
    of = groups.filter(pl.col("domain") == "fr").select("group_key", members=pl.col("members").list.len())
    counted = calls.counts.filter((pl.col("domain") == "fr") & pl.col("op").is_in(EXCHANGES))
    sizes = counted.group_by("group_key", "op", "shape").agg(pl.col("rank").n_unique())
    few = pl.len().over("group_key", "op").is_between(2, _FEW_SIZES)
    alone = sizes.join(of, on="group_key").filter(few & (pl.col("rank") == 1) & (pl.col("members") > _OTHERS)).drop("rank").collect()
    if not alone.height:
        return pl.LazyFrame(schema=OF_GROUP | {"seq": pl.Int64(), "op": pl.String(), "ended": pl.Boolean()})
    made = calls.every.filter((pl.col("domain") == "fr") & pl.col("seq").is_not_null() & pl.col("op").is_in(EXCHANGES))
    odd = made.join(alone.lazy(), on=["group_key", "op", "shape"]).select("group_key", "seq", "op", "members").unique()
    everyone = made.join(odd, on=["group_key", "seq", "op"]).group_by(*OF_GROUP, "seq", "op", "members")
    whole = everyone.agg(pl.col("rank").n_unique(), ended=pl.col("done").all())
    known = whole.filter((pl.col("rank") == pl.col("members")) & "ended").sort("group_key", "seq").select(*OF_GROUP, "seq", "op", "ended")
    return known.filter(pl.int_range(pl.len()).over("group_key") < _LOOKED_AT)


def _told(made: pl.DataFrame) -> dict[str, object] | None:
    """What is sent and awaited, and by whom it differs; None where both are the same, or not known."""
    sides = [[sum(found) if (found := elements(shape)) else None for shape in made[side]] for side in ("shape", "out_shape")]
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
