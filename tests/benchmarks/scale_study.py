"""What each stage costs as the job grows: simulated hangs of 1k, 4k, 16k and more ranks, taken through the whole pass in one process each.

``python -m tests.benchmarks.scale_study --ranks 1024,4096,16384 --write docs`` makes the evidence (kept in ``--work`` and used again), measures
time, CPU, memory and output of each stage, prints the table with the growth exponents between sizes, and with ``--write`` puts table and plot
into ``docs/scale.md`` and ``docs/scale.svg``. The volumes: 32 Flight Recorder entries per rank, NCCL logs, standard error and launcher logs of
64 ranks, as a ``.tar.gz``; a dump's ``pg_config`` lists the members of every group of its rank, the whole job among them, as PyTorch writes it,
so that the bytes of the dumps together grow with the square of the ranks.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import resource
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.corpus import ROOT

ENTRIES, LOGS, STEPS = 32, 64, 6
STAGES = ("expand", "read", "views", "rules", "report")
#: Files that are kept of so many ranks or hosts only, by how their paths begin.
_FEW = ("logs/nccl.", "logs/")


class Packed:
    """Stands in for the simulator's folder: files go into an archive as they are made, logs of the first ranks only."""

    def __init__(self, archive: tarfile.TarFile, keep: frozenset[str]) -> None:
        self.archive, self.keep = archive, keep
        self.written = self.bytes = 0

    def put(self, path: str, content: bytes | str | Iterable[str]) -> None:
        """Add a file."""
        if path.startswith("logs/") and not any(mark in path for mark in self.keep):
            return
        data = content if isinstance(content, bytes) else (content if isinstance(content, str) else "".join(content)).encode()
        told = tarfile.TarInfo(path)
        told.size = len(data)
        self.archive.addfile(told, io.BytesIO(data))
        self.written += 1
        self.bytes += len(data)


