"""Processes that others saw go while they themselves went on, and of which nothing else tells."""

from __future__ import annotations

import polars as pl

from nccl_forensics.frames import has_rows, typed, values_in
from nccl_forensics.views import view
from nccl_forensics.words import first_label

GONE_PEERS = typed("rank:i32 host:str how:str comm_id:str seen_by:list[i32] source_id:u32 line_no:u32")
#: Of a rank that went in one of these ways the own log is there, and ends.
FOUND_GONE = ("left", "lost", "silent", "dead", "first", "ended")
_CLOSED = "[Service thread] Connection closed by localRank"


@view(rows="ranks")
def gone_peers(
    comms: pl.LazyFrame,
    bootstrapped: pl.LazyFrame,
    nccl_placement: pl.LazyFrame | None,
    nccl_notes: pl.LazyFrame | None,
    nccl_errors: pl.LazyFrame | None,
    nccl_tails: pl.LazyFrame,
    progress: pl.LazyFrame | None = None,
    nccl_connections: pl.LazyFrame | None = None,
    nccl_network: pl.LazyFrame | None = None,
) -> pl.LazyFrame:
    """Ranks of a communicator that all had joined, and whose processes ended before those of their peers.

    ``how``: ``closed`` (of the rank no line is left, and a process of the same host lost the connection to it, by its local rank, and wrote
    on), ``left`` (its lines end before a collective that its peers entered, and one of these lost the connection to it before it called its
    last), ``lost`` (its lines end before a collective that its peers entered, it alone of those tells of no error, and one that talks over
    the network to no other process of its host failed for a lost connection to that host, or one gave up connecting to that host, where a
    port was refused after the bootstrap), or ``refused`` (a connection to a process of the communicator is refused after the bootstrap, in
    which each had opened its port, and the lines of all others but one are there), or ``silent`` (processes of its host lost the connection
    to it, others failed for lost connections alone, and it is the one among those that went which tells of no error), or ``dead`` (the RAS
    threads of peers declared its address dead), or ``first`` (processes of its host lost the connection to it and to no other that stayed),
    or ``unended`` (all of its host lack the end of the communicator, which all of the other hosts aborted, and it lost none of them), or
    ``ended`` (it ended the communicator, without an error, two collectives or more before the last one that peers entered, most of which
    have not). A process that was stopped with all the others also loses connections, but writes nothing after that, and one that comes to
    its end with several others, as jobs do that are done, nothing but the end of its communicator; those that end one after the other all
    lose each other."""
    rows: list[dict[str, object]] = []
    joined = values_in(bootstrapped, "comm_key")
    # Up to 2.18 the only line of a communicator is the one that says that it came up.
    joined |= values_in(comms, "comm_key", pl.col("completed"))
    known = comms.filter(pl.col("rank").is_not_null() & pl.col("nranks").is_not_null() & pl.col("comm_key").is_in(sorted(joined))).collect()
    if not known.height:
        return pl.DataFrame(rows, schema=GONE_PEERS).lazy()
    size = int(str(known["nranks"].max()))
    members = known.filter(pl.col("nranks") == size).sort("comm_key", "rank")
    members = members.filter(pl.col("comm_key") == members["comm_key"][0])  # of the job's first communicator ranks are those of the job
    absent = set(range(size)) - set(members["rank"].to_list())
    base = {"comm_id": members["comm_id"][0]}
    rank_of = {(h, p): r for h, p, r in members.select("host", "pid", "rank").iter_rows()}
    if nccl_notes is not None and nccl_placement is not None and absent:
        rows += [
            base | {"how": "closed"} | row
            for row in _closed(nccl_notes, nccl_placement, _at_work(nccl_tails, nccl_notes, nccl_errors), rank_of, absent)
        ]
    if nccl_notes is not None and nccl_placement is not None and progress is not None:
        behind = _behind(progress, members)
        found = _closed(nccl_notes, nccl_placement, _last_calls(progress, members), rank_of, behind) if behind else []
        rows += [base | {"how": "left"} | row for row in found]
    if not rows and nccl_errors is not None and nccl_notes is not None and nccl_placement is not None and not absent:
        quiet = _without_a_word(nccl_errors, members)
        found = _closed(nccl_notes, nccl_placement, nccl_tails, rank_of, quiet) if quiet else []
        rows += [base | {"how": "silent"} | row for row in found] if len(found) == 1 else []
    single = known["comm_key"].n_unique() == 1
    if not rows and single and nccl_errors is not None and nccl_connections is not None and progress is not None:
        rows += [
            base | row
            for row in _lost(
                nccl_errors, nccl_connections, nccl_network, members, _behind(progress, members), _behind(progress, members, 2)
            )
        ]
    if not rows and nccl_errors is not None and len(absent) == 1:
        rows += [base | row for row in _refused(nccl_errors, nccl_tails, members, next(iter(absent)))]
    if not rows and single and nccl_errors is not None and progress is not None and not absent:
        rows += [base | row for row in _refused_by_one(nccl_errors, nccl_network, members, _uncalling(progress, members))]
    if not rows and nccl_errors is not None:
        rows += [base | {"how": "dead"} | row for row in _declared(nccl_errors, nccl_notes, members)]
    if not rows and not absent and nccl_notes is not None:
        level = progress is not None and _level(progress, members)
        behind = _behind(progress, members) if progress is not None else set()
        met = [] if level else _first_to_go(nccl_notes, nccl_errors, members, _local_ranks(known, members), behind)
        rows += [base | {"how": "first"} | row for row in met]
    if not rows and progress is not None:
        rows += [base | {"how": "ended"} | row for row in _ended_early(members, progress, nccl_errors)]
    if not rows and not absent:
        rows += [base | {"how": "unended"} | row for row in _never_aborted(members, nccl_errors, nccl_notes)]
    return pl.DataFrame(rows, schema=GONE_PEERS, infer_schema_length=None).lazy()


