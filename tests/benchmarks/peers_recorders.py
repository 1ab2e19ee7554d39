"""Recorder dumps under three analyzers: this one, PyTorch's ``torchfrtrace`` and NVIDIA's resiliency attribution. Outside the tests.

    python -m tests.benchmarks.peers_recorders --torch PYTHON --resiliency SRC [--simulated SEEDS] [FOLDER …]

``PYTHON``: an interpreter with PyTorch 2.13 or later; ``SRC``: the folder ``src`` of a checkout of NVIDIA/nvidia-resiliency-ext. The
incidents are those of the corpus that have recorder dumps, ``SEEDS`` simulated ones of each scenario that dumps alone can tell, and those
in each ``FOLDER`` (``truth.json`` beside ``evidence/``). All three get the same folder with the dumps of the ranks, as pickles named
``_dump_RANK``, and nothing else. Both peers load pickles as they are, which runs whatever code is in them: give them none that others made.

Ranks that a tool names: the culprits of our verdict; "missing ranks" and "Culprit rank" of ``torchfrtrace``; "Missing Ranks" of the
attribution's table. A kind of fault is named by our cause, and by PyTorch's "Error type". No line of either project is copied here; both
are only called.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from tests.corpus import corpus_root

#: Scenarios of the simulator that recorder dumps alone can tell.
SCENARIOS = (
    "collective-mismatch",
    "collective-skipped",
    "dtype-mismatch",
    "gpu-stall",
    "group-deadlock",
    "host-stall",
    "p2p-deadlock",
    "shape-mismatch",
    "straggler",
)
#: Our names for PyTorch's types of error (PyTorch 2.13 torch/distributed/flight_recorder/components/types.py).
KINDS = {
    "COLLECTIVE_TYPE_MISMATCH": "collective-mismatch",
    "SIZE_OR_SYNTAX_MISMATCH": "shape-mismatch",
    "COLLECTIVE_DTYPE_MISMATCH": "dtype-mismatch",
}
_RANKS = re.compile(r"\d+")


@dataclass(slots=True)
class Said:
    """What one tool says of one incident."""

    ranks: set[int] = field(default_factory=set)
    kinds: set[str] = field(default_factory=set)
    failed: bool = False
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Incident:
    """Dumps by rank, and what was put in."""

    collection: str
    name: str
    dumps: dict[int, Path]
    causes: frozenset[str]
    accepted: tuple[frozenset[int], ...]


def incidents(folder: Path, collection: str) -> Iterator[Incident]:
    """Incidents below a folder that have pickled dumps and a truth."""
    for truth in sorted(folder.glob("*/truth.json")):
        dumps: dict[int, Path] = {}
        for file in sorted(p for p in (truth.parent / "evidence").rglob("*") if p.is_file()):
            number = re.search(r"_(\d+)(?:\.pickle|\.pkl)?$", file.name)
            with file.open("rb") as data:
                if number and data.read(1) == b"\x80":
                    dumps.setdefault(int(number[1]), file)
        told = json.loads(truth.read_text())
        accepted = tuple(frozenset(ranks) for ranks in told.get("culprit_ranks_accepted") or [[]])
        causes = told.get("cause_accepted") or [None]
        if len(dumps) > 1:
            yield Incident(collection, truth.parent.name, dumps, frozenset(() if None in causes else causes), accepted)


def simulated(seeds: int, folder: Path) -> None:
    """Incidents of 8 ranks, for each scenario and seed one."""
    for scenario in SCENARIOS:
        for seed in range(seeds):
            command = ["simulate", scenario, "--ranks", "8", "--seed", str(seed), "--variant", "dump-only"]
            command += ["-o", str(folder / f"{scenario}-{seed}")]
            subprocess.run([sys.executable, "-m", "nccl_forensics.cli", *command], check=True, capture_output=True)


def called(command: list[str], **environment: str) -> tuple[str, bool, float]:
    """What a command prints, whether it broke off, and how long it took."""
    begin = time.perf_counter()
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=os.environ | environment, timeout=600)
    return done.stdout + done.stderr, "Traceback (most recent call last)" in done.stderr, time.perf_counter() - begin


def ours(folder: Path) -> Said:
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.json"
        command = ["analyze", "--quiet", "--no-cache", "--json", str(report), str(folder)]
        _, _, seconds = called([sys.executable, "-m", "nccl_forensics.cli", *command])
        if not report.exists():
            return Said(failed=True, seconds=seconds)
        verdict = json.loads(report.read_text())["verdict"]
    ranks = {c["rank"] for c in verdict["culprits"] if c["rank"] is not None}
    return Said(ranks, {verdict["cause"]} - {None}, seconds=seconds)


def pytorch(folder: Path, python: Path) -> Said:
    text, failed, seconds = called([str(python.parent / "torchfrtrace"), "--prefix", "_dump_", str(folder)])
    ranks = {int(r) for line in re.findall(r"missing ranks: \{([^}]*)\}", text) for r in _RANKS.findall(line)}
    errors = re.findall(r"Culprit rank (\d+); Error type: (\w+)", text)
    return Said(ranks | {int(rank) for rank, _ in errors}, {KINDS[kind] for _, kind in errors if kind in KINDS}, failed, seconds)


def nvidia(folder: Path, python: Path, source: Path) -> Said:
    module = "nvidia_resiliency_ext.attribution.trace_analyzer.fr_attribution"
    text, failed, seconds = called([str(python), "-m", module, "--fr-path", str(folder), "--emit-stdout"], PYTHONPATH=str(source))
    rows = [line.split("|") for line in text.splitlines() if line.count("|") == 5 and "Missing Ranks" not in line]
    return Said({int(r) for row in rows for r in _RANKS.findall(row[5])}, failed=failed, seconds=seconds)


def main() -> None:
    """Print a line for each incident and tool, and the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--torch", type=Path, required=True)
    parser.add_argument("--resiliency", type=Path, required=True)
    parser.add_argument("--simulated", type=int, default=0)
    parser.add_argument("folders", type=Path, nargs="*")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / "made"
        simulated(options.simulated, made)
        places = [
            (corpus_root() / "public", "public"),
            (corpus_root() / "lab", "lab"),
            (made, "simulated"),
            *((f, f.name) for f in options.folders),
        ]
        said = [
            (incident, tool, answer)
            for place, name in places
            for incident in incidents(place, name)
            for tool, answer in asked(incident, Path(scratch), options.torch, options.resiliency)
        ]
    for collection, tool in dict.fromkeys((incident.collection, tool) for incident, tool, _ in said):
        rows = [(incident, answer) for incident, name, answer in said if (incident.collection, name) == (collection, tool)]
        faulty = sum(len(_nearest(i, a)) for i, a in rows)
        found = sum(len(_nearest(i, a) & a.ranks) for i, a in rows)
        blamed = sum(len(a.ranks - frozenset().union(*i.accepted)) for i, a in rows)
        kinds = sum(bool(i.causes & a.kinds) for i, a in rows if i.causes)
        print(
            f"{collection:12} {tool:16} incidents {len(rows):3}  broke off {sum(a.failed for _, a in rows):3}  found {found} of {faulty}  "
            f"healthy blamed {blamed}  kind {kinds} of {sum(bool(i.causes) for i, _ in rows)}  median {median(a.seconds for _, a in rows):.2f} s"
        )


def asked(incident: Incident, scratch: Path, torch: Path, resiliency: Path) -> Iterator[tuple[str, Said]]:
    """What each tool says of the dumps of an incident."""
    folder = scratch / "dumps"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for rank, file in incident.dumps.items():
        shutil.copy(file, folder / f"_dump_{rank}")
    for tool, answer in (
        ("nccl-forensics", ours(folder)),
        ("torchfrtrace", pytorch(folder, torch)),
        ("resiliency", nvidia(folder, torch, resiliency)),
    ):
        kinds = ", ".join(sorted(answer.kinds)) or "-"
        what = "broke off" if answer.failed else f"{sorted(answer.ranks)} {kinds}"
        print(f"{incident.collection}/{incident.name:36} {tool:16} {answer.seconds:5.2f} s  {what}", flush=True)
        yield tool, answer


def _nearest(incident: Incident, answer: Said) -> frozenset[int]:
    """Of the lists of ranks that are accepted the one that the tool comes nearest to."""
    return max(incident.accepted, key=lambda ranks: (len(ranks & answer.ranks) - len(answer.ranks ^ ranks), -len(ranks)))


if __name__ == "__main__":
    main()
