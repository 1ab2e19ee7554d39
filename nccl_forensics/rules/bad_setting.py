"""A setting of the communication stack harms the job, and the harm has no word of its own.

## What it finds
Values of NCCL_*, TORCH_*, FI_*, UCX_*, GLOO_* and CUDA_* variables, in NCCL's log or in a dump of an environment, that are known to slow a job
down, to hide a fault or to make it fail sooner; and values that NCCL itself refused. Settings that switch a fast path off have rules of
their own, and those that differ between ranks are environment mismatches.

## Why it matters
Left-overs of an earlier debugging session and copied job scripts cost bandwidth in every step, and nobody looks at them again.

## What would refute it
The setting works around a fault that is worse, or was measured to be better on this machine.

## What to do next
Find where the setting comes from (job script, image, profile, nccl.conf) and run once without it.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.facts.setting_effects import SETTINGS, Harm, Setting
from nccl_forensics.facts.settings import MUST_AGREE
from nccl_forensics.frames import has_rows
from nccl_forensics.model import Action, Culprit, Finding, Severity
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.errors import hosts_of
from nccl_forensics.rules.common.ties import closest, job_of, tied
from nccl_forensics.words import ranks_words

_ORDER = ("error", "warning", "info")


@rule(name="bad-setting", code="SE07", cause="bad-setting", severity="warning", at_most=16, explains=("low-bus-bandwidth", "few-channels"))
def bad_setting(
    job_settings: pl.LazyFrame | None,
    nccl_env: pl.LazyFrame | None,
    job_signs: pl.LazyFrame | None = None,
    failures: pl.LazyFrame | None = None,
) -> Iterator[Finding]:
    """One finding per setting and harmful value, the worst first; then values that NCCL refused."""
    found: list[tuple[int, Finding]] = []
    if job_settings is not None:
        job = job_of(job_signs, None, failures)
        for row in job_settings.filter(pl.col("value").is_not_null()).sort("name", "value").collect().iter_rows(named=True):
            known = SETTINGS.get(row["name"])
            if known is None or known.own_word is not None or (row["differs"] and row["name"] in MUST_AGREE):
                continue
            harm = next((h for h in known.harms if h.matches(row["value"])), None)
            if harm is not None:
                tie = closest(() if row["ranks"] else [job.place(host) for host in row["hosts"] or ()])
                finding = tied(_finding(row, known, harm), tie)
                found.append((_ORDER.index(str(finding.severity)), finding))
    yield from (finding for _, finding in sorted(found, key=lambda f: f[0]))
    if nccl_env is not None:
        yield from _refused(nccl_env, "warning" if has_rows(failures) else "error")


def _finding(row: dict[str, object], known: Setting, harm: Harm) -> Finding:
    listed, hosts = row["ranks"], row["hosts"]
    ranks = tuple(int(r) for r in listed) if isinstance(listed, list) else ()
    value = str(row["value"])[:80]
    return Finding(
        title=f"{known.name}={value}{f' on {ranks_words(ranks)}' if ranks else ''}: {harm.why}",
        summary=f"{known.name}: {known.does}."
        + ("" if row["origin"] == "nccl" else " The value stands in an environment that was saved with the evidence."),
        severity=harm.weight,
        confidence="high" if row["origin"] == "nccl" or ranks else "medium",
        ranks=ranks,
        hosts=tuple(str(h) for h in hosts) if isinstance(hosts, list) else (),
        subject=(known.name, value),
        evidence=cite([row], f"{known.name} is set"),
        evidence_total=int(str(row["processes"])),
        remedy=f"Remove {known.name} from the environment of the job, or note there why it is needed.",
        prevention="Print the NCCL_*, TORCH_* and FI_* settings at the start of each job and review them when images change.",
        would_refute=("a measurement on this machine that is better with the setting",),
        actions=(Action("change-setting", ranks=ranks, command=f"unset {known.name}", confidence="medium"),),
    )


def _refused(nccl_env: pl.LazyFrame, severity: Severity) -> Iterator[Finding]:
    """Values that NCCL could not read: it goes on with its default, which is not what was meant, and ends no job."""
    rows = nccl_env.filter(pl.col("invalid").fill_null(False)).sort("name", "source_id", "line_no").collect()
    for (name,), part in rows.group_by("name", maintain_order=True):
        hosts = hosts_of(part)
        yield Finding(
            title=f"NCCL could not read {name}={part['value'][0]} and uses its default",
            summary="The setting has no effect: the value is misspelt or of another kind.",
            severity=severity,
            confidence="high",
            hosts=hosts,
            culprits=tuple(Culprit(host=h) for h in hosts),
            subject=(str(name), "refused"),
            evidence=cite(part, "refused by NCCL"),
            evidence_total=part.height,
            remedy=f"Correct {name} or remove it.",
            prevention="Print the NCCL_* settings at the start of each job, and review them when images change.",
            would_refute=("the default is what is wanted",),
            actions=(Action("change-setting", hosts=hosts, command=f"unset {name}", confidence="high"),),
        )
