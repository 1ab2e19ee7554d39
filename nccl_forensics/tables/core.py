"""What could not be read."""

from __future__ import annotations

from nccl_forensics.tables.base import I64, LINE, RECORD, U32, S, Table

TABLES: tuple[Table, ...] = (
    Table(
        "gaps",
        "What could not be read: one row per line range or place in a document.",
        {
            **LINE,
            **RECORD,
            "format": (S, "format that gave up"),
            "reason": (S, "unparsed, truncated, torn, unreadable, limit"),
            "text": (S, "start of the text, at most 200 characters"),
        },
    ),
    Table(
        "unmodelled",
        "Lines of which only the prefix was understood, one row per distinct shape of text (digits and hex folded).",
        {
            **LINE,
            "format": (S, "format that claims the line"),
            "shape": (S, "text with numbers folded"),
            "count": (U32, "lines of this shape in the source"),
        },
    ),
    Table(
        "buffer_ends",
        "Texts that end amid a line where a full buffer of their writer does: what it wrote after that is lost.",
        {**LINE, "bytes": (I64, "size of the text")},
    ),
)
