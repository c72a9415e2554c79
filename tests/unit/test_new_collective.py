"""docs/new-collective.md says what is so: its paths and names exist; the tables agree."""

from __future__ import annotations

import importlib
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from horovod import _native
from horovod.core.operations import COLLECTIVES, Kind, Result

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "new-collective.md").read_text()
CODE = re.findall(r"`([^`\n]+)`", PAGE)
PATHS = [code for code in CODE if re.fullmatch(r"[\w.-]+(/[\w.-]+)+", code)]
NAMES = sorted({code for code in CODE if re.fullmatch(r"horovod(\.\w+)+", code)})
TOUCHED = re.findall(r"^\| `([^`]+)` \|", PAGE.partition("## What needs")[0], re.MULTILINE)


def test_paths_exist():
    assert len(PATHS) > 20
    real = [path.replace("/gather.", "/reduce_scatter.") for path in PATHS]
    assert [path for path in real if not (ROOT / path).exists()] == []


def is_module(name: str) -> bool:
    """Also of a framework that is not installed."""
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


@pytest.mark.parametrize("name", NAMES)
def test_names_exist(name):
    module, _, attribute = name.rpartition(".")
    assert is_module(name) or hasattr(importlib.import_module(module), attribute)


def test_at_most_fifteen_files():
    assert len(TOUCHED) == len(set(TOUCHED)) <= 15
    assert f"These are {len(TOUCHED)} files" in PAGE


def test_every_kind_has_a_row():
    assert set(COLLECTIVES) == set(Kind)


def test_tables_agree():
    for row in _native.COLLECTIVES:
        ours = COLLECTIVES[Kind(row.kind)]
        assert row.name == Kind(row.kind).name.lower()
        assert row.is_reduction == bool(ours.ops)
        assert row.has_root == ("root_rank" in ours.arguments)
        assert row.has_splits == ("splits" in ours.arguments)
        assert row.may_be_grouped == ours.is_grouped
        assert row.is_differentiable == bool(ours.gradient_ops)
        assert row.has_tensors == (ours.result not in (Result.NOTHING, Result.LAST_RANK))
        assert row.keeps_shape == (ours.result is Result.SAME_SHAPE)
