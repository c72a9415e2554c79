"""docs/new-framework.md says what is so: its paths and names exist, and so does what it lists."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "new-framework.md").read_text()
CODE = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", PAGE, flags=re.MULTILINE | re.DOTALL))
PATHS = [code for code in CODE if re.fullmatch(r"[\w.-]+(/[\w.-]+)+/?", code)]
FILES = (".md", ".py", ".toml", ".yml", ".X")
NAMES = [
    f"horovod.{code.removeprefix('horovod.')}"
    for code in CODE
    if re.fullmatch(r"\w+(\.\w+)+", code)
    and not code.endswith((".md", ".py", ".toml", ".yml", ".X"))
]
FRAMEWORKS = [name for name in ("jax", "mxnet") if (ROOT / "src" / "horovod" / name).is_dir()]


def rows_of(heading: str) -> list[list[str]]:
    """The cells of the first table below a heading, without its head."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_paths_exist():
    assert len(PATHS) > 20
    of_jax = [re.sub(r"(?<![A-Za-z])X(?![A-Za-z])", "jax", path) for path in PATHS]
    assert [path for path in of_jax if not (ROOT / path).exists()] == []


def test_names_exist():
    assert len(NAMES) > 10
    for name in NAMES:
        module, _, attribute = name.rpartition(".")
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            assert hasattr(importlib.import_module(module), attribute), name


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_count_of_files_touched(framework):
    column = ("jax", "mxnet").index(framework)
    rows = [row for row in rows_of("Where it is registered") if row[2 + column] == "yes"]
    touched = {path for row in rows for path in re.findall(r"`([^`]+)`", row[0])}
    counts = {row[0]: row[1:] for row in rows_of("How much it is")}
    assert len(touched) == int(counts["existing files touched"][column])
    for path in touched:
        assert re.search(framework, (ROOT / path).read_text(), re.IGNORECASE), path
