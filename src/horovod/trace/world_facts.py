"""The description of a world in recordings and presence files, checked: files may be damaged."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from horovod.core.base.checked import Fields

MOST_RANK = (1 << 31) - 1
_TEXTS = ("job", "world", "threads", "data_plane", "horovod", "python", "system")
_NUMBERS = ("size", "generation", "cores")


def world_and_rank(fields: Fields) -> tuple[Mapping[str, Any], int]:
    """The fields ``world`` and ``rank`` of a file; in a world, all fields may be missing.

    Raises:
        BadMessageError: a field has another type than the engine writes, or a rank is not among
            ``ranks`` of the world.
    """
    world = fields.fields("world")
    for name in world.names:
        if name in _TEXTS:
            world.text(name)
        elif name in _NUMBERS:
            world.integer(name)
    ranks = world.texts("ranks") if "ranks" in world.names else ()
    if "settings" in world.names:
        world.texts_by_name("settings")
    hosts = world.values.get("hosts", [])
    if not isinstance(hosts, list) or not all(_is_host(host, len(ranks)) for host in hosts):
        raise world.error("hosts", hosts, f"lists of ranks below {len(ranks)}")
    return world.values, fields.integer("rank", 0, len(ranks) - 1 if ranks else MOST_RANK)


def _is_host(host: Any, size: int) -> bool:
    return (
        isinstance(host, list)
        and len(host) > 0
        and all(type(rank) is int and 0 <= rank < size for rank in host)
    )


def system_name() -> str:
    """Such as ``Linux-6.1.0-x86_64``. Unlike ``platform.platform`` it starts no process."""
    system = os.uname()
    return f"{system.sysname}-{system.release}-{system.machine}"
