"""Run one job of the lab under torchrun, notice that it hangs, gather the evidence, and end it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from nccl_forensics.lab.gather import (
    Worker,
    ask_for_dumps,
    ask_for_faulthandler,
    cpu_seconds,
    list_processes,
    py_spy,
    take_stacks,
    workers_of,
)
from nccl_forensics.lab.jobs.plan import Plan

JOBS = Path(__file__).parent / "jobs"
#: Seconds of CPU time: a process that used as much since it was last seen to is at work. One that waits for the others uses some
#: milliseconds in a minute.
AT_WORK_S = 0.2


@dataclass(frozen=True)
class Setting:
    """How a job is run, beside the plan that its ranks follow."""

    world: int
    python: Path
    #: Where the job's code, its logs and its interpreter's paths lie while it runs; a temporary folder if None.
    scratch: Path | None = None
    #: ``TORCH_DISTRIBUTED_DEBUG``.
    debug: str = "OFF"
    restarts: int = 0
    #: Seconds without a line from any rank after which the job counts as hung.
    quiet_s: float = 5.0
    #: Stacks are sampled while the job runs, as for a job that is slow and not hung.
    sample_running: bool = False
    #: End the job from outside after this many seconds though it advances; None leaves it alone.
    stop_after_s: float | None = None
    #: The longest that a run may take.
    limit_s: float = 240.0


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    evidence: Path
    hung: bool
    stopped: bool
    exit_code: int
    seconds: float
    stacks_of: tuple[int, ...]


def run(plan: Plan, setting: Setting, evidence: Path, say: Callable[[str], None]) -> Outcome:
    """Run the job and leave what was gathered in ``evidence``."""
    with tempfile.TemporaryDirectory(prefix="job-", dir=setting.scratch) as folder:
        return _Run(plan, setting, evidence, Path(folder), say).go()


class _Run:
    """One run: the launcher's process, and what was seen of it so far."""

    def __init__(self, plan: Plan, setting: Setting, evidence: Path, folder: Path, say: Callable[[str], None]) -> None:
        self.setting, self.evidence, self.folder, self.say = setting, evidence, folder, say
        places = {name: str(evidence / name) for name in ("fr_pickle", "fr_json", "faulthandler", "traces")}
        self.plan = replace(plan, places={**places, "trigger": str(folder / "dump-now")})
        self.workers: dict[int, Worker] = {}
        self.samples = 0
        self.stacks_of: set[int] = set()
        self.tool = py_spy(setting.python)
        self.begin = time.monotonic()

    def go(self) -> Outcome:
        """Start, watch, gather, end, tidy."""
        self.evidence.mkdir(parents=True, exist_ok=True)
        (self.evidence / "logs").mkdir(exist_ok=True)
        shutil.copytree(JOBS, self.folder / "job", ignore=shutil.ignore_patterns("__pycache__"))
        (self.folder / "plan.json").write_text(json.dumps(asdict(self.plan)))
        with (self.evidence / "logs" / "torchrun.log").open("wb") as log:
            launcher = subprocess.Popen(
                self._command(), cwd=self.folder, env=self._environment(), stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                hung, stopped = self._watch(launcher)
            finally:
                self._end(launcher)
        for attempt in sorted((self.folder / "logs").glob("*/attempt_*")):
            shutil.copytree(attempt, self.evidence / "logs" / attempt.name, dirs_exist_ok=True)
        for file in self.folder.glob("nccl.*.log"):
            shutil.copy(file, self.evidence / "logs" / file.name)
        for file in (self.evidence / "faulthandler").glob("*.txt"):
            if not file.stat().st_size:
                file.unlink()
        for place in self.evidence.iterdir():
            if place.is_dir() and not any(place.iterdir()):
                place.rmdir()
        return Outcome(self.evidence, hung, stopped, launcher.returncode, time.monotonic() - self.begin, tuple(sorted(self.stacks_of)))

    def _command(self) -> list[str]:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        options = [
            "-m", "torch.distributed.run", f"--nproc-per-node={self.setting.world}", "--master-addr=127.0.0.1",
            f"--master-port={port}", "--log-dir=logs", "--redirects=3", f"--max-restarts={self.setting.restarts}",
        ]  # fmt: skip
        return [str(self.setting.python), *options, "-m", f"job.{self.plan.job}"]

    def _environment(self) -> dict[str, str]:
        """What a user would set; on a GPU also NCCL's logs of all subsystems and the recorder's dump on a timeout."""
        ours = {
            "LAB_PLAN": str(self.folder / "plan.json"),
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "TORCH_DISTRIBUTED_DEBUG": self.setting.debug,
            "GLOO_SOCKET_IFNAME": "lo",
        }
        if self.plan.device == "cuda":
            ours |= {
                "NCCL_DEBUG": "INFO",
                "NCCL_DEBUG_SUBSYS": "ALL",
                "NCCL_DEBUG_FILE": str(self.folder / "nccl.%h.%p.log"),
                "NCCL_SOCKET_IFNAME": "lo",
                "NCCL_IB_DISABLE": "1",
                "TORCH_FR_BUFFER_SIZE": "2000",
                "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
                "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
                "TORCH_FR_DUMP_TEMP_FILE": str(self.evidence / "fr_pickle" / "fr_trace_rank_"),
                "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(self.evidence / "fr_pickle" / "fr_trace_rank_"),
            }
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("TORCH", "NCCL_", "GLOO_", "PYTHON"))}
        return {**kept, **ours}

    def _watch(self, launcher: subprocess.Popen[bytes]) -> tuple[bool, bool]:
        """Whether the job hung, and whether it was ended from outside."""
        last_size, last_change, started, busy_s = -1, time.monotonic(), None, 0.0
        # A job that is to end well may be slow for other reasons, such as a busy machine.
        quiet_s = self.setting.quiet_s * (8 if self.setting.sample_running else 1)
        while launcher.poll() is None:
            time.sleep(0.3)
            now = time.monotonic()
            for worker in workers_of(launcher.pid):
                self.workers[worker.rank] = worker
            printed = [f.read_bytes() for f in self.folder.glob("logs/*/attempt_*/*/stdout.log")]
            size = sum(map(len, printed))
            if size != last_size:
                last_size, last_change = size, now
            if started is None and any(b"step 0" in text for text in printed):
                started = now
            # Before the first step the launcher and then the ranks import PyTorch and meet, which takes long on a busy machine.
            used_s = cpu_seconds([launcher.pid, *(w.pid for w in self.workers.values())])
            if started is None and used_s > busy_s + AT_WORK_S:
                busy_s, last_change = used_s, now
            if started and self.setting.sample_running and self.samples < 3 and now - started > 2.0 * (self.samples + 1):
                self._stacks()
                self.samples += 1
                last_change = time.monotonic()
            if self.setting.stop_after_s and started and now - started > self.setting.stop_after_s:
                self._gather()
                return False, True
            if b"closing signal" in (self.evidence / "logs" / "torchrun.log").read_bytes() and now - last_change < 60:
                continue  # the launcher is ending the job itself
            if now - last_change > quiet_s * (1 if started else 4 if size else 12):
                self.say(f"no rank has printed a line for {now - last_change:.0f} s: gathering evidence")
                self._gather()
                return True, self._wait_for_timeout(launcher)
            if now - self.begin > self.setting.limit_s:
                self._gather()
                return False, True
        return False, False

    def _wait_for_timeout(self, launcher: subprocess.Popen[bytes]) -> bool:
        """Where the job has a timeout of its own, let it end the job; True if it was ended from outside instead."""
        if self.plan.timeout_s is None:
            return True
        end = time.monotonic() + self.plan.timeout_s + 15
        while time.monotonic() < end:
            if launcher.poll() is not None:
                return False
            time.sleep(0.3)
        return True

    def _gather(self) -> None:
        """Dumps first: reading stacks stops the processes for a moment."""
        alive = list(self.workers.values())
        list_processes(alive, self.evidence / "ps.txt")
        ask_for_dumps(Path(self.plan.places["trigger"]), Path(self.plan.places["fr_pickle"]), len(alive))
        self._stacks()
        ask_for_faulthandler(alive)
        time.sleep(1.5)
        self.samples = max(self.samples, 1)
        # The wait for a request (``work.wait()``) leaves no frame of Python. Not at once: reading the symbols takes a busy machine many
        # seconds.
        self._stacks(native=True)
        self.samples += 1

    def _stacks(self, *, native: bool = False) -> None:
        """One sample of all ranks: ``stacks``, then ``stacks_1``, ``stacks_2``."""
        if self.tool is None:
            return
        folder = self.evidence / ("stacks" if not self.samples else f"stacks_{self.samples}")
        alive = [w for w in self.workers.values() if Path(f"/proc/{w.pid}").exists()]
        take_stacks(self.tool, alive, folder, as_json=not self.samples, native=native)
        self.stacks_of |= {int(f.name.split(".")[0].removeprefix("rank")) for f in folder.glob("rank*.txt")}

    def _end(self, launcher: subprocess.Popen[bytes]) -> None:
        """SIGTERM to the launcher, which ends its ranks; after a while everything that it started."""
        if launcher.poll() is None:
            launcher.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                launcher.wait(12)
        for worker in self.workers.values():
            # A pid may have been given to another process meanwhile: only what still carries this run's plan is ended.
            with contextlib.suppress(OSError):
                if str(self.folder).encode() in Path(f"/proc/{worker.pid}/environ").read_bytes():
                    os.kill(worker.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            launcher.wait(30)
        if launcher.poll() is None:
            launcher.kill()
            launcher.wait()
