"""xGMI in the JSON of rocm-smi.

The driver keeps no count of xGMI errors: it tells 0, 1, or 2 for none, one, and more than one since it was last asked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from nccl_forensics.formats.base import Row
from nccl_forensics.grammar.blocks import whole

#: The counter's name in ``nvlink_counters``.
XGMI = "xGMI errors"
_TYPE = re.compile(r"^\(Topology\) Link type between DRM devices (\d+) and (\d+)$")
_CARD = re.compile(r"^card(\d+)$")


def links_of(document: Mapping[str, object]) -> dict[str, list[Row]]:
    """Rows of ``nvlink_counters`` and ``gpu_topology``; a pair stands in both directions, as in the text."""
    errors: list[Row] = []
    pairs: list[Row] = []
    for key, value in document.items():
        if not isinstance(value, Mapping):
            continue
        if (card := _CARD.match(str(key))) and "XGMI Error count" in value:
            raw = str(value["XGMI Error count"])
            told = {"gpu_index": int(card[1]), "counter": XGMI, "value": whole(raw.split(" ")[0]), "raw": raw}
            errors.append({"record": str(key), **told})
        for name, kind in value.items() if key == "system" else ():
            if pair := _TYPE.match(str(name)):
                record = f"system.{name}"
                both = ((pair[1], pair[2]), (pair[2], pair[1]))
                pairs += [{"record": record, "a": f"GPU{a}", "b": f"GPU{b}", "relation": str(kind)} for a, b in both]
    return {"nvlink_counters": errors, "gpu_topology": pairs}
