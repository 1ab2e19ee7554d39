"""The case itself: which run, when, how many ranks, which versions, and the sentence above all."""

from __future__ import annotations

import re
from collections.abc import Sequence

from nccl_forensics.extras import Host
from nccl_forensics.presentation.mapping import Json, amount, beyond, joined, number, part, rows, text, words
from nccl_forensics.presentation.values import Opinion, RuleText
from nccl_forensics.words import UNKNOWN_HOST, sentence

STATUS_WORDS = {
    "explained": "Explained",
    "unexplained": "Unexplained",
    "nothing-wrong": "No fault found",
    "insufficient-evidence": "Not enough evidence",
}


OUTCOME_WORDS = {"hung": "hung", "crashed": "crashed", "slow": "ran slowly", "stopped": "was stopped", "finished": "finished"}


CONFIDENCE_MEANING = {
    "high": "the evidence proves it",
    "medium": "the evidence points to it, and something that would settle it is missing",
    "low": "one of several readings of the evidence",
}


def run_of(case: Json, verdict: Json) -> Json:
    runs = rows(case, "runs")
    wanted = (verdict.get("run"), verdict.get("attempt"))
    return next((r for r in runs if (r.get("run"), r.get("attempt")) == wanted), runs[-1] if len(runs) == 1 else {})


def run_words(case: Json, verdict: Json) -> str:
    """Which run and attempt, where there is more than one to tell apart."""
    run, attempt, total = number(verdict, "run"), number(verdict, "attempt"), len(rows(case, "runs"))
    said = [f"run {run}" if run is not None and total > 1 else "", f"attempt {attempt}" if attempt else ""]
    return ", ".join(s for s in said if s) + (f" (the last failing of {total})" if total > 1 and any(said) else "")


def moment(time: str) -> str:
    """``2026-01-31 10:02:03`` from ISO 8601; text that is no time stays as it is."""
    return f"{time[:10]} {time[11:19]}" if len(time) >= 19 and time[10:11] == "T" else time


def span_words(start: str, end: str) -> str:
    if start and end:
        same_day = start[:10] == end[:10]
        return f"{moment(start)} – {moment(end)[11:] if same_day else moment(end)} UTC"
    if start or end:
        return f"from {moment(start)} UTC" if start else f"until {moment(end)} UTC"
    return ""


#: A bus address in place of a GPU's name.
_ADDRESS = re.compile(r"[0-9a-fA-F:.]+")


def particulars_of(case: Json, cluster: Sequence[Host] = ()) -> tuple[tuple[str, str], ...]:
    """What the job was: label and value. ``cluster`` tells whether hosts of some ranks are unknown, so that those named are not all."""
    seen, world = number(case, "ranks_seen"), number(case, "world_size")
    hosts = words(case, "hosts", 80)
    of_ranks = f"{amount(seen)} of {amount(world)}" if world is not None and seen is not None and seen != world else amount(world or seen)
    pairs = (
        # Of a job whose size is not told, processes without a rank are counted.
        ("Ranks", of_ranks if world else f"{amount(seen)} or more" if seen else ""),
        ("Host" if len(hosts) == 1 else "Hosts", _hosts_words(hosts, any(h.name == UNKNOWN_HOST for h in cluster))),
        ("GPUs", joined([g for g in words(case, "gpus", 80) if not _ADDRESS.fullmatch(g)], 3)),
        ("NCCL", joined(words(case, "nccl_versions", 40), 3)),
        ("PyTorch", joined(words(case, "torch_versions", 40), 3)),
        ("Backend", joined(words(case, "backends", 40), 3)),
        ("Communicators", amount(number(case, "communicators"))),
        ("Process groups", amount(number(case, "process_groups"))),
    )
    return tuple((k, v) for k, v in pairs if v and v != "0")


def _hosts_words(hosts: Sequence[str], more: bool) -> str:
    counted = hosts[0] if len(hosts) == 1 else amount(len(hosts)) if hosts else ""
    return f"{counted} or more" if counted and more else counted


def redaction_of(report: Json) -> tuple[tuple[str, str], ...]:
    """That names are not the real ones, where that is so."""
    identity = text(part(report, "redaction"), "level") == "identity"
    return (("Names", "pseudonyms for hosts, users, jobs, addresses and paths"),) if identity else ()


def versions_of(case: Json, generator: Json) -> tuple[tuple[str, str], ...]:
    return (
        ("Generator", f"{text(generator, 'name')} {text(generator, 'version')}".strip()),
        ("Report format", "nccl-forensics/report/1"),
        ("NCCL", joined(words(case, "nccl_versions", 40), 12) or "not told"),
        ("PyTorch", joined(words(case, "torch_versions", 40), 12) or "not told"),
        ("Backends", joined(words(case, "backends", 40), 12) or "not told"),
    )


def headline_of(status: str, opinion: Opinion, outcome: str, skipped: Sequence[RuleText]) -> tuple[str, str]:
    summary = opinion.summary
    if status == "explained":
        title = opinion.title or f"{opinion.who or 'The job'}: {opinion.meaning or opinion.cause}"
        return sentence(title), beyond(title, summary)
    if status == "unexplained":
        said = f"The job {outcome}" if outcome and outcome != "finished" else "The job failed"
        return f"{said}, and nothing handed in proves why", summary
    if status == "nothing-wrong":
        rest = (
            f"{len(skipped)} checks could not be made for want of evidence; for those this report says nothing."
            if skipped
            else "Every check had what it needed."
        )
        title = "No fault was found in what was handed in"
        return title, f"{beyond(title, summary)} {rest}".strip()
    return "What was handed in does not tell whether anything went wrong", summary
