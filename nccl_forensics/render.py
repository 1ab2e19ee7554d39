"""Templates: the one home of Jinja2. Templates place text; they do not compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from nccl_forensics.resources import reports_folder


@cache
def _environment(html: bool) -> Environment:
    return Environment(
        loader=FileSystemLoader(reports_folder(), encoding="utf-8"),
        autoescape=html,  # noqa: S701 (Markdown escapes by the filters of its reporter)
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def render_html(template: str, values: Mapping[str, object]) -> str:
    """A template of ``reports/`` with every value escaped for HTML."""
    return _environment(True).get_template(template).render(dict(values))


def render_text(template: str, values: Mapping[str, object], filters: Mapping[str, Callable[[str], str]]) -> str:
    """A template of ``reports/`` that escapes with the named filters, one for each place that text can stand in."""
    environment = _environment(False).overlay()
    environment.filters.update(filters)
    return environment.get_template(template).render(dict(values))


def asset(name: str) -> str:
    """A style sheet or script of ``reports/`` with Unix line ends, as a browser hashes it."""
    return (reports_folder() / name).read_text(encoding="utf-8").replace("\r\n", "\n")
