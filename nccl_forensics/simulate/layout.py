"""Parallel layouts: which ranks form which group. Order of a rank's digits from fast to slow: tensor, context, expert and data, pipeline.

Groups are arithmetic progressions of ranks, kept as ``range``: a layout of 65,536 ranks costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Group:
    """A process group: its name (one per group of the job, as ``torch.distributed`` counts them), description, members."""

    name: str
    desc: str
    role: str
    members: range

    def place(self, rank: int) -> int:
        """Rank inside the group."""
        return self.members.index(rank)


#: Role -> description, for the two ways in which frameworks name their groups.
_WORDS = {
    "megatron": {
        "dp": "DATA_PARALLEL_GROUP_WITH_CP",
        "tp": "TENSOR_MODEL_PARALLEL_GROUP",
        "cp": "CONTEXT_PARALLEL_GROUP",
        "ep": "EXPERT_MODEL_PARALLEL_GROUP",
        "pp": "PIPELINE_MODEL_PARALLEL_GROUP",
    },
    "mesh": {"dp": "mesh_dp", "tp": "mesh_tp", "cp": "mesh_cp", "ep": "mesh_ep", "pp": "mesh_pp"},
}
ROLES = ("dp", "tp", "cp", "ep", "pp")


@dataclass(frozen=True, slots=True)
class Layout:
    """Sizes of the dimensions; ``dp`` counts data-parallel replicas, of which ``ep`` neighbours share experts."""

    dp: int
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    words: str = "megatron"

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.dp * self.tp * self.pp * self.cp

    def digits(self, rank: int) -> dict[str, int]:
        """Place of a rank along each dimension."""
        tp = rank % self.tp
        cp = rank // self.tp % self.cp
        dp = rank // (self.tp * self.cp) % self.dp
        return {"tp": tp, "cp": cp, "dp": dp, "ep": dp % self.ep, "pp": rank // (self.tp * self.cp * self.dp)}

    def world_group(self) -> Group:
        """All ranks."""
        return Group("0", "default_pg", "world", range(self.world))

    def group(self, role: str, rank: int) -> Group | None:
        """The rank's group of a role; None where the dimension has one rank."""
        if role == "world":
            return self.world_group()
        size = {"dp": self.dp, "tp": self.tp, "cp": self.cp, "ep": self.ep, "pp": self.pp}[role]
        if size == 1:
            return None
        step = {"tp": 1, "cp": self.tp, "ep": self.tp * self.cp, "dp": self.tp * self.cp, "pp": self.tp * self.cp * self.dp}[role]
        start = rank - self.digits(rank)[role] * step
        members = range(start, start + size * step, step)
        index = self._index(role, start)
        return Group(str(1 + self._offset(role) + index), _WORDS[self.words][role], role, members)

    def groups(self, rank: int) -> list[Group]:
        """The rank's groups in the order in which the program makes them; the place in the list is the local number of the group."""
        made = [self.group(role, rank) for role in ROLES]
        return [self.world_group(), *(g for g in made if g is not None)]

    def _offset(self, role: str) -> int:
        sizes = {"dp": self.dp, "tp": self.tp, "cp": self.cp, "ep": self.ep, "pp": self.pp}
        return sum(self.world // sizes[r] for r in ROLES[: ROLES.index(role)] if sizes[r] > 1)

    def _index(self, role: str, start: int) -> int:
        """Number of groups of this role that begin at a smaller rank."""
        inner = self.tp * self.cp
        low = start % inner
        if role == "tp":
            return start // self.tp
        if role == "cp":
            return start // inner * self.tp + low
        if role == "pp":
            return start
        plane, rest = divmod(start, inner * self.dp)
        per_plane = inner * (self.dp // self.ep if role == "ep" else 1)
        block = rest // (inner * self.ep) if role == "ep" else 0
        return plane * per_plane + block * inner + low


def default_layout(world: int, seed: int, gpus: int) -> Layout:
    """A usual layout for a world size, chosen by the seed among data, tensor, pipeline, context and expert parallelism."""
    choices = [Layout(world, words="mesh")]
    if world % gpus == 0 and world >= 2 * gpus:
        choices.append(Layout(world // gpus, tp=gpus))
        if world % (gpus * 2) == 0 and world >= 4 * gpus:
            choices.append(Layout(world // gpus // 2, tp=gpus, pp=2))
        if world % (gpus * 8) == 0:
            choices.append(Layout(world // 8, tp=2, pp=4, words="megatron"))
            choices.append(Layout(world // 8, tp=4, cp=2, words="mesh"))
        if world % (gpus * 2) == 0:
            choices.append(Layout(world // 2, tp=2, ep=gpus // 2, words="megatron"))
    elif world % 4 == 0 and world >= 8:
        choices.append(Layout(world // 4, tp=4, words="mesh"))
        choices.append(Layout(world // 4, tp=2, pp=2))
    return choices[seed % len(choices)]
