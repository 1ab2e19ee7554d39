"""What torch's own analyzer of Flight Recorder dumps prints (``torchfrtrace``, ``torch.distributed.flight_recorder.fr_trace``).

A heading per call that does not fit, then one ``key: value`` line each. Wordings of torch 2.5 to 2.13 (flight_recorder/components: types.py,
utils.py): up to 2.5 ``expected ranks`` is a number, later ``world size`` is, and ``expected ranks`` lists them. Ranks are those of the job:
the analyzer takes them from the names of the dumps and from their lists of groups.
"""

from __future__ import annotations

import re

from nccl_forensics.formats.base import LineWalk, Reading, Row, Text, TextFormat
from nccl_forensics.grammar.blocks import whole

_HEAD = re.compile(
    r"^\s*(?:Not all ranks joining collective|Collective sequence number|Input/output mismatch in the collective)"
    r"[:,]? ?(?:sequence number)?:? ?([0-9]{1,18})(?: at entry [0-9]{1,18}| has errors)*\s*$"
)
_KEYED = re.compile(
    r"^\s*(internal record id|group info|collective|missing ranks|total (?:in|out)put numel|input sizes|output sizes|world size|expected ranks"
    r"|collective state|error msg|collective stack trace): ?(.*)$"
)
_FRAME = re.compile(r"^\s*\S.{0,256} at \S.{0,2048}:[0-9]{1,9}\s*$")
_ERROR = re.compile(r"Culprit rank ([0-9]{1,7}); Error type: ([A-Z_]{1,64})((?:, (?!Culprit rank ).*?)?)(?=, Culprit rank |$)")
_RANKS = re.compile(r"(?<![0-9])[0-9]{1,7}(?![0-9])")
#: The analyzer's kinds of errors, as ``reports`` words them.
_DIFFERS = {
    "COLLECTIVE_TYPE_MISMATCH": "op",
    "SIZE_OR_SYNTAX_MISMATCH": "shape",
    "COLLECTIVE_DTYPE_MISMATCH": "dtype",
    "COLLECTIVE_STATE_MISMATCH": "state",
}
_QUIET = ("No errors found for this collective entry", "We cannot decide what's wrong with this collective entry")
#: A group of more ranks is not spelled out from its number alone; of so many calls what the analyzer says is kept, and the first of each
#: group counts; so much of a text.
_MOST, _CALLS, _LONG = 1 << 14, 2000, 400


def read(text: Text) -> Reading:
    """One row per call and kind of error: the ranks that it names, and the members of the group."""
    walk = LineWalk(text)
    head: Row | None = None
    told: dict[str, str] = {}
    start = 0
    frames = False
    for i, line in enumerate(walk.texts):
        if found := _HEAD.match(line):
            _block(walk, start, head, told)
            head, told, start, frames = {"seq": int(found[1])}, {}, i, False
        elif head is not None and (keyed := _KEYED.match(line)):
            told[keyed[1]] = keyed[2].strip()
            frames = keyed[1] == "collective stack trace"
        elif not (frames and _FRAME.match(line)) and not line.startswith(_QUIET):
            continue
        walk.use(i)
    _block(walk, start, head, told)
    return walk.reading()


def _block(walk: LineWalk, i: int, head: Row | None, told: dict[str, str]) -> None:
    op = told.get("collective", "").rpartition(":")[2]
    if head is None or not op or len(walk.rows.get("reports", ())) >= _CALLS:
        return
    base: Row = head | {
        "kind": "recorder-analysis",
        "op": op,
        "members": _members(told),
        "detail": told.get("group info", "")[:_LONG] or None,
    }
    if missing := _ranks(told.get("missing ranks", "")):
        walk.add("reports", i, base | {"differs": "missing", "ranks": missing})
    by_kind: dict[str, list[tuple[int, str]]] = {}
    for rank, kind, words in _ERROR.findall(told.get("error msg", "")):
        by_kind.setdefault(_DIFFERS.get(kind, kind.lower()), []).append((int(rank), words.removeprefix(", ")))
    for differs, named in by_kind.items():
        walk.add(
            "reports", i, base | {"differs": differs, "ranks": sorted(r for r, _ in named), "other_detail": named[0][1][:_LONG] or None}
        )


def _members(told: dict[str, str]) -> list[int] | None:
    """The ranks of the group; where only their number is told, the first so many."""
    listed = told.get("expected ranks", "")
    if listed.startswith("{"):
        return _ranks(listed)
    size = whole(told.get("world size") or listed)
    return list(range(size)) if size is not None and 0 < size <= _MOST else None


def _ranks(listed: str) -> list[int]:
    return sorted(int(r) for r in _RANKS.findall(listed))


FORMAT = TextFormat(
    name="recorder-analysis",
    title="torchfrtrace's findings in Flight Recorder dumps",
    tables=("reports",),
    anchors=(
        "Not all ranks joining collective",
        "Collective sequence number: ",
        "mismatch in the collective",
        "for this collective entry",
        "with this collective entry",
    ),
    read=read,
    priority=58,
)
