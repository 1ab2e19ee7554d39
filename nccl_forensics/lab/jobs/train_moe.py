"""Experts on every rank: token counts gathered, tokens sent with all_to_all and brought back, gradients of the shared part all_reduced."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from .harness import Job, leave, run
from .host_work import FEATURES, Input, checkpoint, forward


def route(job: Job, step: int) -> list[int]:
    """Tokens that this rank sends to each expert: the same on all ranks, another in each step."""
    return [2 + (expert + step) % 3 for expert in range(job.world)]


def dispatch(job: Job, x: torch.Tensor, step: int) -> torch.Tensor:
    """Send every token to its expert."""
    counts = route(job, step)
    mine = counts[job.rank]
    if job.hit("shape", step, "tokens"):
        counts[(job.rank + 1) % job.world] += 5
    sent = x.new_zeros(sum(counts), FEATURES)
    got = x.new_zeros(mine * job.world, FEATURES)
    if job.hit("dtype", step, "tokens"):
        sent, got = sent.to(torch.float16), got.to(torch.float16)
    if job.hit("other-operation", step, "tokens"):
        dist.all_reduce(sent)
        return got
    dist.all_to_all_single(got, sent, [mine] * job.world, counts)
    return got


def combine(job: Job, expert_out: torch.Tensor, step: int) -> None:
    """Bring the tokens back."""
    counts = route(job, step)
    back = expert_out.new_zeros(sum(counts), FEATURES)
    dist.all_to_all_single(back, expert_out, counts, [counts[job.rank]] * job.world)


def train(job: Job, end_step: Callable[[], None]) -> None:
    """The training loop."""
    model, data = torch.nn.Linear(FEATURES, FEATURES).to(job.device), Input(job)
    metrics = job.group(list(range(job.world)), "metrics")
    for step in range(job.plan.steps):
        x = data.load_batch(step)
        counts = torch.tensor(route(job, step), device=job.device)
        if not job.hit("skipped-collective", step, "counts"):
            dist.all_gather([torch.empty_like(counts) for _ in range(job.world)], counts)
        tokens = dispatch(job, x, step)
        loss = forward(job, model, tokens.float(), step)
        leave(job, step)
        if not job.hit("skipped-collective", step, "combine"):
            combine(job, tokens, step)
        checkpoint(job, model, step)
        grads, total = torch.zeros(FEATURES * FEATURES, device=job.device), loss.detach().clone()
        if job.hit("swapped-order", step, "groups"):
            dist.all_reduce(total, group=metrics)
            dist.all_reduce(grads)
        else:
            dist.all_reduce(grads)
            dist.all_reduce(total, group=metrics)
        job.say(step, f"loss {loss.item():.4f}")
        end_step()
    dist.barrier()


if __name__ == "__main__":
    run(train)
