"""The page in a real browser: it draws, can be read with keys alone, and on a telephone."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from made_reports import HOSTILE, made_page

CHROMIUM = shutil.which("chromium") or ""
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="chromium is not installed")

Show = Callable[..., Any]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Iterator[Show]:
    """Opens a page of a job; afterwards the browser must have had nothing to complain about."""
    problems: list[str] = []
    opened = []

    def show(text: str, width: int = 1200, scheme: str = "light") -> Any:
        (tmp_path / "report.html").write_text(text, encoding="utf-8")
        context = browser.new_context(
            viewport={"width": width, "height": 800}, color_scheme=scheme, offline=True
        )
        opened.append(context)
        tab = context.new_page()
        tab.on("console", lambda message: problems.append(message.text))
        tab.on("pageerror", lambda error: problems.append(str(error)))
        tab.goto(f"file://{tmp_path}/report.html")
        return tab

    yield show
    for context in opened:
        context.close()
    assert not problems


def ink(tab: Any) -> int:
    """How many colours the heat map has."""
    return int(
        tab.evaluate("""() => {
        const canvas = document.querySelector("canvas");
        const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        return new Set(new Uint32Array(data.buffer)).size;
    }""")
    )


@pytest.mark.parametrize("size", [1, 2, 8, 256])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_charts_are_drawn(show: Show, size: int, scheme: str) -> None:
    tab = show(made_page(size, trials=3), scheme=scheme)
    lines = 1 if size > 8 else size
    for name in ("steps", "bandwidth"):
        assert tab.locator(f'[data-plot={name}] > svg path[d*="L"].path').count() == lines
    assert ink(tab) > 3
    assert tab.locator("[data-plot=trials] circle.dot").count() == 3 + 1  # of the legend


def test_keys_alone_reach_all_of_it(show: Show) -> None:
    tab = show(made_page(8, trials=3))
    reached = set()
    for _ in range(60):
        tab.keyboard.press("Tab")
        reached.add(tab.evaluate(
            "document.activeElement.dataset.plot || document.activeElement.name"
            " || document.activeElement.localName"
        ))  # fmt: skip
    assert {"steps", "heat", "bandwidth", "trials", "measure", "summary", "a"} <= reached
    heat = tab.locator("[data-plot=heat]")
    heat.focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowDown", "ArrowDown"):
        tab.keyboard.press(key)
    readout = tab.locator("#waits .readout")
    assert readout.inner_text().startswith("Rank 3 at 1.5")
    assert readout.inner_text().endswith("waiting 1 %")
    tab.locator("[data-plot=steps]").focus()
    tab.keyboard.press("End")
    tab.keyboard.press("ArrowLeft")
    assert "rank 0 20 ms" in tab.locator("#steps .readout").inner_text()


def test_what_the_heat_map_shows_can_be_chosen(show: Show) -> None:
    tab = show(made_page(2))
    tab.get_by_role("radio", name="step time").check()
    assert "20 ms" in tab.locator(".ramp").inner_text()
    tab.locator("[data-plot=heat]").hover()
    assert "step time 20 ms" in tab.locator("#waits .readout").inner_text()


@pytest.mark.parametrize("size", [1, 8, 256])
def test_a_narrow_screen_scrolls_down_only(show: Show, size: int) -> None:
    tab = show(made_page(size, name="a_tensor_with_a_name_that_never_ends" * 3), width=360)
    tab.locator("details").evaluate_all("all => all.forEach((each) => { each.open = true; })")
    assert tab.evaluate("document.documentElement.scrollWidth") <= 360
    plot = tab.locator("[data-plot=steps] > svg").bounding_box()
    assert plot["x"] >= 0
    assert plot["x"] + plot["width"] <= 360


def test_texts_of_the_job_stay_texts(show: Show) -> None:
    tab = show(made_page(2, name=HOSTILE))
    assert tab.locator("b").count() == 0
    assert tab.get_by_text(f"{HOSTILE}.0", exact=True).count() == 1


def test_every_chart_has_its_numbers_and_every_section_a_heading(show: Show) -> None:
    tab = show(made_page(8, trials=3))
    for section in tab.locator("section").all():
        assert section.locator("h2").count() == 1
        assert section.locator("table").count() >= 1
        assert section.locator("table caption, table thead th").count() >= 2
    assert tab.locator("h1").count() == 1
