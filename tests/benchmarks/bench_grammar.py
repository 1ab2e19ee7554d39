"""How fast the column form of a grammar is, beside Lark line by line and beside a loop of Python's ``re``.

``python tests/benchmarks/bench_grammar.py [megabytes]``: makes operation lines of NCCL, and prints MB/s and ratios. All three yield the
same columns of the same grammar. Lark and the loop run on a part of the lines, as their speed does not depend on the number of lines.
No test of the suite: a shared machine would make it fail at random. Asked for: 60 times Lark, 1.5 times the loop.
"""

from __future__ import annotations

import random
import re
import sys
import time
from collections.abc import Callable

import polars as pl

from nccl_forensics.grammar.lines import load

_OPS = ("AllReduce", "AllGather", "ReduceScatter", "Broadcast")
_LARK_LINES = 10_000
_LOOP_LINES = 200_000
_TURNS = 4


def operation_lines(megabytes: float) -> pl.Series:
    """About that much text of operation messages."""
    rng = random.Random(7)
    lines: list[str] = []
    size, number = 0, 0
    while size < megabytes * 1e6:
        number += 1
        line = (
            f"{rng.choice(_OPS)}: opCount {number:x} sendbuff 0x7f4d5{rng.randrange(16**7):07x} recvbuff 0x7f4d5{rng.randrange(16**7):07x} "
            f"count {rng.randrange(1, 10**8)} datatype {rng.randrange(10)} op {rng.randrange(5)} root 0 comm 0x558e72d8e6a0 [nranks=64] "
            "stream 0x558e7224b640"
        )
        lines.append(line)
        size += len(line) + 1
    return pl.Series("text", lines)


def columns(texts: pl.Series) -> None:
    """The form that the program uses."""
    found = load("nccl").extract(texts)
    assert found.frames["operation"].height == texts.len()


def lark(texts: pl.Series) -> None:
    """Lark's own parser, line by line."""
    parse = load("nccl").parse
    for text in texts.to_list():
        assert parse(text) is not None


def loop(texts: pl.Series) -> None:
    """Python's ``re`` with the same pattern over each line of the text, groups appended to lists."""
    pattern = re.compile(load("nccl").kinds["operation"].pattern)
    match = pattern.match
    lists: list[list[str | None]] = [[] for _ in range(pattern.groups)]
    append = [values.append for values in lists]
    for text in "\n".join(texts.to_list()).split("\n"):
        hit = match(text)
        if hit is not None:
            for add, value in zip(append, hit.groups(), strict=True):
                add(value)
    assert len(lists[0]) == texts.len()


def rate(run: Callable[[pl.Series], None], texts: pl.Series) -> float:
    """MB/s of one run."""
    size = int(texts.str.len_bytes().sum()) + texts.len()
    start = time.perf_counter()
    run(texts)
    return size / 1e6 / (time.perf_counter() - start)


def main() -> None:
    """Print the figures."""
    megabytes = float(sys.argv[1]) if len(sys.argv) > 1 else 100.0
    texts = operation_lines(megabytes)
    columns(texts.head(1000))
    lark(texts.head(100))
    # In turns, and the best of each: another process on the machine then slows all three or none.
    turns = [(rate(columns, texts), rate(loop, texts.head(_LOOP_LINES)), rate(lark, texts.head(_LARK_LINES))) for _ in range(_TURNS)]
    fast, middle, slow = (max(rates) for rates in zip(*turns, strict=True))
    out = sys.stdout.write
    out(f"{texts.len()} lines, {megabytes:.0f} MB\n")
    out(f"columns {fast:8.1f} MB/s\n")
    out(f"re loop {middle:8.1f} MB/s   columns are {fast / middle:6.1f} times faster (asked: 1.5)\n")
    out(f"Lark    {slow:8.1f} MB/s   columns are {fast / slow:6.1f} times faster (asked: 60)\n")


if __name__ == "__main__":
    main()
