"""What the coverage-guided run (``tests/fuzz``) found once stays mended, and disturbed evidence of every format keeps the promises."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nccl_forensics.formats import own_formats
from nccl_forensics.reading import read_source
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


def test_the_seeds_hold_evidence_of_every_format():
    missing = {f.name for f in own_formats()}
    for name, data in SEEDS.items():
        if missing and data[:1] == b"s" and not name.startswith("s-incidents"):
            missing -= set(read_source(data[1:]).formats)
    assert not missing


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
