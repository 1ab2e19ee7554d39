"""The JSON API: the calls of the contract and those that the pages need beside them. ``openapi`` describes each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict
from typing import cast

import anyio.to_thread
import orjson
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from nccl_forensics import __version__
from nccl_forensics.changes import Differences, differences
from nccl_forensics.reporters import comparison_html, comparison_json
from nccl_forensics.serve import openapi, retention
from nccl_forensics.serve.folders import IDENTIFIER, RESULTS
from nccl_forensics.serve.incidents import Incident
from nccl_forensics.serve.problems import Problem, not_found
from nccl_forensics.serve.search import filter_of, find, recurring
from nccl_forensics.serve.service import Service
from nccl_forensics.serve.uploads import PIECE_BYTES, Upload, job_of, title_of

_JSON_BYTES = 4 << 20
_NOTES = 100_000
_HEARTBEAT_SECONDS = 15.0
#: A postmortem is made of what hostile logs may hold: it gets scripts of its own, but an origin that is nobody's.
SANDBOX = (
    "sandbox allow-scripts allow-downloads; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "connect-src 'none'; form-action 'none'; base-uri 'none'; frame-ancestors 'self'"
)

IN_SANDBOX = {"content-security-policy": SANDBOX, "x-frame-options": "SAMEORIGIN"}


def service_of(request: Request) -> Service:
    """The service that a request is for."""
    return cast(Service, request.app.state.service)


def identifier_of(request: Request) -> str:
    """The identifier in the path. Raises ``Problem`` for what cannot be one."""
    identifier = str(request.path_params["id"])
    if not IDENTIFIER.fullmatch(identifier):
        raise not_found()
    return identifier


async def json_body(request: Request) -> Mapping[str, object]:
    """A JSON object from the client. Raises ``Problem``."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Problem(415, "not-json", "send application/json", close=True)
    body = bytearray()
    async for piece in service_of(request).gate.pieces(request.receive):
        body += piece
        if len(body) > _JSON_BYTES:
            raise Problem(413, "too-large", f"a JSON body may have {_JSON_BYTES:,} bytes at most", close=True)
    try:
        value = orjson.loads(bytes(body))
    except orjson.JSONDecodeError as problem:
        raise Problem(400, "bad-json", f"the body is no JSON: {problem}") from problem
    if not isinstance(value, dict):
        raise Problem(422, "bad-field", "send a JSON object")
    return value


async def incident_of(request: Request) -> Incident:
    """The incident in the path. Raises ``Problem``."""
    return await anyio.to_thread.run_sync(service_of(request).incidents.get, identifier_of(request))


def shown(service: Service, incident: Incident) -> dict[str, object]:
    """An incident with how far it is."""
    return incident.as_json(service.progress(incident.id, incident.status))


async def health(request: Request) -> Response:
    """Whether the store can be read."""
    service = service_of(request)
    await anyio.to_thread.run_sync(service.database.read, "SELECT 1")
    return JSONResponse({"status": "ok", "version": __version__})


async def create(request: Request) -> Response:
    """A multipart form becomes an incident."""
    service = service_of(request)
    identifier = await service.uploads.form(request)
    return accepted(service, identifier)


def accepted(service: Service, identifier: str) -> Response:
    """202 with where to look."""
    service.analyses.wake()
    service.events.changed(identifier)
    return JSONResponse(
        {"id": identifier, "url": f"/incidents/{identifier}"}, status_code=202, headers={"location": f"/api/incidents/{identifier}"}
    )


async def listing(request: Request) -> Response:
    """Incidents that meet a filter."""
    service = service_of(request)
    wanted = filter_of(request.query_params)
    found = await anyio.to_thread.run_sync(find, service.database, wanted)
    return JSONResponse(
        {"incidents": [shown(service, i) for i in found.incidents], "total": found.total, "limit": wanted.limit, "offset": wanted.offset}
    )


