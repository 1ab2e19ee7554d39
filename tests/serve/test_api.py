"""The API over a real socket: the calls of the contract, uploads that are resumed, state, and what is refused."""

from __future__ import annotations

import html
from importlib.resources import files

import jsonschema
import orjson
import pytest

from tests.serve.running import INCIDENTS, Running, tarball


@pytest.fixture(scope="module")
def resumed(service: Running) -> str:
    """An incident that came in by an upload that stopped, was asked for the wrong bytes, and went on."""
    data = tarball()
    announced = {"title": "resumed", "files": [{"name": "a/incident.tar.gz", "bytes": len(data)}, {"name": "empty.log", "bytes": 0}]}
    begun = service.client.post("/api/uploads", json=announced)
    assert begun.status_code == 201
    url = begun.json()["url"]

    def put(offset: int, content: bytes) -> tuple[int, dict[str, object]]:
        answer = service.client.put(f"{url}/files/0?offset={offset}", content=content)
        return answer.status_code, answer.json()

    assert put(0, data[:1000]) == (200, {"received": 1000})
    status, problem = put(0, data[:1000])
    assert (status, problem["code"], problem["received"]) == (409, "wrong-offset", 1000)
    early = service.client.post(f"{url}/finish")
    assert (early.status_code, early.json()["code"], early.json()["received"]) == (409, "incomplete", [1000, 0])
    assert service.client.get(url).json()["files"][0]["received"] == 1000
    status, problem = put(1000, data[1000:] + b"more than announced")
    assert (status, problem["code"]) == (413, "too-long")
    held = service.client.get(url).json()["files"][0]["received"]
    assert put(held, data[held:]) == (200, {"received": len(data)})
    first, again = service.client.post(f"{url}/finish"), service.client.post(f"{url}/finish")
    assert first.status_code == again.status_code == 202
    assert first.json() == again.json()
    state = service.wait(first.json()["id"])
    assert (state["status"], state["title"], state["verdict"]["cause"]) == ("done", "resumed", "rank-died")  # type: ignore[index]
    assert service.client.get(url).status_code == 404
    return str(state["id"])


def test_an_upload_becomes_a_report_with_a_verdict(service: Running, done: str) -> None:
    state = service.client.get(f"/api/incidents/{done}").json()
    assert {"id", "title", "status", "progress", "error", "verdict"} <= set(state)
    assert (state["title"], state["job"], state["status"], state["error"], state["progress"]) == (
        "step 4200 hang",
        "llm-70b",
        "done",
        None,
        None,
    )
    assert state["verdict"]["cause"] == "collective-skipped"
    report = service.client.get(f"/api/incidents/{done}/report.json")
    schema = orjson.loads(files("nccl_forensics").joinpath("report.schema.json").read_bytes())
    jsonschema.validate(report.json(), schema)
    assert report.json()["case"]["title"] == "step 4200 hang"
    assert report.json()["verdict"] == state["verdict"]
    assert service.client.get(f"/api/incidents/{done}/postmortem.md").text.startswith("#")
    listed = service.client.get("/api/incidents").json()
    assert done in [i["id"] for i in listed["incidents"]]


def test_the_answer_to_an_upload_names_its_permanent_page(service: Running, done: str) -> None:
    answer = service.client.post("/api/incidents", files={"file": ("x.log", b"some text\n")})
    assert answer.status_code == 202
    assert answer.headers["location"] == f"/api/incidents/{answer.json()['id']}"
    assert answer.json()["url"] == f"/incidents/{answer.json()['id']}"
    assert service.client.get(answer.json()["url"]).status_code == 200
    assert "step 4200 hang" in service.client.get(f"/incidents/{done}").text
    service.client.delete(f"/api/incidents/{answer.json()['id']}")


def test_a_postmortem_is_served_in_a_sandbox_without_our_origin(service: Running, done: str) -> None:
    answer = service.client.get(f"/api/incidents/{done}/postmortem.html")
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("sandbox allow-scripts allow-downloads;")
    assert "allow-same-origin" not in policy
    assert "connect-src 'none'" in policy
    page = service.client.get(f"/incidents/{done}").text
    assert 'sandbox="allow-scripts allow-downloads"' in page
    assert "allow-same-origin" not in page


def test_several_files_become_one_incident_and_keep_their_paths(service: Running) -> None:
    evidence = INCIDENTS / "nccl-never-joined-8r" / "evidence"
    parts = [(f"run1/{p.relative_to(evidence).as_posix()}", p.read_bytes()) for p in sorted(evidence.rglob("*")) if p.is_file()]
    identifier = service.upload(*parts)
    assert service.wait(identifier)["verdict"]["cause"] == "rank-never-joined"  # type: ignore[index]
    sources = service.client.get(f"/api/incidents/{identifier}/report.json").json()["sources"]
    assert sorted(s["path"] for s in sources) == sorted(name for name, _ in parts)


