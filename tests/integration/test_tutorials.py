"""The tutorials: their commands do what the pages show.

The scripts of the others are examples, which other tests run; notebooks run in tests/docs, Slurm's
tutorial in test_slurm.py, that of two machines in tests/hosts.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tutorials import DOCS, follow

PAGES = [DOCS / "quickstart.md", *sorted((DOCS / "tutorials").glob("*.md"))]
ELSEWHERE = {"index", "slurm", "two-machines"}


@pytest.mark.parametrize(
    "page", [page for page in PAGES if "```console" in page.read_text()], ids=lambda page: page.stem
)
def test_commands_do_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    if page.stem == "quickstart":
        pytest.importorskip("torch")
    follow(page, tmp_path)


def test_each_tutorial_is_run() -> None:
    for page in PAGES:
        text = page.read_text()
        assert page.stem in ELSEWHERE or "```console" in text or '--8<-- "examples/' in text, page