def _local_ranks(known: pl.DataFrame, members: pl.DataFrame) -> pl.DataFrame:
    """``rank`` by the local rank (``value``) by which a process (``host``, ``pid``) knows it, where all communicators of that process mean
    the same one. Each counts its own ranks of a host; of one that lacks a rank, as where that died in its init, the others are not known."""
    place = ["comm_key", "host"]
    own = known.unique(["comm_key", "rank"], keep="first", maintain_order=True).sort("comm_key", "rank")
    own = own.with_columns(whole=pl.len().over("comm_key") == pl.col("nranks"))
    whole = own.filter(pl.col("whole").all().over("host", "pid"))
    counted = own.with_columns(value=pl.int_range(pl.len()).over(place).cast(pl.Float64)).select(*place, "pid", "value")
    counted = counted.join(members.select("host", "pid", "rank"), on=["host", "pid"])
    meant = whole.select(*place, "pid").join(counted.select(*place, "value", "rank"), on=place)
    return meant.group_by("host", "pid", "value").agg(pl.col("rank").unique()).filter(pl.col("rank").list.len() == 1).explode("rank")


def _unended(members: pl.DataFrame) -> set[int]:
    """Ranks without an end of their communicator."""
    return set(members.filter(pl.col("ended").is_null())["rank"].to_list())


