"""The gate: what makes a check fail, what does not, and what it says of either."""

from __future__ import annotations

import gzip
import re
import shutil
from datetime import date
from pathlib import Path

import orjson
import pytest

from nccl_forensics import api
from nccl_forensics.changes import Change
from nccl_forensics.gate import Demands, Gate, Tolerance, judge_run
from nccl_forensics.reading.engine import InlineEngine
from nccl_forensics.suppressions import Suppression, suppress
from tests.corpus import ROOT
from tests.test_docs import run

INCIDENTS = ROOT / "fixtures" / "incidents"
DAY = date(2026, 11, 21)


def finding(severity: str = "error", **changed: object) -> dict[str, object]:
    base: dict[str, object] = {"rule": "gdr-disabled", "code": "NI04", "fingerprint": "f1", "cause": "gdr-disabled", "severity": severity}
    return base | {"title": "no GDR", "summary": "", "hosts": ["node-1"], "ranks": [], "evidence": [], "suppressed": None} | changed


def trait(area: str, subject: str, value: str, number: float | None = None) -> dict[str, object]:
    return {"area": area, "subject": subject, "value": value, "number": number, "note": None, "path": "n.log", "line": 1, "record": None}


def bandwidth(gb_s: float, count: int = 1 << 30) -> dict[str, object]:
    return {"source": "t.txt", "line": 9, "collective": "all_reduce", "dtype": "float", "bytes": count, "ranks": 8, "bus_bw_gb_s": gb_s}


def report(**parts: object) -> dict[str, object]:
    base: dict[str, object] = {
        "generator": {"name": "nccl-forensics", "version": "1"},
        "case": {"title": "run", "inputs": ["run.tar"]},
        "verdict": {"status": "nothing-wrong", "summary": ""},
        "findings": [],
        "measures": {"traces": [], "bandwidth": [], "lag": []},
        "rules": [{"rule": "gdr-disabled", "code": "NI04", "status": "clean", "missing": [], "error": None}],
        "sources": [{"path": "n.log", "formats": ["nccl-log"], "records": 3}],
        "traits": [],
    }
    return base | parts


def gate(now: dict[str, object], good: dict[str, object] | None = None, today: date | None = DAY, **demands: object) -> Gate:
    return judge_run(now, Demands(**demands), good, today)  # type: ignore[arg-type]


def test_a_clean_run_passes() -> None:
    assert gate(report()).exit_code == 0


@pytest.mark.parametrize(
    ("severity", "fail_on", "code"), [("error", "error", 1), ("critical", "error", 1), ("warning", "error", 0), ("warning", "warning", 1)]
)
def test_a_finding_fails_from_the_demanded_severity_on(severity: str, fail_on: str, code: int) -> None:
    assert gate(report(findings=[finding(severity)]), fail_on=fail_on).exit_code == code


@pytest.mark.parametrize(
    ("status", "allow", "code"),
    [("unexplained", True, 1), ("insufficient-evidence", False, 1), ("insufficient-evidence", True, 0), ("explained", False, 0)],
)
def test_a_verdict_that_leaves_it_open_fails(status: str, allow: bool, code: int) -> None:
    assert gate(report(verdict={"status": status, "summary": ""}), allow_insufficient=allow).exit_code == code


def test_required_evidence_counts_only_where_something_was_read_from_it() -> None:
    assert gate(report(), require=("nccl-log",)).exit_code == 0
    assert gate(report(), require=("py-spy",)).exit_code == 3
    empty = [{"path": "n.log", "formats": ["nccl-log"], "records": 0}]
    assert gate(report(sources=empty), require=("nccl-log",)).exit_code == 3


def test_a_crashed_rule_is_a_defect_whatever_else_was_found() -> None:
    rules = [{"rule": "x", "code": "X1", "status": "crashed", "missing": [], "error": "ValueError"}]
    assert gate(report(rules=rules, findings=[finding()]), require=("py-spy",)).exit_code == 70


# --- suppressions ----------------------------------------------------------------------------------------------------------------


def accepted(until: date = DAY, **criteria: str) -> tuple[Suppression, ...]:
    return (Suppression("known", until, **(criteria or {"rule": "gdr-disabled"})),)


