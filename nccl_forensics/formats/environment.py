"""Environment dumps: env, printenv, ``export -p``, ``declare -x`` and /proc/<pid>/environ (NUL-separated), and what a shell under ``set
-x`` says that it sets. Secrets are masked on reading."""

from __future__ import annotations

import re

from nccl_forensics.formats.base import DocumentFormat, Gap, Reading, Row, Text, TextFormat, filled, line_numbers
from nccl_forensics.grammar.writers import WRITER
from nccl_forensics.masking import mask_variable
from nccl_forensics.values.units import is_number

_LINE = re.compile(r"^(?:export |declare -x )?([A-Za-z_][A-Za-z0-9_]{0,127})=(.*)$", re.DOTALL)
#: Fewer lines in a row are a command line or a message, not a dump, unless the shell says before them that they are.
_LEAST = 4
_DUMPED = re.compile(r"^(?:\++|[^\s#$]*[#$]) .*\b(?:env|printenv|export -p|declare -x)\b|^\++ e?grep .*NCCL")
#: What a shell under ``set -x`` ran: an assignment of its own, or one that it hands to the processes of ``mpirun``.
_TRACED = re.compile(r"^\++ (?:export )?((?:NCCL|FI|UCX)_[A-Z0-9_]+)=(\S+)$")
_HANDED = re.compile(r"(?<=\s)-x (NCCL_[A-Z0-9_]+)=(\S+)")


def read(text: Text) -> Reading:
    """Every run of at least four assignments that holds a setting of the job, and what a traced shell sets."""
    numbers: list[int] = text.lines["line_no"].to_list()
    texts: list[str] = text.lines["text"].to_list()
    hits: list[bool] = text.lines["hit"].to_list()
    hints = text.lines.select(WRITER).rows(named=True)
    rows: list[Row] = []
    used: list[int] = []
    start: int | None = None
    for i in range(len(texts) + 1):
        if i < len(texts) and _LINE.match(texts[i]) and (start is None or numbers[i] == numbers[i - 1] + 1):
            start = i if start is None else start
            continue
        if start is not None and any(hits[start:i]) and (i - start >= _LEAST or (start and _DUMPED.match(texts[start - 1]))):
            block = [_row(texts[n]) for n in range(start, i)]
            who = _who(block)
            rows.extend({**hints[n], **who, "line_no": numbers[n], **row} for n, row in zip(range(start, i), block, strict=True))
            used.extend(numbers[start:i])
        start = i if i < len(texts) and _LINE.match(texts[i]) else None
    for n, text_of in enumerate(texts):
        if hits[n] and text_of.startswith("+"):
            said = _traced(text_of)
            rows.extend({**hints[n], "line_no": numbers[n], **row} for row in said)
            used.extend([numbers[n]] if said else [])
    return Reading(frames=filled({"environment": rows}), lines=line_numbers(used))


def _traced(line: str) -> list[Row]:
    """Settings in a line of a traced shell."""
    found = [m for m in (_TRACED.match(line),) if m] or list(_HANDED.finditer(line))
    return [{"name": m[1], "value": mask_variable(m[1], m[2].strip("'\""))[:4000]} for m in found]


def _row(line: str) -> Row:
    found = _LINE.match(line)
    assert found is not None
    name, value = found[1], found[2]
    if line.startswith("declare -x ") and len(value) >= 2 and value[0] == value[-1] == '"':
        value = value[1:-1]
    return {"name": name, "value": mask_variable(name, value)[:4000]}


def _who(block: list[Row]) -> Row:
    """Rank and host of a dump. A Slurm task is a rank only where a node runs several: with one per node it is a launcher."""
    known = {str(r["name"]): str(r["value"]) for r in block}
    per_node = known.get("SLURM_STEP_TASKS_PER_NODE") or known.get("SLURM_TASKS_PER_NODE") or known.get("SLURM_NTASKS_PER_NODE") or "1"
    task = known.get("SLURM_PROCID") if re.match(r"(?:[2-9]|\d{2,})(?:\D|$)", per_node) else None
    rank = known.get("RANK") or known.get("OMPI_COMM_WORLD_RANK") or known.get("PMI_RANK") or task or ""
    return {"rank": int(rank) if is_number(rank) else None, "host": known.get("HOSTNAME") or known.get("SLURMD_NODENAME")}


def _sniff(head: bytes) -> bool:
    parts = head[:4096].split(b"\0")
    return len(parts) > _LEAST and b"\n" not in parts[0] and all(re.match(rb"^[A-Za-z_][A-Za-z0-9_]*=", p) for p in parts[:_LEAST])


def read_environ(data: bytes) -> Reading:
    """/proc/<pid>/environ: assignments separated by NUL."""
    rows: list[Row] = []
    gaps: list[Gap] = []
    for n, part in enumerate(data.split(b"\0")):
        text = part.decode("utf-8", "replace")
        if not text.strip():
            continue
        if _LINE.match(text):
            rows.append({"record": f"environ[{n}]", **_row(text)})
        else:
            gaps.append(Gap("unparsed: no assignment", record=f"environ[{n}]"))
    who = _who(rows)
    return Reading(frames=filled({"environment": [{**who, **row} for row in rows]}), gaps=tuple(gaps), records=len(rows))


FORMATS = (
    TextFormat(
        name="environment",
        title="env, printenv, export -p, declare -x",
        tables=("environment",),
        anchors=(
            "NCCL_",
            "MASTER_ADDR=",
            "WORLD_SIZE=",
            "SLURM_JOB_ID=",
            "OMPI_COMM_WORLD_RANK=",
            "CUDA_VISIBLE_DEVICES=",
            "LD_LIBRARY_PATH=",
        ),
        read=read,
        priority=70,
    ),
    DocumentFormat(name="environ", title="/proc/<pid>/environ", tables=("environment",), sniff=_sniff, read=read_environ, priority=20),
)
