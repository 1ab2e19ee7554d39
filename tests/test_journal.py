"""Binary journals of systemd give the lines that journalctl prints of them; what is cut off, wrong or hostile costs a gap."""

from __future__ import annotations

import gzip
import lzma
import struct
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from nccl_forensics import api
from nccl_forensics.decoding import journal
from nccl_forensics.reading.engine import InlineEngine
from nccl_forensics.reading.source import read_source
from tests.corpus import ROOT

FIXTURES = ROOT / "fixtures" / "journal"
HEADER = 272
XZ, LZ4, ZSTD = 1, 2, 4


def text(data: bytes) -> tuple[bytes, str | None]:
    out = bytearray()
    return (out, problem) if (problem := journal.write_text(data, out.extend)) else (bytes(out), None)


def real(name: str) -> bytes:
    return gzip.decompress((FIXTURES / f"{name}.journal.gz").read_bytes())


def made(
    *entries: dict[str, bytes], flag: int = 0, pack=None, stated: int | None = None, items: list[int] | None = None
) -> bytes:  # a function of bytes or None
    """A journal without indexes: header, then the data objects and the entry of each line. ``items`` replaces the entries' pointers."""
    body = bytearray()
    for number, entry in enumerate(entries):
        offsets = []
        for name, value in entry.items():
            payload = name.encode() + b"=" + value
            packed = pack(payload) if pack else payload
            offsets.append(HEADER + len(body))
            body += struct.pack("<BB6xQ48x", 1, flag, 64 + len(packed)) + packed
            body += b"\0" * (-len(body) % 8)
        offsets = items if items is not None else offsets
        body += struct.pack("<BB6x4Q16s8x", 3, 0, 64 + 16 * len(offsets), number + 1, 1_760_000_000_000_000 + number, 7, b"b" * 16)
        for offset in offsets:
            body += struct.pack("<QQ", offset, 0)
    head = journal.MAGIC + struct.pack("<II", 0, 0) + b"\0" * 72
    count = len(entries) if stated is None else stated
    head += struct.pack("<9Q", HEADER, len(body), 0, 0, 0, 0, 0, 0, count)
    return bytes(head.ljust(HEADER, b"\0") + body)


def lz4(payload: bytes) -> bytes:
    """A block of literals alone, after the size of what it holds."""
    long, rest = len(payload) - 15, b""
    while long >= 0:
        rest += bytes([min(long, 255)])
        long -= 255
    return struct.pack("<Q", len(payload)) + bytes([min(len(payload), 15) << 4]) + rest + payload


LINE = {"MESSAGE": b"NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.", "_HOSTNAME": b"node7", "SYSLOG_IDENTIFIER": b"kernel"}


@pytest.mark.parametrize("name", ["node7", "node7-wide"])
def test_the_text_is_what_journalctl_prints(name: str) -> None:
    assert text(real(name)) == ((FIXTURES / f"{name}.txt").read_bytes(), None)


@pytest.mark.parametrize(
    ("flag", "pack"),
    [(0, None), (XZ, lzma.compress), (LZ4, lz4), (ZSTD, zstandard.ZstdCompressor().compress)],
    ids=["plain", "xz", "lz4", "zstd"],
)
def test_fields_are_read_whatever_packs_them(flag: int, pack) -> None:  # as above
    assert text(made(LINE, LINE | {"_PID": b"7"}, flag=flag, pack=pack)) == (
        b"2025-10-09T08:53:20.000000+0000 node7 kernel: " + LINE["MESSAGE"] + b"\n"
        b"2025-10-09T08:53:20.000001+0000 node7 kernel[7]: " + LINE["MESSAGE"] + b"\n",
        None,
    )


