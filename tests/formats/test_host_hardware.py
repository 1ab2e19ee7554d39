"""lscpu, numactl, governors, dmidecode, os-release, modinfo; /proc/pressure and vmstat."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from nccl_forensics.reading.source import read_source
from nccl_forensics.views.pressures import pressures
from tests.corpus import ROOT
from tests.rules.host_frames import table


def facts(path: str) -> list[tuple[object, ...]]:
    frame = read_source((ROOT / "fixtures" / path).read_bytes()).frames["host_facts"]
    return frame.select("tool", "kind", "name", "value").rows()


def test_a_host_tells_of_its_cpus_memory_nodes_machine_and_system() -> None:
    rows = facts("host_hardware/sample.txt")
    for wanted in (
        ("lscpu", "cpu", "cpus", "192"),
        ("lscpu", "cpu", "cpu-model", "Intel(R) Xeon(R) Platinum 8480C"),
        ("lscpu", "cpu", "hypervisor", "KVM"),
        ("lscpu", "numa", "node1-cpus", "48-95,144-191"),
        ("numactl", "cpu", "numa-nodes", "2"),
        ("numactl", "numa", "node0-free-mb", "512"),
        ("cpupower", "cpu", "governor", "powersave"),
        ("cpupower", "cpu", "governor", "performance"),
        ("dmidecode", "version", "machine", "SYS-821GE-TNHR"),
        ("dmidecode", "version", "bios", "2.1"),
        ("modinfo", "version", "nvidia-driver", "550.54.15"),
        ("os-release", "version", "os", "Ubuntu 22.04.4 LTS"),
    ):
        assert wanted in rows
    assert sum(row[2] == "governor" for row in rows) == 2, "one row for each governor, not for each CPU"


def test_pressure_is_read_with_the_average_of_a_minute_and_vmstat_by_its_worst_sample() -> None:
    frame = read_source((ROOT / "fixtures" / "host_pressure" / "sample.txt").read_bytes()).frames["host_facts"]
    assert frame.select("line_no", "name", "number").rows() == [
        (1, "memory-pressure-some", 30.1),
        (2, "memory-pressure-full", 25.1),
        (3, "io-pressure-some", 0.0),
        (8, "swap-in-kb-s", 130.0),
        (8, "swap-out-kb-s", 350.0),
        (8, "blocked", 12.0),
        (8, "iowait-percent", 40.0),
        (8, "steal-percent", 0.0),
    ]


def test_a_copied_file_of_proc_pressure_is_about_what_its_path_says() -> None:
    found = read_source((ROOT / "fixtures" / "host_pressure" / "memory").read_bytes()).frames["host_facts"]
    assert found["name"].to_list() == ["unknown-pressure-some", "unknown-pressure-full"]
    rows = found.with_columns(source_id=pl.lit(0, dtype=pl.UInt32())).lazy()
    sources = pl.LazyFrame(
        {"source_id": [0], "path": [str(Path("node7") / "proc" / "pressure" / "memory")]}, schema_overrides={"source_id": pl.UInt32()}
    )
    told = pressures.function(rows, sources, table("host_facts").select("source_id", "host")).collect()
    assert told["name"].to_list() == ["memory-pressure-some", "memory-pressure-full"]
