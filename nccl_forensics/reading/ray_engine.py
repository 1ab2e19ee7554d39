"""Reading on a Ray cluster: sources are read by tasks on its nodes, views and rules run here.

Evidence and scratch lie best on a file system that the nodes share: then sources are read where they lie, and big tables are written there
and scanned from there. Plain objects of a store are fetched by the task that reads them. What a node cannot see is sent to it with the
task; tables that this machine could not see come back by message, or through an object store where one is named. Each result is the same as
that of the local engine.

A task whose worker dies (killed, out of memory, a lost node) is tried again. Sources that travelled together are then read one by one, and
one whose own worker dies twice becomes a source with an error.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import ClassVar

from nccl_forensics.cache import Packed, fingerprint
from nccl_forensics.errors import ForensicsError, UsageError
from nccl_forensics.formats import all_formats
from nccl_forensics.reading import remote
from nccl_forensics.reading.engine import LocalEngine, Part, Ref, Result, attempt, batches, failed, packed

#: A source that the nodes cannot see is sent to them up to this size; a larger one is read here.
_SENT_BYTES = 256 << 20
#: Tasks under way for each CPU of the cluster: enough to keep all busy, few enough that what is sent does not pile up.
_PER_CPU = 4
_LEAST_UNDER_WAY = 16
_DEATHS = 2


@dataclass(frozen=True, slots=True)
class Stored:
    """A big frame as an object in a store."""

    url: str


@dataclass(frozen=True, slots=True)
class _Unseen:
    """A source that the node cannot see."""

    ref: Ref


@dataclass(frozen=True, slots=True)
class _Job:
    """Sources for one task; ``contents`` where they are sent along. ``deaths`` counts workers that a source alone took down."""

    refs: tuple[Ref, ...]
    contents: tuple[bytes, ...] = ()
    deaths: int = 0


@dataclass(frozen=True, slots=True)
class _Terms:
    """What holds for every task."""

    token: Path
    fingerprint: str
    store: str | None
    memory_bytes: int
    seconds_per_source: float
    seconds_per_gb: float


class _OtherVersion(Exception):
    """The node's installation would read differently."""


@dataclass(frozen=True, slots=True)
class RayEngine:
    """Maps reading over a Ray cluster.

    ``address`` is that of a running cluster (``auto``, ``host:6379``, ``ray://host:10001``); without it ``RAY_ADDRESS`` counts, and without
    that a cluster is started on this machine. ``store`` is a URL for big tables where no file system is shared.
    """

    fetches: ClassVar[bool] = True
    address: str | None = None
    store: str | None = None
    memory_bytes: int = 6 << 30
    seconds_per_source: float = 120.0
    seconds_per_gb: float = 600.0

    def map(self, function: Callable[[Ref], Result], refs: Sequence[Ref]) -> Iterator[Result]:
        """Results as they come. Raises ``UsageError`` where there is no Ray, no cluster, or another version of the program on a node."""
        if not refs:
            return
        ray = _library()
        with contextlib.ExitStack() as open_things:
            # Ray tells on standard output what became of workers; that is for results alone.
            open_things.enter_context(contextlib.redirect_stdout(sys.stderr))
            open_things.enter_context(_connected(ray, self.address))
            scratch = refs[0].scratch
            token = scratch / f"{uuid.uuid4().hex}.token"
            token.write_bytes(b"")
            open_things.callback(token.unlink, missing_ok=True)
            place = f"{self.store.rstrip('/')}/{uuid.uuid4().hex}" if self.store is not None else None
            if place is not None:
                open_things.callback(remote.remove, place)
            terms = _Terms(token, fingerprint(), place, self.memory_bytes, self.seconds_per_source, self.seconds_per_gb)
            for result in self._run(ray, function, refs, terms):
                yield _at_home(result, scratch)

    def _run(self, ray: ModuleType, function: Callable[[Ref], Result], refs: Sequence[Ref], terms: _Terms) -> Iterator[Result]:
        # One thread of Polars for each task, as in the local engine: many sources are read side by side.
        task = ray.remote(max_retries=0, runtime_env={"env_vars": {"POLARS_MAX_THREADS": "1"}})(_task)
        room = max(_LEAST_UNDER_WAY, int(_PER_CPU * ray.cluster_resources().get("CPU", 1)))
        waiting: deque[_Job] = deque(_Job(batch) for batch in batches(refs))
        under_way: dict[object, _Job] = {}
        here: list[Ref] = []
        try:
            while waiting or under_way:
                while waiting and len(under_way) < room:
                    job = waiting.popleft()
                    under_way[task.remote(function, job.refs, job.contents, terms)] = job
                done, _ = ray.wait(list(under_way), num_returns=1)
                for future in done:
                    job = under_way.pop(future)
                    try:
                        outcomes = ray.get(future)
                    except ray.exceptions.RayTaskError as problem:
                        cause = problem.cause
                        if isinstance(cause, _OtherVersion):
                            raise UsageError(f"--engine ray: {cause}") from problem
                        yield from (failed(ref, f"{type(cause).__name__}: {cause}"[:300]) for ref in job.refs)
                        continue
                    except ray.exceptions.RayError as problem:
                        lost, again = _after_a_death(job, type(problem).__name__)
                        waiting.extendleft(again)
                        yield from lost
                        continue
                    unseen: list[Ref] = []
                    for outcome in outcomes:
                        if isinstance(outcome, _Unseen):
                            unseen.append(outcome.ref)
                        else:
                            yield outcome
                    small = [ref for ref in unseen if ref.bytes <= _SENT_BYTES]
                    here += [ref for ref in unseen if ref.bytes > _SENT_BYTES]
                    if small:
                        waiting.append(_Job(tuple(small), tuple(ref.file.read_bytes() for ref in small)))
        except BaseException:
            for future in under_way:
                with contextlib.suppress(Exception):
                    ray.cancel(future, force=True)
            raise
        local = LocalEngine(0, self.memory_bytes, self.seconds_per_source, self.seconds_per_gb)
        yield from local.map(function, here)


