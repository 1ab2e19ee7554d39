"""Evidence that is still being copied in: analysed when it stands still, and only what changed in the verdict is told."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path

import pytest

from nccl_forensics import api
from nccl_forensics.reading.engine import InlineEngine
from nccl_forensics.watching import Pace, State, files_changed, look, rounds, verdict_changes
from tests.corpus import ROOT
from tests.test_docs import run

INCIDENTS = ROOT / "fixtures" / "incidents"
HANG = INCIDENTS / "skipped-collective-8r" / "evidence"
PACE = Pace(look_seconds=1, still_seconds=3, at_latest_seconds=20, times=5)


class World:
    """A clock and a folder whose state is set for each second."""

    def __init__(self, states: dict[int, State]) -> None:
        self.now, self.states = 0.0, states

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def see(self) -> State:
        return self.states[max(t for t in self.states if t <= self.now)]

    def rounds(self) -> Iterator[tuple[float, State]]:
        for state in rounds(self.see, self.sleep, self.clock, PACE):
            yield self.now, state


def files(**sizes: int) -> State:
    return {name: (size, size, 1) for name, size in sizes.items()}


def test_what_is_there_is_analysed_at_once() -> None:
    world = World({0: files(a=1)})
    assert next(world.rounds()) == (0, files(a=1))


def test_files_that_change_are_analysed_when_they_stand_still() -> None:
    world = World({0: files(a=1), 5: files(a=2), 7: files(a=2, b=1), 8: files(a=2, b=2)})
    assert list(islice(world.rounds(), 2)) == [(0, files(a=1)), (11, files(a=2, b=2))]


def test_files_that_never_stand_still_are_analysed_after_a_while() -> None:
    world = World({t: files(a=t + 1) for t in range(200)})
    times = [now for now, _ in islice(world.rounds(), 4)]
    assert times[0] == 0
    assert all(19 <= later - earlier <= 22 for earlier, later in pairwise(times))


def test_an_analysis_that_takes_long_is_not_begun_again_at_once() -> None:
    world = World({t: files(a=t + 1) for t in range(2000)})
    times = []
    for now, _ in islice(world.rounds(), 3):
        times.append(now)
        world.now += 30
    assert times[1] - times[0] >= 30 + 5 * 30


def test_nothing_is_analysed_twice() -> None:
    world = World({0: files(a=1), 10: files(a=2), 10_000: files(a=3)})
    assert [now for now, _ in islice(world.rounds(), 3)] == [0, 13, 10_003]


def test_all_files_below_are_seen_with_size_and_time(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    file = tmp_path / "deep" / "er" / "x.log"
    file.write_bytes(b"one")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    first = look([tmp_path])
    assert list(first) == [str(file)]
    file.write_bytes(b"other")
    assert look([tmp_path]) != first
    assert look([file, tmp_path / "nothing"]) == look([tmp_path])


def test_what_happened_to_files_is_counted() -> None:
    assert files_changed({}, files(a=1)) == "1 new file"
    assert files_changed(files(a=1, b=1, c=1), files(a=2, b=1, d=1, e=1)) == "2 new, 1 changed, 1 gone files"
    assert files_changed(files(a=1), files(a=1)) == "no file changed"


@pytest.fixture(scope="module")
def reports() -> dict[str, dict[str, object]]:
    return {
        name: api.analyze([INCIDENTS / name / "evidence"], engine=InlineEngine()).report
        for name in ("skipped-collective-8r", "healthy-gloo-4r")
    }


def test_the_same_verdict_has_no_changes(reports: dict[str, dict[str, object]]) -> None:
    assert verdict_changes(reports["skipped-collective-8r"], reports["skipped-collective-8r"]) == ()


def test_a_fault_that_shows_is_told_with_cause_culprit_and_findings(reports: dict[str, dict[str, object]]) -> None:
    told = verdict_changes(reports["healthy-gloo-4r"], reports["skipped-collective-8r"])
    assert "status: nothing-wrong → explained" in told
    assert "cause: none → collective-skipped" in told
    assert any(line.startswith("culprits: none → rank 3") for line in told)
    assert any(line.startswith("+ ") and "collective-skipped" in line for line in told)
    back = verdict_changes(reports["skipped-collective-8r"], reports["healthy-gloo-4r"])
    assert any(line.startswith("- ") and "collective-skipped" in line for line in back)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["-"], "standard input"),
        ([str(HANG), "--json", "-"], "standard output"),
        ([str(HANG), "-o", str(HANG / "out")], "lies inside"),
    ],
)
def test_what_cannot_be_watched_is_refused(words: list[str], says: str) -> None:
    done = run(["analyze", "--watch", *words])
    assert done.exit_code != 0
    assert says in str(done.exception)


def test_logs_that_arrive_change_the_verdict_and_an_interrupt_ends_it(tmp_path: Path) -> None:
    folder, out = tmp_path / "incident", tmp_path / "out"
    folder.mkdir()
    own = {k: v for k, v in os.environ.items() if k != "NCCL_FORENSICS_NO_CACHE"} | {"NCCL_FORENSICS_CACHE_DIR": str(tmp_path / "cache")}
    process = subprocess.Popen(
        [sys.executable, "-m", "nccl_forensics.cli", "analyze", "--watch", str(folder), "--settle", "0.3", "--json", str(out)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=own | {"PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    stop = threading.Timer(120, process.kill)
    stop.start()
    assert process.stdout is not None
    try:
        assert "not yet" in process.stdout.readline()
        files = sorted(f for f in HANG.rglob("*") if f.is_file())
        for file in files:
            target = folder / file.relative_to(HANG)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, target)
        told = []
        for line in process.stdout:
            told.append(line)
            if "EXPLAINED" in line:
                break
        assert "collective-skipped" in told[-1]
        (folder / "later.log").write_bytes(files[0].read_bytes() + b"one more line\n")
        for line in process.stdout:
            told.append(line)
            if "file" in line and "; " in line:
                break
        assert "new file" in told[-1]
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    finally:
        stop.cancel()
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert "Traceback" not in said
    assert out.read_bytes().startswith(b"{")
    assert list((tmp_path / "cache").rglob("*.tables"))
