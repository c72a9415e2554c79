"""The built site: each page in a browser, wide and narrow, light and dark; its search."""

from __future__ import annotations

import contextlib
import functools
import http.server
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SITE = Path(__file__).parents[2] / "build" / "site"
CHROMIUM = shutil.which("chromium") or ""
WIDTHS = (1280, 400)
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = [
    pytest.mark.skipif(not CHROMIUM, reason="chromium is not installed"),
]
# The page is wider than the window, or something in it is and no box around it scrolls.
OVERFLOW = """() => {
    const width = document.documentElement.clientWidth;
    const found = document.documentElement.scrollWidth > width ? ["the page"] : [];
    const isClipped = (each) => {
        for (let box = each; box; box = box.parentElement)
            if (getComputedStyle(box).overflowX != "visible") return true;
        return false;
    };
    for (const each of document.querySelectorAll(".md-content *"))
        if (each.getBoundingClientRect().right > width + 1 && !isClipped(each))
            found.push(each.outerHTML.slice(0, 100));
    return found.slice(0, 3);
}"""
# How bright the background and the text are in a scheme of colours, from 0 to 255.
BRIGHTNESS = """(scheme) => {
    document.body.setAttribute("data-md-color-scheme", scheme);
    const mean = (colour) => {
        const [red, green, blue] = colour.match(/[\\d.]+/g).map(Number);
        return (red + green + blue) / 3;
    };
    const text = getComputedStyle(document.querySelector(".md-content p, .md-content td, h1"));
    return [mean(getComputedStyle(document.body).backgroundColor), mean(text.color)];
}"""


class _Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "max-age=3600")  # scripts and styles are loaded once
        super().end_headers()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    assert (SITE / "index.html").exists(), "make docs builds the site"
    handler = functools.partial(_Handler, directory=str(SITE))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def tab(address: str) -> Iterator[Any]:
    """A tab that may load nothing from elsewhere, and must have nothing to complain about."""
    problems: list[str] = []

    def check(request: Any) -> None:
        if not request.url.startswith((address, "data:", "blob:")):
            problems.append(request.url)

    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = browser.new_page()
        tab.set_default_timeout(60_000)
        tab.on("pageerror", lambda error: problems.append(str(error)))
        tab.on("request", check)
        yield tab
        browser.close()
    assert not problems


def test_every_page_fits_the_window_in_light_and_in_dark(address: str, tab: Any) -> None:
    wrong: list[Any] = []
    paths = pages()
    for path in paths:
        tab.set_viewport_size({"width": WIDTHS[0], "height": 800})
        tab.goto(f"{address}/{path}/", wait_until="domcontentloaded")
        for width in WIDTHS:
            tab.set_viewport_size({"width": width, "height": 800})
            wrong += [(path, width, found) for found in tab.evaluate(OVERFLOW)]
        dark, light = (tab.evaluate(BRIGHTNESS, scheme) for scheme in ("slate", "default"))
        if not (dark[0] < 100 < 150 < dark[1] and light[0] > 150 > 100 > light[1]):
            wrong.append((path, dark, light))
    assert len(paths) > 50
    assert not wrong


def test_colours_follow_the_system(address: str, tab: Any) -> None:
    tab.goto(address)
    for scheme, name in (("dark", "slate"), ("light", "default")):
        tab.emulate_media(color_scheme=scheme)
        tab.wait_for_function(f"document.body.dataset.mdColorScheme == '{name}'")


def pages() -> list[str]:
    """All pages; one of those that show a script, since they are alike."""
    paths = sorted(path.parent.relative_to(SITE).as_posix() for path in SITE.rglob("index.html"))
    scripts = [path for path in paths if path.startswith(("examples/", "src/"))]
    return [path for path in paths if path not in scripts[1:]]


def test_search_finds_pages_and_names(address: str, tab: Any) -> None:
    index = json.loads((SITE / "search" / "search_index.json").read_text())
    places = {entry["location"].partition("#")[0] for entry in index["docs"]}
    assert {"", "quickstart/", "settings/", "api/torch/", "tutorials/slow/"} <= places
    results = tab.locator(".md-search-result__list")
    found = results.get_by_text("horovod.torch", exact=True).first
    for number in range(20):
        if number % 5 == 0:  # a script or an index that did not come is not asked for again
            tab.goto(address)
        for words in ("", "broadcast_parameters"):  # the page does not listen at once
            tab.locator(".md-search__input").first.fill(words)
        with contextlib.suppress(playwright.TimeoutError):
            found.wait_for(state="attached", timeout=10_000)
            return
    pytest.fail(f"the search shows {results.inner_text()!r}")
