"""Who may call: tokens, logins, foreign pages, names of the host, and where the service may be bound."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from starlette.datastructures import Headers
from starlette.types import Message

from nccl_forensics.errors import UsageError
from nccl_forensics.serve.access import Sessions, host_name, local_hosts, safe_target
from nccl_forensics.serve.arrivals import Incoming, drain
from nccl_forensics.serve.database import Database
from nccl_forensics.serve.server import check_reach
from nccl_forensics.serve.settings import Settings, is_loopback, read_token
from tests.corpus import ROOT
from tests.serve.running import Running, running

TOKEN = "correct-horse-battery-staple"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("serve") / "data", token=TOKEN) as service:
        yield service


def test_every_call_but_the_health_check_needs_the_token(guarded: Running) -> None:
    with httpx.Client(base_url=guarded.url) as anyone:
        assert anyone.get("/healthz").status_code == 200
        for method, path in (
            ("GET", "/api/incidents"),
            ("POST", "/api/incidents"),
            ("GET", "/assets/serve.js"),
            ("GET", "/api/openapi.json"),
        ):
            answer = anyone.request(method, path)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, 'Bearer realm="nccl-forensics"'), path
        wrong = anyone.get("/api/incidents", headers={"Authorization": f"Bearer {TOKEN}x"})
        assert (wrong.status_code, wrong.json()["code"]) == (401, "no-token")
        assert anyone.get("/api/incidents", headers={"Authorization": f"bearer {TOKEN}"}).status_code == 200


def test_a_refused_upload_gets_its_answer_while_it_still_sends(guarded: Running) -> None:
    with httpx.Client(base_url=guarded.url) as anyone:
        answer = anyone.post("/api/incidents", files={"file": ("x", b"x" * (4 << 20))})
        assert (answer.status_code, answer.json()["code"]) == (401, "no-token")
    assert guarded.client.post("/api/incidents", content=b"x" * (4 << 20), headers={"Content-Type": "text/plain"}).status_code == 415


def test_a_refusal_does_not_wait_for_a_client_that_has_sent_all_of_its_body() -> None:
    messages = [{"type": "http.request", "body": b"abc", "more_body": True}, {"type": "http.request", "body": b"d"}]

    async def receive() -> Message:
        return messages.pop(0)  # raises where it is asked once more

    async def refuse() -> None:
        incoming = Incoming(receive)
        await drain(Headers({}), incoming)
        assert not messages
        await drain(Headers({}), incoming)

    asyncio.run(refuse())


def test_a_browser_logs_in_with_the_token_and_out_again(guarded: Running) -> None:
    with httpx.Client(base_url=guarded.url, headers={"Accept": "text/html"}) as browser:
        turned = browser.get("/incidents/abc?x=1")
        assert (turned.status_code, turned.headers["location"]) == (303, "/login?next=%2Fincidents%2Fabc%3Fx%3D1")
        page = browser.get("/login?next=/settings")
        assert 'value="/settings"' in page.text
        assert "'unsafe-inline'" not in page.headers["content-security-policy"]
        assert browser.post("/login", data={"token": "wrong"}).status_code == 401
        done = browser.post("/login", data={"token": TOKEN, "next": "//evil.example/"})
        assert (done.status_code, done.headers["location"]) == (303, "/")
        cookie = done.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=lax" in cookie
        assert TOKEN not in cookie
        assert browser.get("/").status_code == 200
        secret = dict(browser.cookies)
        assert browser.post("/logout").status_code == 303
        # The cookie is void on the server, too.
        assert httpx.get(f"{guarded.url}/api/incidents", cookies=secret).status_code == 401


def test_wrong_tokens_are_slowed_down(guarded: Running) -> None:
    with httpx.Client(base_url=guarded.url) as browser:
        codes = [browser.post("/login", data={"token": str(n)}).status_code for n in range(25)]
    assert codes[0] == 401
    assert codes[-1] == 429
    assert guarded.client.get("/api/incidents").status_code == 200


def test_logins_survive_a_restart_and_end_with_the_token(tmp_path: Path) -> None:
    first = Sessions(Database(tmp_path / "s.sqlite"), "one-token")
    secret = first.begin()
    assert Sessions(Database(tmp_path / "s.sqlite"), "one-token").valid(secret)
    assert not Sessions(Database(tmp_path / "s.sqlite"), "another-token").valid(secret)
    assert not first.valid(secret + "x")
    assert secret.encode() not in (tmp_path / "s.sqlite").read_bytes()


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "http://["},
    ],
)
def test_a_foreign_page_changes_nothing(service: Running, headers: dict[str, str]) -> None:
    for method, path in (
        ("POST", "/api/incidents"),
        ("DELETE", "/api/incidents/aaaaaaaaaaaa"),
        ("PUT", "/api/settings"),
        ("POST", "/upload"),
    ):
        answer = service.client.request(method, path, headers=headers, json={})
        assert (answer.status_code, answer.json()["code"]) == (403, "foreign-origin"), path


def test_our_own_pages_and_programs_may(service: Running) -> None:
    for headers in ({}, {"Origin": service.url, "Sec-Fetch-Site": "same-origin"}):
        assert service.client.put("/api/settings", json={}, headers=headers).status_code == 200


def test_without_a_token_only_names_of_this_machine_are_answered(service: Running) -> None:
    answer = service.client.get("/api/incidents", headers={"Host": "rebound.example"})
    assert (answer.status_code, answer.json()["code"]) == (421, "wrong-host")
    assert service.client.get("/api/incidents", headers={"Host": "localhost:1234"}).status_code == 200


def test_every_answer_has_strict_headers(service: Running) -> None:
    for path in ("/", "/api/incidents", "/nothing", "/api/nothing", "/settings", "/help"):
        headers = service.client.get(path).headers
        assert headers["x-content-type-options"] == "nosniff", path
        assert headers["x-frame-options"] == "DENY"
        assert "default-src 'none'; script-src 'self'; style-src 'self'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["cache-control"] == "no-store"
        assert "server" not in headers


def test_it_is_not_bound_elsewhere_without_a_token(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="token"):
        check_reach("0.0.0.0", Settings(tmp_path), insecure=False)
    check_reach("0.0.0.0", Settings(tmp_path, token=TOKEN), insecure=False)
    check_reach("0.0.0.0", Settings(tmp_path), insecure=True)
    check_reach("::1", Settings(tmp_path), insecure=False)
    done = subprocess.run(
        [sys.executable, "-m", "nccl_forensics.cli", "serve", "--host", "0.0.0.0", "--data", str(tmp_path / "d")],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 2
    assert "--token-file" in done.stderr
    assert not (tmp_path / "d").exists()


def test_loopback_is_told_from_what_others_reach() -> None:
    assert all(is_loopback(h) for h in ("127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost"))
    assert not any(is_loopback(h) for h in ("0.0.0.0", "::", "10.0.0.1", "node-07", "localhost.example.com"))


def test_tokens_are_read_strictly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t").write_text(f"{TOKEN}\n")
    assert read_token(tmp_path / "t") == TOKEN
    (tmp_path / "t").write_text(" \n")
    with pytest.raises(UsageError, match="empty"):
        read_token(tmp_path / "t")
    monkeypatch.setenv("NCCL_FORENSICS_TOKEN", "two words")
    with pytest.raises(UsageError, match="printable"):
        read_token(None)
    with pytest.raises(UsageError, match="cannot be read"):
        read_token(tmp_path / "absent")


def test_names_and_targets_are_cut_right() -> None:
    assert [host_name(h) for h in ("a:80", "[::1]:80", "[::1]", "A.b", "")] == ["a", "::1", "::1", "a.b", ""]
    assert "::1" in local_hosts()
    assert [safe_target(t) for t in ("/x?y=1", "//evil", "/\\evil", "https://evil", "", "/a\nb")] == ["/x?y=1", "/", "/", "/", "/", "/"]
