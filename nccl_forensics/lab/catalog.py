"""The faults of the lab: in which job and at which place each can act, and what the truth is then."""

from __future__ import annotations

import random
from dataclasses import dataclass

from nccl_forensics.lab.jobs.plan import Plan

#: Jobs whose process groups need a certain number of ranks.
PIPELINE, HYBRID = "train_pipeline", "train_hybrid"


@dataclass(frozen=True)
class Scenario:
    """One fault at one place of one job."""

    fault: str
    job: str
    causes: tuple[str | None, ...]
    what: str
    site: str = ""
    options: tuple[str, ...] = ()
    #: Who is at fault: ``rank`` (the chosen ones), ``pair`` (with the next rank), ``diagonal`` (two ranks of different tensor-parallel
    #: groups, or those
    #: beside them there: either half of the circle, or all of it), ``nobody``.
    culprits: str = "rank"
    #: Smallest number of ranks that makes sense; a pipeline or a hybrid layout needs a multiple of its groups.
    world: int = 3
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    seconds: float = 0.6
    #: A slow job ends well: its stacks are sampled while it runs.
    running: bool = False
    #: Ended from outside though it works.
    stopped: bool = False
    #: Of the default process group, where the scenario needs a certain one.
    timeout_s: float | None = None
    #: Ranks at which the fault cannot act.
    not_ranks: tuple[int, ...] = ()
    steps: int = 12
    step: int | None = None
    #: Why, with gloo, no file names the rank: a verdict that names none is right then, beside one that names the right ones. ``alike``:
    #: causes
    #: that no file tells from the true one for the same reason.
    untold: str = ""
    alike: tuple[str, ...] = ()

    @property
    def multiple(self) -> int:
        """The number of ranks is a multiple of this."""
        return self.tensor_parallel * self.pipeline_parallel


STALL = ("host-stall",)
INPUT = ("input-stall", "host-stall")
LATE = ("straggler", "input-stall")
MISMATCH = ("collective-mismatch",)
SKIP = ("collective-skipped",)
SHAPE = ("shape-mismatch",)
DTYPE = ("dtype-mismatch",)
DIED = ("rank-died",)
P2P = ("p2p-deadlock",)
UNUSED = ("ddp-unused-parameter",)
#: What no file of a run with gloo holds.
NO_SENDS = "gloo's recorder holds no sends, and a wait for a request leaves no argument on a stack: the rank that waits is told, whom it waits for is not"
NO_TYPES = (
    "gloo aborts the rank that receives more bytes than it expects before its recorder is written, sizes may rightly differ between ranks in an "
    "all_to_all, and PyTorch's comparison does not look at its types: bytes do not tell another type from another size, nor who has it"
)

