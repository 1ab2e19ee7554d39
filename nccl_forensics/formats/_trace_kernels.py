"""What kind of work each kernel name stands for, by our own classes and by those of HolisticTraceAnalysis and TraceLens."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from nccl_forensics.facts.collective_kernels import CUSTOM, HTA_COMMUNICATION, HTA_MEMORY, NCCL_FUNCTIONS, TRACELENS_COMMUNICATION
from nccl_forensics.frames import typed
from nccl_forensics.grammar.lines import load

#: Longest name that is kept; template kernels run to thousands of characters.
NAME = 120

SCHEMA = typed(
    "name:u32 text:str communicates:bool backend:str op:str function:str named_algorithm:str named_protocol:str hta:str tracelens:bool",
)


def classify(names: Sequence[str]) -> pl.DataFrame:
    """One row per kernel name, ``name`` being its number: whether it communicates, who wrote it, its operation, the peers' classes."""
    found = load("collective_kernel").extract(pl.Series("text", names, dtype=pl.String))
    read: dict[int, dict[str, object]] = {}
    for frame in found.frames.values():
        for row in frame.iter_rows(named=True):
            read[row["row"]] = row
    rows = [_row(number, name, read.get(number)) for number, name in enumerate(names)]
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def _row(number: int, name: str, nccl: dict[str, object] | None) -> tuple[object, ...]:
    op: str | None = None
    function: str | None = None
    backend: str | None = None
    if nccl is not None:
        backend, function = "nccl", str(nccl["func"])
        op = NCCL_FUNCTIONS.get(function)
    else:
        low = name.lower()
        if low.removeprefix("void ").startswith("nccl"):
            backend = "nccl"
        else:
            known = next(((part, o) for part, o in CUSTOM if part in low), None)
            if known is not None:
                backend, function, op = "custom", known[0], known[1]
    hta = "communication" if HTA_COMMUNICATION.match(name) else "memory" if HTA_MEMORY.match(name) else "compute"
    return (
        number,
        name[:NAME],
        backend is not None,
        backend,
        op,
        function,
        nccl.get("algo") if nccl else None,
        nccl.get("proto") if nccl else None,
        hta,
        TRACELENS_COMMUNICATION.search(name) is not None,
    )