async def recurrence(request: Request) -> Response:
    """What was to blame more than once lately."""
    rows = await anyio.to_thread.run_sync(recurring, service_of(request).database)
    return JSONResponse(
        {
            "recurring": [
                {
                    "kind": r.kind,
                    "value": r.value,
                    "count": r.count,
                    "of": r.of,
                    "sentence": r.sentence(),
                    "incidents": [i for i, _ in r.incidents],
                }
                for r in rows
            ]
        }
    )


async def show(request: Request) -> Response:
    """One incident."""
    return JSONResponse(shown(service_of(request), await incident_of(request)))


async def change(request: Request) -> Response:
    """Title, job, notes, pin."""
    service, identifier, body = service_of(request), identifier_of(request), await json_body(request)
    if unknown := set(body) - {"title", "job", "notes", "pinned", "revision"}:
        raise Problem(422, "bad-field", f"{sorted(unknown)[0]!r} cannot be changed")
    values: dict[str, object] = {}
    if "title" in body:
        if (title := title_of(body["title"])) is None:
            raise Problem(422, "bad-field", "a title is not empty")
        values["title"] = title
    if "job" in body:
        values["job"] = job_of(body["job"])
    if "notes" in body:
        notes = body["notes"]
        if not isinstance(notes, str) or len(notes) > _NOTES:
            raise Problem(422, "bad-field", f"notes are a text of {_NOTES:,} characters at most")
        values["notes"] = notes.replace("\r\n", "\n")
    if "pinned" in body:
        if not isinstance(body["pinned"], bool):
            raise Problem(422, "bad-field", "pinned is true or false")
        values["pinned"] = int(body["pinned"])
    revision = body.get("revision")
    if revision is not None and (not isinstance(revision, int) or isinstance(revision, bool)):
        raise Problem(422, "bad-field", "revision is a number")
    incident = await anyio.to_thread.run_sync(service.incidents.change, identifier, values, revision)
    service.events.changed(identifier)
    return JSONResponse(shown(service, incident))


async def delete(request: Request) -> Response:
    """An incident and all that is known of it."""
    await service_of(request).delete(identifier_of(request))
    return Response(status_code=204)


async def cancel(request: Request) -> Response:
    """Stop an analysis that waits or runs."""
    service, incident = service_of(request), await incident_of(request)
    if not await service.analyses.cancel(incident.id):
        raise Problem(409, "not-possible", "the incident is neither waiting nor being read")
    return JSONResponse(shown(service, await anyio.to_thread.run_sync(service.incidents.get, incident.id)))


async def again(request: Request) -> Response:
    """Read the evidence once more."""
    service, identifier = service_of(request), identifier_of(request)
    await anyio.to_thread.run_sync(service.incidents.again, identifier)
    return accepted(service, identifier)


async def drop_evidence(request: Request) -> Response:
    """Remove the evidence, keep the report."""
    service, incident = service_of(request), await incident_of(request)
    if incident.status not in ("done", "failed"):
        raise Problem(409, "not-possible", "the incident is still being read")
    await anyio.to_thread.run_sync(retention.drop_evidence, service.folders, service.incidents, incident.id)
    return Response(status_code=204)


async def result(request: Request) -> Response:
    """A file that the analysis wrote."""
    service, incident, name = service_of(request), await incident_of(request), request.url.path.rpartition("/")[2]
    file = service.folders.result(incident.id) / name
    if incident.status != "done" or not file.is_file():
        raise Problem(
            409, "not-done", f"the incident has no report: it is {incident.status}" + (f" ({incident.error})" if incident.error else "")
        )
    headers = IN_SANDBOX if name.endswith(".html") else {}
    if "download" in request.query_params:
        return FileResponse(file, media_type=RESULTS[name], headers=headers, filename=f"{incident.id}-{name}")
    return FileResponse(file, media_type=RESULTS[name], headers=headers)


