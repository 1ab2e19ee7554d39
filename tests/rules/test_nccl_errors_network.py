"""Connections that failed, and interfaces that nobody can reach."""

from __future__ import annotations

import polars as pl
import pytest

from nccl_forensics.model import Finding
from nccl_forensics.rules.nccl_errors_network import connection_failed, wrong_interface
from nccl_forensics.views.nccl_facts import BOOTSTRAPPED
from tests.rules.frames import cited, comms, errors, host_ranks, people, settings, told
from tests.rules.host_frames import table
from tests.views.frames import rows

PEOPLE = people((0, "node1", 100), (1, "node1", 101), (2, "node2", 102))
TWO_HOSTS = host_ranks(node1=[0, 1], node2=[2])
GAVE_UP = {
    "kind": "connect-gave-up",
    "pid": 101,
    "message": "socketPollConnect: connect to 10.0.0.7<41234> returned Connection refused, exceeded error retry count after 35 attempts",
    "line_no": 8,
}


# ---- interfaces ----


NO_ADDRESS = {
    "kind": "no-address",
    "pid": 101,
    "message": "ncclSocketInit: connecting to address  with family 0 is neither AF_INET(2) nor AF_INET6(10)",
}


def test_whoever_was_told_an_address_that_is_none_is_not_to_blame() -> None:
    [finding] = wrong_interface.check(bootstrap("eth0"), errors(NO_ADDRESS), PEOPLE, TWO_HOSTS, None, None)
    assert (finding.severity, finding.confidence, finding.ranks, finding.culprits) == ("critical", "medium", (1,), ())
    # Of a message that was misread anything may be the address.
    misread = {"kind": "truncated-message", "pid": 102, "message": "Message truncated : received 2560 bytes instead of 512"}
    assert wrong_interface.check(bootstrap("eth0"), errors(NO_ADDRESS, misread), PEOPLE, TWO_HOSTS, None, None) == []


def bootstrap(name: str, address: str = "172.17.0.2") -> pl.LazyFrame:
    return table("nccl_network", {"item": "bootstrap", "name": name, "address": address, "host": "node2", "pid": 102, "source_id": 2})


def test_a_rank_that_finds_no_interface_is_named_with_the_setting_of_its_host() -> None:
    said = errors({"kind": "no-interface", "pid": 101, "message": "Bootstrap : no socket interface found"})
    wanted = settings("NCCL_SOCKET_IFNAME", ("eth9", [1]))
    [finding] = wrong_interface.check(bootstrap("eth0"), said, PEOPLE, TWO_HOSTS, wanted, None)
    assert told(finding) == ("critical", "high", (1,))
    assert cited(finding) == [(0, 1)]
    assert finding.title == "rank 1 found no interface to use (NCCL_SOCKET_IFNAME=eth9)"


@pytest.mark.parametrize(
    ("name", "address"), [("docker0", "172.17.0.2"), ("lo", "127.0.0.1"), ("br-1a2b3c", "172.18.0.1"), ("em1", "127.0.1.1")]
)
def test_a_private_interface_is_named_where_connections_failed(name: str, address: str) -> None:
    [finding] = wrong_interface.check(bootstrap(name, address), errors(GAVE_UP), PEOPLE, TWO_HOSTS, None, None)
    assert told(finding) == ("critical", "high", (2,))
    assert finding.hosts == ("node2",)
    assert cited(finding) == [(2, 1)]


def test_a_private_interface_does_no_harm_within_one_host_or_while_connections_work() -> None:
    assert wrong_interface.check(bootstrap("lo"), errors(GAVE_UP), PEOPLE, host_ranks(node1=[0, 1, 2]), None, None) == []
    assert wrong_interface.check(bootstrap("lo"), errors(), PEOPLE, TWO_HOSTS, None, None) == []


