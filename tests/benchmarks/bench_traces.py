"""Speed and memory on large traces, beside HolisticTraceAnalysis and TraceLens: events per CPU second, and the peak of one process.

    python -m tests.benchmarks.bench_traces CORPUS/public/kineto-hta-diff-control/evidence/control.json.gz WORK --mb 52 --mb 200 \\
        [--peers PYTHON] [--ranks 4]

The trace is replicated in time until it is large enough: events are shifted, correlations and External ids renumbered, steps counted on.
``--peers`` is a Python with both peers (see peers_traces.py). All run one after the other on this machine; CPU seconds are those of the
process and its children, the interpreter's start included.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
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
_OURS = """
import sys
from nccl_forensics.api import analyze
from nccl_forensics.engine import LocalEngine
report = analyze(sys.argv[1:], engine=LocalEngine(workers=1)).report
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


def timed(command: Sequence[str], environment: dict[str, str] | None = None) -> tuple[float, float, float, int]:
    """(CPU seconds, wall seconds, peak MB of the largest process, exit code)."""
    began = time.perf_counter()
    child = os.fork()
    if child == 0:
        done = subprocess.run(command, env={**os.environ, **(environment or {})}, capture_output=True, check=False)
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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("source", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--mb", type=int, action="append")
    parser.add_argument("--peers", default="")
    parser.add_argument("--ranks", type=int, default=0, help="also analyse so many ranks of the first size together")
    parser.add_argument("--skip-full", action="store_true", help="leave TraceLens' full report out: it takes many minutes")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    print(f"{'trace':>8} {'events':>9} {'tool':32} {'CPU s':>8} {'wall s':>8} {'events/CPU s':>13} {'peak MB':>8} {'of file':>8}")

    def row(label: str, events: int, tool: str, command: Sequence[str], size: float) -> None:
        cpu, wall, peak, code = timed(command)
        print(
            f"{label:>8} {events:>9,} {tool:32} {cpu:8.2f} {wall:8.2f} {events / cpu:13,.0f} {peak:8.0f} {peak / size:8.2f}"
            + (f"  exit {code}" if code else ""),
            flush=True,
        )

    for megabytes in options.mb or [52, 200]:
        trace = options.work / f"trace{megabytes}.json"
        events = replicate(options.source, trace, megabytes)
        size = trace.stat().st_size / 2**20
        label = f"{size:.0f} MiB"
        row(label, events, "nccl-forensics analyze", [sys.executable, "-c", _OURS, str(trace)], size)
        if options.peers:
            row(label, events, "HTA breakdown + overlap", [options.peers, "-c", _HTA, str(trace)], size)
            row(label, events, "TraceLens collective report", [options.peers, "-c", _LENS_COLLECTIVES, str(trace)], size)
            if not options.skip_full:
                row(label, events, "TraceLens full report", [options.peers, "-c", _LENS, str(trace), str(options.work / "lens")], size)
    if options.ranks:
        megabytes = (options.mb or [52])[0]
        files = []
        events = 0
        for rank in range(options.ranks):
            files.append(options.work / f"rank{rank}.json")
            events += replicate(options.source, files[-1], megabytes, rank)
        size = files[0].stat().st_size / 2**20
        row(f"{options.ranks}x{size:.0f}", events, "nccl-forensics analyze", [sys.executable, "-c", _OURS, *map(str, files)], size)


if __name__ == "__main__":
    main()
