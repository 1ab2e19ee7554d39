"""The OpenAPI document, written by hand so that it says what is meant; a test holds it against the routes and their answers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from nccl_forensics import __version__
from nccl_forensics.serve.incidents import STATES
from nccl_forensics.serve.search import MOST_ROWS

Schema = dict[str, object]
_ID = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}, "description": "the incident's or upload's id"}


def _object(properties: dict[str, Schema], optional: tuple[str, ...] = (), **more: object) -> Schema:
    return {"type": "object", "properties": properties, "required": [p for p in properties if p not in optional], **more}


def _nullable(kind: str, **more: object) -> Schema:
    return {"type": [kind, "null"], **more}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


_TEXT: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_TIME = _nullable("string", format="date-time")
_PROGRESS: Schema = {
    "type": ["object", "null"],
    "description": "null unless queued or running",
    "properties": {
        "stage": {"type": "string", "enum": ["waiting", "starting", "unpacking", "reading", "judging", "writing"]},
        "done": {**_COUNT, "description": "sources read so far"},
        "total": {**_COUNT, "description": "sources in all; 0 where the stage is not counted"},
    },
}
_INCIDENT = _object(
    {
        "id": _TEXT,
        "url": {**_TEXT, "description": "permanent link to its page"},
        "title": _TEXT,
        "job": _nullable("string"),
        "status": {"type": "string", "enum": list(STATES)},
        "progress": _PROGRESS,
        "error": _nullable("string", description="why it failed, for people"),
        "error_code": _nullable(
            "string", description="cancelled, unusable, limit, memory, time, no-space, interrupted or defect; more may be added"
        ),
        "verdict": {"type": ["object", "null"], "description": "`verdict` of report.json"},
        "created_at": _TIME,
        "started_at": _TIME,
        "finished_at": _TIME,
        "happened_at": {**_TIME, "description": "when the job ended, by the evidence"},
        "files": {"type": "array", "items": _object({"name": _TEXT, "bytes": _COUNT})},
        "size_bytes": _COUNT,
        "notes": _TEXT,
        "pinned": {"type": "boolean", "description": "never removed by retention"},
        "revision": {**_COUNT, "description": "counts changes of title, job, notes and pin"},
        "evidence_kept": {"type": "boolean"},
    }
)
_UPLOAD = _object(
    {
        "id": _TEXT,
        "url": _TEXT,
        "title": _nullable("string"),
        "job": _nullable("string"),
        "piece_bytes": {**_COUNT, "description": "what one request should carry"},
        "files": {"type": "array", "items": _object({"name": _TEXT, "bytes": _COUNT, "received": _COUNT})},
    }
)
_DAYS: Schema = {"type": ["integer", "null"], "minimum": 1, "maximum": 36500}
_RETENTION = _object(
    {"evidence_days": _DAYS, "incident_days": _DAYS, "store_gb": {"type": ["integer", "null"], "minimum": 1, "maximum": 1_000_000}},
    ("evidence_days", "incident_days", "store_gb"),
    additionalProperties=False,
    description="null or absent: without end",
)
_SETTINGS = _object(
    {
        "retention": _RETENTION,
        **dict.fromkeys(("incidents", "evidence_bytes", "free_bytes", "reserve_bytes", "upload_bytes", "upload_files"), _COUNT),
    }
)
_SCHEMAS: dict[str, Schema] = {
    "Error": _object({"error": _TEXT, "code": {**_TEXT, "description": "stable word for scripts"}}),
    "Accepted": _object({"id": _TEXT, "url": {**_TEXT, "description": "permanent link to the incident's page"}}),
    "Incident": _INCIDENT,
    "Incidents": _object({"incidents": {"type": "array", "items": _ref("Incident")}, "total": _COUNT, "limit": _COUNT, "offset": _COUNT}),
    "Upload": _UPLOAD,
    "Retention": _RETENTION,
    "Settings": _SETTINGS,
    "Recurring": _object(
        {
            "recurring": {
                "type": "array",
                "items": _object(
                    {
                        "kind": {"type": "string", "enum": ["host", "gpu", "cause"]},
                        "value": _TEXT,
                        "count": _COUNT,
                        "of": _COUNT,
                        "sentence": _TEXT,
                        "incidents": {"type": "array", "items": _TEXT},
                    }
                ),
            }
        }
    ),
    "Comparison": {
        "type": "object",
        "description": "what `compare --json` writes",
        "properties": {"schema": {"const": "nccl-forensics/comparison/1"}, "headline": _TEXT},
        "required": ["schema", "headline", "results", "explains"],
    },
}


def _query(name: str, description: str, schema: Schema = _TEXT, *, required: bool = False) -> Schema:
    return {"name": name, "in": "query", "required": required, "schema": schema, "description": description}


def _body(schema: Schema, kind: str = "application/json") -> Schema:
    return {"required": True, "content": {kind: {"schema": schema}}}


_WORDS = {
    400: "cannot be read",
    404: "there is none",
    408: "the client stalled",
    409: "not in this state",
    413: "above a limit",
    415: "another content type is needed",
    422: "a value cannot be meant",
    503: "too much is under way",
    507: "the disk is too full",
}


def _operation(name: str, summary: str, answers: Mapping[int, tuple[str, str, Schema] | None], *problems: int, **more: object) -> Schema:
    responses: dict[str, object] = {}
    for status, answer in answers.items():
        responses[str(status)] = (
            {"description": answer[0], "content": {answer[1]: {"schema": answer[2]}}} if answer is not None else {"description": "done"}
        )
    for status in sorted({*problems, 401, 403, 421, 500}):
        responses[str(status)] = {
            "description": _WORDS.get(
                status, {401: "no token", 403: "from a foreign page", 421: "wrong host name"}.get(status, "a defect")
            ),
            "content": {"application/json": {"schema": _ref("Error")}},
        }
    return {"operationId": name, "summary": summary, "responses": responses, **more}


def _json(description: str, schema: Schema) -> tuple[str, str, Schema]:
    return description, "application/json", schema


def _paths() -> dict[str, object]:
    accepted: Mapping[int, tuple[str, str, Schema] | None] = {202: _json("queued", _ref("Accepted"))}
    incident = {200: _json("the incident", _ref("Incident"))}
    results: dict[str, tuple[str, str, str, Schema]] = {
        "report.json": ("getReport", "The report as data", "application/json", {"type": "object"}),
        "postmortem.html": ("getPostmortem", "The report as one page; sent with a sandbox of its own", "text/html; charset=utf-8", _TEXT),
        "postmortem.md": ("getMarkdown", "The report as text", "text/markdown; charset=utf-8", _TEXT),
    }
    settings = {200: _json("retention and sizes", _ref("Settings"))}
    return {
        "/healthz": {
            "get": {
                **_operation(
                    "health",
                    "Whether the service works; needs no token",
                    {200: _json("it does", _object({"status": _TEXT, "version": _TEXT}))},
                ),
                "security": [],
            }
        },
        "/api/openapi.json": {"get": _operation("getDocument", "This document", {200: _json("OpenAPI", {"type": "object"})})},
        "/api/incidents": {
            "get": _operation(
                "listIncidents",
                "Find incidents, newest first; every filter that is given must hold",
                {200: _json("one page of them", _ref("Incidents"))},
                422,
                parameters=[
                    _query("q", "words that occur (as beginnings) in title, job, notes, names or findings"),
                    _query("status", "state", {"type": "string", "enum": ["", *STATES]}),
                    _query("cause", "the verdict's cause"),
                    _query("host", "part of a host's name"),
                    _query("rank", "a rank", {"type": "string", "pattern": "^[0-9]{0,7}$"}),
                    _query("job", "part of the job name"),
                    _query("since", "first day, UTC, such as 2026-11-21", {"type": "string"}),
                    _query("until", "last day, UTC", {"type": "string"}),
                    _query("culprit", "host and rank must be blamed", {"type": "string", "enum": ["", "0", "1", "true", "false"]}),
                    _query("limit", "rows", {"type": "integer", "minimum": 1, "maximum": MOST_ROWS}),
                    _query("offset", "rows to pass over", {"type": "integer", "minimum": 0, "maximum": 10_000_000}),
                ],
            ),
            "post": _operation(
                "createIncident",
                "Upload evidence in one request: curl -F file=@incident.tar.gz -F title=… URL/api/incidents",
                accepted,
                400,
                408,
                413,
                415,
                422,
                503,
                507,
                requestBody=_body(
                    _object(
                        {
                            "file": {"type": "array", "items": {"type": "string", "format": "binary"}, "minItems": 1},
                            "title": {**_TEXT, "maxLength": 200},
                            "job": {**_TEXT, "maxLength": 200, "description": "name of the training job"},
                        },
                        ("title", "job"),
                    ),
                    "multipart/form-data",
                ),
            ),
        },
        "/api/incidents/{id}": {
            "parameters": [_ID],
            "get": _operation("getIncident", "State, progress and verdict", incident, 404),
            "patch": _operation(
                "changeIncident",
                "Change title, job, notes or pin; with `revision` only if nobody else did meanwhile",
                incident,
                400,
                404,
                408,
                409,
                413,
                415,
                422,
                requestBody=_body(
                    _object(
                        {
                            "title": {**_TEXT, "minLength": 1, "maxLength": 200},
                            "job": _nullable("string", maxLength=200),
                            "notes": {**_TEXT, "maxLength": 100_000},
                            "pinned": {"type": "boolean"},
                            "revision": {"type": ["integer", "null"]},
                        },
                        ("title", "job", "notes", "pinned", "revision"),
                        additionalProperties=False,
                    )
                ),
            ),
            "delete": _operation("deleteIncident", "Delete the incident, its evidence, report and notes", {204: None}, 404),
        },
        **{
            f"/api/incidents/{{id}}/{name}": {
                "parameters": [_ID],
                "get": _operation(
                    operation, summary, {200: ("the file", kind, schema)}, 404, 409, parameters=[_query("download", "as a file to save")]
                ),
            }
            for name, (operation, summary, kind, schema) in results.items()
        },
        "/api/incidents/{id}/events": {
            "parameters": [_ID],
            "get": _operation(
                "watchIncident",
                "Server-sent events `incident` with its state, until it is done or failed, or `deleted`",
                {200: ("events", "text/event-stream; charset=utf-8", _TEXT)},
                404,
            ),
        },
        "/api/incidents/{id}/cancel": {
            "parameters": [_ID],
            "post": _operation("cancelAnalysis", "Stop an analysis that waits or runs", incident, 404, 409),
        },
        "/api/incidents/{id}/analyze": {
            "parameters": [_ID],
            "post": _operation("analyzeAgain", "Read the kept evidence once more", accepted, 404, 409),
        },
        "/api/incidents/{id}/evidence": {
            "parameters": [_ID],
            "delete": _operation("deleteEvidence", "Delete the evidence and keep the report", {204: None}, 404, 409),
        },
        "/api/events": {
            "get": _operation(
                "watchAll",
                "Server-sent events `change` with id, status and progress",
                {200: ("events", "text/event-stream; charset=utf-8", _TEXT)},
            )
        },
        "/api/recurring": {
            "get": _operation("listRecurring", "Hosts, GPUs and causes that came back", {200: _json("most often first", _ref("Recurring"))})
        },
        **{
            path: {
                "get": _operation(
                    operation,
                    summary,
                    {200: ("both and their differences", kind, schema)},
                    404,
                    409,
                    422,
                    parameters=[_query("before", "id", required=True), _query("after", "id", required=True)],
                )
            }
            for path, operation, summary, kind, schema in (
                (
                    "/api/compare",
                    "compareIncidents",
                    "Two finished incidents side by side, as data",
                    "application/json",
                    _ref("Comparison"),
                ),
                ("/api/compare.html", "compareIncidentsPage", "The same as a page, in a sandbox", "text/html; charset=utf-8", _TEXT),
            )
        },
        "/api/uploads": {
            "post": _operation(
                "startUpload",
                "Begin an upload that can be resumed: announce all files, then send their bytes in pieces",
                {201: _json("the upload", _ref("Upload"))},
                400,
                408,
                413,
                415,
                422,
                503,
                507,
                requestBody=_body(
                    _object(
                        {
                            "title": _nullable("string", maxLength=200),
                            "job": _nullable("string", maxLength=200),
                            "files": {
                                "type": "array",
                                "minItems": 1,
                                "maxItems": 10_000,
                                "items": _object({"name": _TEXT, "bytes": _COUNT}),
                            },
                        },
                        ("title", "job"),
                    )
                ),
            )
        },
        "/api/uploads/{id}": {
            "parameters": [_ID],
            "get": _operation("getUpload", "How much of each file has arrived", {200: _json("the upload", _ref("Upload"))}, 404),
            "delete": _operation("cancelUpload", "Give up an upload and delete what arrived", {204: None}, 404, 409),
        },
        "/api/uploads/{id}/files/{number}": {
            "parameters": [
                _ID,
                {
                    "name": "number",
                    "in": "path",
                    "required": True,
                    "schema": {"type": "integer", "minimum": 0},
                    "description": "place in `files`",
                },
            ],
            "put": _operation(
                "appendPiece",
                "Append bytes to a file; what arrives before a broken connection counts",
                {200: _json("bytes of the file that have arrived", _object({"received": _COUNT}))},
                404,
                408,
                409,
                413,
                422,
                503,
                507,
                parameters=[
                    _query(
                        "offset", "bytes that have arrived before", {"type": "integer", "minimum": 0, "maximum": 2**53 - 1}, required=True
                    )
                ],
                requestBody=_body({"type": "string", "format": "binary"}, "application/octet-stream"),
            ),
        },
        "/api/uploads/{id}/finish": {
            "parameters": [_ID],
            "post": _operation("finishUpload", "All bytes are there: queue the incident; may be repeated", accepted, 404, 409),
        },
        "/api/settings": {
            "get": _operation("getSettings", "Retention, limits and sizes", settings),
            "put": _operation(
                "setRetention", "Set what is kept for how long", settings, 400, 408, 413, 415, 422, requestBody=_body(_ref("Retention"))
            ),
        },
    }


@cache
def document() -> dict[str, object]:
    """The whole document."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "nccl-forensics",
            "version": __version__,
            "description": "Upload evidence of a hung, crashed or slow training job; read what was found.",
        },
        "security": [{"token": []}, {"login": []}, {}],
        "paths": _paths(),
        "components": {
            "schemas": _SCHEMAS,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "login": {"type": "apiKey", "in": "cookie", "name": "nccl_forensics_login"},
            },
        },
    }