def test_interfaces_of_sockets_count_where_no_line_tells_the_bootstraps_and_no_rank_is_known() -> None:
    def sockets(*hosts: str) -> pl.LazyFrame:
        item = {"item": "socket-interface", "name": "docker0", "address": "172.17.0.1"}
        return table("nccl_network", *(item | {"host": h, "pid": 61, "source_id": i} for i, h in enumerate(hosts)))

    nobody = host_ranks()
    [finding] = wrong_interface.check(sockets("wk0", "wk1"), errors(GAVE_UP), PEOPLE, nobody, None, None)
    assert (finding.hosts, finding.ranks) == (("wk0", "wk1"), ())
    # A launcher's prefix tells the ranks.
    marked = sockets("wk0", "wk1").with_columns(hint_rank=pl.col("source_id").cast(pl.Int32) + 4, hint_scope=pl.lit("global"))
    [finding] = wrong_interface.check(marked, errors(GAVE_UP), PEOPLE, nobody, None, None)
    assert finding.ranks == (4, 5)
    assert wrong_interface.check(sockets("wk0"), errors(GAVE_UP), PEOPLE, nobody, None, None) == []


@pytest.mark.parametrize("name", ["eth0", "ib0", "bond0", "br0", "enp1s0"])
def test_an_interface_of_the_network_is_not_blamed(name: str) -> None:
    assert wrong_interface.check(bootstrap(name), errors(GAVE_UP), PEOPLE, TWO_HOSTS, None, None) == []


ONE_HOST = host_ranks(node1=[0, 1])
TO_LOOPBACK = GAVE_UP | {
    "message": "socketStartConnect: connect to 127.0.0.1<42215> returned Connection refused, exceeded error retry count"
}


def job_of(size: int) -> pl.LazyFrame:
    return pl.LazyFrame({"nranks": [size], "rank": [0]})


def test_peers_without_evidence_that_gave_a_loopback_address_are_named() -> None:
    [finding] = wrong_interface.check(bootstrap("eth0", "10.0.0.2"), errors(TO_LOOPBACK), PEOPLE, ONE_HOST, None, job_of(4))
    assert told(finding) == ("critical", "medium", (2, 3))
    assert cited(finding) == [(0, 8), (2, 1)]


def test_a_loopback_address_says_nothing_where_it_may_be_the_hosts_own() -> None:
    assert wrong_interface.check(bootstrap("eth0", "10.0.0.2"), errors(TO_LOOPBACK), PEOPLE, ONE_HOST, None, job_of(2)) == []
    assert wrong_interface.check(bootstrap("lo", "127.0.0.1"), errors(TO_LOOPBACK), PEOPLE, ONE_HOST, None, job_of(4)) == []
    assert wrong_interface.check(bootstrap("eth0", "10.0.0.2"), errors(GAVE_UP), PEOPLE, ONE_HOST, None, job_of(4)) == []


# ---- connections ----


def test_a_failed_connection_names_both_ends_and_no_rank() -> None:
    [finding] = connection_failed.check(errors(GAVE_UP), PEOPLE)
    assert (finding.severity, finding.confidence, finding.ranks) == ("critical", "high", ())
    assert [c.link for c in finding.culprits] == ["node1 -> 10.0.0.7"]
    assert cited(finding) == [(0, 8)]
    assert finding.title == "no connection from node1 to 10.0.0.7: Connection refused"


def test_where_a_socket_of_another_type_answered_the_network_is_not_surely_at_fault() -> None:
    other = {"kind": "handshake-mismatch", "level": "WARN", "message": "socketFinalizeAccept: wrong type 3 != 4"}
    [finding] = connection_failed.check(errors(GAVE_UP, other), PEOPLE)
    assert finding.confidence == "low"
    assert "another type" in finding.summary
    [finding] = connection_failed.check(errors(GAVE_UP, other | {"message": "socketFinalizeAccept: wrong magic 1 != 2"}), PEOPLE)
    assert finding.confidence == "high"


