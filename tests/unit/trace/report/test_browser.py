"""The page in a real browser: it draws, can be read with keys alone, and on a telephone."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_reports import BEGIN_S, HOSTILE, job, made_page, process_record, records

from horovod.trace.report.facts import Advice
from horovod.trace.report.merge import merged
from horovod.trace.report.page import page
from horovod.trace.report.process_record import record_from_bytes

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
    assert readout.inner_text().startswith("Rank 3 at 2.5")
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


@pytest.mark.parametrize("width", [360, 400])
@pytest.mark.parametrize("size", [1, 8, 256])
def test_a_narrow_screen_scrolls_down_only(show: Show, size: int, width: int) -> None:
    tab = show(made_page(size, name="atensorwithanamethatneverends" * 4, trials=3), width=width)
    tab.locator("details").evaluate_all("all => all.forEach((each) => { each.open = true; })")
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    plot = tab.locator("[data-plot=steps] > svg").bounding_box()
    assert plot["x"] >= 0
    assert plot["x"] + plot["width"] <= width
    clipped = """all => all.filter((each) => each.scrollWidth > each.clientWidth)
        .map((each) => each.getAttribute("aria-label"))"""
    assert tab.locator(".scroll").evaluate_all(clipped) == []


def test_names_of_tensors_break_between_their_parts(show: Show) -> None:
    name = "model.encoder.layers.11.attention.self.query.weight"
    tab = show(made_page(2, name=name), width=400)
    lines = """node => {
        const range = document.createRange();
        return [...node.childNodes].filter((part) => part.nodeType === 3).map((part) => {
            range.selectNodeContents(part);
            return range.getClientRects().length;
        });
    }"""
    assert set(tab.locator("#slow code").first.evaluate(lines)) == {1}


def test_charts_begin_with_the_training(show: Show) -> None:
    late = replace(job(62), begin_s=BEGIN_S - 60)
    tab = show(page(merged(late, records(1))))
    first = tab.locator("[data-plot=steps] > svg path.path").get_attribute("d")
    assert float(first[1:].split(" ")[0]) < 100
    assert tab.get_by_text("1 min 10 s").count() >= 1


def test_what_the_program_has_logged_is_drawn(show: Show) -> None:
    told = process_record(0, 1, seconds=3)
    for second, loss in ((3, 4.0), (4, -1.0), (5, 2.0)):
        told.count(BEGIN_S + 1 + second, BEGIN_S + 2 + second, {"samples": 64, "steps": 1})
        told.log(BEGIN_S + 2 + second, {"loss": loss}, second)
    findings = [Advice("problem", "Rank 1 raised ValueError: bad batch (train.py:19).", "Look.")]
    made = merged(replace(job(8), findings=findings), [record_from_bytes(told.to_bytes())])
    for width in (400, 1280):
        tab = show(page(made), width=width)
        for name in ("logged-0", "samples"):
            assert tab.locator(f'[data-plot={name}] > svg path[d*="L"].path').count() == 1
        assert tab.locator("[data-plot=logged-0] svg text").all_inner_texts().count("0") <= 1
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        tab.locator("[data-plot=logged-0]").focus()
        tab.keyboard.press("End")
        tab.keyboard.press("ArrowLeft")
        assert "rank 0 2" in tab.locator("#training .readout").first.inner_text()


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
