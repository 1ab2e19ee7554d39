"""Faults of the program: what one rank calls, and when."""

from __future__ import annotations

from dataclasses import replace

from nccl_forensics.simulate.aftermath import Death
from nccl_forensics.simulate.case import Case
from nccl_forensics.simulate.layout import Layout
from nccl_forensics.simulate.noise import pick
from nccl_forensics.simulate.program import FOREVER, HERE, Frame, Item, changed, inserted, operations, without
from nccl_forensics.simulate.scenarios.base import Scenario, group_of, plan, sequence, target, truth
from nccl_forensics.simulate.writers.stacks import SITE, STDLIB


def healthy(case: Case) -> None:
    case.observe = "live" if case.variant == "live" else "finish"
    case.steps = 6
    truth(case, (None,), ((),), "nothing: the job runs and ends well")


def collective_skipped(case: Case) -> None:
    rank, step = case.rank(), case.step()
    at, item = target(case, rank, step)
    case.change(rank, step, lambda items: without(items, at))
    where = sequence(case, rank, step, at)
    truth(
        case,
        ("collective-skipped",),
        ((rank,),),
        f"rank {rank} does not call {item.op} of its {item.role} group in step {step} and goes on",
        divergence=where,
    )


def collective_mismatch(case: Case) -> None:
    rank, step = case.rank(), case.step()
    at, item = target(case, rank, step)
    other = "broadcast" if item.op != "broadcast" else "all_reduce"
    case.change(rank, step, lambda items: changed(items, at, op=other, out_sizes=item.sizes))
    where = sequence(case, rank, step, at)
    truth(
        case,
        ("collective-mismatch",),
        ((rank,),),
        f"rank {rank} calls {other} where its {item.role} group calls {item.op} (step {step})",
        divergence=where,
    )


def shape_mismatch(case: Case) -> None:
    rank, step = case.rank(), case.step()
    at, item = target(case, rank, step)
    factor = pick(case.seed, "factor").choice((2, 3))
    sizes = (
        (item.sizes[0] * factor, *item.sizes[1:])
        if case.dice("bigger") < 0.5 or item.sizes[0] < 4
        else (item.sizes[0] - 1, *item.sizes[1:])
    )
    out = item.out_sizes if item.out_sizes != item.sizes else sizes
    case.change(rank, step, lambda items: changed(items, at, sizes=sizes, out_sizes=out))
    where = sequence(case, rank, step, at)
    truth(
        case,
        ("shape-mismatch",),
        ((rank,),),
        f"rank {rank} gives {sizes} to {item.op} where the others give {item.sizes}",
        divergence=where,
    )


def dtype_mismatch(case: Case) -> None:
    rank, step = case.rank(), case.step()
    at, item = target(case, rank, step)
    other = {"Float": "Half", "BFloat16": "Float", "Long": "Int"}[item.dtype]
    if case.variant == "live" and case.dice("silent") < 0.5:
        other = {"Float": "Int", "BFloat16": "Half", "Long": "Double"}[item.dtype]
    case.change(rank, step, lambda items: changed(items, at, dtype=other))
    where = sequence(case, rank, step, at)
    truth(
        case, ("dtype-mismatch",), ((rank,),), f"rank {rank} calls {item.op} with {other}, the others with {item.dtype}", divergence=where
    )


def argument_mismatch(case: Case) -> None:
    rank, step = case.rank(), case.step()
    items = plan(case, rank, step)
    rooted = [i for i in operations(items) if items[i].op == "broadcast" and len(group_of(case, rank, "tp").members) >= 3]
    if rooted and case.dice("root") < 0.5:
        at, what = rooted[0], "root"
        case.change(rank, step, lambda it: changed(it, at, root=1))
    else:
        reducing = [i for i in operations(items) if items[i].op == "all_reduce" and len(group_of(case, rank, items[i].role).members) >= 3]
        at, what = reducing[int(case.dice("target") * len(reducing))], "reduction"
        other = "max" if items[at].red_op == "sum" else "sum"
        case.change(rank, step, lambda it: changed(it, at, red_op=other))
        case.observe = "live" if case.variant == "live" else "finish"
    truth(
        case,
        ("argument-mismatch",),
        ((rank,),),
        f"rank {rank} calls {items[at].op} with another {what}",
        divergence=sequence(case, rank, step, at),
    )


