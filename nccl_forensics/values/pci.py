"""PCI addresses: every tool spells the same device differently; here they become one.

The kernel writes ``0000:3b:00.0``, an Xid line ``0000:3b:00``, NVML ``00000000:3B:00.0``, NCCL ``3b000`` (the hex digits without
punctuation and without leading zeros), lspci ``3b:00.0``. The domain is never dropped: clouds put every GPU on bus 0 of its own domain.
"""

from __future__ import annotations

import re

import polars as pl

_LONG = re.compile(r"^(?:([0-9a-f]{1,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?$")
_PACKED = re.compile(r"^[0-9a-f]{3,12}$")


def normal(address: str | None) -> str | None:
    """``0000:3b:00.0`` in lower case for any spelling, or None for what is not a PCI address. A missing function is 0."""
    if not address:
        return None
    text = address.strip().lower().removeprefix("pci:").removeprefix("0x")
    long = _LONG.match(text)
    if long:
        domain, bus, device, function = long.groups()
        return f"{int(domain or '0', 16):04x}:{bus}:{device}.{function or '0'}"
    if _PACKED.match(text):
        padded = text.zfill(9)
        return f"{int(padded[:-5], 16):04x}:{padded[-5:-3]}:{padded[-3:-1]}.{padded[-1]}"
    return None


def normal_expr(column: pl.Expr) -> pl.Expr:
    """``normal`` for the long spellings of a column (kernel, NVML, lspci)."""
    lower = column.str.to_lowercase().str.strip_chars()
    domain = lower.str.extract(r"^([0-9a-f]{4,8}):[0-9a-f]{2}:[0-9a-f]{2}").str.slice(-4).fill_null("0000")
    rest = lower.str.extract(r"([0-9a-f]{2}:[0-9a-f]{2})(?:\.[0-7])?$")
    function = lower.str.extract(r"\.([0-7])$").fill_null("0")
    return pl.when(rest.is_not_null()).then(domain + ":" + rest + "." + function).otherwise(None)
