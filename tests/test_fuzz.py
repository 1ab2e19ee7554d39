"""What the coverage-guided run (``tests/fuzz``) found once stays mended, and disturbed evidence of every format keeps the promises."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nccl_forensics.formats import own_formats
from nccl_forensics.reading.source import read_source
from tests.fuzz import targets

FOLDER = Path(__file__).parent / "fuzz"
KEPT = sorted((FOLDER / "regressions").iterdir()) + sorted((FOLDER / "corpus").glob("*"))
SEEDS = targets.seeds()


@pytest.mark.parametrize("file", KEPT, ids=lambda f: f.name)
def test_an_input_that_was_kept_breaks_no_promise(file: Path):
    data = file.read_bytes()
    targets.check(data)
    if data[:1] == b"s" and file.parent.name == "regressions":
        targets.incident(data[1:])


@cache
def seeds_of_formats() -> dict[str, list[str]]:
    """Two seeds at most for each format: the search ends when every format has one."""
    found: dict[str, list[str]] = {f.name: [] for f in own_formats()}
    for name, data in SEEDS.items():
        if all(found.values()):
            break
        if data[:1] == b"s" and not name.startswith("s-incidents"):
            for read in read_source(data[1:]).formats:
                if len(found[read]) < 2:
                    found[read].append(name)
    return found


def test_the_seeds_hold_evidence_of_every_format():
    assert not [name for name, seeds in seeds_of_formats().items() if not seeds]


def test_each_format_keeps_the_promises_on_disturbed_evidence_of_its_own():
    # The drawing of examples below is blind: here every format of the registry gets its share, whatever else is drawn.
    rng = random.Random(7)
    for seeds in seeds_of_formats().values():
        for name in seeds:
            for _ in range(3):
                targets.check(b"s" + targets.disturbed(SEEDS[name][1:], rng))


@settings(max_examples=250, deadline=None)
@given(st.sampled_from(sorted(SEEDS)), st.integers(0, 1 << 32), st.integers(1, 6))
def test_disturbed_evidence_of_every_format_breaks_no_promise(name: str, seed: int, times: int):
    rng = random.Random(seed)
    data = SEEDS[name]
    body = data[1:]
    for _ in range(times):
        body = targets.disturbed(body, rng)
    targets.check(data[:1] + body)


@settings(max_examples=12, deadline=None)
@given(st.sampled_from([n for n, d in sorted(SEEDS.items()) if d[:1] == b"s"]), st.integers(0, 1 << 32))
def test_no_rule_crashes_on_disturbed_evidence(name: str, seed: int):
    rng = random.Random(seed)
    targets.incident(targets.disturbed(targets.disturbed(SEEDS[name][1:], rng), rng))
