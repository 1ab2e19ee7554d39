"""The store: older files are brought up to date, what recurs is counted, names stay inside their folder, old things go."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nccl_forensics.errors import UsageError
from nccl_forensics.serve import retention
from nccl_forensics.serve.clock import DAY_MS, now_ms
from nccl_forensics.serve.database import STEPS, Database, statements
from nccl_forensics.serve.folders import Folders, Names
from nccl_forensics.serve.incidents import MOST_ATTEMPTS, EvidenceFile, Incidents
from nccl_forensics.serve.index import Index, index_of
from nccl_forensics.serve.problems import Problem
from nccl_forensics.serve.search import Filter, filter_of, find, match, recurring, related
from nccl_forensics.serve.service import open_service
from nccl_forensics.serve.settings import Settings
from tests.growth import growth


def store(tmp_path: Path) -> Incidents:
    return Incidents(Database(tmp_path / "store.sqlite"))


def index(host: str | None, cause: str = "gpu-fault", happened_ms: int | None = None) -> Index:
    subjects = [("cause", cause, True), *([("host", host, True)] if host else []), ("host", "bystander", False)]
    verdict = {"status": "explained", "cause": cause, "culprits": [{"host": host, "rank": 1}], "summary": "x"}
    return Index(verdict, happened_ms, tuple(subjects), host or "", "")


def add(incidents: Incidents, identifier: str, found: Index | None = None) -> None:
    incidents.add(identifier, f"case {identifier}", None, [EvidenceFile("a.tar", 10)])
    if found is not None:
        assert incidents.take() is not None
        incidents.finish(identifier, found)


def test_a_host_that_comes_back_is_told_with_its_count(tmp_path: Path) -> None:
    incidents = store(tmp_path)
    for n, host in enumerate(["node-07", "node-01", "node-07", None, "node-07"]):
        add(incidents, f"i{n}", index(host, happened_ms=n * 1000))
    first, *rest = recurring(incidents.database)
    # The cause is shared by all five; the host by three.
    assert first.sentence() == "gpu-fault was the cause in 5 of the last 5"
    [node] = rest
    assert node.sentence() == "node-07 was the culprit in 3 of the last 5"
    assert [i for i, _ in node.incidents] == ["i4", "i2", "i0"]
    assert node.pattern == (True, False, True, False, True)
    assert [(r.value, [i for i, _ in r.incidents]) for r in related(incidents.database, "i4") if r.kind == "host"] == [
        ("node-07", ["i2", "i0"])
    ]


def test_what_happened_long_ago_does_not_count_as_coming_back(tmp_path: Path) -> None:
    incidents = store(tmp_path)
    for n in range(2):
        add(incidents, f"old{n}", index("node-07", happened_ms=n))
    for n in range(10):
        add(incidents, f"new{n}", index(f"node-{n}", cause=f"c{n}", happened_ms=1000 + n))
    assert recurring(incidents.database) == ()


def test_a_file_of_the_first_version_is_brought_up_to_date_with_its_incidents(tmp_path: Path) -> None:
    """What the first version wrote is found by host and text afterwards, because that is taken from the report."""
    folders = Folders(tmp_path)
    folders.make()
    connection = sqlite3.connect(folders.database)
    for statement in statements(STEPS[0]):
        connection.execute(statement)
    connection.execute("PRAGMA user_version = 1")
    connection.execute(
        "INSERT INTO incidents (id, title, status, created_ms, files, size_bytes) VALUES ('aaaaaaaaaaaa', 'old one', 'done', 5, '[[\"x.tar\", 3]]', 3)"
    )
    connection.commit()
    connection.close()
    folders.result("aaaaaaaaaaaa").mkdir(parents=True)
    report = {
        "verdict": {"status": "explained", "cause": "ib-link", "culprits": [{"host": "node-9"}]},
        "findings": [{"title": "a flapping port"}],
    }
    (folders.result("aaaaaaaaaaaa") / "report.json").write_bytes(orjson.dumps(report))
    service = open_service(Settings(tmp_path))
    service._recover()
    assert [i.id for i in find(service.database, Filter(text="flapping", host="node-9", cause="ib-link")).incidents] == ["aaaaaaaaaaaa"]
    [row] = service.database.read("PRAGMA user_version")
    assert row[0] == len(STEPS)


def test_a_file_of_a_later_version_is_refused(tmp_path: Path) -> None:
    Database(tmp_path / "s.sqlite").close()
    connection = sqlite3.connect(tmp_path / "s.sqlite")
    connection.execute(f"PRAGMA user_version = {len(STEPS) + 1}")
    connection.close()
    with pytest.raises(UsageError, match="later version"):
        Database(tmp_path / "s.sqlite")


def test_a_step_that_fails_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Database(tmp_path / "s.sqlite").close()
    monkeypatch.setattr("nccl_forensics.serve.database.STEPS", (*STEPS, "CREATE TABLE half (x);\nNOT SQL;\n"))
    with pytest.raises(Exception, match="cannot be used as the store"):
        Database(tmp_path / "s.sqlite")
    monkeypatch.undo()
    database = Database(tmp_path / "s.sqlite")
    assert not database.read("SELECT 1 FROM sqlite_master WHERE name = 'half'")


def test_an_incident_that_stops_the_service_again_and_again_is_given_up(tmp_path: Path) -> None:
    incidents = store(tmp_path)
    add(incidents, "bad")
    for _ in range(MOST_ATTEMPTS - 1):
        assert incidents.take() is not None
        assert incidents.recover() == (1, 0)
    assert incidents.take() is not None
    assert incidents.recover() == (0, 1)
    assert (incidents.get("bad").status, incidents.get("bad").error_code) == ("failed", "interrupted")


def test_stopping_in_good_order_is_no_attempt(tmp_path: Path) -> None:
    incidents = store(tmp_path)
    add(incidents, "long")
    for _ in range(MOST_ATTEMPTS + 2):
        taken = incidents.take()
        assert taken is not None
        assert taken.attempts == 1
        incidents.put_back("long")
    assert incidents.recover() == (0, 0)


def test_a_result_that_comes_after_the_cancel_is_not_taken(tmp_path: Path) -> None:
    incidents = store(tmp_path)
    add(incidents, "x")
    incidents.take()
    assert incidents.fail("x", "cancelled", "cancelled")
    incidents.finish("x", index("node-1"))
    assert (incidents.get("x").status, incidents.get("x").verdict) == ("failed", None)


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=60))
def test_no_search_text_is_an_operator(text: str) -> None:
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE VIRTUAL TABLE words USING fts5 (a)")
        if phrase := match(text):
            connection.execute("SELECT * FROM words WHERE words MATCH ?", (phrase,)).fetchall()


@pytest.mark.parametrize(
    "query",
    [{"rank": "1e9"}, {"rank": "٣"}, {"since": "yesterday"}, {"status": "x"}, {"limit": "0"}, {"offset": "-1"}, {"culprit": "maybe"}],
)
def test_filters_that_cannot_be_meant_are_refused(query: dict[str, str]) -> None:
    with pytest.raises(Problem):
        filter_of(query)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(max_size=300), max_size=12))
def test_names_stay_inside_and_never_meet(names: list[str]) -> None:
    made = Names()
    paths = [made.add(name) for name in names]
    for path in paths:
        parts = path.split("/")
        assert not path.startswith("/")
        assert all(p not in ("", ".", "..") and len(p.encode()) <= 255 and p.isprintable() for p in parts), path
    lowered = [p.lower() for p in paths]
    assert len(set(lowered)) == len(lowered)
    assert not any(other.startswith(path + "/") for path in lowered for other in lowered)


def test_names_keep_what_they_tell() -> None:
    names = Names()
    assert names.add("node3/nccl.rank12.log") == "node3/nccl.rank12.log"
    assert names.add("C:\\logs\\x.log") == "logs/x.log"
    assert names.add("NODE3/nccl.rank12.log") == "NODE3/nccl~2.rank12.log"
    assert names.add("node3/nccl.rank12.log/inside") == "node3~nccl.rank12.log~inside"
    assert names.add("///") == "file"


def test_many_equal_names_are_no_work() -> None:
    def named(count: int) -> int:
        names = Names()
        return len({names.add("log") for _ in range(count)})

    assert named(20_000) == 20_000
    assert growth(named, 10_000) < 8


def test_retention_removes_old_incidents_and_evidence_but_no_pinned_ones(tmp_path: Path) -> None:
    folders = Folders(tmp_path)
    folders.make()
    incidents = Incidents(Database(folders.database))
    for name, days, pinned in (("young", 1, 0), ("older", 40, 0), ("oldest", 400, 0), ("dear", 400, 1)):
        add(incidents, name, index("n"))
        folders.evidence(name).mkdir(parents=True)
        (folders.evidence(name) / "a.tar").write_bytes(b"0123456789")
        with incidents.database.write() as connection:
            connection.execute("UPDATE incidents SET created_ms = ?, pinned = ? WHERE id = ?", (now_ms() - days * DAY_MS, pinned, name))
    assert retention.enforce(incidents.database, folders, incidents) == (0, 0)
    retention.save(incidents.database, retention.Retention(evidence_days=30, incident_days=365))
    assert retention.enforce(incidents.database, folders, incidents) == (1, 1)
    assert {i.id: i.evidence for i in find(incidents.database, Filter()).incidents} == {"young": True, "older": False, "dear": True}
    assert sorted(folders.incidents()) == ["dear", "older", "young"]
    assert not folders.evidence("older").exists()


def test_a_full_store_lets_the_oldest_evidence_go_first(tmp_path: Path) -> None:
    folders = Folders(tmp_path)
    folders.make()
    incidents = Incidents(Database(folders.database))
    for n in range(3):
        incidents.add(f"i{n}", None, None, [EvidenceFile("a", 600_000_000)])
        incidents.take()
        incidents.finish(f"i{n}", index("n"))
    retention.save(incidents.database, retention.Retention(store_gb=1))
    assert retention.enforce(incidents.database, folders, incidents) == (0, 2)
    assert [i.id for i in find(incidents.database, Filter()).incidents if i.evidence] == ["i2"]


def test_a_deletion_that_was_interrupted_is_finished_by_the_next_start(tmp_path: Path) -> None:
    service = open_service(Settings(tmp_path))
    add(service.incidents, "aaaaaaaaaaaa", index("n"))
    service.folders.evidence("aaaaaaaaaaaa").mkdir(parents=True)
    service.incidents.hide("aaaaaaaaaaaa")
    service._recover()
    assert service.folders.incidents() == []
    assert service.incidents.known() == set()


def test_an_upload_that_was_complete_when_the_service_died_becomes_its_incident(tmp_path: Path) -> None:
    """Killed between the rename and the commit: the evidence lies in its place, the store still says upload."""
    service = open_service(Settings(tmp_path))
    folder = service.folders.upload("aaaaaaaaaaaa")
    folder.mkdir()
    (folder / "a.tar").write_bytes(b"0123456789")
    with service.database.write() as connection:
        connection.execute("INSERT INTO uploads VALUES ('aaaaaaaaaaaa', 't', NULL, ?, '[[\"a.tar\", 10]]')", (now_ms(),))
    service.folders.adopt("aaaaaaaaaaaa")
    service._recover()
    assert service.incidents.get("aaaaaaaaaaaa").status == "queued"
    assert (service.folders.evidence("aaaaaaaaaaaa") / "a.tar").read_bytes() == b"0123456789"


def test_the_index_names_who_is_blamed_and_who_is_only_there() -> None:
    report = {
        "case": {"hosts": ["a", "b"], "ended_at": "2026-11-21T00:00:01.500Z"},
        "verdict": {
            "cause": "gpu-fault",
            "culprits": [{"rank": 3, "host": "a", "gpu": "2"}],
            "others": [{"cause": "ib-link", "culprits": [{"host": "c"}]}],
        },
        "findings": [
            {"cause": "collective-stuck", "severity": "critical", "ranks": [0, 1], "hosts": ["b"], "title": "t"},
            {"cause": "few-channels", "severity": "info"},
        ],
    }
    found = index_of(report)
    blamed = {(k, v) for k, v, c in found.subjects if c}
    assert blamed == {("cause", "gpu-fault"), ("cause", "ib-link"), ("host", "a"), ("rank", "3"), ("gpu", "a GPU 2"), ("host", "c")}
    assert {(k, v) for k, v, c in found.subjects if not c} == {("cause", "collective-stuck"), ("host", "b"), ("rank", "0"), ("rank", "1")}
    assert found.happened_ms == 1795219201500
    assert index_of({}).subjects == ()
