"""A gallery of postmortems: ``python -m tests.gallery [OUT]`` renders one for each bundled incident, with an index page.

``--screenshots DIR`` also takes pictures of some of them with headless Chromium, as the README shows them. A folder of further evidence is
added with ``--also NAME=FOLDER``.
"""

from __future__ import annotations

import argparse
import io
import shutil
from dataclasses import dataclass
from html import escape
from pathlib import Path

from nccl_forensics.api import analyze
from nccl_forensics.presentation import present
from nccl_forensics.reporters import html, markdown
from tests.corpus import ROOT

INCIDENTS = ROOT / "fixtures" / "incidents"
#: Pictures of the README: incident, width and height of the window, scheme, what is brought to the top, name.
SHOTS = (
    ("nccl-skipped-collective-8r", 1440, 900, "light", "", "first-screen.webp"),
    ("nccl-skipped-collective-8r", 390, 844, "dark", "", "phone.webp"),
    ("subgroup-hang-8r", 1440, 900, "dark", "waits", "waits.webp"),
    ("skipped-collective-8r", 1440, 900, "light", "timeline", "timeline.webp"),
)
#: Pixels of a picture per pixel of the window; quality of WebP.
_SCALE, _QUALITY = 0.75, 82


@dataclass(frozen=True)
class Entry:
    """One postmortem of the gallery."""

    name: str
    status: str
    word: str
    cause: str
    headline: str
    particulars: str
    size: int


def build(out: Path, more: dict[str, Path]) -> list[Entry]:
    """Render every incident below ``out``; returns what the index says of each."""
    cases = {p.name: p / "evidence" for p in sorted(INCIDENTS.iterdir()) if (p / "evidence").is_dir()} | more
    entries = []
    for name, evidence in cases.items():
        incident = analyze([evidence], title=name)
        folder = out / name
        folder.mkdir(parents=True, exist_ok=True)
        page = html.render(incident.report, incident.extras).encode()
        (folder / "postmortem.html").write_bytes(page)
        (folder / "postmortem.md").write_text(markdown.render(incident.report, incident.extras), encoding="utf-8")
        shown = present(incident.report, incident.extras)
        particulars = ", ".join(f"{v} {k.lower()}" for k, v in shown.particulars[:2])
        entries.append(Entry(name, shown.status, shown.status_word, shown.verdict.cause, shown.headline, particulars, len(page)))
        print(f"{name}: {shown.status_word}, {len(page) / 1e6:.2f} MB")
    (out / "index.html").write_text(index(entries), encoding="utf-8")
    return entries


_STYLE = """
:root { color-scheme: light dark; --ink: light-dark(#16191d, #e7eaee); --soft: light-dark(#56606c, #a1abb7); --line: light-dark(#e1e5ea, #2c333b);
  --paper: light-dark(#fff, #101316); --bad: light-dark(#b5400b, #ff9a62); --good: light-dark(#10695e, #6fd0c0); --warn: light-dark(#7d5600, #e6bd5c); }
body { margin: 0 auto; padding: 40px 28px; max-width: 1000px; background: var(--paper); color: var(--ink); font: 16px/1.5 ui-sans-serif, system-ui, sans-serif; }
h1 { font-size: 1.7rem; letter-spacing: -.02em; margin: 0 0 .3em; }
p { color: var(--soft); margin: 0 0 1.6em; }
ul { list-style: none; margin: 0; padding: 0; }
li { border-top: 1px solid var(--line); padding: 16px 0; display: grid; grid-template-columns: 170px 1fr; gap: 24px; }
a { color: inherit; font-weight: 600; font-size: 1.08rem; text-decoration-thickness: 1px; text-underline-offset: .18em; }
.state { font-weight: 600; font-size: .9rem; } .explained { color: var(--bad); } .nothing-wrong { color: var(--good); }
.unexplained, .insufficient-evidence { color: var(--warn); }
li code { display: block; font-size: .84rem; color: var(--soft); } small { display: block; color: var(--soft); }
@media (max-width: 640px) { li { grid-template-columns: 1fr; gap: 4px; } }
"""


def index(entries: list[Entry]) -> str:
    """The index page: one line for each postmortem."""
    items = "\n".join(
        f'<li><div><span class="state {e.status}">{escape(e.word)}</span><code>{escape(e.cause or "no cause")}</code></div>'
        f'<div><a href="{escape(e.name)}/postmortem.html">{escape(e.headline)}</a>'
        f"<small>{escape(e.name)} · {escape(e.particulars)} · {e.size / 1e6:.1f} MB</small></div></li>"
        for e in entries
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Gallery of postmortems</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n<h1>Gallery of postmortems</h1>\n"
        f"<p>One for each bundled incident, as <code>nccl-forensics analyze</code> writes them.</p>\n<ul>\n{items}\n</ul>\n</main>\n</body>\n</html>\n"
    )


def screenshots(out: Path, pictures: Path) -> None:
    """The README's pictures, from the pages in ``out``."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("no Chromium on this machine: no screenshots")
    pictures.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, width, height, scheme, anchor, target in SHOTS:
            context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce")
            page = context.new_page()
            page.goto((out / name / "postmortem.html").as_uri() + (f"#{anchor}" if anchor else ""))
            page.wait_for_timeout(400)
            image = Image.open(io.BytesIO(page.screenshot()))
            image = image.resize((round(width * _SCALE), round(height * _SCALE)), Image.Resampling.LANCZOS)
            image.save(pictures / target, quality=_QUALITY, method=6)
            print(f"{pictures / target}: {(pictures / target).stat().st_size / 1e3:.0f} kB")
            context.close()
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", nargs="?", type=Path, default=ROOT / "out" / "gallery")
    parser.add_argument("--screenshots", type=Path, metavar="DIR")
    parser.add_argument("--also", action="append", default=[], metavar="NAME=FOLDER")
    given = parser.parse_args()
    more = {name: Path(folder) for name, _, folder in (also.partition("=") for also in given.also)}
    out = given.out.resolve()
    build(out, more)
    if given.screenshots is not None:
        screenshots(out, given.screenshots)
    print(f"gallery: {out / 'index.html'}")


if __name__ == "__main__":
    main()
