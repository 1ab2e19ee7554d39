"""Whether a report's claims hold against the evidence it was made from: citations say what they quote, and counts add up."""

from __future__ import annotations

import gzip
import pickle
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import orjson

from nccl_forensics.decoding.archives import junk
from nccl_forensics.masking import mask

Json = Mapping[str, object]
_POINTER = re.compile(r"entries\[(\d+)\]")


def broken(report: Json, root: Path) -> list[str]:
    """What does not hold, in words; empty where all does. ``root`` is the folder that was handed in."""
    return [*_counts(report, root), *_verdict(report), *_citations(report, root)]


def _rows(report: Json, key: str) -> list[dict[str, object]]:
    rows = report[key]
    assert isinstance(rows, list)
    return rows


def _counts(report: Json, root: Path) -> Iterator[str]:
    """Nothing is lost: every file is a source, and every line of a text is a record, a gap or foreign."""
    files = [p for p in root.rglob("*") if p.is_file() and not junk(p.relative_to(root).as_posix())]
    plain = [p for p in files if p.read_bytes()[:4] not in (b"PK\x03\x04",) and b".tar" not in p.name.encode()]
    if len(plain) == len(files) and report["sources_total"] != len(files):
        yield f"{report['sources_total']} sources of {len(files)} files"
    for source in _rows(report, "sources"):
        counted = [source[k] for k in ("records", "gaps", "foreign")]
        if source["lines"] is not None and sum(int(str(n or 0)) for n in counted) != source["lines"]:
            yield f"{source['path']}: {counted} do not add up to {source['lines']} lines"
        file = root / str(source["path"])
        if source["lines"] is not None and file.is_file() and (lines := _lines(file)) is not None and len(lines) != source["lines"]:
            yield f"{source['path']}: {source['lines']} lines of {len(lines)}"


def _verdict(report: Json) -> Iterator[str]:
    """The verdict speaks of findings and ranks that there are."""
    verdict, case = report["verdict"], report["case"]
    assert isinstance(verdict, dict)
    assert isinstance(case, dict)
    known = {f["id"] for f in _rows(report, "findings")}
    for key in ("because", "explains"):
        if not set(verdict[key]) <= known:
            yield f"verdict.{key} names findings that are not there"
    if verdict["status"] == "explained" and not verdict["because"]:
        yield "a verdict without a reason"
    for culprit in verdict["culprits"]:
        if culprit["rank"] is not None and case["world_size"] is not None and not 0 <= culprit["rank"] < case["world_size"]:
            yield f"rank {culprit['rank']} is blamed in a world of {case['world_size']}"


def _citations(report: Json, root: Path) -> Iterator[str]:
    """Each line that is cited is there and says what is quoted; each record is there."""
    lines_of = {s["path"]: s["lines"] for s in _rows(report, "sources")}
    for finding in _rows(report, "findings"):
        items = finding["evidence"]
        assert isinstance(items, list)
        if int(str(finding["evidence_total"])) < len(items):
            yield f"{finding['id']}: fewer items in all than are listed"
        if not items and finding["severity"] in ("critical", "error"):
            yield f"{finding['id']}: no evidence"
        for item in items:
            where = f"{finding['id']}: {item['path']}:{item['line'] or item['record']}"
            if item["kind"] == "absence":
                continue
            if item["path"] not in lines_of:
                yield f"{where}: no such source"
                continue
            file = root / str(item["path"])
            if item["kind"] == "line":
                yield from (f"{where}: {problem}" for problem in _line(item, lines_of[item["path"]], file))
            elif item["kind"] == "record" and file.is_file() and (found := _POINTER.match(str(item["record"]))):
                length = _entries(file)
                if length is not None and int(found[1]) >= length:
                    yield f"{where}: of {length} entries"


def _line(item: Json, lines: object, file: Path) -> Iterator[str]:
    number, end = int(str(item["line"])), item["end_line"]
    if end is not None and int(str(end)) < number:
        yield f"ends at line {end}"
    if lines is not None and max(number, int(str(end or 0))) > int(str(lines)):
        yield f"of {lines} lines"
    elif file.is_file() and (raw := _lines(file)) is not None:
        said = mask(raw[number - 1][:4096].decode("utf-8", "ignore" if len(raw[number - 1]) > 4096 else "replace").rstrip("\r"))[:400]
        if item["text"] != said:
            yield f"quoted {str(item['text'])[:80]!r}, there stands {said[:80]!r}"


@cache
def _lines(file: Path) -> list[bytes] | None:
    """Lines as ``sed -n Np`` counts them; None for what is no UTF-8 text as it lies."""
    data = file.read_bytes()
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError):
            return None
    if data[:2] in (b"\xff\xfe", b"\xfe\xff", b"PK") or data[:4] == b"\x28\xb5\x2f\xfd":
        return None
    return data.removesuffix(b"\n").split(b"\n")


@cache
def _entries(file: Path) -> int | None:
    """How many entries a Flight Recorder dump has. The dumps are our own or those of the corpus."""
    data = file.read_bytes()
    try:
        document = pickle.loads(data) if data[:1] == b"\x80" else orjson.loads(data)
        return len(document["entries"])
    except Exception:
        return None
