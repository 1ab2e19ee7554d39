"""Citing: from rows of a table or view to evidence that can be walked back to a file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

import polars as pl

from nccl_forensics.model import Evidence

#: Columns that say where a row was read; ``peer_``, ``own_`` and the like before them where it is the place of another.
PLACE = ("source_id", "line_no", "record")
#: Evidence items carried per finding; the total is counted beside them.
AT_MOST = 20
#: Characters of a message that tell it from others.
_TELLING = 60
#: Name of the function, of its file without folders, and the line.
_FRAME = re.compile(r"^(.+?) \((?:.*[/\\])?([^/\\]+):(\d+)\)$")


def cite(rows: pl.DataFrame | Iterable[Mapping[str, object]], why: str, at_most: int = AT_MOST) -> tuple[Evidence, ...]:
    """Evidence for rows that carry ``source_id`` and ``line_no`` (with ``end_line``) or ``record``. Of a row that ``holds`` words, the line of
    its block is meant that does."""
    mappings = rows.head(at_most).iter_rows(named=True) if isinstance(rows, pl.DataFrame) else rows
    out: list[Evidence] = []
    for row in mappings:
        if len(out) >= at_most:
            break
        source, line, end, record = row.get("source_id"), row.get("line_no"), row.get("end_line"), row.get("record")
        if source is None:
            continue
        item_why, holds = str(row.get("why") or why), row.get("holds")
        if line is not None:
            to, words = int(str(end)) if end is not None else None, tuple(holds) if isinstance(holds, (list, tuple)) else ()
            out.append(Evidence("line", int(str(source)), int(str(line)), to, None, (), item_why, words))
        elif record is not None:
            out.append(Evidence("record", int(str(source)), None, None, str(record), (), item_why))
        else:
            out.append(Evidence("file", int(str(source)), why=item_why))
    return tuple(out)


def whereabouts(row: Mapping[str, object], of: str = "") -> dict[str, object]:
    """What ``cite`` needs of a row, and no more (a column ``why`` would speak for the item); ``of``: the beginning of the columns' names,
    where a row says the place of another than its own (``peer_``, ``own_``, ``stack_``)."""
    return {"source_id": row[of + "source_id"], "line_no": row.get(of + "line_no"), "record": row.get(of + "record")}


def words_of_exception(row: Mapping[str, object]) -> tuple[str, ...]:
    """Of a row with ``type`` and ``message`` of an exception: what the line of its traceback holds that tells it."""
    message = str(row.get("message") or "").strip().split("\n", 1)[0][:_TELLING]
    return tuple(word for word in (str(row.get("type") or ""), message.strip()) if word)


def at_frame(evidence: Iterable[Evidence], frame: object) -> tuple[Evidence, ...]:
    """The same, at the line of a stack that names this frame, ``func (file:line)``, in whatever words its sampler writes it."""
    found = _FRAME.match(str(frame or ""))
    return tuple(replace(e, holds=found.groups()) if found is not None and e.line is not None else e for e in evidence)


def cite_absence(why: str, looked_in: Iterable[str]) -> tuple[Evidence, ...]:
    """Evidence that something is not there, with where it was looked for."""
    return (Evidence("absence", looked_in=tuple(looked_in), why=why),)