def _declared(nccl_errors: pl.LazyFrame, nccl_notes: pl.LazyFrame | None, members: pl.DataFrame) -> list[dict[str, object]]:
    """Ranks whose RAS address peers declared dead, if they are fewer than half: RAS gives a process up that it cannot reach for long."""
    if nccl_notes is None:
        return []
    people = members.select("host", "pid", "rank")
    owners = nccl_notes.filter(pl.col("kind") == "ras-socket").select("host", "pid", peer="a").collect().join(people, on=["host", "pid"])
    seen = nccl_errors.filter(pl.col("kind") == "ras-dead").sort("source_id", "line_no").collect()
    told = seen.join(people.rename({"rank": "by"}), on=["host", "pid"]).join(owners.select("peer", "rank"), on="peer")
    told = told.filter((pl.col("by") != pl.col("rank")) & pl.col("rank").is_in(sorted(_unended(members))))
    if told["rank"].n_unique() * 2 >= members.height or set(told["rank"].to_list()) & set(told["by"].to_list()):
        return []
    return [
        {"rank": part["rank"][0], "host": dict(people.select("rank", "host").iter_rows())[part["rank"][0]]}
        | {"seen_by": sorted(set(part["by"].to_list())), "source_id": part["source_id"][0], "line_no": part["line_no"][0]}
        for part in told.sort("rank", "source_id", "line_no").partition_by("rank", maintain_order=True)
    ]


def _first_to_go(
    nccl_notes: pl.LazyFrame,
    nccl_errors: pl.LazyFrame | None,
    members: pl.DataFrame,
    local_ranks: pl.DataFrame,
    behind: set[int],
) -> list[dict[str, object]]:
    """Ranks of one host that processes of it lost while at least two of it stayed that nobody lost, and nobody of another host lost anybody;
    of the only host, one rank that two lost. Processes that end one after the other are lost by those that end later, so that one stays:
    one is enough beside those of other hosts where all that were lost are ``behind`` in their calls, and they may be of several hosts
    where nobody else is."""
    warned = (
        nccl_errors.filter(pl.col("level") == "WARN").select(pl.col("kind").unique()).collect()["kind"].to_list()
        if nccl_errors is not None
        else []
    )
    if not set(warned) <= set(_OF_PEERS):
        return []  # somebody failed, for a reason that is told
    people = members.select("host", "pid", "rank")
    host_of = dict(people.select("rank", "host").iter_rows())
    closed = nccl_notes.filter((pl.col("kind") == "local-peer-closed") & pl.col("value").is_not_null()).sort("source_id", "line_no")
    seen = closed.collect().join(people.rename({"rank": "by"}), on=["host", "pid"])
    met = seen.join(local_ranks, on=["host", "pid", "value"])
    if met.height < seen.height:
        return []  # whom somebody lost is not known
    seen = met.sort("source_id", "line_no")
    lost = set(seen["rank"].to_list())
    hosts = {host_of.get(r) for r in lost}
    if not lost or lost - _unended(members) or ((len(hosts) > 1 or warned) and lost != behind):
        return []
    stayed = {rank for rank, place in host_of.items() if place in hosts} - lost
    by = seen.filter(pl.col("by").is_in(sorted(stayed)))
    alone = len(set(host_of.values())) == 1
    counts = people.filter(~pl.col("host").is_in(list(hosts))).group_by("host").len()["len"]
    seen_elsewhere = len(hosts) > 1 or int(str(counts.max() or 0)) > 1  # on another host somebody would have been lost too
    enough = by["by"].n_unique() > 1 and len(lost) == 1 if alone else seen_elsewhere
    if len(stayed) < (1 if lost <= behind and not alone else 2) or not enough:
        return []
    return [
        {"rank": part["rank"][0], "host": host_of[part["rank"][0]], "seen_by": sorted(set(part["by"].to_list()))}
        | {"source_id": part["source_id"][0], "line_no": part["line_no"][0]}
        for part in by.sort("rank", "source_id", "line_no").partition_by("rank", maintain_order=True)
    ]


