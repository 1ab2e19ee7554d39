"""Which of Polars' engines collects: the one that has not been seen to fail."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import polars as pl


@contextmanager
def steady_engine() -> Iterator[None]:
    """Queries in the block run on Polars' in-memory engine.

    From 2.0 on Polars collects with its streaming engine. In 2.1.0 that one panics now and then in string functions inside when/then
    ("assertion failed: i < self.len()", polars-arrow binview), which ends the process' work with an error that is no Exception.
    """
    with pl.Config() as config:
        if hasattr(config, "set_engine_affinity"):
            config.set_engine_affinity("in-memory")
        yield
