"""What every job of the lab shares: the plan, the process group, dumps on request, and where the chosen fault acts.

A job reads its plan from the file named in ``LAB_PLAN``; this is the only thing it knows about the lab.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import torch

# The first dump imports it (823 modules with torch 2.13): done here, a rank that hangs is not found importing.
import torch._dynamo
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.distributed.elastic.multiprocessing.errors import record

from .plan import Plan


class Job:
    """One rank of a job."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.rank = int(os.environ["RANK"])
        self.world = int(os.environ["WORLD_SIZE"])
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        self.device = torch.device("cpu")
        if plan.device == "cuda":
            self.device = torch.device("cuda", self.local_rank % torch.cuda.device_count())

    def hit(self, fault: str, step: int, site: str = "") -> bool:
        """The fault acts here: this rank, this step, this place."""
        plan = self.plan
        here = plan.fault == fault and self.rank in plan.ranks and step == plan.step and site in ("", plan.site)
        return here and not ("first-attempt-only" in plan.options and self.attempt > 0)

    def late(self, fault: str, step: int) -> bool:
        """A slowness that stays: from the chosen step on."""
        return self.plan.fault == fault and self.rank in self.plan.ranks and step >= self.plan.step

    def option(self, name: str) -> bool:
        """A variant of the job that the plan asks for."""
        return name in self.plan.options

    def say(self, step: int, text: str = "") -> None:
        """One line per step, as training scripts print."""
        print(f"step {step} rank {self.rank}{' ' + text if text else ''}", flush=True)

    def group(self, ranks: list[int], name: str) -> dist.ProcessGroup:
        """A sub-group. It does not inherit the timeout of the default group, which is what most jobs overlook."""
        limit = self.plan.timeout_s if self.option("group-timeout") else None
        made = dist.new_group(ranks, timeout=timedelta(seconds=limit) if limit else None, group_desc=name)
        assert isinstance(made, dist.ProcessGroup) or self.rank not in ranks
        return made


def dump(plan: Plan, rank: int) -> None:
    """Write this process' Flight Recorder, as pickle and as JSON."""
    cuda = plan.device == "cuda"
    pickled = c10d._dump_nccl_trace() if cuda else c10d._dump_fr_trace()
    text = c10d._dump_nccl_trace_json() if cuda else c10d._dump_fr_trace_json()
    for place, suffix, data in (("fr_pickle", "", pickled), ("fr_json", ".json", text)):
        folder = Path(plan.places[place])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"fr_trace_rank_{rank}{suffix}").write_bytes(data.encode() if isinstance(data, str) else data)


def _watch_trigger(plan: Plan, rank: int) -> None:
    """Dump whenever the trigger file is touched: gloo has no watchdog that would."""
    trigger, seen = Path(plan.places["trigger"]), 0.0
    while True:
        time.sleep(0.3)
        with contextlib.suppress(OSError):
            stamp = trigger.stat().st_mtime
            if stamp != seen:
                seen = stamp
                dump(plan, rank)


def _dump_when_terminated(plan: Plan, rank: int) -> None:
    """Dump on SIGTERM, then end by it: a thread does so, because Python's own handlers wait for the main thread, which hangs.

    This is what leaves dumps of the survivors when a rank aborts and the launcher ends the others at once.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.set_wakeup_fd(writer)

    def wait() -> None:
        while os.read(reader, 1) != bytes([signal.SIGTERM]):
            pass
        dump(plan, rank)
        # signal.signal works in the main thread only.
        ctypes.CDLL(None).signal(int(signal.SIGTERM), 0)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="dump-on-sigterm", daemon=True).start()


@contextlib.contextmanager
def _profiler(job: Job) -> Iterator[Callable[[], None]]:
    """A trace of steps 1 to 3 where the plan asks for one; yields what marks the end of a step."""
    if not job.plan.trace:
        yield lambda: None
        return
    profiler = torch.profiler
    kinds = [profiler.ProfilerActivity.CPU] + ([profiler.ProfilerActivity.CUDA] if job.plan.device == "cuda" else [])
    folder = Path(job.plan.places["traces"])
    folder.mkdir(parents=True, exist_ok=True)

    def write(made: torch.profiler.profile) -> None:
        made.export_chrome_trace(str(folder / f"rank{job.rank}.json.gz"))

    with profiler.profile(activities=kinds, schedule=profiler.schedule(wait=1, warmup=1, active=3, repeat=1), on_trace_ready=write) as p:
        yield p.step


def run(main: Callable[[Job, Callable[[], None]], None]) -> None:
    """Run the training function on this rank, with torchrun's error files where the plan asks for them."""
    plan = Plan.read()
    if "error-files" in plan.options:
        record(_run)(plan, main)
    else:
        _run(plan, main)


def _run(plan: Plan, main: Callable[[Job, Callable[[], None]], None]) -> None:
    """Set up the rank, train, and dump the Flight Recorder at the end and on an error."""
    job = Job(plan)
    torch.set_num_threads(1)
    torch.manual_seed(1234 + job.rank)
    stacks = Path(plan.places["faulthandler"])
    stacks.mkdir(parents=True, exist_ok=True)
    faulthandler.register(signal.SIGUSR1, file=open(stacks / f"rank{job.rank}.txt", "w"), all_threads=True)  # noqa: SIM115 (open as long as the process lives)
    if plan.device == "cuda":
        # NCCL's watchdog writes its dump here by itself.
        Path(plan.places["fr_pickle"]).mkdir(parents=True, exist_ok=True)
        torch.cuda.set_device(job.device)
        # Several ranks on one GPU: NCCL refuses that within a host, so each process claims a host of its own and talks over sockets.
        os.environ.setdefault("NCCL_HOSTID", f"lab-{job.rank}")
    print(f"rank {job.rank} of {job.world} on {job.device}: {plan.steps} steps", flush=True)
    if job.option("late-init") and job.rank in plan.ranks:
        wait_for_storage(job)
    dist.init_process_group(
        "nccl" if plan.device == "cuda" else "gloo",
        timeout=timedelta(seconds=plan.timeout_s) if plan.timeout_s else None,
    )
    threading.Thread(target=_watch_trigger, args=(plan, job.rank), name="fr-dumper", daemon=True).start()
    if plan.dump_on_terminate:
        _dump_when_terminated(plan, job.rank)
    try:
        with _profiler(job) as end_step:
            main(job, end_step)
    except BaseException:
        if plan.dump_on_error:
            dump(plan, job.rank)
        raise
    dump(plan, job.rank)
    dist.destroy_process_group()


def wait_for_storage(job: Job) -> None:
    """Read from a file that never gets its bytes, as from a storage server that does not answer."""
    reader, _writer = os.pipe()
    os.read(reader, 1)


def leave(job: Job, step: int) -> None:
    """The ways in which a process ends by itself."""
    if job.hit("killed-rank", step):
        os.kill(os.getpid(), signal.SIGKILL)
    if job.hit("segfault", step):
        faulthandler.enable()
        faulthandler._sigsegv()  # type: ignore[attr-defined]  # CPython's own, for its tests
    if job.hit("abort", step):
        os.abort()
    if job.hit("early-exit", step):
        if job.plan.site == "hard":
            os._exit(7)
        sys.exit(0 if job.plan.site == "quiet" else 3)
    if job.hit("exception", step):
        raise ValueError(f"bad sample in shard {17 + job.rank}")
    if job.hit("stopped-process", step):
        os.kill(os.getpid(), signal.SIGSTOP)
