"""A distributed optimizer of Keras 3 whose step ranks share: each keeps its part of the state.

The original optimizer is built for flat variables that hold this rank's elements of the model's. A
step reduces the rank's part of the gradients, lets the original update these variables, and gives
all ranks the values of all parts. Files have the state that the original would have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from horovod._keras.library import backend_name, is_keras3, read_values, step_counter, variable_key
from horovod._keras.optimizer_keras3 import Keras3Optimizer
from horovod._keras.reducer import Options
from horovod.core import operations
from horovod.core.compression import CastCompressor, NoneCompressor
from horovod.core.operations import own_part
from horovod.core.process_sets import ProcessSet
from horovod.core.world import has_others
from horovod.numpy import adapter

_ELEMENTWISE = (
    *("Adadelta", "Adagrad", "Adam", "AdamW", "Adamax"),
    *("Ftrl", "Lion", "Nadam", "RMSprop", "SGD"),
)

_TITLE = "DistributedOptimizer: sharded=True"


def check_sharded(keras: Any, optimizer: Any, options: Options) -> None:
    """``ValueError`` if ranks cannot share the step of this optimizer."""
    operations.check_sharded(options.sharded, options.op)
    if not options.sharded:
        return
    _check_backend(keras)
    kind = type(optimizer)
    if options.sharded is True:
        is_known = kind.__name__ in _ELEMENTWISE and kind.__module__.startswith("keras.")
        operations.check_elementwise(kind, is_known, _ELEMENTWISE)
    for name in ("clipnorm", "global_clipnorm", "use_ema"):
        if getattr(optimizer, name, None):
            raise ValueError(f"{_TITLE} cannot be used with {name}, which needs whole variables")
    if options.backward_passes_per_step > 1:
        raise ValueError(
            f"{_TITLE} needs backward_passes_per_step=1; gradient_accumulation_steps of the "
            "optimizer works"
        )
    _check_compression(options.compression)


def _check_backend(keras: Any) -> None:
    if not is_keras3(keras):
        raise ValueError(f"{_TITLE} needs Keras 3")
    if backend_name(keras) == "jax":
        raise ValueError(
            f"{_TITLE} needs the backend tensorflow or torch: on jax the values of variables are "
            "arguments of Keras's step, and shares of them would be others. horovod.jax has "
            "DistributedOptimizer(sharded=True) for optax"
        )


def _check_compression(compression: Any) -> None:
    is_cast = isinstance(compression, type) and issubclass(compression, CastCompressor)
    if compression is not NoneCompressor and not is_cast:
        name = getattr(compression, "__name__", type(compression).__name__)
        raise ValueError(f"{_TITLE} cannot be used with compression={name}; use fp16 or bf16")


class _Shares:
    """This rank's parts of a model's variables.

    Args:
        keras: the Keras module.
        variables: the model's.
        process_set: the ranks that share.

    Attributes:
        variables: as given.
        own: for each a flat variable with this rank's elements, which are current in a step only.
        shapes: of whole state, by the id of the variable that has the rank's part of it.
    """

    def __init__(self, keras: Any, variables: Sequence[Any], process_set: ProcessSet) -> None:
        self._ops = keras.ops
        self._process_set = process_set
        self._place = self._current_place()
        self.variables = list(variables)
        self._index = {variable_key(v): number for number, v in enumerate(variables)}
        self.own = [self._make(keras, variable) for variable in variables]
        self._owned = {variable_key(v): number for number, v in enumerate(self.own)}
        self.shapes: dict[int, tuple[int, ...]] = {}

    def _current_place(self) -> tuple[int, int]:
        if not has_others(self._process_set):
            return 0, 1
        return self._process_set.rank() or 0, self._process_set.size() or 1

    def _make(self, keras: Any, variable: Any) -> Any:
        if getattr(variable, "overwrite_with_gradient", False):
            raise ValueError(f"{_TITLE}: {variable.name!r} is overwritten with its gradient, whole")
        part = self.part_of(variable.shape)
        return keras.Variable(
            initializer="zeros",
            shape=(part.stop - part.start,),
            dtype=variable.dtype,
            trainable=False,
            name=variable.name.partition(":")[0].replace("/", "_"),
        )

    def whole_of(self, own: Any) -> Any | None:
        """The model's variable for one of ours."""
        number = self._owned.get(variable_key(own))
        return None if number is None else self.variables[number]

    def part_of(self, shape: Sequence[int]) -> slice:
        """Which elements of an array of this shape are the rank's."""
        return own_part(int(np.prod(shape)), *self._place)

    def cut(self, array: Any) -> Any:
        """The rank's elements of an array."""
        return self._ops.reshape(array, (-1,))[self.part_of(array.shape)]

    def positions_of(self, variables: Sequence[Any]) -> list[int]:
        """Their numbers; ``ValueError`` for another variable, or in another world."""
        if self._place != self._current_place():
            raise ValueError(
                f"{_TITLE}: this was rank %d of %d when the optimizer was built, and is rank %d of "
                "%d now; make a new optimizer" % (*self._place, *self._current_place())
            )
        unknown = [v for v in variables if variable_key(v) not in self._index]
        if unknown:
            raise ValueError(f"{_TITLE}: the optimizer was not built with {unknown[0].name!r}")
        return [self._index[variable_key(variable)] for variable in variables]

    def take_values(self, positions: Sequence[int]) -> list[Any]:
        """The flat variables, with the model's values."""
        for position in positions:
            whole = self._ops.convert_to_tensor(self.variables[position])
            self.own[position].assign(self.cut(whole))
        return [self.own[position] for position in positions]


