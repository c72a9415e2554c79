"""``prepare_data`` and helpers, at their documented import path."""

from __future__ import annotations

import hashlib
import os
from typing import Any

from horovod.rendezvous.identity.host_id import this_host_id
from horovod.spark.common.preparation import prepare_data
from horovod.spark.common.store import ON_DATABRICKS

__all__ = ["host_hash", "is_databricks", "prepare_data", "to_list"]


def is_databricks() -> bool:
    """Whether this process runs on Databricks."""
    return ON_DATABRICKS in os.environ


def host_hash(salt: str | None = None) -> str:
    """A text that is equal in processes that can share memory, for the same ``salt``."""
    digest = hashlib.sha256(f"{this_host_id().host}-{salt or ''}".encode()).hexdigest()
    return f"{os.uname().nodename.partition('.')[0]}-{digest[:32]}"


def to_list(var: Any, length: int) -> list[Any] | None:
    """``var`` as a list of ``length``; one element, or another value, is repeated. None stays None.

    Raises:
        ValueError: the list has another length.
    """
    if var is None:
        return None
    found = var if isinstance(var, list) else [var]
    if len(found) == 1:
        return found * length
    if len(found) != length:
        raise ValueError(f"found a list of {len(found)}, expected {length} elements, or one")
    return found
