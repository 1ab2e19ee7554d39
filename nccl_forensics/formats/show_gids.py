"""``show_gids``: the addresses (GIDs) of RDMA ports by index, which ``NCCL_IB_GID_INDEX`` numbers."""

from __future__ import annotations

import polars as pl

from nccl_forensics.formats.base import Reading, Text, TextFormat, filled, line_numbers
from nccl_forensics.grammar.blocks import after, classify, whole

_OPENS = r"^\s*DEV\s+PORT\s+INDEX\s+GID\b"


def read(text: Text) -> Reading:
    """One row per GID."""
    rows: list[dict[str, object]] = []
    claimed: list[int] = []
    for line in classify(after(text.lines, pl.col("text").str.contains(_OPENS)), "show_gids", strip=True):
        if line.kind is None:
            continue
        if line.kind == "gid":
            get = line.get
            facts = {"device": get("device"), "port": whole(get("port")), "index": whole(get("index")), "gid": get("gid")}
            rows.append({**line.where, **facts, "address": get("address"), "roce": get("version"), "netdev": get("netdev")})
        claimed.append(line.number)
    return Reading(frames=filled({"rdma_gids": rows}), lines=line_numbers(claimed))


FORMAT = TextFormat(name="show-gids", title="show_gids", tables=("rdma_gids",), anchors=("INDEX",), read=read, priority=42)