def test_a_connection_to_an_address_of_the_own_host_crosses_no_network() -> None:
    own = table("nccl_network", {"item": "bootstrap", "name": "eth0", "address": "10.0.0.7", "host": "node1", "pid": 101})
    [finding] = connection_failed.check(errors(GAVE_UP), PEOPLE, own)
    assert finding.confidence == "medium"
    [finding] = connection_failed.check(errors(GAVE_UP), PEOPLE, own.with_columns(host=pl.lit("node2")))
    assert finding.confidence == "high"


def test_who_refuses_may_be_gone_for_a_reason_of_its_own() -> None:
    failed = {"kind": "propagation", "level": "INFO", "file": "enqueue.cc", "code": 3, "host": "node2", "pid": 102, "line_no": 40}
    [finding] = connection_failed.check(errors(GAVE_UP, failed), PEOPLE)
    assert finding.confidence == "low"
    assert "rank 2 had errors of its own" in finding.summary
    # The rank that is refused hands its own error up, and a time-out is no sign of a process that ended.
    [finding] = connection_failed.check(errors(GAVE_UP, failed | {"host": "node1", "pid": 101}), PEOPLE)
    assert finding.confidence == "high"
    slow = GAVE_UP | {"message": str(GAVE_UP["message"]).replace("refused", "timed out")}
    [finding] = connection_failed.check(errors(slow, failed), PEOPLE)
    assert finding.confidence == "high"


def test_who_refuses_a_communicator_in_the_making_may_be_gone_for_a_reason_of_its_own() -> None:
    failed = {"kind": "propagation", "level": "INFO", "file": "init.cc", "code": 3, "host": "node2", "pid": 102, "line_no": 40}
    [finding] = connection_failed.check(errors(GAVE_UP, failed), PEOPLE)
    assert (finding.confidence, "rank 2 had errors of its own" in finding.summary) == ("low", True)
    # System and remote errors are what connections fail with.
    for code in (2, 6):
        [finding] = connection_failed.check(errors(GAVE_UP, failed | {"code": code}), PEOPLE)
        assert finding.confidence == "high"


def test_what_a_process_was_told_at_its_last_try_is_why_it_gave_up() -> None:
    tried = {
        "kind": "connect-retry",
        "level": "INFO",
        "pid": 101,
        "message": "Call to connect returned Connection refused, retrying",
        "line_no": 7,
    }
    mute = GAVE_UP | {"message": "socketStartConnect: exceeded retries (20000)"}
    [finding] = connection_failed.check(errors(mute, tried), PEOPLE)
    assert finding.title == "no connection from node1 to a peer: Connection refused"
    # Another process tried, or it tried again elsewhere later.
    for other in (tried | {"pid": 100}, tried | {"line_no": 9}):
        [finding] = connection_failed.check(errors(mute, other), PEOPLE)
        assert finding.title == "no connection from node1 to a peer: failed after all retries"


def test_where_a_process_of_the_host_behind_the_address_is_refused_too_no_firewall_is_sure() -> None:
    there = table("nccl_network", {"item": "bootstrap", "name": "eth0", "address": "10.0.0.7<0>", "host": "node2", "pid": 102})
    local = RETRIED | {"message": "Call to connect returned Connection refused, retrying", "host": "node2", "pid": 102, "line_no": 30}
    ends = table("nccl_tails", {"host": "node2", "pid": 102, "lines": 20, "line_no": 30})
    [finding] = connection_failed.check(errors(GAVE_UP, local), PEOPLE, there, ends)
    assert finding.confidence == "medium"
    assert "more likely a process there has ended" in finding.summary
    # It got through in the end; or it is refused elsewhere.
    later = ends.with_columns(line_no=pl.lit(40, pl.UInt32))
    other = local | {
        "message": "socketPollConnect: connect to 10.0.0.9<4000> returned Connection refused, retrying (8/34) after sleep for 800 msec"
    }
    for lines, tails in ((errors(GAVE_UP, local), later), (errors(GAVE_UP, other), ends)):
        [finding] = connection_failed.check(lines, PEOPLE, there, tails)
        assert finding.confidence == "high"


