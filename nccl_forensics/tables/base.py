"""What a table is, and the columns that several tables share.

Rows that a format returns lack ``source_id``; the driver adds it. Every text table has ``line_no`` (1-based, LF-separated,
as ``sed -n Np`` counts), every document table has ``record`` (a pointer such as ``entries[18]``). A missing value is null.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import polars as pl
from polars.exceptions import PanicException, PolarsError

#: What a column of whole numbers holds.
_RANGES: dict[pl.DataType, tuple[int, int]] = {
    pl.UInt32(): (0, 2**32 - 1),
    pl.Int32(): (-(2**31), 2**31 - 1),
    pl.Int64(): (-(2**63), 2**63 - 1),
}

U32, I64, I32, F64, S, B = pl.UInt32(), pl.Int64(), pl.Int32(), pl.Float64(), pl.String(), pl.Boolean()
SL = pl.List(pl.String())


@dataclass(frozen=True, slots=True)
class Table:
    """One table: its name, what a row is, and its columns with type and meaning.

    ``own``: where rows are many and of few sorts, the columns that differ from row to row; such a table may be kept folded (``folding``).
    """

    name: str
    doc: str
    columns: dict[str, tuple[pl.DataType, str]]
    own: tuple[str, ...] = ()

    @property
    def schema(self) -> dict[str, pl.DataType]:
        """Column types as the format returns them (without ``source_id``)."""
        return {name: dtype for name, (dtype, _) in self.columns.items()}

    def frame(self, rows: list[dict[str, object]] | dict[str, list[object]] | None = None) -> pl.DataFrame:
        """A frame of this table; columns that the rows lack are null."""
        if not rows:
            return pl.DataFrame(schema=self.schema)
        try:
            return self.conform(pl.DataFrame(rows, schema_overrides=self.schema, strict=False, infer_schema_length=None))
        except (PolarsError, PanicException, ValueError, TypeError, OverflowError):
            # A value beyond its type (an integer of more than 64 bits, a lone surrogate) costs itself, not the rows of the source.
            return self.conform(pl.DataFrame(self._fitted(rows), schema_overrides=self.schema, strict=False, infer_schema_length=None))

    def _fitted(self, rows: list[dict[str, object]] | dict[str, list[object]]) -> dict[str, list[object]]:
        """The columns of this table with every value that its type cannot hold as null."""
        if isinstance(rows, dict):
            return {c: [_fit(v, t) for v in rows[c]] for c, t in self.schema.items() if c in rows}
        return {c: [_fit(row.get(c), t) for row in rows] for c, t in self.schema.items()}

    def conform(self, frame: pl.DataFrame) -> pl.DataFrame:
        """The same rows with exactly this table's columns, in order, cast; what does not fit a type becomes null."""
        columns = []
        for name, dtype in self.schema.items():
            if name in frame.columns:
                column = frame.get_column(name)
                columns.append(column if column.dtype == dtype else column.cast(dtype, strict=False))
            else:
                columns.append(pl.Series(name, [], dtype=dtype).clear(frame.height))
        return pl.DataFrame(columns)


def _fit(value: object, dtype: pl.DataType) -> object:
    """The value as the type holds it, else null; lone surrogates become U+FFFD."""
    if value is None:
        return None
    if isinstance(dtype, pl.List):
        inner = dtype.inner if isinstance(dtype.inner, pl.DataType) else dtype.inner()
        return [_fit(v, inner) for v in value] if isinstance(value, list | tuple) else None
    if dtype in _RANGES:
        low, high = _RANGES[dtype]
        if isinstance(value, float) and not value.is_integer():
            return None
        return int(value) if isinstance(value, int | float) and low <= value <= high else None
    if dtype == pl.Float64():
        return float(value) if isinstance(value, int | float) and abs(value) <= sys.float_info.max else None
    if dtype == pl.Boolean():
        return value if isinstance(value, bool) else None
    return str(value).encode("utf-8", "replace").decode("utf-8") if isinstance(value, str | int | float) else None


LINE = {"line_no": (U32, "line in the source, 1-based"), "end_line": (U32, "last line of the record where it spans several")}
RECORD = {"record": (S, "pointer into the document, such as entries[18]")}
#: What the launcher's prefixes (mpirun, srun, torchrun, kubectl ...) said about the writer of a line.
HINT = {
    "hint_rank": (I32, "rank that a launcher prefix states"),
    "hint_scope": (S, "what that number counts: global, local, task"),
    "hint_host": (S, "host or pod that a launcher prefix states"),
    "hint_pid": (I64, "process id that a launcher prefix states"),
}
TIME = {
    "time_raw_ns": (I64, "time as written, ns; for unzoned text as if it were UTC"),
    "time_kind": (S, "epoch, local-unzoned, local-yearless (kept as of the year 2000), monotonic"),
}
#: Of what tools and files of hosts print.
WHERE = {**LINE, **RECORD, **TIME, **HINT, "host": (S, "host that the output itself states")}
NCCL = {
    **LINE,
    "host": (S, "host of the NCCL prefix, cut at the first dot by NCCL"),
    "pid": (I64, "process id of the NCCL prefix"),
    "tid": (I64, "thread id of the NCCL prefix"),
    "dev": (I32, "CUDA device current in the calling thread; not the rank"),
    **TIME,
    **HINT,
}
