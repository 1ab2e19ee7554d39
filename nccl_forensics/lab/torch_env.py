"""The interpreter that runs the jobs: found, or installed after saying what that costs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

#: Measured on Linux x86-64 with torch 2.13.0: what pip downloads, and what it leaves on disk.
CPU_SIZE = "about 215 MB to download, 1 GB on disk"
CUDA_SIZE = "about 3 GB to download, 7 GB on disk"
#: Tried in this order: the CPU build where the package index has it, else what the index gives for this machine.
REQUIREMENTS = ("torch==2.13.0+cpu", "torch")
BESIDE = ("numpy", "py-spy")
PROBE = (
    "import json, torch, torch.distributed as d; "
    "print(json.dumps([torch.__version__, torch.cuda.device_count(), d.is_gloo_available(), d.is_nccl_available()]))"
)


@dataclass(frozen=True)
class TorchEnvironment:
    """An interpreter that can import PyTorch."""

    python: Path
    version: str
    gpus: int
    gloo: bool
    nccl: bool


def probe(python: Path) -> TorchEnvironment | None:
    """What this interpreter has, or None where it cannot import PyTorch."""
    try:
        done = subprocess.run([str(python), "-c", PROBE], capture_output=True, text=True, timeout=120, check=True)
        version, gpus, gloo, nccl = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
    return TorchEnvironment(python, version, gpus, gloo, nccl)


def find(python: Path | None, venv: Path) -> TorchEnvironment | None:
    """The given interpreter; else the one in ``LAB_PYTHON``, the running one, or the lab's own environment."""
    named = os.environ.get("LAB_PYTHON")
    candidates = [python] if python else [Path(named) if named else None, Path(sys.executable), venv / "bin" / "python"]
    for candidate in candidates:
        if candidate is not None and (found := probe(candidate)) is not None:
            return found
    return None


def cost(requirements: Sequence[str]) -> str:
    """What would be installed and how large it is."""
    names = ", ".join((requirements[0], *BESIDE))
    return (
        f"To be installed: {names}\n"
        f"  the CPU build of PyTorch: {CPU_SIZE}\n"
        f"  with CUDA, which is what some package indexes give for Linux: {CUDA_SIZE}"
    )


def install(venv: Path, requirements: Sequence[str], say: Callable[[str], None]) -> TorchEnvironment | None:
    """Make the lab's own environment; the first requirement that can be had wins."""
    say(cost(requirements))
    say(f"Into {venv}; delete the folder to be rid of it.")
    python = venv / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    for requirement in requirements:
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", requirement, *BESIDE]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return probe(python)
        say(f"{requirement} cannot be had: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}")
    return None
