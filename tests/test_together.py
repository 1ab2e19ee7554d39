"""Sources that are read together give what each gives by itself."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Callable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from nccl_forensics.formats import _recorder_rings, flight_recorder, text_formats
from nccl_forensics.formats.base import DocumentFormat, Several
from nccl_forensics.reading import together
from nccl_forensics.reading.bundle import open_bundle
from nccl_forensics.reading.engine import InlineEngine, read_bundle
from nccl_forensics.reading.source import SourceReading, read_documents, read_source
from nccl_forensics.reading.together import LONGEST, STRIDE, read_sources
from tests.benchmarks.inputs import dump, pickled
from tests.corpus import ROOT

FIXTURES = ROOT / "fixtures"


def told(reading: SourceReading) -> dict[str, object]:
    """All that is known of a source, with folded tables unfolded; as texts, since no NaN equals another."""
    names = reading.frames.keys() | reading.folded.keys()
    tables = {name: repr(reading.table(name).to_dict(as_series=False)) for name in sorted(names)}
    facts = ("formats", "filled", "lines", "records", "gap_lines", "unmodelled", "foreign", "invalid_utf8", "error")
    return tables | {fact: getattr(reading, fact) for fact in facts}


def same(contents: list[bytes]) -> None:
    for content, reading in zip(contents, read_sources(contents), strict=True):
        assert told(reading) == told(read_source(content)), content[:200]


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """No way back to reading one by one where something goes wrong."""
    inner = together._read
    monkeypatch.setattr(together, "_read", lambda *given: [pytest.fail(str(p)) for p in [_problem(inner, *given)] if p] or inner(*given))


def _problem(read: Callable[..., object], *given: Sequence[bytes]) -> Exception | None:
    try:
        read(*given)
    except Exception as problem:
        return problem
    return None


def samples() -> list[bytes]:
    """Small texts of all kinds among the fixtures, a few of each folder."""
    found: list[bytes] = []
    for folder in sorted(p for p in FIXTURES.iterdir() if p.is_dir() and p.name != "incidents"):
        files = [
            f for f in sorted(folder.rglob("*")) if f.is_file() and 0 < f.stat().st_size < 20_000 and f.suffix not in (".md", ".jsonl")
        ]
        found += [f.read_bytes() for f in files[:3]]
    return found


def test_texts_of_all_kinds_give_the_same_together(strict: None):
    texts = samples()
    assert len(texts) > 40
    same(texts)


def test_an_incident_gives_the_same_together(strict: None):
    folder = FIXTURES / "incidents" / "skipped-collective-8r" / "evidence"
    same([f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file() and 0 < f.stat().st_size < LONGEST][:24])


LINE = "node{host}:{pid}:{tid} [{dev}] NCCL {level} {message}"
MESSAGES = (
    "Bootstrap : Using eth0:10.0.0.{n}<0>",
    "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.{n}<0>",
    "AllReduce: opCount {n} sendbuff 0x7f00 recvbuff 0x7f00 count 4096 datatype 7 op 0 root 0 comm 0x55aa [nranks=8] stream 0x1",
    "Trees [0] 1/-1/-1->0->-1 [1] -1/-1/-1->0->{n}",
    "Connected all rings",
    "something that no version of NCCL has ever said {n}",
    "NCCL_DEBUG set by environment to INFO",
    "comm 0x55aa rank {n} nranks 8 cudaDev 0 busId 1000 - Init COMPLETE",
    "RCCL version : 2.22.3-HEAD:{n}",
)


def made_up(seed: int) -> bytes:
    """A log with prefixes, torn lines, empty lines, tracebacks and lines of others, in any order; also one that ends inside something."""
    dice = random.Random(seed)
    lines: list[str] = []
    for _ in range(dice.randrange(1, 60)):
        n = dice.randrange(8)
        line = LINE.format(
            host=dice.choice(("01", "1", "a", "01.rack")),
            pid=100 + n,
            tid=200 + n,
            dev=n,
            level=dice.choice(("INFO", "INFO", "WARN")),
            message=dice.choice(MESSAGES).format(n=n),
        )
        match dice.randrange(12):
            case 0:
                lines += [
                    "Traceback (most recent call last):",
                    '  File "train.py", line 3, in step',
                    "    loss.backward()",
                    "ValueError: bad",
                ]
            case 1:
                lines += ["Traceback (most recent call last):", '  File "train.py", line 3, in step'][: dice.randrange(1, 3)]
            case 2:
                lines.append(
                    line[: dice.randrange(len(line))]
                    + LINE.format(host="01", pid=7, tid=8, dev=0, level="INFO", message="Connected all trees")
                )
            case 3:
                lines += ["", line, "HIP version  : 6.4", "ROCm version : 6.4"]
            case 4:
                lines.append(f"[rank{n}]: {line}")
            case 5:
                lines.append(
                    "[rank3]:[E1121 10:00:00.000000000 ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600001 milliseconds before timing out."
                )
            case 6:
                lines += ["*** SIGSEGV received at time=1 on cpu 0 ***", "Segmentation fault (core dumped)"]
            case 7:
                lines.append(f"{n}: step {n} loss 0.5")
            case _:
                lines.append(line)
    if dice.random() < 0.2:
        lines = [f"{dice.randrange(4)}: {line}" for line in lines]
    return "\n".join(lines).encode() + b"\n" * dice.randrange(2)


@pytest.mark.parametrize("seed", range(4))
def test_made_up_logs_give_the_same_together(strict: None, seed: int):
    same([made_up(seed * 100 + n) for n in range(16)])


def test_what_is_no_small_plain_text_is_read_by_itself_beside_the_others():
    log = made_up(1)
    others = [
        b"",
        b"\xef\xbb\xbf" + log,
        "node:1:2 [0] NCCL INFO a\n".encode("utf-16"),
        log + b"\xff\n",
        b"\x89PNG\r\n\x1a\n" + bytes(range(256)),
        b"\n",
        b"x\n",
    ]
    same([log, *others, log, log * (LONGEST // len(log) + 1)])


def test_where_a_format_falls_over_each_source_tells_it_by_itself(monkeypatch: pytest.MonkeyPatch):
    nccl = next(f for f in text_formats() if f.name == "nccl-log")
    read = nccl.read

    def falls_over(text: object) -> object:
        if text.lines["text"].str.contains("rank 5").any():
            raise ValueError("a surprise in the data")
        return read(text)

    object.__setattr__(nccl, "read", falls_over)
    try:
        good, bad = b"n:1:2 [0] NCCL INFO Connected all rings\n", b"n:1:2 [0] NCCL INFO comm 0x1 rank 5 nranks 8 - Init START\n"
        first, second, third = read_sources([good, bad, good])
        assert (first.records, second.records, third.records) == (1, 0, 1)
        assert second.frames["gaps"]["reason"][0] == "unreadable: ValueError: a surprise in the data"
    finally:
        object.__setattr__(nccl, "read", read)


def test_no_small_source_has_lines_enough_to_reach_the_next():
    assert LONGEST * 1.5 < STRIDE
    same([b"\n" * (LONGEST - 60) + b"n:1:2 [0] NCCL WARN oh\n", b"n:1:2 [0] NCCL WARN oh\n", b"HIP version : 6\n"])


def test_a_bundle_is_read_together_and_the_order_of_its_sources_is_kept(tmp_path: Path):
    for n in range(5):
        (tmp_path / f"r{n}.log").write_bytes(
            f"node01:{n}:7 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed\n".encode() * (n + 1)
        )
    with open_bundle([tmp_path]) as bundle:
        store = read_bundle(bundle, InlineEngine())
    rows = store.scan("nccl_errors").select("source_id", "line_no", "pid").collect()
    assert rows.rows() == [(n, line, n) for n in range(5) for line in range(1, n + 2)]
    assert isinstance(rows, pl.DataFrame)


def _changed(rank: int, change: Callable[[list[Any]], None]) -> bytes:
    document = pickle.loads(dump(rank, 4, 400, None))
    change(document["entries"])
    return pickled(document)


def test_dumps_read_together_are_those_read_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    def other_groups(entries: list[dict[str, object]]) -> None:
        for entry in entries[::3]:
            entry |= {"process_group": ("7", "pairs"), "pg_id": 1, "thread_id": "77"}

    def told_otherwise(entries: list[dict[str, object]]) -> None:
        for entry in entries[::2]:
            entry["p2p_seq_id"] = "7"

    def unfolding(entries: list[dict[str, object]]) -> None:
        frames = [{"name": "f" * 500, "filename": "/" + "d" * 2000, "line": 1}] * 500
        entries[:] = [entry | {"frames": frames} for entry in entries[:60]]

    alike = [dump(0, 4, 400, None), dump(1, 4, 300, 1), _changed(2, other_groups), dump(3, 9, 400, 3), _changed(1, told_otherwise)]
    odd = [
        _changed(0, lambda entries: entries[9].update(time_created_ns=0)),  # no time
        _changed(1, lambda entries: entries[9].update(input_sizes="?", duration_ms=1.5)),
        _changed(3, lambda entries: entries[300].update(time_discovered_started_ns=-5)),
        _changed(2, lambda entries: entries.insert(5, "no entry")),
        alike[0][:20_000],
        alike[0].replace(b"Float", b"cos\n\n"),
        _changed(0, unfolding),  # too much text for what is read together
        b"node1:7:7 [0] NCCL INFO NCCL version 2.27.7+cuda12.9\n",
    ]
    one_by_one = [
        dump(0, 4, 30, None),  # too few entries to be looked at by sorts
        dump(2, 4, 9, None),
        pickled({"entries": [], "version": "2.4", "pg_config": {}}),
        json.dumps(pickle.loads(alike[1])).encode(),
    ]
    read: list[bytes] = []

    def spied(document: DocumentFormat, contents: Sequence[bytes]) -> Several | None:
        found = read_documents(document, contents)
        read.extend(contents[place] for place in (found.records if found is not None else ()))
        return found

    monkeypatch.setattr(together, "read_documents", spied)
    mixed = [content for some in zip_longest(odd, alike, one_by_one) for content in some if content is not None]
    same(mixed)
    assert set(read) >= {*alike, *one_by_one}
    assert len(read) < len(mixed) - 3
    monkeypatch.setattr(flight_recorder, "_AT_ONCE", 1)
    same(mixed)


def test_short_dumps_come_folded(tmp_path: Path) -> None:
    for rank in range(3):
        (tmp_path / f"trace_{rank}").write_bytes(dump(rank, 3, 40, None))
    with open_bundle([tmp_path]) as bundle:
        store = read_bundle(bundle, InlineEngine())
        folded = store.folded("fr_entries")
        assert sum(rows.height for rows, _, _ in folded.rows()) == 120
        assert folded.words.height < 60
        alone = [read_source(m.file.read_bytes()).table("fr_entries") for m in bundle.members if m.file is not None]
    assert pl.concat(alone).equals(store.scan("fr_entries").drop("source_id").collect())


def test_a_dump_whose_texts_unfold_to_too_much_is_read_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = dump(0, 4, 300, None), dump(0, 4, 900, None)
    monkeypatch.setattr(_recorder_rings.Budget, "take", lambda self, amount: amount < 400_000)
    made = read_documents(flight_recorder.FORMAT, [few, many, few])
    assert made is not None
    assert sorted(made.records) == [0, 2]
