"""What several rules about arguments of calls say alike, from the ``divergences`` view."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

import polars as pl

from nccl_forensics.evidence import cite, whereabouts
from nccl_forensics.model import Action, Confidence, Culprit, Divergence, Finding
from nccl_forensics.stacks.frames import line_of_code
from nccl_forensics.values.ranklist import as_ranks
from nccl_forensics.views.calls import OP_WORDS
from nccl_forensics.words import group_words, operation_words, ranks_words, verb


def argument_findings(divergences: pl.LazyFrame, kind: str, prevention: str, last_calls: pl.LazyFrame | None = None) -> Iterator[Finding]:
    """One finding per group whose first divergence is in an argument of this kind (shape, dtype, argument).

    ``last_calls``: where torch itself compared the calls, every rank raised in its own; other lines of the program are other calls.
    """
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
                *cite(
                    [whereabouts(row)],
                    f"{ranks_words(ranks[:1])}: {row['found_detail']}",
                ),
                *cite(
                    [whereabouts(row, "peer_")],
                    f"{ranks_words(row['others'][:1])}: {row['expected_detail']} at the same position",
                ),
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
        culprits=tuple(Culprit(rank=r) for r in ranks),
        subject=(str(row["group_desc"] or row["group_name"] or "group"), str(row["expected_op"]), lines[0]),
        divergence=Divergence(_text(row["group_name"]), _text(row["comm_id"]), int(str(row["seq"])), _text(row["expected_op"])),
        evidence=(
            *cite([whereabouts(row)], f"{ranks_words(ranks[:1])}: {row['found_detail']}"),
            *cite(
                [whereabouts(row, "peer_")],
                f"{ranks_words(others[:1])}: {row['expected_detail']} at the same position",
            ),
        ),
        remedy="Find the branch that brings some ranks to one of these lines and others to the other.",
        prevention="One small run with TORCH_DISTRIBUTED_DEBUG=DETAIL on all ranks: it compares every collective between the ranks before it starts.",
        would_refute=("both lines are meant to meet, and only their arguments are wrong",),
        actions=(Action("fix-code", ranks=tuple(ranks), confidence="medium", where=lines[0]),),
        alternatives=(
            (other, tuple(ranks), None),
            (f"{kind}-mismatch", tuple(ranks), "the two lines are different calls"),
        ),
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
