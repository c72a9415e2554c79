"""What ``observability.py`` measures, in worlds that follow each other; runs in the workers."""

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
    """Steps of training, or a thousand operations without any, in the same process and memory."""

    def __init__(self, contestant: Horovod) -> None:
        super().__init__(contestant)
        tensors = [contestant.tensor(_ELEMENTS) for _ in range(_TENSORS)]
        makers: tuple[Callable[..., Operation], ...] = (contestant.many, contestant.batched)
        self._operations = {form: make(tensors) for form, make in zip(FORMS, makers, strict=True)}

    def choose(self, *, form: str) -> None:
        """Measure these operations instead of a model's step."""
        self._step = self._operations[form]

    def use(self, *, environment: Mapping[str, str | None]) -> None:
        """End the world, and begin another one with these variables; None for without."""
        hvd.shutdown()
        _warm_memory()
        for name, value in environment.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        hvd.init()
        for _ in range(_SETTLING):
            self._step()


def _warm_memory() -> None:
    """Have the machine's free memory at hand.

    A virtual machine gets what it has not used for some seconds from its host again, page by page,
    which costs many times what writing a page of a file does, and would be all that is measured.
    """
    with mmap.mmap(-1, _WARM_BYTES) as memory:
        for page in range(0, _WARM_BYTES, mmap.PAGESIZE):
            memory[page] = 1