class ShardedOptimizer(Keras3Optimizer):
    """Comes before a class derived from ``keras.optimizers.Optimizer``."""

    _hvd_shares: _Shares | None
    _hvd_gathered: tuple[int, list[Any]] | None
    _hvd_excluded: tuple[set[int], Any] | None

    def _hvd_distribute(self) -> None:
        super()._hvd_distribute()
        self._hvd_shares = self._hvd_gathered = self._hvd_excluded = None
        self._hvd_sharing = self._hvd.backend.Sharing(self._hvd_name, self._hvd_options)

    def build(self, variables: Sequence[Any]) -> None:
        """Build the original for this rank's parts of the variables."""
        self._hvd_shares = _Shares(self._hvd_keras, variables, self._hvd_options.process_set)
        if self._hvd_excluded is not None:
            keys, names = self._hvd_excluded
            pairs = zip(variables, self._hvd_shares.own, strict=True)
            own = [share for variable, share in pairs if variable_key(variable) in keys]
            super().exclude_from_weight_decay(own, names)  # type: ignore[misc]
        super().build(list(self._hvd_shares.own))
        shapes = self._hvd_shares.shapes
        for variable in self.variables:
            if id(variable) not in shapes and tuple(variable.shape) not in ((), (1,)):
                raise ValueError(
                    f"{_TITLE} needs a state of single numbers and of variables with the elements "
                    f"of a model's; {variable.name!r} has shape {list(variable.shape)}"
                )

    def exclude_from_weight_decay(self, var_list: Any = None, var_names: Any = None) -> None:
        """As the original; before the optimizer is built."""
        if self._hvd_shares is not None:
            super().exclude_from_weight_decay(var_list, var_names)  # type: ignore[misc]
        self._hvd_excluded = ({variable_key(variable) for variable in var_list or ()}, var_names)

    def add_variable_from_reference(self, reference_variable: Any, *args: Any, **named: Any) -> Any:
        """As the original; remembers the shape that the whole of it has."""
        made = super().add_variable_from_reference(reference_variable, *args, **named)  # type: ignore[misc]
        assert self._hvd_shares is not None
        whole = self._hvd_shares.whole_of(reference_variable)
        if whole is not None:
            self._hvd_shares.shapes[id(made)] = tuple(whole.shape)
        return made

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Reduce the rank's part of the gradients, update it, and give it to all ranks.

        Arguments as for the original.
        """
        if trainable_variables is not None and self._hvd_shares is None:
            self.build(list(trainable_variables))
        shares = self._hvd_shares
        assert shares is not None, "build the optimizer, or give it variables"
        found = shares.variables if trainable_variables is None else list(trainable_variables)
        positions = shares.positions_of(found)
        given = [n for n, gradient in enumerate(grads) if gradient is not None]
        reduced = dict(zip(given, self._hvd_reduce_parts(grads, found, given), strict=True))
        own = shares.take_values(positions)
        self._hvd_apply_reduced([reduced.get(n) for n in range(len(found))], own)
        if given:
            self._hvd_gather([own[n] for n in given], [found[n] for n in given])

    def _hvd_reduce_parts(
        self, grads: Sequence[Any], variables: Sequence[Any], given: Sequence[int]
    ) -> list[Any]:
        shares, ops = self._hvd_shares, self._hvd_keras.ops
        assert shares is not None
        flat = []
        for number in given:
            gradient = grads[number]
            if hasattr(gradient, "dense_shape"):
                if not self._hvd_options.sparse_as_dense:
                    raise ValueError(
                        f"{_TITLE}: the gradient of {variables[number].name!r} is sparse; give "
                        "DistributedOptimizer sparse_as_dense=True"
                    )
                gradient = ops.convert_to_tensor(gradient)
            flat.append(ops.reshape(gradient, (-1,)))
        if not flat or not has_others(self._hvd_options.process_set):
            return flat
        parts = self._hvd_sharing.reduce(flat)
        counts = [shares.own[n].shape for n in shares.positions_of([variables[n] for n in given])]
        # In a graph of TensorFlow the shape is unknown, which would change how it is optimised.
        return [ops.reshape(part, count) for part, count in zip(parts, counts, strict=True)]

    def _hvd_gather(self, own: Sequence[Any], variables: Sequence[Any]) -> None:
        """Let the model's variables have the values of all ranks' parts."""
        ops = self._hvd_keras.ops
        values = [ops.convert_to_tensor(variable) for variable in own]
        if has_others(self._hvd_options.process_set):
            values = self._hvd_sharing.gather(values)
        for variable, value in zip(variables, values, strict=True):
            variable.assign(ops.reshape(value, variable.shape))
            # In the oldest versions of Keras 3 not every variable has the attribute.
            constraint = getattr(variable, "constraint", None)
            if constraint is not None:
                variable.assign(constraint(variable))

    def gather_state(self) -> list[Any]:
        """The values that the original's ``variables`` would have; all ranks of the set call it.

        A model that is saved before the next step, on one rank or on all, has this state.
        """
        shares, options = self._hvd_shares, self._hvd_options
        shapes = shares.shapes if shares is not None else {}
        result = read_values(self._hvd_keras, self.variables)
        for number, variable in enumerate(self.variables):
            shape = shapes.get(id(variable))
            if shape is not None and has_others(options.process_set):
                name = f"{self._hvd_name}.state.{number}"
                result[number] = adapter.allgather(result[number], name, options.process_set)
            if shape is not None:
                result[number] = result[number].reshape(shape)
        self._hvd_gathered = (self._hvd_count(), result)
        return list(result)

    def _hvd_count(self) -> int:
        return int(self._hvd_keras.ops.convert_to_numpy(step_counter(self)))

    def save_own_variables(self, store: Any) -> None:
        """Write what ``gather_state`` has gathered, as the original would write it.

        Raises:
            ValueError: a step was made since then.
        """
        if self._hvd_gathered is None or self._hvd_gathered[0] != self._hvd_count():
            raise ValueError(
                f"{_TITLE}: this rank has a part of the optimizer's state only. Call "
                "model.optimizer.gather_state() on all ranks, then save; or save with "
                "include_optimizer=False"
            )
        for number, value in enumerate(self._hvd_gathered[1]):
            store[str(number)] = value

    def load_own_variables(self, store: Any) -> None:
        """Take this rank's part of a state that any optimizer of this kind has saved."""
        if len(store.keys()) != len(self.variables):
            super().load_own_variables(store)
            return
        self._hvd_gathered = None  # it is not the state any more, whatever the number of the step
        for number, variable in enumerate(self.variables):
            variable.assign(self._hvd_cut(variable, np.asarray(store[str(number)])))

    def _hvd_cut(self, variable: Any, value: Any) -> Any:
        shapes = self._hvd_shares.shapes if self._hvd_shares is not None else {}
        shape = shapes.get(id(variable))
        if shape is None:
            return value
        assert self._hvd_shares is not None
        if tuple(value.shape) != shape:
            raise ValueError(
                f"{_TITLE}: the state of {variable.name!r} has shape {list(value.shape)}, expected "
                f"{list(shape)}"
            )
        return self._hvd_shares.cut(self._hvd_keras.ops.convert_to_tensor(value))

    def register_local_var(self, var: Any) -> NoReturn:
        """Ranks share the step of all variables.

        Raises:
            ValueError: always.
        """
        raise ValueError(f"{_TITLE} has no local variables")

    def _compute_gradients(self, *_: Any, **__: Any) -> NoReturn:
        raise ValueError(f"{_TITLE}: use apply_gradients; there are no reduced gradients but parts")
