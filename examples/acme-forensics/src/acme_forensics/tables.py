"""The table of Acme's checks. Names of an extension's tables start with ``x_``."""

from nccl_forensics.tables.base import LINE, S, Table

TABLES = (
    Table(
        "x_acme_checks",
        "One check of one node before the job started.",
        {
            **LINE,
            "node": (S, "node that was checked"),
            "check": (S, "name of the check"),
            "passed": (S, "PASS or FAIL"),
            "detail": (S, "what was measured"),
        },
    ),
)
