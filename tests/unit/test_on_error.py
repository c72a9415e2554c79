"""Blocks that are undone if they fail."""

from __future__ import annotations

import pytest

from horovod.core.base.on_error import on_error


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_block_that_fails_is_undone(kind: type[BaseException]) -> None:
    undone: list[int] = []
    with pytest.raises(kind), on_error(lambda: undone.append(1)):
        raise kind
    assert undone == [1]


def test_a_block_that_ends_well_stays() -> None:
    undone: list[int] = []
    with on_error(lambda: undone.append(1)):
        pass
    assert undone == []
