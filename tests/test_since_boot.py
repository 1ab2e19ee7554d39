"""Kernel logs that count from boot get wall times where their host tells when it came up."""

from __future__ import annotations

import polars as pl

from nccl_forensics.conclusions.since_boot import with_wall_times
from nccl_forensics.store import SOURCES, Store
from tests.rules.host_frames import SECOND, table, xid

BOOT = 1_752_269_821 * SECOND
HOUR = 3600 * SECOND


def told(*boots: dict[str, object], panic: bool = False, second: int = 3600, nodes: tuple[dict[str, object], ...] = ()) -> list[object]:
    """Time and clock of an Xid line of node7 that was written so long after boot."""
    frames = {
        "xids": table("xids", xid(79, second=second, time_kind="monotonic")),
        "kernel_spans": table("kernel_spans", {"host": "node7", "style": "dmesg", "time_kind": "monotonic"}),
        "kernel_events": table("kernel_events", {"host": "node7", "kind": "panic" if panic else "nic-link", "time_kind": "monotonic"}),
        "host_facts": table("host_facts", *({"source_id": 1, "kind": "boot", "host": "node7", **b} for b in boots)),
        "scheduler_nodes": table("scheduler_nodes", *({"source_id": 2, **n} for n in nodes)),
    }
    sources = pl.DataFrame([{"source_id": n, "path": p} for n, p in enumerate(("a.txt", "b.txt", "c.txt"))])
    full = sources.select(pl.col(c).cast(t) if c in sources.columns else pl.lit(None, dtype=t).alias(c) for c, t in SOURCES.items())
    store = Store.from_frames({n: f.collect() for n, f in frames.items()}, full)
    return list(with_wall_times(store).scan("xids").select("time_raw_ns", "time_kind").collect().row(0))


def test_the_boot_time_of_its_host_dates_what_the_kernel_wrote() -> None:
    assert told({"time_raw_ns": BOOT, "time_kind": "epoch"}) == [BOOT + HOUR, "epoch"]


def test_an_exact_boot_time_beats_one_of_an_unknown_zone_and_the_schedulers_counts_as_well() -> None:
    local = {"time_raw_ns": BOOT + 2 * HOUR, "time_kind": "local-unzoned"}
    assert told(local, {"time_raw_ns": BOOT, "time_kind": "epoch"}) == [BOOT + HOUR, "epoch"]
    assert told(nodes=({"node": "node7", "boot_raw_ns": BOOT},)) == [BOOT + HOUR, "local-unzoned"]


def test_a_log_stays_undated_of_another_host_of_an_earlier_boot_while_the_host_comes_up_and_between_two_boots() -> None:
    exact = {"time_raw_ns": BOOT, "time_kind": "epoch"}
    undated = [HOUR, "monotonic"]
    assert told({**exact, "host": "node8"}) == undated
    assert told(exact, panic=True) == undated
    assert told(exact, second=30) == [30 * SECOND, "monotonic"]
    assert told(exact, {"time_raw_ns": BOOT + HOUR, "time_kind": "epoch"}) == undated
