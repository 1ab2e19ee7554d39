"""Evidence of stated sizes for the benchmarks of reading, made from the simulator's incidents so that each has a known answer.

    python -m tests.benchmarks.inputs operations FOLDER --ranks 8 --mb 500     logs of NCCL, nearly all lines are operations python -m
    tests.benchmarks.inputs init FOLDER --ranks 512                  logs of NCCL up to the first steps: init, channels, settings python -m
    tests.benchmarks.inputs recorder FOLDER --ranks 256 --entries 2000 python -m tests.benchmarks.inputs mixed FOLDER --ranks 1024 --mb 5000
    logs, dumps and stacks of all ranks, one tarball FOLDER.tar.gz

Each folder then holds ``evidence/`` and ``truth.json``. The same arguments give the same bytes.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import re
import shutil
import struct
import tarfile
from collections.abc import Iterator
from pathlib import Path

from nccl_forensics import simulate

_OPERATION = re.compile(r"^(?P<head>.* NCCL INFO \w+: opCount )(?P<number>[0-9a-f]+)(?P<rest> .* comm (?P<comm>0x[0-9a-f]+) .*)$")
_POINTER = re.compile(r"(?<=buff 0x)[0-9a-f]+")
#: One training step of the recorder's dumps: operation, elements, line of user code.
_STEP = (
    ("_all_gather_base", 1048576, 34), ("all_reduce", 4194304, 37), ("all_reduce", 2097152, 37), ("_reduce_scatter_base", 1048576, 41),
    ("all_reduce", 1, 52),
)  # fmt: skip
_TORCH = "/opt/venv/lib/python3.11/site-packages/torch/distributed/"


def operations(folder: Path, ranks: int, megabytes: float, *, lost: bool = False) -> None:
    """Logs of ranks of which one skips a collective; before it all repeat their first step until the logs have this size together.
    ``lost``: the last log lacks a line in its middle."""
    _incident(folder, simulate.Request("collective-skipped", ranks, 3, "h100", "log", "2.27.7", full=True))
    logs = sorted((folder / "evidence" / "logs").glob("nccl.*.log"))
    for number, log in enumerate(logs):
        stretch(log, int(megabytes * 1e6 / len(logs)), number)
    if lost:
        content = logs[-1].read_bytes()
        start = content.index(b"\n", len(content) // 2) + 1
        logs[-1].write_bytes(content[:start] + content[content.index(b"\n", start) + 1 :])


def init(folder: Path, ranks: int) -> None:
    """Logs of a job that sets up many communicators and does little else."""
    _incident(folder, simulate.Request("collective-skipped", ranks, 3, "h100", "log", "2.27.7", full=True))


def recorder(folder: Path, ranks: int, entries: int, *, healthy: bool = False) -> None:
    """Dumps of ranks of which one leaves out a collective near the end, or of a job in which nothing is wrong."""
    dumps = folder / "evidence"
    dumps.mkdir(parents=True)
    culprit = None if healthy else ranks * 5 // 8
    for rank in range(ranks):
        (dumps / f"nccl_trace_rank_{rank}").write_bytes(dump(rank, ranks, entries, culprit))
    truth = {"cause_accepted": [None if healthy else "collective-skipped"], "culprit_ranks_accepted": [[] if healthy else [culprit]]}
    (folder / "truth.json").write_text(json.dumps(truth, indent=1) + "\n", encoding="utf-8")


def mixed(folder: Path, ranks: int, megabytes: float) -> None:
    """Logs of all ranks with operations, their dumps as JSON and two stacks of each, in one tarball of this unpacked size."""
    _incident(folder, simulate.Request("collective-skipped", ranks, 3, "h100", "live", "2.27.7", full=True))
    evidence = folder / "evidence"
    have = sum(f.stat().st_size for f in evidence.rglob("*") if f.is_file())
    logs = sorted((evidence / "logs").glob("nccl.*.log"))
    share = max(0, int((megabytes * 1e6 - have) / len(logs)))
    with tarfile.open(f"{folder}.tar.gz", "w:gz", compresslevel=1) as archive:
        for file in sorted(f for f in evidence.rglob("*") if f.is_file()):
            if file in logs:
                stretch(file, file.stat().st_size + share, logs.index(file))
            archive.add(file, str(file.relative_to(evidence)), filter=_nobody)
            file.unlink()
    shutil.rmtree(evidence)


def _nobody(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


def _incident(folder: Path, request: simulate.Request) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    simulate.simulate(request, folder)


def stretch(log: Path, size: int, seed: int) -> None:
    """Repeat a log's first step behind it: what stands between the first two operations of the communicator that it begins with. Each
    communicator counts its calls from 0, as NCCL did up to 2.26."""
    lines = log.read_text(encoding="utf-8").splitlines(keepends=True)
    found = [(n, m) for n, line in enumerate(lines) if (m := _OPERATION.match(line.rstrip("\n")))]
    first = found[0][1]["comm"]
    end = next(i for i, (_, m) in enumerate(found[1:], 1) if m["comm"] == first)
    step = [m for _, m in found[1 : end + 1]]
    counts = {m["comm"]: -1 for _, m in found[: end + 1]}
    rng = random.Random(seed)
    at = found[end][0] + 1

    def counted(line: str) -> str:
        own = _OPERATION.match(line.rstrip("\n"))
        if own is None or own["comm"] not in counts:
            return line
        counts[own["comm"]] += 1
        return f"{own['head']}{counts[own['comm']]:x}{own['rest']}\n"

    with log.open("w", encoding="utf-8") as out:
        out.writelines(map(counted, lines[:at]))
        while out.tell() < size:
            for m in step:
                rest = _POINTER.sub(lambda _: f"7f{rng.randrange(16**5):05x}{rng.randrange(8):x}0000", m["rest"])
                counts[m["comm"]] += 1
                out.write(f"{m['head']}{counts[m['comm']]:x}{rest}\n")
        out.writelines(map(counted, lines[at:]))


def dump(rank: int, ranks: int, entries: int, culprit: int | None) -> bytes:
    """A dump as torch's pickler writes it: 8 frames an entry and 5 distinct stacks, as in the dumps of real jobs."""
    base = 1_795_220_500_000_000_000
    left_out = entries - entries // 100 - 2 if culprit is not None else entries + 1
    rows: list[dict[str, object]] = []
    stacks = {(op, line): _stack(op, line) for op, _, line in _STEP}
    names = ("default_pg", "0")
    position = 0
    while len(rows) < entries:
        position += 1
        if rank == culprit and position == left_out:
            continue
        op, count, line = _STEP[position % len(_STEP)]
        seq, done = len(rows) + 1, len(rows) + 1 < left_out
        created = base + position * 7_000_000 + (rank * 7919 + position * 104729) % 500_000
        rows.append(
            {
                "frames": list(stacks[op, line]),
                "record_id": seq - 1,
                "pg_id": 0,
                "process_group": (names[1], names[0]),
                "collective_seq_id": seq,
                "p2p_seq_id": 0,
                "op_id": seq,
                "profiling_name": f"nccl:{op}",
                "time_created_ns": created,
                "duration_ms": None,
                "input_sizes": [[count * (ranks if op == "_reduce_scatter_base" else 1)]],
                "input_dtypes": ["Float"],
                "output_sizes": [[count * (ranks if op == "_all_gather_base" else 1)]],
                "output_dtypes": ["Float"],
                "state": "completed" if done else "scheduled",
                "time_discovered_started_ns": created + 2_000_000 if done else None,
                "time_discovered_completed_ns": created + 5_000_000 if done else None,
                "retired": done,
                "timeout_ms": 600_000,
                "is_p2p": False,
            }
        )
    document = {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(ranks)))}},
        "comm_lib_version": "2.27.7",
        "pg_status": {"0": {"last_enqueued_collective": entries, "last_started_collective": -1, "last_completed_collective": left_out - 1}},
        "entries": rows,
    }
    return pickled(document)


