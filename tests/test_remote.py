"""Evidence and results in object stores: read and written through fsspec as if they were files here."""

from __future__ import annotations

import io
import sys
import tarfile
import uuid
from pathlib import Path

import orjson
import pytest

from nccl_forensics import api
from nccl_forensics.errors import LimitReached, OutputError, UnusableEvidence, UsageError
from nccl_forensics.limits import Limits
from nccl_forensics.reading import remote
from nccl_forensics.reading.bundle import open_bundle
from nccl_forensics.reading.engine import InlineEngine
from tests.corpus import ROOT
from tests.test_docs import run

HANG = ROOT / "fixtures" / "incidents" / "skipped-collective-8r" / "evidence"
WARN = b"node01:7:7 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer node02<51161>\n"
pytestmark = pytest.mark.usefixtures("fsspec")


@pytest.fixture
def fsspec() -> None:
    pytest.importorskip("fsspec", reason="fsspec is not installed (pip install 'nccl-forensics[remote]')")


@pytest.fixture
def bucket() -> str:
    return f"memory://{uuid.uuid4().hex}"


def packed(folder: Path) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        tar.add(folder, "evidence")
    return out.getvalue()


def test_a_prefix_is_read_like_a_folder(bucket: str) -> None:
    remote.put_folder(HANG, bucket)
    there = api.analyze([bucket], engine=InlineEngine(), title="x").report
    here = api.analyze([HANG], engine=InlineEngine(), title="x").report
    for part in ("case", "verdict", "findings", "sources"):
        left, right = there[part], here[part]
        if part == "case":
            left, right = left | {"inputs": []}, right | {"inputs": []}  # type: ignore[operator]
        assert left == right


def test_an_archive_in_a_store_is_read_like_a_file(bucket: str, tmp_path: Path) -> None:
    remote.write(f"{bucket}/incident.tar.gz", packed(HANG))
    (tmp_path / "incident.tar.gz").write_bytes(packed(HANG))
    there = api.analyze([f"{bucket}/incident.tar.gz"], engine=InlineEngine())
    assert there.json() == api.analyze([tmp_path / "incident.tar.gz"], engine=InlineEngine()).json()


def test_a_file_url_and_a_store_lie_beside_a_folder(bucket: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.log").write_bytes(WARN)
    remote.write(f"{bucket}/logs/y.log", WARN * 2)
    remote.write(f"{bucket}/logs/.DS_Store", b"junk")
    with open_bundle([tmp_path / "a", f"{bucket}/logs", f"file://{tmp_path}/a/x.log"]) as bundle:
        assert [m.path for m in bundle.members] == ["a/x.log", "logs/y.log", "x.log"]
        assert [m.bytes for m in bundle.members] == [len(WARN), 2 * len(WARN), len(WARN)]
        assert bundle.quote(1, 2) == [(2, WARN.decode().rstrip("\n"))]
        assert bundle.skipped == (("logs/.DS_Store", "left by a file manager"),)


def test_what_is_fetched_counts_against_the_limits(bucket: str) -> None:
    remote.write(f"{bucket}/x.log", WARN * 100)
    with pytest.raises(LimitReached):
        open_bundle([bucket], limits=Limits(total_bytes=1000))


def test_results_go_into_a_store(bucket: str, tmp_path: Path) -> None:
    evidence = ROOT / "fixtures" / "incidents" / "killed-rank-4r" / "evidence"
    done = run(["analyze", str(evidence), "-o", f"{bucket}/out", "--json", f"{bucket}/alone.json", "--tables", f"{bucket}/tables"])
    assert done.exit_code == 0, done.output
    assert f"postmortem: {bucket}/out/postmortem.html" in done.output
    names = {item.path for item in remote.objects(bucket)}
    assert {"out/postmortem.html", "out/postmortem.md", "out/report.json", "alone.json", "tables/sources.parquet"} <= names
    with remote.opened(f"{bucket}/out/report.json") as one, remote.opened(f"{bucket}/alone.json") as other:
        content = one.read()
        assert content == other.read()
    assert orjson.loads(content)["verdict"]["cause"]


@pytest.mark.parametrize("what", ["memory://nothing/here", "file:///nowhere/at/all.log"])
def test_what_is_not_there_is_unusable_evidence(what: str) -> None:
    with pytest.raises(UnusableEvidence):
        open_bundle([what])


def test_an_unknown_kind_of_store_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="nosuchstore"):
        open_bundle(["nosuchstore://bucket/x"])


def test_a_store_that_cannot_be_written_is_an_output_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OutputError):
        remote.write(f"file://{tmp_path}/file/x.json", b"")


def test_without_fsspec_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(UsageError, match=r"nccl-forensics\[remote\]"):
        open_bundle(["s3://bucket/x"])


def test_credentials_in_a_url_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError) as told:
        remote.objects("nosuchstore://me:hunter22@host/x")
    assert "hunter22" not in str(told.value)


def test_a_url_cannot_be_watched(bucket: str) -> None:
    assert "only files and folders" in str(run(["analyze", "--watch", bucket]).exception)


@pytest.mark.parametrize(
    ("text", "url"), [("s3://b/x", True), ("gs://b", True), ("C:/x", False), ("a/b", False), ("-", False), ("x://y", False)]
)
def test_a_url_is_told_from_a_path(text: str, url: bool) -> None:
    assert remote.is_url(text) is url
