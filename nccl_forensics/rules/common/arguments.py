"""What several rules about arguments of calls say alike, from the ``divergences`` view."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

import polars as pl

from nccl_forensics.evidence import cite, whereabouts
from nccl_forensics.model import Action, Confidence, Culprit, Divergence, Finding
from nccl_forensics.rules.common.advice import COMPARE_CALLS
from nccl_forensics.stacks.frames import line_of_code
from nccl_forensics.values.ranklist import as_ranks
from nccl_forensics.views.calls import OP_WORDS
from nccl_forensics.views.levels import ROOTED
from nccl_forensics.words import group_words, operation_words, ranks_words, verb


def argument_findings(
    divergences: pl.LazyFrame,
    kind: str,
    prevention: str,
    last_calls: pl.LazyFrame | None = None,
    step_leads: pl.LazyFrame | None = None,
) -> Iterator[Finding]:
    """One finding per group whose first divergence is in an argument of this kind (shape, dtype, argument).

    ``last_calls``: where torch itself compared the calls, every rank raised in its own; other lines of the program are other calls.
    ``step_leads``: of two sides of which nothing else tells who is right, one that told a step more has made as many calls: it left some out.
    """
    ahead = {row["rank"]: row for row in step_leads.collect().iter_rows(named=True)} if step_leads is not None else {}
    word = {"shape": "size", "dtype": "data type", "argument": "argument"}[kind]
    for row in divergences.filter(pl.col("kind") == kind).sort("domain", "group_key").collect().iter_rows(named=True):
        ranks, group = tuple(row["ranks"]), group_words(row)
        confidence: Confidence = "low" if not row["sure"] else "medium" if row["doubt"] else "high"
        site = row["call_site"] or row["peer_call_site"]
        everyone = tuple(sorted({*ranks, *as_ranks(row["others"])}))
        lines = _other_lines(row, last_calls) if last_calls is not None and row["domain"] == "detail" else None
        if lines is not None:
            yield _another_call(row, kind, word, lines)
            continue
        further = _a_step_further(row, ahead) if not row["sure"] else None
        if further is not None:
            yield _left_out(row, kind, ahead[further[0][0]], *further)
            continue
        yield Finding(
            title=f"{ranks_words(ranks if row['sure'] else everyone)} called {operation_words(row['expected_op'], row['seq'])} of {group} with "
            f"{f'another {word}' if row['sure'] else f'different {word}s'}: {row['found_detail']} against {row['expected_detail']}",
            summary=(
                f"{row['why']}; {ranks_words(row['others'])} {verb(row['others'], 'made the call that is expected', 'agree with each other')}."
                if row["sure"]
                else f"{row['why']}; nothing tells which is right."
            )
            + (f" Called at {site}." if site else "")
            + doubt_words(row),
            confidence=confidence,
            ranks=ranks,
            # Of as many that differ as agree, and nothing before that tells who is right, each side may be wrong.
            culprits=tuple(Culprit(rank=r) for r in ranks) if row["sure"] else (),
            subject=(str(row["group_desc"] or row["group_name"] or "group"), str(row["expected_op"]), str(site or "")),
            divergence=Divergence(row["group_name"], row["comm_id"], row["seq"], row["expected_op"]),
            evidence=(
                *cite([whereabouts(row)], f"{ranks_words(ranks[:1])}: {row['found_detail']}"),
                *cite([whereabouts(row, "peer_")], f"{ranks_words(row['others'][:1])}: {row['expected_detail']} at the same position"),
            ),
            remedy=f"Give {row['expected_op']} the same {word} on every rank" + (f" at {site}." if site else "."),
            prevention=prevention,
            would_refute=(
                "the majority is wrong and the named rank right (compare with an earlier step)"
                if row["sure"]
                else "an earlier step of one side that shows which of them is right",
            ),
            actions=(Action("fix-code", ranks=ranks if row["sure"] else everyone, confidence=confidence, where=site),),
            metrics={"position": row["seq"], "positions_that_differ": row["later_seqs"]},
        )


def _other_lines(row: Mapping[str, object], last_calls: pl.LazyFrame) -> tuple[str, str] | None:
    """The lines of the program in which the odd ranks and the others raised, where each of both stands in one line and the two differ."""
    raised = last_calls.filter((pl.col("witness") == "exception") & (pl.col("place") == "collective") & pl.col("user_frame").is_not_null())
    where: dict[int, str] = dict(raised.select("rank", "user_frame").collect().iter_rows())
    own, others = ({where.get(r) for r in as_ranks(row[side])} for side in ("ranks", "others"))
    if len(own) != 1 or len(others) != 1 or None in own | others or own == others:
        return None
    return str(own.pop()), str(others.pop())


def apart(own: Set[str], others: Set[str]) -> bool:
    """Whether these lines stand in other functions of the program than those: whoever takes a branch in one function makes its own call in
    place of the others', and who stands in another one has left theirs behind."""
    names = [{line_of_code(frame)[0] for frame in frames} for frames in (own, others)]
    return all(names) and not names[0] & names[1]


