"""What is not there on macOS or Windows is simulated to be absent: the fallback does what the pages say."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
import types
from pathlib import Path

import pytest

from nccl_forensics import api, cli
from nccl_forensics.errors import UsageError
from nccl_forensics.reading.engine import InlineEngine
from tests.corpus import ROOT

pytest.importorskip("starlette")
from nccl_forensics.serve import folders, server, worker

HANG = ROOT / "fixtures" / "incidents" / "nccl-never-joined-8r" / "evidence"


@pytest.mark.parametrize("encoding", ["cp1252"])
def test_a_terminal_that_knows_fewer_signs_gets_others_and_no_failure(encoding: str) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run(
        [sys.executable, "-m", "nccl_forensics.cli", "analyze", HANG, "--no-cache"],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    text = done.stdout.decode(encoding)
    assert "-" * 60 in text
    assert "EXPLAINED  rank-never-joined" in text


def test_streams_that_are_no_files_are_left_as_they_are() -> None:
    held = io.StringIO()
    cli._write_what_it_can(held)
    held.write("─")
    strict = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    cli._write_what_it_can(strict)
    strict.write("a─…é→")
    strict.flush()
    assert strict.buffer.getvalue() == b"a-...?->"


def test_without_limits_of_memory_a_source_is_read_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    from nccl_forensics.reading import readers

    monkeypatch.setitem(sys.modules, "resource", None)
    readers._limit_memory(1)
    worker._bound(1)
    monkeypatch.delattr(os, "nice")
    worker._bound(1)
    assert api.analyze([HANG], engine=InlineEngine()).verdict["cause"] == "rank-never-joined"


class Msvcrt(types.ModuleType):
    """Windows' module: locks bytes of a file for one process."""

    LK_NBLCK = 2

    def __init__(self) -> None:
        super().__init__("msvcrt")
        self.held = False

    def locking(self, descriptor: int, mode: int, count: int) -> None:
        assert (os.lseek(descriptor, 0, os.SEEK_CUR), mode, count) == (0, self.LK_NBLCK, 1)
        if self.held:
            raise PermissionError(13, "Permission denied")
        self.held = True


def test_two_servers_of_one_folder_are_kept_apart_on_windows_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    monkeypatch.setitem(sys.modules, "msvcrt", Msvcrt())
    held = folders.Folders(tmp_path)
    held.make()
    with held.locked(), pytest.raises(UsageError, match="another process serves"), folders.Folders(tmp_path).locked():
        pass


def test_folders_are_not_opened_to_be_flushed_on_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[str, int]] = []
    real = os.open
    monkeypatch.setattr(folders.os, "open", lambda path, flags: opened.append((path.name, flags)) or real(path, flags))
    (tmp_path / "file").write_bytes(b"x")
    monkeypatch.setattr(folders, "_WINDOWS", True)
    folders.sync(tmp_path)
    folders.sync(tmp_path / "file")
    assert opened == [("file", os.O_RDWR)]


def test_a_port_is_this_programs_alone_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    class Held(socket.socket):
        def setsockopt(self, level: int, option: int, value: object) -> None:  # type: ignore[override]  # the one form that is used
            asked.append(option)

    monkeypatch.setattr(server.socket, "SO_EXCLUSIVEADDRUSE", -5, raising=False)
    monkeypatch.setattr(server.socket, "socket", Held)
    server.bind("127.0.0.1", 0).close()
    assert asked == [-5]