def test_what_cannot_be_used_fails_with_the_reason_and_keeps_its_evidence(service: Running) -> None:
    identifier = service.upload(("beach.png", b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 20))
    state = service.wait(identifier)
    assert (state["status"], state["error_code"]) == ("failed", "unusable")
    assert "nothing recognised" in str(state["error"])
    answer = service.client.get(f"/api/incidents/{identifier}/report.json")
    assert (answer.status_code, answer.json()["code"]) == (409, "not-done")


@pytest.mark.parametrize(
    ("content", "kind", "status", "code"),
    [
        (b"", "multipart/form-data; boundary=x", 400, "bad-form"),
        (b"--x\r\nnot a header\r\n\r\n", "multipart/form-data; boundary=x", 400, "bad-form"),
        (
            b'--x\r\nContent-Disposition: form-data; name="title"\r\n\r\nhello\r\n--x--\r\n',
            "multipart/form-data; boundary=x",
            400,
            "no-file",
        ),
        (
            b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n\r\n--x--\r\n',
            "multipart/form-data; boundary=x",
            400,
            "empty",
        ),
        (
            b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nabc',
            "multipart/form-data; boundary=x",
            400,
            "bad-form",
        ),
        (
            b'--x\r\nContent-Disposition: form-data; name="evil"; filename="a"\r\n\r\nabc\r\n--x--\r\n',
            "multipart/form-data; boundary=x",
            400,
            "bad-form",
        ),
        (b"{}", "application/json", 415, "not-multipart"),
        (b"", "multipart/form-data", 415, "not-multipart"),
    ],
)
def test_a_bad_form_is_refused_and_leaves_nothing(service: Running, content: bytes, kind: str, status: int, code: str) -> None:
    answer = service.client.post("/api/incidents", content=content, headers={"Content-Type": kind})
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert not [f for f in service.files() if f.startswith("uploads/")]


def test_a_resumable_upload_goes_on_where_it_stopped(service: Running, resumed: str) -> None:
    assert service.client.get(f"/api/incidents/{resumed}").json()["title"] == "resumed"


def test_an_upload_that_is_given_up_leaves_nothing(service: Running) -> None:
    url = service.client.post("/api/uploads", json={"files": [{"name": "x.tar", "bytes": 10}]}).json()["url"]
    assert service.client.put(f"{url}/files/0?offset=0", content=b"12345").status_code == 200
    assert service.client.delete(url).status_code == 204
    assert service.client.get(url).status_code == 404
    assert not [f for f in service.files() if f.startswith("uploads/")]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"files": []},
        {"files": "x"},
        {"files": [{"name": "x"}]},
        {"files": [{"name": "x", "bytes": -1}]},
        {"files": [{"name": 3, "bytes": 1}]},
        [],
    ],
)
def test_an_upload_is_announced_with_names_and_sizes(service: Running, body: object) -> None:
    assert service.client.post("/api/uploads", json=body).status_code == 422


def test_an_analysis_is_cancelled_asked_for_again_and_followed_to_its_end(service: Running) -> None:
    identifier = service.upload(("incident.tar.gz", tarball()))
    service.wait(identifier, "running")
    cancelled = service.client.post(f"/api/incidents/{identifier}/cancel").json()
    assert (cancelled["status"], cancelled["error_code"]) == ("failed", "cancelled")
    assert service.client.post(f"/api/incidents/{identifier}/cancel").status_code == 409
    assert not [f for f in service.files() if f.startswith("scratch/")]
    assert service.client.post(f"/api/incidents/{identifier}/analyze").status_code == 202
    with service.client.stream("GET", f"/api/incidents/{identifier}/events") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        states = [orjson.loads(row[6:]) for row in answer.iter_lines() if row.startswith("data: ")]
    assert states[-1]["status"] == "done"
    stages = [s["progress"]["stage"] for s in states if s["progress"]]
    order = ["waiting", "starting", "unpacking", "reading", "judging", "writing"]
    assert stages == sorted(stages, key=order.index)
    assert {"reading", "writing"} & set(stages)


def test_deleting_removes_every_trace(service: Running) -> None:
    secret = "xyzzyplughquux"
    identifier = service.upload(("incident.tar.gz", tarball(more={f"{secret}.log": b"nothing\n"})), title=f"the {secret} case", job=secret)
    service.wait(identifier)
    service.client.patch(f"/api/incidents/{identifier}", json={"notes": f"{secret} again"})
    assert service.client.get("/api/incidents", params={"q": secret}).json()["total"] == 1
    assert service.client.delete(f"/api/incidents/{identifier}").status_code == 204
    assert service.client.get(f"/api/incidents/{identifier}").status_code == 404
    assert service.client.delete(f"/api/incidents/{identifier}").status_code == 404
    assert service.client.get("/api/incidents", params={"q": secret}).json()["total"] == 0
    assert not [f for f in service.files() if identifier in f]
    assert not [p for p in service.data.rglob("*") if p.is_file() and secret.encode() in p.read_bytes()]


