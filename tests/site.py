"""The documentation as a static site: ``python -m tests.site [OUT]`` copies docs/ with a page for every rule and format, and lets Sphinx
build it.

Every warning is an error: a link without a target, a page that no other leads to, a block that cannot be read.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

from nccl_forensics import __version__
from nccl_forensics.formats import own_formats
from nccl_forensics.formats.base import TextFormat
from nccl_forensics.rules import own_rules
from nccl_forensics.tables import TABLES
from tests.corpus import ROOT
from tests.coverage import anchor, shown_formats, shown_rules

#: Pages in the order in which one reads them; what is not listed here is an error of Sphinx.
CONTENTS = {
    "Begin": ("start", "first-verdict", "install", "cookbook", "walkthrough"),
    "Use": ("postmortem", "check", "compare", "sql", "serve", "collect", "simulate", "traces", "python", "lab", "scale"),
    "Know": ("measures", "data-model", "accuracy", "unseen", "speed", "coverage", "limits", "threat-model", "glossary"),
    "Reference": (
        "reference/formats",
        "reference/rules",
        "reference/tables",
        "reference/views",
        "reference/checklists",
        "reference/settings",
        "reference/xid",
    ),
    "Work on it": ("architecture", "extending", "contributing", "changelog"),
}
_CONF = f"""
project = "nccl-forensics"
version = release = "{__version__}"
copyright = "the authors, Apache-2.0"
extensions = ["myst_parser"]
myst_heading_anchors = 4
myst_enable_extensions = []
html_theme = "alabaster"
html_title = "nccl-forensics"
html_copy_source = False
html_show_sourcelink = False
exclude_patterns = []
suppress_warnings = ["misc.highlighting_failure"]
"""


def sources(place: Path) -> None:
    """The pages as Sphinx reads them."""
    shutil.copytree(ROOT / "docs", place)
    (place / "conf.py").write_text(_CONF, encoding="utf-8")
    for name in ("CONTRIBUTING", "CHANGELOG"):
        text = (ROOT / f"{name}.md").read_text(encoding="utf-8")
        (place / f"{name.lower()}.md").write_text(text.replace("](docs/", "]("), encoding="utf-8")
    known = {p.relative_to(place).with_suffix("").as_posix() for p in place.rglob("*.md")}
    listed = {page for pages in CONTENTS.values() for page in pages}
    chapters = "".join(
        f"\n```{{toctree}}\n:caption: {title}\n:maxdepth: 1\n\n{chr(10).join(p for p in pages if p in known)}\n```\n"
        for title, pages in CONTENTS.items()
    )
    # Pages that somebody added stand at the end until CONTENTS gives them a place.
    more = sorted(known - listed - {"index"})
    if more:
        chapters += f"\n```{{toctree}}\n:caption: More\n:maxdepth: 1\n\n{chr(10).join(more)}\n```\n"
    index = place / "index.md"
    index.write_text(index.read_text(encoding="utf-8") + chapters, encoding="utf-8")
    _rule_pages(place / "reference")
    _format_pages(place / "reference")
    for page in place.rglob("*.md"):
        page.write_text(_links(page.read_text(encoding="utf-8"), page, place), encoding="utf-8")


def _rule_pages(folder: Path) -> None:
    """One page for each rule; the list of all keeps its headings, so that links into it hold."""
    (folder / "rules").mkdir()
    for r in own_rules():
        tests = ", ".join(f"`tests/{file}`" for file in shown_rules().get(r.name, ()))
        text = f"# {r.code} {r.name}\n\nCause `{r.cause}`, severity {r.severity}. Reads {', '.join(f'`{n}`' for n in r.inputs.names)}.\n\n{r.page}\n"
        if r.inputs.thresholds:
            text += f"\n## Thresholds\n\nUnder `[rules.{r.name}]` of the configuration file.\n\n| threshold | default | meaning |\n|---|---|---|\n"
            text += "".join(f"| `{t.name}` | {t.default} | {t.meaning} |\n" for t in r.inputs.thresholds)
        if r.explains:
            text += f"\n## Explains\n\nA finding of this rule accounts for {', '.join(f'`{e}`' for e in r.explains)}.\n"
        text += f"\n## Shown by\n\n{tests or 'no test of its own'}\n"
        (folder / "rules" / f"{r.name}.md").write_text(text, encoding="utf-8")
    names = "\n".join(f"rules/{r.name}" for r in own_rules())
    page = folder / "rules.md"
    text = re.sub(r"<!--.*?-->\n\n", "", page.read_text(encoding="utf-8"))
    page.write_text(f"{text}\n```{{toctree}}\n:hidden:\n\n{names}\n```\n", encoding="utf-8")


def _format_pages(folder: Path) -> None:
    """One page for each format: what claims it, what it fills, what its module says."""
    (folder / "formats").mkdir()
    for f in own_formats():
        module = sys.modules[f.read.__module__]
        text = f"# {f.name}\n\n{f.title}.\n\n{(module.__doc__ or '').strip()}\n\n"
        if isinstance(f, TextFormat):
            text += f"A text format: lines that hold one of {', '.join(f'`{a.strip()}`' for a in f.anchors)} are offered to it.\n"
        else:
            text += "A format of whole files, told by their first 64 KiB.\n"
        for name in f.tables:
            text += f"\n## {name}\n\n{TABLES[name].doc}\n\n| column | type | meaning |\n|---|---|---|\n"
            text += "".join(f"| `{c}` | {dtype} | {meaning} |\n" for c, (dtype, meaning) in TABLES[name].columns.items())
        tests = ", ".join(f"`tests/{file}`" for file in shown_formats().get(f.name, ()))
        text += f"\n## Shown by\n\n{tests or 'tests/formats/test_every_format.py'}\n"
        (folder / "formats" / f"{f.name}.md").write_text(text, encoding="utf-8")
    page = folder / "formats.md"
    text = page.read_text(encoding="utf-8")
    for f in own_formats():
        text = text.replace(f"| `{f.name}` |", f"| [`{f.name}`](formats/{f.name}.md) |")
    names = "\n".join(f"formats/{f.name}" for f in sorted(own_formats(), key=lambda f: f.name))
    page.write_text(f"{text}\n```{{toctree}}\n:hidden:\n\n{names}\n```\n", encoding="utf-8")


def _links(text: str, page: Path, place: Path) -> str:
    """Links to rules lead to their own pages; links that leave docs/ become text, the site has no such file."""
    inside = page.relative_to(place)
    up = "../" * (len(inside.parts) - 1)
    for r in own_rules():
        for target in (f"reference/rules.md#{anchor(r.name)}", f"rules.md#{anchor(r.name)}"):
            text = text.replace(f"]({target})", f"]({up}reference/rules/{r.name}.md)")
    names = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}

    def outside(found: re.Match[str]) -> str:
        target = found[2].split("#")[0]
        if target in names or target.removeprefix("../") in names:
            return f"[{found[1]}]({up}{names[target.removeprefix('../')]})"
        there = (page.parent / target).resolve()
        return found[0] if there.is_relative_to(place.resolve()) and there.exists() else found[1]

    return re.sub(r"(?<!!)\[([^\]\n]*)\]\((?!https?:|#)([^)\s]+)\)", outside, text)


def main() -> int:
    """Build; Sphinx's exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", nargs="?", type=Path, default=ROOT / "out" / "site")
    out = parser.parse_args().out
    shutil.rmtree(out, ignore_errors=True)
    sources(out / "source")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-b",
        "html",
        "-W",
        "--keep-going",
        "-q",
        "-j",
        "auto",
        str(out / "source"),
        str(out / "html"),
    ]
    code = subprocess.run(command, check=False).returncode
    if not code:
        print(f"site: {out / 'html' / 'index.html'}")
    return code


if __name__ == "__main__":
    sys.exit(main())
