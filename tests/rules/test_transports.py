"""Traffic inside a host that avoids the direct path."""

from __future__ import annotations

import polars as pl

from nccl_forensics.rules.transports import few_channels, p2p_disabled
from nccl_forensics.store import Store
from nccl_forensics.views.communicators import COMMS_SCHEMA
from nccl_forensics.views.nccl_facts import GPU_LINKS, local_channels
from tests.rules.host_frames import table


def comms(hosts: list[str]) -> pl.LazyFrame:
    """One communicator over these hosts, two ranks each."""
    size = 2 * len(hosts)
    rows = [
        {"source_id": r, "line_no": 1, "host": hosts[r // 2], "pid": r, "comm": "c", "comm_key": "k", "rank": r, "nranks": size}
        for r in range(size)
    ]
    return pl.DataFrame(rows, schema=COMMS_SCHEMA).lazy()


def connections(pairs: dict[tuple[int, int], str], hosts: list[str]) -> pl.LazyFrame:
    rows = [
        {"source_id": a, "line_no": 9, "host": hosts[a // 2], "pid": a, "channel": 0, "src": a, "dst": b, "transport": t}
        for (a, b), t in pairs.items()
    ]
    return Store.from_frames({"nccl_connections": pl.DataFrame(rows)}).scan("nccl_connections")


def links(host: str, gb_s: float) -> pl.LazyFrame:
    return pl.DataFrame([{"host": host, "gpu": "1b000", "nvlink_gb_s": gb_s, "source_id": 0, "line_no": 3}], schema=GPU_LINKS).lazy()


def test_shared_memory_on_a_host_with_nvlink_is_an_error() -> None:
    [finding] = p2p_disabled.check(connections({(0, 1): "SHM", (1, 0): "SHM"}, ["a"]), comms(["a"]), links("a", 370.8), None)
    assert (finding.severity, finding.ranks, finding.hosts) == ("error", (0, 1), ("a",))


def test_shared_memory_where_another_host_goes_direct_is_an_error() -> None:
    pairs = {(0, 1): "P2P", (2, 3): "SHM"}
    [finding] = p2p_disabled.check(connections(pairs, ["a", "b"]), comms(["a", "b"]), None, None)
    assert (finding.severity, finding.hosts) == ("error", ("b",))


def test_shared_memory_without_any_sign_of_a_direct_path_is_told_only_as_information() -> None:
    [finding] = p2p_disabled.check(connections({(0, 1): "SHM"}, ["a"]), comms(["a"]), None, None)
    assert finding.severity == "info"


def test_who_receives_through_memory_is_named_with_the_sender() -> None:
    [finding] = p2p_disabled.check(connections({(0, 1): "SHM"}, ["a"]), comms(["a"]), links("a", 370.8), None)
    assert finding.ranks == (0, 1)


def test_what_the_driver_forbids_connected_gpus_and_what_tutorials_write_of_it_is_an_error() -> None:
    said = table("nccl_network", {"item": "p2p-disabled", "host": "a", "source_id": 0, "line_no": 3})
    [finding] = p2p_disabled.check(connections({(0, 1): "SHM"}, ["a"]), comms(["a"]), None, said)
    assert (finding.severity, finding.confidence) == ("error", "medium")
    [finding] = p2p_disabled.check(connections({(0, 1): "P2P/Disabled"}, ["a"]), comms(["a"]), None, None)
    assert (finding.severity, finding.confidence, finding.ranks) == ("error", "medium", (0, 1))
    # CUDA says no more than that these GPUs cannot, as cards without such a path.
    unable = said.with_columns(item=pl.lit("p2p-not-enabled"))
    [finding] = p2p_disabled.check(connections({(0, 1): "SHM"}, ["a"]), comms(["a"]), None, unable)
    assert finding.severity == "warning"


def test_sockets_inside_what_nccl_counts_as_one_host_are_those_of_containers_that_share_nothing() -> None:
    over = connections({(0, 1): "NET", (1, 0): "NET"}, ["a"]).with_columns(network=pl.lit("Socket"))
    place = table("nccl_placement", {"rank": 0, "nodes": 1})
    [finding] = p2p_disabled.check(over, comms(["a"]), None, None, place)
    assert (finding.severity, finding.confidence, finding.ranks) == ("error", "medium", (0, 1))
    # Hosts of one name, or cards that are nearer to their GPUs than these are to each other.
    [finding] = p2p_disabled.check(over, comms(["a"]), None, None, place.with_columns(nodes=pl.lit(2)))
    assert finding.severity == "info"
    [finding] = p2p_disabled.check(over.with_columns(network=pl.lit("IB")), comms(["a"]), None, None, place)
    assert finding.severity == "info"


def test_network_between_hosts_is_no_matter_of_direct_copies() -> None:
    pairs = {(0, 1): "P2P", (1, 2): "NET", (2, 3): "P2P"}
    assert p2p_disabled.check(connections(pairs, ["a", "b"]), comms(["a", "b"]), None, None) == []


def beside(hosts: list[str]) -> pl.LazyFrame:
    """The communicator over these hosts, and one of the two ranks of each host beside it."""
    whole = comms(hosts).collect()
    pairs = whole.with_columns(pl.col("rank") % 2, nranks=pl.lit(2, dtype=whole.schema["nranks"]), comm_key=pl.lit("pair"))
    return pl.concat([whole, pairs]).lazy()


def test_processes_of_several_communicators_tell_of_their_own_host_too() -> None:
    """Their lines name ranks of whichever communicator, but shared memory lies within one host."""
    pairs = {(0, 1): "P2P", (2, 3): "SHM", (3, 2): "SHM"}
    [finding] = p2p_disabled.check(connections(pairs, ["a", "b"]), beside(["a", "b"]), None, None)
    assert (finding.confidence, finding.hosts, finding.ranks) == ("high", ("b",), (2, 3))


def test_a_direct_path_to_another_host_is_no_sign_of_one_inside() -> None:
    pairs = connections({(0, 1): "P2P", (2, 3): "SHM"}, ["a", "b"])
    far = pairs.with_columns(detail=pl.when(pl.col("transport") == "P2P").then(pl.lit("P2P/MNNVL")))
    [finding] = p2p_disabled.check(far, beside(["a", "b"]), None, None)
    assert (finding.severity, finding.hosts) == ("info", ("b",))
    assert p2p_disabled.check(connections({(0, 1): "P2P", (1, 2): "NET"}, ["a", "b"]), beside(["a", "b"]), None, None) == []


def channels(coll: int) -> pl.LazyFrame:
    return Store.from_frames({"nccl_channels": pl.DataFrame([{"source_id": 0, "line_no": 5, "host": "a", "pid": 0, "coll": coll}])}).scan(
        "nccl_channels"
    )


def test_two_channels_over_fast_nvlink_are_few() -> None:
    [finding] = few_channels.check(local_channels(channels(2), comms(["a"]), links("a", 370.8)))
    assert (finding.cause, finding.hosts) == ("few-channels", ("a",))


def test_two_channels_without_nvlink_are_as_they_should_be() -> None:
    assert few_channels.check(local_channels(channels(2), comms(["a"]), links("a", 0.0))) == []


def test_a_communicator_that_spans_hosts_has_no_more_channels_than_its_adapters_feed() -> None:
    links_of_both = pl.concat([links("a", 240.0), links("b", 240.0)])
    both = pl.concat([channels(4), channels(24)])
    assert few_channels.check(local_channels(both, beside(["a", "a"]), links_of_both)) == []
    [finding] = few_channels.check(local_channels(pl.concat([channels(2), channels(4)]), beside(["a", "a"]), links_of_both))
    assert finding.hosts == ("a",)


def test_one_channel_is_a_limit_where_no_line_tells_the_links_and_two_may_be_all() -> None:
    unknown = links("b", 370.8)
    [finding] = few_channels.check(local_channels(channels(1), comms(["a"]), unknown))
    assert (finding.confidence, finding.title) == ("medium", "1 channel on a, where NCCL makes two of each ring that it finds")
    assert few_channels.check(local_channels(channels(2), comms(["a"]), unknown)) == []
    # A second communicator of the host has more: the first one is limited by itself.
    assert few_channels.check(local_channels(pl.concat([channels(1), channels(4)]), comms(["a"]), unknown)) == []


def test_sixteen_channels_are_enough() -> None:
    assert few_channels.check(local_channels(channels(16), comms(["a"]), links("a", 370.8))) == []


def test_a_program_on_another_host_than_the_jobs_has_as_few_channels_as_it_likes() -> None:
    few = channels(1).with_columns(host=pl.lit("c"))
    job, helper = comms(["a", "a", "b", "b"]), comms(["c", "c"]).with_columns(comm_key=pl.lit("other"))
    assert few_channels.check(local_channels(few, pl.concat([job, helper]), links("a", 370.8))) == []
    assert len(few_channels.check(local_channels(few, helper, links("a", 370.8)))) == 1
