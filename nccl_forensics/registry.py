"""How views and rules name what they read: by the names of their parameters.

A function's positional parameters are tables or views. ``pl.LazyFrame`` is required, ``pl.LazyFrame | None`` optional: ``None`` is
handed in where nothing in the bundle could have filled it (absent is not empty). One that may be something else than a frame as well gets
that where there is such a form of it (``folding.FoldedTable`` of a table, ``views.calls.Calls`` of operations). Keyword-only parameters
are thresholds.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from dataclasses import dataclass

import polars as pl


@dataclass(frozen=True, slots=True)
class Threshold:
    """One keyword-only parameter of a rule: its default and what it means."""

    name: str
    default: float | int | str | bool
    meaning: str


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a view or rule reads; ``order`` is that in which its function takes it."""

    order: tuple[str, ...]
    required: tuple[str, ...]
    optional: tuple[str, ...]
    thresholds: tuple[Threshold, ...]
    richer: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All inputs, required ones first."""
        return self.required + self.optional


#: What nearly all inputs are, as it is written: to evaluate the annotations of all rules and views takes longer than to run most of them.
_USUAL: dict[object, frozenset[object]] = {
    "pl.LazyFrame": frozenset({pl.LazyFrame}),
    "pl.LazyFrame | None": frozenset({pl.LazyFrame, type(None)}),
}


def inputs_of(function: Callable[..., object]) -> Inputs:
    """Inputs and thresholds of a view or rule, read from its code: ``inspect.signature`` takes longer than most of them run."""
    code, defaults = function.__code__, function.__kwdefaults__ or {}
    named = code.co_varnames[: code.co_argcount]
    annotations = function.__annotations__
    usual = _USUAL if function.__globals__.get("pl") is pl else {}
    written = {name: note for name, note in annotations.items() if name != "return" and note not in usual}
    hints = (
        typing.get_type_hints(types.SimpleNamespace(__annotations__=written), function.__globals__, include_extras=True) if written else {}
    )
    required: list[str] = []
    optional: list[str] = []
    richer: list[str] = []
    for name in named:
        hint = hints.get(name)
        kinds = usual.get(annotations.get(name)) or set(typing.get_args(hint)) or {hint}
        (optional if type(None) in kinds or pl.LazyFrame not in kinds else required).append(name)
        if kinds - {pl.LazyFrame, type(None)} and pl.LazyFrame in kinds:
            richer.append(name)
    thresholds: list[Threshold] = []
    for name in code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]:
        hint = hints.get(name)
        meaning = str(typing.get_args(hint)[1]) if typing.get_origin(hint) is typing.Annotated else ""
        thresholds.append(Threshold(name, defaults[name], meaning))
    return Inputs(named, tuple(required), tuple(optional), tuple(thresholds), tuple(richer))
