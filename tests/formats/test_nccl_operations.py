"""Operation lines that are read by words give the same rows, line by line, as the grammars of prefixes and messages give."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nccl_forensics import simulate
from nccl_forensics.formats import _nccl_steps, text_formats
from nccl_forensics.grammar.lines import GrammarError, cut_line, load
from nccl_forensics.reading import source as reading
from nccl_forensics.reading.source import SourceReading, read_source
from nccl_forensics.simulate import PLATFORMS
from tests.benchmarks import inputs

_PLAIN = tuple(replace(f, bulk=None) for f in text_formats())
_HEX = st.text("0123456789abcdef", min_size=1, max_size=12)
_POINTER = st.one_of(_HEX.map("0x{}".format), st.just("(nil)"))
_WRITER = st.sampled_from(
    [
        "node01:7:7 [0]",
        "node01:7:9 [0]",
        "node01:8:8 [1]",
        "n-2.x:12:12 [-1]",
        "bad:1:2 [3]",
        "ubuntu-gpu1:5:6 [4]",
        "uuu:5:6 [4]",
        "Process:1:2 [0]",
        "token:12:12 [1]",
    ]
)
_NUMBER = st.one_of(st.integers(0, 9), st.integers(0, 2**70)).map(str)


@st.composite
def operation(draw: st.DrawFn) -> str:
    """An operation line as NCCL sets it."""
    op = draw(st.sampled_from(["AllReduce", "Broadcast", "Send", "ReduceScatter", "Trees", "RAS", "Search", "NET", "Channel", "Init"]))
    return (
        f"{draw(_WRITER)} NCCL INFO {op}: opCount {draw(_HEX)} sendbuff {draw(_POINTER)} recvbuff {draw(_POINTER)} count {draw(_NUMBER)} "
        f"datatype {draw(_NUMBER)} op {draw(_NUMBER)} root {draw(st.integers(-1, 9))} comm {draw(_POINTER)} "
        f"[nranks={draw(_NUMBER)}] stream {draw(_POINTER)}"
    )


_OTHER = st.sampled_from(
    [
        "", "x^ is no stream of zlib", "node01:7:7 [0] NCCL INFO NCCL version 2.27.7+cuda12.9", "node02:7:7 [0] NCCL INFO Using network IB",
        "node01:7:7 [0] transport/net.cc:71 NCCL WARN Call to ibv_poll_cq failed", "[rank3]: Traceback (most recent call last):", "\x1b[31mred",
        "node01:7:7 [0] NCCL INFO something that nobody knows", "[default0]:node01:7:7 [0] NCCL INFO Connected all rings", "\ufffd \u00e9",
        "Process 17: python train.py", "[1] NCCL INFO Connected all trees", "node01:7:7 [0] NCCL INFO AllReduce: opCount 1e sendbuff 0x7",
    ]
)  # fmt: skip


@st.composite
def lines(draw: st.DrawFn) -> str:
    """Mostly operations, whole or spoilt, and other lines between them."""
    line = draw(operation()) if draw(st.integers(0, 9)) < 8 else draw(_OTHER)
    how = draw(st.integers(0, 30))
    cut = draw(st.integers(0, max(0, len(line))))
    return {
        0: line.replace(" ", "  ", 1),
        1: line[:cut] + draw(operation()),
        2: line[:cut],
        3: f"3: {line}",
        4: f"[rank2]:{line}",
        5: f"[2025-07-01 10:22:33] {line}",
        6: line + " task 0 globalrank 5",
        7: line + "\r",
        8: line + "  ",
        9: line.upper(),
        10: line + "\x00",
    }.get(how, line)


def same(one: SourceReading, other: SourceReading) -> None:
    """Both readings hold the same rows and counts."""
    for name in ("formats", "filled", "lines", "records", "gap_lines", "unmodelled", "foreign", "invalid_utf8", "error"):
        assert getattr(one, name) == getattr(other, name), name
    names = one.frames.keys() | one.folded.keys()
    assert names == other.frames.keys() | other.folded.keys()
    for name in names:
        assert one.table(name).schema == other.table(name).schema
        assert one.table(name).rows() == other.table(name).rows(), name


def by_grammar(data: bytes) -> SourceReading:
    """What is read where no format reads in bulk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "text_formats", lambda: _PLAIN)
        return read_source(data)


