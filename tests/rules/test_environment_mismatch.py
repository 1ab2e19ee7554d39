"""Settings that all ranks must share."""

from __future__ import annotations

import polars as pl

from nccl_forensics.rules.environment_mismatch import channels_differ, environment_mismatch
from tests.rules.frames import cited, comm, comms, people, settings, told
from tests.rules.host_frames import table
from tests.views.frames import rows

PEOPLE = people((0, "node1", 100), (1, "node1", 101), (2, "node1", 102), (3, "node2", 103))


def logs(*sources: int, short: int | None = None) -> pl.LazyFrame:
    """The source that each rank's NCCL lines are in: 40 of them, but only 2 of rank ``short``."""
    return table(
        "nccl_tails",
        *[
            {"host": "node2" if r == 3 else "node1", "pid": 100 + r, "source_id": s, "lines": 2 if r == short else 40}
            for r, s in enumerate(sources)
        ],
    )


OWN = logs(0, 1, 2, 3)


def test_the_rank_with_another_value_is_named() -> None:
    [finding] = environment_mismatch.check(settings("NCCL_ALGO", ("Ring", [0, 1, 3]), ("Tree", [2])), PEOPLE, OWN, None)
    assert told(finding) == ("error", "high", (2,))
    assert cited(finding) == [(2, 2), (0, 2)]
    assert finding.title == "rank 2 has NCCL_ALGO=Tree, ranks 0-1, 3 have NCCL_ALGO=Ring"


def test_the_rank_that_lacks_it_is_named_with_its_own_host_and_where_the_line_is_missing() -> None:
    [finding] = environment_mismatch.check(settings("NCCL_ALGO", ("Ring", [0, 1, 2])), PEOPLE, OWN, None)
    assert told(finding) == ("error", "high", (3,))
    assert finding.hosts == ("node2",)
    assert cited(finding) == [(0, 2), (None, None)]


def test_a_setting_that_only_dumps_of_environments_tell_is_not_missing_from_logs() -> None:
    dumped = settings("NCCL_ALGO", ("Ring", [0, 3])).with_columns(origin=pl.lit("environment"))
    assert environment_mismatch.check(dumped, PEOPLE, OWN, None) == []


def test_of_two_halves_the_one_that_sets_something_is_the_odd_one_with_less_confidence() -> None:
    [finding] = environment_mismatch.check(settings("NCCL_ALGO", ("Ring", [1, 2])), PEOPLE, OWN, None)
    assert told(finding) == ("error", "medium", (1, 2))


def test_short_logs_that_tell_of_the_end_of_init_tell_what_was_not_set_before_it() -> None:
    up = comms(*[comm(r, 4, completed=True) for r in range(4)])
    lines = table("nccl_comms", *({"source_id": r, "line_no": 30, "event": "init-complete"} for r in range(4)))
    late = settings("NCCL_PROTO", ("Simple", [2, 3])).with_columns(line_no=pl.lit(29, dtype=pl.UInt32))
    short = OWN.with_columns(lines=pl.lit(31, dtype=pl.Int64))
    [finding] = environment_mismatch.check(late, PEOPLE, short, up, lines)
    assert told(finding) == ("error", "medium", (2, 3))
    # One line alone may be lost, and what is printed after init need not be in a log that ends with it.
    most = late.with_columns(ranks=pl.lit([0, 1, 2], dtype=pl.List(pl.Int32)))
    assert environment_mismatch.check(most, PEOPLE, short, up, lines) == []
    after = late.with_columns(line_no=pl.lit(31, dtype=pl.UInt32))
    assert environment_mismatch.check(after, PEOPLE, short, up, lines) == []


