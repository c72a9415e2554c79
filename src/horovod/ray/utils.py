"""Helpers for scripts that make their own workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import ray

from horovod.core.base.replaced import names_of
from horovod.launch.model.hosts import chosen_interfaces

__all__ = ["map_blocking", "nics_to_env_var"]

__getattr__ = names_of(__name__)


def map_blocking(fn: Callable[[Any], Any], collection: Iterable[Any]) -> list[Any]:
    """The values of the references that ``fn`` returns for each worker; blocks until all exist."""
    return list(ray.get([fn(worker) for worker in collection]))


def nics_to_env_var(nics: str | Iterable[str]) -> dict[str, str]:
    """The variables that limit a worker to these network interfaces."""
    names = ",".join(chosen_interfaces(nics))
    return {"HOROVOD_GLOO_IFACE": names, "NCCL_SOCKET_IFNAME": names}
