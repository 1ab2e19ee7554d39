"""SQL over tables and views, from evidence and from a folder of saved tables; parquet that other programs open."""

from __future__ import annotations

import io
from datetime import date
from pathlib import Path

import orjson
import polars as pl
import pytest

from nccl_forensics import api
from nccl_forensics.errors import OutputError, UnusableEvidence, UsageError
from nccl_forensics.query import newest_day, saved_store, select
from nccl_forensics.reading.engine import InlineEngine
from nccl_forensics.store import Store
from tests.corpus import ROOT
from tests.test_docs import run

EVIDENCE = ROOT / "fixtures" / "incidents" / "nccl-skipped-collective-8r" / "evidence"
OPS = "SELECT op, count(*) AS calls FROM nccl_ops GROUP BY op ORDER BY op"


@pytest.fixture(scope="module")
def incident() -> api.Incident:
    return api.analyze([EVIDENCE], engine=InlineEngine())


@pytest.fixture(scope="module")
def saved(incident: api.Incident, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("out")
    incident.write_tables(folder / "tables")
    return folder


def test_evidence_incident_and_saved_tables_answer_alike(incident: api.Incident, saved: Path) -> None:
    from_evidence = api.sql([EVIDENCE], OPS, engine=InlineEngine())
    assert from_evidence.height
    assert from_evidence["calls"].sum() == incident.table("nccl_ops").collect().height
    assert from_evidence.equals(incident.sql(OPS))
    assert from_evidence.equals(api.sql([saved], OPS))
    assert from_evidence.equals(api.sql([saved / "tables"], OPS))


def test_views_are_derived_from_saved_tables_too(incident: api.Incident, saved: Path) -> None:
    query = "SELECT rank, host, bus_id FROM processes ORDER BY rank"
    assert incident.sql(query)["rank"].to_list() == list(range(8))
    assert incident.sql(query).equals(api.sql([saved], query))


def test_tables_of_an_older_version_take_todays_columns(saved: Path, tmp_path: Path) -> None:
    for name in ("sources", "nccl_ops"):
        frame = pl.read_parquet(saved / "tables" / f"{name}.parquet")
        frame.drop("from_call", strict=False).write_parquet(tmp_path / f"{name}.parquet")
    store = saved_store(tmp_path)
    assert store is not None
    assert select(store, "SELECT count(*) AS n FROM nccl_ops WHERE from_call IS NULL")["n"].item() > 0


def test_a_table_that_nothing_fills_is_empty_and_a_view_says_what_it_lacks() -> None:
    store = Store.from_frames({})
    assert select(store, "SELECT rank FROM nccl_comms").height == 0
    with pytest.raises(UnusableEvidence, match=r"networks.*nccl_network"):
        select(store, "SELECT * FROM networks")


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT * FROM ncl_ops", "did you mean 'nccl_ops'"),
        ("SELECT * FROM proceses", "did you mean 'processes'"),
        ("SELECT op_cuont FROM nccl_ops", "did you mean 'op_count'"),
        ("SELEC op FROM nccl_ops", "Expected: an SQL statement"),
        ("", "statement"),
    ],
)
def test_a_wrong_query_is_refused_with_what_helps(query: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        select(Store.from_frames({}), query)


@pytest.mark.parametrize(
    "statement", ["DROP TABLE sources", "/* x */ drop table sources", "-- x\nTRUNCATE TABLE sources", "CREATE TABLE y AS SELECT 1"]
)
def test_statements_that_change_tables_are_refused(saved: Path, statement: str) -> None:
    with pytest.raises(UsageError, match="is no query: tables are read with SELECT"):
        api.sql([saved], statement)
    assert api.sql([saved], "-- how many\nSELECT count(*) AS n FROM sources")["n"].item() > 0


def test_a_folder_of_broken_tables_is_unusable(tmp_path: Path) -> None:
    (tmp_path / "sources.parquet").write_bytes(b"PAR1 no more")
    with pytest.raises(UnusableEvidence, match="cannot be read"):
        saved_store(tmp_path)


def test_the_newest_day_is_that_of_the_latest_wall_clock_in_any_table() -> None:
    day = 86_400_000_000_000
    lines = [
        {"source_id": 0, "line_no": 1, "time_raw_ns": 20_000 * day + 5, "time_kind": "epoch"},
        {"source_id": 0, "line_no": 2, "time_raw_ns": 99_000 * day, "time_kind": "monotonic"},
    ]
    later = [{"source_id": 0, "line_no": 1, "time_raw_ns": 20_002 * day, "time_kind": "local-unzoned"}]
    frames = {"nccl_env": pl.DataFrame(lines), "watchdog": pl.DataFrame(later)}
    assert newest_day(Store.from_frames(frames)) == date(2024, 10, 6)
    assert newest_day(Store.from_frames({"nccl_env": pl.DataFrame(lines[1:])})) is None
    assert newest_day(Store.from_frames({})) is None


def test_all_forms_of_a_result_hold_the_same_rows(saved: Path, tmp_path: Path) -> None:
    expected = api.sql([saved], OPS).rows()
    out = {form: run(["sql", str(saved), OPS, "--format", form]) for form in ("table", "csv", "json", "parquet")}
    assert all(done.exit_code == 0 for done in out.values())
    assert [tuple(row.values()) for row in orjson.loads(out["json"].stdout_bytes)] == expected
    assert [tuple(line.split(",")) for line in out["csv"].output.splitlines()[1:]] == [(op, str(n)) for op, n in expected]
    assert pl.read_parquet(io.BytesIO(out["parquet"].stdout_bytes)).rows() == expected
    assert [line.split() for line in out["table"].output.splitlines()[2:-1]] == [[op, str(n)] for op, n in expected]
    done = run(["sql", str(saved), OPS, "--format", "csv", "-o", str(tmp_path / "missing" / "f.csv")])
    assert done.exit_code == 5


def test_lists_and_missing_values_stand_in_a_table(saved: Path) -> None:
    done = run(["sql", str(saved), "SELECT path, formats, error FROM sources ORDER BY path LIMIT 1", "--format", "csv"])
    assert done.output.splitlines()[1] == "logs/nccl.node-01.7799.log,nccl-log,"


def test_foreign_text_cannot_command_a_terminal(tmp_path: Path) -> None:
    store_path = tmp_path / "sources.parquet"
    pl.DataFrame({"source_id": [0], "path": ["a\x1b]0;title\x07b"]}, schema_overrides={"source_id": pl.UInt32}).write_parquet(store_path)
    assert "\x1b" not in run(["sql", str(tmp_path), "SELECT path FROM sources"]).output


def test_saved_tables_open_in_duckdb(saved: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    got = duckdb.sql(f"SELECT op, count(*) AS calls FROM '{saved}/tables/nccl_ops.parquet' GROUP BY op ORDER BY op").fetchall()
    assert got == api.sql([saved], OPS).rows()
    for file in (saved / "tables").glob("*.parquet"):
        assert duckdb.sql(f"SELECT count(*) FROM '{file}'").fetchall() == [(pl.read_parquet(file).height,)]


def test_saved_tables_open_in_pandas(saved: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    for file in (saved / "tables").glob("*.parquet"):
        frame = pandas.read_parquet(file)
        assert (len(frame), list(frame.columns)) == (pl.read_parquet(file).height, pl.read_parquet(file).columns)


def test_big_tables_live_as_long_as_the_incident(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nccl_forensics.reading.engine._IN_MEMORY", 0)
    monkeypatch.setattr("nccl_forensics.reading.engine._BY_MESSAGE", 0)
    incident = api.analyze([EVIDENCE], engine=InlineEngine())
    assert incident.store.on_disk
    [(files, *_)] = [(t,) for name, t in incident.store._tables.items() if name in ("nccl_ops", "nccl_ops.rows")]
    assert isinstance(files, tuple)
    place = files[0].parent
    assert incident.sql(OPS).height
    assert {f.suffix for f in place.iterdir()} == {".arrow"}
    del incident
    assert not place.exists()


def test_a_table_that_cannot_be_written_leaves_the_one_before_and_nothing_half_written(
    incident: api.Incident, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    incident.write_tables(tmp_path)
    before = {f.name: f.read_bytes() for f in tmp_path.iterdir()}
    assert not [name for name in before if not name.endswith(".parquet")]

    def fall(frame: pl.LazyFrame, path: Path, **_: object) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pl.LazyFrame, "sink_parquet", fall)
    with pytest.raises(OutputError, match="No space left"):
        incident.write_tables(tmp_path)
    assert {f.name: f.read_bytes() for f in tmp_path.iterdir()} == before
