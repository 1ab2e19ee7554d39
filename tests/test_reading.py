"""One source is read by every format that knows lines of it, each line is counted once, and no content makes reading fail."""

from __future__ import annotations

import mmap
import random
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nccl_forensics.formats.base import DocumentFormat, Gap, Reading, Text, TextFormat, line_numbers
from nccl_forensics.reading import source as reading
from nccl_forensics.reading.source import SourceReading, read_source
from nccl_forensics.tables import TABLES
from tests.corpus import corpus

INFO = b"node01:1:2 [0] NCCL INFO Using network IB\n"


def claims(anchor: str, name: str = "x", priority: int = 50, read: Callable[[Text], Reading] | None = None) -> TextFormat:
    """A format that claims the lines that hold its anchor and keeps their texts as gaps' texts, for lack of a simpler table."""

    def take(text: Text) -> Reading:
        hits = text.hits
        frame = hits.select("line_no", pl.col("text"), reason=pl.lit(name))
        return Reading({"gaps": TABLES["gaps"].conform(frame)}, hits["line_no"], records=hits.height)

    return TextFormat(name, name, ("gaps",), (anchor,), read or take, priority)


@pytest.fixture
def formats(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def use(*found: TextFormat | DocumentFormat) -> None:
        monkeypatch.setattr(reading, "text_formats", lambda: tuple(f for f in found if isinstance(f, TextFormat)))
        monkeypatch.setattr(reading, "document_formats", lambda: tuple(f for f in found if isinstance(f, DocumentFormat)))

    return use


def counts(result: SourceReading) -> tuple[int | None, int, int, int]:
    return result.lines, result.records, result.gap_lines, result.foreign


def test_lines_are_records_or_gaps_or_foreign():
    result = read_source(b"hello\n" + INFO * 3 + b"world")
    assert counts(result) == (5, 3, 0, 2)
    assert result.formats == result.filled == ("nccl-log",)


@pytest.mark.parametrize(("data", "lines"), [(b"a", 1), (b"a\n", 1), (b"a\nb", 2), (b"\n", 1), (b"\n\n", 2), (b"a\r\nb\r\n", 2)])
def test_lines_are_counted_as_sed_counts_them(data, lines):
    assert read_source(data).lines == lines


def test_form_feeds_and_other_separators_do_not_end_a_line():
    assert read_source(("ordinary text " * 9 + "a\x0bb\x0cc\u2028d\x85e\rf\n").encode()).lines == 1


def test_a_text_that_ends_amid_a_line_with_a_full_buffer_is_told():
    text = INFO * 200
    ends = read_source(text[:4096]).frames["cut_ends"]
    assert ends.select("line_no", "bytes", "buffer").rows() == [(4096 // len(INFO) + 1, 4096, True)]
    assert read_source(text[:4097]).frames["cut_ends"]["buffer"].to_list() == [False], "it was not copied to its end"
    assert "cut_ends" not in read_source(INFO * 5 + INFO[:20]).frames, "a piece that was pasted"
    assert "cut_ends" not in read_source(text[:4097].rsplit(b"\n", 1)[0] + b"\n\x1b[0m").frames, "nothing but a colour that is set back"
    whole = text[:4095] + b"\n"
    assert "cut_ends" not in read_source(whole).frames


def test_an_empty_source_is_an_error_and_not_a_failure():
    assert read_source(b"").error == "empty file"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (random.Random(1).randbytes(100_000), "binary"),
        (b"\x89PNG\r\n\x1a\n" + random.Random(1).randbytes(500), "PNG picture"),
        (b"\xff\xd8\xff\xe0" + random.Random(1).randbytes(500), "JPEG picture"),
        (b"\x7fELF" + random.Random(1).randbytes(500), "ELF"),
        (b"\x00" * 100_000, "binary"),
        (b"7z\xbc\xaf\x27\x1c" + random.Random(1).randbytes(500), "7-Zip"),
    ],
)
def test_binary_content_is_named_and_not_read(data, says):
    result = read_source(data)
    assert says in (result.error or "")
    assert result.formats == ()
    assert result.lines is None


def test_text_after_the_nuls_of_a_rotated_log_is_read():
    result = read_source(b"\x00" * 200_000 + INFO * 2)
    assert counts(result) == (2, 2, 0, 0)


def test_invalid_utf8_is_replaced_and_counted_and_genuine_replacement_characters_are_not():
    result = read_source("\N{REPLACEMENT CHARACTER} fine\n".encode() + b"bad \xff\xfe\n" + INFO)
    assert result.invalid_utf8 == 2
    assert counts(result) == (3, 1, 0, 2)


def test_utf16_and_byte_order_marks_are_understood():
    for data in (INFO.decode().encode("utf-16"), b"\xef\xbb\xbf" + INFO):
        assert counts(read_source(data)) == (1, 1, 0, 0)


def test_a_line_that_two_formats_want_goes_to_the_one_of_lower_priority_number(formats):
    formats(claims("a", "first", 1), claims("b", "second", 2))
    result = read_source(b"a\nab\nb\nc\n")
    rows = result.frames["gaps"].select("line_no", "reason").rows()
    assert rows == [(1, "first"), (2, "first"), (3, "second")]
    assert counts(result) == (4, 3, 0, 1)


def test_a_format_is_not_asked_where_none_of_its_anchors_is_left(formats):
    def never(text: Text) -> Reading:
        raise AssertionError("asked without need")

    formats(claims("a", "first", 1), claims("a", "second", 2, never), claims("z", "third", 3, never))
    assert "gaps" in read_source(b"a\nb\n").frames
    assert read_source(b"a\nb\n").gap_lines == 0


@pytest.mark.parametrize("problem", [ValueError("surprise"), KeyError("x"), RecursionError(), pl.exceptions.PanicException("deep")])
def test_a_format_that_raises_costs_a_gap_and_the_others_go_on(formats, problem):
    def falls(text: Text) -> Reading:
        raise problem

    formats(claims("a", "falls", 1, falls), claims("b", "second", 2))
    result = read_source(b"x\na\nb\n")
    assert counts(result) == (3, 1, 1, 1)
    assert result.formats == ("falls", "second")
    assert result.filled == ("second",)
    [gap] = result.frames["gaps"].filter(format="falls").to_dicts()
    assert gap["line_no"] == 2
    assert type(problem).__name__ in gap["reason"]


def test_a_frame_that_does_not_fit_its_table_costs_a_gap(formats):
    formats(claims("a", "odd", 1, lambda text: Reading({"no_such_table": pl.DataFrame({"x": [1]})}, line_numbers([1]))))
    result = read_source(b"a\n")
    assert counts(result) == (1, 0, 1, 0)


def test_lines_in_a_record_and_in_a_gap_count_once_as_records(formats):
    formats(claims("a", "x", 1, lambda text: Reading({}, line_numbers([1, 2]), (Gap("torn", 2, 3),), line_numbers([2, 3]))))
    result = read_source(b"a\na\na\nb\n")
    assert counts(result) == (4, 2, 1, 1)
    assert result.unmodelled == 1


def test_lines_that_a_format_did_not_get_are_not_its_to_claim(formats):
    formats(claims("a", "first", 1), claims("b", "greedy", 2, lambda text: Reading({}, line_numbers([1, 2, 3, 99]))))
    assert counts(read_source(b"a\nb\nc\n")) == (3, 3, 0, 0)


def document(name: str, result: Reading | Exception, start: bytes = b"{") -> DocumentFormat:
    def read(data: bytes) -> Reading:
        if isinstance(result, Exception):
            raise result
        return result

    return DocumentFormat(name, name, ("gaps",), lambda head: head.startswith(start), read)


def test_a_document_is_claimed_whole_and_has_no_lines(formats):
    formats(document("doc", Reading(records=3)), claims("a"))
    result = read_source(b"{a\n")
    assert (result.formats, result.filled, result.lines, result.records) == (("doc",), ("doc",), None, 3)


def test_a_document_that_one_format_refuses_is_offered_to_the_next(formats):
    formats(document("first", Reading(gaps=(Gap("not a first"),))), document("second", Reading(records=1)))
    assert read_source(b"{}").formats == ("second",)


def test_text_that_only_begins_like_a_document_is_read_as_text(formats):
    formats(document("doc", Reading(gaps=(Gap("truncated"),))), claims("a"))
    assert read_source(b"{ a\n").formats == ("x",)


def test_a_broken_document_stays_one_with_a_gap_and_an_error(formats):
    for broken in (Reading(gaps=(Gap("truncated at byte 3", record=""),)), ValueError("boom")):
        formats(document("doc", broken), claims("a"))
        result = read_source(b"{ unfinished")
        assert result.formats == ("doc",)
        assert result.filled == ()
        assert (result.error or "").startswith("doc: ")
        assert result.frames["gaps"].height == 1


def test_a_whole_document_that_is_not_of_the_format_is_foreign_and_no_gap(formats):
    formats(document("doc", Reading(gaps=(Gap("not a doc: none of its keys"),))))
    assert counts(read_source(b'{"own": 1}\n')) == (1, 0, 0, 1)
    assert read_source(b'{"own": 1}\n').frames == {}


def test_a_sniffer_that_raises_claims_nothing(formats):
    def sniff(head: bytes) -> bool:
        raise IndexError

    formats(DocumentFormat("doc", "doc", (), sniff, lambda data: Reading(records=1)), claims("a"))
    assert read_source(b"a\n").formats == ("x",)


def test_pieces_give_the_same_rows_and_line_numbers_as_the_whole(monkeypatch):
    data = b"".join(b"noise %d\n" % i + INFO + (b"\n" if i % 7 == 0 else b"") for i in range(400)) + b"last"
    whole = read_source(data)
    monkeypatch.setattr(reading, "CHUNK_BYTES", 3000)
    monkeypatch.setattr(reading, "_LOOK_BACK", 300)
    pieces = read_source(data)
    assert counts(pieces) == counts(whole)
    assert pieces.formats == whole.formats
    for name in ("nccl_nets", "gaps", "unmodelled"):
        assert (name in pieces.frames) == (name in whole.frames)
    assert len(list(reading._pieces(data))) > 5
    assert b"".join(reading._pieces(data)) == data
    assert all(p.endswith(b"\n") for p in list(reading._pieces(data))[:-1])


def test_a_line_longer_than_a_piece_stays_whole(monkeypatch):
    monkeypatch.setattr(reading, "CHUNK_BYTES", 100)
    assert counts(read_source(b"x" * 1000 + b"\n" + INFO + b"y" * 500)) == (3, 1, 0, 2)


def test_rows_of_several_formats_stand_in_the_order_of_lines(formats):
    formats(claims("b", "first", 1), claims("a", "second", 2))
    assert read_source(b"a\nb\na\nb\n").frames["gaps"]["line_no"].to_list() == [1, 2, 3, 4]


def test_a_mapped_file_reads_like_its_bytes(tmp_path):
    file = tmp_path / "x.log"
    file.write_bytes(b"hello\n" + INFO)
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        assert counts(read_source(data)) == counts(read_source(file.read_bytes()))


ANCHORS = sorted({a for f in reading.text_formats() for a in f.anchors})
SHREDS = st.one_of(
    st.sampled_from(ANCHORS),
    st.sampled_from(
        ["node01:1:2 [0] NCCL INFO ", "[rank3]:", "[1,2]<stdout>:", "\x1b[31m", "\r", "\x00", "\t", " | ", "0x7f", "[", "{", "}", ": ", ","]
    ),
    st.text(max_size=12),
    st.integers(-(2**70), 2**70).map(str),
)


@settings(max_examples=120, deadline=None)
@given(st.lists(st.lists(SHREDS, max_size=8).map("".join), max_size=12).map("\n".join))
def test_whatever_stands_in_a_text_each_line_is_counted_once(text):
    data = text.encode("utf-8", "surrogatepass")
    result = read_source(data)
    if result.lines is not None:
        assert result.lines == data.count(b"\n") + (not data.endswith(b"\n")) or "\n" not in text
        assert result.records + result.gap_lines + result.foreign == result.lines
    for name, frame in result.frames.items():
        assert dict(frame.schema) == TABLES[name].schema
        if "line_no" in frame.columns and result.lines:
            assert frame.filter(pl.col("line_no") > result.lines).height == 0


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=400), st.sampled_from([b"", b"\x80\x02", b'{"', b"[{", b"<?xml ", b"\x80\x04\x95", b"SQLite format 3\x00"]))
def test_no_bytes_make_reading_fail(tail, start):
    result = read_source(start + tail)
    assert result.error or result.formats or result.lines is not None


@pytest.mark.corpus
@pytest.mark.parametrize(
    "place", ["lab/skip_allreduce_rank3", "nccl-stub/skip-8r-rank5", "public/nccl-raddet-2r-torn-lines", "public/nccltests-polaris-2160r"]
)
def test_each_line_of_real_evidence_is_counted_once(place):
    for file in sorted(Path(corpus(place) / "evidence").rglob("*")):
        if not file.is_file() or file.suffix == ".gz" or file.stat().st_size > 2 << 20:
            continue
        result = read_source(file.read_bytes())
        if result.lines is not None:
            assert result.records + result.gap_lines + result.foreign == result.lines, file.name


def test_what_a_document_says_of_its_own_gap_is_masked_as_the_gap_is() -> None:
    found = read_source(b'[{"name": "x", "ph": "X", "ts": 1, "dur": 1, "pid": 1, "tid": 1, "cat": "a --password=planted3planted3"}]')
    assert found.error is None or "planted3" not in found.error
    assert "planted3" not in str(found.frames["gaps"].to_dicts())
