"""What a rank's process writes to standard error: torch.distributed's lines, tracebacks, and the chatter of training code."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from nccl_forensics.simulate.engine import Entry
from nccl_forensics.simulate.program import TORCH as TORCH_PATH
from nccl_forensics.simulate.program import Frame
from nccl_forensics.simulate.world import SECOND, Met, World
from nccl_forensics.simulate.writers.recorder import library_frames

OP_TYPES = {
    "all_reduce": "ALLREDUCE", "all_reduce_barrier": "ALLREDUCE", "broadcast": "BROADCAST", "_all_gather_base": "_ALLGATHER_BASE",
    "_reduce_scatter_base": "_REDUCE_SCATTER_BASE", "all_to_all": "ALLTOALL_BASE", "send": "SEND", "recv": "RECV", "reduce": "REDUCE",
}  # fmt: skip
_FILE = "ProcessGroupNCCL.cpp"
#: Line numbers of the messages, by wording (2.4, 2.5 and 2.6, 2.7 and later).
_LINES = {
    "timeout": {4: 607, 5: 616, 7: 632},
    "detected": {4: 1664, 5: 1785, 7: 2271},
    "at-work": {4: 1709, 5: 1834, 7: 1834},
    "stack": {4: 644, 5: 644, 7: 670},
    "first": {4: 1560, 5: 1685, 7: 2106},
    "signal": {4: 1340, 5: 1484, 7: 1746},
    "prepare": {4: 1418, 5: 1561, 7: 1536},
    "failed": {4: 621, 5: 630, 7: 681},
    "down": {4: 627, 5: 636, 7: 695},
    "terminated": {4: 1515, 5: 1595, 7: 1896},
    "observed": {4: 1250, 5: 1401, 7: 1661},
}
_ADVICE = (
    "This is most likely caused by incorrect usages of collectives, e.g., wrong sizes used across ranks, the order of collectives is not "
    "same for all ranks or the scheduled collective, for some reason, didn't run. Additionally, this can be caused by GIL deadlock or other "
    "reasons such as network errors or bugs in the communications library (e.g. NCCL), etc. "
)


def _prefix(world: World, rank: int, at: int, what: str, level: str = "E") -> str:
    line = _LINES[what][world.torch.wording]
    if not world.torch.timed:
        return f"[rank{rank}]:[{level} {_FILE}:{line}] "
    t = time.gmtime(at // SECOND)
    return f"[rank{rank}]:[{level}{t.tm_mon}{t.tm_mday:02d} {time.strftime('%H:%M:%S', t)}.{at % SECOND:09d} {_FILE}:{line}] "


def _group(world: World, entry: Entry, rank: int) -> str:
    place = entry.group.place(rank)
    if world.torch.wording == 4:
        return f"[PG {entry.group.name} Rank {place}]"
    return f"[PG ID {entry.local_group} PG GUID {entry.group.name}({entry.group.desc}) Rank {place}]"


def _work(world: World, entry: Entry, elapsed_ms: int) -> str:
    item = entry.item
    return (
        f"WorkNCCL(SeqNum={entry.p2p_seq or entry.seq}, OpType={OP_TYPES[item.op]}, NumelIn={item.numel}, NumelOut={item.out_numel}, "
        f"Timeout(ms)={world.timeout_ms}) ran for {elapsed_ms} milliseconds before timing out."
    )


def text(world: World, rank: int) -> Iterator[str]:
    """The standard error of a rank."""
    process = world.processes[rank]
    if rank % 8 == 0:
        yield "/opt/job/pretrain.py:14: FutureWarning: `torch.cuda.amp.autocast(args...)` is deprecated. Please use `torch.amp.autocast('cuda', args...)` instead.\n"
        yield "  from torch.cuda.amp import autocast\n"
    for met in sorted(process.met, key=lambda m: m.at):
        if met.kind.startswith("torch."):
            yield from _met(world, rank, met)


def _met(world: World, rank: int, met: Met) -> Iterator[str]:
    tell = _TELL.get(met.kind.removeprefix("torch."))
    return tell(world, rank, met) if tell is not None else iter(())


def _of_all(world: World, rank: int) -> str:
    """The default group, as torch calls it."""
    return f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}]" if world.torch.wording >= 5 else f"[PG 0 Rank {rank}]"


def _counters(met: Met) -> tuple[int, int]:
    """What was enqueued and what completed last."""
    return int(str(met.facts["last_enqueued"])), int(str(met.facts["last_completed"]))


def _timeout(world: World, rank: int, met: Met) -> Iterator[str]:
    at, f, wording = met.at, met.facts, world.torch.wording
    entry = met.facts.get("entry")
    if not isinstance(entry, Entry):
        return
    elapsed, (last, done) = int(str(f["elapsed_ms"])), _counters(met)
    who, seq = f"[Rank {entry.group.place(rank)}]", entry.p2p_seq or entry.seq
    group = _group(world, entry, rank)
    yield f"{_prefix(world, rank, at, 'timeout')}{who} Watchdog caught collective operation timeout: {_work(world, entry, elapsed)}\n"
    at += 230_000
    if wording >= 7:
        yield (
            f"{_prefix(world, rank, at, 'detected')}{group}  failure detected by watchdog at work sequence id: {seq} PG status: "
            f"last enqueued work: {last}, last completed work: {done}\n"
        )
        if f["recorder"]:
            yield f"{_prefix(world, rank, at + 9000, 'stack')}Stack trace of the failed collective: \n"
            for i, (name, file, line) in enumerate((*library_frames(entry.item.op), *entry.item.frames)):
                yield f"#{i} {name} from {file}:{line}\n"
            yield "\n"
        else:
            yield (
                f"{_prefix(world, rank, at + 9000, 'stack')}Stack trace of the failed collective not found, potentially because "
                "FlightRecorder is disabled. You can enable it by setting TORCH_NCCL_TRACE_BUFFER_SIZE to a non-zero value.\n"
            )
    else:
        yield (
            f"{_prefix(world, rank, at, 'detected')}{group} Exception (either an error or timeout) detected by watchdog at work: {seq}, "
            f"last enqueued NCCL work: {last}, last completed NCCL work: {done}.\n"
        )
    if f["recorder"] and wording >= 7:
        yield f"{_prefix(world, rank, at + 31000, 'first')}[PG ID 0 PG GUID 0(default_pg) Rank {rank}] First PG on this rank to signal dumping. \n"


def _dump(world: World, rank: int, met: Met) -> Iterator[str]:
    at, f = met.at, met.facts
    last, done = _counters(met)
    who = _of_all(world, rank)
    if f["origin"] != rank:
        yield f"{_prefix(world, rank, at, 'observed')}{who} Observed flight recorder dump signal from another rank via TCPStore.\n"
    origin = "this local rank" if f["origin"] == rank else f" rank {f['origin']}"
    yield (
        f"{_prefix(world, rank, at + 41000, 'signal')}{who} Received a dump signal due to a collective timeout from {origin} and we will "
        f"try our best to dump the debug info. Last enqueued NCCL work: {last}, last completed NCCL work: {done}.{_ADVICE}\n"
    )
    yield f"{_prefix(world, rank, at + 52000, 'prepare')}{who} ProcessGroupNCCL preparing to dump debug info. Include stack trace: 1\n"


def _abort(world: World, rank: int, met: Met) -> Iterator[str]:
    at, f = met.at, met.facts
    entry = met.facts.get("entry")
    if not isinstance(entry, Entry):
        return
    elapsed, (last, done) = int(str(f["elapsed_ms"])), _counters(met)
    group, who, seq = _group(world, entry, rank), f"[Rank {entry.group.place(rank)}]", entry.p2p_seq or entry.seq
    yield (
        f"{_prefix(world, rank, at, 'at-work')}{group} Timeout at NCCL work: {seq}, last enqueued NCCL work: {last}, "
        f"last completed NCCL work: {done}.\n"
    )
    yield (
        f"{_prefix(world, rank, at + 9000, 'failed')}{who} Some NCCL operations have failed or timed out. Due to the asynchronous nature "
        "of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data.\n"
    )
    yield f"{_prefix(world, rank, at + 12000, 'down')}{who} To avoid data inconsistency, we are taking the entire process down.\n"
    said = f"{who} Watchdog caught collective operation timeout: {_work(world, entry, elapsed)}"
    yield from _terminated(world, rank, at + 800_000, group, said, "checkTimeout")


def _cuda(world: World, rank: int, met: Met) -> Iterator[str]:
    at, f = met.at, met.facts
    group = _of_all(world, rank)
    said = (
        f"CUDA error: {f['text']}\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below "
        "might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\nCompile with `TORCH_USE_CUDA_DSA` to enable "
        "device-side assertions.\n"
    )
    yield from _terminated(world, rank, at, group, said, "c10_cuda_check_implementation")


def _nccl_error(world: World, rank: int, met: Met) -> Iterator[str]:
    at, f = met.at, met.facts
    group = _of_all(world, rank)
    release = world.processes[rank].release
    said = f"NCCL error: {f['error']}, NCCL version {release}\n{f['meaning']}\nLast error:\n{f['last']}"
    yield from _terminated(world, rank, at, group, said, "checkForNCCLErrorsInternal")


def _exception(world: World, rank: int, met: Met) -> Iterator[str]:
    f = met.facts
    frames = f["frames"]
    assert isinstance(frames, tuple)
    yield from traceback(rank, frames, str(f["text"]))


def _said(world: World, rank: int, met: Met) -> Iterator[str]:
    f = met.facts
    yield f"{f['text']}\n"


_TELL: dict[str, Callable[[World, int, Met], Iterator[str]]] = {
    "timeout": _timeout,
    "dump": _dump,
    "abort": _abort,
    "cuda": _cuda,
    "nccl-error": _nccl_error,
    "exception": _exception,
    "said": _said,
}


def _terminated(world: World, rank: int, at: int, group: str, said: str, where: str) -> Iterator[str]:
    yield f"{_prefix(world, rank, at, 'terminated')}{group} Process group watchdog thread terminated with exception: {said}\n"
    yield from _native(where)
    yield "terminate called after throwing an instance of 'c10::DistBackendError'\n"
    yield f"  what():  {group} Process group watchdog thread terminated with exception: {said}\n"
    yield from _native(where)


def _native(where: str) -> Iterator[str]:
    library = f"{TORCH_PATH}lib/"
    yield f"Exception raised from {where} at ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:635 (most recent call first):\n"
    yield f"frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x96 (0x7f5a5ceaf51b in {library}libc10.so)\n"
    yield f"frame #1: c10d::ProcessGroupNCCL::watchdogHandler() + 0x233 (0x7f5a0ae16333 in {library}libtorch_cuda.so)\n"
    yield f"frame #2: c10d::ProcessGroupNCCL::ncclCommWatchdog() + 0x14d (0x7f5a0ae1871d in {library}libtorch_cuda.so)\n"
    yield "frame #3: <unknown function> + 0xdbbf4 (0x7f5a17ec7bf4 in /opt/venv/lib/libstdc++.so.6)\n"
    yield "frame #4: <unknown function> + 0x94ac3 (0x7f5a1ddd9ac3 in /lib/x86_64-linux-gnu/libc.so.6)\n"
    yield "frame #5: <unknown function> + 0x126850 (0x7f5a1de6b850 in /lib/x86_64-linux-gnu/libc.so.6)\n"
    yield "\n"


def traceback(rank: int | None, frames: tuple[Frame, ...], said: str) -> Iterator[str]:
    """A Python traceback, outermost first, each line with the rank's prefix as torch's hook prints it."""
    lead = f"[rank{rank}]: " if rank is not None else ""
    yield f"{lead}Traceback (most recent call last):\n"
    for name, file, line in reversed(frames):
        yield f'{lead}  File "{file}", line {line}, in {name}\n'
        yield f"{lead}    {_SOURCE.get(name, name.strip('<>') + '()')}\n"
    for part in said.split("\n"):
        yield f"{lead}{part}\n"


_SOURCE = {
    "<module>": "main(sys.argv[1:])",
    "main": "trainer.train_step(batch)",
    "train_step": "loss = self.run_schedule(batch)",
    "all_reduce": "work = group.allreduce([tensor], opts)",
    "wrapper": "return func(*args, **kwargs)",
}
