"""From NCCL messages, by kind, to rows of the tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import polars as pl

from nccl_forensics.grammar.lines import Extraction, load
from nccl_forensics.tables import TABLES

#: NCCL's numbers for algorithms and protocols on tuning lines before 2.24.
_ALGORITHMS = {"0": "TREE", "1": "RING", "2": "COLLNET_DIRECT", "3": "COLLNET_CHAIN", "4": "NVLS", "5": "NVLS_TREE", "6": "PAT"}
_PROTOCOLS = {"0": "LL", "1": "LL128", "2": "SIMPLE"}
#: Ranks that NCCL <= 2.22 shows of a ring, without saying that it cut (src/init.cc).
_RING_SHOWN = 20
_PRIVATE = r"(?i)key|token|secret|password|credential"
_MASK = "***"

Builder = Callable[[pl.DataFrame], Iterator[tuple[str, pl.DataFrame]]]


def tables_of(kind: str, rows: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    """Table names with conformed rows for the rows of one kind (columns of the prefix and of the kind)."""
    builder = _BUILDERS.get(kind)
    if builder is None:
        builder = next((build for start, build in _BY_START.items() if kind.startswith(start)), None)
    if builder is None:
        return
    for table, frame in builder(rows.with_columns(kind=pl.lit(kind))):
        yield table, TABLES[table].conform(frame)


def _hex(column: str) -> pl.Expr:
    return pl.col(column).str.to_integer(base=16, strict=False)


def _column(rows: pl.DataFrame, name: str) -> pl.Expr:
    return pl.col(name) if name in rows.columns else pl.lit(None, dtype=pl.String)


def _operation(rows: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    whole = not rows.is_empty() and rows.item(0, "kind") == "operation"
    yield (
        "nccl_ops",
        rows.with_columns(
            op_count=_hex("op_count"),
            unofficial=pl.lit(rows.item(0, "kind") == "operation_done"),
            from_call=pl.lit(False),
            torn=pl.lit(not whole and rows.item(0, "kind") != "operation_done"),
        ),
    )


def _call(rows: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    cut = rows.item(0, "kind") == "call_cut"
    yield "nccl_ops", rows.with_columns(unofficial=pl.lit(False), from_call=pl.lit(True), torn=pl.lit(cut))


def _call_init(rows: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    yield "nccl_comms", rows.with_columns(event=pl.lit("call-init"), func="nccl" + pl.col("op"))


def _call_split(rows: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    yield "nccl_comms", rows.with_columns(event=pl.lit("call-split"), func=pl.lit("ncclCommSplit"))


def _init(rows: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    yield "nccl_comms", rows.with_columns(event="init-" + pl.col("phase").fill_null("START").str.to_lowercase())


def _destroy(rows: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    yield "nccl_comms", rows.with_columns(event=pl.col("what").str.to_lowercase() + "-" + pl.col("phase").str.to_lowercase())


def _placement(rows: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    yield "nccl_placement", rows


def _version(rows: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    text = pl.col("version")
    yield (
        "nccl_versions",
        rows.with_columns(
            raw=text,
            vendor=pl.when(text.str.starts_with("R")).then(pl.lit("rccl")).otherwise(pl.lit("nccl")),
            version=text.str.extract(r"version *:? *([0-9]+(?:\.[0-9]+)*)"),
            cuda=text.str.extract(r"\+(?:cuda|hip)([0-9.]+)"),
        ),
    )


def _connection_p2p(rows: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    yield "nccl_connections", rows.with_columns(transport=pl.lit("P2P"), detail=pl.col("detail_p2p"))


def _connection_shm(rows: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    yield "nccl_connections", rows.with_columns(transport=pl.lit("SHM"), detail=pl.col("detail_shm"))


def _connection_net(rows: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    flags = pl.col("flags").fill_null("")
    via_proxy = pl.when(pl.col("proxy_rank").is_not_null()).then("(" + pl.col("proxy_rank") + ")").otherwise(pl.lit(""))
    yield (
        "nccl_connections",
        rows.with_columns(
            transport=pl.lit("NET"),
            detail=pl.concat_str([pl.lit("NET/"), "network", pl.lit("/"), "net_dev", via_proxy, flags]),
            gdr=flags.str.contains("GDRDMA", literal=True),
        ),
    )


def _connection_collnet(rows: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    flags = pl.col("flags").fill_null("")
    detail = pl.concat_str([pl.lit("COLLNET/"), "network", pl.lit("/"), "net_dev", flags])
    gdr = flags.str.contains("GDRDMA", literal=True)
    yield "nccl_connections", rows.with_columns(transport=pl.lit("COLLNET"), detail=detail, gdr=gdr)


def _connection_disabled(rows: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    yield "nccl_connections", rows.with_columns(transport=pl.lit("P2P/Disabled"), detail=pl.lit("P2P/Disabled"))


def _ring(rows: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    ranks = pl.col("ranks").str.extract_all(r"[0-9]+").list.eval(pl.element().cast(pl.Int32, strict=False))
    shown = ranks.list.len()
    misses = ranks.list.max() >= shown.cast(pl.Int32)
    cut = (
        pl.when(pl.col("ranks").str.ends_with("...") | misses)
        .then(pl.lit(True))
        .when(shown != _RING_SHOWN)
        .then(pl.lit(False))
        .otherwise(pl.lit(None, dtype=pl.Boolean))
    )
    yield "nccl_rings", rows.with_columns(cut=cut, ranks=ranks)


def _trees(rows: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    one = rows.with_columns(tree=pl.col("trees").str.extract_all(r"\[[0-9]+\] [^ ]+")).explode("tree", empty_as_null=False)
    parts = one.get_column("tree").str.extract_groups(
        r"^\[(?P<channel>[0-9]+)\] (?P<down>[0-9/-]+[0-9])->(?P<rank>[0-9]+)->(?P<up>-?[0-9]+)(?:\|.*)?$"
    )
    whole = pl.concat([one, parts.struct.unnest()], how="horizontal").filter(pl.col("rank").is_not_null())
    down = pl.col("down").str.split("/").list.eval(pl.element().cast(pl.Int32, strict=False)).list.filter(pl.element() >= 0)
    up = pl.col("up").cast(pl.Int32, strict=False)
    yield "nccl_trees", whole.with_columns(down=down, up=pl.when(up >= 0).then(up))


def _channels(rows: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    yield "nccl_channels", rows.with_columns(pl.col("collnet", "nvls").str.extract("^([0-9]+)"))


def _channels_rccl(rows: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    yield "nccl_channels", rows.rename({"collnet_number": "collnet", "nvls_number": "nvls"})


def _tuning(rows: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    algo, proto = _column(rows, "algo").str.to_uppercase(), _column(rows, "proto").str.to_uppercase()
    channels = (
        pl.col("high").cast(pl.Int32, strict=False) - pl.col("low").cast(pl.Int32, strict=False) + 1
        if "high" in rows.columns
        else pl.lit(None, dtype=pl.Int32)
    )
    yield "nccl_tuning", rows.with_columns(algo=algo.replace(_ALGORITHMS), proto=proto.replace(_PROTOCOLS), channels=channels)


def _tuning_kernel(rows: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    yield "nccl_tuning", rows.with_columns(algo=pl.col("engine").str.to_uppercase())


def _env(rows: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    kind = rows.item(0, "kind")
    name = pl.coalesce([pl.col(c) for c in ("setting", "config_name", "name") if c in rows.columns] or [pl.lit(None, dtype=pl.String)])
    if kind.startswith("env_config"):
        name = "Comm config " + name
    # Whole numbers are printed with a full stop, texts without (2.4+).
    value = pl.coalesce([pl.col(c) for c in ("value", "bad_value") if c in rows.columns]).str.replace(r"^(-?[0-9]+)\.$", "$1")
    masked = pl.when(name.str.contains(_PRIVATE)).then(pl.lit(_MASK)).otherwise(value)
    yield "nccl_env", rows.with_columns(name=name, value=masked, invalid=pl.lit(kind == "env_invalid"))


def _network(rows: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    item = rows.item(0, "kind").removeprefix("net_").removesuffix("_list").replace("_", "-")
    names = [c for c in ("name", "network", "plugin") if c in rows.columns]
    values = [c for c in ("state", "value", "peer") if c in rows.columns]
    text = pl.concat_str(values, separator=" ", ignore_nulls=True) if values else pl.lit(None, dtype=pl.String)
    yield (
        "nccl_network",
        rows.with_columns(
            item=pl.lit(item),
            name=pl.coalesce(names) if names else pl.lit(None, dtype=pl.String),
            value=pl.when(text != "").then(text),
        ),
    )


def _ib_devices(rows: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    """One row per device of the list, one for the out-of-band interface, one that says none where the list is empty."""
    distinct = rows.select("message").unique(maintain_order=True)
    found = [(message, *device) for (message,) in distinct.iter_rows() for device in _devices(message)]
    names = ["message", "port", "name", "link"]
    devices = pl.DataFrame(found, schema=dict.fromkeys(names, pl.String), orient="row")
    listed = rows.join(devices, on="message", how="left", maintain_order="left")
    value = pl.when(pl.col("message").str.contains("[RO]", literal=True)).then(pl.lit("relaxed-ordering"))
    yield (
        "nccl_network",
        listed.with_columns(item=pl.when(pl.col("name").is_null()).then(pl.lit("ib-none")).otherwise(pl.lit("ib-device")), value=value),
    )
    oob = rows.filter(pl.col("oob_name").is_not_null())
    yield "nccl_network", oob.with_columns(item=pl.lit("ib-oob"), name="oob_name", address="oob_address")


#: A device of the list, or several that are merged to one; what stands in ``ib_devices`` of the grammar, which Lark would take longer to
#: load.
_LISTED = re.compile(r"(\[[0-9]+\])(?:=\{([^}]*)\}|([0-9A-Za-z_+.-]+(?::[0-9]+)*/[A-Za-z]+))")
_MERGED = re.compile(r"\[[0-9]+\] ([0-9A-Za-z_+.-]+(?::[0-9]+)*/[A-Za-z]+)")


def _devices(message: str) -> list[tuple[str, str, str]]:
    """Index in the list, 'mlx5_0:1' and link of every device; merged devices share an index. ``message`` is one of that kind."""
    out: list[tuple[str, str, str]] = []
    for index, several, single in _LISTED.findall(message):
        for device in _MERGED.findall(several) or [single]:
            name, _, link = device.rpartition("/")
            out.append((index.strip("[]"), name, link))
    return out


def _socket_interfaces(rows: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    one = rows.with_columns(entry=pl.col("interfaces").str.extract_all(r"\[[0-9]+\][^ ]+")).explode("entry", empty_as_null=False)
    yield (
        "nccl_network",
        one.with_columns(
            item=pl.lit("socket-interface"),
            port=pl.col("entry").str.extract(r"^\[([0-9]+)\]"),
            name=pl.col("entry").str.extract(r"^\[[0-9]+\]([^:]+):"),
            address=pl.col("entry").str.extract(r"^\[[0-9]+\][^:]+:(.*)$"),
        ),
    )


def _note(rows: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    """The first two columns that are no number become ``a`` and ``b``."""
    kind = rows.item(0, "kind")
    fields = [c for c in load("nccl").kinds[kind].columns if c != "number"]
    named = {short: pl.col(column) for short, column in zip("ab", fields, strict=False)}
    yield "nccl_notes", rows.with_columns(kind=pl.lit(kind.removeprefix("note_").replace("_", "-")), value=_column(rows, "number"), **named)


def _matrix(rows: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    yield "nccl_notes", rows.with_columns(kind=pl.lit("matrix"))


_BUILDERS: dict[str, Builder] = {
    "operation": _operation,
    "operation_cut": _operation,
    "operation_torn_root": _operation,
    "operation_torn_op": _operation,
    "operation_torn_count": _operation,
    "operation_torn": _operation,
    "operation_done": _operation,
    "call_op": _call,
    "call_cut": _call,
    "call_init": _call_init,
    "call_split": _call_split,
    "connection_p2p": _connection_p2p,
    "connection_shm": _connection_shm,
    "connection_net": _connection_net,
    "connection_collnet": _connection_collnet,
    "connection_disabled": _connection_disabled,
    "ring": _ring,
    "trees": _trees,
    "channels": _channels,
    "channels_rccl": _channels_rccl,
    "init": _init,
    "init_old": _init,
    "destroy": _destroy,
    "placement": _placement,
    "tuning": _tuning,
    "tuning_number": _tuning,
    "tuning_kernel": _tuning_kernel,
    "version": _version,
    "matrix": _matrix,
    "ib_devices": _ib_devices,
    "socket_interfaces": _socket_interfaces,
}
_BY_START: dict[str, Builder] = {"env_": _env, "net_": _network, "note_": _note}


_ERROR_COLUMNS = frozenset(("peer", "number", "code", "file", "file_line", "func"))


def errors_of(rows: pl.DataFrame, found: Extraction) -> pl.DataFrame:
    """Rows of ``nccl_errors``: every row of ``rows``, with the signature that its message matched, else 'other'."""
    kinds = load("nccl_errors").kinds
    frames: list[pl.DataFrame] = []
    for kind, frame in found.frames.items():
        told = [c for c in kinds[kind].columns if c not in _ERROR_COLUMNS]
        own = frame.rename({c: f"own_{c}" for c in frame.columns if c != "row"})
        joined = pl.concat([rows[own.get_column("row")], own], how="horizontal")
        for column in ("file", "file_line", "func"):
            if f"own_{column}" in own.columns:
                joined = joined.with_columns(pl.coalesce(pl.col(f"own_{column}"), pl.col(column).cast(pl.String)).alias(column))
        detail = (
            pl.concat_str([pl.col(f"own_{c}").str.strip_chars() for c in told], separator=" ", ignore_nulls=True)
            if told
            else pl.lit(None, dtype=pl.String)
        )
        if kind.startswith("ib_completion"):
            detail = pl.col("own_rest").str.extract(r"hca ([0-9A-Za-z_.:+-]+)")
        frames.append(
            TABLES["nccl_errors"].conform(
                joined.with_columns(
                    kind=pl.lit(_signature(kind)),
                    detail=pl.when(detail != "").then(detail),
                    peer=_column(joined, "own_peer"),
                    number=_column(joined, "own_number"),
                    code=_column(joined, "own_code"),
                )
            )
        )
    rest = rows.filter(found.kind.is_null())
    frames.append(TABLES["nccl_errors"].conform(rest.with_columns(kind=pl.lit("other"))))
    retried = (pl.col("kind") == "ib-modify-qp") & pl.col("message").str.contains("retrying", literal=True)
    # The thread of RAS (NCCL 2.24 and later, src/ras) says what it lacks, a port that another process holds above all, and the job goes on
    # without it.
    of_ras = pl.col("file").fill_null("").str.contains(r"(?:^|/)ras/\w+\.cc$") & ~pl.col("kind").str.starts_with("ras-")
    return (
        pl.concat(frames)
        .with_columns(kind=pl.when(retried).then(pl.lit("ib-qp-retry")).when(of_ras).then(pl.lit("ras-own")).otherwise("kind"))
        .sort("line_no", maintain_order=True)
    )


def _signature(kind: str) -> str:
    return kind.rstrip("0123456789").rstrip("_").replace("_", "-")
