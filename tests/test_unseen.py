"""The sets that nobody had seen contradict nothing, and their sums are those of their rows."""

from __future__ import annotations

import pytest

from tests.corpus import ROOT
from tests.unseen import families, filled, summary, table

_FAMILY = '[[family]]\nkey = "a"\ntitle = "Some jobs"\n'
_SET = '[[set]]\nid = "A{0}"\nfamily = "a"\nwhat = "x"\nincidents = {1}\nfirst = {{ {2} }}\n'


def test_every_row_can_be_read_and_each_page_holds_its_tables_as_they_are() -> None:
    assert len(families()) >= 8
    for name in ("accuracy.md", "unseen.md"):
        page = (ROOT / "docs" / name).read_text(encoding="utf-8")
        assert filled(page) == page
    assert all(f"<!-- table: {f.key} -->" in page for f in families())


def test_a_sum_is_of_the_rows_that_give_the_figure() -> None:
    rows = _SET.format(1, 10, "right = 6, rightly_abstained = 1, healthy = 2, healthy_high = 1, high = [4, 5]")
    rows += 'now = { right = 9 }\nnote = "one was made again"\n' + _SET.format(2, 4, "right = 4, high_wrong = 1")
    rows += _SET.format(3, 2, "right = 1, healthy = 1") + 'part_of = "A1"\n'
    (family,) = families(_FAMILY + rows)
    cells = "| 2 | 14 | 11 of 14 (79 %) | 2 (1) | 4 of 5 (80 %) + 1 wrong | 9 of 10 (90 %) | – | – |"
    assert f"| Some jobs {cells}\n" in summary([family])
    assert "| A1 | x | 10 | 6 | 1 | – | – | – | 2 (1) | 4 of 5 | 9 | – | – |\n" in table(family)
    assert "\n- A1: one was made again.\n" in table(family)


def test_figures_of_two_sets_together_stand_with_the_first() -> None:
    rows = _SET.format(1, 10, "right = 6") + "now = { of = 14, with_next = true, right = 9 }\n" + _SET.format(2, 4, "right = 3")
    (family,) = families(_FAMILY + rows)
    assert "| 9 of 14 (with A2) | – | – |\n" in table(family)
    assert "| with A1 | with A1 | with A1 |\n" in table(family)
    assert "| 9 of 14 (64 %) |" in summary([family])


@pytest.mark.parametrize(
    "row",
    [
        _SET.format(1, 3, "right = 2, wrong = 2"),
        _SET.format(1, 3, "right = 2, high = [3, 2]"),
        _SET.format(1, 3, "right = 2, healthy = 1, healthy_high = 2"),
        _SET.format(1, 3, "rihgt = 2"),
        _SET.format(1, 3, "right = 2") * 2,
        _SET.format(1, 3, "right = 2").replace('"a"', '"b"'),
        _SET.format(1, 3, "right = 2") + 'note = "one was made again."\n',
    ],
)
def test_a_row_that_contradicts_itself_is_refused(row: str) -> None:
    with pytest.raises(ValueError, match="A1"):
        families(_FAMILY + row)
