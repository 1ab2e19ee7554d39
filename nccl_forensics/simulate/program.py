"""The training program: what one rank does in one step, as a list of items. Writers read places of code and sizes from here.

Frames are innermost first. A host item takes its time on the CPU, a compute item on the GPU, an operation is enqueued by the CPU and runs
on the stream of its group; ``wait`` says whether the compute stream waits for it at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from nccl_forensics.simulate.layout import Layout

Frame = tuple[str, str, int]
HERE = "/opt/job/"
TORCH = "/opt/venv/lib/python3.11/site-packages/torch/"
FOREVER = 1 << 62


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that a rank does. ``kind``: host, compute, op, sync, die, gpu-stop. Times in microseconds.

    ``op`` is torch's name of the call; ``sizes`` and ``out_sizes`` are shapes; ``peer`` is the other rank's place in the group for
    send and receive; ``times`` says how many seconds a stalled host item lasts in words of ``note``.
    """

    kind: str
    us: int = 0
    frames: tuple[Frame, ...] = ()
    role: str = ""
    op: str = ""
    sizes: tuple[int, ...] = ()
    out_sizes: tuple[int, ...] = ()
    dtype: str = "BFloat16"
    red_op: str = "sum"
    root: int = 0
    peer: int = -1
    wait: bool = False
    note: str = ""

    @property
    def numel(self) -> int:
        """Elements handed in."""
        return prod(self.sizes)

    @property
    def out_numel(self) -> int:
        """Elements that come out."""
        return prod(self.out_sizes)

    @property
    def bytes(self) -> int:
        """Bytes handed in."""
        return self.numel * DTYPE_BYTES[self.dtype]

    def signature(self) -> tuple[object, ...]:
        """What must agree between the ranks for the operation to finish: the call, its bytes, its root."""
        return (self.op, self.bytes, self.root)


DTYPE_BYTES = {"BFloat16": 2, "Half": 2, "Float": 4, "Int": 4, "Long": 8, "Double": 8, "Byte": 1}


@dataclass(frozen=True, slots=True)
class Training:
    """Sizes of the model and shape of the loop."""

    layers: int = 2
    micro_batches: int = 2
    hidden: int = 4096
    tokens: int = 2048
    buckets: int = 2
    sharded: bool = False
    sync_each_step: bool = True
    checkpoint_every: int = 0


def _at(*frames: Frame) -> tuple[Frame, ...]:
    """Places of user code, innermost first, under the program's main frames."""
    return (*frames, ("train_step", f"{HERE}trainer.py", 188), ("main", f"{HERE}pretrain.py", 97), ("<module>", f"{HERE}pretrain.py", 121))


_LOAD = _at(("next_batch", f"{HERE}data/loader.py", 74))
_BROADCAST = _at(("broadcast_batch", f"{HERE}parallel/tensor.py", 41))
_FORWARD = (("forward", f"{HERE}model/layer.py", 133), ("forward_stage", f"{HERE}model/stage.py", 58))
_BACKWARD = (("backward", f"{HERE}model/layer.py", 171), ("backward_stage", f"{HERE}model/stage.py", 92))
_TP = _at(("reduce_from_region", f"{HERE}parallel/tensor.py", 88), *_FORWARD)
_TP_BACK = _at(("reduce_from_region", f"{HERE}parallel/tensor.py", 88), *_BACKWARD)
_CP = _at(("gather_keys", f"{HERE}parallel/context.py", 52), *_FORWARD)
_EP = _at(("dispatch_tokens", f"{HERE}model/experts.py", 117), *_FORWARD)
_EP_BACK = _at(("combine_tokens", f"{HERE}model/experts.py", 149), *_BACKWARD)
_SHARD = _at(("unshard", f"{HERE}parallel/sharded.py", 203), *_FORWARD)
_SHARD_BACK = _at(("reshard_grads", f"{HERE}parallel/sharded.py", 251), *_BACKWARD)
_SEND_FORWARD = _at(("send_forward", f"{HERE}parallel/pipeline.py", 66))
_RECV_FORWARD = _at(("recv_forward", f"{HERE}parallel/pipeline.py", 49))
_SEND_BACKWARD = _at(("send_backward", f"{HERE}parallel/pipeline.py", 101))
_RECV_BACKWARD = _at(("recv_backward", f"{HERE}parallel/pipeline.py", 84))
_GRADS = _at(("sync_gradients", f"{HERE}trainer.py", 142))
_LOSS = _at(("reduce_loss", f"{HERE}trainer.py", 161))
_ITEM = _at(("log_loss", f"{HERE}trainer.py", 169))
_START: tuple[Frame, ...] = (
    ("setup", f"{HERE}pretrain.py", 61),
    ("main", f"{HERE}pretrain.py", 90),
    ("<module>", f"{HERE}pretrain.py", 121),
)
_BARRIER: Frame = ("barrier", f"{TORCH}distributed/distributed_c10d.py", 4842)
_COMPUTE_US = 900


