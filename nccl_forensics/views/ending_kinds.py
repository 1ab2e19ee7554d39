"""What a signal, an exit code or an exception makes of an ending: a fault of the process itself, or the consequence of another's."""

from __future__ import annotations

import re
from collections.abc import Mapping

from nccl_forensics.facts.cuda_errors import cuda_error
from nccl_forensics.facts.signals import ASKS_TO_END

#: Signatures of exceptions that only say that another rank went away or did not come.
VICTIM = frozenset(
    {
        "gloo-timeout",
        "gloo-closed",
        "gloo-reset",
        "nccl-timeout",
        "nccl-remote",
        "nccl-follow-up",
        "monitored-barrier",
        "detail-mismatch",
        "store-timeout",
        "store-closed",
        "store-unreachable",
        "store-barrier",
        "gloo-connect",
        "rendezvous-lost",
        "rendezvous-timeout",
        "gloo-size-mismatch",
        "keyboard-interrupt",
        "actor-died",
        "in-collective",
        "sigterm",
    }
)
#: Of these, what was raised by a process that had waited for others to the end, or was told that they do not fit: a crash of it comes after
#: that.
WAITED = frozenset({"gloo-timeout", "nccl-timeout", "monitored-barrier", "detail-mismatch", "store-timeout", "store-barrier"})
#: Signatures that name a cause of their own which another rule explains better.
_KIND_OF = {
    "cuda-oom": "out-of-memory",
    "host-oom": "out-of-memory",
    "cuda-error": "gpu",
    "nccl-cuda": "gpu",
    "ddp-unused": "ddp-unused",
    "launcher": "launcher",
    "nccl-usage": "usage",
    "refused": "usage",
}
#: What a CUDA error makes of an ending. One that the caller made (a wrong argument, an assertion in a kernel) is an exception as any other.
_KIND_OF_CUDA = {
    "gpu": "gpu",
    "kernel": "gpu",
    "not-ready": "gpu",
    "driver": "driver",
    "memory": "out-of-memory",
    "program": "exception",
}
SIGNALS = {
    -9: "SIGKILL",
    -11: "SIGSEGV",
    -6: "SIGABRT",
    -7: "SIGBUS",
    -8: "SIGFPE",
    -4: "SIGILL",
    -15: "SIGTERM",
    -2: "SIGINT",
    -1: "SIGHUP",
}
_KIND_OF_SIGNAL = {
    "SIGKILL": "killed",
    "SIGSEGV": "segfault",
    "SIGBUS": "bus-error",
    "SIGFPE": "fpe",
    "SIGILL": "illegal",
    "SIGABRT": "abort",
}
#: Signals by which a process ends of itself; after a watchdog's timeout they are no beginning.
CRASHES = frozenset({"SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL"})


def judge(who: dict[str, object]) -> dict[str, object]:
    """Own fault or consequence, from exit code, signal and exception. A traceback beats the launcher's signal."""
    signature, signal, code = who["signature"], who["signal"], who["exit_code"]
    if signature == "signal":
        signature = None
        if signal is None and code is None and who["type"] in CRASHES:
            # It printed its crash, and a launcher that lists one failure alone says nothing of it.
            told = {"kind": _KIND_OF_SIGNAL[str(who["type"])], "signal": who["type"]}
            return {**told, "own": True, "why": f"ended by {who['type']}, as its own handler of it printed"}
    if signature == "launcher" and str(who["type"]).endswith("SignalException"):
        # A worker that torchrun's agent forked has the agent's handler of the signals by which it is told to end.
        return {"kind": "terminated", "own": False, "why": "a signal told it to end, as a launcher or scheduler sends it"}
    if signature is not None and signature not in VICTIM:
        kind = _KIND_OF.get(str(signature), "exception")
        if kind == "gpu":
            said = cuda_error(f"{who['type']}: {who['message']}")
            kind = _KIND_OF_CUDA[said.speaks] if said is not None else "exception"
        return {"kind": kind, "own": True, "why": "an exception of its own"}
    if signal == "SIGKILL" and who.get("forced") and signature is None:
        return {"kind": "terminated", "own": False, "why": "SIGKILL by its launcher, as it had not ended at the signal before"}
    if signal in ("SIGKILL", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL"):
        if signature is None or (signal == "SIGSEGV" and signature not in WAITED):
            return {"kind": _KIND_OF_SIGNAL[str(signal)], "own": True, "why": f"ended by {signal} without an exception before it"}
        return {"kind": "victim", "own": False, "why": f"{signal} after {signature}"}
    if signature is not None:
        return {"kind": "victim", "own": False, "why": f"{signature} says that another rank did not come or went away"}
    if signal in ASKS_TO_END:
        return {"kind": "terminated", "own": False, "why": f"{signal}, as a launcher or scheduler sends it"}
    if signal == "SIGABRT":
        return {"kind": "abort", "own": True, "why": "aborted without a message that explains it"}
    if code is not None and code != 0:
        return {"kind": "exit", "own": True, "why": f"exit code {code} without an exception in the evidence"}
    return {"kind": "clean", "own": False, "why": "exit code 0"}


#: Whose part of a checkpoint failed, which all ranks raise (torch/distributed/checkpoint/api.py), and what pickle says of an object of the
#: caller.
_CHECKPOINT = re.compile(r"CheckpointException ranks:dict_keys\(\[([\d, ]{1,400})\]?")
_NOT_PICKLED = re.compile(r"^(?:[Cc]an(?:'|no)t pickle |Can't get local object )")
#: What of torch.distributed meets other ranks itself, and what only lays out meshes and tensors.
_MEETS = re.compile(r"torch/distributed/(?:\w+_c10d|c10d_logger|_functional_collectives|rendezvous|tensor/_collective_utils)\.py:")
_LAYS_OUT = re.compile(r"torch/distributed/(?:device_mesh\.py|_mesh_layout\.py|tensor/)")
#: How Python code refuses what it was given; a peer that is gone is none of these.
_REFUSED = frozenset({"ValueError", "TypeError", "AssertionError", "NotImplementedError", "KeyError", "AttributeError", "IndexError"})


def signature_of(row: Mapping[str, object]) -> object:
    """What it raised is called: an unknown (or cut-off) text raised by torch.distributed itself blames no line of the program, unless it is about what the rank was
    to send, write or lay out, or where no other rank is met."""
    innermost = str(row["frames"] or "").split("\n", 1)[0]
    if row["signature"] != "user" or "torch/distributed/" not in innermost:
        return row["signature"]
    if not _MEETS.search(innermost) and (row["type"] in _REFUSED or _LAYS_OUT.search(innermost)):
        return row["signature"]
    failed = unwritten(row)
    if failed and row["rank"] is not None:
        return "user" if row["rank"] in failed else "in-collective"
    return "user" if _NOT_PICKLED.search(str(row["message"])) else "in-collective"


#: What a cause of its own tells.
CAUSE = 3


def telling(signature: object) -> int:
    """How much a signature says of why the process ended."""
    if signature is None:
        return 0
    if signature == "signal":
        return 1
    return 2 if signature in VICTIM else CAUSE


def unwritten(row: Mapping[str, object]) -> set[int]:
    """Ranks whose part of a checkpoint failed, as every rank says."""
    failed = _CHECKPOINT.search(str(row["message"]))
    return {int(rank) for rank in failed[1].replace(",", " ").split()} if failed else set()
