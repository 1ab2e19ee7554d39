import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_forensics.plain import columns, cut_columns, plain
from tests.growth import growth


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("all_reduce #18", "all_reduce #18"),
        (None, ""),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b[2J\x1b]0;title\x07", "\\x1b[2J\\x1b]0;title\\x07"),
        ("a\tb", "a    b"),
        ("two\nlines\n", "two ⏎ lines"),
        ("user\u202egnp.exe", "user\\u202egnp.exe"),
        ("zero\u200bwidth", "zero\\u200bwidth"),
        ("log\udcff", "log\\udcff"),
        ("Größe 模型 ok", "Größe 模型 ok"),
        ("e" + "\u0301" * 50, "e" + "\u0301" * 3),
    ],
)
def test_text_is_shown_and_never_obeyed(raw, shown):
    assert plain(raw) == shown


@given(st.text(), st.integers(1, 50))
def test_nothing_invisible_passes_and_the_limit_is_kept(raw, limit):
    text = plain(raw, limit)
    assert len(text) <= limit
    assert text.isprintable()
    assert columns(cut_columns(text, limit)) <= limit


def test_a_line_of_megabytes_is_cut_at_once():
    line = "\u202e" * 20_000_000
    assert plain(line, 100).endswith("…")
    assert growth(lambda size: plain(line[:size], 100), 20_000, 1000) < 100
