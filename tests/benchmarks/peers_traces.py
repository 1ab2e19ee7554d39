"""What HolisticTraceAnalysis and TraceLens make of traces: run with a Python that has both, outside the tests.

    python -m venv peers && peers/bin/pip install HolisticTraceAnalysis==0.5.0 git+https://github.com/AMD-AGI/TraceLens@171dd747
    peers/bin/python tests/benchmarks/peers_traces.py CORPUS/public > tests/benchmarks/peers_traces.json

``tests/test_peers_traces.py`` compares our figures with the recorded ones. No line of either project is copied here; both are only called.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path

TRACES = {
    "kineto-hta-diff-control": "evidence/control.json.gz",
    "kineto-hta-nccl-args-2r": "evidence/nccl_data.json.gz",
    "kineto-hta-negq-rank0of16": "evidence/rank0.json.gz",
    "kineto-tracelens-b200-rank0of8": "evidence/eager_trace.json.gz",
}
DLRM = "kineto-param-dlrm-8r/evidence/dlrm_kineto.tar.gz"


def hta(files: dict[int, str]) -> dict[str, object]:
    from hta.trace_analysis import TraceAnalysis

    analysis = TraceAnalysis(trace_files=files, trace_dir="", include_last_profiler_step=True)
    temporal = analysis.get_temporal_breakdown(visualize=False)
    overlap = analysis.get_comm_comp_overlap(visualize=False)
    columns = ("idle_time(us)", "compute_time(us)", "non_compute_time(us)", "kernel_time(us)")
    found = {str(int(r["rank"])): {c: float(r[c]) for c in columns} for _, r in temporal.iterrows()}
    for _, r in overlap.iterrows():
        value = float(r["comp_comm_overlap_pctg"])
        found[str(int(r["rank"]))]["overlap_pctg"] = None if value != value else value
    return found


def tracelens(path: str) -> dict[str, float]:
    from TraceLens import GPUEventAnalyser
    from TraceLens.util import DataLoader

    events = DataLoader.load_data(path)["traceEvents"]
    kept = [e | {"UID": n} for n, e in enumerate(events) if e.get("ph") == "X"]
    analyser = GPUEventAnalyser(kept)
    lists = analyser.get_gpu_event_lists()
    return {k: float(v) for k, v in analyser.compute_metrics_dict(lists).items()}


def collectives(paths: list[str]) -> list[dict[str, object]]:
    """TraceLens' table of implicitly synchronising collectives: shortest duration and per-rank waits."""
    from TraceLens import NcclAnalyser

    analyser = NcclAnalyser(paths, len(paths))
    analyser.build_df_long()
    frame = analyser.build_df_nccl_implicit_sync_cat(strict_metadata_check=False)
    keep = [
        c
        for c in frame.columns
        if c in ("Collective name", "comm_latency", "skew in start time", "In msg nelems", "algo bw (GB/s)", "bus bw (GB/s)")
    ]
    return [{k: (v.item() if hasattr(v, "item") else v) for k, v in row.items()} for row in frame[keep].to_dict("records")]


def main() -> None:
    root = Path(sys.argv[1])
    out: dict[str, object] = {
        "versions": {"HolisticTraceAnalysis": version("HolisticTraceAnalysis"), "TraceLens": version("TraceLens")},
        "command": "peers/bin/python tests/benchmarks/peers_traces.py CORPUS/public",
    }
    with contextlib.redirect_stdout(io.StringIO()), tempfile.TemporaryDirectory() as folder:
        with tarfile.open(root / DLRM) as archive:
            archive.extractall(folder, filter="data")
        dlrm = sorted(str(p) for p in Path(folder).rglob("*.json"))
        found: dict[str, object] = {}
        for name, inside in TRACES.items():
            path = str(root / name / inside)
            found[name] = {"hta": next(iter(hta({0: path}).values())), "tracelens": tracelens(path)}
        found["kineto-param-dlrm-8r"] = {
            "hta": hta(dict(enumerate(dlrm))),
            "tracelens": {str(rank): tracelens(path) for rank, path in enumerate(dlrm)},
            "collectives": collectives(dlrm),
        }
        out["traces"] = found
    json.dump(out, sys.stdout, indent=1, sort_keys=True)


if __name__ == "__main__":
    main()
