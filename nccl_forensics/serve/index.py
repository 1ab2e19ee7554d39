"""What an incident is found by, taken from its report: its causes, hosts, ranks and GPUs, and the words of its findings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from nccl_forensics.serve.clock import ms_of_iso
from nccl_forensics.values.documents import mapping

#: Raised when more or other things are taken from a report: all are then taken anew.
VERSION = 1
_SUBJECTS = 8192
_TEXT = 200_000


@dataclass(frozen=True, slots=True)
class Index:
    """``subjects``: kind (cause, host, rank, gpu), value, and whether the verdict blames it. ``text`` is what free text finds."""

    verdict: Mapping[str, object]
    happened_ms: int | None
    subjects: tuple[tuple[str, str, bool], ...]
    names: str
    text: str


def index_of(report: Mapping[str, object]) -> Index:
    """Index of a report of the contract."""
    verdict = mapping(report.get("verdict"))
    case = mapping(report.get("case"))
    subjects: dict[tuple[str, str], bool] = {}
    for kind, value, culprit in (*_of_verdict(verdict), *_of_case(case), *_of_findings(report)):
        if len(subjects) < _SUBJECTS or (kind, value) in subjects:
            subjects[kind, value] = subjects.get((kind, value), False) or culprit
    words = [_text(verdict.get("summary")), _text(verdict.get("remedy")), _text(verdict.get("status"))]
    for finding in _rows(report.get("findings")):
        words += [_text(finding.get("title")), _text(finding.get("summary")), _text(finding.get("rule"))]
    return Index(
        verdict,
        ms_of_iso(case.get("ended_at")) or ms_of_iso(case.get("started_at")),
        tuple((kind, value, culprit) for (kind, value), culprit in subjects.items()),
        " ".join(value if kind != "rank" else f"rank {value}" for kind, value in subjects),
        "\n".join(w for w in words if w)[:_TEXT],
    )


def _of_verdict(verdict: Mapping[str, object]) -> Iterator[tuple[str, str, bool]]:
    for one in (verdict, *_rows(verdict.get("others"))):
        if cause := _text(one.get("cause")):
            yield "cause", cause, True
        for culprit in _rows(one.get("culprits")):
            host, gpu = culprit.get("host"), culprit.get("gpu")
            for kind in ("host", "rank"):
                if (value := culprit.get(kind)) is not None:
                    yield kind, str(value), True
            if gpu is not None:
                yield "gpu", f"{host} GPU {gpu}" if host is not None else f"GPU {gpu}", True


def _of_case(case: Mapping[str, object]) -> Iterator[tuple[str, str, bool]]:
    for host in _values(case.get("hosts")):
        yield "host", host, False


def _of_findings(report: Mapping[str, object]) -> Iterator[tuple[str, str, bool]]:
    for finding in _rows(report.get("findings")):
        if finding.get("severity") == "info":
            continue
        if cause := _text(finding.get("cause")):
            yield "cause", cause, False
        for host in _values(finding.get("hosts")):
            yield "host", host, False
        for rank in _values(finding.get("ranks")):
            yield "rank", rank, False


def _rows(value: object) -> Iterable[Mapping[str, object]]:
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, (list, tuple)) else []


def _values(value: object) -> Iterable[str]:
    return [str(v) for v in value if isinstance(v, (str, int))] if isinstance(value, (list, tuple)) else []


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
