"""Settings that alone take a fast path away."""

from __future__ import annotations

import polars as pl
import pytest

from nccl_forensics.rules import Rule
from nccl_forensics.rules.nccl_settings import (
    few_channels_by_setting,
    gdr_disabled_by_setting,
    nvls_disabled_by_setting,
    p2p_disabled_by_setting,
    socket_fallback_by_setting,
)
from nccl_forensics.views.job_signs import JOB_SIGNS
from nccl_forensics.views.nccl_facts import GPU_LINKS
from tests.rules.frames import cited, comm, comms, host_ranks, settings, told
from tests.rules.host_frames import table
from tests.views.frames import rows

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
    (few_channels_by_setting, "Comm config Max CTAs", "1", "16"),
    (socket_fallback_by_setting, "Comm config Net name", "Socket", "IB"),
]
IDS = [name for _, name, _, _ in CASES]


@pytest.mark.parametrize(("rule", "name", "harmful", "harmless"), CASES, ids=IDS)
def test_the_value_that_harms_is_named_and_another_is_not(rule: Rule, name: str, harmful: str, harmless: str) -> None:
    hosts = (TWO_HOSTS,) if "host_ranks" in rule.inputs.names else ()
    [finding] = rule.check(settings(name, (harmful, EVERYONE)), *hosts)
    # Whoever limits the channels may mean it: the multiprocessors that are left compute. Whether the GPUs have NVLink SHARP is not told.
    doubtful = harmful == "4" or rule is nvls_disabled_by_setting
    assert told(finding) == ("error", "medium" if doubtful else "high", (0, 1, 2, 3))
    assert cited(finding) == [(0, 2)]
    assert finding.evidence_total == 4
    assert f"{name}={harmful}" in finding.title
    assert rule.check(settings(name, (harmless, EVERYONE)), *hosts) == []


def test_a_setting_of_some_ranks_names_only_them() -> None:
    [finding] = p2p_disabled_by_setting.check(settings("NCCL_P2P_DISABLE", ("1", [1, 3])))
    assert told(finding) == ("error", "high", (1, 3))
    assert finding.title.endswith("on ranks 1, 3 only")


def test_copies_that_the_driver_refuses_are_not_switched_off_for_sure() -> None:
    refused = table("nccl_network", {"item": "p2p-not-enabled", "source_id": 0, "line_no": 1})
    [finding] = p2p_disabled_by_setting.check(settings("NCCL_P2P_DISABLE", ("1", [1, 3])), None, None, None, refused)
    assert finding.confidence == "medium"


def test_processes_of_unknown_rank_are_not_left_out_of_the_words() -> None:
    known = settings("NCCL_P2P_DISABLE", ("1", [1, 3])).with_columns(ranks=pl.lit([1], dtype=pl.List(pl.Int32)))
    [finding] = p2p_disabled_by_setting.check(known)
    assert "only" not in finding.title


def test_sockets_within_one_host_cost_nothing() -> None:
    assert socket_fallback_by_setting.check(settings("NCCL_NET", ("Socket", EVERYONE)), host_ranks(node1=EVERYONE)) == []


def test_a_bandwidth_test_over_two_hosts_uses_the_network() -> None:
    for hosts, found in ((["node1"], 0), (["node1", "node2"], 1)):
        tests = pl.LazyFrame({"hosts": [hosts]})
        assert (
            len(socket_fallback_by_setting.check(settings("NCCL_IB_DISABLE", ("1", [0])), host_ranks(node1=[0]), bandwidth_tests=tests))
            == found
        )


def test_a_limit_on_some_ranks_only_is_a_mismatch_and_no_limit() -> None:
    assert few_channels_by_setting.check(settings("NCCL_MAX_NCHANNELS", ("2", [1]))) == []


def test_what_is_enough_channels_can_be_set() -> None:
    assert few_channels_by_setting.check(settings("NCCL_MAX_NCHANNELS", ("4", EVERYONE)), enough=4) == []


def nvlink(gb_s: float) -> pl.LazyFrame:
    """A GPU of NCCL's topology dump."""
    return rows(GPU_LINKS, {"host": "node1", "gpu": "1b000", "nvlink_gb_s": gb_s, "source_id": 0, "line_no": 9})


def test_what_the_gpus_links_tell_of_the_path_that_is_switched_off_counts() -> None:
    off = settings("NCCL_NVLS_ENABLE", ("0", EVERYONE))
    assert [f.confidence for gb_s in (240.0, 370.8) for f in nvls_disabled_by_setting.check(off, nvlink(gb_s))] == ["medium", "high"]
    off = settings("NCCL_P2P_DISABLE", ("1", EVERYONE))
    assert [f.confidence for gb_s in (0.0, 240.0) for f in p2p_disabled_by_setting.check(off, nvlink(gb_s))] == ["medium", "high"]
    some = settings("NCCL_P2P_DISABLE", ("1", [1]))
    assert [f.confidence for f in p2p_disabled_by_setting.check(some, nvlink(0.0))] == ["high"]


def test_a_job_on_one_host_uses_no_network_and_loses_nothing_there() -> None:
    off = settings("NCCL_NET_GDR_LEVEL", ("LOC", EVERYONE))
    assert gdr_disabled_by_setting.check(off, comms(*(comm(r, nranks=4, host="node1") for r in EVERYONE))) == []
    half = comms(*(comm(r, nranks=8, host="node1") for r in EVERYONE))
    [finding] = gdr_disabled_by_setting.check(off, half)
    assert finding.confidence == "medium", "where the others are is not known"
    # Unless NCCL says on how many hosts they are.
    assert gdr_disabled_by_setting.check(off, half, nccl_placement=table("nccl_placement", {"nranks": 8, "nodes": 1})) == []
    [finding] = gdr_disabled_by_setting.check(off, half, nccl_placement=table("nccl_placement", {"nranks": 8, "nodes": 2}))
    assert finding.confidence == "high"


def test_an_environment_of_a_host_without_ranks_is_hardly_the_jobs() -> None:
    saved = settings("NCCL_P2P_DISABLE", ("1", [0])).with_columns(ranks=pl.lit([], dtype=pl.List(pl.Int32)), origin=pl.lit("environment"))
    login = saved.with_columns(hosts=pl.lit(["login1"]))
    signs = rows(JOB_SIGNS, {"rank": 0, "host": "node1"}, {"rank": 1, "host": "node2"})
    [finding] = p2p_disabled_by_setting.check(login, None, signs, None)
    assert (finding.severity, finding.confidence) == ("warning", "low")
    [finding] = p2p_disabled_by_setting.check(saved, None, signs, None)
    assert (finding.severity, finding.confidence) == ("error", "medium")
