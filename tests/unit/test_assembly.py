"""What a world says of its settings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from horovod.core.assembly import World, submitted_format
from horovod.core.compression import LinkFormat
from horovod.rendezvous.bootstrap import ProcessInfo
from horovod.settings import Settings


def world_of(rank: int) -> World:
    identity = ProcessInfo(rank, 12, rank, 12, 0, 1, "here", "horovodrun")
    return World(identity, cast("Any", None), "native", Settings(), b"key")


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


@pytest.mark.parametrize("is_tuned", [False, True])
def test_formats_to_tune_without_autotuning_are_said(is_tuned: bool) -> None:
    settings = Settings(autotune=is_tuned, autotune_link_compression=("int8",))
    notices = replace(world_of(0), settings=settings).notices()
    assert ["has an effect only with" in notice for notice in notices] == [True] * (not is_tuned)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (Settings(), LinkFormat.EXACT),
        (Settings(autotune=True), LinkFormat.EXACT),
        (Settings(autotune_link_compression=("int8",)), LinkFormat.EXACT),
        (Settings(autotune=True, autotune_link_compression=("int8",)), LinkFormat.TUNED),
        (Settings(link_compression="fp8"), LinkFormat.FP8),
        (Settings(link_compression="mxfp8"), LinkFormat.MXFP8),
        (
            Settings(autotune=True, autotune_link_compression=("int8",), link_compression="fp8"),
            LinkFormat.FP8,
        ),
    ],
)
def test_formats_are_tuned_only_if_they_may_change(
    settings: Settings, expected: LinkFormat
) -> None:
    assert submitted_format(settings) is expected
