"""The whole program on generated evidence, beside anchors measured in the same run: CPU seconds (user and system, with children).

    python -m tests.benchmarks.bench_reading operations WORK --mb 500 [--lost]
    python -m tests.benchmarks.bench_reading init WORK --ranks 512
    python -m tests.benchmarks.bench_reading recorder WORK --ranks 256 --entries 2000 [--healthy] [--torch PYTHON]
    python -m tests.benchmarks.bench_reading mixed WORK --ranks 64 --mb 300

``--torch`` is a Python with PyTorch's ``torchfrtrace``. Evidence is made by ``inputs.py`` unless WORK holds it already. The line "start-up"
is the program on a log of a few lines: what every run pays whatever it reads. The caches are off and the files are in memory; modules are
compiled beforehand, as installers do.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.benchmarks import inputs

_ANALYZE = [sys.executable, "-m", "nccl_forensics.cli", "analyze", "--quiet", "--no-cache", "--json"]
_LOOP = """
import re, sys
from nccl_forensics.grammar.lines import load
match = re.compile(load("nccl_operation").kinds["operation"].pattern).match
lists = [[] for _ in range(13)]
add = [values.append for values in lists]
for file in sys.argv[1:]:
    with open(file) as lines:
        for line in lines:
            hit = match(line.rstrip("\\n"))
            if hit is not None:
                for append, value in zip(add, hit.groups()):
                    append(value)
"""
#: Lines of NCCL by the same grammars: every kind's pattern in turn by Python's re, or Lark. At most so many lines.
_LINES = """
import itertools, re, sys
from nccl_forensics.grammar.lines import load
how, left, files = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
prefix, said = load("nccl_prefix"), load("nccl")
def tried(loaded):
    patterns = [(kind.name, re.compile(kind.pattern).match) for kind in loaded.kinds.values()]
    return lambda text: next(((name, hit.groupdict()) for name, match in patterns if (hit := match(text))), None)
before, behind = (prefix.parse, said.parse) if how == "lark" else (tried(prefix), tried(said))
for line in itertools.islice(itertools.chain.from_iterable(map(open, files)), left):
    found = before(line.rstrip())
    if found is not None and found[1].get("message"):
        behind(found[1]["message"])
"""
#: Lines that Lark is given: it takes milliseconds for each.
_FEW = 2000
_UNPICKLE = "import pickle, sys\nfor file in sys.argv[1:]:\n    pickle.load(open(file, 'rb'))\n"


def _compiled(folder: Path) -> dict[str, str]:
    """The environment in which compiled modules are kept in a folder and used, as they are where a package was installed."""
    return {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | {"PYTHONPYCACHEPREFIX": str(folder.resolve())}


def timed(label: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> float:
    """Print and return the CPU seconds of a command; its wall seconds and the peak of its largest process stand beside."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment)
    assert process.stderr is not None
    problem = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    cpu = used.ru_utime + used.ru_stime
    failed = f"   exit code {process.returncode}: {problem.decode()[-200:]}" if process.returncode else ""
    line = f"{label:34} {cpu:8.2f} CPU s {time.perf_counter() - began:8.2f} wall s {used.ru_maxrss / 1024:7.0f} MB{failed}"
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
    return cpu


def analysed(evidence: Path, work: Path, truth: Path) -> float:
    """CPU seconds of an analysis, with whether its verdict is right."""
    cpu = timed("nccl-forensics analyze", [*_ANALYZE, str(work / "report.json"), str(evidence)], _compiled(work / "compiled"))
    verdict = json.loads((work / "report.json").read_bytes())["verdict"]
    known = json.loads(truth.read_bytes())
    right = verdict["cause"] in known["cause_accepted"] and [c["rank"] for c in verdict["culprits"]] in known["culprit_ranks_accepted"]
    sys.stdout.write(f"  verdict: {verdict['cause']}, {'right' if right else 'NOT right'}\n")
    return cpu