def make(ranks: int, file: Path) -> dict[str, int]:
    """Write the evidence of a job of so many ranks; its volumes."""
    from nccl_forensics.simulate import SCENARIOS
    from nccl_forensics.simulate.case import new_case
    from nccl_forensics.simulate.layout import Layout
    from nccl_forensics.simulate.noise import mix
    from nccl_forensics.simulate.output import write_evidence

    seed = mix(1, "scale study") >> 1
    layout = Layout(ranks // 32, tp=8, pp=4, words="megatron")
    case = new_case(ranks, seed, "dump", platform="h200", layout=layout, release="2.30.7", rank=ranks // 3)
    case.first_step, case.steps, case.ring_size, case.step_asked = 0, STEPS, ENTRIES, STEPS - 2
    SCENARIOS["collective-skipped"].apply(case)
    world = case.build()
    hosts = {world.processes[r].host.name for r in range(LOGS)}
    partial = file.with_suffix(".partial")
    with tarfile.open(partial, "w:gz", compresslevel=1) as archive:
        folder = Packed(archive, frozenset(f"{mark}{host}{end}" for host in hosts for mark, end in (("nccl.", "."), ("/", "/"))))
        write_evidence(case, world, folder, full=True)  # type: ignore[arg-type]  # it needs put() only
    partial.replace(file)
    return {"files": folder.written, "bytes": folder.bytes, "packed_bytes": file.stat().st_size}


class _Peak(threading.Thread):
    """Watches how much memory this process and its children hold together, in bytes."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most, self._over = 0, threading.Event()

    def run(self) -> None:
        while not self._over.wait(0.2):
            self.most = max(self.most, sum(_anonymous(pid) for pid in (os.getpid(), *_children(os.getpid()))))

    def end(self) -> int:
        self._over.set()
        self.join()
        return self.most


def _children(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            found = [int(word) for word in (task / "children").read_text().split()]
        except OSError:
            continue
        for child in found:
            yield child
            yield from _children(child)


def _anonymous(pid: int) -> int:
    """Memory of its own: pages of files that are mapped can be dropped at any time and do not count."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith(("RssAnon:", "RssShmem:")))


def _cpu() -> float:
    own, others = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime


def measure(file: Path, workers: int) -> dict[str, object]:
    """Take evidence through the pass, stage by stage; what each cost."""
    from nccl_forensics import api
    from nccl_forensics.bundle import open_bundle
    from nccl_forensics.engine import LocalEngine, read_bundle
    from nccl_forensics.runs import find_runs
    from nccl_forensics.views import Resolver, all_views

    stages: dict[str, dict[str, float]] = {}

    @contextmanager
    def stage(name: str) -> Iterator[None]:
        watch = _Peak()
        watch.start()
        wall, cpu = time.monotonic(), _cpu()
        yield
        stages[name] = {"seconds": time.monotonic() - wall, "cpu": _cpu() - cpu, "peak_bytes": watch.end(), "out_bytes": 0}

    with tempfile.TemporaryDirectory(prefix="scale-", dir=file.parent) as scratch:
        with stage("expand"):
            bundle = open_bundle([file], scratch=Path(scratch))
        stages["expand"]["out_bytes"] = sum(m.bytes for m in bundle.members)
        with stage("read"):
            store = read_bundle(bundle, LocalEngine(workers=workers))
        rows = {name: int(store.scan(name).select(api.pl.len()).collect().item()) for name in sorted(store.present)}
        stages["read"]["out_bytes"] = sum(_held(store, name) for name in store.present)
        with stage("views"):
            [run] = find_runs(store)
            resolver = Resolver(store, bundle.scratch)
            for name in all_views():
                resolver.get(name)
        with stage("rules"):
            result = api._run(store, run, bundle.scratch, None, "", None, resolver)
        with stage("report"):
            report = api.assemble([file.name], "scale", store, [result], result, bundle.quote)
            report["traits"] = api.traits(result, store)
            incident = api.Incident(report, api.gather(report, result, store, bundle.quote), store)
            sizes = {"html": len(incident.html().encode()), "markdown": len(incident.markdown().encode()), "json": len(incident.json())}
        stages["report"]["out_bytes"] = sum(sizes.values())
        verdict = incident.verdict
        bundle.close()
    return {
        "stages": stages,
        "rows": rows,
        "report": sizes,
        "verdict": {"cause": verdict["cause"], "ranks": [c["rank"] for c in verdict["culprits"]]},  # type: ignore[attr-defined]
    }


def _held(store: object, name: str) -> int:
    from nccl_forensics.store import Store

    assert isinstance(store, Store)
    held = store._tables.get(name)
    if held is None:
        return 0
    return sum(f.stat().st_size for f in held) if isinstance(held, tuple) else int(held.lazy().collect().estimated_size())


def exponent(small: float, large: float, factor: float) -> float | None:
    """k where a cost grew with the k-th power of the ranks; None where it was too small to tell."""
    return math.log(large / small) / math.log(factor) if min(small, large) > 0.05 else None


def main() -> int:
    """Make, measure and show."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", default="1024,4096,16384")
    parser.add_argument("--work", type=Path, default=ROOT / "out" / "scale")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--write", type=Path, metavar="DOCS")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one is not None:
        print(json.dumps(measure(asked.one, asked.workers)))
        return 0
    asked.work.mkdir(parents=True, exist_ok=True)
    study: dict[int, dict[str, object]] = {}
    for ranks in (int(word) for word in asked.ranks.split(",")):
        file, volumes = asked.work / f"{ranks}.tar.gz", asked.work / f"{ranks}.json"
        if not volumes.exists():
            volumes.write_text(json.dumps(make(ranks, file)))
        done = subprocess.run(
            [sys.executable, "-m", "tests.benchmarks.scale_study", "--one", str(file), "--workers", str(asked.workers)],
            stdout=subprocess.PIPE,
            check=True,
            cwd=ROOT,
        )
        study[ranks] = {"volumes": json.loads(volumes.read_text())} | json.loads(done.stdout)
        print(ranks, json.dumps(study[ranks]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
