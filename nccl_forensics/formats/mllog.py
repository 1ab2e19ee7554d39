"""MLPerf's log of a training run: lines ``:::MLLOG`` with one JSON object each (mlperf_logging), alone or among what else the job printed.

Of steps it tells the loss where the program tracks it, else the evaluations; ``run_stop`` with status ``success`` is the word that the
training is over. A run that did not reach its target in time says ``aborted``, of its own accord: that is no end of a training.
"""

from __future__ import annotations

from collections.abc import Mapping

import orjson
import polars as pl

from nccl_forensics.formats.base import Gap, Reading, Text, TextFormat, filled, line_numbers
from nccl_forensics.tables import TABLES
from nccl_forensics.values.documents import mapping

_MARK = ":::MLLOG"
#: What tells how far a run was, in the order of preference: optimizer steps, samples, epochs.
_COUNTS = ("step", "samples_count", "epoch_num")
_LOSSES = ("train_loss", "loss")


def read(text: Text) -> Reading:
    """Rows of one text source."""
    rows = text.hits.filter(pl.col("text").str.contains(_MARK, literal=True))
    tracked: list[dict[str, object]] = []
    evaluated: list[dict[str, object]] = []
    ends: list[dict[str, object]] = []
    claimed: list[int] = []
    gaps: list[Gap] = []
    for row in rows.iter_rows(named=True):
        said = _object(str(row["text"]).partition(_MARK)[2])
        if said is None:
            gaps.append(Gap("unparsed: no JSON object behind the mark", row["line_no"], text=row["text"]))
            continue
        claimed.append(row["line_no"])
        metadata = mapping(said.get("metadata"))
        line = {**row, **_time(said.get("time_ms"), row), "step": _count(metadata)}
        value = said.get("value")
        match said.get("key"):
            case "tracked_stats" if (loss := _loss(value)) is not None and line["step"] is not None:
                tracked.append({**line, "loss": loss})
            case "eval_accuracy" | "eval_error" if line["step"] is not None:
                evaluated.append(line)
            case "run_stop" if metadata.get("status") == "success":
                ends.append({**line, "message": "MLPerf: run_stop, status success"})
            case _:
                pass
    steps = tracked or evaluated
    found = {"training_steps": steps, "training_ends": ends}
    return Reading(
        frames=filled({name: [_own(name, row) for row in part] for name, part in found.items()}),
        lines=line_numbers(claimed),
        gaps=tuple(gaps),
    )


def _own(name: str, row: Mapping[str, object]) -> dict[str, object]:
    """Of a row what its table has a column for."""
    return {column: row[column] for column in TABLES[name].columns if column in row}


def _object(text: str) -> dict[str, object] | None:
    try:
        said = orjson.loads(text.strip())
    except orjson.JSONDecodeError:
        return None
    return said if isinstance(said, dict) else None


def _time(milliseconds: object, row: Mapping[str, object]) -> dict[str, object]:
    """The clock of the line itself, else what stood before it."""
    if isinstance(milliseconds, int | float) and milliseconds > 0:
        return {"time_raw_ns": int(milliseconds) * 1_000_000, "time_kind": "epoch"}
    return {"time_raw_ns": row["time_raw_ns"], "time_kind": row["time_kind"]}


def _count(metadata: Mapping[str, object]) -> int | None:
    return next((int(n) for name in _COUNTS if isinstance(n := metadata.get(name), int) and not isinstance(n, bool)), None)


def _loss(value: object) -> float | None:
    stats = mapping(value)
    return next((float(x) for name in _LOSSES if isinstance(x := stats.get(name), int | float) and not isinstance(x, bool)), None)


FORMAT = TextFormat(
    name="mllog",
    title="MLPerf's log of a training run (:::MLLOG)",
    tables=("training_steps", "training_ends"),
    anchors=(_MARK,),
    read=read,
    priority=20,
)
