"""What each SXid of an NVSwitch means.

Source: NVIDIA's Fabric Manager user guide, tables of non-fatal and fatal errors (HGX A100, H100, H200). Blackwell systems report NVLink
trouble by Xid 144 to 150 instead. The guide warns that codes outside its lists are non-fatal if the line says Non-fatal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SxidClass = Literal["corrected", "watch", "connection", "stall", "serious", "fatal-port", "fatal"]


def _codes(text: str) -> frozenset[int]:
    out: set[int] = set()
    for part in text.split():
        first, _, last = part.partition("-")
        out.update(range(int(first), int(last or first) + 1))
    return frozenset(out)


_CLASSES: dict[SxidClass, frozenset[int]] = {
    "corrected": _codes("11012 11021-11023 12021 12023 15008 15011 19049 19055 19057 19059 19062 19065 19068 19071 24001-24003"),
    "watch": _codes("20001 22013 10001 10002 10004 10005"),
    "connection": _codes("20012"),
    "stall": _codes("11004 12028"),
    "serious": _codes("19084 10003"),
    "fatal-port": _codes(
        "11001 11009 11013 11018-11020 12001 12002 12022 12024-12027 12030-12032 14017 15001 15006 15009 15010 15012 15013 "
        "19047 19048 19054 19056 19058 19060 19061 19063 19064 19066 19067 19069 19070 20034 22012 24004-24007"
    ),
    "fatal": _codes("12020 22003 22011 23001-23017"),
}
_MEANING: dict[SxidClass, tuple[str, str]] = {
    "corrected": ("corrected single-bit error", "none"),
    "watch": ("worth watching: replays, thermal events or host access errors", "collect_more"),
    "connection": ("broken or inconsistent connection, or an unclean shutdown", "check_cable_or_optic"),
    "stall": ("traffic of a GPU stalls on an access error of the program or a routing error", "restart_job"),
    "serious": ("unhandled switch error", "reset_gpu"),
    "fatal-port": ("fatal error of a switch port: it takes the GPU behind it, or the whole fabric on a trunk port", "reset_gpu"),
    "fatal": ("fatal error of the switch: the fabric is lost", "reboot_node"),
}

#: The link went down. Seconds after an Xid 79 or a GPU reset it is a consequence, otherwise a fault of link, cable or baseboard.
LINK_DOWN = 20034


@dataclass(frozen=True, slots=True)
class Sxid:
    """One code: its class, meaning and action."""

    code: int
    kind: SxidClass
    meaning: str
    action: str

    @property
    def fatal(self) -> bool:
        """The guide lists the code as fatal."""
        return self.kind in ("fatal", "fatal-port")


def sxid(code: int, fatal: bool | None = None) -> Sxid:
    """Facts of a code; for one outside the lists the line's own word decides."""
    for kind, codes in _CLASSES.items():
        if code in codes:
            meaning, action = _MEANING[kind]
            return Sxid(code, kind, "NVLink of the switch went down" if code == LINK_DOWN else meaning, action)
    kind = "fatal-port" if fatal else "watch"
    return Sxid(code, kind, _MEANING[kind][0], _MEANING[kind][1])
