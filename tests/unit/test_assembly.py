"""Whom an error of a world is about."""

from __future__ import annotations

from dataclasses import replace
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


@pytest.mark.parametrize(
    ("level", "plane", "is_said"),
    [
        ("encrypted", "mpi", True),
        ("integrity", "gloo", True),
        ("control", "gloo", False),
        ("encrypted", "native", False),
    ],
)
def test_a_protection_that_does_not_cover_the_data_plane_is_said(
    level: str, plane: str, is_said: bool
) -> None:
    world = replace(
        world_of(0),
        settings=Settings(link_protection=level),
        data_plane_name=plane,
        data_plane=None if plane == "native" else cast("Any", object()),
    )
    text = (
        f"HOROVOD_LINK_PROTECTION={level}: tensors travel over {plane}, which it does not protect"
    )
    assert [notice.startswith(text) for notice in world.notices()] == [True] * is_said
