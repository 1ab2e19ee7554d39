"""Ranks that seem to have passed over a call, and have only not come to it: by what others had behind them as they came there."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl


def in_turn(jumped: Mapping[int, tuple[dict[str, object], str]], progress: pl.LazyFrame, groups: pl.LazyFrame) -> set[int]:
    """Ranks of ``jumped_groups`` that stand in what is called before the call that they seem to have passed over (``comes_first``)."""
    places = with_roles(progress, groups)
    found: set[int] = set()
    for rank, (fact, ahead) in jumped.items():
        own = places.filter((pl.col("rank") == rank) & (pl.col("group_key") == ahead))
        known = own.height > 0 and fact["domain"] == "fr"
        if known and comes_first(places, (ahead, own["last_seq"][0]), (fact["group_key"], fact["seq"])):
            found.add(rank)
    return found


def with_roles(progress: pl.LazyFrame, groups: pl.LazyFrame) -> pl.DataFrame:
    """How far recorders show each rank in each group, with what the group is for (``group_desc``), where groups of a role bear numbers
    without these (tp_0, tp_1)."""
    known = groups.filter(pl.col("domain") == "fr").select("domain", "group_key", "group_desc").unique(["domain", "group_key"])
    described = known.with_columns(group_desc=_role(pl.col("group_desc").cast(pl.String)))
    state = progress.filter((pl.col("domain") == "fr") & pl.col("rank").is_not_null()).join(
        described, on=["domain", "group_key"], how="left"
    )
    return state.select("rank", "group_key", "group_desc", "last_seq", "last_done", "first_pending").collect()


def _role(desc: pl.Expr) -> pl.Expr:
    """A description without the number of its group; dimensions of a mesh without names are told apart by theirs."""
    return pl.when(desc.str.contains(r"dim[ _-]?[0-9]+$")).then(desc).otherwise(desc.str.replace(r"[ _-]?[0-9]+$", ""))


def comes_first(places: pl.DataFrame, one: tuple[object, object], other: tuple[object, object]) -> bool:
    """Whether the operation ``one`` (group and number) comes before the ``other``: of those who wait in that, those in other groups of the
    role of this have finished as many operations there, and nobody one less, as where it were of the next step. Groups of one description
    are of one role."""
    key, number = str(one[0]), int(str(one[1]))
    roles = places.filter(pl.col("group_key") == key)["group_desc"].drop_nulls()
    if not roles.len() or not roles[0]:
        return False
    here = (pl.col("group_key") == str(other[0])) & (pl.col("first_pending") == int(str(other[1])))
    stand = places.filter(here)["rank"].unique().implode()
    role = (pl.col("group_desc") == roles[0]) & (pl.col("group_key") != key) & pl.col("rank").is_in(stand)
    # Stages of a pipeline may count apart in groups of one description.
    beside = places.filter(role & pl.col("last_seq").is_between(number - 1, number))
    over = (beside["last_seq"] == number) & (beside["last_done"] == number)
    return beside.height > 0 and bool(over.fill_null(value=False).all())
