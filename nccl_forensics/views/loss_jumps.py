"""Where a training curve breaks: values that are no numbers, and jumps that stay."""

from __future__ import annotations

import polars as pl

from nccl_forensics.frames import typed
from nccl_forensics.views import view

#: Values before a place by which it is judged, at least and at most; values from it on that must stay high.
_LEAST, _WINDOW, _STAYS = 16, 64, 4
#: Times the usual distance from the median (as a standard deviation) and times the median that a jump reaches at least.
_DEVIATIONS, _LOSS_FACTOR, _NORM_FACTOR = 10.0, 1.5, 10.0
#: A standard deviation in median distances, for a normal distribution.
_SIGMA = 1.4826
LOSS_JUMPS = typed(
    "source_id:u32 line_no:u32 time_raw_ns:i64 time_kind:str hint_rank:i32 hint_scope:str hint_host:str what:str kind:str step:i64",
    "value:f64 before:f64",
)


@view(rows="sources x ranks x 4")
def loss_jumps(training_steps: pl.LazyFrame) -> pl.LazyFrame:
    """The first place of each kind in each curve: ``what`` is loss or grad-norm, ``kind`` not-a-number or jump, ``before`` the median
    before.

    A value that is no number counts if the next one is none either, or none follows: with loss scaling single ones are part of the method.
    A jump counts if values stay high; a lone spike is weather.
    """
    curve = ["source_id", "hint_rank", "what"]
    long = pl.concat(
        [
            training_steps.with_columns(what=pl.lit("loss"), value=pl.col("loss")),
            training_steps.with_columns(what=pl.lit("grad-norm"), value=pl.col("grad_norm")),
        ]
    ).filter(pl.col("value").is_not_null())
    number = pl.when(pl.col("value").is_finite()).then(pl.col("value"))
    judged = (
        long.sort(*curve, "line_no")
        .with_columns(number=number, odd=~pl.col("value").is_finite())
        .with_columns(
            before=pl.col("number").rolling_median(_WINDOW, min_samples=_LEAST).shift(1).over(curve),
            after=pl.col("number").reverse().rolling_median(_STAYS, min_samples=1).reverse().over(curve),
            follows=pl.col("odd").shift(-1).over(curve).fill_null(True),
            led=pl.col("number").is_not_null().cum_sum().over(curve),
        )
        .with_columns(
            spread=(pl.col("number") - pl.col("before")).abs().rolling_median(_WINDOW, min_samples=_LEAST).shift(1).over(curve) * _SIGMA
        )
    )
    factor = pl.when(pl.col("what") == "loss").then(_LOSS_FACTOR).otherwise(_NORM_FACTOR)
    bound = pl.max_horizontal(pl.col("before") + _DEVIATIONS * pl.col("spread"), pl.col("before") * factor)
    high = (pl.col("before") > 0) & (pl.col("number") > bound) & (pl.col("after") > bound)
    broken = pl.col("odd") & pl.col("follows") & (pl.col("led") >= 1)
    kind = pl.when(broken).then(pl.lit("not-a-number")).when(high).then(pl.lit("jump"))
    found = judged.with_columns(kind=kind).filter(pl.col("kind").is_not_null())
    return found.unique([*curve, "kind"], keep="first", maintain_order=True).select(pl.col(c).cast(t) for c, t in LOSS_JUMPS.items())
