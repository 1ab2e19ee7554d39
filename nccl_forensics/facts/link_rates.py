"""Rates of InfiniBand and Ethernet links. Rates are 10^9 bits per second, both directions alike."""

from __future__ import annotations

import re

#: Rate of one lane by name (IBTA; Linux drivers/infiniband/core/sysfs.c writes them behind the rate).
LANE_GBIT_S: dict[str, float] = {
    "SDR": 2.5,
    "DDR": 5.0,
    "QDR": 10.0,
    "FDR10": 10.0,
    "FDR": 14.0,
    "EDR": 25.0,
    "HDR": 50.0,
    "NDR": 100.0,
    "XDR": 200.0,
}

_RATE = re.compile(r"^\s*([0-9]+(?:\.[0-9]+)?)(?:\s*G[Bb](?:/sec|ps|/s)?)?(?:\s*\((?:(\d+)X\s*)?([A-Z]+[0-9]*)?\))?")
_WIDTH = re.compile(r"^\s*(\d+)\s*[xX]")


def rate(text: str | None) -> tuple[float | None, int | None, str | None]:
    """(Gbit/s, lanes, speed) of ``400 Gb/sec (4X NDR)``, ``400`` or ``40 (FDR10)``; what the text does not say is None."""
    found = _RATE.match(text or "")
    if found is None:
        return None, None, None
    gbit, lanes, speed = found.groups()
    return float(gbit), int(lanes) if lanes else None, speed if speed in LANE_GBIT_S else None


def lanes(text: str | None) -> int | None:
    """Lanes of ``4X`` or ``4x``."""
    found = _WIDTH.match(text or "")
    return int(found.group(1)) if found else None


def port_state(text: str | None) -> str | None:
    """``active`` of ``4: ACTIVE``, ``PORT_ACTIVE (4)``, ``Active``; ``init`` of ``Initializing``."""
    word = _word(text).removeprefix("port")
    return {"": None, "initializing": "init", "initialize": "init", "activedefer": "active-defer", "nop": "down"}.get(word, word)


def physical_state(text: str | None) -> str | None:
    """``linkup`` of ``5: LinkUp``, ``LINK_UP (5)``, ``LinkUp``; ``training`` of ``PortConfigurationTraining``."""
    word = _word(text)
    return {"": None, "portconfigurationtraining": "training", "linkerrorrecover": "linkerrorrecovery"}.get(word, word)


def _word(text: str | None) -> str:
    return "".join(c for c in re.sub(r"\(.*?\)|^\s*\d+\s*:", "", (text or "")[:100]).lower() if c.isalpha())
