"""Advice that several rules give, worded once."""

from __future__ import annotations

from nccl_forensics.model import Action

#: Calls that differ between ranks: what finds them before they hang a job, and the same as something to do next.
COMPARE_CALLS = (
    "One small run with TORCH_DISTRIBUTED_DEBUG=DETAIL on all ranks: it compares every collective between the ranks before it starts."
)
COMPARED_AGAIN = Action("collect-more", command="TORCH_DISTRIBUTED_DEBUG=DETAIL")

#: Ranks that left the loop of their job before the others: what to do about it, and what keeps them from it.
WHY_IT_LEFT = "Find out why its loop ended before that of the others: less data, a break, a return, sys.exit."
AGREE_ON_STEPS = "Agree on the number of steps (all_reduce of the length) before the loop starts."

#: Ranks that come late: what to do about one, what tells of it in time, and what it does meanwhile.
LOOK_BETWEEN = "Look at what this rank does between collectives: data loading, clocks, a noisy neighbour."
LOG_LAG = "Log the arrival lag of every rank; alarm when one rank loses most of it."
RECORD_STACKS = "py-spy record -d 30 -f raw --idle --pid <pid>"