def _never_aborted(members: pl.DataFrame, nccl_errors: pl.LazyFrame | None, nccl_notes: pl.LazyFrame | None) -> list[dict[str, object]]:
    """All ranks of a host without an end of their communicator, which all ranks of all other hosts aborted: these had given up on it. Not
    those that lost another one of their host: they outlived it, and may still be aborting."""
    spoke = None if nccl_errors is None else nccl_errors.filter(pl.col("level") == "WARN").head(1).collect()
    hosts = members.group_by("host").agg(
        pl.col("rank"), aborted=(pl.col("ended") == "abort-complete").fill_null(False).mean(), bare=pl.col("ended").is_null().all()
    )
    quiet = hosts.filter("bare")
    if quiet.height != 1 or hosts.height < 2 or (spoke is not None and spoke.height) or not (hosts["aborted"].is_in([0.0, 1.0])).all():
        return []
    if hosts.filter(pl.col("aborted") == 1.0).height != hosts.height - 1:
        return []
    row = quiet.row(0, named=True)
    others = sorted(set(members["rank"].to_list()) - set(row["rank"]))
    last = members.filter(pl.col("ended").is_not_null()).sort("source_id", "end_line_no").row(0, named=True)
    seen = {"seen_by": others, "source_id": last["source_id"], "line_no": last["end_line_no"]}
    went = set(row["rank"])
    if nccl_notes is not None:
        losers = nccl_notes.filter(pl.col("kind") == "local-peer-closed").select("host", "pid").collect()
        went -= set(members.join(losers, on=["host", "pid"], how="semi")["rank"].to_list())
    return [{"rank": rank, "host": row["host"]} | seen for rank in sorted(went)]


#: Errors that tell of a peer that is gone: whoever loses one prints them, and nothing else went wrong where there are no others.
_OF_PEERS = ("peer-closed", "recv-failed", "connect-retry", "connect-gave-up", "connect-failed", "proxy", "other", "propagation", "no-slot")


#: What the call of a collective, or of what it does first, hands up: a process that is killed does not come so far.
_HANDED_UP = r"(?:enqueue|group|init)\.cc$"


def _lost(
    nccl_errors: pl.LazyFrame,
    nccl_connections: pl.LazyFrame,
    nccl_network: pl.LazyFrame | None,
    members: pl.DataFrame,
    behind: set[int],
    far: set[int],
) -> list[dict[str, object]]:
    """The one rank of those ``behind`` that tells of no error, if a peer failed for a lost connection that can only have been to it, or, of
    those ``far`` behind, one whose other end is not told and that talks to it: the others it talks to called all that anybody did."""
    lines = nccl_errors.sort("source_id", "line_no").collect()
    if lines.filter((pl.col("level") == "WARN") & ~pl.col("kind").is_in(_OF_PEERS)).height:
        return []
    people = members.select("host", "pid", "rank")
    told = lines.filter((pl.col("level") == "WARN") | ((pl.col("kind") == "propagation") & pl.col("code").is_between(1, 7)))
    quiet = behind - set(people.join(told, on=["host", "pid"], how="semi")["rank"].to_list())
    if len(quiet) != 1:
        return []
    [rank] = quiet
    host = people.filter(pl.col("rank") == rank)["host"][0]
    there = set(people.filter(pl.col("host") == host)["rank"].to_list())
    pairs = nccl_connections.filter(pl.col("transport") == "NET").select("src", "dst").unique().collect()
    both = pl.concat([pairs, pairs.select(src="dst", dst="src")]).filter(
        pl.col("dst").is_in(list(there)) & ~pl.col("src").is_in(list(there))
    )
    partners = both.group_by("src").agg(pl.col("dst").unique())
    only = partners.filter(pl.col("dst") == [rank])["src"].to_list()
    of_many = partners.filter(pl.col("dst").list.contains(rank))["src"].to_list() if rank in far else []
    names = {first_label(host), *_addresses(nccl_network, host)}
    end = pl.col("peer").str.split("<").list.first()
    seen = (
        lines.join(people, on=["host", "pid"])
        .filter((pl.col("level") == "WARN") & pl.col("kind").is_in(["peer-closed", "recv-failed"]))
        .filter(
            (
                pl.col("rank").is_in(only)
                & end.map_elements(lambda name: name in names or first_label(name) in names, return_dtype=pl.Boolean())
            )
            | (pl.col("rank").is_in(of_many) & (end.fill_null("") == ""))
        )
        .unique("rank", keep="first", maintain_order=True)
    )
    up = lines.filter((pl.col("kind") == "propagation") & pl.col("file").str.contains(_HANDED_UP) & pl.col("code").is_between(1, 6))
    ended = members.filter(pl.col("ended").is_not_null()).select("host", "pid")
    handled = pl.concat([up.select("host", "pid"), ended]).unique()
    seen = seen.join(handled, on=["host", "pid"], how="semi")
    if not seen.height:
        return []
    first = seen.row(0, named=True)
    return [
        {
            "rank": rank,
            "host": host,
            "how": "lost",
            "seen_by": sorted(seen["rank"].to_list()),
            "source_id": first["source_id"],
            "line_no": first["line_no"],
        }
    ]


