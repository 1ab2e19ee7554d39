"""Sources are read side by side; one that kills, stalls or swells its reader costs itself alone."""

from __future__ import annotations

import gzip
import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest

from nccl_forensics.reading import engine as engine_module
from nccl_forensics.reading.bundle import open_bundle
from nccl_forensics.reading.engine import Engine, InlineEngine, LocalEngine, Ref, Result, default_engine, read_bundle, read_ref
from nccl_forensics.store import SOURCES, Store
from nccl_forensics.tables import TABLES
from tests.stores import rows

WARN = "node01:{pid}:7 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer node02<51161>\n"


def log(pid: int, lines: int = 3) -> bytes:
    return (WARN.format(pid=pid) * lines).encode()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for i in range(6):
        (tmp_path / f"r{i}.log").write_bytes(log(100 + i))
    return tmp_path


def refs(folder: Path) -> list[Ref]:
    return [Ref(i, f, f.stat().st_size, folder) for i, f in enumerate(sorted(folder.glob("*.log")))]


def outcome(ref: Ref, what: str) -> Result:
    return Result(ref.source_id, {"lines": 1, "error": None}, (what,), {})


def dies_on_three(ref: Ref) -> Result:
    if ref.source_id == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return outcome(ref, "read")


def stalls_on_three(ref: Ref) -> Result:
    if ref.source_id == 3:
        time.sleep(600)
    return outcome(ref, "read")


def swells_on_three(ref: Ref) -> Result:
    if ref.source_id == 3:
        return outcome(ref, str(len(bytearray(8 << 30))))
    return outcome(ref, "read")


def swells_inside_polars(ref: Ref) -> Result:
    if ref.source_id == 3:
        return outcome(ref, str(pl.repeat(1, 1 << 30, dtype=pl.Int64, eager=True).sum()))
    return outcome(ref, "read")


def raises_on_three(ref: Ref) -> Result:
    if ref.source_id == 3:
        raise ValueError("a surprise in the data")
    return outcome(ref, "read")


def panics_on_three(ref: Ref) -> Result:
    if ref.source_id == 3:
        raise pl.exceptions.PanicException("deep inside")
    return outcome(ref, "read")


def always_dies(ref: Ref) -> Result:
    os.kill(os.getpid(), signal.SIGKILL)
    return outcome(ref, "read")


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (dies_on_three, "its reader died"),
        (stalls_on_three, "took longer than"),
        (swells_on_three, "more memory"),
        (swells_inside_polars, "reader died|memory"),
        (raises_on_three, "ValueError: a surprise in the data"),
        (panics_on_three, "deep inside"),
    ],
)
def test_a_source_that_brings_its_reader_down_costs_itself_alone(folder, function, says):
    # Short where the time is what is looked at; elsewhere a busy machine must not pass for a slow source.
    engine = LocalEngine(workers=1, seconds_per_source=1.5 if function is stalls_on_three else 60.0, memory_bytes=2 << 30)
    results = {r.source_id: r for r in engine.map(function, refs(folder))}
    assert sorted(results) == [0, 1, 2, 3, 4, 5]
    assert [i for i, r in results.items() if r.facts["error"]] == [3]
    [failed] = [r for r in results.values() if r.facts["error"]]
    assert pl.Series([failed.facts["error"]]).str.contains(says).all()


def test_sources_that_all_bring_their_readers_down_end_as_rows_with_errors(folder):
    results = list(LocalEngine(workers=2).map(always_dies, refs(folder)))
    assert sorted(r.source_id for r in results) == [0, 1, 2, 3, 4, 5]
    assert all(r.facts["error"] for r in results)


def test_the_inline_engine_survives_what_a_source_raises(folder):
    results = list(InlineEngine().map(raises_on_three, refs(folder)))
    assert [bool(r.facts["error"]) for r in results] == [False, False, False, True, False, False]


def test_nothing_to_read_starts_nothing():
    assert list(LocalEngine().map(always_dies, [])) == []


def test_the_pool_and_this_process_read_the_same_in_the_same_order(folder):
    with open_bundle([folder]) as bundle:
        inline = rows(read_bundle(bundle, InlineEngine()))
        pool = rows(read_bundle(bundle, LocalEngine(workers=2)))
    assert inline == pool
    warned = pl.read_json(io.StringIO(inline["nccl_warnings"])) if "nccl_warnings" in inline else None
    assert warned is None or warned.select("source_id", "line_no").equals(
        warned.select("source_id", "line_no").sort("source_id", "line_no")
    )


def test_big_tables_come_as_files_with_the_same_rows(folder, monkeypatch):
    (folder / "r2.log").write_bytes(log(102, lines=400))
    with open_bundle([folder]) as bundle:
        small = rows(read_bundle(bundle, InlineEngine()))
        monkeypatch.setattr(engine_module, "_BY_MESSAGE", 20_000)
        monkeypatch.setattr(engine_module, "_IN_MEMORY", 0)
        store = read_bundle(bundle, InlineEngine())
        assert rows(store) == small
        left_out = store.without(frozenset({2}))
        for name in store.present - {"sources"}:
            ids = left_out.scan(name).select("source_id").collect()["source_id"]
            assert 2 not in ids
            assert ids.is_sorted()