def test_a_retry_is_no_failure() -> None:
    assert connection_failed.check(errors(GAVE_UP | {"kind": "connect-retry", "level": "INFO"}), PEOPLE) == []


def test_the_address_is_named_in_the_words_of_releases_before_2_27_too() -> None:
    old = {**GAVE_UP, "message": "socketStartConnect: Connect to 10.0.0.7<41234> failed : No route to host"}
    [finding] = connection_failed.check(errors(old), PEOPLE)
    assert [c.link for c in finding.culprits] == ["node1 -> 10.0.0.7"]


def test_an_interface_that_nccl_goes_on_without_is_no_fault() -> None:
    said = errors({"kind": "no-interface", "pid": 101, "message": "no device found matching NCCL_OOB_NET_IFNAME=eth9, ignoring"})
    assert wrong_interface.check(bootstrap("eth0"), said, PEOPLE, TWO_HOSTS, None, None) == []


RETRIED = GAVE_UP | {"kind": "connect-retry", "level": "INFO"}
LOOPBACK = "socketPollConnect: connect to 127.0.0.1<41234> returned Connection refused, retrying (8/34) after sleep for 800 msec"
NO_ANSWER = "socketPollConnect: connect to 10.0.0.7<41234> returned Connection timed out, retrying (8/34) after sleep for 800 msec"


def retries(message: str, ends_at: int = 12, times: int = 3) -> tuple[pl.LazyFrame, pl.LazyFrame]:
    """Retries of one process, and where its log ends."""
    lines = errors(*[RETRIED | {"message": message, "line_no": 10 + n} for n in range(times)])
    return lines, table("nccl_tails", {"host": "node1", "pid": 101, "lines": 20, "line_no": ends_at})


def test_a_log_that_ends_amid_retries_to_which_nothing_answers_tells_of_the_connection() -> None:
    lines, tails = retries(NO_ANSWER)
    [finding] = connection_failed.check(lines, PEOPLE, None, tails)
    assert (finding.severity, finding.confidence, finding.ranks) == ("critical", "medium", ())
    assert finding.title == "no connection from node1 to 10.0.0.7: Connection timed out"


def test_a_peer_that_refuses_may_only_be_late_and_two_tries_are_few() -> None:
    for message, ends_at, times in ((LOOPBACK, 12, 3), (NO_ANSWER, 30, 3), (NO_ANSWER, 11, 2)):
        lines, tails = retries(message, ends_at, times)
        assert connection_failed.check(lines, PEOPLE, None, tails) == []


def test_retries_to_a_loopback_address_that_a_peer_gave_tell_of_its_interface() -> None:
    lines, tails = retries(LOOPBACK)
    members = comms({"rank": 0, "nranks": 4}, {"rank": 1, "nranks": 4}, {"rank": 2, "nranks": 4})
    [finding] = wrong_interface.check(bootstrap("eth0"), lines, PEOPLE, TWO_HOSTS, None, members, tails)
    assert told(finding) == ("critical", "medium", (3,))
    # Of most ranks nothing is seen: which of them gave the address is not known.
    members = comms({"rank": 0, "nranks": 16})
    [finding] = wrong_interface.check(bootstrap("eth0"), lines, PEOPLE, TWO_HOSTS, None, members, tails)
    assert told(finding) == ("critical", "medium", ())
    lines, tails = retries(LOOPBACK, ends_at=40)
    assert wrong_interface.check(bootstrap("eth0"), lines, PEOPLE, TWO_HOSTS, None, members, tails) == []


