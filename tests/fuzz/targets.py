"""What is fuzzed and what must hold for every input: used by the coverage-guided run and by the replay of its corpus.

An input is one byte that chooses the target, and what the target gets. A broken promise raises ``AssertionError``; any other exception is a
finding as well.
"""

from __future__ import annotations

import contextlib
import io
import pickle
import random
import re
import sqlite3
import tempfile
import time
import unicodedata
from collections.abc import Callable
from pathlib import Path

import polars as pl

from nccl_forensics.decoding.safe_pickle import RefusedPickle, load_plain
from nccl_forensics.errors import ForensicsError
from nccl_forensics.limits import Limits
from nccl_forensics.masking import mask, mask_expr
from nccl_forensics.plain import plain
from nccl_forensics.reading.bundle import Bundle, open_bundle
from nccl_forensics.reading.engine import InlineEngine, read_bundle
from nccl_forensics.reading.source import SourceReading, read_source
from nccl_forensics.rules import run_rules
from nccl_forensics.tables import TABLES
from nccl_forensics.views import Resolver
from tests.corpus import ROOT

#: CPU seconds that any input may take, and per MB of it (10^6 bytes).
BASE_SECONDS, SECONDS_PER_MB = 3.0, 10.0
#: A gap of a format that fell over: it bears the name of what was raised.
_RAISED = re.compile(r"unreadable: [A-Z]\w+: ")
LIMITS = Limits(total_bytes=32 << 20, member_bytes=16 << 20, members=2000, depth=4, ratio=100, ratio_from_bytes=1 << 20)


def source(data: bytes) -> None:
    """Reading never raises, counts every line once, and yields rows that fit their tables."""
    _sound(data, read_source(data))


def _sound(data: bytes, reading: SourceReading) -> None:
    for name, frame in reading.frames.items():
        assert list(frame.schema.items()) == list(TABLES[name].schema.items()), f"{name} has other columns than its table"
    gaps = reading.frames.get("gaps")
    if gaps is not None:
        raised = [str(r) for r in gaps["reason"] if _RAISED.match(str(r))]
        assert not raised, f"a format raised: {gaps['format'].to_list()[:1]} {raised[0]}"
    if reading.lines is None:
        return
    assert reading.records + reading.gap_lines + reading.foreign == reading.lines, "a line is counted twice or not at all"
    for name, frame in reading.frames.items():
        if "line_no" in frame.columns and frame["line_no"].len() > frame["line_no"].null_count():
            low, high = int(str(frame["line_no"].min())), int(str(frame["line_no"].max()))
            assert 1 <= low <= high <= reading.lines, f"{name} points at line {low} or {high} of {reading.lines}"


def incident(data: bytes) -> None:
    """No rule crashes on a bundle of one source."""
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(ForensicsError):
        (Path(folder) / "evidence.log").write_bytes(data)
        with open_bundle([folder], limits=LIMITS) as bundle:
            store = read_bundle(bundle, InlineEngine())
            crashed = [f"{o.rule.name}: {o.error}" for o in run_rules(Resolver(store, bundle.scratch)) if o.status == "crashed"]
            assert not crashed, f"a rule crashed: {crashed[0]}"


