"""Views: tables derived from tables, each computed once per run, found by walking this folder.

A view is a function whose parameters name tables or other views (see ``registry``). ``rows`` states its bound; a view whose rows count
operations is written once and scanned by column.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Protocol

import polars as pl
from polars.exceptions import PanicException

from nccl_forensics.folding import FoldedTable
from nccl_forensics.frames import has_rows
from nccl_forensics.registry import Inputs, inputs_of
from nccl_forensics.views.calls import Calls, Parts


class Source(Protocol):
    """Where tables come from (``store.Store``)."""

    @property
    def present(self) -> frozenset[str]:
        """Tables that a source of the bundle could have filled."""
        ...

    def scan(self, table: str) -> pl.LazyFrame:
        """Rows of a table with ``source_id``."""
        ...

    def folded(self, table: str) -> FoldedTable:
        """The same folded, of a table that has columns of its own for each row."""
        ...

    def holds(self, table: str) -> bool:
        """Whether a table has any rows."""
        ...


#: What a view makes: rows, or operations of which some are not told one by one.
Made = pl.LazyFrame | Parts


@dataclass(frozen=True, slots=True)
class View:
    """One view: its name, the bound of its rows, and the function that derives it."""

    name: str
    rows: str
    function: Callable[..., Made]
    inputs: Inputs

    @property
    def doc(self) -> str:
        """What a row is."""
        return (self.function.__doc__ or "").strip()

    def __call__(self, *frames: pl.LazyFrame | None) -> pl.LazyFrame:
        """The view of these inputs, in the order of the function's parameters."""
        made = self.function(*frames)
        return made.calls().every if isinstance(made, Parts) else made


def view(*, rows: str) -> Callable[[Callable[..., Made]], View]:
    """Declare a view. ``rows`` bounds it in words, such as ``ranks x groups``; ``operations`` keeps it lazy."""

    def declare(function: Callable[..., Made]) -> View:
        return View(function.__name__, rows, function, inputs_of(function))

    return declare


@cache
def all_views() -> dict[str, View]:
    """Every view by name."""
    found: dict[str, View] = {}
    for info in sorted(pkgutil.iter_modules(__path__), key=lambda m: m.name):
        module = importlib.import_module(f"{__name__}.{info.name}")
        for value in vars(module).values():
            if isinstance(value, View):
                found[value.name] = value
    return found


class Resolver:
    """Names to frames for one run: tables are scanned, views computed at most once.

    A view whose rows count operations is kept in memory, or where ``scratch`` is given in a file there that readers scan by column.
    """

    def __init__(self, source: Source, scratch: Path | None = None) -> None:
        self._source = source
        self._scratch = scratch
        self._known: dict[str, pl.LazyFrame | None] = {}
        self._calls: dict[str, Calls] = {}
        self._folded: dict[str, FoldedTable] = {}
        self._failed: set[str] = set()
        self._forgiving = False

    def get(self, name: str) -> pl.LazyFrame | None:
        """The table or view, or None where nothing in the bundle could have filled it. Raises what a view raises, until ``forgive``."""
        if name not in self._known:
            try:
                self._known[name] = self._resolve(name)
            except (Exception, PanicException):
                self._failed.add(name)
                if not self._forgiving:
                    raise
                self._known[name] = None
        return self._known[name]

    def holds(self, name: str) -> bool:
        """Whether a table or view has any rows; operations that are kept as numbers are not spelled out for it."""
        frame = self.get(name)
        if frame is None:
            return False
        if name not in all_views():
            return self._source.holds(name)
        calls = self._calls.get(name)
        # The first operation of each communicator and rank is among those that tell.
        return has_rows(calls.telling if calls is not None else frame)

    def shows(self, name: str, what: pl.Expr) -> bool:
        """Whether a table or view is there and has a row of which this is true."""
        return has_rows(self.get(name), what)

    def words(self, name: str) -> pl.LazyFrame | None:
        """Of a table that has columns of its own for each row what its rows share, each sort once; without those columns."""
        frame = self.get(name)
        return None if frame is None else self._folding(name).words.lazy()

    def _folding(self, name: str) -> FoldedTable:
        if name not in self._folded:
            self._folded[name] = self._source.folded(name)
        return self._folded[name]

    def forgive(self) -> None:
        """From now on a view that raises is taken for absent: the rules that need it are reported as crashed, and the rest of the report is
        made without it."""
        self._forgiving = True

    @property
    def failed(self) -> frozenset[str]:
        """Views that raised so far."""
        return frozenset(self._failed)

    def _resolve(self, name: str) -> pl.LazyFrame | None:
        declared = all_views().get(name)
        if declared is None:
            return self._source.scan(name) if name in self._source.present else None
        order = declared.inputs.order
        frames = {n: self.get(n) for n in order}
        if any(frames[n] is None for n in declared.inputs.required):
            return None
        evidence = [n for n in order if n not in _ALWAYS]
        if evidence and all(frames[n] is None for n in evidence):
            return None
        made = declared.function(*(self._richer(n, frames[n]) if n in declared.inputs.richer else frames[n] for n in order))
        if isinstance(made, Parts):
            self._calls[name] = calls = replace(made, others=self._kept(name, made.others)).calls()
            return calls.every
        return self._kept(name, made) if declared.rows == "operations" else made.collect().lazy()

    def _richer(self, name: str, frame: pl.LazyFrame | None) -> pl.LazyFrame | Calls | FoldedTable | None:
        """The form of an input that tells more than its rows, where there is one."""
        if name in all_views() or frame is None:
            return self._calls.get(name, frame)
        return self._folding(name)

    def _kept(self, name: str, result: pl.LazyFrame) -> pl.LazyFrame:
        """Rows that count operations, computed once."""
        frame = result.collect()
        # A text that is null costs as many bytes as one that is not: columns that nothing fills are not written.
        filled = [c for c in frame.columns if frame[c].null_count() < frame.height]
        if self._scratch is None or not filled:
            return frame.lazy()
        handle, file = tempfile.mkstemp(prefix=f"{name}.", suffix=".arrow", dir=self._scratch)
        os.close(handle)
        frame.select(filled).write_ipc(file)
        schema = frame.schema
        return pl.scan_ipc(file).select(pl.col(c) if c in filled else pl.lit(None, dtype=t).alias(c) for c, t in schema.items())

    def missing(self, inputs: Inputs) -> tuple[str, ...]:
        """Required inputs that are absent; all inputs if every one of them is."""
        absent = [n for n in inputs.required if self.get(n) is None]
        if absent:
            return tuple(absent)
        evidence = [n for n in inputs.optional if n not in _ALWAYS]
        if not inputs.required and evidence and all(self.get(n) is None for n in evidence):
            return tuple(evidence)
        return ()


#: Present in every bundle, so they say nothing about whether there is evidence.
_ALWAYS = frozenset({"sources", "gaps"})
