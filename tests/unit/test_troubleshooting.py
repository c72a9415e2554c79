"""The page that explains error texts has them as the code writes them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "troubleshooting.md"
TITLES = re.findall(r"^### `(.+)`$", PAGE.read_text(), re.MULTILINE)
_C_STRING = r'"(?:[^"\\\n]|\\.)*"'
# What stands between two literals of one text: a line's end, or values that are appended.
_C_TEXT = re.compile(rf"{_C_STRING}(?:[\s+]*(?:[\w:.>()\[\]*&, -]+\+)?\s*{_C_STRING})*")


def _python_texts(source: str) -> Iterator[str]:
    """All literal texts, with … for values in them."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            parts = node.values
            yield "".join(str(p.value) if isinstance(p, ast.Constant) else "…" for p in parts)


def _c_texts(source: str) -> Iterator[str]:
    for match in _C_TEXT.finditer(source):
        yield re.sub(r'"\s*"', "", match[0])


@pytest.fixture(scope="module")
def texts() -> str:
    found: list[str] = []
    for path in (ROOT / "src").rglob("*.py"):
        found += _python_texts(path.read_text())
    for folder in ("engine", "bindings"):
        for path in (ROOT / folder).rglob("*.*"):
            if path.suffix in (".cc", ".h"):  # names of collectives are in a header
                found += _c_texts(path.read_text())
    return "\n".join(found)


def test_there_are_titles() -> None:
    assert len(TITLES) > 40
    assert len(set(TITLES)) == len(TITLES)


@pytest.mark.parametrize("title", TITLES)
def test_the_code_writes_this_text(title: str, texts: str) -> None:
    for part in title.split("..."):
        assert _is_written(part.split(), texts, 3), f"no message says {part!r}"


def test_a_text_that_nobody_writes_is_noticed(texts: str) -> None:
    words = ["the", "moon", "is", "full;", "no", "further", "operation", "can"]
    assert not _is_written(words, texts, 3)


def _is_written(words: list[str], texts: str, pieces: int) -> bool:
    """Whether the words are in one text, or come from so many, as code puts messages together."""
    if " ".join(words).strip(" ;:,") in texts:
        return True
    return pieces > 1 and any(
        _is_written(words[:cut], texts, 1) and _is_written(words[cut:], texts, pieces - 1)
        for cut in range(1, len(words))
    )