SCENARIOS: tuple[Scenario, ...] = (
    *(Scenario("healthy", job, (None,), "Nothing is wrong; the job ends well.", culprits="nobody", running=True, world=2) for job in
      ("train_dp", "train_ddp", "train_fsdp", "train_moe")),
    Scenario("healthy", "train_control", (None,), "Nothing is wrong; the job ends well.", options=("monitored",), culprits="nobody", running=True, world=2),
    Scenario("healthy", PIPELINE, (None,), "Nothing is wrong; the job ends well.", options=("halo",), culprits="nobody", running=True, pipeline_parallel=2),
    Scenario("healthy", HYBRID, (None,), "Nothing is wrong; the job ends well.", culprits="nobody", running=True, tensor_parallel=2, pipeline_parallel=2, world=4),
    # A collective that one rank leaves out. Where the next operation is of the same kind, what the others see first is another shape.
    Scenario("skipped-collective", "train_dp", SKIP, "The rank does not take part in the metrics all_reduce.", "metrics"),
    Scenario("skipped-collective", "train_dp", SKIP, "The rank leaves out the barrier.", "barrier", step=5),
    Scenario("skipped-collective", "train_dp", SKIP, "The rank leaves out the control broadcast.", "control", not_ranks=(0,)),
    Scenario("skipped-collective", "train_dp", (*SKIP, *SHAPE), "The rank leaves out both gradient all_reduces.", "gradients"),
    Scenario("skipped-collective", "train_ddp", SKIP, "The rank leaves out the loss all_reduce of a DDP job.", "metrics"),
    # The reducer makes none of the others' calls, as with unused parameters, and nothing tells why.
    Scenario("skipped-collective", "train_ddp", (*SKIP, *SHAPE, *UNUSED), "The rank does backward under no_sync while the others synchronise.", "gradients"),
    Scenario("skipped-collective", "train_fsdp", (*SKIP, *SHAPE), "The rank does not gather one layer's parameters.", "gather"),
    Scenario("skipped-collective", "train_fsdp", (*SKIP, *SHAPE), "The rank does not reduce-scatter one layer's gradient.", "scatter"),
    Scenario("skipped-collective", "train_fsdp", SKIP, "The rank leaves out the all_reduce of the gradient norm.", "norm"),
    Scenario("skipped-collective", "train_moe", SKIP, "The rank does not bring its tokens back (all_to_all).", "combine"),
    Scenario("skipped-collective", "train_moe", SKIP, "The rank does not gather the token counts.", "counts"),
    Scenario("skipped-collective", "train_control", SKIP, "The rank does not take part in the gather of results.", "gather", not_ranks=(0,)),
    Scenario("skipped-collective", "train_control", SKIP, "The rank does not take part in all_gather_object.", "objects"),
    Scenario("skipped-collective", "train_control", SKIP, "The rank leaves out a monitored barrier.", "barrier", ("monitored",), not_ranks=(0,), step=5),
    Scenario("skipped-collective", "train_control", SKIP, "The rank leaves out a monitored barrier that waits for all.", "barrier", ("monitored", "name-all"), not_ranks=(0,), step=5),
    Scenario("skipped-collective", HYBRID, SKIP, "The rank leaves out one tensor-parallel all_reduce.", "tensor", tensor_parallel=4, world=8),
    Scenario("skipped-collective", HYBRID, SKIP, "The rank leaves out the data-parallel all_reduce.", "data", tensor_parallel=2, world=6),
    Scenario("skipped-collective", PIPELINE, SKIP, "The rank leaves out its stage's gradient all_reduce.", "gradients", pipeline_parallel=2, world=6),
    Scenario("uneven-data", "train_ddp", (*SKIP, *MISMATCH), "The rank runs out of batches first and goes on to the end of the job.", options=("final-eval",)),
    Scenario("uneven-data", "train_ddp", (*SKIP, *MISMATCH), "The rank runs out of batches first and waits in the last barrier."),
    # Another collective at the same position.
    Scenario("other-operation", "train_dp", MISMATCH, "The rank calls all_gather where the others call all_reduce.", "metrics"),
    Scenario("other-operation", "train_dp", MISMATCH, "The rank broadcasts its gradients where the others all_reduce them.", "gradients"),
    Scenario("other-operation", "train_fsdp", MISMATCH, "The rank calls all_reduce where the others gather parameters.", "gather"),
    Scenario("other-operation", "train_moe", MISMATCH, "The rank calls all_reduce where the others exchange tokens.", "tokens"),
    Scenario("other-operation", "train_control", MISMATCH, "The rank calls all_reduce where the others gather.", "gather"),
    Scenario("other-operation", HYBRID, MISMATCH, "The rank calls all_gather in its tensor-parallel group.", "tensor", tensor_parallel=4, world=8),
    Scenario("swapped-order", "train_dp", (*MISMATCH, *SKIP), "The rank calls control broadcast and metrics all_reduce in the other order.", "control"),
    Scenario("swapped-order", "train_dp", (*SHAPE, *MISMATCH, *SKIP), "The rank reduces its two buckets in the other order.", "buckets"),
    Scenario("swapped-order", "train_fsdp", (*SHAPE, *MISMATCH, *SKIP), "The rank gathers two layers in the other order.", "layers"),
    Scenario("swapped-order", "train_moe", ("group-deadlock", *SKIP), "The rank calls two groups of the same ranks in the other order.", "groups"),
    Scenario("swapped-order", HYBRID, ("group-deadlock",), "Two ranks call the data-parallel before the tensor-parallel group.", "groups", culprits="diagonal", tensor_parallel=2, world=4),
    # The same collective with other arguments.
    Scenario("shape", "train_dp", SHAPE, "The rank's second gradient bucket is shorter.", "gradients"),
    Scenario("shape", "train_dp", SHAPE, "The rank reduces four metrics, the others two.", "metrics"),
    Scenario("shape", "train_fsdp", SHAPE, "The rank's shard of one layer is shorter.", "gather"),
    Scenario("shape", "train_moe", (*SHAPE, "argument-mismatch"), "The rank sends more tokens to its neighbour than that one expects.", "tokens"),
    Scenario("shape", "train_control", SHAPE, "The rank's result is shorter than the others'.", "gather", not_ranks=(0,)),
    Scenario("shape", HYBRID, SHAPE, "The rank's activation has half the rows.", "tensor", tensor_parallel=4, world=4),
    Scenario("dtype", "train_dp", DTYPE, "The rank reduces int32 where the others reduce float32.", "gradients"),
    Scenario("dtype", "train_dp", DTYPE, "The rank reduces float64 where the others reduce float32.", "gradients", ("wide",)),
    Scenario("dtype", "train_fsdp", DTYPE, "The rank gathers one layer as bfloat16.", "gather"),
    Scenario("dtype", "train_moe", DTYPE, "The rank sends its tokens as float16.", "tokens", untold=NO_TYPES, alike=SHAPE),
    Scenario("dtype", "train_control", DTYPE, "The rank's result is float64.", "gather", not_ranks=(0,)),
    Scenario("dtype", HYBRID, DTYPE, "The rank's activation is float16.", "tensor", tensor_parallel=4, world=4),
    # Processes that end.
    *(Scenario("killed-rank", job, DIED, "The rank is killed with SIGKILL.", world=2) for job in ("train_dp", "train_ddp", "train_fsdp", "train_moe", "train_control")),
    Scenario("killed-rank", PIPELINE, DIED, "The rank is killed with SIGKILL.", pipeline_parallel=3, world=6),
    Scenario("killed-rank", HYBRID, DIED, "The rank is killed with SIGKILL.", tensor_parallel=2, pipeline_parallel=2, world=8),
    Scenario("segfault", "train_dp", DIED, "The rank gets a segmentation fault."),
    Scenario("abort", "train_fsdp", DIED, "The rank aborts."),
    Scenario("exception", "train_dp", DIED, "The rank raises an exception.", options=("error-files",)),
    Scenario("exception", "train_ddp", DIED, "The rank raises an exception."),
    Scenario("exception", HYBRID, DIED, "The rank raises an exception.", tensor_parallel=2, pipeline_parallel=2, world=8),
    Scenario("exception", PIPELINE, DIED, "The rank raises an exception.", options=("error-files",), pipeline_parallel=4, world=4),
    Scenario("early-exit", "train_dp", DIED, "The rank leaves with exit code 3."),
    Scenario("early-exit", "train_ddp", DIED, "The rank leaves with exit code 0 in mid-training.", "quiet"),
    Scenario("early-exit", "train_fsdp", DIED, "The rank ends by _exit(7), without a word.", "hard"),
    Scenario("early-exit", "train_control", DIED, "The rank leaves with exit code 0 in mid-training.", "quiet"),
    Scenario("memory-limit", "train_dp", ("out-of-memory",), "The rank asks for more memory than its limit gives."),
    Scenario("memory-limit", "train_ddp", ("out-of-memory",), "The rank asks for more memory than its limit gives.", options=("error-files",)),
    Scenario("memory-limit", "train_moe", ("out-of-memory",), "The rank's Python objects exceed its memory limit.", "python"),
    # Ranks that are late in every step.
    Scenario("slow-loader", "train_dp", LATE, "The rank's data loader is slow from this step on; the job ends well.", running=True, step=2),
    Scenario("slow-loader", "train_ddp", LATE, "The rank's data loader is slow from this step on; the job ends well.", running=True, step=2),
    Scenario("slow-loader", "train_fsdp", LATE, "The rank's data loader is slow from this step on; the job ends well.", running=True, step=2),
    Scenario("slow-loader", HYBRID, LATE, "The rank's data loader is slow from this step on; the job ends well.", running=True, step=2, tensor_parallel=2, world=4),
    Scenario("slow-compute", "train_dp", ("straggler",), "The rank computes longer in every step; the job ends well.", running=True, step=2),
    Scenario("slow-compute", "train_ddp", ("straggler",), "The rank computes longer in every step; the job ends well.", running=True, step=2),
    Scenario("slow-compute", "train_moe", ("straggler",), "The rank computes longer in every step; the job ends well.", running=True, step=2),
    # Ranks that never arrive: the host side.
    Scenario("stuck-loader", "train_dp", INPUT, "The rank's read from storage never returns.", "storage"),
    Scenario("stuck-loader", "train_fsdp", INPUT, "The rank's tokenizer does not come to an end.", "tokenize"),
    Scenario("stuck-loader", "train_ddp", INPUT, "The rank waits for a prefetch thread that is gone.", "queue"),
    Scenario("stuck-loader", "train_moe", INPUT, "The rank's DataLoader worker hangs.", "workers", ("loader-workers",)),
    Scenario("stuck-loader", "train_dp", INPUT, "The rank's DataLoader worker hangs.", "workers", ("loader-workers",)),
    Scenario("gil-held", "train_dp", ("host-stall", "input-stall"), "A regular expression backtracks for ever with the GIL held.", "regex"),
    Scenario("gil-held", "train_ddp", STALL, "A native extension sleeps with the GIL held.", "extension"),
    Scenario("gil-held", "train_fsdp", STALL, "A native extension sleeps with the GIL held.", "extension"),
    Scenario("host-stall", "train_dp", STALL, "Writing a checkpoint never returns.", "checkpoint"),
    Scenario("host-stall", "train_fsdp", STALL, "The rank waits for a lock that another thread keeps.", "lock"),
    Scenario("host-stall", "train_moe", STALL, "The rank waits for an answer of a metrics server.", "metrics"),
    Scenario("host-stall", "train_control", STALL, "The rank waits for a process of its own.", "subprocess"),
    Scenario("host-stall", "train_ddp", STALL, "The rank waits for a lock that another thread keeps.", "lock"),
    Scenario("stuck-compute", "train_dp", STALL, "The rank computes for ever.", options=()),
    Scenario("stuck-compute", HYBRID, STALL, "The rank computes for ever.", tensor_parallel=2, world=4),
    Scenario("stopped-process", "train_dp", (*STALL, "rank-died"), "The rank's process is stopped (SIGSTOP)."),
    Scenario("evaluation", "train_dp", ("timeout-too-short", *STALL, "straggler"), "The rank evaluates for longer than the timeout.", seconds=45, timeout_s=15),
    # Sub-groups.
    Scenario("subgroup-hang", HYBRID, INPUT, "The rank hangs in its tokenizer; its sub-groups wait, then the groups behind them.", "tokenize", tensor_parallel=2, world=8),
    Scenario("subgroup-hang", HYBRID, INPUT, "The rank hangs in a read; its sub-groups wait, then the groups behind them.", "storage", tensor_parallel=2, pipeline_parallel=2, world=8),
    Scenario("subgroup-hang", PIPELINE, INPUT, "The rank hangs in a read; its pipeline waits, then the replicas.", "storage", pipeline_parallel=3, world=6),
    Scenario("group-not-made", HYBRID, ("rank-never-joined", *INPUT), "The rank never comes to make its groups.", tensor_parallel=2, world=4),
    Scenario("late-init", "train_dp", ("rank-never-joined", *INPUT), "The rank never comes to init_process_group.", options=("late-init",)),
    # Sends and receives.
    Scenario("p2p-deadlock", PIPELINE, P2P, "Both neighbours receive first.", options=("halo",), culprits="pair", pipeline_parallel=2, world=4),
    Scenario("p2p-deadlock", PIPELINE, P2P, "Both neighbours receive first.", options=("halo",), culprits="pair", pipeline_parallel=4, world=4),
    Scenario("p2p-missing-send", PIPELINE, P2P, "The rank leaves out one send.", culprits="pair", pipeline_parallel=2, world=4),
    Scenario("p2p-missing-send", PIPELINE, P2P, "The rank leaves out one send of a batch.", options=("halo", "batched"), culprits="pair", pipeline_parallel=2, world=4, untold=NO_SENDS),
    Scenario("p2p-missing-send", HYBRID, P2P, "The rank leaves out one send of a batch.", culprits="stage", tensor_parallel=2, pipeline_parallel=2, world=4, untold=NO_SENDS),
    Scenario("p2p-micro-batches", PIPELINE, P2P, "The rank runs one micro-batch more than its neighbours.", culprits="pair", pipeline_parallel=2, world=4),
    # DDP.
    Scenario("unused-parameter", "train_ddp", UNUSED, "The rank does not use the auxiliary head in this step.", options=("no-metrics",)),
    Scenario("job-stopped", "train_dp", ("job-stopped",), "The job works and is ended from outside.", culprits="nobody", stopped=True, steps=400),
    Scenario("job-stopped", "train_fsdp", ("job-stopped",), "The job works and is ended from outside.", culprits="nobody", stopped=True, steps=400),
    # The framework's own shardings, where the collectives are called from its hooks.
    *(Scenario("healthy", job, (None,), "Nothing is wrong; the job ends well.", culprits="nobody", running=True, tensor_parallel=tp, world=2 * tp)
      for job, tp in (("train_fsdp2", 1), ("train_mesh", 2))),
    Scenario("skipped-collective", "train_fsdp2", (*SKIP, *SHAPE, *MISMATCH), "The rank does not take part in the validation pass.", "validation", step=5),
    Scenario("skipped-collective", "train_fsdp2", (*SKIP, *SHAPE, *MISMATCH), "The rank leaves out a backward pass.", "backward"),
    Scenario("skipped-collective", "train_fsdp2", (*SKIP, *SHAPE, *MISMATCH), "The rank leaves out the loss all_reduce.", "metrics"),
    Scenario("killed-rank", "train_fsdp2", DIED, "The rank is killed with SIGKILL."),
    Scenario("exception", "train_fsdp2", DIED, "The rank raises an exception."),
    Scenario("stuck-loader", "train_fsdp2", INPUT, "The rank's read from storage never returns.", "storage"),
    Scenario("host-stall", "train_fsdp2", STALL, "Writing a checkpoint never returns.", "checkpoint"),
    Scenario("slow-loader", "train_fsdp2", LATE, "The rank's data loader is slow from this step on; the job ends well.", running=True, step=2),
    Scenario("memory-limit", "train_fsdp2", ("out-of-memory",), "The rank asks for more memory than its limit gives."),
    Scenario("skipped-collective", "train_mesh", (*SKIP, *MISMATCH), "The rank does not scatter its sequence back.", "sequence", tensor_parallel=3, world=6),
    Scenario("skipped-collective", "train_mesh", (*SKIP, *MISMATCH), "The rank runs one micro-step less than its peers.", "accumulation", tensor_parallel=3, world=6),
    Scenario("skipped-collective", "train_mesh", (*SKIP, *SHAPE), "The rank leaves out the gradients of its replica group.", "gradients", tensor_parallel=2, world=6),
    Scenario("skipped-collective", "train_mesh", SKIP, "The rank leaves out an object collective over all ranks.", "objects", tensor_parallel=2, world=4, step=5),
    Scenario("other-operation", "train_mesh", MISMATCH, "The rank broadcasts the sequence where its peers scatter it.", "sequence", tensor_parallel=3, world=6),
    Scenario("shape", "train_mesh", SHAPE, "The rank's part of the sequence is shorter.", "sequence", tensor_parallel=4, world=4),
    Scenario("killed-rank", "train_mesh", DIED, "The rank is killed with SIGKILL.", tensor_parallel=2, world=6),
    Scenario("subgroup-hang", "train_mesh", INPUT, "The rank hangs in its tokenizer; its mesh dimensions wait.", "tokenize", tensor_parallel=2, world=6),
    Scenario("host-stall", "train_mesh", STALL, "The rank waits for a lock that another thread keeps.", "lock", tensor_parallel=2, world=4),
    Scenario("gil-held", "train_mesh", STALL, "A native extension sleeps with the GIL held.", "extension", tensor_parallel=2, world=4),
    Scenario("slow-compute", "train_mesh", ("straggler",), "The rank computes longer in every step; the job ends well.", running=True, step=2, tensor_parallel=2, world=4),
)  # fmt: skip