def test_a_suppressed_finding_stays_visible_and_does_not_fail() -> None:
    outcome = gate(report(findings=[finding(suppressed={"reason": "known", "until": "2026-11-21"})]))
    assert outcome.exit_code == 0
    assert [i.suppressed for i in outcome.issues] == ["known (until 2026-11-21)"]


@pytest.mark.parametrize(("today", "held"), [(DAY, True), (date(2026, 11, 22), False), (None, False)])
def test_a_suppression_holds_to_its_last_day_and_never_without_a_day(today: date | None, held: bool) -> None:
    [suppression] = accepted()
    assert suppression.holds(today) is held
    outcome = gate(report(findings=[finding()]), today=today, suppressions=(suppression,))
    said = " ".join(outcome.remarks)
    assert ("ended on 2026-11-21" in said, "give --today" in said) == (today is not None and not held, today is None)


@pytest.mark.parametrize(
    ("criteria", "fits"),
    [
        ({"rule": "gdr-disabled"}, True),
        ({"rule": "NI04"}, True),
        ({"rule": "other"}, False),
        ({"cause": "gdr-disabled", "host": "node-*"}, True),
        ({"cause": "gdr-disabled", "host": "rack-*"}, False),
        ({"fingerprint": "f1"}, True),
        ({"fingerprint": "f2"}, False),
    ],
)
def test_a_suppression_fits_by_all_its_criteria(criteria: dict[str, str], fits: bool) -> None:
    [suppression] = accepted(**criteria)
    assert suppression.fits(finding()) is fits


def test_a_host_pattern_must_cover_every_host_and_needs_one() -> None:
    [suppression] = accepted(rule="gdr-disabled", host="node-*")
    assert not suppression.fits(finding(hosts=["node-1", "rack-1"]))
    assert not suppression.fits(finding(hosts=[]))


def test_a_suppression_that_fits_nothing_is_told() -> None:
    assert "fits nothing" in gate(report(), suppressions=accepted()).remarks[0]


def test_what_an_accepted_finding_explains_is_accepted_with_it() -> None:
    root, symptom, deeper = finding(id="A"), finding(id="B", rule="x", explained_by="A"), finding(id="C", rule="y", explained_by="B")
    other, circle = finding(id="D", rule="z", explained_by="E"), finding(id="E", rule="z", explained_by="D")
    findings = [deeper, symptom, root, other, circle]
    suppress(findings, accepted(), DAY)
    assert [f["suppressed"] and f["suppressed"]["reason"] for f in findings] == [  # type: ignore[index]
        "explained by A: known",
        "explained by A: known",
        "known",
        None,
        None,
    ]


# --- the baseline ----------------------------------------------------------------------------------------------------------------

GOOD = report(
    measures={
        "traces": [{"rank": 0, "window": "steps", "span_ms": 100.0, "exposed_ms": 10.0, "overlap_fraction": 0.8}],
        "bandwidth": [bandwidth(200.0), bandwidth(100.0, 1 << 24)],
        "lag": [{"rank": 3, "collectives": 100, "lost_ms": 100.0}],
    },
    traits=[
        trait("channels", "collective channels", "24", 24),
        trait("transport", "transport over the network", "NET/IB"),
        trait("gdr", "GPUDirect RDMA", "on"),
        trait("setting", "NCCL_ALGO", "Ring"),
        trait("version", "NCCL", "2.27.7"),
        trait("topology", "NVLinks per GPU", "12", 12),
    ],
    findings=[finding("warning", fingerprint="old")],
)


def changed(**parts: object) -> dict[str, object]:
    measures = {**GOOD["measures"], **{k: v for k, v in parts.items() if k in ("traces", "bandwidth", "lag")}}  # type: ignore[dict-item]
    traits = [*GOOD["traits"]]  # type: ignore[misc]
    for area, value in parts.items():
        if area not in measures:
            number = value if isinstance(value, int) else None
            traits = [t | {"value": str(value), "number": number} if t["area"] == area else t for t in traits]
    return GOOD | {"measures": measures, "traits": traits}


def failing(outcome: Gate) -> list[str]:
    return [i.rule for i in outcome.failures]