_STALLS: tuple[tuple[str, tuple[Frame, ...]], ...] = (
    ("checkpoint", (("_save", f"{SITE}torch/serialization.py", 862), ("save", f"{SITE}torch/serialization.py", 629), ("save_checkpoint", f"{HERE}checkpoint.py", 77))),
    ("lock", (("acquire", f"{HERE}metrics/registry.py", 31), ("record_metric", f"{HERE}metrics/registry.py", 58))),
    ("read", (("read_text", f"{STDLIB}pathlib.py", 1058), ("load_schedule", f"{HERE}schedule.py", 22))),
    ("collect busy", (("collect_garbage", f"{HERE}trainer.py", 208),)),
    ("upload", (("read", f"{STDLIB}ssl.py", 1166), ("_send", f"{STDLIB}http/client.py", 1038), ("report_metrics", f"{HERE}metrics/client.py", 91))),
)  # fmt: skip
_MAIN: tuple[Frame, ...] = (
    ("train_step", f"{HERE}trainer.py", 188),
    ("main", f"{HERE}pretrain.py", 97),
    ("<module>", f"{HERE}pretrain.py", 121),
)


def host_stall(case: Case) -> None:
    rank, step = case.rank(), case.step()
    at, _ = target(case, rank, step)
    note, frames = _STALLS[int(case.dice("stall") * len(_STALLS))]
    stall = Item("host", FOREVER, (*frames, *_MAIN), note=note)
    case.change(rank, step, lambda items: inserted(items, at, stall))
    truth(case, ("host-stall",), ((rank,),), f"rank {rank} stands in {frames[-1][0]} in step {step} and never comes to its next operation")


def input_stall(case: Case) -> None:
    rank, step = case.rank(), case.step()
    frames = pick(case.seed, "frames").choice(
        (
            (("tokenize", f"{HERE}data/tokenizer.py", 57), ("__getitem__", f"{HERE}data/dataset.py", 103), ("fetch", f"{SITE}torch/utils/data/_utils/fetch.py", 51), ("_next_data", f"{SITE}torch/utils/data/dataloader.py", 673), ("__next__", f"{SITE}torch/utils/data/dataloader.py", 630)),
            (("wait", f"{STDLIB}threading.py", 331), ("get", f"{STDLIB}queue.py", 180), ("_try_get_data", f"{SITE}torch/utils/data/dataloader.py", 1133), ("_get_data", f"{SITE}torch/utils/data/dataloader.py", 1284), ("_next_data", f"{SITE}torch/utils/data/dataloader.py", 1329), ("__next__", f"{SITE}torch/utils/data/dataloader.py", 630)),
        )
    )  # fmt: skip
    case.change(
        rank,
        step,
        lambda items: changed(items, next(i for i, x in enumerate(items) if x.note == "load"), us=FOREVER, frames=(*frames, *_MAIN)),
    )
    seen: tuple[str | None, ...] = ("input-stall",) if case.gathered.stacks else ("input-stall", "host-stall")
    truth(case, seen, ((rank,),), f"rank {rank} waits for its data loader in step {step}")


def gpu_stall(case: Case) -> None:
    rank, step = case.rank(), case.step()
    at, item = target(case, rank, step, waiting=True)
    case.change(rank, step, lambda items: changed(items, at, note="hang"))
    truth(case, ("gpu-stall",), ((rank,),), f"the GPU of rank {rank} stands still in {item.op} of step {step}, which its peers finish")


def collective_stuck(case: Case) -> None:
    from nccl_forensics.simulate.engine import Cut

    host = case.host_of(case.rank())
    step = case.step()
    case.cuts.append(Cut(host, step))
    truth(
        case,
        ("collective-stuck",),
        ((), case.ranks_of(host)),
        f"no traffic between host {host} and the others from step {step} on, and no device says so",
    )


def rank_died(case: Case) -> None:
    rank, step = case.rank(), case.step()
    at, _ = target(case, rank, step)
    kind = pick(case.seed, "kind").choice(("kill", "segfault", "exception", "exit"))
    frames = (("validate", f"{HERE}data/checks.py", 44), *_MAIN)
    deaths = {
        "kill": Death("signal", 9),
        "segfault": Death("signal", 11),
        "exception": Death("exit", 1, "ValueError: batch 7731 holds a sample of length 0", frames, 4),
        "exit": Death("exit", 1, "KeyError: 'attention_mask'", frames, 4),
    }
    case.deaths[rank] = deaths[kind]
    case.change(rank, step, lambda items: inserted(items, at, Item("die")))
    case.swift = case.variant == "log" or (case.variant == "dump" and case.dice("swift") < 0.3)
    truth(case, ("rank-died",), ((rank,),), f"rank {rank} ends in step {step}: {kind}")


