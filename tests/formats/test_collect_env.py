"""PyTorch's own listing of a machine, and lists of packages."""

from __future__ import annotations

from pathlib import Path

from nccl_forensics.api import analyze
from nccl_forensics.reading.source import SourceReading, read_source
from tests.corpus import ROOT

FOLDER = ROOT / "fixtures" / "collect_env"


def read(name: str) -> SourceReading:
    return read_source((FOLDER / name).read_bytes())


def test_versions_are_read_and_what_was_not_collected_is_none() -> None:
    rows = read("collect_env.txt").frames["host_facts"]
    told = dict(rows.filter(rows["tool"] == "collect_env").select("name", "value").rows())
    assert told == {
        "torch": "2.5.1+cu124",
        "cuda-build": "12.4",
        "os": "Ubuntu 22.04.4 LTS (x86_64)",
        "libc": "glibc-2.35",
        "python": "3.11.9",
        "cuda-available": "True",
        "cuda-runtime": "12.4.131",
        "nvidia-driver": "550.54.15",
        "numpy": "1.26.4",
        "nccl-package": "2.21.5",
        "triton": "3.1.0",
    }


def test_a_list_of_packages_tells_of_torch_and_nccl() -> None:
    rows = read("pip.txt").frames["host_facts"].select("name", "value").rows()
    assert rows == [("numpy", "1.26.4"), ("nccl-package", "2.21.5"), ("torch", "2.5.1+cu124")]


def test_a_message_that_mentions_a_package_is_no_list() -> None:
    assert read_source(b"please install torch  2.5.1 first\nmissing torch==2.5\n").frames == {}


def test_the_report_names_the_release_of_pytorch() -> None:
    assert analyze([Path(FOLDER)]).report["case"]["torch_versions"] == ["2.5.1+cu124"]
