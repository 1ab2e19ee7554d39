"""The host that a source is about: what its content states, else a host name in its path."""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import pairwise

import polars as pl

from nccl_forensics.frames import values_in
from nccl_forensics.views import view
from nccl_forensics.words import first_label

#: Words of a path that look like a host: letters, then a number somewhere; but not the words of ranks, devices, runs and files.
_LIKE_HOST = re.compile(r"^[A-Za-z][A-Za-z-]*[-_]?\d[A-Za-z0-9-]*(?:\.[A-Za-z][A-Za-z0-9.-]*)?$")
_NO_HOST = re.compile(
    r"^(?:global|local)?[-_]?(?:rank|pid|run|attempt|(?:dump|trace|stack|sample|log|snapshot|record|profile|look|output|result)s?|step|job|task|pod|port|part|iter(?:ation)?|epoch|checkpoint|ckpt|flight|recorder|py-?spy|try|test|case|round|v|t|xid|mlx|ib|bnxt_re|irdma|"
    r"hfi|efa|eth|ens|eno|enp|bond|card|nccl|rccl|cuda|ipv|slurm|ibdiagnet|iperf|nvidia-smi|x|h|k|l|p|r|s|a|b|c|d|n[12]_g)[-_]?\d"
    # No host has hundreds of GPUs: gpu-003 and gpu128 are hosts.
    r"|^gpu[-_]?\d{1,2}(?!\d)",
    re.IGNORECASE,
)
#: In a file's name only these beginnings are believed, so that no version or date becomes a host.
_HOST_WORD = re.compile(
    r"(?:^|[_.-])((?:node|host|worker|server|compute|cn|dgx|hgx|nid|ip-\d|gpu-?node|gpu-?(?=\d{3})|login|head|master)[A-Za-z]*[-_]?\d[A-Za-z0-9-]*)"
)
#: A rack or the like that stands before the name of a host.
_PLACE = re.compile(r"[A-Za-z]{2,}\d+")
_ARCHIVE = re.compile(r"\.(?:tar(?:\.\w+)?|tgz|zip|txz|tbz2?)$")
#: Longer than any host's name in DNS.
_LONGEST_NAME = 253
_SUFFIX = re.compile(r"\.(?:txt|log|out|err|json|xml|csv|yaml|gz|zst|dat|dmesg|markdown|md)$")


#: Folder of our own collection script: incident-<host>-<time>.
_COLLECTED = re.compile(r"^incident-([A-Za-z0-9._-]+)-(?:[0-9]{8}T[0-9]{6}Z|undated)$")


#: Folders whose subfolders bear the names of hosts.
_SHELVES = frozenset({"hosts", "nodes", "by-host", "by-node", "per-host", "per-node"})


@view(rows="sources")
def path_hosts(sources: pl.LazyFrame) -> pl.LazyFrame:
    """``source_id``, ``host`` for every source whose path alone names a host."""
    rows = [(s, host_in_path(p)) for s, p in sources.select("source_id", "path").collect().sort("source_id").iter_rows()]
    return pl.DataFrame(
        [r for r in rows if r[1]], schema={"source_id": pl.UInt32(), "host": pl.String()}, orient="row", infer_schema_length=None
    ).lazy()


@view(rows="sources")
def source_hosts(
    sources: pl.LazyFrame,
    path_hosts: pl.LazyFrame,
    nccl_comms: pl.LazyFrame | None,
    kernel_spans: pl.LazyFrame | None,
    bandwidth_devices: pl.LazyFrame | None,
    scheduler_nodes: pl.LazyFrame | None,
    worker_exits: pl.LazyFrame | None,
) -> pl.LazyFrame:
    """``source_id``, ``host``, ``how`` for every source whose host can be told; no guess for the others.

    ``how`` is content, path, or only (the job ran on one host).
    """
    stated: dict[int, set[str]] = defaultdict(set)
    known: set[str] = set()
    for table, column, own in (
        (nccl_comms, "host", True),
        (kernel_spans, "host", True),
        (bandwidth_devices, "host", False),
        (scheduler_nodes, "node", False),
        (worker_exits, "host", False),
    ):
        if table is None:
            continue
        for source, host in table.select("source_id", column).drop_nulls().unique().collect().sort("source_id", column).iter_rows():
            known.add(host)
            if own:
                stated[source].add(host)
    by_job = values_in(nccl_comms, "host")
    by_path = dict(path_hosts.select("source_id", "host").collect().iter_rows())
    rows = []
    paths = sources.select("source_id", "path").collect().sort("source_id")
    # Most paths name none of the hosts: these are found at once, and the words of the others are looked up.
    hold = paths["path"].str.contains_any(sorted(known)).to_list() if known else [False] * paths.height
    series = {_numberless(host) for host in (*known, *by_path.values()) if _numberless(host) != host}
    for (source, path), holds in zip(paths.iter_rows(), hold, strict=True):
        content = stated.get(source, set())
        if len(content) == 1:
            rows.append((source, next(iter(content)), "content"))
        elif not content and (host := host_in_path(path, known) if holds else by_path.get(source) or _sibling(path, series)):
            rows.append((source, host, "path"))
        elif not content and len(by_job) == 1:
            rows.append((source, next(iter(by_job)), "only"))
    return pl.DataFrame(
        rows, schema={"source_id": pl.UInt32(), "host": pl.String(), "how": pl.String()}, orient="row", infer_schema_length=None
    ).lazy()


