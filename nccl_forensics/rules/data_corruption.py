"""A test got wrong results: data was changed on its way or in a computation.

## What it finds
Runs of nccl-tests whose check counted wrong elements (``#wrong``, out of bounds values), with the sizes and placements that failed.

## Why it matters
The same hardware corrupts gradients without a word: losses jump, checkpoints are spoiled, and nothing in a log says why.

## What would refute it
A known defect of the library in that version and collective: then every set of hosts fails alike.

## What to do next
Take the GPUs and NICs of the run out of use; repeat the test on halves of the hosts until one host or pair is left.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.model import Action, Culprit, Finding
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.ties import closest, job_of, tied


@rule(name="data-corruption", code="BW02", cause="data-corruption", severity="critical", at_most=32, explains=("low-bus-bandwidth",))
def data_corruption(
    bandwidth_tests: pl.LazyFrame,
    bandwidth_rows: pl.LazyFrame,
    job_signs: pl.LazyFrame | None = None,
    failures: pl.LazyFrame | None = None,
) -> Iterator[Finding]:
    """One finding per set of hosts whose runs got wrong results; one on hosts that are none of the job's does not tell of the job. Who
    computed right in a run with others is not the one to name."""
    job = job_of(job_signs, None, failures)
    of_test = ["source_id", "test"]
    checked = bandwidth_rows.filter(pl.col("wrong").is_not_null())
    bad = checked.filter(pl.col("wrong") > 0).sort("source_id", "line_no", "record", nulls_last=True).collect()
    tests = bandwidth_tests.sort(of_test).collect()
    failed = tests.filter(~pl.col("out_of_bounds_ok")).select(of_test).vstack(bad.select(of_test)).unique()
    right = tests.join(checked.select(of_test).unique().collect(), on=of_test, how="semi").join(failed, on=of_test, how="anti")
    cleared = set(right.filter("complete")["hosts"].explode().drop_nulls())
    named: dict[tuple[str, ...], list[dict[str, object]]] = {}
    for test in tests.join(failed, on=of_test, how="semi", maintain_order="left").to_dicts():
        hosts = tuple(test["hosts"] or ())
        blamed = tuple(h for h in hosts if h not in cleared) or hosts
        # Runs that do not tell their hosts are not one another's.
        named.setdefault(blamed or (f"{test['source_id']}", f"{test['test']}"), []).append(test)
    for hosts, runs in named.items():
        known = hosts if runs[0]["hosts"] else ()
        rows = bad.join(pl.DataFrame(runs, schema=tests.schema), on=of_test, how="semi", maintain_order="left")
        finding = _finding(runs[0], runs, rows, known)
        yield tied(finding, closest([job.place(host) for host in known]), "critical")


def _finding(test: dict[str, object], runs: list[dict[str, object]], rows: pl.DataFrame, hosts: tuple[str, ...]) -> Finding:
    """Of the runs in which these hosts got wrong results, of which the title tells the first."""
    own = rows.filter((pl.col("source_id") == test["source_id"]) & (pl.col("test") == test["test"]))
    sizes = own["bytes"].drop_nulls().unique().sort().to_list()
    wrong = int(own["wrong"].sum() or str(test["out_of_bounds"] or 0))
    name = f"{test['collective'] or 'a collective'} of {test['ranks'] or '?'} ranks"
    where = f" on {', '.join(hosts[:4])}{' ...' if len(hosts) > 4 else ''}" if hosts else ""
    at = f" at {len(sizes)} sizes from {sizes[0]} to {sizes[-1]} bytes" if len(sizes) > 1 else f" at {sizes[0]} bytes" if sizes else ""
    more = f", and so did {len(runs) - 1} more runs with the same" if len(runs) > 1 else ""
    return Finding(
        title=f"{name}{where} gave wrong results: {wrong} wrong elements{at}{more}",
        summary="nccl-tests compares every element with what it must be.",
        confidence="high",
        hosts=hosts,
        culprits=tuple(Culprit(host=h) for h in hosts) if len(hosts) <= 2 else (),
        subject=("wrong", str(test["collective"]), *sorted(hosts)[:8]),
        evidence=(*cite(rows, "wrong elements"), *(cite([test], "the check failed") if rows.is_empty() else ())),
        evidence_total=max(rows.height, 1),
        remedy="Stop using these GPUs and NICs; bisect the hosts until one is left, then run its memory and link diagnosis.",
        prevention="Run the test with validation in the burn-in of new and repaired nodes.",
        would_refute=("every set of hosts fails alike: then the library or driver is at fault",),
        actions=(Action("drain_and_reset", hosts=hosts, command="dcgmi diag -r 3", confidence="medium"),),
        metrics={"wrong": wrong},
    )
