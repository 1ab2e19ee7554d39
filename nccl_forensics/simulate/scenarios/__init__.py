"""Scenarios by name. Each changes a healthy case: its program, its machines or its settings; names are the causes of the contract."""

from __future__ import annotations

from nccl_forensics.simulate.scenarios import hardware, network, programs, setup
from nccl_forensics.simulate.scenarios.base import Scenario

SCENARIOS: dict[str, Scenario] = {s.name: s for module in (programs, setup, network, hardware) for s in module.SCENARIOS}

__all__ = ["SCENARIOS", "Scenario"]
