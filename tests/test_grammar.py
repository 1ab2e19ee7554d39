"""Grammars: what a rule becomes, which kind a line is given to, and that Lark and the column form agree on every line."""

from __future__ import annotations

import gzip
import random
import re
from collections.abc import Iterable
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nccl_forensics.grammar.lines import Extraction, Grammar, GrammarError, load
from nccl_forensics.resources import grammars_folder
from tests.corpus import ROOT, corpus
from tests.growth import growth

_DEMO = r"""
start: call | list | either | named
call: OP ": opCount " OP_COUNT " sendbuff " _PTR [" root " ROOT] [" tail " TAIL]
list: "Using" (" [" N "]" DEVICE)* "; via " NAME
either: ("Loading " | "Could not load ") PATH
named: NAME " is here"
OP: /[A-Z][A-Za-z]+/
OP_COUNT: /[0-9a-f]+/
ROOT: /[0-9]+/
TAIL: /.+/
N: /[0-9]+/
DEVICE: /[a-z0-9_]+/
NAME: /[a-z]+/
PATH: /[^ ]+/
_PTR: /0x[0-9a-f]+|\(nil\)/
"""


def demo() -> Grammar:
    return Grammar("demo", _DEMO)


def columns_of(found: Extraction, row: int) -> tuple[str, dict[str, str | None]] | None:
    """Kind and columns of one row of the column form, as ``Grammar.parse`` gives them."""
    kind = found.kind[row]
    if kind is None:
        return None
    return kind, found.frames[kind].filter(pl.col("row") == row).drop("row").row(0, named=True)


def test_a_terminal_fills_the_column_of_its_name_and_an_underscore_drops_it() -> None:
    found = demo().extract(pl.Series(["AllReduce: opCount 1e sendbuff (nil) root 3"]))
    assert columns_of(found, 0) == ("call", {"op": "AllReduce", "op_count": "1e", "root": "3", "tail": None})


def test_an_optional_part_that_is_missing_is_null() -> None:
    found = demo().extract(pl.Series(["AllReduce: opCount 1e sendbuff 0x1 tail of it"]))
    assert columns_of(found, 0) == ("call", {"op": "AllReduce", "op_count": "1e", "root": None, "tail": "of it"})


def test_rows_keep_their_places_and_strangers_have_no_kind() -> None:
    found = demo().extract(pl.DataFrame({"text": ["no", "Loading /a", "AllReduce: opCount 1 sendbuff 0x1", "Could not load /b"]}))
    assert found.kind.to_list() == [None, "either", "call", "either"]
    assert found.frames["either"].to_dict(as_series=False) == {"row": [1, 3], "path": ["/a", "/b"]}
    assert found.frame("list") is None


def test_one_blank_stands_for_many_and_trailing_blanks_do_not_count() -> None:
    found = demo().extract(pl.Series(["AllReduce:   opCount  1 sendbuff    0x1   "]))
    assert found.kind.to_list() == ["call"]
    assert demo().parse("AllReduce:   opCount  1 sendbuff    0x1   ") == columns_of(found, 0)


def test_a_pattern_covers_the_whole_line() -> None:
    assert demo().extract(pl.Series(["x Loading /a", "Loading /a b"])).kind.to_list() == [None, None]


def test_parts_that_repeat_fill_no_column_and_are_read_from_the_tree() -> None:
    text = "Using [0]mlx5_0 [1]mlx5_1; via eth"
    used = demo()
    assert not used.kinds["list"].flat
    assert used.kinds["call"].flat
    assert columns_of(used.extract(pl.Series([text])), 0) == ("list", {"name": "eth"})
    tree = used.tree(text, "list")
    assert tree is not None
    assert [str(token) for token in tree.scan_values(lambda token: token.type == "DEVICE")] == ["mlx5_0", "mlx5_1"]
    assert used.tree("Using nothing", "list") is None


def test_few_rows_and_many_rows_give_the_same() -> None:
    one = ["AllReduce: opCount 1e sendbuff 0x1 root 3", "Loading /a", "stranger"]
    few, many = demo().extract(pl.Series(one)), demo().extract(pl.Series(one * 100))
    assert many.kind.to_list() == few.kind.to_list() * 100
    assert [columns_of(many, row) for row in (297, 298)] == [columns_of(few, row) for row in (0, 1)]


def test_one_long_line_takes_no_longer_than_it_is_long() -> None:
    lines = load("collect_env")  # a version of digits and of letters and digits behind them, which are told apart in every way
    assert growth(lambda size: lines.extract(pl.Series([f"Python version: 0.0.{'0' * size}\x01"])), 4000) < 8


def test_an_earlier_kind_is_tried_first_and_a_later_one_takes_what_it_leaves() -> None:
    used = Grammar("two", 'start: narrow | wide\nnarrow: "rank " N\nwide: "rank " ANY\nN: /[0-9]+/\nANY: /.+/\n')
    assert used.extract(pl.Series(["rank 3", "rank three"])).kind.to_list() == ["narrow", "wide"]


