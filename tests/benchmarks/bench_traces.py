"""Speed and memory on large traces, beside HolisticTraceAnalysis and TraceLens: events per CPU second, and peaks of memory.

    python -m tests.benchmarks.bench_traces CORPUS/public/kineto-hta-diff-control/evidence/control.json.gz WORK --mb 52 --mb 200 \\
        [--peers PYTHON] [--ranks 4]

The trace is replicated in time until it is large enough: events are shifted, correlations and External ids renumbered, steps counted on.
``--peers`` is a Python with both peers (see peers_traces.py). All run one after the other on this machine, ``--rounds`` times in turns; the
median is shown. CPU seconds are those of the process and its children, the interpreter's start included; modules are compiled beforehand,
as installers do. Memory is told twice: the largest resident set of a single process, as the kernel counts it, and the peak of all processes
together with files that several have mapped counted once (sampled in a run of its own, so that sampling is not billed as CPU time).

The program is run as users run it (``analyze``, with a reader in a process of its own under limits), and once more inside one process as
the peers run.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_HTA = """
import sys
from hta.trace_analysis import TraceAnalysis
t = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="", include_last_profiler_step=True)
print(t.get_temporal_breakdown(visualize=False).to_dict("records"))
print(t.get_comm_comp_overlap(visualize=False).to_dict("records"))
"""
_LENS = """
import sys
from TraceLens.Reporting.generate_perf_report_pytorch import generate_perf_report_pytorch
generate_perf_report_pytorch(sys.argv[1], output_csvs_dir=sys.argv[2])
"""
_LENS_COLLECTIVES = """
import sys
from TraceLens import NcclAnalyser
a = NcclAnalyser([sys.argv[1]], 1)
a.build_df_long()
print(a.build_df_summary_long().shape, a.build_df_nccl_implicit_sync_cat(strict_metadata_check=False).shape)
"""
_ANALYZE = [sys.executable, "-m", "nccl_forensics.cli", "analyze", "--quiet", "--no-cache", "--json", os.devnull]
_INSIDE = """
import sys
from nccl_forensics.api import analyze
from nccl_forensics.reading.engine import InlineEngine
report = analyze(sys.argv[1:], engine=InlineEngine()).report
print([t["overlap_hta"] for t in report["measures"]["traces"]][:2], sum(s["records"] or 0 for s in report["sources"]))
"""


def replicate(source: Path, target: Path, megabytes: int, rank: int | None = None) -> int:
    """Write a trace of at least so many MB; returns its number of events. An existing file is kept."""
    with gzip.open(source) as stream:
        document = json.load(stream)
    events = document["traceEvents"]
    spans = [(e["ts"], e["ts"] + e["dur"]) for e in events if e.get("ph") == "X"]
    length = max(b for _, b in spans) - min(a for a, _ in spans)
    steps = [int(m.group(1)) for e in events if (m := re.match(r"ProfilerStep#(\d+)$", e["name"]))]
    numbers = max(
        (v for e in events for k in ("correlation", "External id") if isinstance(v := (e.get("args") or {}).get(k), int)), default=0
    )
    one = len(json.dumps(events))
    copies = -(-megabytes * 10**6 // one)
    if rank is not None:
        document["distributedInfo"]["rank"] = rank
    head = json.dumps({k: v for k, v in document.items() if k != "traceEvents"})[:-1]
    with target.open("w") as out:
        out.write(f'{head},\n  "traceEvents": [\n')
        for copy in range(copies):
            shift, renumber = copy * (length + 1000), copy * (numbers + 1)
            lines = []
            for event in events:
                new = dict(event)
                new["ts"] = event["ts"] + shift
                if "id" in new and isinstance(new["id"], int):
                    new["id"] += renumber
                if isinstance(args := event.get("args"), dict):
                    new["args"] = {
                        k: v + renumber if k in ("correlation", "External id") and isinstance(v, int) else v for k, v in args.items()
                    }
                if m := re.match(r"ProfilerStep#(\d+)$", new["name"]):
                    new["name"] = f"ProfilerStep#{int(m.group(1)) + copy * len(steps)}"
                lines.append("  " + json.dumps(new))
            out.write(",\n".join(lines) + (",\n" if copy + 1 < copies else "\n"))
        out.write("  ]\n}\n")
    return copies * len(events)


def timed(command: Sequence[str], environment: Mapping[str, str]) -> tuple[float, float, float, int]:
    """(CPU seconds, wall seconds, peak MiB of the largest process, exit code)."""
    began = time.perf_counter()
    child = os.fork()
    if child == 0:
        done = subprocess.run(command, env=environment, capture_output=True, check=False)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        line = f"{used.ru_utime + used.ru_stime} {used.ru_maxrss / 1024} {done.returncode}\n"
        if done.returncode:
            line += done.stderr.decode()[-400:]
        Path(f"/tmp/bench_traces.{os.getpid()}").write_text(line)
        os._exit(0)
    os.waitpid(child, 0)
    told = Path(f"/tmp/bench_traces.{child}")
    first, _, rest = told.read_text().partition("\n")
    told.unlink()
    if rest:
        print(rest, file=sys.stderr)
    cpu, peak, code = first.split()
    return float(cpu), time.perf_counter() - began, float(peak), int(code)


def together(command: Sequence[str], environment: Mapping[str, str]) -> float:
    """Peak MiB of a program and its children: memory of their own in full, and each mapped file once, as far as one of them has it
    resident (Linux only)."""
    peak = 0
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        while running.poll() is None:
            files: dict[str, int] = {}
            own = sum(_resident(pid, files) for pid in _family(running.pid))
            peak = max(peak, own + sum(files.values()))
            time.sleep(0.01)
    return peak / 1024


def _family(pid: int) -> list[int]:
    found = [pid]
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in (thread / "children").read_text().split():
                found.extend(_family(int(child)))
    return found


def _resident(pid: int, files: dict[str, int]) -> int:
    """KiB of anonymous memory; what is resident of each mapped file is put into ``files`` where no other process has more."""
    own, name = 0, ""
    shared: dict[str, int] = {}
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
            key, _, rest = line.partition(" ")
            if not key.endswith(":"):
                name = " ".join(line.split()[5:])
            elif key == "Anonymous:":
                own += int(rest.split()[0])
                shared[name] = shared.get(name, 0) - int(rest.split()[0])
            elif key == "Rss:":
                shared[name] = shared.get(name, 0) + int(rest.split()[0])
    for file, size in shared.items():
        files[file] = max(files.get(file, 0), size)
    return own


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("source", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--mb", type=int, action="append")
    parser.add_argument("--peers", default="")
    parser.add_argument("--ranks", type=int, default=0, help="also analyse so many ranks of the first size together")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--skip-full", action="store_true", help="leave TraceLens' full report out: it takes many minutes")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    compiled = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    own = compiled | {"PYTHONPYCACHEPREFIX": str(options.work / "compiled")}
    head = ("trace", "events", "tool", "CPU s", "events/CPU s", "largest MiB", "of file", "together MiB", "of file")
    print("{:>8} {:>9} {:32} {:>8} {:>13} {:>11} {:>8} {:>12} {:>8}".format(*head))
    print(f"load of the machine at the start: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")

    def rows(label: str, events: int, size: float, tools: Mapping[str, tuple[Sequence[str], Mapping[str, str]]]) -> None:
        """One line per tool; the tools take turns, so that a busy machine is busy for all of them."""
        for command, environment in tools.values():
            if environment is own:
                timed(command, environment)  # compiles its modules
        told: dict[str, list[tuple[float, float, float, int]]] = {tool: [] for tool in tools}
        for _ in range(options.rounds):
            for tool, (command, environment) in tools.items():
                told[tool].append(timed(command, environment))
        for tool, (command, environment) in tools.items():
            cpu, _, peak, code = sorted(told[tool])[options.rounds // 2]
            whole = together(command, environment)
            print(
                f"{label:>8} {events:>9,} {tool:32} {cpu:8.2f} {events / cpu:13,.0f} {peak:11.0f} {peak / size:8.2f} {whole:12.0f} {whole / size:8.2f}"
                + (f"  exit {code}" if code else ""),
                flush=True,
            )

    for megabytes in options.mb or [52, 200]:
        trace = options.work / f"trace{megabytes}.json"
        events = replicate(options.source, trace, megabytes)
        size = trace.stat().st_size / 2**20
        tools = {
            "nccl-forensics analyze": ([*_ANALYZE, str(trace)], own),
            "nccl-forensics, one process": ([sys.executable, "-c", _INSIDE, str(trace)], own),
        }
        if options.peers:
            tools["HTA breakdown + overlap"] = ([options.peers, "-c", _HTA, str(trace)], compiled)
            tools["TraceLens collective report"] = ([options.peers, "-c", _LENS_COLLECTIVES, str(trace)], compiled)
            if not options.skip_full:
                linked = str(_as_today(trace))
                tools["TraceLens full report"] = ([options.peers, "-c", _LENS, linked, str(options.work / "lens")], compiled)
        rows(f"{size:.0f} MiB", events, size, tools)
    if options.ranks:
        megabytes = (options.mb or [52])[0]
        files = []
        events = 0
        for rank in range(options.ranks):
            files.append(options.work / f"rank{rank}.json")
            events += replicate(options.source, files[-1], megabytes, rank)
        size = files[0].stat().st_size / 2**20
        rows(f"{options.ranks}x{size:.0f}", events, size, {"nccl-forensics analyze": ([*_ANALYZE, *map(str, files)], own)})


def _as_today(trace: Path) -> Path:
    """The trace with its arrows from launches to kernels categorised as exporters do now: TraceLens' full report refuses it otherwise."""
    target = trace.with_suffix(".linked.json")
    with trace.open() as lines, target.open("w") as out:
        out.writelines(line.replace('"async_cpu_to_gpu"', '"ac2g"') for line in lines)
    return target


if __name__ == "__main__":
    main()
