"""Writing an incident: files one after another, each rank's on its own, so that memory does not grow with the world."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterable
from pathlib import Path

from nccl_forensics.simulate.case import Case
from nccl_forensics.simulate.clusters import Host
from nccl_forensics.simulate.noise import mix, share
from nccl_forensics.simulate.world import Process, World
from nccl_forensics.simulate.writers import bandwidth, launcher, nccl, rccl, recorder, stacks, torch_log
from nccl_forensics.simulate.writers import host as host_tools
from nccl_forensics.simulate.writers.nccl_lines import Options

#: Hosts up to this number are all asked for the state of their devices: one command on every host, small files. Of more it is one in
#: sixteen.
ALL_HOSTS_UP_TO = 256


class Folder:
    """Where files go. ``lost``: share of files that are missing; ``torn``: share that is cut off somewhere."""

    def __init__(self, root: Path, seed: int, lost: float = 0.0, torn: float = 0.0) -> None:
        self.root, self.seed, self.lost, self.torn = root, seed, lost, torn
        self.written = 0

    def put(self, path: str, content: bytes | str | Iterable[str]) -> None:
        """Write a file; text may come in pieces."""
        if self.lost and share(self.seed, "lost", path) < self.lost:
            return
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        torn = self.torn and share(self.seed, "torn", path) < self.torn
        with target.open("wb") as file:
            if isinstance(content, bytes):
                file.write(content)
            elif isinstance(content, str):
                file.write(content.encode())
            else:
                for piece in content:
                    file.write(piece.encode())
            size = file.tell()
            if torn and size > 64:
                file.truncate(64 + mix(self.seed, "cut", path) % (size - 64))
        self.written += 1


def detailed(world: World, rank: int, full: bool) -> bool:
    """Whether a rank's text logs are kept: all, or those of one host in sixteen and of every rank that has something to tell or ended by
    itself: whoever gathers evidence looks there."""
    process = world.processes[rank]
    if full:
        return True
    told = any((m.kind.startswith("nccl.") and m.kind != "nccl.gone") or m.kind in ("torch.exception", "torch.cuda") for m in process.met)
    return process.host.index % 16 == 0 or told or _struck(process)


def debug_log(world: World, rank: int, options: Options) -> Iterable[str]:
    """The log of a rank's communication library."""
    write = rccl.log if world.platform.library == "rccl" else nccl.log
    return write(world, rank, options)


def write_evidence(case: Case, world: World, folder: Folder, full: bool, thin: bool = False) -> None:
    """All files of an incident; ``full`` and ``thin`` as in ``detailed``, ``thin`` for dumps and stacks as well."""
    kept = case.gathered
    for rank in range(world.layout.world):
        process = world.processes[rank]
        if not process.started:
            continue
        host = process.host.name
        close = detailed(world, rank, full)
        if kept.nccl and close:
            options = Options(operations=kept.nccl == "operations")
            folder.put(f"logs/nccl.{host}.{process.pid}.log", debug_log(world, rank, options))
        if kept.torch and close:
            folder.put(f"logs/{host}/attempt_0/{process.local_rank}/stderr.log", torch_log.text(world, rank))
        if thin and not close:
            continue
        running = process.ending.how == "running"
        dumped = process.dumped_at if not running else world.now
        if kept.recorder == "pickle" and dumped is not None:
            folder.put(f"recorder/nccl_trace_rank_{rank}", recorder.as_pickle(world, rank, dumped))
        elif kept.recorder == "json" and dumped is not None:
            folder.put(f"recorder/nccl_trace_rank_{rank}.json", recorder.as_json(world, rank, dumped))
        if kept.stacks and running:
            for sample in (1, 2):
                folder.put(f"stacks_{sample}/rank{rank}.pyspy.txt", stacks.text(world, rank, sample))
    for machine in world.hosts:
        ranks = world.host_ranks(machine.index)
        if kept.launcher and any(world.processes[r].started for r in ranks) and (full or any(detailed(world, r, full) for r in ranks)):
            folder.put(f"logs/{machine.name}/torchrun.log", launcher.text(world, machine.index))
        if machine.alive and (
            full
            or len(world.hosts) <= ALL_HOSTS_UP_TO
            or machine.index % 16 == 0
            or any(e[0] > world.begin for e in machine.events)
            or _odd(world, machine.index)
        ):
            _host_files(case, world, machine, folder)
    if world.bandwidth_test is not None:
        folder.put("health/all_reduce_perf.log", bandwidth.all_reduce(world, world.bandwidth_test))
    if kept.scheduler:
        folder.put(f"slurm-{world.job}.out", launcher.slurm(world))


def _odd(world: World, host: int) -> bool:
    """Whether a rank of this host ended by itself: whoever gathers evidence looks there."""
    endings = (world.processes[r].ending for r in world.host_ranks(host))
    return any(e.by == "self" and e.how != "running" for e in endings)


def _struck(process: Process) -> bool:
    """Whether it was killed, crashed or left with an error, other than by the abort of a watchdog, with which all ranks end alike."""
    ending = process.ending
    return ending.by == "self" and (
        (ending.how == "signal" and ending.code != signal.SIGABRT) or (ending.how == "exit" and ending.code != 0)
    )


def _host_files(case: Case, world: World, machine: Host, folder: Folder) -> None:
    kept, base = case.gathered, f"hosts/{machine.name}"
    if kept.kernel:
        folder.put(f"{base}/dmesg.txt", host_tools.kernel(world, machine))
    if kept.gpus and machine.platform.vendor == "nvidia":
        folder.put(f"{base}/nvidia-smi-q.txt", host_tools.nvidia_smi(world, machine))
        if machine.platform.nvlinks:
            folder.put(f"{base}/nvidia-smi-nvlink-s.txt", host_tools.nvlink(machine))
            if machine.platform.architecture != "Blackwell":
                folder.put(f"{base}/nvidia-smi-nvlink-e.txt", host_tools.nvlink_errors(machine))
    if kept.fabric and machine.platform.network in ("ib", "roce"):
        folder.put(f"{base}/ibstat.txt", host_tools.ibstat(machine))
        for when in ("before", "after"):
            folder.put(f"{base}/ib-counters-{when}.txt", host_tools.counters(machine, machine.nics, when))
    if kept.network:
        folder.put(f"{base}/ip-addr.txt", host_tools.addresses(world, machine))
        folder.put(f"{base}/ulimit-a.txt", host_tools.limits(machine))
        folder.put(f"{base}/df-shm.txt", host_tools.shared_memory(machine))


def write_truth(case: Case, world: World, scenario: str, path: Path) -> None:
    """truth.json, laid out as in the corpus of real incidents."""
    truth = case.truth
    data = {
        "also": [{"scenario": name, "cause_accepted": list(t.causes), "what_was_done": t.what} for name, t in case.also],
        "backend": f"nccl {case.release}, simulated",
        "cause_accepted": list(truth.causes),
        "culprit_ranks_accepted": None if truth.culprits is None else [list(x) for x in truth.culprits],
        "culprit_hosts": list(truth.hosts),
        "first_divergence": truth.divergence,
        "how_made": "nccl-forensics simulate: a model of the job, its machines and its watchdogs; no real process ran",
        "scenario": scenario,
        "seed": case.seed,
        "variant": case.variant,
        "platform": case.platform.name,
        "layout": {"dp": case.layout.dp, "tp": case.layout.tp, "pp": case.layout.pp, "cp": case.layout.cp, "ep": case.layout.ep},
        "torch_version": world.torch.version,
        "what_was_done": truth.what,
        "world_size": case.world_size,
    }
    path.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n", encoding="utf-8")
