"""Process groups for the tests: Horovod's over the world of the session, and Gloo's beside it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import horovod.torch as hvd
import horovod.torch.distributed  # noqa: F401 - before torch 2.5 it registers the backend


@pytest.fixture(scope="package", autouse=True)
def group() -> Iterator[dist.ProcessGroup]:
    """The default group, on the engine that ``hvd`` uses."""
    torch.set_num_threads(1)
    hvd.init()
    dist.init_process_group("horovod", timeout=timedelta(seconds=100))
    yield dist.group.WORLD
    dist.destroy_process_group()
    assert hvd.is_initialized()  # it was there before


@pytest.fixture(scope="package")
def gloo(group: dist.ProcessGroup) -> dist.ProcessGroup:
    """All ranks on torch's own backend."""
    return dist.new_group(backend="gloo")
