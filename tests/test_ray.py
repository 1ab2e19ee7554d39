"""Reading on a Ray cluster gives what the local engine gives, also when workers die and where nodes share no files."""

from __future__ import annotations

import importlib.util
import io
import os
import signal
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from nccl_forensics import api
from nccl_forensics.cache import Packed, fingerprint
from nccl_forensics.errors import UsageError
from nccl_forensics.reading import ray_engine, remote
from nccl_forensics.reading.bundle import open_bundle
from nccl_forensics.reading.engine import InlineEngine, LocalEngine, Ref, Result, read_bundle, read_ref
from nccl_forensics.reading.ray_engine import RayEngine, Stored, _at_home, _Job, _task, _Terms, _Unseen
from tests.corpus import ROOT
from tests.stores import rows
from tests.test_docs import run

INCIDENTS = ROOT / "fixtures" / "incidents"
WARN = "node01:{pid}:7 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer node02<51161>\n"
with_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed (pip install 'nccl-forensics[ray]')")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "evidence"
    place.mkdir()
    for i in range(6):
        (place / f"r{i}.log").write_text(WARN.format(pid=100 + i) * 3)
    return place


def refs(folder: Path, scratch: Path) -> list[Ref]:
    return [Ref(i, f, f.stat().st_size, scratch) for i, f in enumerate(sorted(folder.glob("*.log")))]


def terms(token: Path, **other: object) -> _Terms:
    return replace(_Terms(token, fingerprint(), None, 6 << 30, 60.0, 600.0), **other)  # type: ignore[arg-type]


