"""Tables that were read before are not read again, the report is the same, and nothing that the cache meets can spoil it."""

from __future__ import annotations

import os
import shutil
import stat
import threading
from collections.abc import Sequence
from importlib.metadata import EntryPoint
from pathlib import Path

import polars as pl
import pytest

from nccl_forensics import api
from nccl_forensics import cache as cache_module
from nccl_forensics.cache import ABOVE, Cache, fingerprint, open_cache
from nccl_forensics.reading import engine as engine_module
from nccl_forensics.reading.bundle import open_bundle
from nccl_forensics.reading.engine import InlineEngine, Ref, read_bundle, read_ref
from nccl_forensics.tables import TABLES
from tests.corpus import ROOT
from tests.stores import rows
from tests.test_docs import run
from tests.test_floors import PACKAGE, imports

INCIDENTS = ROOT / "fixtures" / "incidents"
HANG = INCIDENTS / "skipped-collective-8r" / "evidence"
WARN = b"node01:7:7 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer node02<51161>\n"


class Counting(InlineEngine):
    """Reads in this process and counts."""

    asked: list[int] = []  # noqa: RUF012 - one list for one test, see the fixture

    def map(self, function, refs: Sequence[Ref]):
        self.asked.append(len(refs))
        return super().map(function, refs)


@pytest.fixture
def engine() -> Counting:
    Counting.asked = []
    return Counting()


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    found, why = open_cache(tmp_path / "cache")
    assert found is not None, why
    return found


@pytest.fixture
def evidence(tmp_path: Path) -> Path:
    return Path(shutil.copytree(HANG, tmp_path / "evidence"))


def entries(cache: Cache) -> list[Path]:
    return sorted(cache.folder.rglob("*.tables"))


@pytest.mark.parametrize("case", ["skipped-collective-8r", "slow-loader-traces-4r", "lab-gil-held-3r", "nccl-never-joined-8r"])
def test_a_report_has_the_same_bytes_without_a_cache_and_with_a_new_and_a_full_one(case: str, cache: Cache, engine: Counting) -> None:
    evidence = [INCIDENTS / case / "evidence"]
    plain = api.analyze(evidence, engine=engine)
    first = api.analyze(evidence, engine=engine, cache=cache)
    second = api.analyze(evidence, engine=engine, cache=cache)
    assert engine.asked[0] == engine.asked[1] > 0
    assert engine.asked[2] == 0
    assert plain.json() == first.json() == second.json()
    assert plain.html() == first.html() == second.html()


def test_every_table_comes_back_with_its_rows_and_types(cache: Cache) -> None:
    compared = set()
    for case in ("slow-loader-traces-4r", "lab-p2p-deadlock-4r", "ras-rank-behind-32r", "nccl-skipped-collective-8r"):
        with open_bundle([INCIDENTS / case / "evidence"]) as bundle:
            plain = read_bundle(bundle, InlineEngine())
            read_bundle(bundle, InlineEngine(), None, cache)
            again = read_bundle(bundle, InlineEngine(), None, cache)
            assert again.present == plain.present
            for name in plain.present:
                left, right = plain.scan(name).collect(), again.scan(name).collect()
                assert left.schema == right.schema
                assert left.equals(right, null_equal=True)
                compared.add(name)
    assert len(compared) > 20


def test_only_what_changed_is_read_again(evidence: Path, cache: Cache, engine: Counting) -> None:
    api.analyze([evidence], engine=engine, cache=cache)
    changed = next(f for f in sorted(evidence.rglob("*")) if f.is_file() and f.suffix == ".log")
    changed.write_bytes(changed.read_bytes() + WARN)
    (evidence / "new.log").write_bytes(WARN)
    api.analyze([evidence], engine=engine, cache=cache)
    assert engine.asked[1] == 2


def test_the_same_files_under_other_names_and_in_an_archive_are_known(
    evidence: Path, tmp_path: Path, cache: Cache, engine: Counting
) -> None:
    api.analyze([evidence], engine=engine, cache=cache)
    archive = shutil.make_archive(str(tmp_path / "moved"), "gztar", evidence)
    moved = api.analyze([archive], engine=engine, cache=cache)
    assert engine.asked[1] == 0
    assert moved.verdict["cause"] == "collective-skipped"


