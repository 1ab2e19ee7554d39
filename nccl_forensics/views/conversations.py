"""Conversations of captures, whether a binary one was read or the text that tcpdump prints."""

from __future__ import annotations

import polars as pl

from nccl_forensics.tables import TABLES
from nccl_forensics.views import view

_ENDS = ("source_id", "protocol", "source", "source_port", "destination", "destination_port")


@view(rows="conversations")
def conversations(flows: pl.LazyFrame | None, packets: pl.LazyFrame | None) -> pl.LazyFrame:
    """The rows of ``flows``, and the same counts of the TCP packets that a text lists one by one.

    A segment with data whose numbers came before was sent again; where a port was used for two connections their numbers are not compared.
    """
    schema = {"source_id": pl.UInt32(), **TABLES["flows"].schema}
    told = flows if flows is not None else pl.LazyFrame(schema=schema)
    if packets is None:
        return told
    flags = pl.col("flags").fill_null("")
    opens, data = flags.str.contains("S") & ~flags.str.contains(".", literal=True), pl.col("length_bytes") > 0
    counted = (
        packets.filter((pl.col("protocol") == "tcp") & pl.col("line_no").is_not_null())
        .sort("source_id", "line_no")
        .group_by(_ENDS, maintain_order=True)
        .agg(
            pl.col("line_no").first(),
            packets=pl.len().cast(pl.Int64),
            bytes=pl.col("length_bytes").cast(pl.Int64).sum(),
            resent=pl.when(pl.col("seq").filter(opens).n_unique() > 1)
            .then(0)
            .otherwise(data.sum().cast(pl.Int64) - pl.struct("seq", "seq_end").filter(data).n_unique().cast(pl.Int64)),
            syns=opens.sum().cast(pl.Int64),
            syn_acks=(flags.str.contains("S") & flags.str.contains(".", literal=True)).sum().cast(pl.Int64),
            resets=flags.str.contains("R").sum().cast(pl.Int64),
            fins=flags.str.contains("F").sum().cast(pl.Int64),
            zero_windows=((pl.col("window") == 0) & ~flags.str.contains("R|S")).sum().cast(pl.Int64),
            naks=pl.lit(0, dtype=pl.Int64()),
            cnps=pl.lit(0, dtype=pl.Int64()),
        )
    )
    wanted = [pl.col(c).cast(t) if c in counted.collect_schema() else pl.lit(None, dtype=t).alias(c) for c, t in schema.items()]
    return pl.concat([told.select(list(schema)), counted.select(wanted)])
