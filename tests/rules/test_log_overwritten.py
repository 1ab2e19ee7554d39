"""NCCL logs of several processes in one file that each of them wrote from its beginning."""

from __future__ import annotations

import polars as pl

from nccl_forensics.rules.log_overwritten import log_overwritten
from nccl_forensics.views.matching import operations
from nccl_forensics.views.overwriting import overwritten
from tests.rules.frames import told
from tests.rules.host_frames import table


def tails(processes: int, lines: int = 9, files: bool = False) -> pl.LazyFrame:
    return table(
        "nccl_tails",
        *(
            {"source_id": p if files else 0, "line_no": 9 + p, "host": "n1", "pid": 100 + p, "dev": p, "lines": lines}
            for p in range(processes)
        ),
    )


def made(**events: tuple[int, ...]) -> pl.LazyFrame:
    """Which processes tell that their init began (``start``) and came up (``complete``)."""
    return table(
        "nccl_comms",
        *(
            {"source_id": 0, "line_no": 3 + p, "host": "n1", "pid": 100 + p, "event": f"init-{event}", "comm": f"0x{p}", "nranks": 4}
            for event, processes in events.items()
            for p in processes
        ),
    )


def version(text: str) -> pl.LazyFrame:
    return table("nccl_versions", {"source_id": 0, "line_no": 1, "version": text})


NEW = version("2.25.1+cuda12.9")


def test_processes_without_the_lines_that_they_wrote_tell_of_a_file_of_many_writers() -> None:
    [finding] = log_overwritten.check(overwritten(made(start=(0,), complete=(0, 1)), tails(4), NEW))
    assert told(finding) == ("info", "high", ())
    assert finding.metrics == {"processes": 4, "holed": 3}
    assert [e.line for e in finding.evidence] == [10]


def test_logs_that_launchers_put_together_or_cut_are_not_taken_for_it() -> None:
    # Every process tells of its init; one line of one of four is torn.
    assert log_overwritten.check(overwritten(made(start=(0, 1, 2), complete=(0, 1, 2, 3)), tails(4), NEW)) == []
    # All died before they came up, and were started again.
    assert log_overwritten.check(overwritten(made(start=(3,), complete=(3,)), tails(4), NEW)) == []
    # Each has a file of its own, and up to 2.21 no process tells that its init began.
    assert log_overwritten.check(overwritten(made(complete=(0,)), tails(4, files=True), NEW)) == []
    assert log_overwritten.check(overwritten(made(complete=(0, 1)), tails(4), version("2.21.5"))) == []


def test_a_number_that_was_cut_off_is_no_process() -> None:
    torn = pl.concat([tails(2), tails(6, lines=1).filter(pl.col("pid") > 101)])
    assert log_overwritten.check(overwritten(made(start=(0, 1), complete=(0, 1)), torn, NEW)) == []


def test_operations_of_such_a_file_are_left_out() -> None:
    call = {"op": "AllReduce", "count": 8, "dtype": 7, "red_op": 0, "root": 0, "op_count": 0, "nranks": 4, "line_no": 20}
    ops = table("nccl_ops", *({**call, "source_id": s, "host": "n1", "pid": 100 + s, "comm": f"0x{s}"} for s in (0, 1)))
    holed = overwritten(made(start=(0,), complete=(0, 1)), tails(4), NEW)
    assert _sources(operations(None, None, ops, None, None, None, None, None)) == {0, 1}
    assert _sources(operations(None, None, ops, None, None, None, None, holed)) == {1}


def _sources(found: object) -> set[int]:
    frame = found if isinstance(found, pl.LazyFrame) else found.calls().every  # type: ignore[attr-defined]
    return set(frame.collect()["source_id"].to_list())
