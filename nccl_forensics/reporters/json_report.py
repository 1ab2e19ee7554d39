"""``report.json``: the contract's report as bytes, the same for the same evidence and version."""

from __future__ import annotations

import re
from collections.abc import Mapping

import orjson

_OPTIONS = orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
_INT64 = 1 << 63
_SURROGATE = re.compile("[\ud800-\udfff]")


def render(report: Mapping[str, object]) -> bytes:
    """UTF-8, sorted keys, trailing newline. Not-a-number becomes null."""
    try:
        return orjson.dumps(report, option=_OPTIONS)
    except TypeError:
        return orjson.dumps(_writable(report), option=_OPTIONS)


def _writable(value: object) -> object:
    """JSON has no lone surrogates (file names that are not UTF-8 carry them), and readers no integers beyond 64 bits."""
    if isinstance(value, str):
        return _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", value)
    if isinstance(value, bool) or value is None or isinstance(value, float):
        return value
    if isinstance(value, int):
        return value if -_INT64 <= value < 2 * _INT64 else str(value)
    if isinstance(value, Mapping):
        return {str(_writable(str(k))): _writable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_writable(v) for v in value]
    raise TypeError(f"{type(value).__name__} cannot stand in a report")