async def events(request: Request) -> Response:
    """The state of one incident, now and whenever it changes, until it is at its end."""
    service, incident = service_of(request), await incident_of(request)

    async def stream() -> AsyncIterator[bytes]:
        with service.events.listen(incident.id) as listener:
            while not service.events.closing:
                try:
                    held = await anyio.to_thread.run_sync(service.incidents.get, incident.id)
                except Problem:
                    yield b"event: deleted\ndata: {}\n\n"
                    return
                yield b"event: incident\ndata: " + orjson.dumps(shown(service, held)) + b"\n\n"
                if held.status in ("done", "failed"):
                    return
                while not service.events.closing and not await listener.wait(_HEARTBEAT_SECONDS):
                    yield b": still here\n\n"

    return _stream(stream())


async def all_events(request: Request) -> Response:
    """Which incidents change."""
    service = service_of(request)

    async def stream() -> AsyncIterator[bytes]:
        with service.events.listen(None) as listener:
            yield b": listening\n\n"
            while not service.events.closing:
                changed = await listener.wait(_HEARTBEAT_SECONDS)
                if not changed:
                    yield b": still here\n\n"
                for identifier in sorted(changed):
                    try:
                        held = await anyio.to_thread.run_sync(service.incidents.get, identifier)
                        data: dict[str, object] = {
                            "id": identifier,
                            "status": held.status,
                            "progress": service.progress(identifier, held.status),
                        }
                    except Problem:
                        data = {"id": identifier, "status": "deleted", "progress": None}
                    yield b"event: change\ndata: " + orjson.dumps(data) + b"\n\n"

    return _stream(stream())


def _stream(content: AsyncIterator[bytes]) -> Response:
    return StreamingResponse(content, media_type="text/event-stream", headers={"x-accel-buffering": "no"})


async def start_upload(request: Request) -> Response:
    """Announce files that will arrive piece by piece."""
    service = service_of(request)
    upload = await service.uploads.start(await json_body(request))
    return JSONResponse(await _upload_json(service, upload), status_code=201, headers={"location": f"/api/uploads/{upload.id}"})


async def show_upload(request: Request) -> Response:
    """How much of each file has arrived."""
    service = service_of(request)
    return JSONResponse(await _upload_json(service, await anyio.to_thread.run_sync(service.uploads.get, identifier_of(request))))


async def _upload_json(service: Service, upload: Upload) -> dict[str, object]:
    received = await anyio.to_thread.run_sync(service.uploads.received, upload)
    return {
        "id": upload.id,
        "url": f"/api/uploads/{upload.id}",
        "title": upload.title,
        "job": upload.job,
        "piece_bytes": PIECE_BYTES,
        "files": [{"name": f.name, "bytes": f.bytes, "received": held} for f, held in zip(upload.files, received, strict=True)],
    }


async def append(request: Request) -> Response:
    """More bytes of one file."""
    offset, number = request.query_params.get("offset", ""), str(request.path_params["number"])
    if not (offset.isascii() and offset.isdigit() and len(offset) < 17):
        raise Problem(422, "bad-parameter", "offset is the number of bytes that have arrived before", close=True)
    if not (number.isascii() and number.isdigit() and len(number) < 8):
        raise not_found("file")
    received = await service_of(request).uploads.append(identifier_of(request), int(number), int(offset), request)
    return JSONResponse({"received": received})


async def finish_upload(request: Request) -> Response:
    """All bytes are there."""
    service = service_of(request)
    return accepted(service, await service.uploads.finish(identifier_of(request)))


async def cancel_upload(request: Request) -> Response:
    """Give up an upload."""
    await service_of(request).uploads.cancel(identifier_of(request))
    return Response(status_code=204)


async def pair(service: Service, query: Mapping[str, str]) -> tuple[Incident, Incident]:
    """The two finished incidents of a query. Raises ``Problem``."""
    held = []
    for name in ("before", "after"):
        identifier = query.get(name, "")
        if not IDENTIFIER.fullmatch(identifier):
            raise Problem(422, "bad-parameter", f"{name} is the id of an incident")
        incident = await anyio.to_thread.run_sync(service.incidents.get, identifier)
        if incident.status != "done":
            raise Problem(409, "not-done", f"{incident.title} has no report: it is {incident.status}")
        held.append(incident)
    return held[0], held[1]


