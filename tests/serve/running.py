"""A service in a process of its own, over a real socket, and evidence to hand to it."""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from tests.corpus import ROOT

INCIDENTS = ROOT / "fixtures" / "incidents"
_READY_SECONDS = 90


class Running:
    """A running service. ``client`` talks to it."""

    def __init__(self, data: Path, *words: str, token: str | None = None) -> None:
        self.data, self.words, self.token = data, words, token
        self.start()

    def start(self) -> None:
        """Start, and wait until it answers."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("NCCL_FORENSICS_")}
        if self.token is not None:
            environment["NCCL_FORENSICS_TOKEN"] = self.token
        self.log = (self.data.parent / f"{self.data.name}.log").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "nccl_forensics.cli", "serve", "--port", "0", "--data", str(self.data), *self.words],
            stdout=subprocess.PIPE,
            stderr=self.log,
            env=environment,
            cwd=ROOT,
            text=True,
        )
        assert self.process.stdout is not None
        found = re.search(r"at (http://\S+)/$", self.process.stdout.readline().strip())
        if found is None:
            self.process.wait(_READY_SECONDS)
            self.process.stdout.close()
            self.log.close()
            raise AssertionError(f"it did not start: {(self.data.parent / f'{self.data.name}.log').read_text()}")
        self.url = found[1]
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        self.client = httpx.Client(base_url=self.url, headers=headers, timeout=60)

    def end(self, number: int = signal.SIGTERM) -> int:
        """End it with a signal; returns the exit code."""
        self.client.close()
        self.process.send_signal(number)
        code = self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.log.close()
        return code

    def restart(self, number: int = signal.SIGKILL) -> None:
        """End it and start it again on the same data."""
        self.end(number)
        self.start()

    def upload(self, *files: tuple[str, bytes], **fields: str) -> str:
        """Hand in files as one incident; returns its id."""
        answer = self.client.post("/api/incidents", files=[("file", f) for f in files], data=fields)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def wait(self, identifier: str, *states: str, seconds: float = 120) -> dict[str, object]:
        """Wait until an incident is in one of the states (by default: at its end)."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            state: dict[str, object] = self.client.get(f"/api/incidents/{identifier}").json()
            if state["status"] in (states or ("done", "failed")):
                return state
            time.sleep(0.05)
        raise AssertionError(f"still {state}")

    def files(self) -> list[str]:
        """Every file below the data folder."""
        # A folder that the service removes meanwhile is no error of a walk.
        return sorted((Path(folder) / name).relative_to(self.data).as_posix() for folder, _, names in os.walk(self.data) for name in names)


@contextlib.contextmanager
def running(data: Path, *words: str, token: str | None = None) -> Iterator[Running]:
    """A service that is ended afterwards."""
    service = Running(data, *words, token=token)
    try:
        yield service
    finally:
        if service.process.poll() is None:
            service.end(signal.SIGKILL)


def tarball(incident: str = "killed-rank-4r", more: dict[str, bytes] | None = None) -> bytes:
    """A bundled incident's evidence as ``.tar.gz``."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as tar:
        tar.add(INCIDENTS / incident / "evidence", "evidence")
        for name, content in (more or {}).items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