def rank_never_joined(case: Case) -> None:
    case.first_step = 0
    if case.host_count > 1 and case.dice("whole") < 0.5:
        host = case.host_of(case.rank(not_first=True)) or 1
        missing: tuple[int, ...] = case.ranks_of(host)
    else:
        missing = (case.rank(not_first=True),)
    case.absent |= set(missing)
    case.observe = "live"
    case.gathered.launcher = False
    truth(case, ("rank-never-joined",), (missing,), f"ranks {list(missing)} never start; the others wait in the first communicator")


def straggler(case: Case) -> None:
    rank = case.rank()
    extra = 60_000 + int(90_000 * case.dice("extra"))
    case.steps = 16
    case.observe = "live"
    frames = (("preprocess", f"{HERE}data/preprocess.py", 88), *_MAIN)

    def late(items: list[Item]) -> list[Item]:
        at = next(i for i, x in enumerate(items) if x.note == "load")
        return inserted(items, at + 1, Item("host", extra, frames, note="preprocess"))

    even = case.dice("even") < 0.3
    for step in range(case.first_step, case.first_step + case.steps):
        if even or case.dice("late", step) < 0.6:
            case.change(rank, step, late)
    case.gathered.launcher = False
    often = "every step" if even else "most steps"
    truth(
        case,
        ("straggler", "input-stall", "host-stall"),
        ((rank,),),
        f"rank {rank} comes about {extra / 1000:.0f} ms late in {often}; the job advances",
    )


def group_deadlock(case: Case) -> None:
    rank, step = case.rank(), case.step()
    items = plan(case, rank, step)
    places = operations(items)
    # Only groups that share more than this rank can hold each other: here everybody's, and one within it.
    then = next(i for i in places if items[i].role == "world" and items[i].op == "all_reduce")
    at = max(i for i in places if items[i].role != "world")
    first, second = (replace(items[i], wait=True) for i in (at, then))
    blocking = case.dice("blocking") < 0.5

    def pair(a: Item, b: Item) -> list[Item]:
        return [a, Item("sync", 4, a.frames), b, Item("sync", 4, b.frames)] if blocking else [a, b]

    for peer in range(case.world_size):
        if case.layout.digits(peer)["pp"] == case.layout.digits(rank)["pp"]:
            order = pair(second, first) if peer == rank else pair(first, second)
            case.change(peer, step, lambda it, order=order: [*it[:at], *order, *it[then + 1 :]])  # type: ignore[misc]  # as in every lambda that keeps a value by default
    # Where the program stops at each call, the rank's other call is never made: the evidence is that of a skipped one.
    seen: tuple[str | None, ...] = ("group-deadlock", "collective-skipped") if blocking else ("group-deadlock",)
    what = f"rank {rank} calls {second.op} of {second.role} before {first.op} of {first.role} in step {step}, its peers after it"
    truth(case, seen, ((rank,), ()), what)


