"""The pages in a headless Chromium: uploading, following, reading, finding, deleting; keyboard, dark colours, telephones, accessibility."""

from __future__ import annotations

import base64
import shutil
import tarfile
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.serve.running import Running, tarball

pytestmark = pytest.mark.browser
if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_SLOW = 120_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as driver:
        # The sandbox of Chromium does not work for root in a container.
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def complaints() -> list[str]:
    """What the scripts of a page complain about."""
    return []


@pytest.fixture
def page(browser: Browser, service: Running, complaints: list[str]) -> Iterator[Page]:
    """A page of a desktop; what its scripts complain about fails the test."""
    context = browser.new_context(base_url=service.url, viewport={"width": 1440, "height": 1000})
    page = context.new_page()
    page.set_default_timeout(_SLOW)
    page.on("pageerror", lambda problem: complaints.append(str(problem)))
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    yield page
    context.close()
    assert not [c for c in complaints if "ERR_CONNECTION_RESET" not in c]  # a test breaks connections on purpose


_DROP = """async ([files, target]) => {
  const carried = new DataTransfer();
  for (const [name, content] of files) {
    const bytes = Uint8Array.from(atob(content), c => c.charCodeAt(0));
    carried.items.add(new File([bytes], name));
  }
  for (const kind of ["dragenter", "dragover", "drop"]) {
    document.querySelector(target).dispatchEvent(new DragEvent(kind, {dataTransfer: carried, bubbles: true, cancelable: true}));
  }
}"""


def test_a_dropped_tarball_is_followed_to_its_postmortem_and_deleted(page: Page, service: Running, complaints: list[str]) -> None:
    page.goto("/")
    page.get_by_label("Title").fill("dropped by hand")
    page.evaluate(_DROP, [[["incident.tar.gz", base64.b64encode(tarball()).decode()]], "#drop"])
    page.wait_for_url("**/incidents/*")
    # It is watched while it is read, without a reload by hand.
    page.get_by_role("progressbar").wait_for(state="attached")
    page.locator(".pill", has_text="Explained").wait_for()
    assert page.get_by_role("heading", level=1).inner_text() == "dropped by hand"
    postmortem = page.frame_locator("iframe")
    assert "killed" in postmortem.locator("h1").inner_text()
    assert page.locator("iframe").get_attribute("sandbox") == "allow-scripts allow-downloads"
    # Scripts of the postmortem run, and belong to nobody.
    postmortem.locator("html.js").wait_for(state="attached")
    frame = page.frame(url="**/postmortem.html")
    assert frame is not None
    assert frame.evaluate("self.origin") == "null"
    assert frame.evaluate("fetch('/api/incidents').then(() => 'read', () => 'refused')") == "refused"
    assert frame.evaluate("(() => { try { return parent.document.title } catch (problem) { return problem.name } })()") == "SecurityError"
    complaints.clear()  # of the policy, about the two lines above
    identifier = page.url.rsplit("/", 1)[1]
    page.get_by_role("button", name="Delete", exact=True).first.click()
    dialog = page.get_by_role("dialog")
    assert page.evaluate("document.activeElement.textContent") == "Keep"
    dialog.get_by_role("button", name="Delete").click()
    page.wait_for_url(f"{service.url}/")
    assert service.client.get(f"/api/incidents/{identifier}").status_code == 404


def test_a_folder_and_long_names_arrive_as_one_archive(page: Page, service: Running) -> None:
    """The archive that the browser puts together is read by Python's own tar."""
    page.goto("/")
    long_name = "ü" * 60 + "-nccl.log"
    script = """async name => {
      const input = document.getElementById("folder");
      const carried = new DataTransfer();
      for (const [path, size] of [["run/" + name, 700], ["run/node1/a.log", 512], ["run/empty.log", 0]]) {
        const file = new File(["x".repeat(size)], path.split("/").pop());
        Object.defineProperty(file, "webkitRelativePath", {value: path});
        carried.items.add(file);
      }
      // Files lose what was defined on them when they enter a list, so the list is put together here.
      const held = [...carried.files].map((file, n) => { Object.defineProperty(file, "webkitRelativePath", {value: ["run/" + name, "run/node1/a.log", "run/empty.log"][n]}); return file; });
      Object.defineProperty(input, "files", {value: held, configurable: true});
      input.dispatchEvent(new Event("change"));
    }"""
    page.evaluate(script, long_name)
    page.wait_for_url("**/incidents/*")
    [kept] = (service.data / "incidents" / page.url.rsplit("/", 1)[1] / "evidence").iterdir()
    assert kept.name == "run.tar"
    with tarfile.open(kept) as tar:
        assert [(m.name, m.size) for m in tar.getmembers()] == [(f"run/{long_name}", 700), ("run/node1/a.log", 512), ("run/empty.log", 0)]
        content = tar.extractfile("run/node1/a.log")
        assert content is not None
        assert content.read() == b"x" * 512