def _after_a_death(job: _Job, what: str) -> tuple[list[Result], list[_Job]]:
    """What is lost and what is tried again when the worker of a job has died."""
    if len(job.refs) > 1:
        return [], [_Job((ref,), job.contents[n : n + 1]) for n, ref in enumerate(job.refs)]
    deaths = job.deaths + 1
    if deaths < _DEATHS:
        return [], [replace(job, deaths=deaths)]
    return [failed(job.refs[0], f"its reader died {deaths} times, or met its bound of time or memory ({what})")], []


def _library() -> ModuleType:
    try:
        import ray
        import ray.exceptions
    except ImportError as problem:
        raise UsageError("--engine ray: Ray is not installed (pip install 'nccl-forensics[ray]')") from problem
    module: ModuleType = ray
    return module


@contextlib.contextmanager
def _connected(ray: ModuleType, address: str | None) -> Iterator[None]:
    """A connection to the cluster; one that the caller's program has already is used and left open."""
    if ray.is_initialized():
        yield
        return
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    start = {} if address or os.environ.get("RAY_ADDRESS") else {"include_dashboard": False}
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # evidence is read offline: nothing is told to anybody
    try:
        ray.init(address=address, **quiet, **start)
    except (ConnectionError, ValueError, RuntimeError) as problem:
        raise UsageError(
            f"--engine ray: no cluster at {address or os.environ.get('RAY_ADDRESS') or 'this machine'}: {problem}"
        ) from problem
    try:
        yield
    finally:
        ray.shutdown()


def _task(function: Callable[[Ref], Result], refs: tuple[Ref, ...], contents: tuple[bytes, ...], terms: _Terms) -> list[Result | _Unseen]:
    """What a worker does: read sources that it sees, or that were sent with their content."""
    if fingerprint() != terms.fingerprint:
        raise _OtherVersion(
            "a node of the cluster has another version of nccl-forensics, of its extensions or of the libraries that it reads with"
        )
    all_formats()  # loaded once in the life of a worker, and not in the time of a source
    out: list[Result | _Unseen] = []
    shared = terms.token.exists()
    with tempfile.TemporaryDirectory(prefix="nccl-forensics-") as name, _bounded(terms, sum(r.bytes for r in refs)):
        own = Path(name)
        for number, ref in enumerate(refs):
            place = ref if shared else replace(ref, scratch=own)
            if contents:
                place = replace(place, file=own / f"{number}.source")
                place.file.write_bytes(contents[number])
            elif not ref.file.exists() and ref.url is not None:
                place = replace(place, file=own / f"{number}.source")
                try:
                    remote.get(ref.url, place.file)
                except ForensicsError as problem:
                    out.append(failed(ref, str(problem)))
                    continue
            elif not ref.file.exists():
                out.append(_Unseen(ref))
                continue
            result = attempt(function, place)
            if not shared:
                frames = {table: _sent(part, terms.store) for table, part in result.frames.items()}
                result = replace(result, frames=frames)  # type: ignore[arg-type]  # what is stored is fetched when it arrives
            out.append(result)
            if place.file != ref.file:
                place.file.unlink(missing_ok=True)
    return out


def _sent(part: Part, store: str | None) -> Part | Stored:
    """A frame on its way to a machine that does not see this one's files."""
    if isinstance(part, Packed):
        return part
    if store is None:
        return packed(part)
    url = f"{store}/{part.name}"
    remote.put(part, url)
    return Stored(url)


def _at_home(result: Result, scratch: Path) -> Result:
    """The result with what was stored fetched into scratch."""
    frames: dict[str, Part] = {}
    for table, part in result.frames.items():
        if isinstance(part, Stored):
            target = scratch / remote.last_name(part.url)
            remote.get(part.url, target)
            frames[table] = target
        else:
            frames[table] = part
    return replace(result, frames=frames)


@contextlib.contextmanager
def _bounded(terms: _Terms, size: int) -> Iterator[None]:
    """Bounds of memory and time while a task runs. The alarm ends the process whatever it is in the middle of: Ray starts another."""
    with contextlib.ExitStack() as undo:
        with contextlib.suppress(ImportError, ValueError, OSError):
            import resource

            soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
            resource.setrlimit(resource.RLIMIT_DATA, (terms.memory_bytes, hard))
            undo.callback(resource.setrlimit, resource.RLIMIT_DATA, (soft, hard))
        with contextlib.suppress(AttributeError, ValueError):  # no such signal, or not the main thread
            before = signal.signal(signal.SIGALRM, signal.SIG_DFL)
            undo.callback(signal.signal, signal.SIGALRM, before)
            signal.setitimer(signal.ITIMER_REAL, terms.seconds_per_source + terms.seconds_per_gb * size / 1e9)
            undo.callback(signal.setitimer, signal.ITIMER_REAL, 0)
        yield


__all__ = ["RayEngine", "Stored"]