def test_small_tables_of_many_sources_wait_in_a_file_and_come_back_in_order(folder, monkeypatch):
    with open_bundle([folder]) as bundle:
        plain = rows(read_bundle(bundle, InlineEngine()))
        for in_memory in (0, 20_000, 1 << 20):
            monkeypatch.setattr(engine_module, "_IN_MEMORY", in_memory)
            store = read_bundle(bundle, InlineEngine())
            assert store.on_disk == (in_memory == 0) or in_memory == 20_000
            assert rows(store) == plain
            assert not list(bundle.scratch.glob("*.spool"))


def test_a_file_and_its_compressed_twin_are_read_once_and_the_second_source_says_so(tmp_path):
    (tmp_path / "a.log").write_bytes(log(1))
    (tmp_path / "a.log.gz").write_bytes(gzip.compress(log(1)))
    (tmp_path / "z.log").write_bytes(log(2))
    with open_bundle([tmp_path]) as bundle:
        store = read_bundle(bundle, InlineEngine())
    rows = {r["path"]: r for r in store.sources.iter_rows(named=True)}
    assert [r["duplicate_of"] for r in rows.values()] == [None, 0, None]
    assert rows["a.log"]["sha256"] == rows["a.log.gz"]["sha256"] != rows["z.log"]["sha256"]
    ids = {i for t in store.present - {"sources"} for i in store.scan(t).select("source_id").collect()["source_id"]}
    assert ids == {0, 2}


def test_the_same_bytes_under_another_name_may_be_another_rank_and_are_kept(tmp_path):
    (tmp_path / "rank_1").write_bytes(log(1))
    (tmp_path / "rank_2").write_bytes(log(1))
    with open_bundle([tmp_path]) as bundle:
        assert read_bundle(bundle, InlineEngine()).sources["duplicate_of"].to_list() == [None, None]


def test_big_files_that_begin_alike_are_no_twins(tmp_path):
    begin = b"x" * (70 << 10) + b"\n"
    (tmp_path / "x.log").write_bytes(begin + b"one\n")
    (tmp_path / "x.log.gz").write_bytes(gzip.compress(begin + b"two\n"))
    with open_bundle([tmp_path]) as bundle:
        assert read_bundle(bundle, InlineEngine()).sources["duplicate_of"].to_list() == [None, None]


def test_every_member_has_a_row_also_those_that_cannot_be_read(tmp_path):
    (tmp_path / "empty.log").write_bytes(b"")
    (tmp_path / "noise.bin").write_bytes(bytes(range(256)) * 40)
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)))
    (tmp_path / "x.log").write_bytes(log(1))
    (tmp_path / "cut.log.gz").write_bytes(__import__("gzip").compress(log(2, 50))[:-10])
    with open_bundle([tmp_path]) as bundle:
        store = read_bundle(bundle, InlineEngine())
    rows = {r["path"]: r for r in store.sources.iter_rows(named=True)}
    assert rows["empty.log"]["error"] == "empty file"
    assert "binary" in rows["noise.bin"]["error"]
    assert "PNG picture" in rows["picture.png"]["error"]
    assert rows["x.log"]["error"] is None
    assert rows["cut.log.gz"]["error"]
    assert rows["cut.log.gz"]["records"] > 0
    assert dict(store.sources.schema) == dict(pl.Schema(SOURCES))


def test_a_table_is_present_only_where_a_format_got_something_out_of_a_source(tmp_path):
    (tmp_path / "x.log").write_bytes(log(1))
    (tmp_path / "cut.json").write_bytes(b'{"version": "2.10", "pg_config": {}, "entries": [{"record_id": 0, ')
    with open_bundle([tmp_path]) as bundle:
        store = read_bundle(bundle, InlineEngine())
    assert not store.has("fr_entries")
    assert store.has("gaps")
    assert store.has("sources")
    assert store.sources.filter(pl.col("path") == "cut.json")["error"].item() is not None


def test_a_table_without_rows_is_scanned_as_an_empty_frame_of_its_columns():
    frame = Store.from_frames({}).scan("gaps").collect()
    assert frame.columns == ["source_id", *TABLES["gaps"].schema]
    assert frame.height == 0


def test_progress_is_told_for_every_source(folder):
    told: list[tuple[int, int]] = []
    with open_bundle([folder]) as bundle:
        read_bundle(bundle, InlineEngine(), lambda done, total: told.append((done, total)))
    assert told == [(i, 6) for i in range(1, 7)]


def test_a_script_without_a_guard_can_read_a_bundle(folder, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from nccl_forensics.reading.bundle import open_bundle\n"
        "from nccl_forensics.reading.engine import LocalEngine, read_bundle\n"
        f"with open_bundle([{str(folder)!r}]) as bundle:\n"
        "    print(read_bundle(bundle, LocalEngine(workers=1)).sources['error'].null_count())\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "7"


def test_a_small_bundle_gets_one_worker(folder):
    with open_bundle([folder]) as bundle:
        engine: Engine = default_engine(bundle)
    assert engine == LocalEngine(workers=1)


def test_one_source_is_read_from_a_mapped_file(folder):
    result = read_ref(refs(folder)[0])
    assert result.facts["lines"] == 3
    assert result.formats == ("nccl-log",)
    assert "nccl_ops" in result.fills
