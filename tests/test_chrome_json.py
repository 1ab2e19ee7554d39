"""Streaming the events of a Chrome trace: windows, repairs, cuts."""

from __future__ import annotations

import json
import mmap
import random
from pathlib import Path

import pytest

from nccl_forensics.decoding import chrome_json
from nccl_forensics.decoding.chrome_json import Event, Trace, is_trace
from tests.trace_samples import Sample


def read(data: bytes | mmap.mmap) -> tuple[list[Event], Trace]:
    trace = Trace(data)
    events: list[Event] = []
    for first, batch in trace.batches():
        assert first >= len(events)
        events.extend(batch)
    return events, trace


def sample(count: int = 50) -> Sample:
    made = Sample()
    for n in range(count):
        made.kernel(f'void f<{n}>(a "b" \\ {{}} }},\n{{)', n * 10.5, 5)
    return made


@pytest.mark.parametrize("window", [64, 200, 1000, 1 << 20])
def test_every_event_comes_once_whatever_the_window(monkeypatch: pytest.MonkeyPatch, window: int) -> None:
    monkeypatch.setattr(chrome_json, "WINDOW", window)
    made = sample()
    events, trace = read(made.text())
    assert [e.name for e in events] == [e["name"] for e in made.events]
    assert trace.complete
    assert not trace.breaks
    assert trace.header["traceName"] == "x.json"
    assert trace.header["schemaVersion"] == 1


@pytest.mark.parametrize("window", [100, 300, 1 << 20])
def test_lists_of_objects_inside_an_event_are_no_places_to_cut(monkeypatch: pytest.MonkeyPatch, window: int) -> None:
    monkeypatch.setattr(chrome_json, "WINDOW", window)
    inner = [{"name": f"frame {n}", "ts": n} for n in range(6)]
    made = Sample()
    for n in range(12):
        made.operator(f"op{n}", n, 1, args={"stack": inner})
    events, trace = read(made.text())
    assert [e.name for e in events] == [f"op{n}" for n in range(12)]
    assert not trace.breaks


def test_a_mapped_file_reads_like_its_bytes(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    file.write_bytes(sample().text())
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        assert len(read(data)[0]) == 50


@pytest.mark.parametrize("seed", range(20))
def test_a_cut_file_yields_every_whole_event_and_says_where_it_ends(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(chrome_json, "WINDOW", 700)
    text = sample().text()
    begin, end = text.index(b'"traceEvents"') + 16, text.index(b"\n  ],")
    cut = random.Random(seed).randrange(begin, end)
    events, trace = read(text[:cut])
    whole = sum(1 for line in text[:cut].split(b"\n")[1:] if line.startswith(b"  {") and line.rstrip(b",").endswith(b"}}"))
    assert abs(len(events) - whole) <= 1
    assert not trace.complete
    [gap] = trace.breaks
    assert "truncated" in gap.reason
    assert gap.index == len(events)
    assert begin <= gap.offset <= cut


@pytest.mark.parametrize(
    ("broken", "name"),
    [
        (b'{"ph":"X","cat":"kernel","name":"C:\\users\\x","ts":1,"dur":NaN}', "C:\\users\\x"),
        (b'{"ph":"X","cat":"kernel","name":"a","ts":1,"dur":1,"args":{"x":N/A,}}', "a"),
        (b'{"ph":"X","cat":"kernel","name":"say "hi" twice","pid":1,"ts":1,"dur":1}', 'say "hi" twice'),
        (b'{"ph":"X","cat":"kernel","name":"\xff\x01","ts":1,"dur":1}', "\N{REPLACEMENT CHARACTER} "),
        (b'{"ph":"X","cat":"kernel","name":"a","ts":[],"dur":1}', "a"),
        (b'{"ph":"X","cat":"kernel","name":"a","name":"b","ts":1,"dur":1}', "b"),
    ],
)
def test_what_exporters_break_is_repaired_without_losing_a_neighbour(broken: bytes, name: str) -> None:
    text = sample(3).text()
    at = text.index(b"  {", text.index(b'"traceEvents"'))
    events, trace = read(text[:at] + b"  " + broken + b",\n" + text[at:])
    assert len(events) == 4
    assert events[0].name == name
    assert trace.complete
    assert not trace.breaks


def test_an_event_that_is_no_json_is_left_out_with_its_offset_and_number() -> None:
    text = sample(4).text()
    lines = text.split(b"\n")
    place = next(n for n, line in enumerate(lines) if b"f<2>" in line)
    lines[place] = b'  {"ph": "X", "cat": kernel, "name": 12 34},'
    events, trace = read(b"\n".join(lines))
    assert len(events) == 3
    [gap] = trace.breaks
    assert gap.index == 2
    assert b"\n".join(lines)[gap.offset :].startswith(b'{"ph": "X", "cat": kernel')
    assert trace.complete


def test_a_bare_list_is_read_and_need_not_be_closed() -> None:
    events = json.dumps(sample(5).events).encode()
    for text in (events, events[:-1]):
        assert is_trace(text)
        found, trace = read(text)
        assert len(found) == 5
        assert not trace.breaks


def test_metadata_behind_the_events_is_read_and_a_second_list_is_told() -> None:
    text = b'{"traceEvents": [], "distributedInfo": {"rank": 3}, "traceEvents": [{"ph":"X"}]}'
    events, trace = read(text)
    assert not events
    assert trace.header["distributedInfo"] == {"rank": 3}
    assert "second list" in trace.breaks[0].reason


def test_an_event_without_end_is_given_up_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chrome_json, "WINDOW", 256)
    monkeypatch.setattr(chrome_json, "LONGEST_EVENT", 4096)
    text = b'{"traceEvents": [{"ph":"X","name":"a","ts":1},{"ph":"X","name":"' + b"z" * 100_000 + b'"},{"ph":"X","name":"b","ts":2}]}'
    events, trace = read(text)
    assert events[0].name == "a"
    assert any("left out" in b.reason or "truncated" in b.reason for b in trace.breaks)


def test_other_json_is_no_trace() -> None:
    assert not is_trace(b'{"entries": [], "version": "2.10"}')
    assert not is_trace(b'[{"name": "x"}]')
    assert is_trace(b'{"schemaVersion": 1, "deviceProperties": [' + b" " * 65000)