def test_retries_to_an_address_that_several_hosts_call_their_own_tell_of_the_interface() -> None:
    def bridges(*addresses: str) -> pl.LazyFrame:
        own = {"item": "ib-oob", "name": "docker0"}
        return table(
            "nccl_network", *(own | {"address": f"{a}<0>", "host": f"node{n}", "source_id": n} for n, a in enumerate(addresses, 1))
        )

    lines, tails = retries(LOOPBACK.replace("127.0.0.1", "172.17.0.1"))
    [finding] = wrong_interface.check(bridges("172.17.0.1", "172.17.0.1"), lines, PEOPLE, TWO_HOSTS, None, None, tails)
    assert (finding.severity, finding.hosts) == ("critical", ("node1", "node2"))
    # An address of one host may be refused for a while because the process there is late.
    assert wrong_interface.check(bridges("172.17.0.1", "172.17.0.2"), lines, PEOPLE, TWO_HOSTS, None, None, tails) == []
    # Retries of 2.24 to 2.26 name no address.
    lines, tails = retries("socketPollConnect: connect returned Connection refused, retrying (24/34) after sleep for 2400 msec")
    [finding] = wrong_interface.check(bridges("172.17.0.1", "172.17.0.1"), lines, PEOPLE, TWO_HOSTS, None, None, tails)
    assert (finding.severity, finding.hosts) == ("critical", ("node1", "node2"))
    assert wrong_interface.check(bridges("172.17.0.1", "172.17.0.2"), lines, PEOPLE, TWO_HOSTS, None, None, tails) == []


def interfaces(*used: tuple[str, str, str]) -> pl.LazyFrame:
    rows = [
        {"item": "bootstrap", "host": h, "name": n, "address": f"{a}<0>", "pid": 100 + i, "source_id": i}
        for i, (h, n, a) in enumerate(used)
    ]
    return table("nccl_network", *rows)


def test_hosts_that_bootstrap_from_one_address_and_come_to_nothing_call_themselves() -> None:
    def found(second: str, *, up: bool) -> list[Finding]:
        members = pl.LazyFrame({"host": ["node1", "node2"], "pid": [101, 102], "completed": [up, up]})
        both = interfaces(("node1", "docker0", "172.17.0.1"), ("node2", "docker0", second))
        return wrong_interface.check(both, errors(), PEOPLE, TWO_HOSTS, None, members)

    [finding] = found("172.17.0.1", up=False)
    assert (finding.confidence, finding.hosts, finding.culprits) == ("medium", ("node1", "node2"), ())
    assert found("172.17.0.1", up=True) == []
    assert found("172.17.0.2", up=False) == []


def test_retries_without_an_address_beside_a_host_on_its_loopback_tell_of_that_host() -> None:
    lines, tails = retries("socketStartConnect: connect returned Connection refused, retrying (24/34) after sleep for 2400 msec")
    mixed = interfaces(("node1", "eth0", "10.0.0.1"), ("node2", "lo", "127.0.0.1"))
    [finding] = wrong_interface.check(mixed, lines, PEOPLE, TWO_HOSTS, None, None, tails)
    assert (finding.severity, finding.hosts) == ("critical", ("node2",))
    # Of INIT alone no line tells the interface of the bootstrap: it is that of the sockets.
    by_sockets = mixed.with_columns(item=pl.lit("socket-interface"))
    assert [f.hosts for f in wrong_interface.check(by_sockets, lines, PEOPLE, TWO_HOSTS, None, None, tails)] == [("node2",)]
    # Whoever refuses a host that is on its loopback itself may only be late; so may a peer on an interface that leads there.
    for near in (
        interfaces(("node1", "lo", "127.0.0.1"), ("node2", "eth0", "10.0.0.2")),
        interfaces(("node1", "eth0", "10.0.0.1"), ("node2", "eth0", "10.0.0.2")),
    ):
        assert wrong_interface.check(near, lines, PEOPLE, TWO_HOSTS, None, None, tails) == []


def test_two_hosts_that_use_interfaces_of_different_networks_find_no_way() -> None:
    failed = errors(GAVE_UP | {"message": "socketStartConnect: Connect to 10.42.8.11<43791> failed : Network is unreachable"})
    both = interfaces(("node1", "eth0", "172.19.0.12"), ("node2", "ib0", "10.42.8.11"))
    [finding] = wrong_interface.check(both, failed, PEOPLE, TWO_HOSTS, None, None)
    assert told(finding) == ("critical", "medium", ())
    assert finding.hosts == ("node1", "node2")
    # One network, or one name on both: then the network between them is at fault.
    for mine in (("node1", "eth0", "10.42.9.12"), ("node1", "ib0", "172.19.0.12")):
        assert wrong_interface.check(interfaces(mine, ("node2", "ib0", "10.42.8.11")), failed, PEOPLE, TWO_HOSTS, None, None) == []