def dies_once(marks: Path, number: int) -> Callable[[Ref], Result]:
    """Reading, but the first worker that meets this source is killed."""

    def read(ref: Ref) -> Result:
        if ref.source_id == number and not (marks / "died").exists():
            (marks / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return read_ref(ref)

    return read


def kills(marks: Path, number: int) -> Callable[[Ref], Result]:
    """Reading, but this source kills whoever reads it."""

    def read(ref: Ref) -> Result:
        if ref.source_id == number:
            with (marks / "deaths").open("a") as out:
                out.write("x")
            os.kill(os.getpid(), signal.SIGKILL)
        return read_ref(ref)

    return read


def stalls(ref: Ref) -> Result:
    if ref.source_id == 2:
        time.sleep(60)
    return Result(ref.source_id, {"error": None}, (), {})


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """A cluster of two nodes with one worker each, and a head that reads nothing; its address."""
    pytest.importorskip("ray", reason="Ray is not installed (pip install 'nccl-forensics[ray]')")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray.cloudpickle
    from ray.cluster_utils import Cluster

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(2):
        nodes.add_node(num_cpus=1)
    ray.init(address=nodes.address, log_to_driver=False, logging_level="ERROR")
    yield nodes.address
    ray.shutdown()
    nodes.shutdown()


@with_ray
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
class TestOnACluster:
    @pytest.mark.parametrize("case", ["skipped-collective-8r", "slow-loader-traces-4r", "nccl-never-joined-8r"])
    def test_reports_have_the_bytes_of_the_local_engine(self, cluster: str, case: str) -> None:
        evidence = [INCIDENTS / case / "evidence"]
        there, here = api.analyze(evidence, engine=RayEngine(cluster)), api.analyze(evidence, engine=InlineEngine())
        assert there.json() == here.json()
        assert there.html() == here.html()
        assert not [s for s in there.report["sources"] if s["error"] and "not read" in s["error"]]  # type: ignore[attr-defined]

    def test_a_killed_worker_costs_nothing(self, cluster: str, folder: Path, tmp_path: Path) -> None:
        results = list(RayEngine(cluster).map(dies_once(tmp_path, 3), refs(folder, tmp_path)))
        assert (tmp_path / "died").exists()
        assert sorted(r.source_id for r in results) == list(range(6))
        assert not [r for r in results if r.facts["error"]]

    def test_a_source_that_kills_its_worker_twice_becomes_a_source_with_an_error(self, cluster: str, folder: Path, tmp_path: Path) -> None:
        results = {r.source_id: r for r in RayEngine(cluster).map(kills(tmp_path, 3), refs(folder, tmp_path))}
        assert [i for i in sorted(results) if results[i].facts["error"]] == [3]
        assert "its reader died 2 times" in str(results[3].facts["error"])
        assert (tmp_path / "deaths").read_text() == "xxx", "once with the others, twice alone"

    def test_a_source_that_takes_too_long_is_given_up(self, cluster: str, folder: Path, tmp_path: Path) -> None:
        results = {r.source_id: r for r in RayEngine(cluster, seconds_per_source=1.5).map(stalls, refs(folder, tmp_path))}
        assert [i for i in sorted(results) if results[i].facts["error"]] == [2]


# What does not need Ray itself.


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Stands in for Ray: tasks run at once in this process, in the order asked for; ``deaths`` names sources whose task is lost so
    often."""

    class RayError(Exception):
        pass

    class RayTaskError(RayError):
        def __init__(self, cause: Exception) -> None:
            super().__init__(str(cause))
            self.cause = cause

    deaths: dict[int, int] = {}

    def call(function, jobs, contents, held):
        for ref in jobs:
            if deaths.get(ref.source_id, 0):
                deaths[ref.source_id] -= 1
                return RayError("killed")
        try:
            return sys.modules[__name__]._task(function, jobs, contents, held)  # tests replace it
        except Exception as problem:
            return RayTaskError(problem)

    def get(future):
        if isinstance(future[0], Exception):
            raise future[0]
        return future[0]

    ray = SimpleNamespace(
        is_initialized=lambda: True,
        cluster_resources=lambda: {"CPU": 2.0},
        remote=lambda **_: lambda function: SimpleNamespace(remote=lambda *given: _Future((call(*given),))),
        wait=lambda futures, num_returns: (futures[:num_returns], futures[num_returns:]),
        get=get,
        cancel=lambda future, force: None,
        exceptions=SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError),
        deaths=deaths,
    )
    monkeypatch.setattr(ray_engine, "_library", lambda: ray)
    return ray


class _Future(tuple):
    """A result, hashed by what it is and not by what it holds."""

    __hash__ = object.__hash__


def test_the_same_tables_come_from_tasks(fake: SimpleNamespace, folder: Path) -> None:
    with open_bundle([folder]) as bundle:
        assert rows(read_bundle(bundle, RayEngine())) == rows(read_bundle(bundle, InlineEngine()))


@pytest.mark.parametrize(("deaths", "lost"), [(1, []), (2, []), (3, [4])])
def test_lost_tasks_are_tried_again_one_by_one(fake: SimpleNamespace, folder: Path, tmp_path: Path, deaths: int, lost: list[int]) -> None:
    fake.deaths[4] = deaths
    results = list(RayEngine().map(read_ref, refs(folder, tmp_path)))
    assert sorted(r.source_id for r in results) == list(range(6))
    assert [r.source_id for r in results if r.facts["error"]] == lost


def test_a_source_that_travels_alone_has_two_chances() -> None:
    job = _Job((Ref(0, Path("x"), 1, Path()),))
    lost, again = ray_engine._after_a_death(job, "killed")
    assert not lost
    lost, again = ray_engine._after_a_death(again[0], "killed")
    assert not again
    assert "died 2 times" in str(lost[0].facts["error"])


def test_a_node_that_does_not_see_the_evidence_says_so_and_reads_what_is_sent(folder: Path, tmp_path: Path) -> None:
    [ref, *_] = refs(folder, tmp_path)
    hidden = replace(ref, file=Path("/nowhere/on/this/node.log"))
    token = tmp_path / "token"
    token.touch()
    assert _task(read_ref, (hidden,), (), terms(token)) == [_Unseen(hidden)]
    [sent] = _task(read_ref, (hidden,), (ref.file.read_bytes(),), terms(token))
    assert sent == read_ref(ref)


def test_evidence_that_nodes_do_not_see_is_sent_or_read_here(
    fake: SimpleNamespace, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = _task

    def blind(function, batch, contents, held):
        return whole(function, batch, contents, held) if contents else [_Unseen(ref) for ref in batch]

    monkeypatch.setattr(sys.modules[__name__], "_task", blind)
    plain = {i: r.facts for i, r in enumerate(InlineEngine().map(read_ref, refs(folder, tmp_path)))}
    assert {r.source_id: r.facts for r in RayEngine().map(read_ref, refs(folder, tmp_path))} == plain
    monkeypatch.setattr(ray_engine, "_SENT_BYTES", 0)
    monkeypatch.setattr(ray_engine, "LocalEngine", lambda *_: LocalEngine(workers=1))
    assert {r.source_id: r.facts for r in RayEngine().map(read_ref, refs(folder, tmp_path))} == plain


@pytest.mark.parametrize("store", [None, "memory://tables-of-a-test"])
def test_big_tables_come_back_where_no_file_system_is_shared(
    fake: SimpleNamespace, folder: Path, monkeypatch: pytest.MonkeyPatch, store: str | None
) -> None:
    if store is not None:
        pytest.importorskip("fsspec")
    from nccl_forensics.reading import engine as engine_module

    monkeypatch.setattr(engine_module, "_BY_MESSAGE", 0)
    whole = _task
    seen: list[object] = []

    def apart(function, batch, contents, held):
        out = whole(function, batch, contents, replace(held, token=Path("/nowhere/token")))
        seen.extend(part for result in out for part in result.frames.values())  # type: ignore[union-attr]
        return out

    monkeypatch.setattr(sys.modules[__name__], "_task", apart)
    with open_bundle([folder]) as bundle:
        assert rows(read_bundle(bundle, RayEngine(store=store))) == rows(read_bundle(bundle, InlineEngine()))
        assert seen
        assert all(isinstance(part, Packed if store is None else Stored) for part in seen)
    if store is not None:
        with pytest.raises(Exception, match="nothing is there"):
            remote.objects(store)


def test_plain_objects_of_a_store_are_read_by_tasks_and_fetched_here_only_to_be_quoted(
    fake: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("fsspec")
    case, store = INCIDENTS / "nccl-never-joined-8r" / "evidence", "memory://objects-of-a-test"
    remote.put_folder(case, store)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        tar.addfile(tarfile.TarInfo("empty.log"))
    remote.write(f"{store}/more.tar.gz", packed.getvalue())
    remote.write(f"{store}/notes.txt", b"nothing of interest\n")
    fetched: list[str] = []
    whole = remote.get
    monkeypatch.setattr(remote, "get", lambda url, file: (fetched.append(str(file)), whole(url, file))[1])
    there = api.analyze([store], engine=RayEngine(), title="x")
    count = 1 + sum(1 for f in case.rglob("*") if f.is_file() and f.stat().st_size)
    by_tasks = [f for f in fetched if f.endswith(".source")]
    assert len(by_tasks) == count
    assert 0 < len(fetched) - count < count, "what is cited is fetched to be quoted"
    here = api.analyze([store], engine=InlineEngine(), title="x")
    assert there.json() == here.json()
    assert there.html() == here.html()


def test_an_object_that_is_gone_is_a_source_with_an_error(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    (tmp_path / "token").touch()
    ref = Ref(0, tmp_path / "not-here", 5, tmp_path, url="memory://gone/for-ever.log")
    [result] = _task(read_ref, (ref,), (), terms(tmp_path / "token"))
    assert isinstance(result, Result)
    assert "cannot be read" in str(result.facts["error"])


def test_a_stored_table_is_fetched_into_scratch(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    remote.write("memory://one/table.arrow", b"bytes")
    result = _at_home(Result(0, {}, (), {"t": Stored("memory://one/table.arrow")}), tmp_path)  # type: ignore[dict-item]
    assert result.frames["t"] == tmp_path / "table.arrow"
    assert (tmp_path / "table.arrow").read_bytes() == b"bytes"


def test_a_node_with_another_version_ends_the_run(
    fake: SimpleNamespace, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_engine, "_Terms", lambda token, mark, *rest: _Terms(token, "other", *rest))
    with pytest.raises(UsageError, match="another version"):
        list(RayEngine().map(read_ref, refs(folder, tmp_path)))


def test_without_ray_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    done = run(["analyze", str(INCIDENTS / "killed-rank-4r" / "evidence"), "--engine", "ray"])
    assert isinstance(done.exception, UsageError)
    assert "nccl-forensics[ray]" in str(done.exception)


def test_no_cluster_at_an_address_is_a_usage_error(monkeypatch: pytest.MonkeyPatch, folder: Path, tmp_path: Path) -> None:
    module = ModuleType("ray")

    def refuse(**words: object) -> None:
        raise ConnectionError("nobody answers")

    module.is_initialized, module.init = lambda: False, refuse  # type: ignore[attr-defined]
    monkeypatch.setattr(ray_engine, "_library", lambda: module)
    with pytest.raises(UsageError, match="no cluster at head:6379"):
        list(RayEngine("head:6379").map(read_ref, refs(folder, tmp_path)))


@pytest.mark.parametrize("words", [["--address", "auto"], ["--scratch", "s3://bucket/x"]])
def test_options_of_ray_are_refused_without_it(words: list[str]) -> None:
    done = run(["analyze", str(INCIDENTS / "killed-rank-4r" / "evidence"), *words])
    assert isinstance(done.exception, UsageError)
    assert "--engine ray" in str(done.exception)


def test_nothing_to_read_asks_for_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_engine, "_library", lambda: 1 / 0)
    assert list(RayEngine().map(read_ref, [])) == []
