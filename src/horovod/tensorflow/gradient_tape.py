"""``DistributedGradientTape``: a gradient tape whose ``gradient`` is reduced over all ranks.

The result is an object of a new class, derived from the user's tape class and ours. It shares the
attributes of the given tape, so both are one recording. Attributes of this class are kept apart, so
one tape can be wrapped more than once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from horovod.core.gradient_groups import check_groups, check_local_layers
from horovod.core.operations import Average
from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.tensorflow.autograph import not_converted
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.gradient_reduction import Reducer
from horovod.tensorflow.variables import key_of


class _DistributedTape:
    """What ``DistributedGradientTape`` adds to a tape class; never made on its own."""

    # Not in __dict__, which belongs to the given tape.
    __slots__ = ("_local_layers", "_local_sources", "_make_reducer", "_original")

    _original: Any
    _make_reducer: Callable[..., Reducer]
    _local_layers: Sequence[Any]
    _local_sources: list[Any]

    def register_local_source(self, source: Any) -> None:
        """Keep the gradient of this variable on this rank, in later calls of ``gradient``."""
        self._local_sources.append(source)

    def _all_local_sources(self) -> list[Any]:
        # Layers may have been built since: the tape has often recorded their first call.
        weights = [weight for layer in self._local_layers for weight in layer.trainable_weights]
        return [*self._local_sources, *weights]

    @not_converted
    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
    ) -> Any:
        """Gradients as the original tape computes them, reduced over all ranks.

        Every rank of the set has to call it with the same sources in the same order; eagerly it
        blocks until all have.

        Args:
            target: what to differentiate.
            sources: nested structure of variables and tensors.
            output_gradients: gradients of ``target``; as for ``tf.GradientTape.gradient``.
            use_generic_names: call operations ``grad_<position>``, whatever the sources are called.
            unconnected_gradients: as for ``tf.GradientTape.gradient``; zeros are reduced, too.

        Returns:
            Gradients in the structure of ``sources``; None where there is none.

        Raises:
            NotImplementedError: rows (``tf.IndexedSlices``) are to be reduced with another op than
                Average or Sum.
            tf.errors.FailedPreconditionError: ranks disagree about a gradient.
            tf.errors.UnknownError: a rank was lost.
        """
        gradients = self._original.gradient(
            target, sources, output_gradients, unconnected_gradients
        )
        flat = tf.nest.flatten(gradients, expand_composites=False)
        reduce = self._make_reducer(use_generic_names=use_generic_names)
        reduced = reduce(flat, tf.nest.flatten(sources), self._all_local_sources())
        return tf.nest.pack_sequence_as(gradients, reduced, expand_composites=False)

    @not_converted
    def get_local_and_global_gradients(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
    ) -> tuple[list[Any], list[Any]]:
        """The result of ``gradient`` in two parts: registered local sources, and all others.

        Both are lists in the order of the flattened ``sources``.
        """
        gradients = self.gradient(target, sources, output_gradients, use_generic_names)
        local = {key_of(source) for source in self._all_local_sources()}
        pairs = zip(
            tf.nest.flatten(sources),
            tf.nest.flatten(gradients, expand_composites=False),
            strict=True,
        )
        parts: tuple[list[Any], list[Any]] = ([], [])
        for source, gradient in pairs:
            parts[key_of(source) not in local].append(gradient)
        return parts

    @not_converted
    def jacobian(self, *args: Any, **kwargs: Any) -> Any:
        """The Jacobian of this rank alone, from the original tape."""
        return self._original.jacobian(*args, **kwargs)

    @not_converted
    def batch_jacobian(self, *args: Any, **kwargs: Any) -> Any:
        """The batch Jacobian of this rank alone, from the original tape."""
        return self._original.batch_jacobian(*args, **kwargs)


@not_converted
def DistributedGradientTape(  # noqa: N802
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Wrap a gradient tape so that its ``gradient`` returns that of all ranks.

    Args:
        gradtape: a ``tf.GradientTape``, before, while or after it records.
        device_dense, device_sparse: where to place operations on dense gradients, on rows; ""
            leaves it to TensorFlow.
        compression: what travels, for example ``Compression.fp16``; not applied to rows.
        sparse_as_dense: make rows (``tf.IndexedSlices``) dense and reduce that. Otherwise the rows
            of all ranks are gathered.
        op: ``Average``, ``Sum``, ``Min``, ``Max``, ``Product`` or ``Adasum``.
        gradient_predivide_factor: splits the averaging: gradients are divided by it before the sum
            and multiplied by ``factor / size`` after it; only with ``Average``.
        num_groups: deprecated, use ``groups``.
        groups: gradients of a group are reduced as one operation. A number > 0: they are split
            evenly in so many groups. Lists of variables: those groups, the others one by one.
        process_set: the ranks that reduce; others get their own gradients.
        scale_local_gradients: divide gradients of local sources by the set's size.

    Returns:
        An object of a class with the name of ``gradtape``'s, derived from it. It shares the
        recording with ``gradtape``.

    Raises:
        ValueError: an argument is unusable.
    """
    if not isinstance(gradtape, tf.GradientTape):
        raise ValueError(f"DistributedGradientTape: expected a tf.GradientTape, found {gradtape!r}")
    transfer = (device_dense, device_sparse, compression, sparse_as_dense)
    chosen = check_groups(groups, num_groups, key_of)
    ranks: Any = (op, gradient_predivide_factor, chosen, process_set, scale_local_gradients)
    make = partial(Reducer, "DistributedGradientTape", *transfer, *ranks)
    make()  # bad arguments are refused here, not at the first gradient
    return _wrap(gradtape, make)


@not_converted
def PartialDistributedGradientTape(  # noqa: N802
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """``DistributedGradientTape`` that leaves the weights of some Keras layers to each rank.

    Args:
        local_layers: a Keras layer or a list of them, built or not; their trainable weights are
            local sources.

    Other arguments are those of ``DistributedGradientTape``.

    Raises:
        ValueError: ``local_layers`` is something else, or another argument is unusable.
    """
    layers = check_local_layers(local_layers, lambda: tf.keras.layers.Layer)
    devices = (device_dense, device_sparse)
    reduction: Any = (compression, sparse_as_dense, op, gradient_predivide_factor)
    ranks: Any = (num_groups, groups, process_set, scale_local_gradients)
    tape = DistributedGradientTape(gradtape, *devices, *reduction, *ranks)
    tape._local_layers = layers
    return tape


def _wrap(gradtape: Any, make: Callable[..., Reducer]) -> Any:
    original = type(gradtape)
    namespace = {"__module__": original.__module__, "__doc__": original.__doc__}
    subclass: Any = type(original.__name__, (_DistributedTape, original), namespace)
    result = subclass.__new__(subclass)
    result.__dict__ = gradtape.__dict__
    result._original = gradtape
    result._make_reducer = make
    result._local_layers, result._local_sources = (), []
    return result