def _another_call(row: Mapping[str, object], kind: str, word: str, lines: tuple[str, str]) -> Finding:
    """Ranks whose call differs because it is another one."""
    ranks, others, group = as_ranks(row["ranks"]), as_ranks(row["others"]), group_words(row)
    causes = ("collective-mismatch", "collective-skipped")
    cause, other = reversed(causes) if row["sure"] and apart({lines[0]}, {lines[1]}) else causes
    return Finding(
        title=f"{ranks_words(ranks)} called {operation_words(row['expected_op'], row['seq'])} of {group} at {lines[0]}, where {ranks_words(others)} "
        f"called it at {lines[1]}",
        summary=f"These are two calls of the program, and so their {word} differs: {row['found_detail']} against {row['expected_detail']}. One side left out "
        "a call or made one too many.",
        cause=cause,
        confidence="medium",
        ranks=tuple(ranks),
        subject=(str(row["group_desc"] or row["group_name"] or "group"), str(row["expected_op"]), lines[0]),
        divergence=Divergence(_text(row["group_name"]), _text(row["comm_id"]), int(str(row["seq"])), _text(row["expected_op"])),
        evidence=(
            *cite([whereabouts(row)], f"{ranks_words(ranks[:1])}: {row['found_detail']}"),
            *cite([whereabouts(row, "peer_")], f"{ranks_words(others[:1])}: {row['expected_detail']} at the same position"),
        ),
        remedy="Find the branch that brings some ranks to one of these lines and others to the other.",
        prevention=COMPARE_CALLS,
        would_refute=("both lines are meant to meet, and only their arguments are wrong",),
        actions=(Action("fix-code", ranks=tuple(ranks), confidence="medium", where=lines[0]),),
        alternatives=(
            (other, tuple(ranks), None),
            (f"{kind}-mismatch", tuple(ranks), "the two lines are different calls"),
        ),
        metrics={"position": int(str(row["seq"]))},
    )


def _a_step_further(
    row: Mapping[str, object], ahead: Mapping[int, Mapping[str, object]]
) -> tuple[list[int], list[int], tuple[str, str]] | None:
    """Of two sides that which told one step more than the other, with the other one; and the names of the columns that tell of both. Not in a
    call of a root, which some have done with while others are in it; and of two alone one may have lost its last line."""
    names = ("", "peer_")
    if row["expected_op"] in ROOTED:
        return None
    for (side, other), of in zip((("ranks", "others"), ("others", "ranks")), (names, names[::-1]), strict=True):
        ranks, others = as_ranks(row[side]), as_ranks(row[other])
        behind = [set(as_ranks(ahead[rank]["others"])) if rank in ahead else set() for rank in ranks]
        if ranks and others and all(len(them) > 1 and set(others) <= them for them in behind):
            return ranks, others, of
    return None


def _left_out(
    row: Mapping[str, object], kind: str, lead: Mapping[str, object], ranks: list[int], others: list[int], of: tuple[str, str]
) -> Finding:
    """Ranks that have told a step more than their peers, though they made as many calls: they left out one."""
    own, theirs = (row[f"{name}call_site"] for name in of)
    waited = f"{operation_words(row['expected_op'], row['seq'])} of {group_words(row)}"
    return Finding(
        title=f"{ranks_words(ranks)} left out {waited}, in which {ranks_words(others)} stood at {theirs}, or a call before it",
        summary=f"Nothing in the calls tells which side is right, but the training loop of {ranks_words(ranks)} has told step {lead['step']}, and those of "
        f"{ranks_words(as_ranks(lead['others']))} step {lead['others_step']}: with as many calls it came a step further, to its call at {own}.",
        cause="collective-skipped",
        confidence="medium",
        ranks=tuple(ranks),
        subject=(str(row["group_desc"] or row["group_name"] or "group"), str(row["expected_op"]), str(theirs)),
        divergence=Divergence(_text(row["group_name"]), _text(row["comm_id"]), int(str(row["seq"])), _text(row["expected_op"])),
        evidence=(
            *cite([lead], "the step that it told and the others did not"),
            *cite([whereabouts(row, of[0])], f"{ranks_words(ranks[:1])}: the call that it made here"),
            *cite([whereabouts(row, of[1])], f"{ranks_words(others[:1])}: the call at the same position"),
        ),
        remedy=f"Find the branch by which {ranks_words(ranks)} passes {theirs} without the call.",
        prevention=COMPARE_CALLS,
        would_refute=("lines of the others that were lost with their buffers, and tell the same step",),
        actions=(Action("fix-code", ranks=tuple(ranks), confidence="medium", where=str(theirs) if theirs else None),),
        alternatives=((f"{kind}-mismatch", tuple(sorted({*ranks, *others})), "their loops told as many steps"),),
        metrics={"position": int(str(row["seq"]))},
    )


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def certain(row: Mapping[str, object]) -> bool:
    """Whether a divergence in the calls themselves is beyond doubt. A word that no operation bears is more likely a damaged record than
    another call."""
    return bool(row["sure"]) and not row["doubt"] and {row["found_op"], row["expected_op"]} <= OP_WORDS


def doubt_words(row: Mapping[str, object]) -> str:
    """The sentence that says what else would look like a divergence, if anything would."""
    return f" Unsure: {row['doubt']}." if row["doubt"] else ""
