"""A clean machine: the wheel is built from the source distribution, installed alone, and docs/start.md is followed literally.

``python -m tests.clean_machine [--python PYTHON …] [--keep DIR]`` works in a folder outside the checkout, without PYTHONPATH. Each given
interpreter makes a fresh virtual environment there; pip takes the package from the built wheel and everything else from its own index. Then

* every ``bash`` block of the start page runs in one shell, and every line of its ``text`` blocks must have been printed;
* the same incident is analysed with ``serve`` installed, the upload page is imported, and the sample extension is installed and its rule
  must appear in a report;
* size, import time, dependencies and licences are measured (``tests.footprint``).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests import footprint
from tests.corpus import ROOT

START = ROOT / "docs" / "start.md"
_FENCE = re.compile(r"^```(bash|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INCIDENT = ROOT / "fixtures" / "incidents" / "nccl-skipped-collective-8r" / "evidence"


def run(words: list[str | Path], place: Path, **variables: str) -> str:
    """A command's output, both streams. Raises SystemExit with it where the command fails."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV", "NCCL_FORENSICS"))} | variables
    done = subprocess.run(words, cwd=place, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, words))}: exit {done.returncode}\n{done.stdout[-4000:]}")
    return done.stdout


def build(place: Path) -> Path:
    """The wheel, built from the source distribution, so that nothing that the checkout has is missed in either."""
    run([sys.executable, "-m", "build", "--outdir", place / "dist", ROOT], place)
    [wheel] = (place / "dist").glob("*.whl")
    return wheel


def follow(place: Path, python: Path, dist: Path) -> None:
    """The start page, word for word; ``python3`` is the given interpreter, and pip finds the package in ``dist``."""
    text = START.read_text(encoding="utf-8")
    shims = place / "shims"
    shims.mkdir()
    (shims / "python3").symlink_to(python)
    script = "set -e\n" + "".join(body for language, body in _FENCE.findall(text) if language == "bash")
    path = f"{shims}{os.pathsep}{os.environ['PATH']}"
    printed = run(["bash", "-c", script], place, PATH=path, PIP_FIND_LINKS=str(dist), COLUMNS="100", PIP_DISABLE_PIP_VERSION_CHECK="1")
    lines = {line.rstrip() for line in printed.splitlines()}
    missing = [line for language, body in _FENCE.findall(text) if language == "text" for line in body.splitlines() if line not in lines]
    if missing:
        raise SystemExit(f"{START.name} says that this is printed, and it is not: {missing}\n{printed[-4000:]}")
    for name in ("postmortem.html", "postmortem.md", "report.json"):
        assert (place / "out" / name).stat().st_size > 1000, name


def extend(place: Path, dist: Path) -> None:
    """The extra ``serve`` and the sample extension, in the environment that the start page made."""
    bin_ = place / "forensics" / "bin"
    wheel = next(dist.glob("*.whl"))
    run([bin_ / "pip", "install", "--quiet", f"nccl-forensics[serve] @ {wheel.as_uri()}"], place)
    run([bin_ / "python", "-c", "from nccl_forensics.serve.app import make_app"], place)
    report = json.loads(run([bin_ / "nccl-forensics", "analyze", _INCIDENT, "--json", "-", "--quiet"], place))
    assert report["verdict"]["cause"] == "collective-skipped"
    sample = place / "acme-forensics"
    shutil.copytree(ROOT / "examples" / "acme-forensics", sample, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "build"))
    run([bin_ / "pip", "install", "--quiet", sample], place)
    found = json.loads(run([bin_ / "nccl-forensics", "analyze", sample / "evidence", "--json", "-", "--quiet"], place))
    assert [f["rule"] for f in found["findings"]] == ["acme-prolog-failed"]


def main() -> None:
    """Every given interpreter in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=Path, action="append", help="an interpreter (this one without any)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="work in this folder and leave it")
    parser.add_argument("--write", action="store_true", help="write docs/install.md's list instead of checking it")
    given = parser.parse_args()
    whole = Path(given.keep or tempfile.mkdtemp(prefix="clean-machine-")).resolve()
    whole.mkdir(parents=True, exist_ok=True)
    try:
        wheel = build(whole)
        for python in given.python or [Path(sys.executable)]:
            version = run([python.absolute(), "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], whole).strip()
            place = whole / f"python{version}"
            place.mkdir()
            follow(place, python.absolute(), wheel.parent)
            print(f"Python {version}: the start page does what it says")
            arguments = ["--python", place / "forensics" / "bin" / "python", "--wheel", wheel, "--write" if given.write else "--check"]
            sys.stdout.flush()
            subprocess.run([sys.executable, "-m", footprint.__name__, *arguments], cwd=ROOT, check=True)
            extend(place, wheel.parent)
            print(f"Python {version}: the upload page and the sample extension work")
    finally:
        if given.keep is None:
            shutil.rmtree(whole, ignore_errors=True)


if __name__ == "__main__":
    main()
