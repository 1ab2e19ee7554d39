"""What leaves the program, at the level asked for: secrets masked always, and with ``identity`` names replaced by pseudonyms.

Works on finished values (the report, what stands beside it, a gate) and on tables, after everything was judged: no verdict can depend on
it. Words of the contract (causes, rules, statuses, times) pass unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Literal, TypeVar, cast

import polars as pl

from nccl_forensics.masking import map_lists, mask
from nccl_forensics.pseudonyms import NAME_SIGNS, USER_SIGNS, Pseudonyms
from nccl_forensics.store import Store
from nccl_forensics.values.hostlist import expand

Level = Literal["secrets", "identity"]
T = TypeVar("T")

#: Keys and fields whose values are words of the contract, numbers as text, or our own: they pass as they are.
_WORDS = frozenset(
    {
        "schema",
        "generator",
        "version",
        "status",
        "cause",
        "confidence",
        "severity",
        "kind",
        "rule",
        "code",
        "id",
        "because",
        "explains",
        "explained_by",
        "finding",
        "action",
        "answer",
        "outcome",
        "format",
        "formats",
        "window",
        "collective",
        "dtype",
        "op",
        "area",
        "direction",
        "encoding",
        "state",
        "role",
        "unit",
        "anchor",
        "exit_code",
        "fail_on",
        "thresholds",
        "metrics",
        "missing",
        "started_at",
        "ended_at",
        "time",
        "until",
        "run",
        "attempt",
        "priority",
        "redaction",
        "required",
        "transport",
        "network",
        "level",
        "nccl_version",
        "nccl_versions",
        "torch_versions",
        "backends",
        "backend",
    }
)
#: Keys, fields and columns that hold paths, hosts and users.
_PATHS = frozenset({"path", "looked_in", "inputs"})
_HOSTS = frozenset({"host", "hosts", "hint_host", "failed_host", "node", "nodes", "pod"})
_USERS = frozenset({"owner", "by", "reason_by"})
#: Columns of single tables that name hosts too.
_HOST_COLUMNS = frozenset({("host_names", "names"), ("pings", "target"), ("port_probes", "target"), ("pings", "reporter")})
#: Columns that name a job, or the space in which a site keeps its jobs.
_NAME_COLUMNS = frozenset({("scheduler_jobs", "name"), ("pods", "container")})
#: Variables of an environment that name a job, an experiment or a model.
_NAME_VARIABLES = (
    *("SLURM_JOB_NAME", "SLURM_JOB_ACCOUNT", "SBATCH_JOB_NAME", "PBS_JOBNAME", "LSB_JOBNAME", "JOB_NAME", "RUN_NAME", "EXPERIMENT_NAME"),
    *(
        "MODEL_NAME",
        "MODEL_PATH",
        "PROJECT_NAME",
        "WANDB_PROJECT",
        "WANDB_ENTITY",
        "WANDB_NAME",
        "WANDB_RUN_GROUP",
        "MLFLOW_EXPERIMENT_NAME",
    ),
    *("COMET_PROJECT_NAME", "HF_MODEL_ID"),
)
_SPACE_VARIABLES = ("POD_NAMESPACE", "KUBERNETES_NAMESPACE", "NAMESPACE")
#: Variables of an environment that name a user or a host.
_USER_VARIABLES = ("USER", "LOGNAME", "USERNAME", "SLURM_JOB_USER", "SUDO_USER", "NB_USER")
_HOST_VARIABLES = ("HOSTNAME", "HOST", "SLURMD_NODENAME", "NODE_NAME", "POD_NAME", "SLURM_JOB_NODELIST", "SLURM_NODELIST", "MASTER_ADDR")


class Redactor:
    """Applies one level to all that is handed to it; with ``identity`` the same name gets the same pseudonym everywhere.

    A class because the pseudonyms are shared by the report, the figures, the tables and the reports of a comparison.
    """

    def __init__(self, level: Level) -> None:
        self.level = level
        self._names = Pseudonyms() if level == "identity" else None
        self._fingerprints: dict[str, int] = {}

    def learn(self, *stores: Store, values: Iterable[object] = ()) -> None:
        """Take the names of hosts, users and paths from the tables' columns and from texts. Nothing to do where only secrets are masked."""
        if self._names is None:
            return
        for store in stores:
            for name in sorted(store.present | {"sources"}):
                self._learn_table(name, store.scan(name))
        for value in values:
            for key, text in _texts(value, ""):
                self._learn_text(key, text)

    def apply(self, value: T) -> T:
        """The same value with every text in it redacted: mappings, lists, tuples and frozen dataclasses, nested as they may be."""
        return cast(T, self._walk(value, ""))

    def report(self, report: Mapping[str, object]) -> dict[str, object]:
        """A report of the contract: redacted, with the level and how many names stand for others. Fingerprints are hashes of names that
        could be guessed, so they become numbers: the same for the same subject."""
        out = self.apply(dict(report))
        findings = out.get("findings")
        for finding in findings if self._names is not None and isinstance(findings, list) else []:
            finding["fingerprint"] = self._fingerprint(str(finding["fingerprint"]))
        out["redaction"] = {"level": self.level, "replaced": self._names.counts() if self._names is not None else {}}
        return out

    def _fingerprint(self, real: str) -> str:
        return f"{self._fingerprints.setdefault(real, len(self._fingerprints) + 1):016x}"

    def table(self, name: str, frame: pl.DataFrame) -> pl.DataFrame:
        """A table with the texts of its columns redacted, each distinct text once."""
        columns: list[pl.Series] = []
        for column in frame.get_columns():
            kind = column.name if name != "environment" or column.name != "value" else ""
            if column.dtype == pl.String and kind not in _WORDS:
                columns.append(self._column(column, kind))
            elif column.dtype == pl.List(pl.String) and kind not in _WORDS:
                columns.append(map_lists(column, partial(self._column, kind=kind)))
        return frame.with_columns(columns)

    def _column(self, column: pl.Series, kind: str) -> pl.Series:
        distinct = [str(v) for v in column.drop_nulls().unique(maintain_order=True)]
        changed = {v: new for v in distinct if (new := self._text(v, kind)) != v}
        return column.replace(list(changed), list(changed.values())) if changed else column

    def _text(self, text: str, key: str) -> str:
        masked = mask(text)
        if self._names is None:
            return masked
        if key in _HOSTS:
            return self._names.host(masked)
        if key in _USERS:
            return self._names.user(masked)
        return self._names.path(masked) if key in _PATHS and _is_path(masked) else self._names.text(masked)

    def _walk(self, value: object, key: str) -> object:
        if isinstance(value, str):
            return value if key in _WORDS or key.endswith("_known_by") else self._text(value, key)
        if isinstance(value, Mapping):
            out = {k: self._walk(v, k if isinstance(k, str) else key) for k, v in value.items()}
            if "masked" in out and out.get("text") != value.get("text"):
                out["masked"] = True
            return out
        if isinstance(value, list):
            return [self._walk(v, key) for v in value]
        if isinstance(value, tuple):
            return tuple(self._walk(v, key) for v in value)
        if is_dataclass(value) and not isinstance(value, type):
            given = {f.name: getattr(value, f.name) for f in fields(value) if f.init}
            changed = {k: new for k, old in given.items() if (new := self._walk(old, k)) is not old}
            return replace(value, **changed) if changed else value
        return value

    def _learn_table(self, name: str, frame: pl.LazyFrame) -> None:
        assert self._names is not None
        schema = frame.collect_schema()
        for column, dtype in schema.items():
            if column in _WORDS or dtype not in (pl.String, pl.List(pl.String)):
                continue
            texts = frame.select(pl.col(column).explode() if dtype == pl.List(pl.String) else pl.col(column)).drop_nulls().unique()
            host = column in _HOSTS or (name, column) in _HOST_COLUMNS
            if host or column in _USERS or (name == "sources" and column == "path"):
                for value in texts.collect().to_series().sort().to_list():
                    self._learn_text("host" if host else column, str(value))
            else:
                if (name, column) in _NAME_COLUMNS:
                    self._names.learn_names(texts.collect().to_series().sort().to_list())
                elif column == "namespace":
                    self._names.learn("namespace", texts.collect().to_series().sort().to_list())
                signs = pl.concat_list(pl.col(column).str.extract_all(USER_SIGNS), pl.col(column).str.extract_all(NAME_SIGNS))
                told = texts.select(signs.alias(column)).explode(column).drop_nulls().unique().collect()
                for value in told.to_series().sort().to_list():
                    self._learn_text("", str(value))
        if {"name", "value"} <= set(schema.names()):
            wanted = [*_USER_VARIABLES, *_HOST_VARIABLES, *_NAME_VARIABLES, *_SPACE_VARIABLES]
            rows = frame.filter(pl.col("name").is_in(wanted)).select("name", "value").drop_nulls().unique().collect()
            for variable, value in sorted(rows.iter_rows()):
                if variable in _NAME_VARIABLES:
                    self._names.learn_names([value])
                elif variable in _SPACE_VARIABLES:
                    self._names.learn("namespace", [value])
                else:
                    self._names.learn(
                        "user" if variable in _USER_VARIABLES else "host", expand(value) if variable in _HOST_VARIABLES else [value]
                    )

    def _learn_text(self, key: str, text: str) -> None:
        assert self._names is not None
        if key in _HOSTS:
            self._names.learn("host", expand(text) if "[" in text else [text])
        elif key in _USERS:
            self._names.learn("user", [text])
        elif key in _PATHS and _is_path(text):
            self._names.learn_path(text)
        self._names.learn("user", _USER.findall(text))
        self._names.learn_names(_NAME.findall(text))


_USER = re.compile(USER_SIGNS)
_NAME = re.compile(NAME_SIGNS)


def _is_path(text: str) -> bool:
    """A path, not a sentence about where something was looked for."""
    return " " not in text.strip() or "/" in text


def _texts(value: object, key: str) -> Iterable[tuple[str, str]]:
    """All texts of a value with the key or field that they stand under."""
    if isinstance(value, str):
        if key not in _WORDS:
            yield key, value
    elif isinstance(value, Mapping):
        for k, v in value.items():
            yield from _texts(v, k if isinstance(k, str) else key)
    elif isinstance(value, list | tuple):
        for v in value:
            yield from _texts(v, key)
    elif is_dataclass(value) and not isinstance(value, type):
        for f in fields(value):
            yield from _texts(getattr(value, f.name), f.name)


__all__ = ["Level", "Redactor"]
