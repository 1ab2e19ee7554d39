"""The verdict as text of an Acme ticket: ``nccl-forensics analyze EVIDENCE --report acme-ticket=ticket.txt``."""

from collections.abc import Mapping

from nccl_forensics.extras import Extras
from nccl_forensics.presentation import present
from nccl_forensics.reporters.base import Reporter


def render(report: Mapping[str, object], extras: Extras) -> str:
    """``present`` gives every text of a report in harmless form: no reporter has to clean what evidence says."""
    page = present(report, extras)
    lines = [f"Summary: {page.headline}", f"Component: {page.verdict.cause or 'unknown'}", ""]
    lines += [f"* [{f.severity}] {f.title}" for f in page.findings]
    return "\n".join(lines) + "\n"


TICKET = Reporter("acme-ticket", "the verdict as an Acme ticket", render)