def step_items(layout: Layout, training: Training, stage: int, step: int) -> list[Item]:
    """What a rank of this pipeline stage does in a step; the same for all ranks of the stage."""
    shape = (training.tokens, training.hidden)
    items = []
    if step == 0:
        items += [
            Item("op", 8, _START, "world", "all_reduce_barrier", (1,), (1,), "Float", wait=True),
            Item("sync", 4, (_BARRIER, *_START)),
        ]
    items.append(Item("host", 2600, _LOAD, note="load"))
    if layout.tp > 1:
        tokens = (training.tokens + 1,)
        items.append(Item("op", 8, _BROADCAST, "tp", "broadcast", tokens, tokens, "Long", wait=True))
    for _ in range(training.micro_batches):
        if stage > 0:
            items.append(Item("op", 8, _RECV_FORWARD, "pp", "recv", shape, shape, peer=stage - 1, wait=True))
        for _ in range(training.layers):
            items += _layer(layout, training, shape, back=False)
        if stage < layout.pp - 1:
            items.append(Item("op", 8, _SEND_FORWARD, "pp", "send", shape, shape, peer=stage + 1, wait=True))
    for _ in range(training.micro_batches):
        if stage < layout.pp - 1:
            items.append(Item("op", 8, _RECV_BACKWARD, "pp", "recv", shape, shape, peer=stage + 1, wait=True))
        for _ in range(training.layers):
            items += _layer(layout, training, shape, back=True)
        if stage > 0:
            items.append(Item("op", 8, _SEND_BACKWARD, "pp", "send", shape, shape, peer=stage - 1, wait=True))
    if layout.dp > 1 and not training.sharded:
        for bucket in range(training.buckets):
            last = bucket == training.buckets - 1
            size = (6_815_744 + 1_048_576 * bucket,)
            items.append(Item("op", 9, _GRADS, "dp", "all_reduce", size, size, "Float", red_op="avg", wait=last))
    items.append(Item("op", 8, _LOSS, "world", "all_reduce", (2,), (2,), "Float", wait=True))
    if training.sync_each_step:
        items.append(Item("sync", 4, _ITEM))
    if training.checkpoint_every and (step + 1) % training.checkpoint_every == 0:
        where = _at(("save_checkpoint", f"{HERE}checkpoint.py", 77))
        items.append(Item("host", 40_000, where, note="checkpoint"))
        items.append(Item("op", 8, where, "world", "all_reduce_barrier", (1,), (1,), "Float", wait=True))
        items.append(Item("sync", 4, (_BARRIER, *where)))
    return items


def _layer(layout: Layout, training: Training, shape: tuple[int, int], back: bool) -> list[Item]:
    items: list[Item] = []
    rows, hidden = shape
    if training.sharded and layout.dp > 1:
        whole = layout.dp * (hidden * 3072 // layout.dp)
        part = (whole // layout.dp,)
        items.append(Item("op", 9, _SHARD_BACK if back else _SHARD, "dp", "_all_gather_base", part, (whole,), wait=True))
    items.append(Item("compute", _COMPUTE_US * (2 if back else 1)))
    if layout.cp > 1 and not back:
        items.append(Item("op", 8, _CP, "cp", "_all_gather_base", (rows, 1024), (rows * layout.cp, 1024), wait=True))
    if layout.tp > 1:
        items.append(Item("op", 8, _TP_BACK if back else _TP, "tp", "all_reduce", shape, shape, wait=True))
    if layout.ep > 1:
        items.append(Item("op", 10, _EP_BACK if back else _EP, "ep", "all_to_all", shape, shape, wait=True))
    if training.sharded and layout.dp > 1 and back:
        whole = layout.dp * (hidden * 3072 // layout.dp)
        items.append(Item("op", 9, _SHARD_BACK, "dp", "_reduce_scatter_base", (whole,), (whole // layout.dp,), "Float", red_op="avg"))
    return items


def operations(items: list[Item], role: str | None = None) -> list[int]:
    """Positions of collectives (of one role)."""
    return [i for i, x in enumerate(items) if x.kind == "op" and (role is None or x.role == role) and x.op not in ("send", "recv")]


def without(items: list[Item], at: int) -> list[Item]:
    """The list with the item at a position left out."""
    return [*items[:at], *items[at + 1 :]]


def changed(items: list[Item], at: int, **fields: object) -> list[Item]:
    """The list with fields of one item replaced."""
    return [*items[:at], replace(items[at], **fields), *items[at + 1 :]]  # type: ignore[arg-type]  # the caller names fields of an item


def inserted(items: list[Item], at: int, *more: Item) -> list[Item]:
    """The list with items put in front of a position."""
    return [*items[:at], *more, *items[at:]]