def test_deleting_stops_an_analysis_that_runs(service: Running) -> None:
    identifier = service.upload(("incident.tar.gz", tarball()))
    service.wait(identifier, "running")
    assert service.client.delete(f"/api/incidents/{identifier}").status_code == 204
    assert not [f for f in service.files() if identifier in f]


def test_two_people_do_not_overwrite_each_others_notes(service: Running, done: str) -> None:
    url = f"/api/incidents/{done}"
    revision = service.client.get(url).json()["revision"]
    assert service.client.patch(url, json={"notes": "drained node-07", "revision": revision}).status_code == 200
    late = service.client.patch(url, json={"notes": "mine", "revision": revision})
    assert (late.status_code, late.json()["code"], late.json()["incident"]["notes"]) == (409, "changed-meanwhile", "drained node-07")
    assert service.client.get("/api/incidents", params={"q": "drained"}).json()["total"] == 1


def test_incidents_are_found_by_cause_host_rank_job_and_text(service: Running, done: str) -> None:
    def total(**query: str) -> list[str]:
        return [i["id"] for i in service.client.get("/api/incidents", params=query).json()["incidents"]]

    for query in (
        {"cause": "collective-skipped"},
        {"rank": "3", "culprit": "true"},
        {"job": "LLM-70"},
        {"q": "log_metr"},
        {"host": "localhost"},
    ):
        assert done in total(**query), query
    for query in (
        {"cause": "rank-died"},
        {"rank": "7", "culprit": "true"},
        {"job": "other"},
        {"q": "no such words"},
        {"until": "2001-01-01"},
    ):
        assert done not in total(**query), query
    assert service.client.get("/api/incidents", params={"rank": "x"}).status_code == 422


def test_two_incidents_are_compared(service: Running, done: str, resumed: str) -> None:
    both = {"before": done, "after": resumed}
    found = service.client.get("/api/compare", params=both).json()
    assert found["schema"] == "nccl-forensics/comparison/1"
    assert (found["before"]["title"], found["after"]["title"]) == ("step 4200 hang", "resumed")
    page = service.client.get("/api/compare.html", params=both)
    assert page.headers["content-security-policy"].startswith("sandbox allow-scripts allow-downloads;")
    assert found["headline"] in html.unescape(page.text)
    assert service.client.get("/compare", params=both).status_code == 200
    assert service.client.get("/api/compare", params={"before": done, "after": "x"}).status_code == 422


def test_evidence_can_be_deleted_and_the_report_stays(service: Running, resumed: str) -> None:
    identifier = resumed
    assert service.client.delete(f"/api/incidents/{identifier}/evidence").status_code == 204
    assert not [f for f in service.files() if f.startswith(f"incidents/{identifier}/evidence")]
    assert service.client.get(f"/api/incidents/{identifier}/report.json").status_code == 200
    assert service.client.post(f"/api/incidents/{identifier}/analyze").status_code == 409


def test_a_name_that_leads_out_of_the_folder_stays_inside(service: Running) -> None:
    identifier = service.upload(("../../../../tmp/evil.tar", b"x\n"), ("/etc/passwd", b"x\n"), ("..\\..\\evil.log", b"x\n"))
    names = [f["name"] for f in service.client.get(f"/api/incidents/{identifier}").json()["files"]]
    assert names == ["tmp/evil.tar", "etc/passwd", "evil.log"]
    assert sorted(f for f in service.files() if f.startswith(f"incidents/{identifier}/evidence/")) == [
        f"incidents/{identifier}/evidence/{name}" for name in sorted(names)
    ]
    service.client.delete(f"/api/incidents/{identifier}")


def test_retention_is_set_and_bounded(service: Running) -> None:
    wanted = {"evidence_days": 30, "incident_days": None, "store_gb": 500}
    assert service.client.put("/api/settings", json=wanted).json()["retention"] == wanted
    for bad in ({"evidence_days": 0}, {"evidence_days": "x"}, {"incident_days": True}, {"unknown": 1}):
        assert service.client.put("/api/settings", json=bad).status_code == 422
    assert service.client.get("/api/settings").json()["retention"] == wanted
    service.client.put("/api/settings", json={})


def test_unknown_things_are_not_found(service: Running) -> None:
    for path in (
        "/api/incidents/aaaaaaaaaaaa",
        "/api/incidents/..%2f..%2fetc",
        "/api/nothing",
        "/api/uploads/aaaaaaaaaaaa",
        "/api/incidents/x/report.json",
    ):
        answer = service.client.get(path)
        assert (answer.status_code, answer.json()["code"]) == (404, "not-found"), path
    assert "There is nothing here" in service.client.get("/incidents/aaaaaaaaaaaa").text
    assert service.client.put("/api/incidents").status_code == 405
