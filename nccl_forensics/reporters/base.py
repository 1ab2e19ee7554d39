"""Reports: each module has ``render(report, extras)``; those that ``analyze --report`` can name, and those of extensions, are listed
here."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from nccl_forensics.plugins import Plugin, Unacceptable, gathered, load

if TYPE_CHECKING:  # twenty dataclasses that a run without pictures has no need of
    from nccl_forensics.extras import Extras


@dataclass(frozen=True, slots=True)
class Reporter:
    """One kind of report: ``render`` turns ``report.json``'s mapping, and what its pictures need, into the text or bytes of a file."""

    name: str
    title: str
    render: Callable[[Mapping[str, object], Extras], str | bytes]


def _html(report: Mapping[str, object], extras: Extras) -> str:
    from nccl_forensics.reporters import html

    return html.render(report, extras)


def _markdown(report: Mapping[str, object], extras: Extras) -> str:
    from nccl_forensics.reporters import markdown

    return markdown.render(report, extras)


def _json(report: Mapping[str, object], _extras: Extras) -> bytes:
    from nccl_forensics.reporters import json_report

    return json_report.render(report)


OWN = (
    Reporter("html", "the postmortem as one HTML file", _html),
    Reporter("json", "report.json", _json),
    Reporter("markdown", "the postmortem as Markdown", _markdown),
)


@cache
def third_party() -> tuple[Plugin[Reporter], ...]:
    """Reporters of extensions."""
    taken = {r.name for r in OWN}

    def accept(held: object) -> list[Reporter]:
        reporters = gathered(held, Reporter)
        for reporter in reporters:
            if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", reporter.name):
                raise Unacceptable(f"reporter {reporter.name!r}: a name is made of a-z, 0-9 and -")
            if reporter.name in taken:
                raise Unacceptable(f"reporter {reporter.name!r} is there already")
            if not callable(reporter.render):
                raise Unacceptable(f"reporter {reporter.name!r}: render cannot be called")
            taken.add(reporter.name)
        return reporters

    return load("reporters", accept)


@cache
def all_reporters() -> dict[str, Reporter]:
    """Every reporter by name."""
    return {r.name: r for r in (*OWN, *(r for plugin in third_party() for r in plugin.values))}
