"""Columns that many views have in common, with their types."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

#: Which process group; ``comm_id`` beside it is its communicator.
GROUP: Mapping[str, pl.DataType] = {name: pl.String() for name in ("group_key", "group_name", "group_desc")}


def read_at(of: str = "") -> Mapping[str, pl.DataType]:
    """Where a row was read (``evidence.PLACE``), or with ``peer_``, ``own_`` and the like before the names the place of another."""
    return {of + "source_id": pl.UInt32(), of + "line_no": pl.UInt32(), of + "record": pl.String()}