def searched(evidence: Path) -> tuple[list[str], float, str, float]:
    """The logs, their size in MB, and by name a program that finds lines, with the CPU seconds that it takes for them."""
    logs = [str(f) for f in sorted((evidence / "logs").glob("nccl.*.log"))]
    program = shutil.which("rg") or shutil.which("grep") or "grep"
    name = Path(program).name
    return logs, sum(os.path.getsize(f) for f in logs) / 1e6, name, timed(f"{name} -c opCount", [program, "-c", "opCount", *logs])


def main() -> None:
    parser = inputs.arguments()
    parser.add_argument("--torch", type=Path)
    parser.add_argument("--lost", action="store_true", help="one log of operations lacks a line")
    parser.add_argument("--healthy", action="store_true", help="dumps of a job in which nothing is wrong")
    options = parser.parse_args()
    out = sys.stdout.write
    folder = options.folder / f"{options.kind}-{options.ranks}-{options.mb:.0f}-{options.entries}{'-healthy' if options.healthy else ''}"
    folder = folder.with_name(f"{folder.name}{'-lost' if options.lost else ''}")
    if not (folder / "truth.json").exists():
        if options.kind == "init":
            inputs.init(folder, options.ranks)
        elif options.kind == "operations":
            inputs.operations(folder, options.ranks, options.mb, lost=options.lost)
        elif options.kind == "mixed":
            inputs.mixed(folder, options.ranks, options.mb)
        else:
            inputs.recorder(folder, options.ranks, options.entries, healthy=options.healthy)
    small = options.folder / "small"
    small.mkdir(exist_ok=True)
    (small / "nccl.log").write_text("node01:7:7 [0] NCCL INFO NCCL version 2.27.7+cuda12.9\n", encoding="utf-8")
    command = [*_ANALYZE, str(options.folder / "start.json"), str(small)]
    compiled = _compiled(options.folder / "compiled")
    subprocess.run(command, env=compiled, stdout=subprocess.DEVNULL, check=True)  # so that modules are compiled
    start = timed("start-up", command, compiled)
    evidence = Path(f"{folder}.tar.gz") if options.kind == "mixed" else folder / "evidence"
    whole = analysed(evidence, options.folder, folder / "truth.json")
    if options.kind == "operations":
        logs, size, search, floor = searched(evidence)
        loop = timed("a loop of Python's re", [sys.executable, "-c", _LOOP, *logs])
        out(f"{size:.0f} MB, {size / whole:.0f} MB a CPU second; less start-up {size / (whole - start):.0f}\n")
        out(f"{whole / floor:.1f} times {search}, {loop / whole:.2f} times as fast as the loop\n")
    if options.kind == "init":
        logs, size, search, floor = searched(evidence)
        lines = sum(Path(f).read_bytes().count(b"\n") for f in logs)
        loop = timed("every kind in turn by Python's re", [sys.executable, "-c", _LINES, "re", str(lines), *logs])
        lark = timed(f"Lark, {_FEW} lines", [sys.executable, "-c", _LINES, "lark", str(_FEW), *logs])
        out(f"{size:.0f} MB, {lines} lines, {lines / (whole - start):.0f} lines a CPU second less start-up\n")
        out(f"{whole / floor:.0f} times {search}, {loop / whole:.2f} times as fast as re, {lark * lines / _FEW / whole:.0f} times Lark\n")
    if options.kind == "recorder":
        dumps = [str(f) for f in sorted(evidence.iterdir())]
        entries = options.ranks * options.entries
        floor = timed("C unpickler alone", [sys.executable, "-c", _UNPICKLE, *dumps])
        out(
            f"{entries} entries, {entries / whole:.0f} a CPU second; less start-up {entries / (whole - start):.0f}; unpickler {entries / floor:.0f}\n"
        )
        if options.torch is not None:
            tool = options.torch.with_name("torchfrtrace")
            peer = timed("torchfrtrace", [str(tool), str(evidence), "-p", "nccl_trace_rank_", "--mismatch_cap", str(10**9)])
            out(f"{peer / whole:.2f} times as fast as torchfrtrace\n")


if __name__ == "__main__":
    main()
