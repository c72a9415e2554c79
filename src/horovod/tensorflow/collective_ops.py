"""The interface of TensorFlow's collectives, which has three implementations.

``collectives`` decides names, checks arguments and calls the implementation that this process uses:
``native_ops`` (the plugin's asynchronous kernels) or ``python_ops`` (slower, for every TensorFlow).
Both work eagerly, in ``tf.function`` and in TF1 graphs. Functions for XLA get ``xla_ops``.
The results of all are differentiable with the mathematics of ``gradients``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from horovod.core.calls import Call


class CollectiveOps(Protocol):
    """The collectives over dense tensors, under names that are final.

    Errors, when the operation runs: ``tf.errors.InvalidArgumentError`` for a mistake of this rank,
    ``FailedPreconditionError`` when ranks disagree, ``AbortedError`` after ``shutdown`` on
    this rank, ``UnknownError`` when a rank was lost. The text is the engine's.
    """

    def run(self, call: Call, names: Sequence[str], tensors: Sequence[Any]) -> list[Any]:
        """A collective, except alltoall; returns a result for each tensor.

        Args:
            call: its factors are what float32 can hold.
            names: the one name of a group, which runs whole or not at all; otherwise one name per
                tensor, each an operation of its own, and all of them started by one graph node once
                its inputs are there (a *batch*).
            tensors: dense, at least one.
        """

    def alltoall(self, call: Call, name: str, tensor: Any, splits: Any | None) -> tuple[Any, Any]:
        """The rows meant for this rank, and how many came from each rank of the set.

        ``splits``: an int32 tensor, one entry per rank of the set; None for equal parts. The second
        result is an int32 vector, also then.
        """

    def join(self, name: str) -> Any:
        """Wait until all ranks have joined: int32 scalar, the rank that was last."""

    def world_number(self, what: str, process_set: int, name: str | None) -> Any:
        """A number of the world as it is when the node runs: int32 scalar.

        ``what``: "size" and "rank" of the process set (number 0: of the world; the rank of a
        process that is no member is -1), "local_size", "local_rank", or "included": 1 for members,
        else 0.
        """
