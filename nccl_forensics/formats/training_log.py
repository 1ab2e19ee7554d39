"""Lines in which a training loop tells its loss, whatever the framework: Megatron-LM, Trainer, torchtitan, fairseq, Lightning, plain
prints.

Frameworks write the same few facts in any order, with any separator, so the line is searched for each instead of being parsed by a grammar.
A line counts if it has a training loss and either a step or the shape of the Trainer's dictionary, which has none. A line that begins with
its step and holds nothing but values counts without a loss, if it is one of a series.
"""

from __future__ import annotations

import polars as pl

from nccl_forensics.formats.base import Reading, Text, TextFormat
from nccl_forensics.tables import TABLES

_NUMBER = r"[-+]?(?:[0-9]+\.?[0-9]*(?:[eE][-+]?[0-9]+)?|nan|NaN|NAN|inf|Inf|Infinity)"
_IS = r"['\"]?\s*[:=]?\s*['\"]?"
#: The word before tells whose loss it is: of the whole step, not of a part of it, of a test or of packets.
_LOSS = rf"(?:^|[^A-Za-z0-9_])(?:([A-Za-z][A-Za-z0-9]*)[ _/])?[Ll]oss{_IS}({_NUMBER})(?:$|[^A-Za-z0-9_.%])"
_WHOLE = ("", "lm", "train", "training", "total", "mean", "avg", "step", "reduced")
_STEP = r"(?i)(?:^|[^a-z0-9_.])(?:iteration|iter|it|(?:global[_ ])?step)['\"]?\s*[:=]?\s*\[?([0-9]+)(?:$|[^0-9.])"
#: Words that may count something above the step, and are read where nothing else is: ``round 3 step 7`` is step 7.
_COUNT = r"(?i)(?:^|[^a-z0-9_.])(?:update|round|generation)['\"]?\s*[:=#]?\s*\[?([0-9]+)(?:$|[^0-9.])"
_BATCH = r"(?i)(?:^|[^a-z0-9_])epoch\s*[:=]?\s*[0-9]+[ ,:|]+batch\s*[:=]?\s*([0-9]+)(?:$|[^0-9.])"
#: A number alone in brackets before the loss: the step, where it rises from line to line, and else a rank or a device.
_BRACKET = r"(?i)^\s*\[\s*([0-9]+)\]:?\s+(?:(?:train|training|total|mean|avg)[ _/])?loss"
#: Lightning and tqdm count ``10/100 [00:01<00:10`` and write the loss behind it; fairseq ``epoch 001:    100 / 2000 loss=``.
_OF = r"(?:\s|:)([0-9]+) ?/ ?[0-9]+ (?:\[[0-9:]+<|loss=)"
_NORM = rf"(?i)(?:^|[^a-z0-9_])(?:grad(?:ient)?[ _]?norm|gnorm){_IS}({_NUMBER})(?:$|[^A-Za-z0-9_])"
_SKIPPED = r"(?i)number of skipped iterations:\s*([0-9]+)"
#: A number with its unit in the name (groups 1 and 2) or behind it (3, 4), or of what calls itself a time (5, 6), which is in seconds then.
_NUM, _UNIT, _END = r"['\"]?\s*[:=]?\s*([0-9]+(?:\.[0-9]+)?(?:e-?[0-9]+)?)", "(ms|msec|us|s|sec|seconds)", "(?:$|[^a-z0-9.%/])"
_TOOK = rf"(?:(?:[_ -]?time)?[_ ]?\(?{_UNIT}\)?{_NUM}{_END}|(?:[_ -]?time)?{_NUM} ?{_UNIT}{_END}|[_ -]?(time){_NUM}{_END})"
_STEP_TOOK = (
    rf"(?i)(?:^|[^a-z0-9_])(?:(?:train[_ ])?(?:step|iter|iteration|batch)|elapsed[_ ]time per iteration|time per (?:step|iteration)){_TOOK}"
)
_INPUT_TOOK = (
    r"(?i)(?:^|[^a-z0-9_])(?:data(?:[_ -]?(?:load(?:ing|er)?|fetch|wait))?|dataload(?:er|ing)?|load(?:ing)?[_ ]data|batch[_ -](?:load|fetch|generator)"
    rf"|input(?:[_ -]wait)?){_TOOK}"
)
#: Lines with a bracket that are too few to tell whether its number rises.
_FEW = 2
_UNITS_MS = {"ms": 1.0, "msec": 1.0, "us": 1e-3, "s": 1e3, "sec": 1e3, "seconds": 1e3, "time": 1e3}
#: The rank that the line itself names.
_RANK = r"(?i)(?:^|[^a-z0-9_])rank[ =:]{0,2}([0-9]{1,5})(?:$|[^0-9.])"
#: A line that begins with its step, behind brackets, a clock, rank and epoch at most, and goes on with names and numbers.
_OPENS = (
    r"(?i)^\s*(?:\[[^\]]{1,40}\]:?\s*){0,3}(?:[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9:.,]+Z?[ |:-]*)?(?:(?:INFO|DEBUG)\b[ |:-]*(?:[a-z_][a-z0-9_.]{0,40}: *)?)?"
    r"(?:(?:rank|epoch)[ =:]?[0-9]+[ |:,]+){0,2}(?:global[ _])?(?:step|iteration|iter|it|update|round|generation)\s*[:=#]?\s*[0-9]+(?:/[0-9]+)?"
    r"(?:[\s|,;:()]+[a-z_][a-z0-9_./-]{0,24}\s*[:= ]\s*(?:[-+]?[0-9][0-9.e+-]*|nan|inf)\s?[a-z%/]{0,12})*[\s|,;:.)]*$"
)
#: A clock of the training loop itself, where no launcher's prefix told the time.
_CLOCK = r"^.{0,40}?([0-9]{4}-[0-9]{2}-[0-9]{2})[ T]([0-9]{2}:[0-9]{2}:[0-9]{2})"
#: A step that tells how many there are: ``step 400/400`` is the last one.
_LAST_OF = r"(?i)(?:^|[^a-z0-9_.])(?:iteration|iter|it|update|round|(?:global[_ ])?step)\s*[:=#]?\s*([0-9]+) ?/ ?([0-9]+)(?:$|[^0-9.])"
_DICTIONARY = r"^\s*\{'loss': "
#: Trainer's last dictionary, Lightning's word, Megatron-LM's (``[after training is done]``), and what people print themselves.
_DONE = r"(?i)'train_runtime':|`trainer\.fit` stopped: `max_|\btraining (?:is |has |was )?(?:finished|completed?|done)\b|\b(?:finished|completed) training\b"


