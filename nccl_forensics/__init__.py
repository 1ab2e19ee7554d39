"""Offline analyzer for hung, crashed and slow distributed training.

``analyze``, ``check``, ``compare`` and ``sql`` are the commands as functions; they are loaded when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nccl_forensics.api import Comparison, Incident, analyze, check, compare, read_report, sql

__version__ = "0.2.0"
__all__ = ["Comparison", "Incident", "__version__", "analyze", "check", "compare", "read_report", "sql"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from nccl_forensics import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted(__all__)