def _addresses(nccl_network: pl.LazyFrame | None, host: object) -> set[str]:
    """Addresses that processes of a host tell to be theirs."""
    if nccl_network is None:
        return set()
    own = nccl_network.filter((pl.col("host") == host) & pl.col("address").str.contains("<", literal=True))
    return {str(a).split("<")[0] for a in own.select(pl.col("address").unique()).collect()["address"].to_list()}


def _without_a_word(nccl_errors: pl.LazyFrame, members: pl.DataFrame) -> set[int]:
    """Ranks without an error where most others hand one up and all errors are of lost connections; none where somebody failed otherwise."""
    lines = nccl_errors.sort("source_id", "line_no").select("host", "pid", "kind", "level", "code").collect()
    if lines.filter((pl.col("level") == "WARN") & ~pl.col("kind").is_in(_OF_PEERS)).height:
        return set()
    people = members.filter(pl.col("ended").is_null()).select("host", "pid", "rank")
    spoke = lines.filter((pl.col("level") == "WARN") | ((pl.col("kind") == "propagation") & pl.col("code").is_between(1, 7)))
    failed = set(people.join(spoke, on=["host", "pid"], how="semi")["rank"].to_list())
    return set(people["rank"].to_list()) - failed if len(failed) * 2 >= members.height else set()


#: How a process ends its communicator, in the order of its job or because it gave up.
_OWN_END = r" - (?:Abort|Destroy) COMPLETE"


def _at_work(nccl_tails: pl.LazyFrame, nccl_notes: pl.LazyFrame, nccl_errors: pl.LazyFrame | None) -> pl.LazyFrame:
    """Ends of the processes that did not just end their communicator: who tells of no error beside that, and lost several peers, may have
    been done as they were."""
    place = ["host", "pid"]
    closed = nccl_notes.filter((pl.col("kind") == "local-peer-closed") & pl.col("value").is_not_null())
    several = closed.group_by(place).agg(pl.col("value").n_unique()).filter(pl.col("value") > 1)
    done = nccl_tails.filter(pl.col("message").str.contains(_OWN_END)).join(several, on=place, how="semi", nulls_equal=True).select(place)
    if nccl_errors is not None:
        done = done.join(nccl_errors.filter(pl.col("level") == "WARN"), on=place, how="anti", nulls_equal=True)
    return nccl_tails.join(done, on=place, how="anti", nulls_equal=True)


def _last_calls(progress: pl.LazyFrame, members: pl.DataFrame) -> pl.LazyFrame:
    """The line of the last collective of each process, as ``nccl_tails`` has last lines."""
    people = members.lazy().select("host", "pid", "rank").unique("rank", keep="any")
    own = progress.filter((pl.col("domain") == "nccl") & pl.col("rank").is_not_null() & pl.col("line_no").is_not_null())
    return own.join(people, on="rank").select("source_id", "host", "pid", "line_no", message="last_op")


def _behind(progress: pl.LazyFrame, members: pl.DataFrame, by: int = 1) -> set[int]:
    """Ranks whose NCCL lines end before a collective that others of a group entered, ``by`` collectives at least, without an end of their
    communicator."""
    own = progress.filter((pl.col("domain") == "nccl") & pl.col("rank").is_not_null() & pl.col("last_seq").is_not_null())
    late = (
        own.filter(pl.col("last_seq") <= pl.col("last_seq").max().over("group_key") - by)
        .select("rank")
        .unique()
        .collect()["rank"]
        .to_list()
    )
    return set(late) & set(members.filter(pl.col("ended").is_null())["rank"].to_list())


