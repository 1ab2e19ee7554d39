"""Small wording helpers that rules and reports share: rank lists, groups, operations."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

#: A process whose rank nothing tells takes part in comparisons under this number plus that of its source; it is never printed as a rank.
UNIDENTIFIED = 1_000_000_000
#: What a host is called of which the evidence does not tell the name.
UNKNOWN_HOST = "host unknown"
#: A group's name that PyTorch made of its ranks (distributed_c10d.py, _hash_ranks_to_str: SHA-1).
_HASH = re.compile(r"[0-9a-f]{40}")


def rank_list(ranks: Iterable[int], at_most: int = 12) -> str:
    """``0-2, 4, 6-7``; of more than so many ranges the first third, then ``… (2,047 ranks)``: a cut list names nobody, so it may as well be short."""
    numbers = sorted(set(ranks))
    ranges: list[str] = []
    start = previous = None
    for n in [*numbers, None]:
        if previous is not None and n != previous + 1:
            ranges.append(str(start) if start == previous else f"{start}-{previous}")
            start = n
        if start is None:
            start = n
        previous = n
    if len(ranges) > at_most:
        return f"{', '.join(ranges[: max(3, at_most // 3)])} … ({len(numbers):,} ranks)"
    return ", ".join(ranges)


def sentence(words_: str) -> str:
    """A capital at the start where a plain word stands there; names of operations and settings stay as they are."""
    first = words_.split(" ", 1)[0]
    return words_[:1].upper() + words_[1:] if first.isalpha() and first.islower() else words_


#: A name that ends in a number; one with zeros before it is told together with numbers of its width alone.
_NUMBERED = re.compile(r"(.*?)([0-9]{1,9})", re.DOTALL)


def folded(names: Iterable[str]) -> list[str]:
    """``mlx5_[0-7]`` for eight names, as Slurm lists hosts: of each run of three and more that differ in the number at their end alone, one."""
    runs: list[list[str]] = []
    for name in names:
        if runs and _follows(runs[-1][-1], name):
            runs[-1].append(name)
        else:
            runs.append([name])
    return [text for run in runs for text in (run if len(run) < 3 else [_run(run[0], run[-1])])]


def _follows(name: str, other: str) -> bool:
    one, two = _NUMBERED.fullmatch(name), _NUMBERED.fullmatch(other)
    return one is not None and two is not None and one[1] == two[1] and two[2] == str(int(one[2]) + 1).zfill(len(one[2]))


def _run(first: str, last: str) -> str:
    stem = first.rstrip("0123456789")
    numbers = f"{first[len(stem) :]}-{last[len(stem) :]}"
    return f"{stem}[{numbers}]" if stem else numbers


def ranks_words(ranks: Iterable[int]) -> str:
    """``rank 3`` or ``ranks 0-2, 4``."""
    everyone = sorted(set(ranks))
    numbers = [r for r in everyone if r < UNIDENTIFIED]
    unknown = len(everyone) - len(numbers)
    named = "" if not numbers else f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {rank_list(numbers)}"
    others = "" if not unknown else f"{unknown} process{'es' if unknown > 1 else ''} of unknown rank"
    return " and ".join(w for w in (named, others) if w) or "no rank"


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """A key that sorts names with the numbers in them as numbers: ``gpu9`` before ``gpu10``."""
    return tuple((int(p), "") if p.isascii() and p.isdigit() and len(p) < 18 else (-1, p) for p in re.split(r"([0-9]+)", name) if p)


def first_label(host: object) -> str | None:
    """The first label of a host's name: logs mix short and full names."""
    return str(host).split(".", 1)[0] if host else None


def verb(ranks: Iterable[int], one: str, many: str) -> str:
    """The verb that fits the number of ranks."""
    return one if len(set(ranks)) == 1 else many


def group_words(row: Mapping[str, object]) -> str:
    """How a process group or communicator is called: ``default_pg (0)``, ``tp_2 (3)``, ``communicator 0x1d7e…``.

    Of a name that is a hash of forty digits the first eight tell it from the others; the whole of it stands in the report's ``collective``.
    """
    name, desc, comm = row.get("group_name"), row.get("group_desc"), row.get("comm_id")
    name = f"{str(name)[:8]}…" if name is not None and _HASH.fullmatch(str(name)) else name
    desc = None if desc == "undefined" else desc  # what PyTorch writes of a group that was made without a description
    if desc and name and desc != name:
        return f"process group {desc} ({name})"
    if name or desc:
        return f"process group {name or desc}"
    if comm:
        return f"communicator {comm}"
    return f"group {row.get('group_key')}"


def operation_words(op: object, seq: object) -> str:
    """``all_reduce #18``."""
    return f"{op or 'operation'} #{seq}" if seq is not None else str(op or "an operation")


def time_words(ms: object) -> str:
    """A span of milliseconds as one reads it: ``40 µs``, ``1.4 ms``, ``14 ms``, ``1.4 s``."""
    value = float(str(ms))
    if value >= 950:
        return f"{value / 1000:,.1f} s"
    return f"{value:.{int(value < 10)}f} ms" if value >= 1 else f"{value * 1000:.0f} µs"
