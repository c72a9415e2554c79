"""Whom an error of a world is about."""

from __future__ import annotations

from typing import Any, cast

import pytest

from horovod.assembly import World
from horovod.rendezvous.meeting import Identity
from horovod.settings import Settings

NAMES = tuple(f"rank {rank} (pid {100 + rank} on here)" for rank in range(12))


def world_of(rank: int) -> World:
    identity = Identity(rank, 12, rank, 12, 0, 1, "here", "horovodrun")
    return World(identity, cast("Any", None), "native", NAMES, Settings(), b"key")


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        (f"allreduce 'x': {NAMES[1]} died; no further operation can complete", [1]),
        (f"'x' waits. Missing ranks: 1, 10 ({NAMES[1]}, {NAMES[10]}). They may run other", [1, 10]),
        (f"lost the connection to {NAMES[2]}: broken pipe", [2]),
        (f"allreduce 'x': {NAMES[1]} has shut down; no further operation", []),
        (f"{NAMES[1]} has given up; {NAMES[2]} died", [2]),
        (f"{NAMES[0]} died", []),
        ("rank 3 was mentioned without its pid", []),
    ],
)
def test_ranks_that_are_missing(text: str, ranks: list[int]) -> None:
    assert world_of(0).missing_in(text) == ranks
