"""The pages: the same data as the API, as HTML that works with a keyboard, without scripts where that can be, and on a telephone."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from urllib.parse import urlencode

import anyio.to_thread
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from nccl_forensics import __version__
from nccl_forensics.render import asset, render_html
from nccl_forensics.serve import retention, search
from nccl_forensics.serve.access import COOKIE, HEADERS, Sessions, cookie_of, safe_target
from nccl_forensics.serve.clock import iso
from nccl_forensics.serve.incidents import STATES, Incident
from nccl_forensics.serve.problems import Problem, not_found
from nccl_forensics.serve.routes import accepted, incident_of, pair, service_of, shown, store_facts
from nccl_forensics.serve.search import Filter, filter_of
from nccl_forensics.serve.service import Service
from nccl_forensics.serve.uploads import PIECE_BYTES

_LOGIN_BYTES = 8192
_STATUS_WORDS = {
    "explained": "Explained",
    "unexplained": "Unexplained",
    "nothing-wrong": "Nothing wrong",
    "insufficient-evidence": "Not enough evidence",
    "queued": "Waiting",
    "running": "Being read",
    "failed": "Could not be read",
}
STAGES = {
    "waiting": "Waiting for its turn",
    "starting": "Starting",
    "unpacking": "Unpacking",
    "reading": "Reading sources",
    "judging": "Checking and judging",
    "writing": "Writing the postmortem",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """A file that pages load; the address holds its hash, so it may be kept for ever."""

    content: str
    kind: str
    url: str


@cache
def assets() -> Mapping[str, Asset]:
    """By name. The style begins with that of the postmortem, so that both are one family."""
    made = {
        "serve.css": (asset("postmortem.css") + asset("serve/serve.css"), "text/css; charset=utf-8"),
        "serve.js": (asset("serve/serve.js"), "text/javascript; charset=utf-8"),
        "upload.js": (asset("serve/upload.js"), "text/javascript; charset=utf-8"),
        "theme.js": (asset("serve/theme.js"), "text/javascript; charset=utf-8"),
        "icon.svg": (asset("serve/icon.svg"), "image/svg+xml"),
    }
    return {
        name: Asset(content, kind, f"/assets/{name}?v={hashlib.sha256(content.encode()).hexdigest()[:16]}")
        for name, (content, kind) in made.items()
    }


async def serve_asset(request: Request) -> Response:
    """A file that pages load."""
    held = assets().get(str(request.path_params["name"]))
    if held is None:
        raise not_found("file")
    return Response(held.content, media_type=held.kind, headers={"cache-control": "private, max-age=31536000, immutable"})


def page(request: Request, template: str, values: Mapping[str, object], status: int = 200) -> Response:
    """A page of ``reports/serve``."""
    common: dict[str, object] = {
        "assets": {name: a.url for name, a in assets().items()},
        "version": __version__,
        "token": service_of(request).sessions is not None,
        "path": request.url.path,
        "size": size_words,
        "when": time_words,
        "narrow": "",
    }
    return HTMLResponse(render_html(f"serve/{template}", {**common, **values}), status_code=status)


def size_words(size_bytes: int) -> str:
    """Bytes for people, in powers of ten."""
    value = float(size_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 or value == int(value) else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def time_words(time_ms: int | None) -> str:
    """A time for people, UTC to the minute."""
    text = iso(time_ms)
    return f"{text[:10]} {text[11:16]}" if text else "–"


@dataclass(frozen=True, slots=True)
class Row:
    """An incident as lists and pages show it. ``tone`` chooses the colour of the pill; its word says the same."""

    incident: Incident
    word: str
    tone: str
    cause: str
    confidence: str
    headline: str
    lead: str
    culprits: tuple[str, ...]
    more_culprits: int
    stage: str
    done: int
    total: int

    @property
    def active(self) -> bool:
        return self.incident.status in ("queued", "running")


def row_of(service: Service, incident: Incident) -> Row:
    """What a page says of an incident."""
    verdict = incident.verdict if incident.status == "done" and incident.verdict else {}
    tone = str(verdict.get("status") or incident.status)
    headline, _, lead = str(verdict.get("summary") or "").partition(". ")
    listed = verdict.get("culprits")
    culprits = [culprit_words(c) for c in listed if isinstance(c, Mapping)] if isinstance(listed, list) else []
    progress = service.progress(incident.id, incident.status) or {"stage": "", "done": 0, "total": 0}
    cancelled = incident.error_code == "cancelled"
    return Row(
        incident,
        "Cancelled" if cancelled else _STATUS_WORDS.get(tone, tone),
        "cancelled" if cancelled else tone,
        str(verdict.get("cause") or ""),
        str(verdict.get("confidence") or ""),
        headline[:1].upper() + headline[1:],
        lead,
        tuple(culprits[:3]),
        max(0, len(culprits) - 3),
        STAGES.get(str(progress["stage"]), str(progress["stage"])),
        int(str(progress["done"])),
        int(str(progress["total"])),
    )


def culprit_words(culprit: Mapping[str, object]) -> str:
    """One culprit in words."""
    names = (("rank", "rank {}"), ("host", "{}"), ("gpu", "GPU {}"), ("nic", "{}"), ("link", "{}"))
    return " · ".join(form.format(culprit[key]) for key, form in names if culprit.get(key) is not None)


async def home(request: Request) -> Response:
    """The list, with the place to drop evidence at."""
    service = service_of(request)
    notice = ""
    try:
        wanted = filter_of(request.query_params)
    except Problem as problem:
        wanted, notice = Filter(), problem.message
    # In one go in one thread: every change of threads would wait for its turn behind uploads.
    return await anyio.to_thread.run_sync(_home, request, service, wanted, notice)


def _home(request: Request, service: Service, wanted: Filter, notice: str) -> Response:
    found = search.find(service.database, wanted)
    values = {
        "rows": [row_of(service, i) for i in found.incidents],
        "found": found,
        "wanted": wanted,
        "notice": notice,
        "recurring": search.recurring(service.database)[:6],
        "choices": service.choices.get(),
        "states": STATES,
        "store": store_facts(service),
        "piece_bytes": PIECE_BYTES,
        "origin": str(request.base_url).rstrip("/"),
        "older": _page_link(request, wanted.offset + wanted.limit) if wanted.offset + wanted.limit < found.total else "",
        "newer": _page_link(request, max(0, wanted.offset - wanted.limit)) if wanted.offset else "",
    }
    return page(request, "home.html.j2", values)


def _page_link(request: Request, offset: int) -> str:
    query = [(k, v) for k, v in request.query_params.multi_items() if k != "offset"]
    return "/?" + urlencode([*query, ("offset", str(offset))]) + "#incidents"


async def show_incident(request: Request) -> Response:
    """One incident: how far it is, what was found, what was noted."""
    service, incident = service_of(request), await incident_of(request)
    others = await anyio.to_thread.run_sync(search.find, service.database, Filter(status="done", limit=100))
    values = {
        "row": row_of(service, incident),
        "incident": incident,
        "stages": STAGES,
        "state": shown(service, incident),
        "related": await anyio.to_thread.run_sync(search.related, service.database, incident.id),
        "others": [i for i in others.incidents if i.id != incident.id],
        "files": incident.files[:50],
        "more_files": max(0, len(incident.files) - 50),
    }
    return page(request, "incident.html.j2", values)


async def show_comparison(request: Request) -> Response:
    """Two incidents side by side."""
    service = service_of(request)
    before, after = await pair(service, request.query_params)
    return page(request, "compare.html.j2", {"before": row_of(service, before), "after": row_of(service, after)})


async def show_settings(request: Request) -> Response:
    """Retention, and how full the store is."""
    service = service_of(request)
    store = await anyio.to_thread.run_sync(store_facts, service)
    return page(
        request, "settings.html.j2", {"store": store, "retention": await anyio.to_thread.run_sync(retention.load, service.database)}
    )


async def show_help(request: Request) -> Response:
    """How scripts upload."""
    return page(request, "help.html.j2", {"origin": str(request.base_url).rstrip("/")})


async def upload(request: Request) -> Response:
    """The upload form of a browser without scripts."""
    service = service_of(request)
    identifier = await service.uploads.form(request)
    accepted(service, identifier)
    return RedirectResponse(f"/incidents/{identifier}", status_code=303)


async def login_page(request: Request) -> Response:
    """Asks for the token. Loads nothing, because nothing may be loaded without it."""
    return _login(request, safe_target(request.query_params.get("next", "/")), "")


async def login(request: Request) -> Response:
    """The token in exchange for a cookie."""
    service = service_of(request)
    form = await _small_form(request)
    target = safe_target(form.get("next", "/"))
    if service.sessions is None:
        return RedirectResponse(target, status_code=303)
    client = request.client.host if request.client else ""
    if service.sessions.throttled(client):
        return _login(request, target, "Too many wrong tokens. Try again in a minute.", 429)
    if not service.sessions.right(form.get("token", "").strip()):
        service.sessions.failed(client)
        return _login(request, target, "That is not the token.", 401)
    answer = RedirectResponse(target, status_code=303)
    secret = await anyio.to_thread.run_sync(service.sessions.begin)
    # Lax, so that permanent links open from mail and chat; calls that change something are held back by their origin.
    answer.set_cookie(COOKIE, secret, max_age=14 * 86400, path="/", httponly=True, samesite="lax", secure=request.url.scheme == "https")
    return answer


async def logout(request: Request) -> Response:
    """End the login."""
    sessions: Sessions | None = service_of(request).sessions
    if sessions is not None and (secret := cookie_of(request.headers)):
        await anyio.to_thread.run_sync(sessions.end, secret)
    answer = RedirectResponse("/login" if sessions is not None else "/", status_code=303)
    answer.delete_cookie(COOKIE, path="/")
    return answer


async def _small_form(request: Request) -> dict[str, str]:
    from urllib.parse import parse_qsl

    body = bytearray()
    async for piece in service_of(request).gate.pieces(request.receive):
        body += piece
        if len(body) > _LOGIN_BYTES:
            raise Problem(413, "too-large", "that is too much for a login", close=True)
    return dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))


def _login(request: Request, target: str, notice: str, status: int = 200) -> Response:
    style = assets()["serve.css"].content
    answer = page(request, "login.html.j2", {"style": style, "target": target, "notice": notice}, status)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode("ascii")
    answer.headers["content-security-policy"] = HEADERS["content-security-policy"].replace(
        "style-src 'self'", f"style-src 'sha256-{digest}'"
    )
    return answer


def problem_page(request: Request, problem: Problem) -> Response:
    """What went wrong, as a page."""
    return page(request, "problem.html.j2", {"problem": problem}, problem.status)


PAGES: list[Route] = [
    Route("/", home, methods=["GET"]),
    Route("/incidents/{id}", show_incident, methods=["GET"]),
    Route("/compare", show_comparison, methods=["GET"]),
    Route("/settings", show_settings, methods=["GET"]),
    Route("/help", show_help, methods=["GET"]),
    Route("/upload", upload, methods=["POST"]),
    Route("/login", login_page, methods=["GET"]),
    Route("/login", login, methods=["POST"]),
    Route("/logout", logout, methods=["POST"]),
    Route("/assets/{name}", serve_asset, methods=["GET"]),
]
__all__ = ["PAGES", "assets", "problem_page"]