def _numberless(name: str) -> str:
    return re.sub(r"[0-9]+", "#", name)


def _sibling(path: str, series: set[str]) -> str | None:
    """The folder or archive of the path, or the one word of the file's name, that is called like the hosts that are known, but for its number
    (``gpu-03`` beside the host ``gpu-01``)."""
    if not series:
        return None
    *folders, name = [_ARCHIVE.sub("", part) for part in path.replace("!/", "/").split("/")]
    folder = next((folder for folder in reversed(folders) if _numberless(folder) in series), None)
    if folder is not None:
        return folder
    words = sorted((w for w in _words(name) if _numberless(w) in series and not _NO_HOST.match(w)), key=lambda w: (-len(w), w))
    return words[0] if words and all(w in words[0] for w in words) else None


def host_in_path(path: str, known: set[str] | frozenset[str] = frozenset()) -> str | None:
    """The host that a path names: a host known from elsewhere first, then a folder below ``hosts/`` or the like, then a folder or archive
    named like one, then a word of the file's name."""
    parts = [p for p in path.replace("!/", "/").split("/") if p]
    for part in reversed(parts):
        hits = [h for h in _words(part) if h in known and h != "localhost"] if known else []
        if hits:
            longest = max(hits, key=lambda h: (len(h), h))
            return longest if all(h in longest for h in hits) else None  # the file of a pair of hosts
    for above, part in pairwise(parts[:-1]):
        if above.lower() in _SHELVES:
            return _ARCHIVE.sub("", part)
    for part in reversed(parts[:-1]):
        bare = _ARCHIVE.sub("", part)
        if collected := _COLLECTED.match(bare):
            return collected.group(1)
        for piece in (bare, bare.rpartition("_")[2], bare.partition("_")[0]):
            if _LIKE_HOST.match(piece) and not _NO_HOST.match(piece):
                return piece
    name = _SUFFIX.sub("", parts[-1]) if parts else ""
    found = _HOST_WORD.search(name)
    if found is None:
        return None
    # A place may stand before it (``rack4-node12``).
    before, _, _ = name[: found.start(1)].rpartition("_")[2].rpartition("-")
    return "-".join([before] * bool(_PLACE.fullmatch(before)) + [_bare(found.group(1))])


def _bare(word: str) -> str:
    """Without what the file's own name adds (``node12-dmesg``)."""
    pieces = word.split("-")
    while len(pieces) > 1 and pieces[-1].isalpha():
        pieces.pop()
    return "-".join(pieces)


def _words(part: str) -> set[str]:
    """What stands in the part as a word of its own (``dmesg_node1.txt`` holds ``node1`` and ``dmesg_node1`` and not ``node``), with and without
    what hangs on it (``node1-dmesg.txt``).

    Looking each of them up among the hosts takes the same time for eight hosts and for eight thousand.
    """
    starts = [i for i in range(len(part)) if i == 0 or not part[i - 1].isalnum()]
    ends = [i for i in range(1, len(part) + 1) if i == len(part) or not (part[i].isalnum() or part[i] == "-")]
    words = {part[start:end] for start in starts for end in ends if 0 < end - start <= _LONGEST_NAME}
    return words | {_bare(word) for word in words}


def one_host(seen: set[int], processes: pl.LazyFrame | None, path_hints: pl.LazyFrame) -> bool:
    """Whether one host is named for all these ranks, or one launcher's folders of local ranks hold exactly the ranks of the job."""
    if processes is not None:
        known = (
            processes.filter(pl.col("rank").is_in(sorted(seen)) & pl.col("host").is_not_null()).select("rank", "host").unique().collect()
        )
        if known.height:
            return set(known["rank"].to_list()) == seen and len({first_label(h) for h in known["host"]}) == 1
    folders = path_hints.select(pl.col("attempt_local_rank").drop_nulls().unique()).collect()
    return set(folders["attempt_local_rank"].to_list()) == seen
