"""Evidence in a block of lines, such as a stack, is quoted at the line that is meant."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nccl_forensics.api import analyze
from nccl_forensics.conclusions.assemble import _meant
from nccl_forensics.evidence import at_frame, cite, words_of_exception
from nccl_forensics.model import Evidence
from nccl_forensics.reading.engine import InlineEngine
from tests.corpus import ROOT

STACK = Evidence("line", 0, 4)


@pytest.mark.parametrize(
    "written",
    ["    save (job/ckpt.py:61)", '  File "/opt/job/ckpt.py", line 61 in save', "#9 0x7f save () at /opt/job/ckpt.py:61"],
)
def test_a_frame_is_found_in_the_words_of_any_sampler(written: str) -> None:
    [cited] = at_frame([STACK], "save (ckpt.py:61)")
    lines = [(4, 'Thread 9 (idle): "MainThread"'), (5, "    wait (threading.py:8)"), (6, written)]
    assert _meant(lines, cited.holds) == (6, written)


def test_a_frame_of_the_next_stack_or_none_leaves_the_first_line() -> None:
    [cited] = at_frame([STACK], "save (ckpt.py:61)")
    lines = [(4, "Thread 9"), (5, "    wait (threading.py:8)"), (6, ""), (7, "    save (ckpt.py:61)")]
    assert _meant(lines, cited.holds) == (4, "Thread 9")
    assert at_frame([STACK], None) == (STACK,)
    record = Evidence("record", 0, record="entries[3]")
    assert at_frame([record], "save (ckpt.py:61)") == (record,)


RAISED = {"source_id": 0, "line_no": 4, "type": "MemoryError", "message": "no 4 GiB\nleft"}


def test_an_exception_is_quoted_at_the_line_that_tells_it_and_not_at_that_of_another_process() -> None:
    [cited] = cite([RAISED | {"holds": words_of_exception(RAISED)}], "raised by this rank")
    lines = [
        (4, "[rank1]: Traceback (most recent call last):"),
        (5, "[rank0]: MemoryError: no 4 GiB"),
        (6, '[rank1]:   File "a.py", line 3'),
        (7, "[rank1]: MemoryError: no 4 GiB"),
    ]
    assert _meant(lines, cited.holds) == lines[3]
    assert _meant(lines[:3], cited.holds) == lines[0], "the line itself was lost"
    assert words_of_exception({"type": None, "message": None}) == ()


def test_the_stack_of_a_stalled_rank_is_quoted_at_its_own_line_of_code() -> None:
    evidence: Path = ROOT / "fixtures" / "incidents" / "lab-host-stall-3r" / "evidence"
    [finding] = json.loads(analyze([evidence], engine=InlineEngine()).json())["findings"]
    stack = finding["evidence"][0]
    assert "push_metrics (job/host_work.py:176)" in stack["text"]
    lines = (evidence / stack["path"]).read_text(encoding="utf-8").split("\n")
    assert lines[stack["line"] - 1] == stack["text"]
