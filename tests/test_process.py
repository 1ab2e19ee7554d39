"""The program as a process: interrupted, on full disks, and beside itself."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.corpus import ROOT

HANG = ROOT / "fixtures" / "incidents" / "skipped-collective-8r" / "evidence"


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "nccl_forensics.cli", "analyze", *map(str, arguments), "--no-cache"]


def around(scratch: Path) -> dict[str, str]:
    scratch.mkdir()
    return {**os.environ, "TMPDIR": str(scratch)}


def limited() -> None:
    """No file above 20 kB: what a full disk does, without one."""
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))


def hearing() -> None:
    """A child of what a shell started in the background is deaf to SIGINT unless told otherwise."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_leaves_nothing_behind(tmp_path: Path, sent: signal.Signals, code: int):
    pipe, scratch = tmp_path / "evidence", tmp_path / "scratch"
    os.mkfifo(pipe)
    process = subprocess.Popen(
        command(pipe, "-o", tmp_path / "out"), env=around(scratch), preexec_fn=hearing, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    with pipe.open("wb") as writer:
        writer.write(b"node01:1:2 [0] NCCL INFO one\n")
        writer.flush()
        end = time.monotonic() + 60
        while not any(scratch.rglob("0*")) and time.monotonic() < end:
            time.sleep(0.05)
        time.sleep(1)  # until it waits for more: a signal between two reads of one call is seen after the next
        process.send_signal(sent)
        _, said = process.communicate(timeout=60)
    assert process.returncode == code
    assert "Traceback" not in said
    assert not list(scratch.iterdir())
    assert not list((tmp_path / "out").rglob("*.*"))


def test_a_disk_that_fills_up_is_exit_code_5_and_leaves_no_half_file(tmp_path: Path):
    page = tmp_path / "page.html"
    done = subprocess.run(
        command(HANG, "--html", page),
        env=around(tmp_path / "scratch"),
        preexec_fn=limited,
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 5, done.stderr
    assert "cannot be written" in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["scratch"]
    assert not list((tmp_path / "scratch").iterdir())


@pytest.mark.parametrize("target", ["-", "/dev/full"])
def test_a_full_device_is_exit_code_5(tmp_path: Path, target: str):
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            command(HANG, "--json", target, "--quiet"),
            env=around(tmp_path / "scratch"),
            stdout=full,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            check=False,
        )
    assert done.returncode == 5, done.stderr
    assert b"Traceback" not in done.stderr
    assert stat.S_ISCHR(Path("/dev/full").stat().st_mode)


def test_an_output_below_a_file_is_exit_code_5(tmp_path: Path):
    (tmp_path / "file").write_text("")
    done = subprocess.run(command(HANG, "-o", tmp_path / "file" / "out"), capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 5
    assert "cannot be written" in done.stderr


def test_runs_at_the_same_time_do_not_disturb_each_other(tmp_path: Path):
    env = around(tmp_path / "scratch")
    runs = [subprocess.Popen(command(HANG, "-o", tmp_path / "out", "--quiet"), env=env, cwd=ROOT) for _ in range(2)]
    assert [r.wait(timeout=120) for r in runs] == [0, 0]
    assert json.loads((tmp_path / "out" / "report.json").read_text())["verdict"]["cause"] == "collective-skipped"
    assert not list((tmp_path / "out").rglob("*.partial"))
    assert not list((tmp_path / "scratch").iterdir())


@pytest.mark.skipif(os.name == "nt", reason="pipes and closed descriptors of POSIX")
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["formats"], 0),
        (["tables"], 0),
        (["simulate", "--list"], 0),
        (["--help"], 0),
        (["check", str(HANG), "--no-cache"], 1),
        (["rule", "no-such-rule"], 2),
    ],
)
def test_a_reader_that_left_changes_neither_the_exit_code_nor_standard_error(arguments: list[str], code: int) -> None:
    words = [sys.executable, "-m", "nccl_forensics.cli", *arguments]
    reading, writing = os.pipe()
    os.close(reading)
    try:
        gone = subprocess.run(words, stdout=writing, stderr=subprocess.PIPE, text=True, cwd=ROOT, check=False)
    finally:
        os.close(writing)
    closed = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", *words], stderr=subprocess.PIPE, text=True, cwd=ROOT, check=False)
    whole = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=False)
    assert [(gone.returncode, gone.stderr), (closed.returncode, closed.stderr)] == [(code, whole.stderr)] * 2


@pytest.mark.skipif(os.name == "nt", reason="descriptors of POSIX")
def test_files_are_written_although_nobody_reads_the_verdict(tmp_path: Path) -> None:
    words = ["sh", "-c", '"$@" | true', "sh", *command(HANG, "-o", tmp_path / "out")]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stderr == ""
    assert (tmp_path / "out" / "postmortem.html").stat().st_size > 1000
    both = ["sh", "-c", 'exec "$@" >&- 2>&- <&-', "sh", *command(HANG, "-o", tmp_path / "again")]
    assert subprocess.run(both, cwd=ROOT, check=False).returncode == 0
    assert json.loads((tmp_path / "again" / "report.json").read_text())["verdict"]["cause"] == "collective-skipped"


def test_the_list_of_the_lab_ends_quietly_where_its_reader_left() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        words = [sys.executable, "-m", "nccl_forensics.lab", "--list"]
        done = subprocess.run(words, stdout=writing, stderr=subprocess.PIPE, text=True, cwd=ROOT, check=False)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_defect_of_the_program_is_exit_code_70(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from nccl_forensics import cli

    class Panic(BaseException):
        """What Polars raises is no Exception."""

    for problem in (ValueError("unforeseen"), OSError(22, "unforeseen"), Panic("unforeseen")):

        def broken(problem: BaseException = problem, **_: object) -> None:
            raise problem

        monkeypatch.setattr(cli.cli, "main", broken)
        with pytest.raises(SystemExit) as left:
            cli.main()
        assert left.value.code == 70
        assert "unforeseen" in capsys.readouterr().err
