"""Folders, archives and streams become plain members, and hostile ones cost a row or name the limit that they meet."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from nccl_forensics.decoding import archives
from nccl_forensics.errors import LimitReached, UnusableEvidence
from nccl_forensics.limits import Limits
from nccl_forensics.reading.bundle import Bundle, open_bundle
from nccl_forensics.simulate.noise import mix

LOG = b"node01:1:2 [0] NCCL INFO one\nnode01:1:2 [0] NCCL INFO two\n"
SMALL = Limits(ratio_from_bytes=1 << 20)


def tar(files: dict[str, bytes], extra: tuple[tarfile.TarInfo, ...] = ()) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        for info in extra:
            archive.addfile(info)
    return out.getvalue()


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def zipped(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()


def zst(content: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=False).compress(content)


@pytest.fixture
def put(tmp_path: Path) -> Callable[[str, bytes], Path]:
    def write(name: str, content: bytes) -> Path:
        file = tmp_path / "in" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        return file

    return write


def contents(bundle: Bundle) -> dict[str, bytes]:
    return {m.path: m.file.read_bytes() for m in bundle.members if m.file is not None}


def errors(bundle: Bundle) -> dict[str, str]:
    return {m.path: m.error for m in bundle.members if m.error is not None}


@pytest.mark.parametrize(
    "packed",
    [
        tar({"b/y.log": LOG, "a/x.log": LOG}),
        gzip.compress(tar({"b/y.log": LOG, "a/x.log": LOG})),
        bz2.compress(tar({"b/y.log": LOG, "a/x.log": LOG})),
        lzma.compress(tar({"b/y.log": LOG, "a/x.log": LOG})),
        zst(tar({"b/y.log": LOG, "a/x.log": LOG})),
        zipped({"b/y.log": LOG, "a/x.log": LOG}),
    ],
    ids=["tar", "gz", "bz2", "xz", "zst", "zip"],
)
def test_every_kind_of_archive_is_told_by_its_content_and_gives_the_same_paths_as_a_folder(put, packed):
    with open_bundle([put("named-wrongly.txt", packed)]) as bundle:
        assert contents(bundle) == {"a/x.log": LOG, "b/y.log": LOG}
        assert [m.source_id for m in bundle.members] == [0, 1]
        assert [m.path for m in bundle.members] == ["a/x.log", "b/y.log"]


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress, zst])
def test_a_compressed_log_is_one_source_under_its_own_name(put, pack):
    with open_bundle([put("x.log.packed", pack(LOG))]) as bundle:
        assert contents(bundle) == {"x.log.packed": LOG}


def test_a_tarball_per_node_inside_one_tarball_keeps_both_names(put):
    node = gzip.compress(tar({"logs/x.log": LOG}))
    with open_bundle([put("all.tar", tar({"node3.tar.gz": node, "top.zip": zipped({"z.log": LOG})}))]) as bundle:
        assert contents(bundle) == {"node3.tar.gz!/logs/x.log": LOG, "top.zip!/z.log": LOG}


def test_archives_inside_a_folder_are_opened_and_plain_files_are_read_in_place(put):
    plain = put("x.log", LOG)
    put("n.tgz", gzip.compress(tar({"y.log": LOG})))
    with open_bundle([plain.parent]) as bundle:
        assert contents(bundle) == {"n.tgz!/y.log": LOG, "x.log": LOG}
        assert bundle.members[1].file == plain


def test_several_inputs_are_told_apart_by_their_names(put):
    one, two = put("run1/logs/x.log", LOG).parent, put("run2/logs/x.log", LOG).parent
    other = put("third.tar", tar({"x.log": LOG}))
    with open_bundle([one, two, other]) as bundle:
        paths = [m.path for m in bundle.members]
    assert len(set(paths)) == 3
    assert "third.tar!/x.log" in paths
    assert any(p.endswith("run1/logs/x.log") for p in paths)
    assert any(p.endswith("run2/logs/x.log") for p in paths)


def test_an_archive_on_standard_input_is_read(monkeypatch):
    class Stdin:
        buffer = io.BytesIO(gzip.compress(tar({"x.log": LOG})))

    monkeypatch.setattr(sys, "stdin", Stdin)
    with open_bundle(["-"]) as bundle:
        assert contents(bundle) == {"x.log": LOG}


def test_a_named_pipe_is_read_as_a_stream(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    packed = tmp_path / "x.tar"
    packed.write_bytes(tar({"x.log": LOG}))
    with packed.open("rb") as source, subprocess.Popen(["sh", "-c", 'cat > "$0"', str(pipe)], stdin=source), open_bundle([pipe]) as bundle:
        assert contents(bundle) == {"x.log": LOG}


def test_scratch_is_removed_when_the_bundle_closes(put, tmp_path):
    with open_bundle([put("x.tar", tar({"x.log": LOG}))], scratch=tmp_path) as bundle:
        assert bundle.scratch.parent == tmp_path
        assert bundle.scratch.is_dir()
    assert not bundle.scratch.exists()


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("none.tar", tar({}), "empty"),
        ("none.zip", zipped({}), "empty"),
        ("none.log", b"", "empty"),
        ("zero.gz", gzip.compress(b"", mtime=0), "empty"),
        ("links.tar", tar({}, (special("x", tarfile.SYMTYPE, "/etc/passwd"),)), "not a plain file"),
    ],
)
def test_nothing_to_read_is_unusable_and_the_message_says_why(put, name, content, says):
    with pytest.raises(UnusableEvidence, match=says):
        open_bundle([put(name, content)])


def test_an_empty_folder_a_missing_path_and_no_path_are_unusable(tmp_path):
    with pytest.raises(UnusableEvidence, match="it is empty"):
        open_bundle([tmp_path])
    with pytest.raises(UnusableEvidence, match="no such file"):
        open_bundle([tmp_path / "absent"])
    with pytest.raises(UnusableEvidence, match="no evidence"):
        open_bundle([])
    with pytest.raises(UnusableEvidence, match="neither a file nor a folder"):
        open_bundle(["/dev/zero"])


def test_names_that_climb_out_stay_inside_scratch(put, tmp_path):
    hostile = {"../../climbed.log": LOG, "/abs/olute.log": LOG, "a/../../b.log": LOG, "c:\\d\\e.log": LOG, "new\nline.log": LOG}
    before = set(tmp_path.parent.rglob("*.log"))
    for packed in (tar(hostile), zipped(hostile)):
        with open_bundle([put("x", packed)], scratch=tmp_path) as bundle:
            assert {m.path for m in bundle.members} == {
                "climbed.log", "abs/olute.log", "a/b.log", "c:/d/e.log", "new\N{REPLACEMENT CHARACTER}line.log"
            }  # fmt: skip
            assert all(m.file is not None and m.file.parent == bundle.scratch for m in bundle.members)
    assert set(tmp_path.parent.rglob("*.log")) == before


@pytest.mark.parametrize(
    "kind",
    [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE],
    ids=["sym", "hard", "chr", "blk", "fifo"],
)
def test_links_devices_and_pipes_in_a_tar_are_passed_over_and_recorded(put, kind):
    packed = tar({"x.log": LOG}, (special("evil", kind, "../../etc/passwd"),))
    with open_bundle([put("x.tar", packed)]) as bundle:
        assert contents(bundle) == {"x.log": LOG}
        assert [path for path, _ in bundle.skipped] == ["evil"]


def test_a_link_in_a_zip_is_passed_over_and_recorded(put):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        link = zipfile.ZipInfo("evil")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
        archive.writestr("x.log", LOG)
    with open_bundle([put("x.zip", out.getvalue())]) as bundle:
        assert contents(bundle) == {"x.log": LOG}
        assert [path for path, _ in bundle.skipped] == ["evil"]


def test_links_in_a_folder_are_followed_only_inside_it(put, tmp_path):
    log = put("x.log", LOG)
    secret = tmp_path / "secret.log"
    secret.write_bytes(b"secret")
    (log.parent / "out.log").symlink_to(secret)
    (log.parent / "outfolder").symlink_to(tmp_path)
    (log.parent / "circle.log").symlink_to(log.parent / "circle.log")
    (log.parent / "same.log").symlink_to(log)
    with open_bundle([log.parent]) as bundle:
        assert contents(bundle) == {"same.log": LOG, "x.log": LOG}
        assert {path for path, _ in bundle.skipped} | set(errors(bundle)) == {"out.log", "outfolder", "circle.log"}


def test_what_file_managers_leave_is_passed_over_with_a_note(put):
    packed = tar({"x.log": LOG, "._x.log": b"\0\5", "__MACOSX/x.log": b"\0", "d/.DS_Store": b"\0"})
    with open_bundle([put("x.tar", packed)]) as bundle:
        assert contents(bundle) == {"x.log": LOG}
        assert len(bundle.skipped) == 3


def test_a_file_name_that_is_no_utf8_is_shown_with_replacement_characters(put):
    log = put("x.log", LOG)
    (Path(os.fsdecode(os.fsencode(log.parent) + b"/bad\xff.log"))).write_bytes(LOG)
    with open_bundle([log.parent]) as bundle:
        assert [m.path for m in bundle.members] == ["bad\N{REPLACEMENT CHARACTER}.log", "x.log"]


def test_an_encrypted_member_of_a_zip_is_a_row_with_an_error(put):
    packed = bytearray(zipped({"secret.log": LOG, "x.log": LOG}))
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        packed[packed.index(mark) + offset] |= 1
    with open_bundle([put("x.zip", bytes(packed))]) as bundle:
        assert errors(bundle) == {"secret.log": "encrypted"}
        assert contents(bundle) == {"x.log": LOG}


def noise(n: int) -> bytes:
    """Text that hardly compresses, the same every time."""
    import hashlib

    return b"".join(hashlib.sha256(i.to_bytes(4, "big")).hexdigest().encode() + b"\n" for i in range(n // 65 + 1))[:n]


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress, zst, bytes], ids=["gz", "bz2", "xz", "zst", "tar"])
def test_a_tarball_that_was_cut_off_gives_what_lies_before_the_cut_and_an_error(put, pack):
    packed = pack(tar({"a.log": LOG, "b.log": noise(400_000), "c.log": noise(3_000_000)}))
    with open_bundle([put("x.tgz", packed[: len(packed) // 2])]) as bundle:
        found = contents(bundle)
        assert found.pop("a.log") == LOG
        assert noise(400_000).startswith(found.pop("b.log"))
        assert noise(3_000_000).startswith(found.pop("c.log", b""))
        assert not found
        assert "broken or cut off" in errors(bundle)["x.tgz"]


def test_a_tar_cut_off_between_two_members_is_known_to_be_incomplete(put):
    whole = tar({"a.log": LOG, "b.log": LOG})
    with open_bundle([put("x.tar", whole[:1024])]) as bundle:
        assert contents(bundle) == {"a.log": LOG}
        assert "without an end mark" in errors(bundle)["x.tar"]


def test_a_damaged_header_in_a_tar_does_not_end_it_silently(put):
    whole = bytearray(tar({"a.log": LOG, "b.log": LOG}))
    whole[1024:1034] = b"\xff" * 10
    with open_bundle([put("x.tar", bytes(whole))]) as bundle:
        assert contents(bundle) == {"a.log": LOG}
        assert "damaged" in errors(bundle)["x.tar"]


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress, zst])
def test_a_compressed_log_that_was_cut_off_keeps_what_came_out(put, pack):
    packed = pack(noise(3_000_000))
    with open_bundle([put("x.log.gz", packed[: len(packed) // 2])]) as bundle:
        [member] = bundle.members
        assert member.error
        assert member.bytes > 0
        assert noise(3_000_000).startswith(contents(bundle)["x.log.gz"])


def test_a_broken_zip_costs_itself_alone(put):
    put("broken.zip", zipped({"a.log": noise(5000)})[:-30])
    log = put("x.log", LOG)
    with open_bundle([log.parent]) as bundle:
        assert contents(bundle) == {"x.log": LOG}
        assert list(errors(bundle)) == ["broken.zip"]


def test_a_zip_member_with_a_wrong_sum_is_a_row_with_an_error(put):
    packed = bytearray(zipped({"a.log": noise(5000), "b.log": LOG}))
    packed[200] ^= 0xFF
    with open_bundle([put("x.zip", bytes(packed))]) as bundle:
        assert contents(bundle)["b.log"] == LOG
        assert list(errors(bundle)) == ["a.log"]


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress, zst])
def test_a_bomb_meets_the_ratio(put, pack):
    bomb = pack(bytes(20 << 20))
    for packed in (bomb, pack(tar({"zeros": bytes(20 << 20)}))):
        with pytest.raises(LimitReached, match="limit: ratio"):
            open_bundle([put("x", packed)], limits=SMALL)


def test_a_zip_bomb_of_many_entries_meets_the_ratio(put):
    with pytest.raises(LimitReached, match="limit: ratio"):
        open_bundle([put("x.zip", zipped({f"{i}": bytes(1 << 20) for i in range(8)}))], limits=SMALL)


def test_archives_nested_too_deep_meet_the_depth(put):
    packed = LOG
    for i in range(18):
        packed = (tar({"in": packed}), gzip.compress(packed), zipped({"in": packed}))[i % 3]
    with pytest.raises(LimitReached, match="limit: depth"):
        open_bundle([put("x", packed)])


@pytest.mark.parametrize(
    ("limits", "names"),
    [
        (Limits(total_bytes=1000), "limit: total bytes"),
        (Limits(member_bytes=500), "limit: member bytes"),
        (Limits(members=2), "limit: members"),
    ],
)
def test_each_limit_is_named_when_it_is_met(put, limits, names):
    packed = tar({"a": noise(600), "b": noise(600), "c": b"x"})
    for content in (packed, gzip.compress(packed), zipped({"a": noise(600), "b": noise(600), "c": b"x"})):
        with pytest.raises(LimitReached, match=names):
            open_bundle([put("x", content)], limits=limits)


def test_a_full_scratch_folder_is_a_limit_and_not_a_broken_archive(put, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1 << 30, 1 << 30, archives._RESERVE + 10))
    with pytest.raises(LimitReached, match="limit: scratch space"):
        open_bundle([put("x.tar", tar({"x.log": LOG}))])


def test_an_impossibly_large_extended_header_is_not_read_into_memory(put):
    header = special("x", tarfile.XHDTYPE)
    header.size = 6 << 30
    packed = header.tobuf(tarfile.USTAR_FORMAT) + bytes(4 << 20)
    with open_bundle([put("x.tar", tar({"a.log": LOG})[:1024] + packed)]) as bundle:
        assert contents(bundle) == {"a.log": LOG}
        assert errors(bundle)["x.tar"]


def test_a_chain_of_extended_headers_does_not_end_the_program(put):
    header = special("x", tarfile.XHDTYPE).tobuf(tarfile.USTAR_FORMAT)
    with open_bundle([put("x.tar", tar({"a.log": LOG})[:1024] + header * 5000 + bytes(1024))]) as bundle:
        assert contents(bundle) == {"a.log": LOG}
        assert errors(bundle)["x.tar"]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_damage_to_an_archive_raises_anything_but_a_forensics_error(tmp_path_factory, data):
    kind = data.draw(st.sampled_from(["tar", "gz", "zst", "xz", "bz2", "zip"]))
    files = {"a.log": LOG, "d/b.log": noise(2000)}
    packed = bytearray(zipped(files) if kind == "zip" else tar(files))
    packed = bytearray({"gz": gzip.compress, "zst": zst, "xz": lzma.compress, "bz2": bz2.compress}.get(kind, bytes)(bytes(packed)))
    for _ in range(data.draw(st.integers(1, 4))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    packed = packed[: data.draw(st.integers(1, len(packed)))]
    file = tmp_path_factory.mktemp("damage") / "x"
    file.write_bytes(packed)
    with contextlib.suppress(UnusableEvidence, LimitReached), open_bundle([file], limits=Limits(total_bytes=64 << 20)) as bundle:
        assert all(m.file is not None or m.error for m in bundle.members)


def test_lines_are_quoted_as_sed_counts_them(put):
    log = put("x.log", b"one\r\ntwo \xff\n\nfour\x0bstill four")
    with open_bundle([log]) as bundle:
        assert bundle.quote(0, 1) == [(1, "one")]
        assert bundle.quote(0, 2, before=1, after=5) == [
            (1, "one"), (2, "two \N{REPLACEMENT CHARACTER}"), (3, ""), (4, "four\x0bstill four")
        ]  # fmt: skip
        assert bundle.quote(0, 5) == []
        assert bundle.quote(0, 0) == []


def test_lines_far_into_a_file_are_found_in_any_order(put):
    log = put("x.log", b"".join(b"line %d\n" % i for i in range(1, 5001)))
    with open_bundle([log]) as bundle:
        for wanted in (5000, 1, 1024, 1025, 2049, 3):
            assert bundle.quote(0, wanted) == [(wanted, f"line {wanted}")]
        assert bundle.quote(0, 5001) == []


def test_a_long_line_is_cut_between_two_characters(put):
    log = put("x.log", b"x" + "é".encode() * 4000 + b"\nnext\n")
    with open_bundle([log]) as bundle:
        [(_, first), (_, second)] = bundle.quote(0, 1, after=1)
    assert first == "x" + "é" * 2047
    assert second == "next"


@pytest.mark.parametrize("end", ["", "\n", "\n\n"])
def test_lines_are_the_same_from_whichever_end_they_are_sought(put, end):
    """Long lines, empty ones and short ones: in any order, once with and once without the number of lines."""
    texts = [["", "x", "y" * 300, "z" * 20_000][mix(n, "line") % (4 if n % 500 == 0 else 3)] + str(n) * (n % 7 > 0) for n in range(9_000)]
    whole = "\n".join(texts) + end
    log = put("a.log", whole.encode())
    lines = whole.removesuffix("\n").split("\n") if whole.endswith("\n") else whole.split("\n")
    wanted = [
        1,
        2,
        len(lines),
        len(lines) - 1,
        len(lines) + 1,
        len(lines) + 2,
        1024,
        1025,
        *(1 + mix(n, "wanted") % len(lines) for n in range(200)),
    ]
    for known in ({}, {0: len(lines)}):
        with open_bundle([log]) as bundle:
            bundle.counted(known)
            for number in wanted:
                said = [(number, lines[number - 1][:4096])] if number <= len(lines) else []
                assert bundle.quote(0, number) == said


def test_a_file_that_grew_since_its_lines_were_counted_is_read_from_its_beginning(put):
    log = put("a.log", b"".join(b"line %d\n" % n for n in range(1, 3001)))
    with open_bundle([log]) as bundle:
        bundle.counted({0: 3000})
        with log.open("a") as more:
            more.writelines(f"line {n}\n" for n in range(3001, 6001))
        assert bundle.quote(0, 2999) == [(2999, "line 2999")]
        assert bundle.quote(0, 5999) == [(5999, "line 5999")]


def test_utf16_is_quoted_as_it_was_read(put):
    log = put("x.log", "eins\r\nzwei\r\n".encode("utf-16"))
    with open_bundle([log]) as bundle:
        assert bundle.quote(0, 2) == [(2, "zwei")]


def test_the_faster_gzip_gives_the_same_and_says_what_is_broken(tmp_path: Path) -> None:
    isal = pytest.importorskip("isal.igzip")
    text = b"".join(b"line %d of a log\n" % n for n in range(20_000))
    packed = gzip.compress(text) + gzip.compress(b"and another member\n")
    broken = bytearray(packed)
    broken[len(packed) // 2] ^= 0xFF
    for name, content in (("whole", packed), ("cut", packed[: len(packed) // 2]), ("broken", bytes(broken))):
        (tmp_path / f"{name}.log.gz").write_bytes(content)

    def unpacked() -> list[tuple[str, int, bool]]:
        with open_bundle([tmp_path]) as bundle:
            return [(m.path, m.bytes if m.path.startswith("whole") else 0, m.error is None) for m in bundle.members]

    assert isal.IGzipFile is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(archives, "igzip", None)
        slow = unpacked()
    assert unpacked() == slow
    assert [ok for *_, ok in slow] == [False, False, True]
