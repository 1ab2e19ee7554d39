"""One analysis in a process of its own: reads a job from standard input, says how far it is on standard output, and leaves files.

Standard input stays open as long as the service lives. When it closes, whatever the reason, this process and its readers end: a killed
service leaves nobody behind who writes.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

_SECONDS_BETWEEN = 0.1
#: The limit of one process is so many times what the analysis may hold in all.
BACKSTOP = 2


def main() -> None:
    """Run the job."""
    job = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_die_with_the_service, daemon=True).start()
    _bound(job["memory_bytes"])
    try:
        _analyze(job)
        answer: dict[str, object] = {"ended": "done"}
    except MemoryError:
        answer = {"ended": "failed", "code": "memory"}
    except Exception as problem:
        answer = _failure(problem)
    _say(answer)
    sys.stdout.flush()
    # Threads of libraries do not hold up the end.
    os._exit(0)


def _die_with_the_service() -> None:
    while os.read(0, 4096):
        pass
    # This process leads its group, so its readers go with it.
    with contextlib.suppress(AttributeError, OSError):
        if os.getpgid(0) == os.getpid():
            os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _bound(memory_bytes: int) -> None:
    """A backstop for memory, politeness towards the web process, and the first place when the system itself runs out of memory.

    The service ends this process when it and its readers hold too much. Until it looks, this limit holds; it stands above the bound
    because libraries that get no memory may wait for ever instead of failing.
    """
    with contextlib.suppress(AttributeError, OSError):
        os.nice(10)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (BACKSTOP * memory_bytes, BACKSTOP * memory_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _analyze(job: Mapping[str, object]) -> None:
    from nccl_forensics import api
    from nccl_forensics.config import Config, load
    from nccl_forensics.reporters import html, json_report, markdown
    from nccl_forensics.serve.index import index_of

    tell = _teller()
    tell("unpacking", 0, 0)
    inputs, title, file = job["inputs"], job["title"], job["config"]
    assert isinstance(inputs, list)
    assert isinstance(title, str)
    config = load(Path(file)) if isinstance(file, str) else Config()

    def read(stage: str, done: int, total: int) -> None:
        if stage != "reading":
            return
        tell("reading", done, total)
        if done == total:
            tell("judging", 0, 0)

    incident = api.analyze(
        inputs, title=title, overrides=config.thresholds, suppressions=config.suppressions, limits=config.limits, progress=read
    )
    tell("writing", 0, 0)
    folder = Path(str(job["output"]))
    folder.mkdir(mode=0o700, parents=True)
    index = index_of(incident.report)
    content = {
        "report.json": json_report.render(incident.report),
        "postmortem.md": markdown.render(incident.report, incident.extras).encode("utf-8", "replace"),
        "postmortem.html": html.render(incident.report, incident.extras).encode("utf-8", "replace"),
        "index.json": json.dumps(
            {
                "verdict": dict(index.verdict),
                "happened_ms": index.happened_ms,
                "subjects": index.subjects,
                "names": index.names,
                "text": index.text,
            }
        ).encode(),
    }
    for name, data in content.items():
        with (folder / name).open("xb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())


def _teller() -> Callable[[str, int, int], None]:
    """Says each stage, and within a stage how far it is, a few times a second."""
    last: list[tuple[str, float]] = [("", 0.0)]

    def tell(stage: str, done: int, total: int) -> None:
        now = time.monotonic()
        if stage != last[0][0] or done == total or now - last[0][1] >= _SECONDS_BETWEEN:
            last[0] = (stage, now)
            _say({"stage": stage, "done": done, "total": total})

    return tell


def _say(what: Mapping[str, object]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def _failure(problem: Exception) -> dict[str, object]:
    import traceback

    from nccl_forensics.errors import ForensicsError, LimitReached, OutputError, UnusableEvidence

    codes: tuple[tuple[type[Exception], str], ...] = ((UnusableEvidence, "unusable"), (LimitReached, "limit"), (OutputError, "no-space"))
    for kind, code in codes:
        if isinstance(problem, kind):
            return {"ended": "failed", "code": code, "error": str(problem)}
    if isinstance(problem, OSError) and problem.errno == 28:
        return {"ended": "failed", "code": "no-space"}
    if not isinstance(problem, ForensicsError):
        traceback.print_exc()
    return {"ended": "failed", "code": "defect", "error": f"{type(problem).__name__}: {problem}"[:500]}


if __name__ == "__main__":
    main()