def _level(progress: pl.LazyFrame, members: pl.DataFrame) -> bool:
    """Whether all members called as many collectives, at least one, of their communicator: whoever ended first did not keep the others from
    another call, and a process that comes to its end and exits is lost alike."""
    here = (pl.col("domain") == "nccl") & (pl.col("group_key") == members["comm_key"][0])
    ends = progress.filter(here & pl.col("last_seq").is_not_null()).select("rank", "last_seq").collect()
    return ends["last_seq"].n_unique() == 1 and ends["rank"].n_unique() == members["rank"].n_unique()


def _ended_early(members: pl.DataFrame, progress: pl.LazyFrame, nccl_errors: pl.LazyFrame | None) -> list[dict[str, object]]:
    """Ranks that ended the communicator long before the last collective in it, where most others have not ended it and nobody failed. Who
    leaves one call out comes to its end one call earlier, too."""
    done = members.filter(pl.col("ended").is_not_null())
    failed = has_rows(nccl_errors, pl.col("level") == "WARN")
    if failed or not 0 < done.height * 2 < members.height:
        return []
    here = (pl.col("domain") == "nccl") & (pl.col("group_key") == members["comm_key"][0])
    reached = dict(progress.filter(here).select("rank", pl.col("last_seq").fill_null(-1)).drop_nulls().collect().iter_rows())
    beyond = {rank: [r for r, last in reached.items() if last >= reached[rank] + 2] for rank in done["rank"].to_list() if rank in reached}
    return [
        {k: row[k] for k in ("rank", "host", "source_id")} | {"line_no": row["end_line_no"], "seen_by": sorted(beyond[row["rank"]])}
        for row in done.sort("rank").iter_rows(named=True)
        if len(beyond.get(row["rank"], ())) * 2 > members.height - done.height
    ]


def _uncalling(progress: pl.LazyFrame, members: pl.DataFrame) -> set[int]:
    """Ranks whose NCCL lines end before a collective that others entered: before any, where all others have called one."""
    called = progress.filter((pl.col("domain") == "nccl") & pl.col("rank").is_not_null()).select(pl.col("rank").unique()).collect()
    mute = set(members.filter(pl.col("ended").is_null())["rank"].to_list()) - set(called["rank"].to_list())
    return mute if mute and len(mute) * 2 < members.height else _behind(progress, members)


def _closed(
    nccl_notes: pl.LazyFrame,
    nccl_placement: pl.LazyFrame,
    nccl_tails: pl.LazyFrame,
    rank_of: dict[tuple[object, object], int],
    absent: set[int],
) -> list[dict[str, object]]:
    """Those of the ranks ``absent`` whose connections processes of their host found closed before they themselves were done."""
    place = ["source_id", "host", "pid"]
    ends = nccl_tails.sort("source_id", "line_no").group_by(place).agg(pl.col("line_no", "message").last())
    ends = ends.filter(~pl.col("message").str.starts_with(_CLOSED)).select(*place, last_line="line_no")
    seen = (
        nccl_notes.filter((pl.col("kind") == "local-peer-closed") & pl.col("value").is_not_null())
        .join(ends, on=place, nulls_equal=True)
        .sort("source_id", "line_no")
        .unique(place, keep="first", maintain_order=True)  # later ones may follow from the first
        .filter(pl.col("line_no") < pl.col("last_line"))
        .collect()
    )
    offsets = _offsets(nccl_placement)
    found: dict[int, dict[str, object]] = {}
    witnesses: dict[int, set[int]] = {}
    for row in seen.iter_rows(named=True):
        offset, own = offsets.get(row["host"]), rank_of.get((row["host"], row["pid"]))
        rank = int(row["value"]) + int(str(offset)) if offset is not None else None
        if rank is None or own is None or rank not in absent:
            continue
        found.setdefault(rank, {"rank": rank, "host": row["host"], "source_id": row["source_id"], "line_no": row["line_no"]})
        witnesses.setdefault(rank, set()).add(own)
    return [found[rank] | {"seen_by": sorted(witnesses[rank])} for rank in sorted(found)]


