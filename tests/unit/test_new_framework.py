"""docs/new-framework.md says what is so: its paths and names exist, its counts are right."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "new-framework.md").read_text()
CODE = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", PAGE, flags=re.MULTILINE | re.DOTALL))
PATHS = [code for code in CODE if re.fullmatch(r"[\w.-]+(/[\w.-]+)+/?", code)]
NAMES = [
    f"horovod.{code.removeprefix('horovod.')}"
    for code in CODE
    if re.fullmatch(r"\w+(\.\w+)+", code) and not code.endswith((".md", ".py", ".toml", ".X"))
]
FRAMEWORKS = [name for name in ("jax", "mxnet") if (ROOT / "src" / "horovod" / name).is_dir()]


def of(framework: str, path: str) -> Path:
    return ROOT / re.sub(r"(?<![A-Za-z])X(?![A-Za-z])", framework, path)


def rows_of(heading: str) -> list[list[str]]:
    """The cells of the first table below a heading, without its head."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_paths_exist():
    assert len(PATHS) > 20
    assert [path for path in PATHS if not of("jax", path).exists()] == []


def test_names_exist():
    assert len(NAMES) > 10
    for name in NAMES:
        module, _, attribute = name.rpartition(".")
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            assert hasattr(importlib.import_module(module), attribute), name


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_counts_of_own_files(framework):
    column = 1 + ("jax", "mxnet").index(framework)
    folders = [row for row in rows_of("How much it is") if "`" in row[0]]
    for row in folders:
        counted = [int(number) for number in row[column].split("+")]
        page = [int((ROOT / "docs" / f"{framework}.md").exists())] if "page" in row[0] else []
        found = [count_files(framework, path) for path in re.findall(r"`([^`]+)`", row[0])]
        assert counted == page + found, row[0]


def count_files(framework: str, path: str) -> int:
    folder = of(framework, path)
    pattern = "*" if folder.name == framework else f"*{framework}*"
    return sum(
        file.suffix in (".py", ".h", ".cc") for file in folder.rglob(pattern) if file.is_file()
    )


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_count_of_files_touched(framework):
    column = ("jax", "mxnet").index(framework)
    rows = [row for row in rows_of("Where it is registered") if row[2 + column] == "yes"]
    touched = {path for row in rows for path in re.findall(r"`([^`]+)`", row[0])}
    counts = {row[0]: row[1:] for row in rows_of("How much it is")}
    assert len(touched) == int(counts["existing files touched"][column])
    for path in touched:
        assert re.search(framework, (ROOT / path).read_text(), re.IGNORECASE), path
