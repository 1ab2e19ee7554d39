"""Quoted lines: what stands close together is shown once."""

from nccl_forensics.extras import Extras
from nccl_forensics.presentation.opinions import finding_text
from nccl_forensics.presentation.values import ContextText, Quote, excerpts


def quote(line: int, path: str = "a.log", around: int = 2) -> Quote:
    context = tuple(ContextText(n, f"line {n}", n == line) for n in range(max(1, line - around), line + around + 1))
    return Quote("line", f"{path}:{line}", path, f"line {line}", "why", (), False, False, context)


def test_neighbours_in_one_file_become_one_excerpt_with_several_marks() -> None:
    [together] = excerpts([quote(3), quote(4), quote(8)])
    assert [line.number for line in together.context] == list(range(1, 11))
    assert [line.number for line in together.context if line.marked] == [3, 4, 8]
    assert [q.where for q in together.quotes] == ["a.log:3", "a.log:4", "a.log:8"]


def test_lines_far_apart_in_other_files_and_absences_stay_apart() -> None:
    absence = Quote("absence", "", "", "", "nothing there", ("a.log",), False, False, ())
    given = [quote(3), quote(30), quote(4, "b.log"), absence, quote(5)]
    assert [e.quotes for e in excerpts(given)] == [(q,) for q in given]


def test_an_excerpt_does_not_grow_without_end() -> None:
    assert all(len(e.context) <= 30 for e in excerpts([quote(n) for n in range(3, 200, 4)]))


def test_a_line_whose_surroundings_were_not_read_stands_with_its_number_among_those_of_the_one_before() -> None:
    lines = [{"kind": "line", "path": "a.log", "line": n, "text": f"NCCL WARN at line {n}", "why": "why"} for n in (3, 4)]
    around = tuple((n, f"line {n}", n == 3) for n in range(1, 6))
    finding = finding_text({"id": "x.1", "evidence": lines}, {}, Extras(contexts={("x.1", 0): around}), 10)
    [together] = finding.excerpts
    assert [(line.number, line.text) for line in together.context if line.marked] == [(3, "line 3"), (4, "NCCL WARN at line 4")]
