"""The table of hostile inputs: each is made here, handed in by ``test_hostile_inputs.py``, and listed in docs/reference/hostile.md.

An outcome says what the program does with it. ``passed over``: listed as skipped, never written or followed. ``row``: its source has an
error. ``limit``: the reading ends with exit code 4. ``gap``: a format says what it could not read. ``read``: it is read like any other
evidence. ``nothing``: exit code 3. Beside each archive lies an honest log that must still be read, unless the reading ends.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import sqlite3
import struct
import tarfile
import tempfile
import unicodedata
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from nccl_forensics.limits import Limits
from tests.corpus import ROOT
from tests.test_bundle import noise, special, tar, zipped, zst
from tests.test_safe_pickle import HEAD, HOSTILE

Outcome = Literal["passed over", "row", "limit", "gap", "read", "nothing"]
LOG = b"node01:1:2 [0] NCCL INFO NCCL version 2.27.7+cuda12.9\n"
#: Small bounds, so that the inputs stay small too.
SMALL = Limits(total_bytes=8 << 20, member_bytes=4 << 20, members=400, depth=4, ratio=100, ratio_from_bytes=64 << 10)


@dataclass(frozen=True)
class Input:
    """One hostile input. ``says`` is found in the message; ``make`` gives the bytes of one file."""

    group: str
    name: str
    outcome: Outcome
    make: Callable[[], bytes]
    says: str = ""
    limits: Limits = field(default=SMALL)


def _pack(*members: tuple[tarfile.TarInfo, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for info, content in members:
            info.size = len(content) if info.isreg() else 0
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def _named(name: str) -> tarfile.TarInfo:
    return tarfile.TarInfo(name)


def _honest(*names: str) -> bytes:
    """A tar with an honest log and members under other names."""
    return _pack((_named("x.log"), LOG), *((_named(n), LOG) for n in names))


def _linked(*links: tarfile.TarInfo) -> bytes:
    return tar({"x.log": LOG}, links)


def _sparse() -> bytes:
    header = special("hole", tarfile.GNUTYPE_SPARSE)
    block = bytearray(header.tobuf(tarfile.GNU_FORMAT))
    block[483:495] = b"\x80" + (1 << 40).to_bytes(11, "big")  # the real size: 1 TiB
    block[148:156] = b"        "
    block[148:156] = b"%06o\0 " % sum(block)
    return tar({"x.log": LOG})[:1024] + bytes(block) + bytes(1024)


def _pax_sparse() -> bytes:
    info = _named("hole")
    info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(1 << 40), "GNU.sparse.name": "hole"}
    return _pack((_named("x.log"), LOG), (info, b"1\n0\n1\n" + bytes(600)))


def _sized(size: bytes) -> bytes:
    """A member whose header states another size, with a right checksum."""
    good = tar({"x.log": LOG, "y.log": LOG})
    block = bytearray(good[1024:1536])
    block[124:136] = size
    block[148:156] = b"        "
    block[148:156] = b"%06o\0 " % sum(block)
    return good[:1024] + bytes(block) + good[1536:]


def _zip_named(*names: str) -> bytes:
    return zipped({"x.log": LOG, **dict.fromkeys(names, LOG)})


def _zip_link() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("x.log", LOG)
        link = zipfile.ZipInfo("evil")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
    return out.getvalue()


def _encrypted() -> bytes:
    packed = bytearray(zipped({"secret.log": LOG, "x.log": LOG}))
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        packed[packed.index(mark) + offset] |= 1
    return bytes(packed)


def _central(name: bytes, offset: int, packed: int, size: int, crc: int, method: int = 8) -> bytes:
    head = struct.pack("<4s6H3I5H2I", b"PK\x01\x02", 20, 20, 0, method, 0, 33, crc, packed, size, len(name), 0, 0, 0, 0, 0, offset)
    return head + name


def _end(count: int, size: int, offset: int) -> bytes:
    return struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, min(count, 0xFFFF), min(count, 0xFFFF), size, offset, 0)


def _local(name: bytes, content: bytes, method: int = 8, size: int | None = None) -> tuple[bytes, int, int]:
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    body = deflate.compress(content) + deflate.flush() if method == 8 else content
    crc = zlib.crc32(content)
    head = struct.pack("<4s5H3I2H", b"PK\x03\x04", 20, 0, method, 0, 33, crc, len(body), size or len(content), len(name), 0)
    return head + name + body, len(body), crc


def _overlapping() -> bytes:
    """Many entries that all point at one small kernel of zeros."""
    content = bytes(1 << 20)
    kernel, packed, crc = _local(b"a", content)
    entries = _central(b"a", 0, packed, len(content), crc) * 300
    return kernel + entries + _end(300, len(entries), len(kernel))


def _directory_of(count: int) -> bytes:
    """A zip whose directory lists members that are not there."""
    entries = _central(b"a", 0, 0, 0, 0) * count
    return b"PK\x03\x04" + bytes(26) + entries + _end(count, len(entries), 30)


def _lying_zip() -> bytes:
    """The directory says ten bytes; a MiB comes out."""
    content = noise(1 << 18)
    local, packed, crc = _local(b"liar.log", content)
    honest, plain, crc2 = _local(b"x.log", LOG)
    entries = _central(b"liar.log", 0, packed, 10, crc) + _central(b"x.log", len(local), plain, len(LOG), crc2)
    return local + honest + entries + _end(2, len(entries), len(local) + len(honest))


def _strange_method() -> bytes:
    local, packed, crc = _local(b"odd.log", LOG, method=97)
    honest, plain, crc2 = _local(b"x.log", LOG)
    entries = _central(b"odd.log", 0, packed, len(LOG), crc, 97) + _central(b"x.log", len(local), plain, len(LOG), crc2)
    return local + honest + entries + _end(2, len(entries), len(local) + len(honest))


def _nested(levels: int, copies: int = 1, core: bytes = LOG) -> bytes:
    packed = core
    for level in range(levels):
        named = {f"{n}.in": packed for n in range(copies)}
        packed = zipped(named) if level % 2 else tar(named)
    return packed


def _bomb(pack: Callable[[bytes], bytes]) -> Callable[[], bytes]:
    return lambda: pack(bytes(3 << 20))


def _cut(packed: bytes, share: float = 0.5) -> bytes:
    return packed[: int(len(packed) * share)]


def _long_chain() -> bytes:
    header = special("x", tarfile.XHDTYPE).tobuf(tarfile.USTAR_FORMAT)
    return tar({"x.log": LOG})[:1024] + header * 3000 + bytes(1024)


def _huge_header() -> bytes:
    header = special("x", tarfile.XHDTYPE)
    header.size = 6 << 30
    return tar({"x.log": LOG})[:1024] + header.tobuf(tarfile.USTAR_FORMAT) + bytes(1 << 20)


def _json_dump(**entry: object) -> bytes:
    document = {
        "version": "2.10",
        "entries": [{"record_id": 1, "process_group": ["0", "pg"], "profiling_name": "gloo:all_reduce", **entry}],
    }
    return json.dumps(document).encode()


def _shared_lists() -> bytes:
    """A list of two references to a list of two references …, eighty deep: a walk without memory would take for ever."""
    body = b"]q\x000" + b"".join(b"(h" + bytes([n - 1]) + b"h" + bytes([n - 1]) + b"lq" + bytes([n]) + b"0" for n in range(1, 80))
    return b"\x80\x02}X\x07\x00\x00\x00entries" + body + b"h\x4fs."


def _xml(head: bytes, body: bytes = b"") -> bytes:
    return b'<?xml version="1.0"?>\n' + head + b"<nvidia_smi_log>" + body + b"</nvidia_smi_log>\n"


def _joined(rank: bytes, size: bytes) -> bytes:
    who = b"node01:%d:7 [0] NCCL INFO ncclCommInitRank comm 0x1 rank %s nranks %s cudaDev 0 nvmlDev 0 busId 1000 commId 0x5b1 - Init "
    return b"".join(who % (100 + len(rank), rank, size) + event for event in (b"START\n", b"COMPLETE\n"))


def _laughs() -> bytes:
    entities = b'<!ENTITY a "ha">' + b"".join(b'<!ENTITY %c "%s">' % (98 + n, b"&%c;" % (97 + n) * 10) for n in range(9))
    return _xml(b"<!DOCTYPE nvidia_smi_log [" + entities + b"]>", b"<driver_version>&j;</driver_version>")


def _database(*statements: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "x.sqlite"
        with sqlite3.connect(file) as connection:
            connection.executescript((ROOT / "fixtures" / "nsys" / "two_steps.sql").read_text())
            for statement in statements:
                connection.execute(statement)
        connection.close()
        return file.read_bytes()


def _planted_schema() -> bytes:
    """A table of the profiler turned into a view that calls a function."""
    return _database(
        "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME TO hidden",
        "CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS SELECT *, load_extension('/tmp/evil.so') AS x FROM hidden",
    )


def _broken_page() -> bytes:
    data = bytearray(_database())
    data[4096 : 4096 + 2048] = b"\xff" * 2048
    return bytes(data)


def _capture() -> bytes:
    head = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1)
    return head + struct.pack("<IIII", 1_700_000_000, 0, 0xFFFFFFFF, 0xFFFFFFFF) + b"x" * 64


_FOLDED = "ﬁle-é.log"
_ARCHIVES = [
    Input("archive", "tar: a name that climbs out (../../x)", "read", lambda: _honest("../../../../tmp/climbed.log")),
    Input("archive", "tar: an absolute name", "read", lambda: _honest("/tmp/absolute.log")),
    Input("archive", "tar: a symbolic link to /etc/passwd", "passed over", lambda: _linked(special("evil", tarfile.SYMTYPE, "/etc/passwd")), "not a plain file"),
    Input("archive", "tar: a hard link out of the archive", "passed over", lambda: _linked(special("evil", tarfile.LNKTYPE, "../../etc/passwd")), "not a plain file"),
    Input("archive", "tar: a link to a folder, and a file written through it", "passed over", lambda: _pack((_named("x.log"), LOG), (special("d", tarfile.SYMTYPE, "/tmp"), b""), (_named("d/through.log"), LOG)), "not a plain file"),
    Input("archive", "tar: a chain of 50 links", "passed over", lambda: _linked(*(special(f"l{n}", tarfile.SYMTYPE, f"l{n + 1}") for n in range(50))), "not a plain file"),
    Input("archive", "tar: a link to itself", "passed over", lambda: _linked(special("me", tarfile.SYMTYPE, "me")), "not a plain file"),
    Input("archive", "tar: a character device", "passed over", lambda: _linked(special("evil", tarfile.CHRTYPE)), "not a plain file"),
    Input("archive", "tar: a block device", "passed over", lambda: _linked(special("evil", tarfile.BLKTYPE)), "not a plain file"),
    Input("archive", "tar: a FIFO", "passed over", lambda: _linked(special("evil", tarfile.FIFOTYPE)), "not a plain file"),
    Input("archive", "tar: a sparse file of 1 TiB (GNU)", "passed over", _sparse, "sparse"),
    Input("archive", "tar: a sparse file of 1 TiB (pax)", "passed over", _pax_sparse, "sparse"),
    Input("archive", "tar: three members of one name", "read", lambda: _honest("x.log", "x.log")),
    Input("archive", "tar: names that differ in case alone", "read", lambda: _honest("X.LOG", "X.log")),
    Input("archive", "tar: names that differ in Unicode form alone", "read", lambda: _honest(_FOLDED, unicodedata.normalize("NFD", _FOLDED), unicodedata.normalize("NFKC", _FOLDED))),
    Input("archive", "tar: a name of 64 kB", "read", lambda: _honest("n" * 64_000)),
    Input("archive", "tar: a name with line feeds and escape sequences", "read", lambda: _honest("a\n\x1b[2J\x1b]0;owned\x07.log")),
    Input("archive", "tar: a name with a mark that turns the reading direction", "read", lambda: _honest("a\u202egol.exe")),
    Input("archive", "tar: a file and a folder of one name", "read", lambda: _pack((_named("x.log"), LOG), (special("x.log", tarfile.DIRTYPE), b""), (_named("x.log/y.log"), LOG))),
    Input("archive", "tar: a size larger than the archive", "row", lambda: _sized(b"00000077777\0"), "cut off|ends inside a file"),
    Input("archive", "tar: a negative size", "row", lambda: _sized(b"\xff" * 12), "broken or cut off"),
    Input("archive", "tar: a size of 8 EiB", "row", lambda: _sized(b"\x80" + (1 << 63).to_bytes(11, "big")), "cut off|ends inside a file"),
    Input("archive", "tar: an extended header of 6 GiB", "row", _huge_header, "broken or cut off"),
    Input("archive", "tar: 3,000 extended headers in a row", "row", _long_chain, "broken or cut off"),
    Input("archive", "tar: a damaged header", "row", lambda: (lambda d: d[:1024] + b"\xff" * 100 + d[1124:])(_honest("y.log")), "header is damaged"),
    Input("archive", "tar: two tars one after the other", "row", lambda: _honest("y.log") + _honest("z.log"), "after its end mark"),
    Input("archive", "tar.gz that was cut off", "row", lambda: _cut(gzip.compress(tar({"x.log": LOG, "y.log": noise(900_000)}))), "broken or cut off|cut off"),
    Input("archive", "tar.zst that was cut off", "row", lambda: _cut(zst(tar({"x.log": LOG, "y.log": noise(900_000)}))), "broken or cut off|cut off"),
    Input("archive", "tar of more members than may be", "limit", lambda: _honest(*(f"{n}" for n in range(500))), "members"),
    Input("archive", "tar of more folders than may be", "limit", lambda: _linked(*(special(f"d{n}", tarfile.DIRTYPE) for n in range(500))), "members"),
    Input("archive", "zip: a name that climbs out", "read", lambda: _zip_named("../../../../tmp/climbed.log")),
    Input("archive", "zip: absolute names and a drive letter", "read", lambda: _zip_named("/tmp/absolute.log", "C:\\Windows\\x.log")),
    Input("archive", "zip: a symbolic link", "passed over", _zip_link, "not a plain file"),
    Input("archive", "zip: an encrypted member", "row", _encrypted, "encrypted"),
    Input("archive", "zip: 300 entries that overlap in the file", "limit", _overlapping, "ratio|total bytes"),
    Input("archive", "zip: a directory of a million entries in 46 MB (scaled)", "limit", lambda: _directory_of(20_000), "members"),
    Input("archive", "zip: a stated size smaller than what comes out", "row", _lying_zip, "cannot be unpacked"),
    Input("archive", "zip: an unknown compression", "row", _strange_method, "cannot be unpacked"),
    Input("archive", "zip that was cut off", "row", lambda: tar({"x.log": LOG, "y.zip": _cut(zipped({"a": noise(5000)}))}), "broken or cut off"),
    Input("archive", "zip: a wrong checksum", "row", lambda: (lambda d: d.replace(noise(300)[50:60], b"0000000000"))(_stored({"x.log": LOG, "y.log": noise(300)})), "cannot be unpacked"),
    Input("archive", "zip in tar in zip, deeper than may be", "limit", lambda: _nested(7), "depth"),
    Input("archive", "a tree of archives, eight in each of four levels", "limit", lambda: _nested(4, 8, noise(4000)), "members|total bytes"),
    Input("archive", "gz bomb", "limit", _bomb(gzip.compress), "ratio"),
    Input("archive", "bz2 bomb", "limit", _bomb(bz2.compress), "ratio"),
    Input("archive", "xz bomb", "limit", _bomb(lzma.compress), "ratio"),
    Input("archive", "zst bomb", "limit", _bomb(zst), "ratio"),
    Input("archive", "gz of gz of gz … beyond the depth", "limit", lambda: gzip.compress(gzip.compress(gzip.compress(gzip.compress(gzip.compress(gzip.compress(LOG)))))), "depth"),
    Input("archive", "several gz streams one after the other", "read", lambda: gzip.compress(LOG) + gzip.compress(LOG)),
    Input("archive", "gz with garbage after its end", "row", lambda: gzip.compress(LOG) + b"garbage", "cut off|broken|Not a gzipped"),
    Input("archive", "gz with a wrong checksum", "row", lambda: (lambda d: d[:-8] + b"\0\0\0\0" + d[-4:])(gzip.compress(LOG)), "CRC"),
    Input("archive", "more bytes in all than may be", "limit", lambda: tar({str(n): noise(3 << 20) for n in range(4)}), "total bytes"),
    Input("archive", "one file larger than may be", "limit", lambda: tar({"a": noise(5 << 20)}), "member bytes"),
    Input("archive", "unpacking that takes longer than may be", "limit", lambda: _honest("y.log"), "seconds", Limits(seconds=1e-9)),
    Input("archive", "an empty archive", "nothing", lambda: tar({}), "empty"),
    Input("archive", "an archive that cannot be unpacked here (7z)", "nothing", lambda: b"7z\xbc\xaf\x27\x1c" + bytes(100), "7-Zip"),
]  # fmt: skip


def _stored(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()


def _given(data: bytes) -> Callable[[], bytes]:
    return lambda: data


_PICKLES = [
    *(Input("pickle", f"a class, call or id by {name}", "gap", _given(data), "refused") for name, data in HOSTILE.items()),
    Input("pickle", "a memo number of two thousand million", "gap", _given(HEAD + b"]r\xff\xff\xff\x7fs."), "memo number"),
    Input("pickle", "tuples of tuples that take for ever to hash", "gap", lambda: HEAD + b")q\x00" + b"".join(b"h" + bytes([n]) + b"h" + bytes([n]) + b"\x86q" + bytes([n + 1]) for n in range(80)) + b"Nss.", "tuple inside a tuple"),
    Input("pickle", "a string of 2 GiB that is not there", "gap", _given(HEAD + b"X\xff\xff\xff\x7fabc"), "truncated"),
    Input("pickle", "an exabyte of bytes announced", "gap", _given(b"\x80\x05}X\x07\x00\x00\x00entries\x8e" + struct.pack("<Q", 1 << 56) + b"s."), "refused|truncated"),
    Input("pickle", "lists 100,000 deep", "gap", lambda: HEAD + b"]" * 100_000 + b"a" * 99_999 + b"s.", "not objects"),
    Input("pickle", "a list that holds itself", "gap", _given(HEAD + b"]q\x00h\x00as."), "not objects"),
    Input("pickle", "shared lists that unfold to 2^80 items", "gap", _shared_lists, "not objects"),
    Input("pickle", "a pickle inside a string of a pickle", "gap", lambda: HEAD + b"](X\x10\x00\x00\x00cos\nsystem\n(S'id'tes.", "not objects|truncated"),
]  # fmt: skip
_DOCUMENTS = [
    Input("JSON", "lists 100,000 deep", "gap", lambda: b'{"version":"2.10","entries":' + b"[" * 100_000 + b"]" * 100_000 + b"}", ""),
    Input("JSON", "an integer beyond 64 bits", "read", lambda: _json_dump(op_id=1 << 80, time_created_ns=1 << 70)),
    Input("JSON", "an integer of 10,000 digits", "gap", lambda: _json_dump(op_id=1).replace(b'"op_id": 1', b'"op_id": ' + b"9" * 10_000), ""),
    Input("JSON", "a number beyond floats, NaN and Infinity", "read", lambda: _json_dump(duration_ms=float("nan"), x=float("inf")).replace(b"NaN", b"1e999999")),
    Input("JSON", "lone surrogates", "read", lambda: _json_dump(thread_name="\ud800\udfff\ud800")),
    Input("JSON", "a time beyond any calendar", "read", lambda: _json_dump(time_created_ns=9_223_372_036_854_775_807)),
    Input("JSON", "a time before the epoch", "read", lambda: _json_dump(time_created_ns=-(1 << 62))),
    Input("JSON", "the same key twice", "read", lambda: _json_dump().replace(b'"version": "2.10",', b'"version": "2.10", "version": "2.4",')),
    Input("JSON", "cut off in the middle", "gap", lambda: _cut(_json_dump(frames=[{"name": "f"}] * 50)), "truncated or broken"),
    Input("XML", "entities that unfold to gigabytes", "gap", _laughs, "entities|DOCTYPE|refused|unreadable"),
    Input("XML", "an entity that reads a file", "gap", lambda: _xml(b'<!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]>', b"<driver_version>&e;</driver_version>"), "entities|another"),
    Input("XML", "an external DTD", "read", lambda: _xml(b'<!DOCTYPE nvidia_smi_log SYSTEM "http://127.0.0.1:9/x.dtd">', b"<driver_version>550.54</driver_version><gpu id='00000000:1A:00.0'><uuid>GPU-1</uuid></gpu>")),
    Input("XML", "elements 10,000 deep", "gap", lambda: _xml(b"", b"<a>" * 10_000 + b"</a>" * 10_000), "nested too deep"),
    Input("YAML", "aliases that unfold to billions", "gap", lambda: b"apiVersion: v1\nkind: Pod\nmetadata: &a [x, x]\n" + b"".join(b"k%d: &%c [*%c, *%c]\n" % (n, 98 + n, 97 + n, 97 + n) for n in range(20)), "aliases"),
    Input("YAML", "a tag that makes a Python object", "gap", lambda: b"apiVersion: v1\nkind: Pod\nmetadata: !!python/object/apply:os.system ['true']\n", "constructor|tag"),
    Input("SQLite", "a view that calls load_extension in place of a table", "read", _planted_schema),
    Input("SQLite", "a trigger", "read", lambda: _database("CREATE TRIGGER t AFTER INSERT ON StringIds BEGIN DELETE FROM StringIds; END")),
    Input("SQLite", "a damaged page", "gap", _broken_page, ""),
    Input("SQLite", "nothing but the head", "gap", lambda: _database()[:100], ""),
    Input("capture", "a packet of 4 GiB announced", "gap", _capture, ""),
]  # fmt: skip


def _lines(text: str, encoding: str = "utf-8") -> Callable[[], bytes]:
    return lambda: text.encode(encoding, "surrogatepass")


_NCCL = LOG.decode()
_TEXTS = [
    Input("text", "runs of NUL in the middle", "read", lambda: LOG * 4 + bytes(300) + LOG),
    Input("text", "a log that starts with a megabyte of NUL", "read", lambda: bytes(1 << 20) + LOG),
    Input("text", "UTF-16, little endian", "read", lambda: b"\xff\xfe" + _NCCL.encode("utf-16-le")),
    Input("text", "UTF-16, big endian", "read", lambda: b"\xfe\xff" + _NCCL.encode("utf-16-be")),
    Input("text", "UTF-16 that ends in half a character", "read", lambda: b"\xff\xfe" + (_NCCL * 3).encode("utf-16-le") + b"\x00"),
    Input("text", "Latin-1 and UTF-8 mixed", "read", lambda: LOG + "Größe\n".encode("latin-1") + "模型\n".encode() + LOG),
    Input("text", "lone surrogates written as UTF-8", "read", _lines(_NCCL + "\ud800\udfff\n" + _NCCL)),
    Input("text", "lines that end with CR LF", "read", lambda: LOG.replace(b"\n", b"\r\n") * 3),
    Input("text", "lines that end with CR alone", "read", lambda: LOG.replace(b"\n", b"\r") * 3),
    Input("text", "no line end at all", "read", lambda: LOG.rstrip(b"\n")),
    Input("text", "one line of gigabytes (scaled to 24 MB)", "read", lambda: LOG + b"A" * (24 << 20) + b"\n" + LOG, "", Limits()),
    Input("text", "a million empty lines", "read", lambda: LOG + b"\n" * 1_000_000 + LOG, "", Limits()),
    Input("text", "years 0000 and 9999, month 13, second 61", "read", lambda: LOG + b"".join(b"[%s] node01 kernel: NVRM: Xid (PCI:0000:1a:00): 79, GPU has fallen off the bus.\n" % t for t in (b"0000-01-01 00:00:00", b"9999-12-31 23:59:61", b"2026-13-40 25:61:61"))),
    Input("text", "numbers beyond 64 bits in every place", "read", lambda: b"node01:99999999999999999999:99999999999999999999 [99999999999] NCCL INFO comm 0x1 rank 99999999999999999999 nranks 99999999999999999999 cudaDev 0 busId 1000 - Init COMPLETE\n" + LOG),
    Input("text", "a communicator of 2^31 ranks", "read", lambda: b"".join(_joined(r, b"2147483647") for r in (b"0", b"2147483646"))),
    Input("text", "a communicator whose size is beyond 64 bits", "read", lambda: _joined(b"3", b"9" * 20) + _joined(b"5", b"8")),
    Input("text", "digits of other scripts in place of numbers", "read", lambda: LOG + 'Thread 0x1 (most recent call first):\n  File "a.py", line ²٣ in f\n'.encode() + LOG),
    Input("text", "colours and escape sequences", "read", lambda: b"\x1b[31m" + LOG + b"\x1b]0;owned\x07\x1b[2J" + LOG),
    Input("text", "a host list of 10^11 hosts", "read", lambda: LOG + b"slurmstepd: error: *** STEP 1.0 ON n[0-99999999999] CANCELLED AT 2026-01-01T00:00:00 ***\n"),
    Input("binary", "an ELF core dump", "nothing", lambda: b"\x7fELF" + bytes(range(256)) * 20, "ELF"),
    Input("binary", "random bytes", "nothing", lambda: zlib.compress(noise(40_000))[2:], "binary"),
]  # fmt: skip
INPUTS = [*_ARCHIVES, *_PICKLES, *_DOCUMENTS, *_TEXTS]


def page() -> str:
    """The table for the documentation."""
    out = "# Hostile inputs and what becomes of them\n\n" + (__doc__ or "").split("\n\n", 1)[1].strip() + "\n"
    out += "\n| group | input | outcome | message |\n|---|---|---|---|\n"
    for one in INPUTS:
        out += f"| {one.group} | {one.name} | {one.outcome} | {one.says.split('|')[0]} |\n"
    return out
