"""Where the corpus of real evidence lies; tests that need it skip with a reason where it is absent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def corpus_root() -> Path:
    """Folder of the corpus: ``NCCL_FORENSICS_CORPUS``, else ``../shared/corpus`` beside the project."""
    return Path(os.environ.get("NCCL_FORENSICS_CORPUS", ROOT.parent / "shared" / "corpus"))


def corpus(inside: str) -> Path:
    """A file or folder of the corpus, or skip."""
    path = corpus_root() / inside
    if not path.exists():
        pytest.skip(f"corpus absent: {inside} not found below {corpus_root().name}/ (set NCCL_FORENSICS_CORPUS)")
    return path
