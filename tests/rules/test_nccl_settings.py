"""Settings that alone take a fast path away."""

from __future__ import annotations

import pytest

from nccl_forensics.rules import Rule
from nccl_forensics.rules.nccl_settings import (
    few_channels_by_setting,
    gdr_disabled_by_setting,
    nvls_disabled_by_setting,
    p2p_disabled_by_setting,
    socket_fallback_by_setting,
)
from tests.rules.frames import cited, host_ranks, settings, told

TWO_HOSTS = host_ranks(node1=[0, 1], node2=[2, 3])
EVERYONE = [0, 1, 2, 3]
CASES = [
    (p2p_disabled_by_setting, "NCCL_P2P_DISABLE", "1", "0"),
    (p2p_disabled_by_setting, "NCCL_P2P_LEVEL", "LOC", "NVL"),
    (socket_fallback_by_setting, "NCCL_IB_DISABLE", "1", "0"),
    (socket_fallback_by_setting, "NCCL_NET", "Socket", "IB"),
    (gdr_disabled_by_setting, "NCCL_NET_GDR_LEVEL", "LOC", "SYS"),
    (nvls_disabled_by_setting, "NCCL_NVLS_ENABLE", "0", "1"),
    (few_channels_by_setting, "NCCL_MAX_NCHANNELS", "2", "16"),
    (few_channels_by_setting, "NCCL_MAX_CTAS", "4", "8"),
]
IDS = [name for _, name, _, _ in CASES]


@pytest.mark.parametrize(("rule", "name", "harmful", "harmless"), CASES, ids=IDS)
def test_the_value_that_harms_is_named_and_another_is_not(rule: Rule, name: str, harmful: str, harmless: str) -> None:
    hosts = (TWO_HOSTS,) if "host_ranks" in rule.inputs.names else ()
    [finding] = rule.check(settings(name, (harmful, EVERYONE)), *hosts)
    # Whoever limits the channels may mean it: the multiprocessors that are left compute.
    assert told(finding) == ("error", "medium" if harmful == "4" else "high", (0, 1, 2, 3))
    assert cited(finding) == [(0, 2)]
    assert finding.evidence_total == 4
    assert f"{name}={harmful}" in finding.title
    assert rule.check(settings(name, (harmless, EVERYONE)), *hosts) == []


def test_a_setting_of_some_ranks_names_only_them() -> None:
    [finding] = p2p_disabled_by_setting.check(settings("NCCL_P2P_DISABLE", ("1", [1, 3])))
    assert told(finding) == ("error", "high", (1, 3))
    assert finding.title.endswith("on ranks 1, 3 only")


def test_sockets_within_one_host_cost_nothing() -> None:
    assert socket_fallback_by_setting.check(settings("NCCL_NET", ("Socket", EVERYONE)), host_ranks(node1=EVERYONE)) == []


def test_a_limit_on_some_ranks_only_is_a_mismatch_and_no_limit() -> None:
    assert few_channels_by_setting.check(settings("NCCL_MAX_NCHANNELS", ("2", [1]))) == []


def test_what_is_enough_channels_can_be_set() -> None:
    assert few_channels_by_setting.check(settings("NCCL_MAX_NCHANNELS", ("4", EVERYONE)), enough=4) == []
