"""What is written: the same bytes for the same seed, layouts as in real files, every line read."""

from __future__ import annotations

import collections
import gzip
import hashlib
import io
import json
import pickletools
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from nccl_forensics.cli import cli
from nccl_forensics.errors import OutputError, UsageError
from nccl_forensics.reading.source import read_source
from nccl_forensics.simulate import PLATFORMS, SCENARIOS, Request, make, simulate
from nccl_forensics.simulate.case import VARIANTS, new_case
from nccl_forensics.simulate.layout import Layout
from nccl_forensics.simulate.output import debug_log
from nccl_forensics.simulate.writers import nccl, recorder, torch_log
from nccl_forensics.simulate.writers.nccl_lines import Options
from tests.corpus import corpus


def digest(folder: Path) -> str:
    whole = hashlib.sha256()
    for file in sorted(p for p in folder.rglob("*") if p.is_file()):
        whole.update(str(file.relative_to(folder)).encode() + b"\0" + file.read_bytes())
    return whole.hexdigest()


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    made = []
    for number, seed in enumerate((7, 7, 8)):
        simulate(Request("collective-skipped", 8, seed, variant="dump"), tmp_path / str(number))
        made.append(digest(tmp_path / str(number)))
    assert made[0] == made[1] != made[2]


def test_every_scenario_has_three_variants_and_known_ones_only() -> None:
    for scenario in SCENARIOS.values():
        assert len(set(scenario.variants)) >= 3, scenario.name
        assert set(scenario.variants) <= set(VARIANTS), scenario.name
        assert set(scenario.platforms) <= set(PLATFORMS), scenario.name


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_each_scenario_writes_evidence_in_which_every_line_is_read(name: str, tmp_path: Path) -> None:
    scenario = SCENARIOS[name]
    ranks = 16 if scenario.hosts > 1 else 8
    simulate(Request(name, ranks, 1), tmp_path)
    truth = json.loads((tmp_path / "truth.json").read_text())
    assert truth["cause_accepted"]
    assert truth["world_size"] == ranks
    files = sorted(p for p in (tmp_path / "evidence").rglob("*") if p.is_file() and p.stat().st_size)
    assert files
    kinds: collections.Counter[str] = collections.Counter()
    for file in files:
        kind = re.sub(r"[0-9].*", "", file.name) + ("W" if b"WARN" in file.read_bytes() else "")
        kinds[kind] += 1
        if kinds[kind] > 2:
            continue
        read = read_source(file.read_bytes())
        assert (read.gap_lines, read.error) == (0, None), file
        assert read.records or file.name in ("stderr.log", "torchrun.log"), file
        if file.name.startswith("nccl."):
            assert read.unmodelled == 0, file
            assert read.foreign == 0, file


@pytest.mark.parametrize("platform", sorted(PLATFORMS))
def test_logs_of_every_platform_are_read_to_the_last_line(platform: str) -> None:
    for release in {PLATFORMS[platform].releases[0], PLATFORMS[platform].releases[-1]}:
        _, world = make(Request("collective-stuck", 16, 2, platform=platform, release=release, variant="log"))
        for rank in (0, 9):
            read = read_source("".join(debug_log(world, rank, Options(operations=True))).encode())
            assert (read.gap_lines, read.unmodelled, read.foreign) == (0, 0, 0)
            said = read_source("".join(torch_log.text(world, rank)).encode())
            assert said.gap_lines == 0


def kinds_of(lines: list[str]) -> collections.Counter[str]:
    """Kinds of lines: numbers, addresses and lists replaced by signs."""
    count: collections.Counter[str] = collections.Counter()
    for line in lines:
        found = re.match(r"^\S+:\d+:\d+ \[\d+\] NCCL INFO (.*)$", line)
        if found is None:
            continue
        kind = re.sub(r"0x[0-9a-f]+", "X", found[1])
        kind = re.sub(r"\S+<\d+>", "A", kind)
        kind = re.sub(r"\b[0-9a-f]*\d[0-9a-f]*\b", "N", kind)
        kind = re.sub(r"Trees .*", "Trees", kind)
        kind = re.sub(r"(Channel N/N :)(?: +N)+(?: \.\.\.)?$", r"\1 ring", kind)
        kind = re.sub(r"NVLS Head  N:.*", "NVLS Head", kind)
        kind = re.sub(r"opCount [0-9a-fN]+", "opCount N", kind)
        kind = re.sub(r"(Setting affinity for GPU N to|Affinity for GPU N is).*", r"\1", kind)
        kind = re.sub(r"- (?:Destroy|Abort) COMPLETE", "- End COMPLETE", kind)
        count[kind.replace("ncclCommInitRankConfig", "ncclCommInitRank").replace("[Rank N] ", "").replace("cudaN.N", "cuda")] += 1
    return count


@pytest.mark.corpus
@pytest.mark.parametrize("release", ["2.18.5", "2.21.5", "2.26.2", "2.27.7", "2.30.7"])
def test_kinds_of_lines_and_how_often_they_come_are_those_of_a_real_log_of_the_same_release(release: str) -> None:
    real: collections.Counter[str] = collections.Counter()
    for file in sorted((corpus(f"nccl-stub/healthy-ib-16r-{release}") / "evidence" / "logs").glob("nccl.*")):
        real += kinds_of(gzip.decompress(file.read_bytes()).decode(errors="replace").splitlines())
    case = new_case(16, 5, "dump", platform="h100", layout=Layout(16, words="mesh"), release=release)
    case.observe, case.first_step = "finish", 0
    world = case.build()
    made: collections.Counter[str] = collections.Counter()
    for rank in range(16):
        made += kinds_of("".join(nccl.log(world, rank, Options(operations=True))).splitlines())
    unknown = {k for k in made if k not in real and " - End COMPLETE" not in k and "cuda" not in k}
    assert not unknown
    once = {
        "Bootstrap:",
        "Bootstrap :",
        "NET/",
        "cudaDriver",
        "NCCL version",
        "NCCL git",
        "ENV/",
        "Initialized",
        "Using non-device",
        "Symmetric",
        "RAS client",
    }
    for kind, number in made.items():
        # The machine of the real logs had two processors, so half of its GPUs had no affinity to print.
        if kind not in real or "opCount" in kind or "ffinity" in kind:
            continue
        communicators = 1 if kind.startswith(tuple(once)) or (kind.startswith("PROFILER") and release == "2.26.2") else 2
        assert 0.5 <= number / communicators / real[kind] <= 1.5, (kind, number, real[kind])


