"""The table of files and formats: nothing of the host corpus is left without a format or a reason."""

from __future__ import annotations

import pytest

from tests.corpus import corpus
from tests.coverage_of_corpus import Covered, cover, failures

FILE = Covered("host/x.log", ("nccl-log",), 100, 98, 1, 1, None, 100, 3, None)


def test_a_file_of_no_format_needs_a_reason() -> None:
    unknown = Covered("host/y", (), 1, 0, 0, 1, None, 0, 0, None)
    assert failures([FILE, unknown]) == ["host/y: read by no format, and no reason is listed"]
    assert failures([FILE, Covered("host/y", (), 1, 0, 0, 1, None, 0, 0, "a schema")]) == []


def test_a_log_may_leave_three_of_a_hundred_nccl_lines() -> None:
    assert failures([FILE]) == []
    [said] = failures([Covered("host/x.log", ("nccl-log",), 100, 96, 2, 0, None, 100, 4, None)])
    assert said == "host/x.log: 4 of 100 NCCL lines (4.0 %) are gaps or without a model"


@pytest.mark.corpus
def test_every_file_of_the_host_corpus_is_read_or_unknown_on_purpose() -> None:
    corpus("host")
    files = list(cover("host"))
    assert failures(files) == []
    assert sum(bool(f.formats) for f in files) > 30