def test_the_log_of_rank_0_is_the_longest_and_does_not_make_it_the_only_one_that_lacks_a_setting() -> None:
    up = comms(*[comm(r, 4, completed=True) for r in range(4)])
    lines = table("nccl_comms", *({"source_id": r, "line_no": 30, "event": "init-complete"} for r in range(4)))
    late = settings("NCCL_PROTO", ("LL", [2, 3])).with_columns(line_no=pl.lit(29, dtype=pl.UInt32))
    longest = OWN.with_columns(lines=pl.when(pl.col("pid") == 100).then(60).otherwise(31))
    [finding] = environment_mismatch.check(late, PEOPLE, longest, up, lines)
    assert (told(finding), finding.title) == (
        ("error", "medium", (2, 3)),
        "ranks 2-3 have NCCL_PROTO=LL, ranks 0-1 have NCCL_PROTO not set",
    )
    # Where no init tells of rank 1, it may belong to either side.
    [finding] = environment_mismatch.check(late, PEOPLE, longest, None)
    assert told(finding) == ("error", "medium", (2, 3))
    # Where all others have the line, and it is the log of the one that goes on without it, that one is odd.
    most = late.with_columns(ranks=pl.lit([1, 2, 3], dtype=pl.List(pl.Int32)))
    [finding] = environment_mismatch.check(most, PEOPLE, longest, up, lines)
    assert told(finding) == ("error", "high", (0,))


def test_a_line_that_is_missing_from_a_shared_log_may_have_been_torn() -> None:
    assert environment_mismatch.check(settings("NCCL_ALGO", ("Ring", [0, 1, 2])), PEOPLE, logs(0, 1, 2, 2), None) == []


def test_few_that_set_something_are_named_from_a_shared_log_of_which_no_line_is_lost() -> None:
    hostid = settings("NCCL_HOSTID", ("x", [0, 1, 2, 3])).with_columns(origin=pl.lit("nccl"))
    channels = settings("NCCL_MAX_NCHANNELS", ("2", [1])).with_columns(origin=pl.lit("nccl"))
    together = logs(0, 0, 0, 0)
    [finding] = environment_mismatch.check(pl.concat([hostid, channels]), PEOPLE, together, None)
    assert told(finding) == ("error", "medium", (1,))
    assert finding.title == "rank 1 has NCCL_MAX_NCHANNELS=2, ranks 0, 2-3 have NCCL_MAX_NCHANNELS not set"
    # What the very same ranks set beside it is one deed; what others set is not.
    beside = settings("NCCL_ALGO", ("Tree", [1])).with_columns(origin=pl.lit("nccl"))
    assert len(environment_mismatch.check(pl.concat([hostid, channels, beside]), PEOPLE, together, None)) == 2
    others = beside.with_columns(ranks=pl.lit([2], dtype=pl.List(pl.Int32)))
    assert environment_mismatch.check(pl.concat([hostid, channels, others]), PEOPLE, together, None) == []
    # Without a line of all ranks beside it, and where it is the one that lacks it, the line may have been lost.
    assert environment_mismatch.check(channels, PEOPLE, together, None) == []
    most = settings("NCCL_MAX_NCHANNELS", ("2", [0, 1, 2])).with_columns(origin=pl.lit("nccl"))
    assert environment_mismatch.check(pl.concat([hostid, most]), PEOPLE, together, None) == []
    # Logs of one rank each that end where rank 1 prints it are not torn: they end too early.
    cut = logs(0, 1, 2, 3).with_columns(lines=pl.lit(2))
    assert environment_mismatch.check(pl.concat([hostid, channels]), PEOPLE, cut, None) == []
    torn = settings("NCCL_HOSTID", ("x", [0, 1, 3])).with_columns(origin=pl.lit("nccl"))
    assert environment_mismatch.check(pl.concat([torn, channels]), PEOPLE, together, None) == []