def _offsets(nccl_placement: pl.LazyFrame) -> dict[str, int]:
    """By how much ranks and local ranks of each host differ. Where that is no constant, a local rank tells nobody."""
    return dict(
        nccl_placement.filter(pl.col("rank").is_not_null() & pl.col("local_rank").is_not_null())
        .group_by("host")
        .agg((pl.col("rank") - pl.col("local_rank")).unique().alias("offset"))
        .filter(pl.col("offset").list.len() == 1)
        .select("host", pl.col("offset").list.first())
        .collect()
        .iter_rows()
    )


def _refused_by_one(
    nccl_errors: pl.LazyFrame, nccl_network: pl.LazyFrame | None, members: pl.DataFrame, behind: set[int]
) -> list[dict[str, object]]:
    """The one rank of those ``behind`` that tells of no error, if a peer gave up connecting to its host, where a port was refused after the
    bootstrap, and nobody failed otherwise."""
    lines = nccl_errors.sort("source_id", "line_no").collect()
    if lines.filter((pl.col("level") == "WARN") & ~pl.col("kind").is_in(_OF_PEERS)).height:
        return []
    people = members.select("host", "pid", "rank", begun="line_no")
    quiet = behind - set(people.join(lines, on=["host", "pid"], how="semi")["rank"].to_list())
    if len(quiet) != 1:
        return []
    [rank] = quiet
    host = people.filter(pl.col("rank") == rank)["host"][0]
    there = [host, *sorted(_addresses(nccl_network, host))]
    target = pl.col("message").str.extract(r"\bto ([^<\s]+)<")
    seen = (
        lines.join(people, on=["host", "pid"])
        .filter(pl.col("kind").is_in(["connect-gave-up", "connect-failed"]) & pl.col("message").str.contains("refused", literal=True))
        .filter((pl.col("line_no") > pl.col("begun")) & target.is_in(there))
        .unique("rank", keep="first", maintain_order=True)
    )
    if not seen.height:
        return []
    first = seen.row(0, named=True)
    place = {"source_id": first["source_id"], "line_no": first["line_no"]}
    return [{"rank": rank, "host": host, "how": "lost", "seen_by": sorted(seen["rank"].to_list())} | place]


def _refused(nccl_errors: pl.LazyFrame, nccl_tails: pl.LazyFrame, members: pl.DataFrame, rank: int) -> list[dict[str, object]]:
    """The one absent rank, if a connection inside the communicator is refused and no process whose lines are there got least far alone:
    that one may be what ended."""
    begun = members.select("source_id", "host", "pid", "rank", begun="line_no").lazy()
    lengths = nccl_tails.join(begun, on=["host", "pid"], nulls_equal=True).group_by("rank").agg(pl.col("lines").sum()).collect()["lines"]
    if lengths.len() < 2 or (lengths == lengths.min()).sum() == 1:
        return []
    lines = (
        nccl_errors.filter((pl.col("kind") == "connect-retry") & pl.col("message").str.contains("refused", literal=True))
        .join(begun, on=["source_id", "host", "pid"], nulls_equal=True)
        .filter(pl.col("line_no") > pl.col("begun"))
        .sort("source_id", "line_no")
        .collect()
    )
    if not lines.height:
        return []
    first = lines.row(0, named=True)
    hosts = members["host"].unique().to_list()
    return [
        {
            "rank": rank,
            "host": hosts[0] if len(hosts) == 1 else None,
            "how": "refused",
            "seen_by": sorted(set(lines["rank"].to_list())),
            "source_id": first["source_id"],
            "line_no": first["line_no"],
        }
    ]