def test_files_are_picked_and_a_broken_connection_is_mended(page: Page, service: Running) -> None:
    page.goto("/")
    broken: list[str] = []

    def once(route: object, request: object) -> None:
        if len(broken) < 2:
            broken.append("x")
            route.abort("connectionreset")  # type: ignore[attr-defined]
        else:
            route.continue_()  # type: ignore[attr-defined]

    page.route("**/files/0?offset=*", once)
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Choose files").click()
    chooser.value.set_files(
        [
            {"name": "rank0.log", "mimeType": "text/plain", "buffer": b"one\n"},
            {"name": "rank1.log", "mimeType": "text/plain", "buffer": b"two\n"},
        ]
    )
    page.wait_for_url("**/incidents/*")
    assert len(broken) == 2
    state = service.client.get(f"/api/incidents/{page.url.rsplit('/', 1)[1]}").json()
    assert [f["name"] for f in state["files"]] == ["rank0.log", "rank1.log"]
    page.unroute_all()


def test_an_upload_is_cancelled(page: Page, service: Running) -> None:
    page.goto("/")
    page.route("**/files/0?offset=*", lambda route: None)  # it never gets through
    page.evaluate(_DROP, [[["slow.log", base64.b64encode(b"x" * 1000).decode()]], "#drop"])
    page.get_by_role("progressbar", name="Upload of slow.log").wait_for()
    page.get_by_role("button", name="Cancel the upload of slow.log").click()
    page.locator("#uploads li").wait_for(state="detached")
    page.wait_for_function("document.getElementById('toast').textContent.includes('cancelled')")
    end = time.monotonic() + 30
    while [f for f in service.files() if f.startswith("uploads/")]:
        assert time.monotonic() < end
        time.sleep(0.05)
    page.unroute_all()


def test_incidents_are_found_with_the_keyboard_alone(page: Page, done: str) -> None:
    page.goto("/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "q":
            break
    page.keyboard.type("log_metrics")
    page.keyboard.press("Enter")
    page.wait_for_url("**q=log_metrics*")
    assert page.locator(".incidents .row h3").all_inner_texts() == ["step 4200 hang"]
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.getAttribute('href')") == f"/incidents/{done}":
            break
    # The focus can be seen.
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/incidents/{done}")
    page.locator("#notes summary").focus()
    page.keyboard.press("Enter")
    page.locator("#notes-text").fill("drained the node")
    page.keyboard.press("Tab")
    page.locator("#note button").press("Enter")
    page.get_by_text("Saved").wait_for()


def test_another_browser_sees_what_changes(page: Page, service: Running, done: str) -> None:
    page.goto("/?q=seen-elsewhere")
    assert page.locator(".incidents .row").count() == 0
    identifier = service.upload(("x.log", b"nothing of note\n"), title="seen-elsewhere")
    page.locator(".incidents .row").wait_for()
    service.wait(identifier)
    page.locator(".incidents .pill", has_text="Could not be read").wait_for()


def test_colours_follow_the_system_and_the_switch(browser: Browser, service: Running, done: str) -> None:
    context = browser.new_context(base_url=service.url, color_scheme="dark")
    page = context.new_page()
    page.goto(f"/incidents/{done}")
    shade = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(shade)
    assert sum(int(v) for v in dark.removeprefix("rgb(").removesuffix(")").split(",")) < 120
    assert page.frame_locator("iframe").locator("body").evaluate("() => getComputedStyle(document.body).backgroundColor") == dark
    page.get_by_role("button", name="Switch between light and dark").first.click()
    light = page.evaluate(shade)
    assert light == "rgb(255, 255, 255)"
    page.goto("/")
    assert page.evaluate(shade) == light
    context.close()


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (390, "dark")])
def test_pages_are_accessible_and_fit(browser: Browser, service: Running, done: str, width: int, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed").Axe()
    failed = service.upload(("beach.png", b"\x89PNG\r\n\x1a\n" * 9), title="beach")
    service.wait(failed)
    context = browser.new_context(base_url=service.url, viewport={"width": width, "height": 844}, color_scheme=scheme, bypass_csp=True)
    page = context.new_page()
    for path in (
        "/",
        f"/incidents/{done}",
        f"/incidents/{failed}",
        f"/compare?before={done}&after={done}",
        "/settings",
        "/help",
        "/login",
        "/nothing",
    ):
        page.goto(path)
        if page.locator("details").count():
            page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
        found = axe.run(page, options={"resultTypes": ["violations"]}).response["violations"]
        serious = [(v["id"], [n["html"] for n in v["nodes"]][:3]) for v in found if v["impact"] in ("serious", "critical")]
        assert not serious, (path, serious)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
    context.close()
    service.client.delete(f"/api/incidents/{failed}")
