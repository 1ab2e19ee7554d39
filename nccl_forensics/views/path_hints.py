"""What the names of files say of ranks and attempts."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from string import ascii_letters
from typing import Any

import polars as pl

from nccl_forensics.frames import typed
from nccl_forensics.values.claims import NUMBER, WORD
from nccl_forensics.views import view

_RANK_WORD = re.compile(r"(?:^|[^a-z])(?:global_?)?rank[_\-. =]?(\d{1,6})(?!\d)", re.IGNORECASE)
_TRAILING = re.compile(r"^(.*?)(\d{1,6})(?:\.[A-Za-z][\w.]*)?$")
#: Where torchrun writes what a worker says: ``<log dir>/<run id>/attempt_<restarts>/<local rank>/stdout.log``
#: (PyTorch ``torch/distributed/elastic/multiprocessing/api.py``).
ATTEMPT = re.compile(r"(?:^|/)attempt_(\d{1,6})/(\d{1,6})/[^/]+$")

#: Formats that are told apart by more than their text, and those of stacks.
_BINARY, _SAMPLERS = ("flight-recorder", "chrome-trace"), {"py-spy", "gdb"}


def rank_in_path(path: str) -> tuple[int, int] | None:
    """(rank, strength) that a path claims, or None. The word ``rank`` before the number is a stronger claim than a bare number."""
    base = path.rsplit("/", 1)[-1]
    for part in (base, path.rsplit("!", 1)[-1]):
        words = _RANK_WORD.findall(part)
        if words:
            return int(words[-1]), WORD
    trailing = _TRAILING.match(base)
    # A number that ends a hash, or a longer number, has digits before it in the same word.
    if trailing and not trailing.group(1).rstrip(ascii_letters)[-1:].isdigit():
        return int(trailing.group(2)), NUMBER
    return None


@view(rows="sources")
def path_hints(sources: pl.LazyFrame) -> pl.LazyFrame:
    """What each path hints at: ``source_id``, ``path_rank``, ``path_strength``, ``stem``, ``attempt``, ``attempt_local_rank``. Bare numbers
    by which files are merely counted are no ranks."""
    rows: list[dict[str, Any]] = []
    kinds: dict[int, str | None] = {}
    for source_id, path, formats in sources.select("source_id", "path", "formats").collect().iter_rows():
        claim = rank_in_path(path)
        attempt = ATTEMPT.search(path)
        base = path.rsplit("/", 1)
        trailing = _TRAILING.match(base[-1])
        kinds[source_id] = _kind(formats)
        rows.append(
            {
                "source_id": source_id,
                "path_rank": claim[0] if claim else None,
                "path_strength": claim[1] if claim else None,
                "stem": (base[0] + "/" if len(base) == 2 else "") + (trailing.group(1) if trailing else base[-1]),
                "attempt": int(attempt.group(1)) if attempt else None,
                "attempt_local_rank": int(attempt.group(2)) if attempt else None,
            }
        )
    counted = _merely_counted(rows, kinds)
    rows = [row | {"path_rank": None, "path_strength": None} if row["source_id"] in counted else row for row in rows]
    schema = typed("source_id:u32 path_rank:i32 path_strength:i32 stem:str attempt:i32 attempt_local_rank:i32")
    return pl.DataFrame(rows, schema=schema).lazy()


def _kind(formats: Iterable[str] | None) -> str | None:
    """What kind of file this is, as far as names tell kinds apart; None where nothing could be read in it."""
    told = set(formats or ())
    return next((kind for kind in _BINARY if kind in told), "stacks" if _SAMPLERS & told else "text" if told else None)


def _merely_counted(rows: Sequence[Mapping[str, Any]], kinds: Mapping[int, str | None]) -> set[int]:
    """Sources with a bare number in their names by which files of several kinds are counted through (``log1`` a dump, ``log2`` a stack):
    where numbers are ranks, files of one rank bear one number."""
    stems: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for row in rows:
        if row["path_strength"] == NUMBER:
            stems[row["stem"]].append((row["source_id"], row["path_rank"]))
    counted: set[int] = set()
    for family in stems.values():
        of_kind = Counter(kind for source, _ in family if (kind := kinds[source]) is not None)
        if len({number for _, number in family}) == len(family) and sum(files > 1 for files in of_kind.values()) > 1:
            counted.update(source for source, _ in family)
    return counted
