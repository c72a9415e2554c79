"""``DistributedTrainer``: Gluon's trainer on the gradients of all ranks."""

from __future__ import annotations

import warnings
from typing import Any

import mxnet as mx

from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.mxnet.compression import Compression
from horovod.mxnet.optimizer import DistributedOptimizer, GradientReduction

__all__ = ["DistributedTrainer"]


class DistributedTrainer(mx.gluon.Trainer):  # type: ignore[misc]
    """Gluon's ``Trainer`` whose ``step`` and ``allreduce_grads`` average over all ranks.

    There is no kvstore: each process trains on one device.
    """

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: dict[str, Any] | None = None,
        compression: Any = Compression.none,
        gradient_predivide_factor: float = 1.0,
        prefix: str | None = None,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        """Make a trainer.

        Args:
            params: ``Block.collect_params()``, another dict, or a list of parameters; the same on
                all ranks. They are numbered in the order of their names.
            optimizer: an optimizer or the name of one.
            optimizer_params: arguments for it, where it is a name.
            compression: what travels, for example ``Compression.fp16``.
            gradient_predivide_factor: splits the averaging: gradients are divided by it before the
                sum and multiplied by ``factor / size`` after it.
            prefix: begins the names of the operations; for each its own where one program has
                several trainers.
            num_groups: gradients are reduced in so many groups, of one dtype each; 0: each for
                itself.
            process_set: the ranks that reduce; others step on their own gradients.

        Raises:
            ValueError: an argument is unusable, or a parameter lies on several devices.
        """
        if isinstance(optimizer, DistributedOptimizer):
            warnings.warn(
                "DistributedTrainer does what DistributedOptimizer does: it takes the optimizer "
                "inside of it",
                stacklevel=2,
            )
            optimizer = optimizer._optimizer
        if isinstance(params, list):
            params = sorted(params, key=lambda parameter: parameter.name)
        self._reduction = GradientReduction(
            prefix or "", gradient_predivide_factor, num_groups, process_set, compression
        )
        super().__init__(params, optimizer, optimizer_params=optimizer_params, kvstore=None)
        if len(self._contexts) > 1:
            raise ValueError(
                f"DistributedTrainer: each process trains on one device, found {self._contexts}"
            )

    def _allreduce_grads(self) -> None:
        if not self._reduction.is_needed():
            return
        numbered = enumerate(self._params)
        trained = [(i, parameter) for i, parameter in numbered if parameter.grad_req != "null"]
        gradients = [parameter.list_grad()[0] for _, parameter in trained]
        self._reduction.run([i for i, _ in trained], gradients)
