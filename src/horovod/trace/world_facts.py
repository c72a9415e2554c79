"""The description of a world in recordings and presence files, checked: files may be damaged.

Errors are ValueErrors with the field, the value that was found and what was expected.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

_MOST = (1 << 63) - 1
_SHOWN = 60
_TEXTS = ("job", "world", "threads", "data_plane", "horovod", "python", "system")
_NUMBERS = ("size", "generation", "cores")


def whole_number(
    fields: Mapping[str, Any], name: str, *, least: int = 0, most: int | None = None
) -> int:
    """The field of that name, if it is an integer from ``least`` to ``most``."""
    value = fields.get(name)
    limit = _MOST if most is None else most
    if type(value) is not int or not least <= value <= limit:
        raise _unexpected(name, value, f"a whole number from {least} to {limit}")
    return value


def text_field(fields: Mapping[str, Any], name: str) -> str:
    """The field of that name, if it is a text."""
    value = fields.get(name)
    if not isinstance(value, str):
        raise _unexpected(name, value, "a text")
    return value


def checked_world(world: Any) -> Mapping[str, Any]:
    """``world``, if it is an object whose fields have the types that the engine writes.

    Fields may be missing; the ranks in ``hosts`` must be among ``ranks``.
    """
    if not isinstance(world, dict):
        raise _unexpected("world", world, "an object")
    for name in _TEXTS:
        if name in world:
            text_field(world, name)
    for name in _NUMBERS:
        if name in world:
            whole_number(world, name)
    ranks, hosts = world.get("ranks", []), world.get("hosts", [])
    if not isinstance(ranks, list) or not all(isinstance(text, str) for text in ranks):
        raise _unexpected("world.ranks", ranks, "a list of texts")
    if not isinstance(hosts, list) or not all(_is_host(host, len(ranks)) for host in hosts):
        raise _unexpected("world.hosts", hosts, f"lists of ranks below {len(ranks)}")
    settings = world.get("settings", {})
    if not isinstance(settings, dict) or not all(isinstance(v, str) for v in settings.values()):
        raise _unexpected("world.settings", settings, "an object of texts")
    return world


def _is_host(host: Any, size: int) -> bool:
    return (
        isinstance(host, list)
        and len(host) > 0
        and all(type(rank) is int and 0 <= rank < size for rank in host)
    )


def _unexpected(name: str, value: Any, expected: str) -> ValueError:
    found = repr(value)
    shown = found if len(found) <= _SHOWN else f"{found[:_SHOWN]}..."
    return ValueError(f"{name}: found {shown}, expected {expected}")


def system_name() -> str:
    """Such as ``Linux-6.1.0-x86_64``. Unlike ``platform.platform`` it starts no process."""
    system = os.uname()
    return f"{system.sysname}-{system.release}-{system.machine}"
