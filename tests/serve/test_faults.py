"""What goes wrong: killed services, full disks, analyses without memory, clients that stall. Each ends cleanly, and others go on."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.serve.running import Running, running, tarball


def half_sent(service: Running, path: str = "/api/incidents", sent: bytes = b"x" * 5000, length: int = 1 << 20) -> socket.socket:
    """A connection on which an upload has begun and does not go on."""
    host, port = service.url.removeprefix("http://").split(":")
    held = socket.create_connection((host, int(port)), timeout=30)
    part = b'--b\r\nContent-Disposition: form-data; name="file"; filename="x.tar"\r\n\r\n' + sent
    held.sendall(
        f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: multipart/form-data; boundary=b\r\nContent-Length: {length}\r\n\r\n".encode()
        + part
    )
    return held


def until(condition: object, seconds: float = 60) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.02)


def uploading(service: Running) -> list[str]:
    return [f for f in service.files() if f.startswith("uploads/")]


def test_a_killed_service_forgets_no_finished_incident_and_reads_the_rest_again(tmp_path: Path) -> None:
    with running(tmp_path / "data") as service:
        data = tarball()
        done = service.upload(("incident.tar.gz", data), title="finished")
        service.wait(done)
        report = service.client.get(f"/api/incidents/{done}/report.json").content
        url = service.client.post("/api/uploads", json={"files": [{"name": "x.tar.gz", "bytes": len(data)}]}).json()["url"]
        assert service.client.put(f"{url}/files/0?offset=0", content=data[:1000]).status_code == 200
        under_way = service.upload(("incident.tar.gz", data), title="running")
        service.wait(under_way, "running")
        waiting = service.upload(("waiting.bin", bytes(range(256)) * 9), title="waiting")
        held = half_sent(service)
        until(lambda: len(uploading(service)) == 2)
        children = _children(service.process.pid)
        assert children

        service.restart(signal.SIGKILL)

        # Nobody of the old service goes on writing.
        until(lambda: not any(Path(f"/proc/{pid}").exists() and _alive(pid) for pid in children))
        held.close()
        assert service.client.get(f"/api/incidents/{done}/report.json").content == report
        assert service.wait(under_way)["verdict"]["cause"] == "rank-died"  # type: ignore[index]
        # The form that was cut off is gone; what can be resumed stands where it stopped.
        assert len(uploading(service)) == 1
        assert service.client.get(url).json()["files"][0]["received"] == 1000
        assert service.client.put(f"{url}/files/0?offset=1000", content=data[1000:]).status_code == 200
        resumed = service.client.post(f"{url}/finish").json()["id"]
        assert service.client.get(f"/api/incidents/{resumed}").json()["status"] in ("queued", "running")
        assert service.client.delete(f"/api/incidents/{resumed}").status_code == 204
        assert service.wait(waiting)["error_code"] == "unusable"

        # And in good order: the analysis under way waits for the next start.
        last = service.upload(("incident.tar.gz", data))
        service.wait(last, "running")
        with service.client.stream("GET", "/api/events") as stream:
            next(stream.iter_lines())
            began = time.monotonic()
            assert service.end(signal.SIGTERM) == 143
            assert time.monotonic() - began < 30
        service.start()
        assert (
            not [f for f in service.files() if f.startswith("scratch/")]
            or service.client.get(f"/api/incidents/{last}").json()["status"] == "running"
        )
        service.client.post(f"/api/incidents/{last}/cancel")


def _children(pid: int) -> list[int]:
    return [int(p) for t in Path(f"/proc/{pid}/task").iterdir() for p in (t / "children").read_text().split()]


def _alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_a_client_that_stalls_is_let_go_and_leaves_nothing(tmp_path: Path) -> None:
    with running(tmp_path / "data", "--stall-seconds", "1") as service:
        held = half_sent(service)
        until(lambda: bool(uploading(service)))
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while piece := held.recv(4096):
                answer += piece
        held.close()
        assert answer.startswith(b"HTTP/1.1 408")
        assert b'"stalled"' in answer
        until(lambda: not uploading(service))
        # A connection on which no request comes, or only its beginning.
        for beginning in (b"", b"GET / HT"):
            quiet = socket.create_connection((service.url.split("/")[2].split(":")[0], int(service.url.rsplit(":", 1)[1])), timeout=30)
            quiet.sendall(beginning)
            assert quiet.recv(10) == b""
            quiet.close()
        # A client that goes away in the middle.
        gone = half_sent(service)
        until(lambda: bool(uploading(service)))
        gone.close()
        until(lambda: not uploading(service))
        assert service.client.get("/healthz").status_code == 200
        assert service.client.get("/api/incidents").json()["total"] == 0


def test_an_analysis_that_needs_too_much_memory_fails_alone(tmp_path: Path) -> None:
    with running(tmp_path / "data", "--analysis-memory-mb", "150") as service:
        small = service.upload(("note.log", b"[2026-11-21 00:00:01] some text\n" * 10), title="small")
        line = b"node-1:100:100 [0] NCCL INFO AllReduce: opCount %d sendbuff 0x7f0 recvbuff 0x7f1 count 4096 datatype 7 op 0 root 0 comm 0x55 [nranks=8] stream 0x1\n"
        big = service.upload(("incident.tar.gz", tarball(more={"big.log": b"".join(line % n for n in range(1_800_000))})), title="big")
        ended = service.wait(big)
        if ended["status"] == "done":
            # Its reader met its own bound between two looks at it: that source is lost, and the report says so.
            report = service.client.get(f"/api/incidents/{big}/report.json").json()
            [lost] = [s["error"] for s in report["sources"] if s["path"].endswith("big.log")]
            assert lost is not None
            assert "memory" in lost
        else:
            assert (ended["status"], ended["error_code"]) == ("failed", "memory")
            assert "memory" in str(ended["error"])
        assert service.wait(small)["error_code"] in (None, "unusable")
        assert not [f for f in service.files() if f.startswith("scratch/")]
        assert service.client.get("/healthz").status_code == 200


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 12 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    if (
        mount is None
        or subprocess.run([mount, "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(folder)], capture_output=True, check=False).returncode
    ):
        pytest.skip("a small tmpfs cannot be mounted here (needs the right to mount)")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def test_a_full_disk_refuses_uploads_and_nothing_else(small_disk: Path) -> None:
    with running(small_disk / "data", "--reserve-mb", "0") as service:
        finished = service.upload(("note.txt", b"x" * 1000))
        service.wait(finished)
        for _ in range(2):
            # Its length is not known before, so only the disk itself can stop it.
            with httpx.Client(base_url=service.url, timeout=60) as client, contextlib.suppress(httpx.WriteError):
                answer = client.post("/api/incidents", content=_endless(), headers={"Content-Type": "multipart/form-data; boundary=b"})
                assert (answer.status_code, answer.json()["code"]) == (507, "no-space")
            until(lambda: not uploading(service))
        begun = service.client.post("/api/uploads", json={"files": [{"name": "x", "bytes": 30 << 20}]})
        assert (begun.status_code, begun.json()["code"]) == (507, "no-space")
        assert service.client.get("/api/incidents").json()["total"] == 1
        assert service.client.get("/").status_code == 200
        # There is room again: the next one is taken.
        assert service.client.delete(f"/api/incidents/{finished}").status_code == 204
        service.upload(("note.txt", b"x" * 1000))


def _endless() -> Iterator[bytes]:
    yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="x.tar"\r\n\r\n'
    for _ in range(30):
        yield b"x" * (1 << 20)
    yield b"\r\n--b--\r\n"


def test_uploads_always_leave_the_reserve_free(tmp_path: Path) -> None:
    with running(tmp_path / "data", "--reserve-mb", "10000000") as service:
        answer = service.client.post("/api/incidents", files={"file": ("x", b"abc")})
        assert (answer.status_code, answer.json()["code"]) == (507, "no-space")
        assert not uploading(service)
        # A data folder belongs to one process.
        with pytest.raises(AssertionError, match="another process serves this data folder"):
            Running(service.data)
