"""``DistributedOptimizer``: any optimizer of MXNet on the gradients of all ranks."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import mxnet as mx

from horovod.core.compatibility import split_list
from horovod.core.compression import check_compressor, compress_all, decompress_all, link_format_of
from horovod.core.operations import Average, check_predivide
from horovod.core.process_sets import ProcessSet, check_process_set, global_process_set
from horovod.core.world import has_others
from horovod.mxnet.collectives import allreduce_, grouped_allreduce_
from horovod.mxnet.compression import Compression

__all__ = ["DistributedOptimizer"]


class GradientReduction:
    """The mean of gradients over all ranks, in place, for the optimizer and for the trainer.

    The arguments are the same on all ranks of the process set.
    """

    def __init__(
        self,
        prefix: str,
        gradient_predivide_factor: float,
        num_groups: int,
        process_set: ProcessSet,
        compression: Any = Compression.none,
    ) -> None:
        """Raise ``ValueError`` for unusable arguments."""
        check_predivide(Average, gradient_predivide_factor)
        check_compressor(compression)
        check_process_set(process_set)
        if isinstance(num_groups, bool) or not isinstance(num_groups, int) or num_groups < 0:
            raise ValueError(f"num_groups must be 0 or more, found {reprlib.repr(num_groups)}")
        self._prefix = prefix
        self._factor = gradient_predivide_factor
        self._num_groups = num_groups
        self._process_set = process_set
        self._compression = compression

    def is_needed(self) -> bool:
        """Whether this process takes part, with others."""
        return has_others(self._process_set)

    def run(self, indices: Sequence[Any], gradients: Sequence[Any]) -> None:
        """Replace gradients by their means, in MXNet's order; earlier ones are more urgent.

        Args:
            indices: their names, without the prefix.
            gradients: dense arrays.
        """
        wires, contexts = compress_all(self._compression, gradients)
        self._reduce(indices, wires)
        results = decompress_all(self._compression, wires, contexts)
        for gradient, result in zip(gradients, results, strict=True):
            if result is not gradient:
                gradient[:] = result

    def _reduce(self, indices: Sequence[Any], wires: Sequence[Any]) -> None:
        options: dict[str, Any] = {
            "op": Average,
            "prescale_factor": 1.0 / self._factor,
            "postscale_factor": self._factor,
            "process_set": self._process_set,
            "link_format": link_format_of(self._compression),
        }
        if not self._num_groups:
            for position, (index, wire) in enumerate(zip(indices, wires, strict=True)):
                allreduce_(wire, name=f"{self._prefix}{index}", priority=-position, **options)
            return
        for positions in self._groups(wires):
            name = f"{self._prefix}{indices[positions[0]]}:{indices[positions[-1]]}"
            group = [wires[position] for position in positions]
            grouped_allreduce_(group, name=name, priority=-positions[0], **options)

    def _groups(self, wires: Sequence[Any]) -> list[list[int]]:
        """Positions in groups of one dtype each."""
        groups = []
        for piece in split_list(range(len(wires)), self._num_groups):
            by_dtype = sorted(piece, key=lambda position: str(wires[position].dtype))
            for _, same in groupby(by_dtype, lambda position: str(wires[position].dtype)):
                groups.append(list(same))
        return groups


_OWN = ("_optimizer", "_reduction")


class DistributedOptimizer(mx.optimizer.Optimizer):  # type: ignore[misc]
    """Wraps an optimizer so that it updates with the mean of all ranks' gradients.

    For ``Module.fit(optimizer=..., kvstore=None)`` and hand-written updaters; with Gluon use
    ``DistributedTrainer``. Attributes are those of the wrapped optimizer, to read and to write.
    """

    def __init__(
        self,
        optimizer: Any,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        """Wrap an optimizer.

        Args:
            optimizer: any ``mx.optimizer.Optimizer``.
            gradient_predivide_factor: splits the averaging: gradients are divided by it before the
                sum and multiplied by ``factor / size`` after it.
            num_groups: gradients that are updated together are reduced in so many groups; 0: each
                for itself.
            process_set: the ranks that reduce; others update with their own gradients.

        Raises:
            ValueError: an argument is unusable.
        """
        if not isinstance(optimizer, mx.optimizer.Optimizer):
            raise ValueError(
                "DistributedOptimizer: expected an mx.optimizer.Optimizer, found "
                f"{type(optimizer).__name__}"
            )
        self._optimizer = optimizer
        self._reduction = GradientReduction("", gradient_predivide_factor, num_groups, process_set)

    def __getattr__(self, name: str) -> Any:
        """Get an attribute of the wrapped optimizer."""
        if name in _OWN:  # a copy that is being made
            raise AttributeError(name)
        return getattr(self._optimizer, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set the attribute of the wrapped optimizer."""
        if name in _OWN:
            object.__setattr__(self, name, value)
        else:
            setattr(self._optimizer, name, value)

    def __getstate__(self) -> dict[str, Any]:
        """For pickling: both objects of ours."""
        return {name: getattr(self, name) for name in _OWN}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """The inverse of ``__getstate__``."""
        for name in _OWN:
            setattr(self, name, state[name])

    def create_state(self, index: Any, weight: Any) -> Any:
        """The wrapped optimizer's state for a weight."""
        return self._optimizer.create_state(index, weight)

    def create_state_multi_precision(self, index: Any, weight: Any) -> Any:
        """The wrapped optimizer's state for a weight of any precision."""
        return self._optimizer.create_state_multi_precision(index, weight)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Average the gradients, in place, then update.

        Args:
            index: the weight's number, or a list of them; the same on all ranks.
            weight: the weight or weights.
            grad: their gradients.
            state: what ``create_state`` made of them.
        """
        self._reduce(index, grad)
        self._optimizer.update(index, weight, grad, state)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Like ``update``, where weights may have a copy of higher precision."""
        self._reduce(index, grad)
        self._optimizer.update_multi_precision(index, weight, grad, state)

    def set_learning_rate(self, lr: float) -> None:
        """Set the wrapped optimizer's learning rate."""
        self._optimizer.set_learning_rate(lr)

    def set_lr_mult(self, args_lr_mult: Any) -> None:
        """Set the wrapped optimizer's multipliers of the learning rate."""
        self._optimizer.set_lr_mult(args_lr_mult)

    def set_wd_mult(self, args_wd_mult: Any) -> None:
        """Set the wrapped optimizer's multipliers of the weight decay."""
        self._optimizer.set_wd_mult(args_wd_mult)

    def _reduce(self, index: Any, grad: Any) -> None:
        if not self._reduction.is_needed():
            return
        if isinstance(index, list | tuple):
            self._reduction.run(index, grad)
        else:
            self._reduction.run([index], [grad])