def test_an_outcome_is_judged_by_its_findings_and_verdict_not_against_the_baseline() -> None:
    good = GOOD | {"traits": [*GOOD["traits"], trait("outcome", "the job", "finished")]}  # type: ignore[misc]
    slow = GOOD | {"traits": [*GOOD["traits"], trait("outcome", "the job", "slow")]}  # type: ignore[misc]
    assert failing(gate(slow, good)) == []


def test_the_same_run_again_is_no_regression() -> None:
    assert gate(GOOD, GOOD).exit_code == 0


@pytest.mark.parametrize(
    ("now", "rule"),
    [
        (changed(bandwidth=[bandwidth(150.0), bandwidth(75.0, 1 << 24)]), "baseline-bandwidth"),
        (changed(bandwidth=[bandwidth(200.0), bandwidth(70.0, 1 << 24)]), "baseline-bandwidth"),
        (
            changed(traces=[{"rank": 0, "window": "steps", "span_ms": 100.0, "exposed_ms": 10.0, "overlap_fraction": 0.6}]),
            "baseline-overlap",
        ),
        (changed(lag=[{"rank": 3, "collectives": 100, "lost_ms": 900.0}]), "baseline-lag"),
        (changed(channels=2), "baseline-channels"),
        (changed(transport="NET/Socket"), "baseline-transport"),
        (changed(gdr="partly"), "baseline-transport"),
        (changed(setting="Tree"), "baseline-environment"),
        (changed(version="2.26.2"), "baseline-version"),
        (changed(topology="1-12, asymmetric"), "baseline-topology"),
        (GOOD | {"findings": [finding("warning", fingerprint="new")]}, "baseline-finding"),
    ],
)
def test_each_area_can_regress(now: dict[str, object], rule: str) -> None:
    outcome = gate(now, GOOD)
    assert (outcome.exit_code, failing(outcome)) == (1, [rule])


@pytest.mark.parametrize(
    "now",
    [
        changed(bandwidth=[bandwidth(190.0), bandwidth(95.0, 1 << 24)]),
        changed(bandwidth=[bandwidth(300.0), bandwidth(150.0, 1 << 24)]),
        changed(bandwidth=[bandwidth(10.0, 1 << 20)]),
        changed(lag=[{"rank": 3, "collectives": 100, "lost_ms": 190.0}]),
        changed(channels=32),
        changed(transport="P2P/CUMEM"),
        GOOD | {"traits": [], "measures": {"traces": [], "bandwidth": [], "lag": []}},
        GOOD | {"findings": []},
    ],
)
def test_within_tolerance_better_or_not_shown_is_no_regression(now: dict[str, object]) -> None:
    assert failing(gate(now, GOOD)) == []


def test_small_sizes_say_nothing_of_bandwidth_where_large_ones_are_measured() -> None:
    rows = [bandwidth(200.0), bandwidth(1.0, 1024)]
    slower = [bandwidth(200.0), bandwidth(0.3, 1024)]
    assert failing(gate(changed(bandwidth=slower), changed(bandwidth=rows))) == []


def test_a_setting_that_is_new_beside_others_counts_but_harmless_ones_do_not() -> None:
    new = GOOD | {"traits": [*GOOD["traits"], trait("setting", "NCCL_PROTO", "LL")]}  # type: ignore[misc]
    assert failing(gate(new, GOOD)) == ["baseline-environment"]
    logged = GOOD | {"traits": [*GOOD["traits"], trait("setting", "NCCL_DEBUG_FILE", "x.log")]}  # type: ignore[misc]
    assert failing(gate(logged, GOOD)) == []


def test_areas_and_subjects_can_be_ignored_and_suppressed() -> None:
    now = changed(version="2.26.2")
    assert failing(gate(now, GOOD, tolerance=Tolerance(ignore=("version",)))) == []
    assert failing(gate(now, GOOD, tolerance=Tolerance(ignore=("version:NCCL",)))) == []
    assert failing(gate(now, GOOD, tolerance=Tolerance(ignore=("version:GPU driver",)))) == ["baseline-version"]
    assert failing(gate(now, GOOD, suppressions=accepted(rule="baseline-version"))) == []
    mark = Change("version", "NCCL", "changed", "", "").fingerprint
    assert failing(gate(now, GOOD, suppressions=accepted(fingerprint=mark))) == []