@settings(max_examples=40, deadline=None)
@given(st.lists(lines(), min_size=4, max_size=25), st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_what_is_read_by_words_is_what_the_grammars_read(text: list[str], end: str, ended: bool) -> None:
    data = (end.join(text) + end * ended).encode()
    same(read_source(data), by_grammar(data))


@settings(max_examples=40, deadline=None)
@given(operation())
def test_a_line_of_the_grammar_by_words_has_the_columns_of_prefix_and_message(line: str) -> None:
    found = load("nccl_operation").parse(line)
    assert found is not None
    prefix = load("nccl_prefix").parse(line)
    assert prefix is not None
    assert prefix[0] == "info"
    said = str(prefix[1]["message"])
    message = load("nccl").parse(said)
    if message is not None and message[0] == "operation":
        both = {c: v for c, v in (prefix[1] | message[1]).items() if c in found[1]}
        assert found == ("operation", both)


def test_operations_between_other_lines_are_read_in_bulk_and_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    text = [
        f"node01:7:7 [0] NCCL INFO AllReduce: opCount {n:x} sendbuff 0x{n:x}0 recvbuff 0x{n:x}8 count {n} datatype 7 op 0 root 0 "
        "comm 0x55 [nranks=8] stream 0x66"
        for n in range(400)
    ]
    text[100:100] = [
        "node01:7:7 [0] NCCL INFO Connected all rings",
        "more noise",
        "node01:7:7 [0] net.cc:1 NCCL WARN Call to connect failed",
        "noise",
    ]
    data = ("\n".join(text) + "\n").encode()
    [piece] = reading._parts(data, SourceReading())
    assert piece.bulk is not None
    assert piece.bulk.lines.len() == 400
    assert piece.lines["line_no"].to_list() == [101, 102, 103, 104]
    whole = by_grammar(data)
    same(read_source(data), whole)
    monkeypatch.setattr(reading, "CHUNK_BYTES", 9000)
    pieces = read_source(data)
    assert pieces.table("nccl_ops").rows() == whole.table("nccl_ops").rows()
    assert (pieces.lines, pieces.records, pieces.foreign) == (whole.lines, whole.records, whole.foreign)


def test_lines_that_an_earlier_format_could_want_are_not_read_in_bulk() -> None:
    line = "Process:1:2 [0] NCCL INFO AllReduce: opCount 1 sendbuff 0x1 recvbuff 0x2 count 1 datatype 7 op 0 root 0 comm 0x5 [nranks=8] stream 0x6"
    data = (f"{line}\n" * 20 + "Process 17: python train.py\n").encode()
    assert [piece.bulk for piece in reading._parts(data, SourceReading())] == [None]
    same(read_source(data), by_grammar(data))


def test_a_column_of_prefixes_is_believed_as_if_all_lines_were_looked_at() -> None:
    line = "node01:7:7 [0] NCCL INFO AllReduce: opCount 1 sendbuff 0x1 recvbuff 0x2 count 1 datatype 7 op 0 root 0 comm 0x5 [nranks=8] stream 0x6"
    for bare in (2, 4, 8, 16):
        data = (f"{line}\n" * bare + f"3: {line}\n" * 20).encode()
        same(read_source(data), by_grammar(data))


def test_lines_are_cut_at_a_letter_that_no_later_terminal_can_hold() -> None:
    line = cut_line(load("nccl_operation").kinds["operation"], "u")
    assert [piece.columns[:1] for piece in line.pieces] == [("host",), ("op_count",), (), (), ("count",)]
    assert [piece.bare for piece in line.pieces] == [None, (3, 6), None, None, None]
    with pytest.raises(GrammarError, match="may hold it"):
        cut_line(load("nccl_operation").kinds["operation"], "a")
    with pytest.raises(GrammarError, match="may be missing"):
        cut_line(load("nccl").kinds["call_other"], "u")


@st.composite
def repeated(draw: st.DrawFn) -> list[str]:
    """A log of steps that repeat, loops within them, with ever new pointers and counts that grow."""
    writer = draw(_WRITER)
    sorts = [
        (
            draw(st.sampled_from(["AllReduce", "AllGather", "ReduceScatter", "Broadcast"])),
            f"count {draw(st.integers(1, 9999))} datatype 7 op 0 root 0 comm 0x{comm} [nranks=8] stream 0x66",
            comm,
        )
        for comm in draw(st.lists(st.sampled_from(["5a", "5b"]), min_size=1, max_size=4))
    ]
    step = sorts * draw(st.integers(1, 3)) + sorts[: draw(st.integers(0, len(sorts)))]
    counts = dict.fromkeys(("5a", "5b"), draw(st.sampled_from([0, 7, 250, 4090])))
    rng = draw(st.randoms(use_true_random=False))
    nil = draw(st.booleans())
    lines = []
    for _ in range(draw(st.integers(10, 60))):
        for op, rest, comm in step:
            send = "(nil)" if nil and op == "Broadcast" else f"0x7f{rng.getrandbits(20):05x}"
            line = f"{writer} NCCL INFO {op}: opCount {counts[comm]:x} sendbuff {send} recvbuff 0x7f{rng.getrandbits(20):05x} {rest}"
            lines.append(line)
            counts[comm] += 1
    return lines


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stretches of steps are compared in pieces of few lines."""
    monkeypatch.setattr(_nccl_steps, "_FIRST_WINDOW", 700)
    monkeypatch.setattr(_nccl_steps, "_WINDOW", 3000)


@pytest.mark.usefixtures("small_windows")
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(repeated(), st.data())
def test_steps_that_repeat_are_what_the_grammars_read_whatever_is_spoilt(text: list[str], data: st.DataObject) -> None:
    for _ in range(data.draw(st.integers(0, 2))):
        text.insert(data.draw(st.integers(0, len(text))), data.draw(lines()))
    content = bytearray(("\n".join(text) + "\n").encode())
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 2))] = data.draw(
            st.sampled_from([b"", b"0", b"g", b"f", b"A", b" ", b"u", b":", b"x", b"\n"])
        )
    same(read_source(bytes(content)), by_grammar(bytes(content)))


@pytest.mark.usefixtures("small_windows")
def test_every_byte_of_a_step_is_looked_at() -> None:
    steps = [
        f"n:7:7 [0] NCCL INFO {op}: opCount {step:x} sendbuff 0x7f{step:03x} recvbuff 0x{step:04x} count 4 datatype 7 op 0 root 0 comm 0x5 [nranks=8] stream 0x6"
        for step in range(256, 276)
        for op in ("AllReduce", "Broadcast")
    ]
    content = ("\n".join(steps) + "\n").encode()
    told = _nccl_steps.steps(content)
    assert told is not None
    assert max(stretch.times for stretch in told.stretches) > 10
    own = content.index(b"\n", len(content) // 2) + 1
    whole = read_source(content).table("nccl_ops")
    for at in range(own, content.index(b"\n", own) + 1):
        spoilt = content[:at] + b"!" + content[at + 1 :]
        told = _nccl_steps.steps(spoilt)
        assert told is not None
        assert told.height - len(told.rest) < told.height
        if at % 7 == 0:
            table = read_source(spoilt).table("nccl_ops")
            assert not table.equals(whole)
            same(read_source(spoilt), by_grammar(spoilt))


_FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "nccl"
_RELEASES = sorted({release for p in PLATFORMS.values() if p.vendor == "nvidia" for release in p.releases})


def stretched_is_read_by_steps(log: Path) -> None:
    """A log whose first step is repeated behind it is read by steps, as the grammars read it."""
    inputs.stretch(log, log.stat().st_size + 150_000, 1)
    content = log.read_bytes()
    told = _nccl_steps.steps(content)
    assert told is not None
    assert sum(stretch.times * len(stretch.shapes) for stretch in told.stretches if stretch.times > 1) > 300
    same(read_source(content), by_grammar(content))


@pytest.mark.parametrize("release", _RELEASES)
def test_operations_of_every_release_are_read_by_steps_as_by_the_grammars(release: str, tmp_path: Path) -> None:
    platform = next(name for name, p in PLATFORMS.items() if release in p.releases and p.vendor == "nvidia")
    simulate.simulate(simulate.Request("collective-skipped", 4, 3, platform, "log", release, full=True), tmp_path)
    stretched_is_read_by_steps(min(tmp_path.glob("evidence/logs/nccl.*.log")))


@pytest.mark.parametrize("log", ["stub-2.18.5-rank0.log", "stub-2.27.7-rank0.log", "stub-2.30.7-rank0.log"])
def test_what_the_library_itself_printed_is_read_by_steps_as_by_the_grammars(log: str, tmp_path: Path) -> None:
    copy = tmp_path / log
    copy.write_bytes((_FIXTURES / log).read_bytes())
    stretched_is_read_by_steps(copy)


def test_a_text_without_steps_is_given_up_soon() -> None:
    lines = [
        f"n:7:7 [0] NCCL INFO AllReduce: opCount {n:x} sendbuff 0x1 recvbuff 0x2 count {n * n % 7919} datatype 7 op 0 root 0 comm 0x5 [nranks=8] stream 0x6"
        for n in range(3000)
    ]
    content = ("\n".join(lines) + "\n").encode()
    assert _nccl_steps.steps(content) is None
    same(read_source(content), by_grammar(content))
