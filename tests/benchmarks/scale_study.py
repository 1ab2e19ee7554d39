"""What each stage costs as the job grows: simulated hangs of 1k, 4k, 16k and more ranks, taken through the whole pass in one process each.

``python -m tests.benchmarks.scale_study --ranks 1024,4096,16384 --write docs`` makes the evidence (kept in ``--work`` and used again),
measures time, CPU, memory and output of each stage, prints the table with the growth exponents between sizes, and with ``--write`` puts
table and plot into ``docs/scale.md`` (between its marks) and ``docs/scale.svg``. The volumes: 32 Flight Recorder entries per rank, NCCL
logs, standard error and launcher logs of 64 ranks, as a ``.tar.gz``. A dump's ``pg_config`` lists the members of every group of its rank,
the whole job among them, as PyTorch writes it, so that the bytes of all dumps together grow with the square of the ranks; ``16384s`` leaves
away lists of more than 4,096 ranks ("short"), which shows what a rank costs by itself.
"""

from __future__ import annotations

import argparse
import gc
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
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import polars as pl

from nccl_forensics.folding import ROWS, WORDS
from nccl_forensics.store import Store
from tests.benchmarks.memory import children
from tests.corpus import ROOT

try:  # a third of the time
    from isal import igzip
except ImportError:
    import gzip as igzip

ENTRIES, LOGS, STEPS = 32, 64, 6
STAGES = ("expand", "read", "views", "rules", "report")


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