def test_a_finding_that_fails_or_is_suppressed_is_not_told_again_as_new() -> None:
    assert failing(gate(GOOD | {"findings": [finding("error", fingerprint="new")]}, GOOD)) == ["gdr-disabled"]
    known = finding("error", fingerprint="new", suppressed={"reason": "known", "until": "2027-01-01"})
    assert failing(gate(GOOD | {"findings": [known]}, GOOD)) == []


# --- the command -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("nccl_forensics.api.default_engine", lambda bundle, limits=None: InlineEngine())
    return tmp_path


SKIPPED = str(INCIDENTS / "skipped-collective-8r" / "evidence")


def test_a_bad_run_fails_and_a_suppression_with_its_reason_lets_it_pass(place: Path) -> None:
    assert run(["check", SKIPPED]).exit_code == 1
    (place / "nccl-forensics.toml").write_text(
        "[[suppress]]\ncause = 'collective-skipped'\nreason = 'the drill of this week'\nuntil = 2090-01-01\n"
    )
    done = run(["check", SKIPPED, "--json", "r.json", "--today", "2026-11-21"])
    assert (done.exit_code, "the drill of this week" in done.output) == (0, True)
    saved = orjson.loads((place / "r.json").read_bytes())
    assert {"reason": "the drill of this week", "until": "2090-01-01"} in [f["suppressed"] for f in saved["findings"]]
    assert saved["verdict"]["cause"] == "collective-skipped"
    assert run(["check", SKIPPED, "--today", "2090-01-02"]).exit_code == 1


def test_analyze_marks_what_its_configuration_suppresses(place: Path) -> None:
    (place / "c.toml").write_text("[[suppress]]\ncause = 'collective-skipped'\nreason = 'known'\nuntil = 2090-01-01\n")
    report = orjson.loads(run(["analyze", SKIPPED, "--config", "c.toml", "--json", "-"]).stdout_bytes)
    marked = [f["suppressed"] for f in report["findings"] if f["cause"] == "collective-skipped"]
    assert marked
    assert all(m == {"reason": "known", "until": "2090-01-01"} for m in marked)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "not valid JSON"),
        (b"{}", "no report"),
        (b"[]", "no report"),
        (b'{"schema":"nccl-forensics/report/9"}', "report/9"),
        (None, "cannot be read"),
    ],
)
def test_a_baseline_that_is_no_report_is_exit_code_2(place: Path, content: bytes | None, said: str) -> None:
    if content is not None:
        (place / "b.json").write_bytes(content)
    done = run(["check", SKIPPED, "--baseline", "b.json"])
    assert done.exit_code == 2
    assert said in str(done.exception)


def test_unusable_evidence_is_exit_code_3_and_still_a_junit_error(place: Path) -> None:
    (place / "run").mkdir()
    (place / "run" / "x.bin").write_bytes(bytes(range(256)))
    done = run(["check", "run", "--junit", "j.xml", "--github"])
    assert done.exit_code == 3
    assert "<error" in (place / "j.xml").read_text()
    assert done.output.startswith("::error title=nccl-forensics::")


def test_a_fingerprint_stays_when_times_pids_addresses_paths_and_ports_move(place: Path) -> None:
    """The same fault in another run: other process ids, pointers and folder, and lines in front that shift all line numbers."""
    source = INCIDENTS / "nccl-version-mismatch-8r" / "evidence"
    shutil.copytree(source, place / "again" / "deeper")
    for file in sorted((place / "again").rglob("*.log*")):
        data = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        text = re.sub(r"(node-\d+):(\d+):(\d+)", lambda m: f"{m[1]}:{int(m[2]) + 1117}:{int(m[3]) + 1117}", data.decode())
        text = "launcher line\n" * 7 + re.sub(r"0x[0-9a-f]{8,}", lambda m: f"{int(m[0], 16) ^ 0x5A50:#x}", text)
        file.write_bytes(gzip.compress(text.encode()) if file.suffix == ".gz" else text.encode())
    one, other = (api.analyze([folder], engine=InlineEngine()).report["findings"] for folder in (source, place / "again"))
    assert isinstance(one, list)
    assert isinstance(other, list)
    assert one
    assert [f["fingerprint"] for f in one] == [f["fingerprint"] for f in other]
    assert [e["line"] for e in one[0]["evidence"]] != [e["line"] for e in other[0]["evidence"]]
