"""The OpenAPI document against the routes and against the answers of a running service; nothing that it allows brings about a server
error."""

from __future__ import annotations

import importlib.util
import random
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from nccl_forensics.serve.openapi import document
from nccl_forensics.serve.routes import ROUTES
from tests.serve.running import Running, tarball


def operations() -> set[tuple[str, str]]:
    paths = document()["paths"]
    assert isinstance(paths, dict)
    return {(method.upper(), path) for path, item in paths.items() for method in item if method != "parameters"}


def test_every_call_is_described_and_nothing_else() -> None:
    routed = {(method, re.sub(r":\w+}", "}", route.path)) for route in ROUTES for method in route.methods or () if method != "HEAD"}
    assert operations() == routed


def test_answers_are_as_described(service: Running) -> None:
    described = document()
    components = described["components"]

    def holds(answer: object, name: str) -> None:
        jsonschema.validate(answer, {"$ref": f"#/components/schemas/{name}", "components": components})

    accepted = service.client.post("/api/incidents", files={"file": ("incident.tar.gz", tarball())}).json()
    holds(accepted, "Accepted")
    url = f"/api/incidents/{accepted['id']}"
    holds(service.client.get(url).json(), "Incident")
    service.wait(accepted["id"])
    holds(service.client.get(url).json(), "Incident")
    holds(service.client.get("/api/incidents").json(), "Incidents")
    holds(service.client.get("/api/recurring").json(), "Recurring")
    holds(service.client.get("/api/settings").json(), "Settings")
    holds(service.client.get("/api/compare", params={"before": accepted["id"], "after": accepted["id"]}).json(), "Comparison")
    holds(service.client.post("/api/uploads", json={"files": [{"name": "x", "bytes": 3}]}).json(), "Upload")
    holds(service.client.get("/api/incidents/aaaaaaaaaaaa").json(), "Error")


#: What no caller should send, and some will.
_ODD: tuple[object, ...] = (
    None,
    True,
    -1,
    0,
    2**63,
    2**70,
    1e308,
    "",
    "x",
    "\x00",
    "a" * 5000,
    "\ud800".encode("utf-8", "replace").decode(),
    "../..",
    [],
    [None],
    {},
    {"a": 1},
)


def test_odd_calls_get_an_answer_that_is_described(service: Running) -> None:
    """Every operation with odd paths, queries and bodies, without any library for it; schemathesis tries more where it is installed."""
    chance = random.Random(7)
    paths = document()["paths"]
    assert isinstance(paths, dict)
    known = service.client.post("/api/uploads", json={"files": [{"name": "x", "bytes": 9}]}).json()["id"]
    read = service.upload(("x.log", b"x\n"))
    for (method, path), _ in [(o, n) for o in sorted(operations()) for n in range(8)]:
        if path.endswith("events"):
            continue
        operation = paths[path][method.lower()]
        url = path.replace("{id}", chance.choice([known, read, "aaaaaaaaaaaa", "%00", "x" * 300])).replace(
            "{number}", chance.choice(["0", "1", "-1", "x"])
        )
        query = {p["name"]: str(chance.choice(_ODD)) for p in operation.get("parameters", ()) if chance.random() < 0.7}
        body: dict[str, object] = {}
        if "requestBody" in operation:
            names = ["title", "job", "notes", "pinned", "revision", "files", "evidence_days", "store_gb"]
            odd = {
                name: chance.choice([*_ODD, [{"name": chance.choice(_ODD), "bytes": chance.choice(_ODD)}]])
                for name in chance.sample(names, 3)
            }
            body = chance.choice([{"json": odd}, {"content": b"\xff{"}, {"files": {"file": ("", b"")}}, {"json": chance.choice(_ODD)}])
        answer = service.client.request(method, url, params=query, **body)  # type: ignore[arg-type]
        assert answer.status_code < 500, (method, url, query, body, answer.text)
        assert str(answer.status_code) in operation["responses"], (method, url, query, body, answer.status_code)


@pytest.mark.skipif(importlib.util.find_spec("schemathesis") is None, reason="schemathesis is not installed")
def test_nothing_that_the_document_allows_is_a_server_error(service: Running, tmp_path: Path) -> None:
    """Made-up calls to every operation; the streams of events are left out, because they do not end."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "run", f"{service.url}/api/openapi.json"),
            *("--checks", "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"),
            *(
                "--exclude-path-regex",
                "events$",
                "--max-examples",
                "6",
                "--seed",
                "7",
                "--no-color",
                "--phases",
                "examples,coverage,fuzzing",
            ),
        ],
        capture_output=True,
        text=True,
        timeout=500,
        cwd=tmp_path,  # it leaves a folder of its own
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert service.client.get("/healthz").status_code == 200
