"""The public functions for one Keras module.

``horovod.keras`` and ``horovod.tensorflow.keras`` export the methods of a ``KerasApi``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from horovod._keras.library import backend_for, broadcast_variables, is_keras3
from horovod._keras.optimizer import distribute, load_model
from horovod._keras.reducer import Options
from horovod.core.compression import NoneCompressor, keeps_tensors, link_format_of
from horovod.core.gradient_groups import Groups
from horovod.core.operations import Average, resolve_op
from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.numpy import adapter


class KerasApi:
    """Optimizers, loading and collectives for one Keras module.

    Args:
        keras: ``keras`` or ``tf.keras``.

    Raises:
        ValueError: its backend cannot train.
    """

    def __init__(self, keras: Any) -> None:
        self._keras = keras
        self._backend = backend_for(keras)
        self.Compression: Any = self._backend.Compression

    def DistributedOptimizer(  # noqa: N802
        self,
        optimizer: Any,
        name: str | None = None,
        device_dense: str = "",
        device_sparse: str = "",
        compression: Any = NoneCompressor,
        sparse_as_dense: bool = False,
        gradient_predivide_factor: float = 1.0,
        op: int = Average,
        backward_passes_per_step: int = 1,
        average_aggregated_gradients: bool = False,
        num_groups: int = 0,
        groups: Groups = None,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
        sharded: Any = False,
    ) -> Any:
        """Make an optimizer that steps on the gradients of all ranks.

        Every rank has to make the same kind of optimizer with equal options, train the same
        variables and start from equal values (``BroadcastGlobalVariablesCallback``). In Keras 3 the
        result reduces all gradients that it gets, in ``fit`` and in your own loops: use a plain
        optimizer together with ``DistributedGradientTape``. In Keras 2 it reduces in ``fit`` and
        ``minimize``; ``apply_gradients`` does not reduce.

        Args:
            optimizer: a Keras optimizer; the result is made from its configuration, and in Keras 3
                has its state. Use the result instead of it from now on.
            name: the beginning of operation names; by default ``Distributed<class name>``.
            device_dense, device_sparse: the device of TensorFlow's operations on dense and on
                sparse gradients; "" leaves it to TensorFlow. Other backends ignore it.
            compression: for example ``Compression.fp16``; not applied to sparse gradients.
            sparse_as_dense: convert ``tf.IndexedSlices`` of TensorFlow to dense tensors before the
                reduction. Otherwise the rows of all ranks are gathered.
            gradient_predivide_factor: splits the averaging: gradients are divided by it before the
                sum and multiplied by ``factor / size`` after it; only with ``Average``.
            op: ``Average`` or ``Sum``.
            backward_passes_per_step: n: each rank sums the gradients of n batches, then reduces and
                applies the sum. Batches between steps only count in ``iterations``.
            average_aggregated_gradients: divide the sum by n.
            num_groups: deprecated, use ``groups``.
            groups: gradients of a group are reduced as one operation. A number > 0 splits them
                evenly into that many groups. Lists of variables are groups; the other variables
                are reduced one by one.
            process_set: the ranks that reduce; others step on their own gradients.
            scale_local_gradients: divide gradients of variables given to ``register_local_var``,
                which are not reduced, by the set's size.
            sharded: each rank of the set updates its share of the elements of every variable only,
                keeps the optimizer's state of this share, and gets the other values from the other
                ranks: the same values in less memory. For optimizers of Keras 3 that treat every
                element alike, on TensorFlow and torch: Keras's but ``Adafactor``, ``Lamb``,
                ``LossScaleOptimizer``, ``Muon`` and ``ScheduleFreeAdamW``; ``"elementwise"`` says
                so of another one. All gradients of a step are one operation. All ranks call
                ``optimizer.gather_state()`` before one of them saves the optimizer.

        Returns:
            An optimizer of a subclass of ``optimizer``'s class, of the same name. Saved models
            mention the original class only.

        Raises:
            ValueError: an argument or a combination of arguments is unusable.
        """
        transfer = (name, device_dense, device_sparse, compression, sparse_as_dense)
        passes = (backward_passes_per_step, average_aggregated_gradients)
        ranks: Any = (groups, process_set, scale_local_gradients, sharded, num_groups)
        options = Options(*transfer, gradient_predivide_factor, op, *passes, *ranks)
        return distribute(self._keras, optimizer, options)

    def PartialDistributedOptimizer(  # noqa: N802
        self,
        optimizer: Any,
        name: str | None = None,
        device_dense: str = "",
        device_sparse: str = "",
        compression: Any = NoneCompressor,
        sparse_as_dense: bool = False,
        gradient_predivide_factor: float = 1.0,
        op: int = Average,
        backward_passes_per_step: int = 1,
        average_aggregated_gradients: bool = False,
        groups: Groups = None,
        process_set: ProcessSet = global_process_set,
        local_layers: Any = None,
        scale_local_gradients: bool = True,
    ) -> Any:
        """A ``DistributedOptimizer`` that leaves the weights of some layers to each rank.

        Args:
            local_layers: a layer, or a list of layers, built or not; the same on every rank. Give
                their weights to ``BroadcastGlobalVariablesCallback`` as ``local_variables``, too.
                Not for an optimizer with ``global_clipnorm``.

        The other arguments, the result and errors are those of ``DistributedOptimizer``.

        Raises:
            ValueError: ``local_layers`` is something else.
        """
        transfer = (name, device_dense, device_sparse, compression, sparse_as_dense)
        passes = (backward_passes_per_step, average_aggregated_gradients)
        ranks: Any = (groups, process_set, scale_local_gradients)
        options = Options(*transfer, gradient_predivide_factor, op, *passes, *ranks)
        return distribute(self._keras, optimizer, options, local_layers)

    def load_model(
        self,
        filepath: Any,
        custom_optimizers: Sequence[type] | None = None,
        custom_objects: dict[str, Any] | None = None,
        compression: Any = NoneCompressor,
        legacy_opts: bool = False,
    ) -> Any:
        """Load a saved model with its optimizer, distributed and in the state it was saved in.

        No communication: every rank reads the file, or broadcasts afterwards.

        Args:
            filepath: of a model saved by Keras, with a distributed optimizer or a plain one.
            custom_optimizers: optimizer classes that the file may mention by their names.
            custom_objects: other objects that it mentions, by name; they win over all other names.
                Optimizer classes of this process need not be listed.
            compression: as for ``DistributedOptimizer``.
            legacy_opts: Keras 2: look for optimizer classes among ``keras.optimizers.legacy``.

        Returns:
            The model; compiled, if it was saved so.
        """
        options = Options(compression=compression)
        return load_model(
            self._keras,
            filepath,
            custom_optimizers,
            custom_objects,
            lambda optimizer: distribute(self._keras, optimizer, options),
            legacy_opts,
        )

    def broadcast_global_variables(self, root_rank: int) -> None:
        """Give all ranks the root's TF1 global variables; blocks until all are there.

        Args:
            root_rank: the rank whose values all ranks get; the same on every rank.

        Raises:
            RuntimeError: there is no TF1 graph: variables are not global then. Use
                ``BroadcastGlobalVariablesCallback``.
        """
        variables = self._backend.global_variables()
        broadcast_variables(self._keras, variables, root_rank, "keras.global")

    def allreduce(
        self,
        value: Any,
        name: str | None = None,
        average: bool | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        op: int | None = None,
        compression: Any = NoneCompressor,
    ) -> Any:
        """Reduce a value over all ranks; blocks until all ranks have called it.

        Args:
            value: a number, list, array, tensor or variable; the same shape and dtype on every
                rank.
            name: of the operation, the same on every rank.
            average: deprecated, use ``op``.
            prescale_factor: multiplies every value before the reduction.
            postscale_factor: multiplies the result.
            op: ``Average`` (default), ``Sum`` or another reduce op; the same on every rank.
            compression: for example ``Compression.fp16``.

        Returns:
            A tensor of the backend; in a TF1 graph an array.

        Raises:
            ValueError: the value is unusable.
            HorovodInternalError: ranks disagree, or a rank was lost.
        """
        operation = (name, resolve_op(average, op), prescale_factor, postscale_factor)
        array = self._to_array(value)
        if keeps_tensors(compression):
            link_format = link_format_of(compression)
            adapter.allreduce_(array, None, *operation, link_format=link_format)
            return self._backend.to_tensor(array)
        compressed, context = compression.compress(self._backend.to_tensor(array))
        array = self._to_array(compressed)
        adapter.allreduce_(array, None, *operation)
        return compression.decompress(self._backend.to_tensor(array), context)

    def allgather(self, value: Any, name: str | None = None) -> Any:
        """The values of all ranks, joined along the first dimension in rank order.

        ``value`` as for ``allreduce``; the first dimension may differ between ranks.
        """
        return self._backend.to_tensor(adapter.allgather(self._to_array(value), name))

    def broadcast(self, value: Any, root_rank: int, name: str | None = None) -> Any:
        """The value of ``root_rank``; ``value`` as for ``allreduce``."""
        array = adapter.broadcast_(self._to_array(value), root_rank, name)
        return self._backend.to_tensor(array)

    def reducescatter(self, value: Any, name: str | None = None, op: int = Average) -> Any:
        """This rank's rows of the reduced value; ``value`` as for ``allreduce``."""
        array = adapter.reducescatter(self._to_array(value), name, op)
        return self._backend.to_tensor(array)

    def _to_array(self, value: Any) -> NDArray[Any]:
        """A copy of the value; Python numbers get the default dtype of the backend.

        Raises:
            ValueError: the value is neither a number nor numbers.
        """
        if isinstance(value, np.ndarray | np.generic):
            return np.array(value, order="C")
        if is_keras3(self._keras):
            found = self._keras.ops.convert_to_numpy(self._keras.ops.convert_to_tensor(value))
        elif isinstance(value, bool | int | float | list | tuple):
            found = _default_dtype(np.asarray(value))
        else:
            found = self._keras.backend.get_value(value)
        array = np.array(found, order="C")
        if array.dtype.kind in "OSU":
            raise ValueError(f"expected a number or numbers, found {value!r}")
        return array


def _default_dtype(array: NDArray[Any]) -> NDArray[Any]:
    narrower: dict[str, Any] = {"float64": np.float32, "int64": np.int32}
    return array.astype(narrower.get(array.dtype.name, array.dtype))
