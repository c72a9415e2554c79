"""Every name, call and member of the table is there; each framework is imported once."""

from __future__ import annotations

import facts
import pytest


@pytest.mark.parametrize("module", facts.modules())
def test_module(module: facts.Module) -> None:
    assert facts.differences(module) == []


def test_the_table_is_whole() -> None:
    documented, found = facts.counts()
    assert found == documented


@pytest.mark.parametrize(
    ("text", "difference"),
    [
        ("tensor, root_rank, name=None", []),
        ("tensor, root, name=None", ["parameter 2 is not root"]),
        ("tensor, name=None", ["parameter 2 is not name"]),
        ("tensor, root_rank, name='x'", ["name is None by default, not 'x'"]),
        ("tensor", ["root_rank is required here only"]),
    ],
)
def test_the_table_is_compared(text: str, difference: list[str]) -> None:
    def broadcast(tensor: object, root_rank: int, name: str | None = None, more: int = 0) -> None:
        """One of ours."""

    module = facts.Module("horovod.common.util", [], {"f": text}, {}, {})
    found = list(facts.call_differences(broadcast, module.calls["f"]))
    assert len(found) >= len(difference)
    assert all(line.startswith(start) for line, start in zip(found, difference, strict=False))
    assert bool(found) == bool(difference)


def test_what_is_missing_is_named() -> None:
    module = facts.Module(
        "horovod.common.elastic", ["State", "Walk"], {}, {"State": ["fly"]}, {"__name__": "walk"}
    )
    assert facts.differences(module) == [
        "Walk is missing",
        "State.fly is missing",
        "__name__ is 'horovod.common.elastic', not 'walk'",
    ]
