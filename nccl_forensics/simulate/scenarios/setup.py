"""Placeholder."""

from nccl_forensics.simulate.scenarios.base import Scenario

SCENARIOS: tuple[Scenario, ...] = ()