def test_settings_that_one_rank_alone_shows_are_its_own_where_all_wrote_as_much_to_the_log_they_share() -> None:
    pair = [
        settings(name, (value, [1])).with_columns(origin=pl.lit("nccl")) for name, value in (("NCCL_ALGO", "Tree"), ("NCCL_DEBUG", "INFO"))
    ]
    together = logs(0, 0, 0, 0)
    [finding] = environment_mismatch.check(pl.concat(pair), PEOPLE, together, None)
    assert told(finding) == ("error", "medium", (1,))
    # One line alone may be the one that was not lost; others wrote far less; another setting is of other ranks.
    assert environment_mismatch.check(pair[0], PEOPLE, together, None) == []
    short = together.with_columns(lines=pl.when(pl.col("pid") == 101).then(90).otherwise(9))
    assert environment_mismatch.check(pl.concat(pair), PEOPLE, short, None) == []
    other = settings("NCCL_DEBUG", ("INFO", [1, 2])).with_columns(origin=pl.lit("nccl"))
    assert environment_mismatch.check(pl.concat([pair[0], other]), PEOPLE, together, None) == []


def test_a_setting_that_may_differ_and_one_that_agrees_stay_quiet() -> None:
    assert environment_mismatch.check(settings("NCCL_SOCKET_IFNAME", ("eth0", [0, 1, 2]), ("eth1", [3])), PEOPLE, OWN, None) == []
    assert environment_mismatch.check(settings("NCCL_ALGO", ("Ring", [0, 1, 2, 3])), PEOPLE, OWN, None) == []


def test_a_log_that_ends_before_the_others_print_it_does_not_lack_it() -> None:
    assert environment_mismatch.check(settings("NCCL_ALGO", ("Ring", [0, 1, 2])), PEOPLE, logs(0, 1, 2, 3, short=3), None) == []


def test_ranks_of_which_nothing_is_known_may_belong_to_either_side() -> None:
    # 3 have it, 1 has it not, and of 2 more ranks there is no log: the one that sets something is the odd one, less surely.
    [finding] = environment_mismatch.check(settings("NCCL_ALGO", ("Ring", [0, 1, 2])), PEOPLE, OWN, comms(comm(0, 6)))
    assert told(finding) == ("error", "medium", (0, 1, 2))


def channels(*counts: tuple[int, int], nranks: int = 4, **more: object) -> pl.LazyFrame:
    """The number of channels that each rank's log tells, of the one communicator."""
    whose: dict[str, object] = {"comm_key": "0xc0", "nranks": nranks} | more
    return rows(
        {n: pl.String() for n in ("host", "comm_key")} | {n: pl.Int64() for n in ("pid", "source_id", "line_no", "coll", "rank", "nranks")},
        *[
            {"host": "node2" if r == 3 else "node1", "pid": 100 + r, "source_id": r, "line_no": 9, "coll": n, "rank": r} | whose
            for r, n in counts
        ],
    )


def test_a_rank_with_another_number_of_channels_has_another_setting() -> None:
    [finding] = channels_differ.check(channels((0, 24), (1, 24), (2, 16), (3, 24)))
    assert told(finding) == ("error", "medium", (2,))
    assert cited(finding) == [(2, 9), (0, 9)]
    assert finding.title == "rank 2 has 16 channels, ranks 0-1, 3 24, in one communicator"


def test_channels_that_agree_and_ranks_of_which_too_few_are_seen_stay_quiet() -> None:
    assert channels_differ.check(channels((0, 24), (1, 24), (2, 24), (3, 24))) == []
    assert channels_differ.check(channels((0, 24), (1, 24), (2, 16))) == []
    assert channels_differ.check(channels((0, 24), (1, 24), (2, 16), (3, 16))) == []


def test_another_communicator_may_have_another_number_of_channels() -> None:
    mixed = pl.concat([channels((0, 24), (2, 24)), channels((1, 16), (3, 16), comm_key="0xc1")])
    assert channels_differ.check(mixed) == []


def test_what_two_processes_claim_one_rank_of_is_not_one_communicator() -> None:
    another = channels((2, 16)).with_columns(pid=pl.lit(999, dtype=pl.Int64()))
    assert channels_differ.check(pl.concat([channels((0, 24), (1, 24), (2, 24), (3, 24)), another])) == []
