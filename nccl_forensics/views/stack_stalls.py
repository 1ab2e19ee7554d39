"""What stacks alone say about a hang, where no dump, log or launcher line tells which rank is behind."""

from __future__ import annotations

from collections import Counter

import polars as pl

from nccl_forensics.frames import has_rows, typed
from nccl_forensics.stacks.frames import function_of, split_frame
from nccl_forensics.stacks.places import PLAIN, WAITING, WAITING_ON_GPU
from nccl_forensics.stacks.tree import ALIKE, BUSY, CHAINED, ELSEWHERE, MAKING, PAIRED, PASSED, UNANSWERED
from nccl_forensics.views import view
from nccl_forensics.views.columns import read_at
from nccl_forensics.views.deaths import gave_up
from nccl_forensics.views.failures import WAITS
from nccl_forensics.views.levels import came_after_all, entered_all

STACK_STALLS = typed(
    "cause:str confidence:str rank:i32 pid:i64 host:str place:str op:str user_frame:str why_place:str parts_at:str others_at:str",
    "others_op:str others:list[i32] others_text:str others_count:u32 reason:str source_id:u32 line_no:u32 end_line:u32 record:str",
    read_at("peer_"),
)


@view(rows="processes")
def stack_stalls(
    odd_stacks: pl.LazyFrame,
    stalls: pl.LazyFrame | None,
    divergences: pl.LazyFrame | None,
    endings: pl.LazyFrame | None,
    failures: pl.LazyFrame | None,
    blockers: pl.LazyFrame | None,
    last_calls: pl.LazyFrame | None,
    progress: pl.LazyFrame | None,
    training_ends: pl.LazyFrame | None = None,
) -> pl.LazyFrame:
    """Processes that stand apart, with the ``cause`` that their place points to: input-stall, host-stall, rank-died, p2p-deadlock,
    collective-skipped or collective-mismatch. Empty where better evidence names a rank: operations that part, a rank that is behind, a rank
    that died, or recorders that show that the rank came and finished what the others waited in.
    """
    told = any(has_rows(frame) for frame in (stalls, divergences))
    # Where operations show who is behind in which group, standing in another group's collective is no fault.
    told = told or has_rows(blockers, ~pl.col("kind").is_in(["unseen", "passed"]))
    died = has_rows(endings, pl.col("own"))
    # That ranks wait for one of which nothing is seen is no failure: its dump may be what was not collected.
    failed = has_rows(failures, pl.col("sign") != WAITS)
    rows: list[dict[str, object]] = []
    known = last_calls.select("rank", "moved", "place").collect() if last_calls is not None else None
    moved = dict(known.select("rank", "moved").iter_rows()) if known is not None else {}
    # A wait that leaves no frame of its own, which the process said itself when it gave up.
    waits = set(known.filter(pl.col("place").is_in(WAITING))["rank"].to_list()) if known is not None else set()
    # Whoever gave up waiting ended after that.
    over = gave_up(endings)
    came = entered_all(progress) if progress is not None else set()
    if not told and not died:
        odd = odd_stacks.collect()
        apart = Counter(odd.filter(pl.col("reason") == ELSEWHERE)["user_frame"])
        for row in odd.iter_rows(named=True):
            if apart[row["user_frame"]] > 1 and row["reason"] == ELSEWHERE and not _later(row["parts_at"], row["others_at"]):
                continue  # a group of theirs may wait there for one of the others, who has passed it
            peers = [m for r in row["others"] or () if (m := moved.get(r)) is not None]
            if not failed and len(peers) > 1 and sum(peers) * 2 > len(peers):
                continue  # the others move: the job advances, it is not stuck
            if (
                not failed
                and progress is not None
                and row["rank"] is not None
                and came_after_all(
                    row["rank"], row["others"] or (), row["others_op"] or _on_gpu(row["others_place"]), progress, row["place"]
                )
            ):
                continue
            if row["place"] in PLAIN and row["rank"] in came:
                continue  # a full queue of its GPU holds it up
            if (row["place"] not in WAITING and row["rank"] in waits) or (row["place"] == "ended" and row["rank"] in over):
                continue
            if row["reason"] == ALIKE and not all(moved.get(r) is False for r in row["others"] or ()):
                continue  # one look at threads that sleep tells nothing
            judged = _judge(row, failed)
            if judged is not None and not failed and has_rows(training_ends):
                # The training loop said that it was done: what one look caught between two lines went on.
                judged = None if row["reason"] == PASSED and int(str(row["samples"])) < 2 else (judged[0], "low")
            if judged is not None:
                rows.append({name: row[name] for name in STACK_STALLS if name in row} | {"cause": judged[0], "confidence": judged[1]})
    return pl.DataFrame(rows, schema=STACK_STALLS, infer_schema_length=None).lazy()


def _on_gpu(place: object) -> object:
    """A wait in the backward pass, or for the GPU, is one for collectives that the recorder holds."""
    return place if place in WAITING_ON_GPU else None


def _judge(row: dict[str, object], failed: bool) -> tuple[str, str] | None:
    """(cause, confidence), or None where the stacks prove too little."""
    place, reason = str(row["place"]), row["reason"]
    twice = int(str(row["samples"])) >= 2
    if reason in (PAIRED, CHAINED):
        # Frames alone do not say whom each half is for: both of a pair may wait for a third, which has left its own out.
        return "p2p-deadlock", "medium"
    if reason == ALIKE:
        return ("input-stall" if place == "data-loader" else "host-stall", "low") if twice else None
    if reason == UNANSWERED:
        # A pipeline that works stands so at any moment.
        return ("p2p-deadlock", "low") if twice or failed else None
    if reason == BUSY and place == "rendezvous":
        return None  # in init it waits for others itself, which have passed without it or wait elsewhere
    if reason == BUSY and place == "ended":
        return "rank-died", "high" if twice or failed else "medium"
    if reason == BUSY and place not in WAITING:
        if place in PLAIN and not (twice or failed):
            return None
        if not row["sure"] and not (twice or failed):
            return None
        confidence = "high" if row["sure"] and (twice or failed) and place not in PLAIN else "low" if place == "user-code" else "medium"
        return "input-stall" if place == "data-loader" else "host-stall", confidence
    if reason == PASSED:
        # Threads that sleep between two steps of a job that goes on stand at one line as well.
        return "collective-skipped", "medium" if twice or failed else "low"
    if reason == MAKING:
        return "collective-skipped", "low"
    if reason == ELSEWHERE and place in WAITING:
        # At a later line of the function where the stacks part, it has gone past the call of the others. At an earlier one it is in the
        # next round of a loop, as the others cannot have passed a collective that it is still in; or the two lines are the two ways of
        # a branch, which then make their calls themselves.
        if _later(row["parts_at"], row["others_at"]):
            return "collective-skipped", "medium"
        return ("collective-mismatch" if row["parts_at"] == row["user_frame"] else "collective-skipped"), "low"
    return None


def _later(own: object, others: object) -> bool:
    if not isinstance(own, str) or not isinstance(others, str):
        return False
    one, other = split_frame(own), split_frame(others)
    same = (function_of(own), one[1]) == (function_of(others), other[1])
    return same and one[2] is not None and other[2] is not None and one[2] > other[2]
