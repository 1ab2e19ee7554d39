"""A view that fails costs the rules that need it, not the report."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

from nccl_forensics import views
from nccl_forensics.api import analyze
from nccl_forensics.reading.engine import InlineEngine
from tests.corpus import ROOT

EVIDENCE = ROOT / "fixtures" / "incidents" / "skipped-collective-8r" / "evidence"
HEALTHY = ROOT / "fixtures" / "incidents" / "healthy-gloo-4r" / "evidence"


def failing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on this view raises."""

    def fall(*_: object) -> pl.LazyFrame:
        raise ValueError("planted")

    planted = views.all_views() | {name: replace(views.all_views()[name], function=fall)}
    monkeypatch.setattr(views, "all_views", lambda: planted)


def test_rules_that_need_it_are_reported_and_the_report_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    failing("waits", monkeypatch)
    report = analyze([EVIDENCE], engine=InlineEngine()).report
    crashed = {r["rule"] for r in report["rules"] if r["status"] == "crashed"}  # type: ignore[attr-defined]
    assert "host-stall" in crashed
    assert report["verdict"]["cause"] == "collective-skipped"  # type: ignore[index]


def test_without_the_signs_of_failure_nothing_is_called_well(monkeypatch: pytest.MonkeyPatch) -> None:
    assert analyze([HEALTHY], engine=InlineEngine()).report["verdict"]["status"] == "nothing-wrong"  # type: ignore[index]
    failing("failures", monkeypatch)
    assert analyze([HEALTHY], engine=InlineEngine()).report["verdict"]["status"] == "insufficient-evidence"  # type: ignore[index]


def test_a_check_of_ours_that_broke_off_leaves_nothing_called_well(monkeypatch: pytest.MonkeyPatch) -> None:
    failing("endings", monkeypatch)
    report = analyze([HEALTHY], engine=InlineEngine()).report
    assert {r["status"] for r in report["rules"] if r["rule"] == "rank-died"} == {"crashed"}  # type: ignore[attr-defined]
    assert report["verdict"]["status"] == "insufficient-evidence"  # type: ignore[index]
    assert "broke off" in report["verdict"]["summary"]  # type: ignore[index]
