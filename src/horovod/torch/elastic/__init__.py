"""Elastic training with torch: ``@hvd.elastic.run def train(state): ...``.

The training function is called again, from the last commit, after a collective failed. In an
elastic job the new world has the processes that exist by then, in others all processes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from horovod.core.world import restart
from horovod.elastic import run_fn
from horovod.torch.elastic.sampler import ElasticSampler
from horovod.torch.elastic.state import TorchState

__all__ = ["ElasticSampler", "TorchState", "run"]

R = TypeVar("R")


def run(func: Callable[..., R]) -> Callable[..., R]:
    """Decorate ``func(state, *args, **kwargs)`` so that it survives failed collectives.

    Call ``hvd.init()`` before, use no other collective between the two, and keep all that training
    needs in ``state``. Each call starts with ``state.sync()``. After a ``HorovodInternalError`` the
    state goes back to its last commit; after a ``HostsUpdatedInterrupt`` it stays; then the engine
    is shut down and started again, which waits for all ranks (``HOROVOD_START_TIMEOUT``, in an
    elastic job as long as its launcher does), reset callbacks run, and ``func`` is called again.
    Every rank has to run the same function.

    Returns:
        A function with the same arguments; it returns what ``func`` returns.

    Raises:
        MismatchError: ranks disagree about a collective; a bug would only come again.
        InitError: (a ``ValueError``) not all ranks came back, or the job goes on without
            this process; the text says which.
        Exception: anything else that ``func`` raises.
    """
    return run_fn(func, restart)