def test_the_kinds_of_the_leftmost_word_are_tried_before_all_others() -> None:
    kinds = " | ".join(f"other{n}" for n in range(9))
    rules = "\n".join(f'other{n}: "other{n} " ANY' for n in range(9))
    used = Grammar("many", f'start: {kinds} | first | second\n{rules}\nfirst: ANY "late " ANY\nsecond: "early " ANY\nANY: /[a-z ]+/\n')
    texts = ["early or late now", "other3 x", "nothing"]
    assert used.extract(pl.Series(texts)).kind.to_list() == ["second", "other3", None]
    assert [(used.parse(text) or (None,))[0] for text in texts] == ["second", "other3", None]


def test_a_column_may_stand_in_several_alternatives() -> None:
    used = Grammar("twice", 'start: k\nk: "a " N " b" | "c " N " d"\nN: /[0-9]+/\n')
    found = used.extract(pl.Series(["a 1 b", "c 2 d"]))
    assert found.frames["k"]["n"].to_list() == ["1", "2"]


def test_no_rows_give_no_frames() -> None:
    found = demo().extract(pl.Series("text", [], dtype=pl.String))
    assert found.frames == {}
    assert found.kind.len() == 0


@pytest.mark.parametrize(
    "text",
    [
        'start: k\nk: "a " D\nD: /\\d+/\n',
        'start: k\nk: "a " D\nD: /[0-9]+(?=x)/\n',
        'start: k\nk: "a" k "b" | D\nD: /[0-9]+/\n',
        'start: k\nk: D (" " D)*\nD: /[0-9]+/\n',
        'start: k\nk: "a" /[0-9]+/\n',
    ],
)
def test_a_grammar_that_the_two_forms_would_read_differently_is_refused(text: str) -> None:
    with pytest.raises(GrammarError, match="bad"):
        Grammar("bad", text)


def test_a_grammar_is_loaded_once() -> None:
    assert load("nccl") is load("nccl")


# --- both forms agree -------------------------------------------------------------------------------------------------------------------

_GRAMMARS = sorted(path.stem for path in grammars_folder().glob("*.lark"))
_MESSAGE = re.compile(r"NCCL (?:INFO|WARN|CALL|TRACE) +")


def assert_agree(used: Grammar, texts: list[str]) -> int:
    """Lark and the column form give the same kind and columns for every text; returns how many texts had a kind."""
    found = used.extract(pl.Series(texts, dtype=pl.String))
    rows: list[tuple[str, dict[str, str | None]] | None] = [None] * len(texts)
    for kind, frame in found.frames.items():
        for values in frame.iter_rows(named=True):
            rows[values.pop("row")] = (kind, values)
    for text, row in zip(texts, rows, strict=True):
        assert used.parse(text) == row, text
    return sum(row is not None for row in rows)


def shapes(lines: Iterable[str]) -> list[str]:
    """One line of each shape (numbers folded), and of NCCL's lines the message alone too."""
    seen: dict[str, str] = {}
    for line in lines:
        parts = (line, _MESSAGE.split(line, maxsplit=1)[-1].lstrip())
        for text in parts:
            seen.setdefault(re.sub(r"0x[0-9a-f]+|[0-9]+", "#", text)[:120], text)
    return list(seen.values())


def lines_of(path: Path) -> list[str]:
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8", "replace").split("\n")


@pytest.mark.parametrize("name", _GRAMMARS)
def test_lark_and_the_column_form_agree_on_the_fixtures(name: str) -> None:
    paths = [p for p in sorted((ROOT / "fixtures").rglob("*")) if p.suffix in (".log", ".txt", ".out") and p.stat().st_size < 2 << 20]
    texts = shapes(line for path in paths for line in lines_of(path))
    random.Random(5).shuffle(texts)
    agreed = assert_agree(load(name), texts[:1500])
    assert agreed > 0 or name not in ("nccl", "nccl_errors", "nccl_prefix")


@pytest.mark.corpus
@pytest.mark.parametrize("name", ["nccl", "nccl_errors", "nccl_prefix"])
def test_lark_and_the_column_form_agree_on_a_sample_of_real_logs(name: str) -> None:
    root = corpus("public")
    paths = [
        p
        for p in sorted(root.rglob("*nccl*")) + sorted(root.glob("nccl*/evidence/*"))
        if p.is_file() and p.suffix in (".log", ".txt", ".gz")
    ]
    texts = shapes(line for path in random.Random(11).sample(sorted(set(paths)), min(8, len(set(paths)))) for line in lines_of(path))
    random.Random(5).shuffle(texts)
    assert_agree(load(name), texts[:800])


_WORDS = st.sampled_from(
    [
        "AllReduce",
        ":",
        " ",
        "  ",
        "opCount",
        "1e",
        "sendbuff",
        "0x1",
        "(nil)",
        "root",
        "3",
        "tail",
        "Using",
        "[0]",
        "; via",
        "eth",
        "Loading",
        "is here",
        "x",
    ]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(_WORDS, max_size=14).map("".join))
def test_both_forms_agree_on_made_up_lines(text: str) -> None:
    assert_agree(demo(), [text])
