"""The coverage-guided run: ``python -m tests.fuzz.run --hours 2 --state DIR`` in an environment that has atheris as well.

Goes on after a finding: each new one (told by the place that raised) is kept with its input under ``DIR/findings``, the corpus grows under
``DIR/corpus``, and ``DIR/stats.json`` adds up hours, CPU hours, executions and findings of all runs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import re
import resource
import sys
import time
import traceback
from pathlib import Path

import atheris  # type: ignore[import-not-found,unused-ignore]

with atheris.instrument_imports(include=["nccl_forensics"], enable_loader_override=False):
    from nccl_forensics.formats import all_formats
    from nccl_forensics.formats.base import Gap
    from nccl_forensics.reading import source as reading
    from nccl_forensics.rules import all_rules
    from tests.fuzz import targets

    all_formats(), all_rules()  # they load the modules in their folders when they are asked


def _raise(problem: BaseException, line_no: int | None = None) -> Gap:
    """In place of the gap that hides what a format raised: the exception with its place."""
    raise problem


vars(reading)["_unreadable"] = _raise

#: Share of the time that goes to whole passes (reading, views and rules), which cost a hundred times as much as reading alone.
_WHOLE = 0.3
#: Resident memory that one input may add, in KiB.
_GROWTH = 400 << 10


class Run:
    """Counts of one run and the places where it found something. A class because atheris calls back."""

    def __init__(self, state: Path, seconds: float) -> None:
        self.findings = state / "findings"
        self.findings.mkdir(parents=True, exist_ok=True)
        self.stats = state / "stats.json"
        self.before = json.loads(self.stats.read_text()) if self.stats.exists() else {}
        self.begin, self.told = time.monotonic(), time.monotonic()
        self.seconds = seconds
        self.executions = self.whole = 0
        self.whole_cpu = 0.0
        self.seen = {p.stem for p in self.findings.glob("*.txt")}
        self.peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def one(self, data: bytes) -> None:
        """One input; what it breaks is kept, and the run goes on."""
        self.executions += 1
        self._guard(targets.check, data)
        if data[:1] == b"s" and self.whole_cpu < _WHOLE * (time.process_time() + 1):
            begin = time.process_time()
            self._guard(targets.incident, data[1:], data)
            self.whole_cpu += time.process_time() - begin
            self.whole += 1
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if peak - self.peak > _GROWTH:
            self._keep("memory", f"resident memory grew by {(peak - self.peak) >> 10} MiB", data)
        self.peak = max(peak, self.peak)
        if time.monotonic() - self.told > 30:
            self.save()

    def _guard(self, function: object, data: bytes, whole: bytes | None = None) -> None:
        try:
            function(data)  # type: ignore[operator]
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as problem:  # a panic of Polars is no Exception
            trace = traceback.extract_tb(problem.__traceback__)
            places = [f"{Path(f.filename).name}:{f.name}" for f in trace if "nccl_forensics" in f.filename] or [f.name for f in trace[-2:]]
            words = re.sub(r"[^A-Za-z ]+", "#", str(problem))[:60] if isinstance(problem, AssertionError) else ""
            key = hashlib.sha256("|".join([type(problem).__name__, words, *places[-2:]]).encode()).hexdigest()[:12]
            self._keep(key, "".join(traceback.format_exception(problem))[-6000:], whole or data)

    def _keep(self, key: str, words: str, data: bytes) -> None:
        if key in self.seen and (self.findings / f"{key}.bin").exists() and len(data) >= (self.findings / f"{key}.bin").stat().st_size:
            return
        self.seen.add(key)
        (self.findings / f"{key}.txt").write_text(words)
        (self.findings / f"{key}.bin").write_bytes(data)

    def save(self) -> None:
        """Write the sums of this and all earlier runs."""
        self.told = time.monotonic()
        own = {
            "hours": (time.monotonic() - self.begin) / 3600,
            "cpu_hours": time.process_time() / 3600,
            "executions": self.executions,
            "whole_passes": self.whole,
        }
        total = {k: round(self.before.get(k, 0) + v, 4) for k, v in own.items()} | {"findings": len(self.seen), "peak_kib": self.peak}
        self.stats.write_text(json.dumps(total, indent=1) + "\n")


def mutate(data: bytes, max_size: int, seed: int) -> bytes:
    """libFuzzer's own mutations, or ones that keep lines and numbers whole: the target's byte stays."""
    rng = random.Random(seed)
    head, body = data[:1] or b"s", data[1:]
    if rng.random() < 0.45:
        return (head + atheris.Mutate(body, max(1, max_size - 1)))[:max_size]
    return (head + targets.disturbed(body, rng))[:max_size]


def main() -> None:
    """Fuzz until the time is over."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--state", type=Path, required=True)
    options = parser.parse_args()
    corpus = options.state / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    if not any(corpus.iterdir()):
        for name, data in targets.seeds().items():
            (corpus / name).write_bytes(data)
    run = Run(options.state, options.hours * 3600)
    arguments = [sys.argv[0], "-max_len=12000", "-timeout=180", "-rss_limit_mb=5000", f"-max_total_time={int(options.hours * 3600)}"]
    arguments += ["-use_value_profile=0", "-print_final_stats=1", f"-artifact_prefix={options.state}/findings/", str(corpus)]
    atheris.Setup(arguments, run.one, custom_mutator=mutate)
    import atexit

    atexit.register(run.save)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
