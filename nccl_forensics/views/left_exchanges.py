"""Exchanges of all with all that one rank left out: by what the others expected, and what it alone recorded."""

from __future__ import annotations

import polars as pl

from nccl_forensics.alignment import candidates
from nccl_forensics.facts.collective_kernels import ELEMENT_BYTES
from nccl_forensics.frames import typed
from nccl_forensics.values.shapes import elements
from nccl_forensics.views import view
from nccl_forensics.views.calls import EXCHANGES, Calls, calls_of
from nccl_forensics.views.columns import read_at
from nccl_forensics.views.deaths import told_at
from nccl_forensics.views.gloo_rings import lengths_said

LEFT_EXCHANGES = typed(
    "rank:i32 receivers:list[i32] group_name:str comm_id:str seq:i64 op:str left_shape:str made_shape:str got_bytes:i64 expected_bytes:i64",
    "call_site:str",
    read_at(),
    read_at("said_"),
)


@view(rows="ranks")
def left_exchanges(endings: pl.LazyFrame, operations: pl.LazyFrame | Calls) -> pl.LazyFrame:
    """The one rank that made, among its last calls of a group, the exchange that comes after another one in each of its steps, without that one
    before it, where all that aborted (``receivers``, without a record in that group) expected just what each gets in the one that it left out,
    and got what each gets in the one that it made. Gloo takes what is shorter than it should be for the whole, so that the rank may have come
    a call further.

    Of an exchange in equal parts each member gets as many bytes as all divided by their number; which that is the rank's own call tells.
    Cites the rank's record (``source_id`` …) and what a receiver says (``said_…``).
    """
    nothing = pl.LazyFrame(schema=LEFT_EXCHANGES)
    aborted = endings.filter((pl.col("signature") == "gloo-size-mismatch") & pl.col("rank").is_not_null()).sort("rank").collect()
    said = [lengths_said(row["message"]) for row in aborted.iter_rows(named=True)]
    if not said or len(set(said)) > 1 or said[0] is None:
        return nothing
    got, expected = said[0]
    receivers = aborted["rank"].to_list()
    own = (pl.col("domain") == "fr") & ~pl.col("is_p2p") & pl.col("seq").is_not_null() & pl.col("rank").is_not_null()
    made = calls_of(operations).recent().filter(own & pl.col("group_key").is_in(_groups(operations).implode())).sort("seq").collect()
    told = told_at(aborted.row(0, named=True))
    rows: list[dict[str, object]] = []
    heard = made.filter(pl.col("rank").is_in(receivers)).select("group_key").unique()
    for _, line in made.join(heard, on="group_key", how="anti", maintain_order="left").group_by("group_key", "rank", maintain_order=True):
        calls: list[_Call] = list(line.select("op", "shape", "dtype").iter_rows())
        for at, left in _left_out(calls):
            sent, due = _bytes(calls[at]), _bytes(left)
            members = sent // got if sent is not None else 0
            if members > len(receivers) and (sent, due) == (got * members, expected * members):
                there = line.row(at, named=True)
                shapes = {"left_shape": left[1], "made_shape": calls[at][1], "got_bytes": got, "expected_bytes": expected}
                place = {name: there[name] for name in LEFT_EXCHANGES if name in there} | {f"said_{name}": v for name, v in told.items()}
                rows.append(place | shapes | {"receivers": receivers})
    return pl.DataFrame(rows, schema=LEFT_EXCHANGES, infer_schema_length=None).lazy() if len(rows) == 1 else nothing


def _groups(operations: pl.LazyFrame | Calls) -> pl.Series:
    """Groups with exchanges."""
    counts = calls_of(operations).counts
    return (
        counts.filter((pl.col("domain") == "fr") & pl.col("op").is_in(EXCHANGES))
        .select(pl.col("group_key").unique())
        .collect()["group_key"]
    )


#: Operation, shape and type.
_Call = tuple[str, str, str]


#: Latest calls of a rank that are looked at.
_LATEST = 3


def _left_out(calls: list[_Call]) -> list[tuple[int, _Call]]:
    """Where one of the latest calls is not what the steps before foretell but what they foretell right behind that, and what was due."""
    found = []
    for at in range(max(len(calls) - _LATEST, 1), len(calls)):
        foretold = candidates(calls[:at])
        if len(foretold) == 1 and foretold[0] != calls[at] and candidates([*calls[:at], foretold[0]]) == [calls[at]]:
            found.append((at, foretold[0]))
    return found


def _bytes(call: _Call) -> int | None:
    op, shape, dtype = call
    width = ELEMENT_BYTES.get(str(dtype).lower())
    return sum(elements(shape)) * width if width is not None and op in EXCHANGES else None