def read(text: Text) -> Reading:
    """One row per line with a training loss or of a series of steps, and the word that it is over."""
    body = pl.col("text")
    found = (
        text.hits.with_columns(
            whose=body.str.extract(_LOSS, 1).str.to_lowercase().fill_null(""),
            loss=_value(body.str.extract(_LOSS, 2)),
            step=pl.coalesce(*(body.str.extract(told, 1) for told in (_STEP, _OF, _BATCH, _COUNT)), _risen(body)).cast(
                pl.Int64, strict=False
            ),
            grad_norm=_value(body.str.extract(_NORM, 1)),
            skipped=body.str.extract(_SKIPPED, 1).cast(pl.Int64, strict=False),
            rank=body.str.extract(_RANK, 1).cast(pl.Int32, strict=False),
            step_ms=_took(body, _STEP_TOOK),
            input_ms=_took(body, _INPUT_TOOK),
        )
        .with_columns(told=pl.col("loss").is_not_null() & pl.col("whose").is_in(_WHOLE))
        .filter((pl.col("told") & (pl.col("step").is_not_null() | body.str.contains(_DICTIONARY))) | _of_series(body))
        .with_columns(loss=pl.when("told").then("loss"))
    )
    if found.is_empty():
        return Reading()
    own = pl.concat_str(body.str.extract(_CLOCK, 1), pl.lit(" "), body.str.extract(_CLOCK, 2))
    clock = own.str.to_datetime("%Y-%m-%d %H:%M:%S", time_unit="ns", strict=False).cast(pl.Int64)
    kind = pl.coalesce("time_kind", pl.when(clock.is_not_null()).then(pl.lit("local-unzoned")))
    found = found.with_columns(time_raw_ns=pl.coalesce("time_raw_ns", clock), time_kind=kind)
    last = found["line_no"].max()
    whole = (body.str.extract(_LAST_OF, 1) == body.str.extract(_LAST_OF, 2)) & (pl.col("line_no") == last)
    said = (pl.col("line_no") > last) & body.str.contains(_DONE)
    over = text.hits.filter(whole | said).with_columns(message=body.str.strip_chars().str.slice(0, 200))
    frames = {"training_steps": TABLES["training_steps"].conform(found)}
    frames |= {"training_ends": TABLES["training_ends"].conform(over)} if over.height else {}
    return Reading(frames=frames, lines=pl.concat([found["line_no"], over["line_no"]]).unique())


def _of_series(body: pl.Expr) -> pl.Expr:
    """Whether a line without a loss begins with its step, and another such one of the same rank with another step: one alone may be of
    anything."""
    opens = ~pl.col("told") & body.str.contains(_OPENS)
    steps = pl.when(opens).then("step").n_unique().over("hint_rank", "rank", opens)
    return opens & pl.col("step").is_not_null() & (steps > 1)


def _risen(body: pl.Expr) -> pl.Expr:
    """The number in brackets before a loss, if there are three and more and each is greater than the one before: ranks come again."""
    number = body.str.extract(_BRACKET, 1)
    value = number.cast(pl.Int64, strict=False).drop_nulls()
    return pl.when((value.len() > _FEW) & (value.diff().min() > 0)).then(number)


def _took(body: pl.Expr, pattern: str) -> pl.Expr:
    """Milliseconds, where the line tells of what unit its number is."""
    number, unit = (pl.coalesce(body.str.extract(pattern, group) for group in groups) for groups in ((2, 3, 6), (1, 4, 5)))
    unit = unit.str.to_lowercase()
    return _value(number) * unit.replace_strict(_UNITS_MS, default=None, return_dtype=pl.Float64)


def _value(text: pl.Expr) -> pl.Expr:
    """A number; not-a-number and infinity as such, in whatever case they are written."""
    return text.str.to_lowercase().str.replace("infinity", "inf").cast(pl.Float64, strict=False)


FORMAT = TextFormat(
    name="training-log",
    title="steps, loss and gradient norm of a training loop",
    tables=("training_steps", "training_ends"),
    anchors=(
        "loss",
        "Loss",
        "raining",
        "train_runtime",
        "Trainer.fit",
        "step ",
        "Step ",
        "iter ",
        "step=",
        "it=",
        "iter=",
        "update ",
        "round ",
    ),
    read=read,
    priority=75,
)
