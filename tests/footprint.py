"""What an installation weighs: wheel, import time, and the distributions that come along with their licences.

``python -m tests.footprint --python VENV/bin/python --wheel DIST/x.whl`` measures an environment that holds the package and nothing else;
``--write`` puts the list into docs/install.md, ``--check`` fails where the page says otherwise, or a bound is passed.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

from tests.corpus import ROOT

PAGE = ROOT / "docs" / "install.md"
#: Milliseconds of CPU that ``--help`` may spend on importing, and bytes of the wheel.
IMPORT_MS, WHEEL_BYTES = 150.0, 3_000_000
_BLOCK = re.compile(r"(<!-- footprint -->\n).*?(<!-- /footprint -->)", re.DOTALL)
_LIST = r"""
import json
from importlib import metadata

def licence(dist):
    told = dist.metadata.get("License-Expression")
    if told:
        return told
    classes = [c.rsplit(" :: ", 1)[-1] for c in dist.metadata.get_all("Classifier") or () if c.startswith("License ::")]
    lines = (dist.metadata.get("License") or "").strip().splitlines()
    return ", ".join(classes) or (lines[0] if lines else "not told")

rows = {d.metadata["Name"].lower().replace("_", "-"): licence(d) for d in metadata.distributions()}
print(json.dumps({name: told for name, told in sorted(rows.items()) if name not in ("pip", "setuptools", "wheel")}))
"""
_TIME = """
import resource, sys
before = resource.getrusage(resource.RUSAGE_SELF)
sys.argv = ["nccl-forensics", "--help"]
import nccl_forensics.cli
after = resource.getrusage(resource.RUSAGE_SELF)
print(1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime))
"""


def measure(python: Path, wheel: Path) -> tuple[dict[str, str], float, int]:
    """Licences by distribution, milliseconds of CPU of an import (the middle of five), bytes of the wheel."""

    def run(code: str) -> str:
        return subprocess.run([python, "-P", "-c", code], capture_output=True, text=True, check=True, cwd=wheel.parent).stdout

    times = sorted(float(run(_TIME)) for _ in range(5))
    licences: dict[str, str] = json.loads(run(_LIST))
    return licences, times[2], wheel.stat().st_size


def block(licences: dict[str, str], size: int) -> str:
    """The list of the page. The wheel's size is rounded: it changes with every line of code."""
    others = {name: told for name, told in licences.items() if name != "nccl-forensics"}
    text = f"A wheel of {size / 1e6:.1f} MB and {len(others)} distributions:\n\n| distribution | licence |\n|---|---|\n"
    return text + "".join(f"| {name} | {told} |\n" for name, told in others.items())


def _differences(page: str, brought: set[str], size: int) -> list[str]:
    """What the page says otherwise. The size may be off by a tenth."""
    told = _BLOCK.search(page)
    listed = set(re.findall(r"^\| ([a-z0-9-]+) \|", told[0], re.MULTILINE)) - {"distribution"} if told else set()
    head = re.search(r"A wheel of ([0-9.]+) MB and ([0-9]+) distributions", told[0]) if told else None
    out = [f"docs/install.md does not list {name}" for name in sorted(brought - listed)]
    out += [f"docs/install.md lists {name}, which is not installed" for name in sorted(listed - brought)]
    if head is None or int(head[2]) != len(brought) or abs(float(head[1]) - size / 1e6) > 0.1 * size / 1e6:
        out.append(f"docs/install.md should say: a wheel of {size / 1e6:.1f} MB and {len(brought)} distributions")
    return out


def main() -> int:
    """Measure, and write or check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", type=Path, required=True)
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    licences, import_ms, size = measure(given.python.absolute(), given.wheel.resolve())
    print(f"import {import_ms:.0f} ms, wheel {size / 1e6:.2f} MB, {len(licences) - 1} dependencies")
    for name, told in licences.items():
        print(f"  {name:24} {told}")
    page = PAGE.read_text(encoding="utf-8")
    wanted = _BLOCK.sub(lambda m: m[1] + block(licences, size) + m[2], page)
    if given.write:
        PAGE.write_text(wanted, encoding="utf-8")
    problems = []
    if import_ms > IMPORT_MS:
        problems.append(f"importing takes {import_ms:.0f} ms, more than {IMPORT_MS:.0f}")
    if size > WHEEL_BYTES:
        problems.append(f"the wheel has {size} bytes, more than {WHEEL_BYTES}")
    # Licences are what versions of today say; names are what pyproject.toml brings along.
    if given.check:
        problems += _differences(page, set(licences) - {"nccl-forensics"}, size)
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
