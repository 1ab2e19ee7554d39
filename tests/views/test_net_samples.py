from __future__ import annotations

import polars as pl

from nccl_forensics.views.net_samples import net_samples
from tests.rules.host_frames import table


def test_two_files_of_one_host_are_samples_of_the_interface_that_their_names_tell() -> None:
    paths = ["a/ethtool_-S_ens6f0np0.1", "a/ethtool_-S_ens6f0np0.2", "nstat.txt", "ethtool-S.txt"]
    sources = pl.LazyFrame({"source_id": range(4), "path": paths}, schema_overrides={"source_id": pl.UInt32})
    tools = ("ethtool-S", "ethtool-S", "nstat", "ethtool-S")
    counters = table("net_counters", *({"source_id": n, "tool": t, "counter": "rx_packets", "value": n} for n, t in enumerate(tools)))
    hosts = pl.LazyFrame({"source_id": [0, 1], "host": ["a", "a"], "how": ["path", "path"]}, schema_overrides={"source_id": pl.UInt32})
    found = net_samples(counters, sources, hosts).collect().sort("source_id").select("place", "interface").rows()
    assert found == [("a", "ens6f0np0"), ("a", "ens6f0np0"), ("source 2", None), ("source 3", None)]