#: What a fault is called in the jobs, where several faults act at one place.
ACTS_AS = {"subgroup-hang": "stuck-loader"}


def faults() -> list[str]:
    """Names of all faults, in the order above."""
    return list(dict.fromkeys(s.fault for s in SCENARIOS))


def choose(fault: str, random_: random.Random, job: str | None = None, site: str | None = None) -> Scenario:
    """One of the scenarios of a fault."""
    fitting = [s for s in SCENARIOS if s.fault == fault and job in (None, s.job) and site in (None, s.site)]
    if not fitting:
        raise ValueError(f"no scenario of {fault!r}" + (f" in {job}" if job else "") + (f" at {site}" if site else ""))
    return random_.choice(fitting)


def ranks_for(scenario: Scenario, world: int, random_: random.Random, rank: int | None = None) -> tuple[int, ...]:
    """The ranks on which the fault acts."""
    if scenario.culprits == "nobody":
        return ()
    allowed = [r for r in range(world) if r not in scenario.not_ranks]
    if scenario.fault == "p2p-missing-send" and "halo" not in scenario.options:
        shards, stages = scenario.tensor_parallel, scenario.pipeline_parallel
        allowed = [r for r in allowed if r // shards % stages < stages - 1]
    if scenario.culprits == "diagonal":
        # Two that share both groups keep one order between them: nobody waits.
        allowed = [r for r in allowed if world - 1 - r not in _tensor_group(scenario, r)]
    if rank is not None and rank not in allowed:
        raise ValueError(f"rank {rank} cannot have this fault here: one of {allowed}")
    chosen = random_.choice(allowed) if rank is None else rank
    if scenario.culprits == "diagonal":
        return tuple(sorted((chosen, world - 1 - chosen)))
    return (chosen,)


def _tensor_group(scenario: Scenario, rank: int) -> range:
    first = rank - rank % scenario.tensor_parallel
    return range(first, first + scenario.tensor_parallel)


def truth(scenario: Scenario, plan: Plan, world: int, *, detail: bool) -> dict[str, object]:
    """What is known of a run, laid out as in the other collections of incidents."""
    causes = scenario.causes
    if detail and scenario.fault == "skipped-collective":
        # PyTorch ends the job at the first difference: what the rank would have done next is never seen.
        causes = tuple(dict.fromkeys((*causes, *MISMATCH)))
    lists = accepted(scenario, plan, world)
    untold = scenario.untold if plan.device != "cuda" else ""
    if untold:
        causes, lists = (*causes, *scenario.alike), [*lists, []]
    return {
        "cause_accepted": list(causes),
        "culprit_ranks_accepted": lists,
        **({"not_in_the_evidence": untold} if untold else {}),
        "what_was_done": f"{scenario.what} Job {plan.job}, ranks {list(plan.ranks)}, step {plan.step}.",
        "fault": scenario.fault,
        "world_size": world,
        "backend": "nccl" if plan.device == "cuda" else "gloo",
        "how_made": "a real multi-process job with the fault put in on purpose",
    }


def accepted(scenario: Scenario, plan: Plan, world: int) -> list[list[int]]:
    """Lists of culprits, any of which is right."""
    mine = sorted(plan.ranks)
    if scenario.culprits == "nobody":
        return [[]]
    if scenario.culprits == "diagonal":
        beside = sorted({p for r in mine for p in _tensor_group(scenario, r)} - set(mine))
        return [mine, beside, sorted([*mine, *beside])]
    if scenario.culprits == "pair":
        rank, depth = mine[0], scenario.pipeline_parallel
        stage = rank % depth
        if "halo" in scenario.options:
            peers = [rank + 1 if stage % 2 == 0 else rank - 1]
        else:
            peers = [rank + d for d in (-1, 1) if 0 <= stage + d < depth]
        return [mine, *(sorted([rank, p]) for p in peers)]
    if scenario.culprits == "stage":
        return [mine, sorted([mine[0], mine[0] + scenario.tensor_parallel])]
    return [mine]
