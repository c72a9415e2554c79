"""What TensorFlow's collectives are made of: one interface, three implementations.

``collectives`` decides names, checks arguments and calls the implementation that this process uses:
``native_ops`` (the plugin's asynchronous kernels) or ``python_ops`` (slower, for every TensorFlow).
Both work eagerly, in ``tf.function`` and in TF1 graphs. Functions for XLA get ``xla_ops``.
The results of all are differentiable with the mathematics of ``gradients``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

__all__ = ["CollectiveOps"]


class CollectiveOps(Protocol):
    """The collectives over dense tensors, under names that are final.

    Common arguments. ``tensors``: dense, at least one. ``names``: with ``is_group`` the one name of
    the group, which runs whole or not at all; otherwise one name per tensor, each an operation of
    its own, and all of them started by one graph node once its inputs are there (a *batch*).
    ``op``: one of ``horovod.core.operations``. ``prescale``, ``postscale``: what float32 can hold.
    ``process_set``: the number of the set.

    Errors, when the operation runs: ``tf.errors.InvalidArgumentError`` for what this rank got
    wrong, ``FailedPreconditionError`` when ranks disagree, ``AbortedError`` after ``shutdown`` on
    this rank, ``UnknownError`` when a rank was lost. The text is the engine's.
    """

    def allreduce(
        self,
        tensors: Sequence[Any],
        names: Sequence[str],
        op: int,
        prescale: float,
        postscale: float,
        process_set: int,
        is_group: bool,
    ) -> list[Any]:
        """Each tensor reduced over the ranks of the set; dtypes and shapes stay."""

    def allgather(
        self, tensors: Sequence[Any], names: Sequence[str], process_set: int, is_group: bool
    ) -> list[Any]:
        """Each tensor of all ranks joined along the first dimension, which may differ."""

    def broadcast(
        self, tensors: Sequence[Any], names: Sequence[str], root_rank: int, process_set: int
    ) -> list[Any]:
        """Each tensor with the values of ``root_rank``, a rank of the world; shapes stay."""

    def alltoall(
        self, tensor: Any, splits: Any | None, name: str, process_set: int
    ) -> tuple[Any, Any]:
        """The rows meant for this rank, and how many came from whom.

        ``splits``: an int32 tensor, one entry per rank of the set; None for equal parts. The second
        result is an int32 vector, also then.
        """

    def reducescatter(
        self,
        tensors: Sequence[Any],
        names: Sequence[str],
        op: int,
        prescale: float,
        postscale: float,
        process_set: int,
        is_group: bool,
    ) -> list[Any]:
        """This rank's rows of each reduced tensor."""

    def join(self, name: str) -> Any:
        """Wait until all ranks have joined: int32 scalar, the rank that was last."""

    def world_number(self, what: str, process_set: int, name: str | None) -> Any:
        """A number of the world as it is when the node runs: int32 scalar.

        ``what``: "size" and "rank" of the process set (number 0: of the world; -1 as the rank of
        who is no member), "local_size", "local_rank", or "included": 1 for members, else 0.
        """