def test_who_refuses_after_all_had_met_has_more_likely_ended() -> None:
    members = comms({"rank": 1, "nranks": 2, "host": "node1", "pid": 101, "comm_key": "0xc0"})
    known = rows(BOOTSTRAPPED, {"comm_key": "0xc0", "source_id": 0, "line_no": 9})
    [finding] = connection_failed.check(errors(GAVE_UP), PEOPLE, None, None, members, known)
    assert (finding.confidence, "All processes had met before" in finding.summary) == ("medium", True)
    # They had not, or nothing answers: the network may be at fault.
    [finding] = connection_failed.check(errors(GAVE_UP), PEOPLE, None, None, members, rows(BOOTSTRAPPED))
    assert finding.confidence == "high"
    slow = GAVE_UP | {"message": str(GAVE_UP["message"]).replace("refused", "timed out")}
    [finding] = connection_failed.check(errors(slow), PEOPLE, None, None, members, known)
    assert finding.confidence == "high"


def barred(**refused: list[int]) -> tuple[pl.LazyFrame, pl.LazyFrame]:
    """Retries of processes that are refused to the end of their logs, by host, and the ends of the logs of two processes of each of two
    hosts."""
    said = RETRIED | {"message": "socketStartConnect: connect returned Connection refused, retrying (33/34) after sleep for 3300 msec"}
    lines = [said | {"host": host, "pid": pid, "line_no": n} for host, pids in refused.items() for pid in pids for n in (8, 9, 10)]
    ends = [{"host": host, "pid": pid, "lines": 10, "line_no": 10} for host, pid in (("a", 1), ("a", 2), ("b", 3), ("b", 4))]
    return errors(*lines), table("nccl_tails", *ends)


def test_a_host_that_is_refused_as_a_whole_while_the_other_waits_is_kept_out() -> None:
    lines, tails = barred(b=[3, 4])
    [finding] = connection_failed.check(lines, PEOPLE, None, tails)
    assert (finding.confidence, finding.hosts, finding.ranks) == ("medium", ("b",), ())
    assert "tried in vain to the end of the log" in finding.summary


def test_one_process_or_everybody_that_is_refused_may_look_for_a_peer_that_is_gone() -> None:
    came_up = comms({"completed": True, "host": "a", "pid": 1})
    for refused, known in (({"b": [3]}, None), ({"a": [2], "b": [3, 4]}, None), ({"b": [3, 4]}, came_up)):
        lines, tails = barred(**refused)
        assert connection_failed.check(lines, PEOPLE, None, tails, known) == []


def looped(**addresses: str) -> pl.LazyFrame:
    """What each host bootstraps over."""
    named = [
        {"item": "bootstrap", "name": "lo" if a.startswith("127.") else "eth0", "address": a, "host": h, "pid": p, "source_id": p}
        for p, (h, a) in enumerate(addresses.items())
    ]
    return table("nccl_network", *named)


def test_a_host_on_loopback_beside_others_is_named_where_no_communicator_came_up() -> None:
    both = looped(node1="10.0.0.1<0>", node2="127.0.0.1<0>")
    [finding] = wrong_interface.check(both, errors(), PEOPLE, TWO_HOSTS, None, None)
    assert (finding.confidence, finding.hosts) == ("medium", ("node2",))
    assert wrong_interface.check(both, errors(), PEOPLE, TWO_HOSTS, None, comms({"completed": True})) == []
    for alike in (looped(node1="127.0.0.1<0>"), looped(node1="10.0.0.1<0>", node2="10.0.0.2<0>")):
        assert wrong_interface.check(alike, errors(), PEOPLE, TWO_HOSTS, None, None) == []