def test_big_tables_come_back_as_files_with_the_same_rows(tmp_path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(4):
        (tmp_path / f"r{i}.log").write_bytes(WARN * (400 if i % 2 else 3))
    with open_bundle([*tmp_path.glob("*.log")]) as bundle:
        plain = rows(read_bundle(bundle, InlineEngine()))
        monkeypatch.setattr(engine_module, "_BY_MESSAGE", 20_000)
        monkeypatch.setattr(engine_module, "_IN_MEMORY", 0)
        read_bundle(bundle, InlineEngine(), None, cache)
        store = read_bundle(bundle, InlineEngine(), None, cache)
        assert store.on_disk
        assert rows(store) == plain


@pytest.mark.parametrize("harm", ["cut", "flipped", "emptied", "replaced", "of another source", "a folder"])
def test_a_broken_entry_is_read_again_and_never_believed(harm: str, evidence: Path, cache: Cache, engine: Counting) -> None:
    plain = api.analyze([evidence], engine=engine, cache=cache).json()
    files = entries(cache)
    contents = [bytearray(file.read_bytes()) for file in files]
    others = [bytes(c) for c in contents]
    for n, (file, content) in enumerate(zip(files, contents, strict=True)):
        if harm == "cut":
            del content[len(content) // 2 :]
        elif harm == "flipped":
            content[len(content) // 2] ^= 1
        elif harm == "emptied":
            content.clear()
        elif harm == "replaced":
            content[:] = os.urandom(len(content))
        elif harm == "of another source":
            content[:] = others[n - 1]
        file.unlink()
        if harm == "a folder":
            file.mkdir()
        else:
            file.write_bytes(content)
    assert api.analyze([evidence], engine=engine, cache=cache).json() == plain
    assert engine.asked[1] == engine.asked[0]
    if harm != "a folder":
        api.analyze([evidence], engine=engine, cache=cache)
        assert engine.asked[2] == 0, "what was broken is mended"


def test_nothing_of_an_entry_is_executed_and_only_arrow_and_json_are_read() -> None:
    loaded = imports(PACKAGE / "cache.py")
    assert not {"pickle", "marshal", "shelve", "nccl_forensics.decoding.safe_pickle"} & loaded


def test_another_state_of_the_program_does_not_see_the_entries(evidence: Path, cache: Cache, engine: Counting) -> None:
    api.analyze([evidence], engine=engine, cache=cache)
    api.analyze([evidence], engine=engine, cache=Cache(cache.folder, cache.limit_bytes, "0" * 16))
    assert engine.asked[0] == engine.asked[1] > 0


def test_the_fingerprint_covers_every_module_that_reading_can_reach() -> None:
    """What stands above reading may change without its tables; nothing that reading imports may be taken for that."""
    seen: set[str] = set()
    waiting = ["reading"]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        files = [PACKAGE / f"{name}.py"] if (PACKAGE / f"{name}.py").exists() else sorted((PACKAGE / name).rglob("*.py"))
        for file in files:
            waiting += [t.split(".")[1] for t in imports(file) if t.startswith("nccl_forensics.") and t.split(".")[1][:2] != "__"]
    assert {"reading", "formats", "grammar", "tables", "masking"} <= seen
    assert not seen & ABOVE


def test_the_fingerprint_changes_with_code_grammars_and_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = fingerprint()
    assert len(own) == 16
    grammars = Path(shutil.copytree(ROOT / "grammars", tmp_path / "grammars"))
    monkeypatch.setattr(cache_module, "grammars_folder", lambda: grammars)
    fingerprint.cache_clear()
    assert fingerprint() == own
    file = next(grammars.glob("*.lark"))
    file.write_text(file.read_text() + "\n")
    fingerprint.cache_clear()
    other = fingerprint()
    monkeypatch.setattr(cache_module.metadata, "version", lambda name: "0")
    fingerprint.cache_clear()
    assert len({own, other, fingerprint()}) == 3
    monkeypatch.undo()
    fingerprint.cache_clear()


def test_the_fingerprint_covers_formats_that_other_packages_bring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = fingerprint()
    package = tmp_path / "acme_formats_of_a_test"
    package.mkdir()
    (package / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    entry = EntryPoint("acme", "acme_formats_of_a_test.deep:FORMAT", "nccl_forensics.formats")
    monkeypatch.setattr(cache_module.plugins, "installed", lambda kind: (entry,) if kind == "formats" else ())
    told = [own]
    for text in ("FORMAT = 1", "FORMAT = 2"):
        (package / "deep.py").write_text(text)
        fingerprint.cache_clear()
        told.append(fingerprint())
    assert len(set(told)) == 3
    monkeypatch.undo()
    fingerprint.cache_clear()


def test_the_least_recently_used_goes_first_and_the_bound_holds(tmp_path: Path, cache: Cache) -> None:
    frame = pl.DataFrame({"x": pl.Series([os.urandom(500).hex() for _ in range(20)])})
    names = [f"{n:064x}" for n in range(6)]
    for age, name in enumerate(names):
        cache.save(name, 1, {}, (), (), {"t": frame})
        [file] = [f for f in entries(cache) if f.name.startswith(name)]
        os.utime(file, (1e9 + age, 1e9 + age))
    assert cache.load(names[0], 1) is not None  # used: now the youngest
    size = entries(cache)[0].stat().st_size
    Cache(cache.folder, int(size * 3.5), cache.fingerprint).trim()
    assert [f.name[:64] for f in entries(cache)] == [names[0], names[4], names[5]]


def test_trimming_touches_nothing_that_is_not_the_caches(cache: Cache) -> None:
    keep = [cache.folder / "thesis.tables", cache.folder / cache.fingerprint / "ab" / "notes.txt", cache.folder / "photos" / "1.png"]
    for file in keep:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"x" * 100)
    cache.save("ab" * 32, 1, {}, (), (), {})
    Cache(cache.folder, 0, cache.fingerprint).trim()
    assert not [f for f in entries(cache) if f not in keep]
    assert all(f.exists() for f in keep)


def test_what_killed_runs_left_is_removed_after_a_day(cache: Cache) -> None:
    cache.save("ab" * 32, 1, {}, (), (), {})
    home = entries(cache)[0].parent
    for name, age in (("old.partial", 2 * 86_400), ("young.partial", 60)):
        (home / name).write_bytes(b"half")
        then = (home / name).stat().st_mtime - age
        os.utime(home / name, (then, then))
    cache.trim()
    assert [f.name for f in home.glob("*.partial")] == ["young.partial"]


def test_a_table_that_would_fill_the_cache_is_not_kept(cache: Cache) -> None:
    small = Cache(cache.folder, 1000, cache.fingerprint)
    small.save("ab" * 32, 1, {}, (), (), {"t": pl.DataFrame({"x": list(range(1000))})})
    assert not entries(cache)


def test_folder_and_entries_are_for_their_owner_only(evidence: Path, cache: Cache) -> None:
    api.analyze([evidence], engine=InlineEngine(), cache=cache)
    for path in [cache.folder, *cache.folder.rglob("*")]:
        if path.name != "CACHEDIR.TAG":
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def test_a_folder_that_others_can_write_to_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    found, why = open_cache(tmp_path / "open")
    assert found is None
    assert "others" in str(why)


def test_a_place_that_cannot_be_written_costs_nothing_but_time(tmp_path: Path, evidence: Path, engine: Counting) -> None:
    (tmp_path / "file").write_text("in the way")
    found, why = open_cache(tmp_path / "file" / "cache")
    assert found is None
    assert why
    gone = Cache(tmp_path / "nowhere" / "cache", 1 << 30, "0" * 16)
    assert api.analyze([evidence], engine=engine, cache=gone).verdict["cause"] == "collective-skipped"


def test_runs_at_the_same_time_share_a_cache(evidence: Path, cache: Cache) -> None:
    told: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: told.append(api.analyze([evidence], engine=InlineEngine(), cache=cache).json())) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(told) == 3
    assert len(set(told)) == 1
    assert not list(cache.folder.rglob("*.partial"))


def test_a_source_that_is_written_to_while_it_is_read_is_not_kept(tmp_path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "live.log"
    file.write_bytes(WARN)
    from nccl_forensics.reading import source as reading

    whole = reading.read_source

    def growing(data):
        with file.open("ab") as out:
            out.write(WARN)
        return whole(data)

    monkeypatch.setattr(reading, "read_source", growing)
    assert read_ref(Ref(0, file, len(WARN), tmp_path, cache)).facts["lines"] == 1
    assert not entries(cache)


def test_what_a_reader_fell_over_is_tried_again(tmp_path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    from nccl_forensics.reading import source as reading

    file = tmp_path / "x.log"
    file.write_bytes(WARN)
    whole = reading.read_source

    def failing(data):
        result = whole(data)
        result.frames["gaps"] = TABLES["gaps"].frame([{"line_no": 1, "reason": "unreadable: MemoryError: "}])
        return result

    monkeypatch.setattr(reading, "read_source", failing)
    read_ref(Ref(0, file, len(WARN), tmp_path, cache))
    assert not entries(cache)


def test_secrets_of_the_evidence_are_masked_in_the_cache(tmp_path: Path, cache: Cache) -> None:
    (tmp_path / "env.txt").write_text(
        "NCCL_DEBUG=INFO\nNCCL_SOCKET_IFNAME=eth0\nHF_TOKEN=hf_abcdefghijklmnopqrstuvwx\nPATH=/usr/bin\nWORLD_SIZE=2\n"
    )
    (tmp_path / "err.log").write_text(
        "Traceback (most recent call last):\n"
        '  File "train.py", line 3, in <module>\n    login(token)\n'
        "RuntimeError: cannot log in with hf_abcdefghijklmnopqrstuvwx\n"
    )
    with open_bundle([tmp_path / "env.txt", tmp_path / "err.log"]) as bundle:
        read_bundle(bundle, InlineEngine(), None, cache)
        store = read_bundle(bundle, InlineEngine(), None, cache)
    assert store.sources["records"].sum() > 0
    kept = "".join(store.scan(name).collect().write_json() for name in store.present)
    assert "hf_abcdefghijklmnopqrstuvwx" not in kept


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own, where the tests' own switch is off."""
    place = tmp_path / "home"
    place.mkdir()
    monkeypatch.setenv("HOME", str(place))
    for name in ("NCCL_FORENSICS_NO_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    return place


def test_the_command_line_keeps_tables_unless_told_not_to(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "x.log"
    log.write_bytes(WARN)
    query = ["sql", str(log), "SELECT path, sha256, records FROM sources"]
    told = [run([*query, "--no-cache"])]
    assert not list(home.iterdir())
    told.append(run(query))
    assert (home / ".cache" / "nccl-forensics" / "CACHEDIR.TAG").exists()
    assert list(home.rglob("*.tables"))
    told.append(run(query))
    monkeypatch.setenv("NCCL_FORENSICS_CACHE_DIR", str(tmp_path / "own"))
    monkeypatch.setenv("NCCL_FORENSICS_CACHE_SIZE", "10M")
    told.append(run(query))
    assert list((tmp_path / "own").rglob("*.tables"))
    assert [r.exit_code for r in told] == [0] * 4, told[0].output
    assert len({r.stdout for r in told}) == 1


def test_a_cache_that_was_asked_for_and_cannot_be_is_named(home: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "x.log").write_bytes(WARN)
    query = ["sql", str(tmp_path / "x.log"), "SELECT path FROM sources"]
    done = run([*query, "--cache-dir", str(tmp_path / "file" / "x")])
    assert "tables are not kept" in done.stderr
    assert done.exit_code == 0
    assert run([*query, "--cache-size", "many"]).exit_code == 2


def test_no_module_of_the_list_is_gone() -> None:
    there = {f.name.removesuffix(".py") for f in PACKAGE.iterdir()}
    assert not ABOVE - there