def archive(data: bytes) -> None:
    """Unpacking raises nothing but errors with an exit code, and writes nowhere but into scratch."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "in").write_bytes(data)
        (root / "scratch").mkdir()
        try:
            with open_bundle([root / "in"], limits=LIMITS, scratch=root / "scratch") as bundle:
                _unpacked(bundle, root)
        except ForensicsError:
            pass
        assert sorted(p.name for p in root.rglob("*")) == ["in", "scratch"], "something was left or written elsewhere"


def _unpacked(bundle: Bundle, root: Path) -> None:
    assert [m.path for m in bundle.members] == sorted(m.path for m in bundle.members)
    total = 0
    for member in bundle.members:
        assert member.path.isprintable(), member.path
        assert not {"", ".."} & set(member.path.split("/")), member.path
        if member.file is not None:
            assert member.file == root / "in" or (root / "scratch" in member.file.parents and not member.file.is_symlink())
            total += member.file.stat().st_size
            bundle.quote(member.source_id, 1, after=2)
    assert total <= LIMITS.total_bytes + LIMITS.member_bytes


_PLAIN = (dict, list, tuple, str, bytes, int, float, bool, type(None))


def pickled(data: bytes) -> None:
    """An unpickled value is plain through and through, or refused."""
    try:
        waiting = [load_plain(data)]
    except (RefusedPickle, pickle.UnpicklingError, EOFError):
        return
    seen: set[int] = set()
    while waiting and len(seen) < 10_000:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        assert type(value) in _PLAIN, f"a {type(value).__name__} came out"
        if isinstance(value, dict):
            waiting.extend(value.values())
            waiting.extend(value)
        elif isinstance(value, list | tuple):
            waiting.extend(value)


def text(data: bytes) -> None:
    """Masking gives the same for a text and for a column and changes nothing when it is done again; what is shown is harmless."""
    raw = data.decode("utf-8", "replace")
    masked = mask(raw)
    assert mask(masked) == masked, "masking again changes the text"
    assert pl.DataFrame({"t": [raw]}).select(mask_expr("t")).item() == masked, "a column is masked in another way"
    for char in plain(raw):
        assert unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Zl", "Zp"), f"U+{ord(char):04x} is shown as it is"


#: What breaks readers in the place of a number or a word.
_EXTREME = [
    b"0",
    b"-1",
    b"9223372036854775807",
    b"9223372036854775808",
    b"18446744073709551616",
    b"1e309",
    b"nan",
    b"9" * 40,
    b"0x" + b"f" * 20,
]
_EXTREME += [
    b"\x00",
    b"\r",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"\x1b[31m",
    b"4294967296",
    b"1969-12-31 23:59:59",
    b"9999-12-31 23:59:60",
    b"\xc2\xb2",
]
_NUMBER = re.compile(rb"[0-9]+")


def disturbed(body: bytes, rng: random.Random) -> bytes:
    """A text with one line or number changed as broken disks, racing writers and hostile hands change them."""
    if rng.random() < 0.4:
        numbers = list(_NUMBER.finditer(body))
        if numbers:
            place = rng.choice(numbers)
            return body[: place.start()] + rng.choice(_EXTREME) + body[place.end() :]
    lines = body.split(b"\n")
    at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    kind = rng.randrange(7)
    if kind == 0:
        del lines[at : at + rng.randint(1, 4)]
    elif kind == 1:
        lines.insert(other, lines[at])
    elif kind == 2:
        lines[at], lines[other] = lines[other], lines[at]
    elif kind == 3:
        lines[at] = lines[at][: rng.randint(0, len(lines[at]))]
    elif kind == 4:
        lines[at] = lines[at] + lines[other]
    elif kind == 5 and lines[at]:
        bit = rng.randrange(8 * len(lines[at]))
        lines[at] = bytes(b ^ (1 << bit % 8) if n == bit // 8 else b for n, b in enumerate(lines[at]))
    else:
        words = lines[at].split(b" ")
        words[rng.randrange(len(words))] = rng.choice(_EXTREME)
        lines[at] = b" ".join(words)
    return b"\n".join(lines)


TARGETS: dict[bytes, Callable[[bytes], None]] = {b"s": source, b"a": archive, b"p": pickled, b"t": text}


def check(data: bytes) -> None:
    """Run the target that the first byte names, within the time that its size justifies. Raises on a finding."""
    target = TARGETS.get(data[:1], source)
    begin = time.process_time()
    target(data[1:])
    spent = time.process_time() - begin
    allowed = BASE_SECONDS + SECONDS_PER_MB * len(data) / 1e6
    assert spent <= allowed, f"took {spent:.1f} s of CPU for {len(data)} bytes"


def whole_files() -> list[Path]:
    """The fixtures that are evidence."""
    files = sorted((ROOT / "fixtures").rglob("*"))
    return [f for f in files if f.is_file() and "golden" not in f.name and f.suffix not in (".md", ".webp", ".sql")]


def seeds() -> dict[str, bytes]:
    """Small inputs to start from: pieces of every fixture, archives of every kind, and pickles."""
    import bz2
    import gzip
    import lzma
    import tarfile
    import zipfile

    import zstandard

    from tests.test_safe_pickle import HOSTILE

    out: dict[str, bytes] = {}
    for file in whole_files():
        data = file.read_bytes()
        name = file.relative_to(ROOT / "fixtures").as_posix().replace("/", "-")
        if data[:1] == b"\x80":
            out[f"p-{name}"] = b"p" + data[:8192]
        for part in range(0, min(len(data), 24_000), 8000):
            out[f"s-{name}-{part}"] = b"s" + data[part : part + 8000]
    with tempfile.TemporaryDirectory() as folder:
        database = sqlite3.connect(Path(folder) / "x")
        database.executescript((ROOT / "fixtures" / "nsys" / "two_steps.sql").read_text())
        database.close()
        out["s-nsys"] = b"s" + (Path(folder) / "x").read_bytes()
    for name, data in HOSTILE.items():
        out[f"p-hostile-{name}"] = b"p" + data
        out[f"s-hostile-{name}"] = b"s" + data
    tar, folded = io.BytesIO(), io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as archive_file:
        for name, content in (("a.log", b"NCCL INFO one\n"), ("d/b.log", b"two\n" * 40), ("x" * 120, b"")):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive_file.addfile(info, io.BytesIO(content))
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive_file.addfile(link)
    with zipfile.ZipFile(folded, "w", zipfile.ZIP_DEFLATED) as zipped:
        zipped.writestr("a.log", "one\n" * 100)
        zipped.writestr("inner.tar", tar.getvalue())
    plain_tar = tar.getvalue()
    out |= {
        "a-tar": b"a" + plain_tar,
        "a-zip": b"a" + folded.getvalue(),
        "a-gz": b"a" + gzip.compress(plain_tar, mtime=0),
        "a-bz2": b"a" + bz2.compress(plain_tar),
        "a-xz": b"a" + lzma.compress(plain_tar),
        "a-zst": b"a" + zstandard.compress(plain_tar),
        "a-log-gz": b"a" + gzip.compress(b"one\ntwo\n", mtime=0),
        "a-utf16": b"a" + "one\ntwo\n".encode("utf-16"),
        "t-secret": b"t" + b'password=hunter2 https://me:pw@h/ {"token": "x"} AKIAIOSFODNN7EXAMPLE \x1b[2J\xe2\x80\xae',
    }
    return out
