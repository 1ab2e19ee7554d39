"""Load on the upload page, over loopback: ``python -m tests.benchmarks.bench_serve [--uploads 50] [--mb 20] [--gb 3]``.

Prints one JSON object: how long the list page takes when nothing else happens and while uploads run (same process, same run, so that the
ratio holds on any machine), how long the uploads took, and the most memory that the web process ever held.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

from nccl_forensics.serve.database import Database
from nccl_forensics.serve.folders import Folders, new_identifier
from nccl_forensics.serve.incidents import EvidenceFile, Incidents
from nccl_forensics.serve.index import Index
from tests.serve.running import Running, running

_HEAD = b'--b\r\nContent-Disposition: form-data; name="file"; filename="evidence.bin"\r\n\r\n'
_TAIL = b"\r\n--b--\r\n"
_PIECE = 256 << 10


def main() -> None:
    """Measure, and print the figures."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--uploads", type=int, default=50)
    options.add_argument("--mb", type=float, default=20)
    options.add_argument("--gb", type=float, default=3)
    options.add_argument("--incidents", type=int, default=500)
    options.add_argument("--client", nargs=3, metavar=("URL", "COUNT", "BYTES"), help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.client:
        _clients(given.client[0], int(given.client[1]), int(given.client[2]))
        return
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        _fill(data, given.incidents)
        with running(data) as service:
            figures = measure(service, given.uploads, int(given.mb * 1e6), int(given.gb * 1e9))
    figures["load_average_1_min"] = round(os.getloadavg()[0], 1)
    figures["processors"] = os.cpu_count()
    print(json.dumps(figures, indent=2))


def measure(service: Running, uploads: int, upload_bytes: int, large_bytes: int) -> dict[str, object]:
    """All figures."""
    _time_pages(service, 20)
    idle = _time_pages(service, 100)
    before = _peak(service)
    with _start_clients(service, uploads, upload_bytes) as clients:
        began = time.monotonic()
        busy: list[float] = []
        while clients.poll() is None:
            busy += _time_pages(service, 5)
        seconds = time.monotonic() - began
    assert clients.returncode == 0
    after_many = _peak(service)
    for one in service.client.get("/api/incidents", params={"limit": 200}).json()["incidents"]:
        if one["files"] and one["size_bytes"] >= upload_bytes:
            service.client.delete(f"/api/incidents/{one['id']}")
    with _start_clients(service, 1, large_bytes) as clients:
        began = time.monotonic()
        clients.wait()
        large_seconds = time.monotonic() - began
    assert clients.returncode == 0
    return {
        "list_page_ms": {
            "idle_p50": _ms(idle, 0.5),
            "idle_p95": _ms(idle, 0.95),
            "loaded_p50": _ms(busy, 0.5),
            "loaded_p95": _ms(busy, 0.95),
        },
        "list_page_requests_under_load": len(busy),
        "p95_ratio": round(_at(busy, 0.95) / _at(idle, 0.95), 2),
        "uploads": {
            "count": uploads,
            "mb_each": upload_bytes / 1e6,
            "seconds": round(seconds, 2),
            "mb_per_s": round(uploads * upload_bytes / 1e6 / seconds, 1),
        },
        "large_upload": {
            "gb": large_bytes / 1e9,
            "seconds": round(large_seconds, 2),
            "mb_per_s": round(large_bytes / 1e6 / large_seconds, 1),
        },
        "web_process_peak_mb": {"idle": before, "after_uploads": after_many, "after_large_upload": _peak(service)},
    }


def _fill(data: Path, count: int) -> None:
    """A store as it is after some months."""
    folders = Folders(data)
    folders.make()
    incidents = Incidents(Database(folders.database))
    for n in range(count):
        host, identifier = f"node-{n % 37:02}", new_identifier()
        summary = f"rank {n % 64} skipped all_reduce #{n} of process group default_pg (0). The others wait in it."
        verdict = {
            "status": "explained",
            "cause": "collective-skipped",
            "confidence": "high",
            "summary": summary,
            "culprits": [{"rank": n % 64, "host": host}],
        }
        subjects = (
            ("cause", "collective-skipped", True),
            ("host", host, True),
            *(("host", f"node-{m:02}", False) for m in range(64) if f"node-{m:02}" != host),
        )
        incidents.add(identifier, f"incident {n}", f"job-{n % 5}", [EvidenceFile("incident.tar.gz", 1_000_000)])
        incidents.take()
        incidents.finish(identifier, Index(verdict, None, subjects, host, summary))
    incidents.database.close()


def _time_pages(service: Running, count: int) -> list[float]:
    out = []
    for _ in range(count):
        began = time.perf_counter()
        answer = service.client.get("/")
        out.append(time.perf_counter() - began)
        assert answer.status_code == 200
        time.sleep(0.01)
    return out


def _start_clients(service: Running, count: int, size: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "tests.benchmarks.bench_serve", "--client", service.url, str(count), str(size)])


def _clients(url: str, count: int, size: int) -> None:
    """Uploads side by side; exits with 1 if one of them is not accepted."""
    address = urlsplit(url)
    failures: list[object] = []

    def upload() -> None:
        connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=600)
        connection.putrequest("POST", "/api/incidents")
        connection.putheader("Content-Type", "multipart/form-data; boundary=b")
        connection.putheader("Content-Length", str(len(_HEAD) + size + len(_TAIL)))
        connection.endheaders(_HEAD)
        piece, left = os.urandom(_PIECE), size
        while left:
            connection.send(piece[: min(left, _PIECE)])
            left -= min(left, _PIECE)
        connection.send(_TAIL)
        answer = connection.getresponse()
        if answer.status != 202:
            failures.append((answer.status, answer.read()))
        connection.close()

    threads = [threading.Thread(target=upload) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        sys.exit(f"not accepted: {failures[:3]}")


def _peak(service: Running) -> float:
    rows = Path(f"/proc/{service.process.pid}/status").read_text(encoding="ascii").splitlines()
    return round(next(int(r.split()[1]) for r in rows if r.startswith("VmHWM:")) * 1024 / 1e6, 1)


def _at(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def _ms(values: list[float], share: float) -> float:
    return round(_at(values, share) * 1000, 1)


if __name__ == "__main__":
    main()