def _pipelined(world: int, gpus: int) -> Layout | None:
    del gpus
    return Layout(world // 2, pp=2) if world % 2 == 0 and world >= 4 else None


def _crossed(world: int, gpus: int) -> Layout | None:
    size = min(gpus, 4)
    return Layout(world // size, tp=size) if world % size == 0 and world >= 2 * size else None


def p2p_deadlock(case: Case) -> None:
    rank = case.rank()
    if case.layout.digits(rank)["pp"] == 0:
        rank += case.layout.dp * case.layout.tp * case.layout.cp
    step = case.step()
    group = group_of(case, rank, "pp")
    peer = group.members[group.place(rank) - 1]

    def send_first(items: list[Item]) -> list[Item]:
        receive = next(i for i, x in enumerate(items) if x.op == "recv")
        return inserted(without(items, receive), receive, replace(items[receive], op="send"), items[receive])

    case.change(rank, step, send_first)
    truth(case, ("p2p-deadlock",), ((rank,), tuple(sorted((rank, peer)))), f"ranks {peer} and {rank} both send first in step {step}")


def ddp_unused_parameter(case: Case) -> None:
    dice = pick(case.seed, "unused")
    few = sorted(dice.sample(range(case.world_size), 1 if case.world_size < 8 else dice.choice((1, 2))))
    step = case.step()
    case.layout = Layout(case.world_size, words="mesh")
    case.training = replace(case.training, sharded=False, sync_each_step=False, buckets=3, layers=2, micro_batches=1)
    indices = " ".join(str(x) for x in sorted(dice.sample(range(40), 2)))
    for rank in few:
        case.change(rank, step, lambda items: without(items, operations(items, "dp")[-1]))
        case.change(rank, step + 1, lambda items: inserted(items, 1, Item("die")))
        said = (
            "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one. This error indicates that "
            "your module has parameters that were not used in producing loss. You can enable unused parameter detection by passing the "
            "keyword argument `find_unused_parameters=True` to `torch.nn.parallel.DistributedDataParallel`, and by \n"
            "making sure all `forward` function outputs participate in calculating loss. \n"
            f"Parameter indices which did not receive grad for rank {rank}: {indices}\n"
            " In addition, you can set the environment variable TORCH_DISTRIBUTED_DEBUG to either INFO or DETAIL to print out information "
            "about which particular parameters did not receive gradient on this rank as part of this error"
        )
        frames = (
            ("_pre_forward", f"{SITE}torch/nn/parallel/distributed.py", 1526),
            ("forward", f"{SITE}torch/nn/parallel/distributed.py", 1637),
            *_MAIN,
        )
        case.deaths[rank] = Death("exit", 1, said, frames, 6)
    case.swift = case.variant != "dump"
    truth(
        case,
        ("ddp-unused-parameter",),
        (tuple(few),),
        f"ranks {few} leave a branch of the model out in step {step}: some gradients never come",
    )


def timeout_too_short(case: Case) -> None:
    case.layout = Layout(case.world_size, words="mesh")
    case.timeout_ms = 30_000
    step = case.step()
    frames = (
        ("_save", f"{SITE}torch/serialization.py", 862),
        ("save", f"{SITE}torch/serialization.py", 629),
        ("save_checkpoint", f"{HERE}checkpoint.py", 77),
        *_MAIN,
    )
    save = Item("host", 38_000_000, frames, note="checkpoint")
    barrier = Item("op", 8, frames[2:], "world", "all_reduce_barrier", (1,), (1,), "Float", wait=True)
    for rank in range(case.world_size):
        more = (save, barrier) if rank == 0 else (barrier,)
        case.change(rank, step, lambda items, more=more: [*items, *more])  # type: ignore[misc]  # as above
    truth(
        case,
        ("timeout-too-short", "host-stall"),
        ((0,), ()),
        "rank 0 saves a checkpoint for 38 s while the others wait with a timeout of 30 s",
    )


SCENARIOS = (
    Scenario("healthy", "nothing is wrong", healthy, ("dump", "live", "log", "host"), slow=True),
    Scenario(
        "collective-skipped", "a rank leaves out a collective and goes on", collective_skipped, ("dump", "log", "live", "dump-only"), 4
    ),
    Scenario("collective-mismatch", "a rank calls another collective", collective_mismatch, ("dump", "log", "live", "dump-only"), 4),
    Scenario("shape-mismatch", "a rank gives another size", shape_mismatch, ("dump", "log", "live", "dump-only"), 4),
    Scenario("dtype-mismatch", "a rank gives another data type", dtype_mismatch, ("dump", "log", "live", "dump-only"), 4),
    Scenario("argument-mismatch", "a rank gives another root or reduction", argument_mismatch, ("log", "live", "log-dump"), 4),
    Scenario("host-stall", "a rank stands on its host", host_stall, ("dump", "live", "log", "dump-only"), 4),
    Scenario("input-stall", "a rank stands in its data loader", input_stall, ("dump", "live", "log"), 4),
    Scenario("gpu-stall", "a GPU stands still in work that its peers finish", gpu_stall, ("dump", "dump-only", "host"), 4),
    Scenario("collective-stuck", "the network swallows a collective", collective_stuck, ("dump", "live", "log", "dump-only"), 4, 2),
    Scenario("rank-died", "a process ends", rank_died, ("dump", "log", "host"), 2),
    Scenario("rank-never-joined", "processes that never start", rank_never_joined, ("log", "live", "dump"), 4),
    Scenario("straggler", "a rank comes late in every step", straggler, ("dump", "live", "dump-only"), 4, slow=True),
    Scenario(
        "group-deadlock", "collectives of two groups in another order", group_deadlock, ("dump", "live", "dump-only"), 8, layout=_crossed
    ),
    Scenario("p2p-deadlock", "two neighbours send first", p2p_deadlock, ("dump", "live", "dump-only"), 4, layout=_pipelined),
    Scenario("ddp-unused-parameter", "gradients that never come", ddp_unused_parameter, ("log", "dump", "host"), 4),
    Scenario("timeout-too-short", "a timeout shorter than a checkpoint", timeout_too_short, ("dump", "log", "dump-only"), 4),
)
