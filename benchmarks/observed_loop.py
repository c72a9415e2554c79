"""The loop of ``observability.py``, in one world after another; runs in the workers."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Mapping

from contestants import Horovod, Operation
from training_loop import TrainingLoop

import horovod.torch as hvd

__all__ = ["FORMS", "ObservedLoop"]

# 1000 operations: how they are started.
FORMS = ("one call each", "one call")
_TENSORS, _ELEMENTS = 1000, 1024
_WARM_BYTES = 128 << 20
_SETTLING = 3  # iterations at the beginning of a world


class ObservedLoop(TrainingLoop):
    """Training steps, or a thousand operations, in the same process and memory."""

    def __init__(self, contestant: Horovod) -> None:
        super().__init__(contestant)
        tensors = [contestant.tensor(_ELEMENTS) for _ in range(_TENSORS)]
        makers: tuple[Callable[..., Operation], ...] = (contestant.many, contestant.batched)
        self._operations = {form: make(tensors) for form, make in zip(FORMS, makers, strict=True)}

    def choose(self, *, form: str) -> None:
        """Measure these operations instead of a model's step."""
        self._run = self._operations[form]

    def use(self, *, environment: Mapping[str, str | None]) -> None:
        """Start a new world with these variables; None unsets one."""
        hvd.shutdown()
        _warm_memory()
        for name, value in environment.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        hvd.init()
        for _ in range(_SETTLING):
            self._run()


def _warm_memory() -> None:
    """Make the machine's free memory available.

    After some seconds a virtual machine has to get unused memory from its host again, page by
    page. This takes so long that it would hide everything else.
    """
    with mmap.mmap(-1, _WARM_BYTES) as memory:
        for page in range(0, _WARM_BYTES, mmap.PAGESIZE):
            memory[page] = 1
