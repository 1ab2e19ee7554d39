"""What could not be read."""

from __future__ import annotations

from nccl_forensics.tables.base import I64, LINE, RECORD, U32, B, S, Table

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
        "cut_ends",
        "Texts that end amid a line: what was written after that is lost, or was not copied.",
        {**LINE, "bytes": (I64, "size of the text"), "buffer": (B, "whether a full buffer of the writer ends there")},
    ),
)
