"""The tables of real logs agree with what grep and awk count in them (``nccl_expected/*/commands.sh``)."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import polars as pl
import pytest

from nccl_forensics.reading.source import read_source
from tests.corpus import corpus, corpus_root

_EXPECTED = Path(__file__).parent / "nccl_expected"
_CASES = sorted(path.name for path in _EXPECTED.iterdir() if path.is_dir())

pytestmark = pytest.mark.corpus


def _tables(pattern: str) -> dict[str, pl.DataFrame]:
    corpus(pattern.split("/evidence/", 1)[0])
    parts: dict[str, list[pl.DataFrame]] = {}
    for path in sorted(corpus_root().glob(pattern)):
        data = path.read_bytes()
        for table, frame in read_source(gzip.decompress(data) if path.suffix == ".gz" else data).frames.items():
            parts.setdefault(table, []).append(frame)
    return {table: pl.concat(frames) for table, frames in parts.items()}


def _counts(frame: pl.DataFrame, *columns: str) -> dict[str, int]:
    counted = frame.group_by(columns).len()
    return {" ".join(str(value) for value in key): number for *key, number in counted.iter_rows()}


@pytest.mark.parametrize("case", _CASES)
def test_a_real_log_yields_what_grep_and_awk_find(case: str) -> None:
    expected = json.loads((_EXPECTED / case / "expected.json").read_text(encoding="utf-8"))
    tables = _tables(expected["source"])
    inits = tables["nccl_comms"].filter(pl.col("event").is_in(["init-start", "init-complete"]))
    assert sorted(inits["rank"].unique().to_list()) == expected["ranks"]
    hosts = set(tables["nccl_comms"]["host"].to_list()) | set(tables["nccl_network"]["host"].to_list())
    assert hosts - {None} == set(expected["hosts"])
    complete = inits.filter(pl.col("event") == "init-complete")
    assert _counts(complete, "nranks") == expected["init_complete_by_nranks"]
    named = inits.filter(pl.col("comm_id").is_not_null()).select("comm_id", "nranks").unique()
    assert dict(named.iter_rows()) == expected["nranks_by_comm_id"]
    assert _counts(tables["nccl_channels"], "coll") == expected["lines_by_coll_channels"]
    told = tables["nccl_connections"].with_columns(
        pair=pl.format("{}->{}", "src", "dst"),
        via=pl.when(pl.col("transport") == "NET").then("NET/" + pl.col("network")).otherwise("transport"),
    )
    assert _counts(told, "pair", "via") == expected["connections"]
