"""Exports of Nsight Systems."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import polars as pl
import pytest

from nccl_forensics.api import analyze
from nccl_forensics.decoding.sqlite_reader import BrokenDatabase, open_database
from nccl_forensics.formats.nsys import FORMAT
from nccl_forensics.reading.engine import InlineEngine
from nccl_forensics.reading.source import read_source
from tests.corpus import ROOT

SCRIPT = (ROOT / "fixtures" / "nsys" / "two_steps.sql").read_text(encoding="utf-8")


def database(tmp_path: Path, *more: str, script: str = SCRIPT) -> bytes:
    file = tmp_path / "x.sqlite"
    file.unlink(missing_ok=True)
    connection = sqlite3.connect(file)
    connection.executescript(script + ";\n".join(("", *more)))
    connection.commit()
    connection.close()
    return file.read_bytes()


def test_an_export_is_measured_like_a_trace(tmp_path: Path) -> None:
    found = read_source(database(tmp_path))
    assert (found.formats, found.error) == (("nsight-systems",), None)
    [trace] = found.frames["traces"].to_dicts()
    assert (trace["host"], trace["pid"], trace["gpus"], trace["device"]) == ("gpu-node-7", 4242, ["NVIDIA H100 80GB HBM3"], "gpu")
    assert (trace["time_raw_ns"], trace["time_kind"], trace["activities"]) == (1_700_000_000_000_800_000, "epoch", 5)
    windows = found.frames["trace_windows"].select("window", "step", "compute_ns", "communication_ns", "exposed_ns", "memcpy_ns")
    assert windows.rows() == [
        ("whole", None, 4_000_000, 4_000_000, 2_000_000, 500_000),
        ("step", 3, 2_000_000, 2_000_000, 1_000_000, 500_000),
        ("step", 4, 2_000_000, 2_000_000, 1_000_000, 0),
    ]


def test_collectives_are_kernels_with_the_range_that_launched_them(tmp_path: Path) -> None:
    listed = read_source(database(tmp_path)).frames["trace_collectives"]
    assert listed.select("record", "op", "op_raw", "backend", "step", "duration_ns", "exposed_ns").rows() == [
        ("CUPTI_ACTIVITY_KIND_KERNEL[2]", "all_reduce", "all_reduce", "nccl", 3, 2_000_000, 1_000_000),
        ("CUPTI_ACTIVITY_KIND_KERNEL[4]", "all_reduce", "all_reduce", "nccl", 4, 2_000_000, 1_000_000),
    ]


def test_calls_of_another_process_that_counts_alike_launch_nothing_here(tmp_path: Path) -> None:
    pid, thread = 71169998848 + (1 << 24), 71169999000 + (1 << 24)
    more = (
        f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1200000, 1300000, 0, 1, 20, 12, {pid}, 1, 2, 16)",
        # Its row stands first, as that of a process that began before.
        f"INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME (rowid, start, end, globalTid, correlationId) VALUES (-1, 6100000, 6110000, {thread}, 12)",
        f"INSERT INTO NVTX_EVENTS VALUES (6090000, 6200000, 59, 'nccl:broadcast', {thread}, NULL, 0)",
    )
    found = read_source(database(tmp_path, *more))
    assert [r for r in found.frames["gaps"]["reason"] if r.startswith("limit: 2 processes")]
    assert found.frames["trace_collectives"].select("record", "op_raw", "step").rows() == [
        ("CUPTI_ACTIVITY_KIND_KERNEL[2]", "all_reduce", 3),
        ("CUPTI_ACTIVITY_KIND_KERNEL[4]", "all_reduce", 4),
    ]


def test_what_the_profiler_lost_is_a_gap(tmp_path: Path) -> None:
    gaps = read_source(database(tmp_path)).frames["gaps"]
    assert gaps.select("record", "reason").rows() == [("DIAGNOSTIC_EVENT[2]", "missing: the profiler lost events")]


def test_a_kernel_that_had_not_ended_is_left_out_and_told(tmp_path: Path) -> None:
    more = "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (9500000, NULL, 0, 1, 20, 23, 71169998848, 3, 4, 16)"
    found = read_source(database(tmp_path, more))
    assert found.frames["trace_collectives"].height == 2
    assert "truncated: 1 activities had not ended when the capture did" in found.frames["gaps"]["reason"].to_list()


def test_an_export_without_kernels_says_how_to_get_them(tmp_path: Path) -> None:
    found = read_source(database(tmp_path, "DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL", "DROP TABLE CUPTI_ACTIVITY_KIND_MEMCPY"))
    assert found.frames["traces"]["activities"].to_list() == [0]
    assert any("--trace=cuda,nvtx" in r for r in found.frames["gaps"]["reason"].to_list())


def test_columns_that_a_release_lacks_are_null(tmp_path: Path) -> None:
    script = SCRIPT.replace("demangledName INTEGER, shortName INTEGER, gridX INTEGER", "shortName INTEGER, mangledName INTEGER, x INTEGER")
    script = script.replace(", 1, 2, 128)", ", 2, 0, 0)").replace(", 3, 4, 16)", ", 4, 0, 0)")
    found = read_source(database(tmp_path, script=script))
    assert found.frames["trace_collectives"].height == 2


def test_another_database_is_none_and_no_gap(tmp_path: Path) -> None:
    found = read_source(database(tmp_path, script="CREATE TABLE history (url TEXT); INSERT INTO history VALUES ('x');"))
    assert (found.formats, found.records, found.gap_lines) == ((), 0, 0)
    assert "SQLite" in (found.error or "")


@pytest.mark.parametrize("cut", [16, 100, 4096, 12_000, 20_000])
def test_a_database_that_is_cut_off_is_a_gap_and_never_an_error(tmp_path: Path, cut: int) -> None:
    found = read_source(database(tmp_path)[:cut])
    assert found.records == 0 or found.frames
    assert found.error or found.formats


def test_views_and_triggers_of_a_stranger_do_not_run(tmp_path: Path) -> None:
    hostile = [
        "ALTER TABLE StringIds RENAME TO Hidden",
        "CREATE VIEW StringIds AS SELECT id, load_extension('x') AS value FROM Hidden",
    ]
    data = database(tmp_path, *hostile)
    with open_database(data) as opened:
        assert "StringIds" not in opened.tables
        assert list(opened.rows("StringIds", ["id"])) == []
        with pytest.raises(Exception, match=r"not authorized|prohibited"):
            opened._connection.execute("ATTACH ':memory:' AS other")
        with pytest.raises(Exception, match=r"not authorized|readonly|prohibited"):
            opened._connection.execute("DELETE FROM Hidden")
    assert read_source(data).records == 0


def test_work_without_end_is_stopped(tmp_path: Path) -> None:
    with open_database(database(tmp_path)) as opened:
        opened._looks = 10**9
        opened._connection.set_progress_handler(opened._look, 1)
        with pytest.raises(BrokenDatabase, match="interrupted"):
            list(opened.rows("StringIds", ["id", "value"]))


def test_the_spooled_file_is_gone_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "spool"))
    (tmp_path / "spool").mkdir()
    FORMAT.read(database(tmp_path))
    assert list((tmp_path / "spool").iterdir()) == []


def test_values_of_the_wrong_type_are_null(tmp_path: Path) -> None:
    with open_database(database(tmp_path, "INSERT INTO StringIds VALUES (99, x'ff00')")) as opened:
        frame = opened.frame("StringIds", {"id": "int", "value": "text", "none": "real"})
    assert frame.filter(pl.col("id") == 99).select("value", "none").rows() == [(None, None)]


def test_a_raw_report_gets_a_gap_that_names_the_export_command(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "rank0.nsys-rep").write_bytes(bytes(range(256)) * 4)
    (tmp_path / "job" / "env.txt").write_text("RANK=0\nWORLD_SIZE=1\nMASTER_ADDR=node1\nNCCL_DEBUG=INFO\n")
    report = analyze([tmp_path / "job"], engine=InlineEngine()).report
    gaps = report["gaps"]
    assert isinstance(gaps, list)
    [gap] = [g for g in gaps if "nsys" in str(g["command"])]
    assert gap["command"] == "nsys export --type sqlite -o rank0.sqlite rank0.nsys-rep"
    assert "rank0.nsys-rep" in gap["what"]
