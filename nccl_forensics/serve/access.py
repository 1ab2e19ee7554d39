"""Who may call: the token, logins that stand for it, and what a foreign page in somebody's browser must not do.

- A call carries the token as ``Authorization: Bearer …`` or the cookie of a login. Both are compared by digest, in constant time.
- A call that changes something must come from our own pages or from no page at all (``Sec-Fetch-Site``, ``Origin``): a form elsewhere that
  posts here is refused, with or without a token, and so is script in the sandbox of a postmortem, whose origin is ``null``.
- Without a token the service answers only under names of this machine, or a page elsewhere could rebind its own name to us and read all.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from urllib.parse import quote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nccl_forensics.serve.arrivals import Incoming, drain
from nccl_forensics.serve.clock import DAY_MS, now_ms
from nccl_forensics.serve.database import Database

COOKIE = "nccl_forensics_login"
_SESSION_MS = 14 * DAY_MS
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_OPEN = frozenset({"/healthz", "/login"})
_TRIES, _TRY_SECONDS, _REMEMBERED = 20, 60.0, 10_000
HEADERS = {
    "x-content-type-options": "nosniff",
    # Not "no-referrer": with it browsers send the origin "null" for our own forms.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "x-frame-options": "DENY",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; frame-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "cache-control": "no-store",
}


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


@dataclass(slots=True)
class Sessions:
    """Logins. The store holds digests only, each bound to the token of its time: a new token ends them all."""

    database: Database
    token: str
    _held: dict[bytes, int] = field(default_factory=dict)
    _failures: deque[tuple[str, float]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        with self.database.write() as connection:
            connection.execute("DELETE FROM sessions WHERE expires_ms < ? OR key <> ?", (now_ms(), _digest(self.token)))
        self._held = {row["digest"]: row["expires_ms"] for row in self.database.read("SELECT digest, expires_ms FROM sessions")}

    def right(self, token: str) -> bool:
        """Whether this is the token."""
        return hmac.compare_digest(_digest(token), _digest(self.token))

    def throttled(self, client: str) -> bool:
        """Whether so many wrong tokens came from an address lately that it may not try for a while."""
        now = time.monotonic()
        while self._failures and now - self._failures[0][1] > _TRY_SECONDS:
            self._failures.popleft()
        return sum(address == client for address, _ in self._failures) >= _TRIES

    def failed(self, client: str) -> None:
        """A wrong token was tried."""
        self._failures.append((client, time.monotonic()))
        if len(self._failures) > _REMEMBERED:
            self._failures.popleft()

    def begin(self) -> str:
        """A new login; returns what its cookie holds."""
        secret = secrets.token_urlsafe(32)
        expires = now_ms() + _SESSION_MS
        with self.database.write() as connection:
            connection.execute("DELETE FROM sessions WHERE expires_ms < ?", (now_ms(),))
            connection.execute("INSERT INTO sessions VALUES (?, ?, ?)", (_digest(secret), _digest(self.token), expires))
        self._held[_digest(secret)] = expires
        return secret

    def end(self, secret: str) -> None:
        """Log out."""
        self._held.pop(_digest(secret), None)
        with self.database.write() as connection:
            connection.execute("DELETE FROM sessions WHERE digest = ?", (_digest(secret),))

    def valid(self, secret: str) -> bool:
        """Whether a cookie is that of a login. What is looked up is a digest, so timing tells nothing of the secret."""
        return self._held.get(_digest(secret), 0) > now_ms()


@dataclass(frozen=True, slots=True)
class Guard:
    """In front of everything else: decides whether a call goes on, and gives every answer its headers."""

    app: ASGIApp
    sessions: Sessions | None
    hosts: frozenset[str]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One call."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        headers, incoming = Headers(scope=scope), Incoming(receive)
        path: str = scope["path"]

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                held = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    held.setdefault(name, value)
            await send(message)

        refused = self._refusal(scope["method"], path, scope.get("query_string", b"").decode("latin-1"), headers)
        if refused is not None:
            await drain(headers, incoming)
        await (refused or self.app)(scope, incoming, send_with_headers)

    def _refusal(self, method: str, path: str, query: str, headers: Headers) -> Response | None:
        if path == "/healthz":
            return None
        if self.hosts and host_name(headers.get("host", "")) not in self.hosts:
            return _no(421, "wrong-host", "this service is not known under that name; see --allowed-host")
        if method not in _SAFE and foreign(headers):
            return _no(403, "foreign-origin", "a page of another origin may not do this")
        if self.sessions is None or path in _OPEN:
            return None
        kind, _, token = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            if self.sessions.right(token.strip()):
                return None
        elif (secret := cookie_of(headers)) and self.sessions.valid(secret):
            return None
        if method in ("GET", "HEAD") and "text/html" in headers.get("accept", ""):
            target = path + (f"?{query}" if query else "")
            return RedirectResponse(f"/login?next={quote(target, safe='')}" if target != "/" else "/login", status_code=303)
        return _no(
            401, "no-token", "send the token as 'Authorization: Bearer …', or log in", {"WWW-Authenticate": 'Bearer realm="nccl-forensics"'}
        )


def _no(status: int, code: str, message: str, headers: dict[str, str] | None = None) -> Response:
    # What follows of the request is not read.
    return JSONResponse({"error": message, "code": code}, status_code=status, headers={"connection": "close", **(headers or {})})


def host_name(host: str) -> str:
    """The name in a ``Host`` header, without its port."""
    if host.startswith("["):
        return host.partition("]")[0].lstrip("[").lower()
    return host.rpartition(":")[0].lower() if host.count(":") == 1 else host.lower()


def foreign(headers: Headers) -> bool:
    """Whether a page of another origin has its hand in this call. Programs that are no browsers send neither header."""
    site = headers.get("sec-fetch-site")
    if site is not None and site not in ("same-origin", "none"):
        return True
    origin = headers.get("origin")
    try:
        return origin is not None and urlsplit(origin).netloc.lower() != headers.get("host", "").lower()
    except ValueError:  # no address at all
        return True


def cookie_of(headers: Headers) -> str | None:
    """The secret in the login cookie."""
    jar: SimpleCookie = SimpleCookie()
    try:
        jar.load(headers.get("cookie", ""))
    except CookieError:
        return None
    return jar[COOKIE].value if COOKIE in jar else None


def local_hosts(more: Iterable[str] = ()) -> frozenset[str]:
    """Names of this machine that no foreign name server can claim."""
    return frozenset({"localhost", "127.0.0.1", "::1", *(name.lower() for name in more)})


def safe_target(target: str) -> str:
    """Where to go after a login: a path of this service and nothing else."""
    return target if target.startswith("/") and not target.startswith(("//", "/\\")) and target.isprintable() else "/"