@pytest.mark.parametrize("release", ["2.21.5", "2.27.7", "2.30.7"])
def test_dumps_hold_containers_and_plain_values_only_and_both_encodings_tell_the_same(release: str) -> None:
    _, world = make(Request("host-stall", 8, 3, variant="dump", platform="h100", release=release))
    at = world.processes[0].dumped_at
    assert at is not None
    raw = recorder.as_pickle(world, 0, at)
    allowed = {"GLOBAL", "REDUCE", "INST", "OBJ", "BUILD", "PERSID", "BINPERSID", "STACK_GLOBAL", "NEWOBJ"}
    assert not {op.name for op, _, _ in pickletools.genops(io.BytesIO(raw))} & allowed
    data = json.loads(recorder.as_json(world, 0, at))
    assert data["version"] == world.torch.schema
    plain = recorder.contents(world, 0, at)
    entries = plain["entries"]
    assert isinstance(entries, list)
    assert [e["record_id"] for e in data["entries"]] == [e["record_id"] for e in entries]
    assert {e["state"] for e in entries} == {"completed", "scheduled"}


def test_lost_files_are_missing_and_torn_ones_are_shorter(tmp_path: Path) -> None:
    whole = simulate(Request("healthy", 8, 2, variant="dump"), tmp_path / "whole")
    fewer = simulate(Request("healthy", 8, 2, variant="dump", lost=0.5), tmp_path / "lost")
    simulate(Request("healthy", 8, 2, variant="dump", torn=1.0), tmp_path / "torn")
    assert 0 < fewer < whole

    def sizes(folder: str) -> dict[str, int]:
        base = tmp_path / folder / "evidence"
        return {str(p.relative_to(base)): p.stat().st_size for p in base.rglob("*") if p.is_file() and p.stat().st_size > 64}

    full, torn = sizes("whole"), sizes("torn")
    assert all(torn[name] < full[name] for name in torn)


def test_sampled_detail_keeps_dumps_of_all_and_logs_of_some(tmp_path: Path) -> None:
    simulate(Request("host-stall", 256, 1, variant="dump", full=False), tmp_path)
    evidence = tmp_path / "evidence"
    assert len(list((evidence / "recorder").iterdir())) == 256
    assert 16 <= len(list((evidence / "logs").glob("nccl.*"))) < 64


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    for request in (
        Request("no-such-thing"),
        Request("socket-fallback", 8),
        Request("healthy", 8, rank=8),
        Request("healthy", 8, platform="abacus"),
        Request("healthy", 8, variant="poem"),
        Request("healthy", 8, platform="v100", release="2.30.7"),
        Request("mtu-mismatch", 16, platform="h100"),
        Request("collective-skipped", 8, variant="log", step=1000),
        Request("healthy", 8, step=2),
    ):
        with pytest.raises(UsageError):
            simulate(request, tmp_path / "none")
    simulate(Request("healthy", 8), tmp_path / "once")
    with pytest.raises(OutputError):
        simulate(Request("healthy", 8), tmp_path / "once")


def test_the_command_lists_scenarios_and_writes_one(tmp_path: Path) -> None:
    runner = CliRunner()
    listed = runner.invoke(cli, ["simulate", "--list"])
    assert listed.exit_code == 0
    assert all(name in listed.output for name in SCENARIOS)
    done = runner.invoke(cli, ["simulate", "rank-died", "-o", str(tmp_path / "a"), "--ranks", "8", "--seed", "4"])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "a" / "truth.json").exists()


def test_a_lasting_trouble_acts_beside_a_fault_and_stands_in_the_truth(tmp_path: Path) -> None:
    request = Request("collective-skipped", 16, 2, variant="log", platform="h100", also=("few-channels",))
    simulate(request, tmp_path)
    truth = json.loads((tmp_path / "truth.json").read_text())
    assert truth["cause_accepted"] == ["collective-skipped"]
    assert [a["scenario"] for a in truth["also"]] == ["few-channels"]
    logs = b"".join(p.read_bytes() for p in (tmp_path / "evidence" / "logs").glob("nccl.*"))
    assert logs.count(b"NCCL_MAX_NCHANNELS set by environment to") == 16
    with pytest.raises(UsageError):
        simulate(Request("collective-skipped", 16, 2, also=("rank-died",)), tmp_path / "other")


def test_the_past_of_a_host_lies_before_the_job() -> None:
    _, world = make(Request("healthy", 64, 5, variant="host", platform="h100"))
    old = [e for h in world.hosts for e in h.events]
    assert old
    assert all(h.boot_ns < at < world.begin - 3600 * 10**9 for h in world.hosts for at, _, _ in h.events)


def test_the_step_that_is_asked_for_is_the_one_in_which_the_fault_strikes() -> None:
    case, world = make(Request("collective-skipped", 8, variant="dump", rank=3, step=1000))
    assert case.changes.keys() == {(3, 1000)}
    assert min(state.ring[0].step for state in world.model.ranks.values()) >= 998