def _differences(service: Service, before: str, after: str) -> Differences:
    try:
        one, other = (orjson.loads((service.folders.result(i) / "report.json").read_bytes()) for i in (before, after))
    except OSError as problem:
        raise Problem(409, "not-done", "the report is not there") from problem
    return differences(one, other)


async def comparison(request: Request) -> Response:
    """Two incidents side by side, as ``compare`` says it: data, or a page."""
    service = service_of(request)
    before, after = await pair(service, request.query_params)
    found = await anyio.to_thread.run_sync(_differences, service, before.id, after.id)
    if request.url.path.endswith(".html"):
        page = await anyio.to_thread.run_sync(comparison_html.render, found)
        return Response(page, media_type="text/html; charset=utf-8", headers=IN_SANDBOX)
    return Response(await anyio.to_thread.run_sync(comparison_json.render, found), media_type="application/json")


async def show_settings(request: Request) -> Response:
    """What is kept for how long, and how full the store is."""
    service = service_of(request)
    return JSONResponse(await anyio.to_thread.run_sync(store_facts, service))


def store_facts(service: Service) -> dict[str, object]:
    """Retention and sizes."""
    [count] = service.database.read("SELECT count(*) AS n FROM incidents WHERE status <> 'deleting'")
    return {
        "retention": asdict(retention.load(service.database)),
        "incidents": count["n"],
        "evidence_bytes": retention.evidence_bytes(service.database),
        "free_bytes": service.folders.free_bytes(),
        "reserve_bytes": service.settings.reserve_bytes,
        "upload_bytes": service.settings.upload_bytes,
        "upload_files": service.settings.upload_files,
    }


async def change_settings(request: Request) -> Response:
    """Set what is kept for how long; takes effect at once."""
    service = service_of(request)
    wanted = retention.retention_of(await json_body(request))
    await anyio.to_thread.run_sync(retention.save, service.database, wanted)
    await service.tidy()
    return JSONResponse(await anyio.to_thread.run_sync(store_facts, service))


async def document(_request: Request) -> Response:
    """The description of this API."""
    return JSONResponse(openapi.document())


#: Every call of the API.
ROUTES: list[Route] = [
    Route("/healthz", health, methods=["GET"]),
    Route("/api/openapi.json", document, methods=["GET"]),
    Route("/api/incidents", listing, methods=["GET"]),
    Route("/api/incidents", create, methods=["POST"]),
    Route("/api/incidents/{id}", show, methods=["GET"]),
    Route("/api/incidents/{id}", change, methods=["PATCH"]),
    Route("/api/incidents/{id}", delete, methods=["DELETE"]),
    *(Route(f"/api/incidents/{{id}}/{name}", result, methods=["GET"]) for name in RESULTS),
    Route("/api/incidents/{id}/events", events, methods=["GET"]),
    Route("/api/incidents/{id}/cancel", cancel, methods=["POST"]),
    Route("/api/incidents/{id}/analyze", again, methods=["POST"]),
    Route("/api/incidents/{id}/evidence", drop_evidence, methods=["DELETE"]),
    Route("/api/events", all_events, methods=["GET"]),
    Route("/api/recurring", recurrence, methods=["GET"]),
    Route("/api/compare", comparison, methods=["GET"]),
    Route("/api/compare.html", comparison, methods=["GET"]),
    Route("/api/uploads", start_upload, methods=["POST"]),
    Route("/api/uploads/{id}", show_upload, methods=["GET"]),
    Route("/api/uploads/{id}", cancel_upload, methods=["DELETE"]),
    Route("/api/uploads/{id}/files/{number}", append, methods=["PUT"]),
    Route("/api/uploads/{id}/finish", finish_upload, methods=["POST"]),
    Route("/api/settings", show_settings, methods=["GET"]),
    Route("/api/settings", change_settings, methods=["PUT"]),
]