def make(ranks: int, short: bool, file: Path) -> dict[str, int]:
    """Write the evidence of a job of so many ranks; its volumes."""
    from nccl_forensics.simulate import SCENARIOS
    from nccl_forensics.simulate.case import new_case
    from nccl_forensics.simulate.layout import Layout
    from nccl_forensics.simulate.noise import mix
    from nccl_forensics.simulate.output import write_evidence
    from nccl_forensics.simulate.writers import recorder

    seed = mix(1, "scale study") >> 1
    layout = Layout(ranks // 32, tp=8, pp=4, words="megatron")
    case = new_case(ranks, seed, "dump", platform="h200", layout=layout, release="2.30.7", rank=ranks // 3)
    case.first_step, case.steps, case.ring_size, case.step_asked = 0, STEPS, ENTRIES, STEPS - 2
    SCENARIOS["collective-skipped"].apply(case)
    world = case.build()
    if short:
        recorder._members = lambda members: str(list(members)) if len(members) <= 4096 else "[]"  # type: ignore[assignment]
    hosts = {world.processes[r].host.name for r in range(LOGS)}
    partial = file.with_suffix(".partial")
    with igzip.open(partial, "wb", compresslevel=1) as packed, tarfile.open(fileobj=packed, mode="w|") as archive:
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
            self.most = max(self.most, sum(_anonymous(pid) for pid in (os.getpid(), *children(os.getpid()))))

    def end(self) -> int:
        self._over.set()
        self.join()
        return self.most


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
    from nccl_forensics import analysis, api, cli
    from nccl_forensics.conclusions.runs import find_runs
    from nccl_forensics.pictures import gather
    from nccl_forensics.reading.bundle import open_bundle
    from nccl_forensics.reading.engine import LocalEngine, read_bundle
    from nccl_forensics.views import Resolver, all_views

    gc.set_threshold(*cli.GARBAGE)  # as on the command line: looking for garbage among what was read costs the more the more there is
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
        rows = {name: int(store.scan(name).select(pl.len()).collect().item()) for name in sorted(store.present)}
        stages["read"]["out_bytes"] = sum(_held(store, name) for name in store.present)
        with stage("views"):
            [run] = find_runs(store)
            resolver = Resolver(store, bundle.scratch)
            for name in all_views():
                resolver.get(name)
        with stage("rules"), patch.object(analysis, "Resolver", lambda *_: resolver):
            result = analysis.judge_run(store, run, bundle.scratch, None, "", None)
        with stage("report"):
            report = analysis.assemble([file.name], "scale", store, [result], result, bundle.quote)
            report |= {"traits": analysis.traits(result, store), "plugins": []}
            incident = api.Incident(report, gather(report, result, store, bundle.quote), store)
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


def least(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The last of several measurements, with the least CPU seconds of each stage: a busy machine adds to them and never takes away."""
    stages = {name: stage | {"cpu": min(run["stages"][name]["cpu"] for run in runs)} for name, stage in runs[-1]["stages"].items()}
    return runs[-1] | {"stages": stages}


def _held(store: Store, name: str) -> int:
    """Bytes of a table, folded or not: of its files, or of a frame as it is sent (a text that many rows have counts once)."""
    return sum(map(_bytes, (t for end in ("", ROWS, WORDS) if (t := store._tables.get(name + end)) is not None)))


def _bytes(held: pl.DataFrame | pl.LazyFrame | tuple[Path, ...]) -> int:
    if isinstance(held, tuple):
        return sum(f.stat().st_size for f in held)
    buffer = io.BytesIO()
    held.lazy().collect().write_ipc_stream(buffer)
    return buffer.tell()


def exponent(small: float, large: float, factor: float) -> float | None:
    """k where a cost grew with the k-th power of the ranks; None where it was too small to tell."""
    return math.log(large / small) / math.log(factor) if min(small, large) > 0.05 else None


Study = dict[str, dict[str, Any]]


def _ranks(name: str) -> int:
    return int(name.removesuffix("s"))


def table(study: Study) -> str:
    """The figures in Markdown: volumes, costs of each stage, and the exponents between neighbours of one kind."""
    lines = ["| ranks | files | evidence | packed | rows read | html | json | peak memory |", "|--:|--:|--:|--:|--:|--:|--:|--:|"]
    for name, one in study.items():
        volumes, report = one["volumes"], one["report"]
        peak = max(stage["peak_bytes"] for stage in one["stages"].values())
        lines.append(
            f"| {_shown(name)} | {volumes['files']:,} | {_mb(volumes['bytes'])} | {_mb(volumes['packed_bytes'])} | {sum(one['rows'].values()):,} "
            f"| {_mb(report['html'])} | {_mb(report['json'])} | {_mb(peak)} |"
        )
    lines += ["", "| CPU seconds | " + " | ".join(STAGES) + " | all |", "|--:|" + "--:|" * (len(STAGES) + 1)]
    for name, one in study.items():
        spent = [one["stages"][stage]["cpu"] for stage in STAGES]
        lines.append(f"| {_shown(name)} | " + " | ".join(f"{s:.1f}" for s in (*spent, sum(spent))) + " |")
    lines += ["", "| growth exponent | " + " | ".join(STAGES) + " | evidence |", "|--:|" + "--:|" * (len(STAGES) + 1)]
    for small, large in _neighbours(study):
        factor = _ranks(large) / _ranks(small)
        grown = [exponent(study[small]["stages"][s]["cpu"], study[large]["stages"][s]["cpu"], factor) for s in STAGES]
        grown.append(exponent(study[small]["volumes"]["bytes"], study[large]["volumes"]["bytes"], factor))
        lines.append(f"| {_shown(small)} → {_shown(large)} | " + " | ".join("–" if k is None else f"{k:.2f}" for k in grown) + " |")
    lines += ["", "| output | " + " | ".join(STAGES[:2]) + " | report |", "|--:|--:|--:|--:|"]
    for name, one in study.items():
        lines.append(f"| {_shown(name)} | " + " | ".join(_mb(one["stages"][s]["out_bytes"]) for s in ("expand", "read", "report")) + " |")
    return "\n".join(lines) + "\n"


def _shown(name: str) -> str:
    return f"{_ranks(name):,}" + (" short" if name.endswith("s") else "")


def _mb(size: float) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def _neighbours(study: Study) -> list[tuple[str, str]]:
    """Sizes that may be compared: with all lists, and with short ones (below 4,097 ranks both are the same)."""
    whole = [n for n in study if not n.endswith("s")]
    short = [n for n in study if n.endswith("s") or _ranks(n) <= 4096]
    return list(dict.fromkeys((*pairwise(whole), *(p for p in pairwise(short) if p[1].endswith("s")))))


def plot(study: Study) -> str:
    """CPU seconds of each stage over the ranks, both logarithmic, as SVG; sizes with short lists hollow."""
    width, height, left, top, right, bottom = 760, 420, 70, 20, 110, 50
    names = list(study)
    low, high = math.log10(min(map(_ranks, names))), math.log10(max(map(_ranks, names)))
    costs = [one["stages"][s]["cpu"] for one in study.values() for s in STAGES]
    floor, roof = math.floor(math.log10(max(0.05, min(costs)))), math.ceil(math.log10(max(costs)))

    def x(ranks: int) -> float:
        return left + (width - left - right) * ((math.log10(ranks) - low) / max(high - low, 0.1))

    def y(cost: float) -> float:
        return top + (height - top - bottom) * (1 - (math.log10(max(cost, 10**floor)) - floor) / max(roof - floor, 1))

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        f'<title>CPU seconds of each stage by ranks</title><rect width="{width}" height="{height}" fill="white"/>',
    ]
    for power in range(floor, roof + 1):
        at = y(10.0**power)
        out.append(f'<line x1="{left}" x2="{width - right}" y1="{at:.1f}" y2="{at:.1f}" stroke="#ddd"/>')
        out.append(f'<text x="{left - 8}" y="{at + 4:.1f}" text-anchor="end">{10.0**power:g} s</text>')
    out += [
        f'<text x="{x(ranks):.1f}" y="{height - bottom + 20}" text-anchor="middle">{ranks:,}</text>'
        for ranks in sorted(set(map(_ranks, names)))
    ]
    out.append(
        f'<text x="{(left + width - right) / 2}" y="{height - 8}" text-anchor="middle">ranks (hollow: without lists of all ranks)</text>'
    )
    beside: list[float] = []
    for stage, colour in zip(STAGES, ("#8c6d31", "#1f77b4", "#d62728", "#9467bd", "#2ca02c"), strict=True):
        whole = [(x(_ranks(n)), y(study[n]["stages"][stage]["cpu"])) for n in names if not n.endswith("s")]
        short = [(x(_ranks(n)), y(study[n]["stages"][stage]["cpu"])) for n in names if n.endswith("s")]
        out.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in whole)}"/>')
        out += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="4" fill="{colour}"/>' for a, b in whole]
        out += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="4" fill="white" stroke="{colour}" stroke-width="2"/>' for a, b in short]
        last = (short or whole)[-1][1]
        while any(abs(last - other) < 14 for other in beside):
            last += 2
        beside.append(last)
        out.append(f'<text x="{width - right + 12}" y="{last + 4:.1f}" fill="{colour}">{stage}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def publish(study: Study, docs: Path) -> None:
    """Put table and plot into the documentation."""
    page = docs / "scale.md"
    before, _, rest = page.read_text(encoding="utf-8").partition(_BEGIN)
    _, _, after = rest.partition(_END)
    page.write_text(f"{before}{_BEGIN}\n{table(study)}{_END}{after}", encoding="utf-8")
    (docs / "scale.svg").write_text(plot(study), encoding="utf-8")


_BEGIN, _END = "<!-- study: begin -->", "<!-- study: end -->"


def main() -> int:
    """Make, measure and show."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", default="1024,4096,16384,16384s", help="sizes; with an s: without lists of more than 4,096 ranks")
    parser.add_argument("--work", type=Path, default=ROOT / "out" / "scale")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--write", type=Path, metavar="DOCS")
    parser.add_argument("--times", type=int, default=1, help="runs of each size, of which the least CPU seconds of each stage count")
    parser.add_argument("--again", action="store_true", help="measure anew what was measured before")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one is not None:
        print(json.dumps(measure(asked.one, asked.workers)))
        return 0
    asked.work.mkdir(parents=True, exist_ok=True)
    study: Study = {}
    for name in asked.ranks.split(","):
        file, volumes, measured = (asked.work / f"{name}.{end}" for end in ("tar.gz", "json", "measured.json"))
        if not volumes.exists():
            volumes.write_text(json.dumps(make(_ranks(name), name.endswith("s"), file)))
        runs = json.loads(measured.read_text()) if measured.exists() and not asked.again else []
        while len(runs) < asked.times:
            command = [sys.executable, "-m", "tests.benchmarks.scale_study", "--one", str(file), "--workers", str(asked.workers)]
            runs.append(json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd=ROOT).stdout))
            measured.write_text(json.dumps(runs))
        study[name] = {"volumes": json.loads(volumes.read_text())} | least(runs)
        print(table(study), flush=True)
    if asked.write is not None:
        publish(study, asked.write)
    return 0


if __name__ == "__main__":
    sys.exit(main())
