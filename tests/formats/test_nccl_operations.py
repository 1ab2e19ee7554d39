"""Operation lines that are read by words give the same rows, line by line, as the grammars of prefixes and messages give."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nccl_forensics import grammar, reading
from nccl_forensics.formats import text_formats
from nccl_forensics.reading import SourceReading, read_source

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
    found = grammar.load("nccl_operation").parse(line)
    assert found is not None
    prefix = grammar.load("nccl_prefix").parse(line)
    assert prefix is not None
    assert prefix[0] == "info"
    said = str(prefix[1]["message"])
    message = grammar.load("nccl").parse(said)
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
    line = grammar.cut_line(grammar.load("nccl_operation").kinds["operation"], "u")
    assert [piece.columns[:1] for piece in line.pieces] == [("host",), ("op_count",), (), (), ("count",)]
    assert [piece.bare for piece in line.pieces] == [None, (3, 6), None, None, None]
    with pytest.raises(grammar.GrammarError, match="may hold it"):
        grammar.cut_line(grammar.load("nccl_operation").kinds["operation"], "a")
    with pytest.raises(grammar.GrammarError, match="may be missing"):
        grammar.cut_line(grammar.load("nccl").kinds["call_other"], "u")