def test_lz4_copies_that_run_into_themselves_are_written_out() -> None:
    assert journal.unpack_lz4(bytes([0x12]) + b"a" + b"\x01\x00" + bytes([0x10]) + b"b", 100) == b"aaaaaaab"
    assert journal.unpack_lz4(bytes([0x1F]) + b"a" + b"\x01\x00" + b"\xff" * 50 + b"\0", 20) == b"a" * 20
    with pytest.raises(ValueError, match="before its start"):
        journal.unpack_lz4(bytes([0x12]) + b"a" + b"\x02\x00", 100)


def test_findings_of_a_journal_cite_lines_of_its_text(tmp_path: Path) -> None:
    (tmp_path / "system.journal").write_bytes(real("node7"))
    report = api.analyze([tmp_path], engine=InlineEngine()).report
    verdict, findings, sources = report["verdict"], report["findings"], report["sources"]
    assert isinstance(verdict, dict)
    assert isinstance(findings, list)
    assert isinstance(sources, list)
    assert (verdict["cause"], verdict["culprits"][0]["host"], verdict["culprits"][0]["gpu"]) == ("gpu-fault", "node7", "0000:9b:00.0")
    lines = (FIXTURES / "node7.txt").read_text(errors="replace").splitlines()
    cited = [e for f in findings for e in f["evidence"]]
    assert cited
    assert all(e["text"].split(": ", 1)[1] == lines[e["line"] - 1].split(": ", 1)[1][: len(e["text"].split(": ", 1)[1])] for e in cited)
    [source] = sources
    assert (source["error"], source["gaps"]) == (None, 0)
    assert set(source["formats"]) == {"kernel-log", "slurm-daemon", "traceback"}


def test_a_journal_that_is_cut_off_gives_what_is_whole_and_says_what_is_missing() -> None:
    data = real("node7")
    whole = text(data)[0]
    for end in (len(data) // 2, 20_000, 12_000, 300):
        part, problem = text(data[:end])
        assert whole.startswith(part)
        assert problem is not None
        assert "the journal states 14 entries" in problem
    found = read_source(data[: len(data) // 2])
    assert found.frames["gaps"]["reason"].to_list() == [text(data[: len(data) // 2])[1]]
    assert read_source(data[:100]).error == "systemd-journal: unreadable: the journal ends within its header"


def test_a_journal_of_unknown_features_names_the_command() -> None:
    data = bytearray(real("node7"))
    data[12] |= 1 << 6
    assert "journalctl --file F" in str(text(bytes(data))[1])


def test_pointers_to_nothing_cost_the_fields_and_nothing_else() -> None:
    out, problem = text(made(LINE, items=[HEADER, HEADER + 3, 1 << 60, 0, 8]))
    assert out == b"2025-10-09T08:53:20.000000+0000 unknown: " + LINE["MESSAGE"] + b"\n"
    assert problem == "unreadable: 4 fields of entries of the journal"


def test_one_message_that_all_entries_point_to_grows_no_further_than_the_file_allows() -> None:
    big = made({"MESSAGE": b"x" * 60_000}, *[{} for _ in range(20_000)], items=[HEADER])
    out, problem = text(big)
    assert len(out) <= 4 * len(big) + (16 << 20)
    assert problem is not None
    assert "more text than a journal of its size holds" in problem


def test_a_bomb_unpacks_to_no_more_than_a_message() -> None:
    bomb = made({"MESSAGE": b"x" * (64 << 20)}, flag=ZSTD, pack=zstandard.ZstdCompressor().compress)
    assert len(text(bomb)[0]) < 70_000


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1 << 30), st.integers(0, 255)), min_size=1, max_size=12), st.integers(0, 1 << 30))
def test_a_damaged_journal_never_makes_the_reader_fall_over(changes: list[tuple[int, int]], end: int) -> None:
    data = bytearray(made(LINE, LINE | {"CODE": b"1"}, {"MESSAGE": b"a\nb"}, flag=LZ4, pack=lz4))
    for place, value in changes:
        data[8 + place % (len(data) - 8)] = value
    out, _ = text(bytes(data[: 8 + end % len(data)]))
    assert out == b"" or out.endswith(b"\n")
