"""torchrun's log of one host and what Slurm says about the job."""

from __future__ import annotations

import time
from collections.abc import Iterator

from nccl_forensics.simulate.world import SECOND, Process, World

_SIGNALS = {6: "SIGABRT", 7: "SIGBUS", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}
_ELASTIC = "torch/distributed/elastic/"
_BINARY = "/opt/venv/bin/python3"


def _stamp(at: int, level: str, pid: int, place: str) -> str:
    t = time.gmtime(at // SECOND)
    return f"{level}{time.strftime('%m%d %H:%M:%S', t)}.{at % SECOND // 1000:06d} {pid} {place}] "


def text(world: World, host: int) -> Iterator[str]:
    """torchrun's own output on a host."""
    agent = world.agents[host]
    begin = world.begin - 9 * SECOND
    lead = _stamp(begin, "W", agent, "torch/distributed/run.py:774")
    stars = "*" * 41
    yield f"{lead}\n{lead}{stars}\n"
    yield f"{lead}Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid your system being overloaded, please further tune the variable for optimal performance in your application as needed. \n"
    yield f"{lead}{stars}\n"
    if host in world.launcher_died:
        return
    processes = [world.processes[r] for r in world.host_ranks(host) if world.processes[r].started]
    failed = sorted(
        (p for p in processes if p.ending.how == "signal" or p.ending.code), key=lambda p: (p.ending.by != "self", p.ending.at, p.rank)
    )
    if not failed:
        return
    first = failed[0]
    if first.ending.by != "self":
        at = first.ending.at - SECOND
        yield f"{_stamp(at, 'W', agent, f'{_ELASTIC}agent/server/api.py:719')}Received {15} death signal, shutting down workers\n"
    told = [p for p in processes if p.ending.by == "launcher"]
    began = min((p.ending.at for p in told), default=0) - SECOND // 5
    for number, p in enumerate(told):
        lead = _stamp(began + number * 1_400_000, "W", agent, f"{_ELASTIC}multiprocessing/api.py:900")
        yield f"{lead}Sending process {p.pid} closing signal SIGTERM\n"
    if first.ending.by != "self":
        yield from _interrupted(agent)
        return
    at = max(p.ending.at for p in failed) + SECOND // 2
    code = -first.ending.code if first.ending.how == "signal" else first.ending.code
    yield f"{_stamp(at, 'E', agent, f'{_ELASTIC}multiprocessing/api.py:874')}failed (exitcode: {code}) local_rank: {first.local_rank} (pid: {first.pid}) of binary: {_BINARY}\n"
    yield from _table(failed)


def _interrupted(agent: int) -> Iterator[str]:
    yield "Traceback (most recent call last):\n"
    yield from _run_frames()
    yield f'  File "/opt/venv/lib/python3.11/site-packages/{_ELASTIC}multiprocessing/api.py", line 84, in _terminate_process_handler\n'
    yield '    raise SignalException(f"Process {os.getpid()} got signal: {sigval}", sigval=sigval)\n'
    yield f"{_ELASTIC.replace('/', '.')}multiprocessing.api.SignalException: Process {agent} got signal: 15\n"


def _run_frames() -> Iterator[str]:
    base = "/opt/venv/lib/python3.11/site-packages/torch/distributed/"
    yield '  File "/opt/venv/bin/torchrun", line 8, in <module>\n    sys.exit(main())\n             ^^^^^^\n'
    yield f'  File "{base}elastic/multiprocessing/errors/__init__.py", line 357, in wrapper\n    return f(*args, **kwargs)\n           ^^^^^^^^^^^^^^^^^^\n'
    yield f'  File "{base}run.py", line 901, in main\n    run(args)\n'
    yield f'  File "{base}run.py", line 892, in run\n    elastic_launch(\n'
    yield f'  File "{base}launcher/api.py", line 143, in __call__\n    return launch_agent(self._config, self._entrypoint, list(args))\n           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n'


def _table(failed: list[Process]) -> Iterator[str]:
    yield "Traceback (most recent call last):\n"
    yield from _run_frames()
    yield '  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/launcher/api.py", line 277, in launch_agent\n    raise ChildFailedError(\n'
    yield "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
    yield "=" * 60 + "\n/opt/job/pretrain.py FAILED\n" + "-" * 60 + "\nFailures:\n"
    if len(failed) == 1:
        yield "  <NO_OTHER_FAILURES>\n"
    for number, p in enumerate(failed[1:], 1):
        yield from _failure(number, p)
    yield "-" * 60 + "\nRoot Cause (first observed failure):\n"
    yield from _failure(0, failed[0])
    yield "=" * 60 + "\n"


def _failure(number: int, p: Process) -> Iterator[str]:
    when = time.strftime("%Y-%m-%d_%H:%M:%S", time.gmtime(p.ending.at // SECOND + 1))
    yield f"[{number}]:\n  time      : {when}\n  host      : {p.host.name}\n  rank      : {p.rank} (local_rank: {p.local_rank})\n"
    if p.ending.how == "signal":
        name = _SIGNALS.get(p.ending.code, str(p.ending.code))
        yield f"  exitcode  : {-p.ending.code} (pid: {p.pid})\n  error_file: <N/A>\n"
        yield f"  traceback : Signal {p.ending.code} ({name}) received by PID {p.pid}\n"
    else:
        yield f"  exitcode  : {p.ending.code} (pid: {p.pid})\n  error_file: <N/A>\n"
        yield "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html\n"


def slurm(world: World) -> Iterator[str]:
    """The job's output file: what srun and slurmstepd say."""
    for met in world.scheduler:
        f = met.facts
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(met.at // SECOND))
        if met.kind == "cancelled":
            first = world.hosts[0].name
            yield f"slurmstepd: error: *** STEP {world.job}.0 ON {first} CANCELLED AT {when}{f['why']} ***\n"
            yield f"slurmstepd: error: *** JOB {world.job} ON {first} CANCELLED AT {when}{f['why']} ***\n"
        elif met.kind == "node":
            yield f"srun: error: Node failure on {f['host']}\n"
            yield f"slurmstepd: error: *** STEP {world.job}.0 ON {world.hosts[0].name} CANCELLED AT {when} DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***\n"
        elif met.kind == "oom":
            yield f"slurmstepd-{f['host']}: error: Detected 1 oom_kill event in StepId={world.job}.0. Some of the step tasks have been OOM Killed.\n"
            yield f"srun: error: {f['host']}: task {f['task']}: Out Of Memory\n"
        elif met.kind == "exit":
            yield f"srun: error: {f['host']}: task {f['task']}: Exited with exit code {f['code']}\n"
            if f.get("first"):
                yield f"srun: Terminating StepId={world.job}.0\n"
        elif met.kind == "waiting":
            yield "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n"