def pickled(document: dict[str, object]) -> bytes:
    """A document as torch's pickler writes it."""
    return _Pickler().dump(document)


def _stack(op: str, line: int) -> tuple[dict[str, object], ...]:
    places = (
        (op.strip("_"), f"{_TORCH}distributed_c10d.py", 3245), ("wrapper", f"{_TORCH}c10d_logger.py", 83),
        (f"sync_{op}", "/opt/job/train_loop.py", line), ("train", "/opt/job/train_loop.py", 88), ("run", "/opt/job/common.py", 137),
        ("main", "/opt/job/train_loop.py", 103), ("wrapper", f"{_TORCH}elastic/multiprocessing/errors/__init__.py", 367),
        ("<module>", "/opt/job/train_loop.py", 107),
    )  # fmt: skip
    return tuple({"name": name, "filename": file, "line": number} for name, file, number in places)


class _Pickler:
    """Opcodes as torch's pickler chooses them: protocol 2, strings and shared frames memoised, lists and other objects not."""

    def __init__(self) -> None:
        self._out = io.BytesIO()
        self._memo: dict[object, int] = {}

    def dump(self, value: object) -> bytes:
        self._out.write(b"\x80\x02")
        self._push(value)
        return self._out.getvalue() + b"."

    def _push(self, value: object) -> None:
        write = self._out.write
        if value is None or isinstance(value, bool):
            write(b"N" if value is None else b"\x88" if value else b"\x89")
        elif isinstance(value, float):
            write(b"G" + struct.pack(">d", value))
        elif isinstance(value, int):
            if 0 <= value < 1 << 16:
                write(b"K" + bytes([value]) if value < 256 else b"M" + struct.pack("<H", value))
            elif -(1 << 31) <= value < 1 << 31:
                write(b"J" + struct.pack("<i", value))
            else:
                raw = value.to_bytes(8, "little", signed=True)
                write(b"\x8a\x08" + raw)
        elif isinstance(value, str):
            if not self._known(value):
                raw = value.encode()
                write(b"X" + struct.pack("<I", len(raw)) + raw)
                self._remember(value)
        elif isinstance(value, tuple):
            for part in value:
                self._push(part)
            write(b"\x86")
        elif isinstance(value, list):
            write(b"](")
            for part in value:
                self._push(part)
            write(b"e")
        elif isinstance(value, dict):
            shared = "filename" in value
            if shared and self._known(id(value)):
                return
            write(b"}(")
            for key, part in value.items():
                self._push(key)
                self._push(part)
            write(b"u")
            if shared:
                self._remember(id(value))

    def _known(self, key: object) -> bool:
        number = self._memo.get(key)
        if number is not None:
            self._out.write(b"h" + bytes([number]) if number < 256 else b"j" + struct.pack("<I", number))
        return number is not None

    def _remember(self, key: object) -> None:
        number = self._memo[key] = len(self._memo)
        self._out.write(b"q" + bytes([number]) if number < 256 else b"r" + struct.pack("<I", number))


def sizes(folder: Path) -> Iterator[Path]:
    """The files of a folder."""
    return (f for f in sorted(folder.rglob("*")) if f.is_file())


def arguments() -> argparse.ArgumentParser:
    """What says which evidence to make, how much of it and where."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["operations", "init", "recorder", "mixed"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--mb", type=float, default=500)
    parser.add_argument("--entries", type=int, default=2000)
    return parser


def main() -> None:
    options = arguments().parse_args()
    if options.kind == "operations":
        operations(options.folder, options.ranks, options.mb)
    elif options.kind == "init":
        init(options.folder, options.ranks)
    elif options.kind == "recorder":
        recorder(options.folder, options.ranks, options.entries)
    else:
        mixed(options.folder, options.ranks, options.mb)


if __name__ == "__main__":
    main()
