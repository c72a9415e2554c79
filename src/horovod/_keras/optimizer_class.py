"""What every distributed optimizer has, whatever its Keras, and how its class is made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import is_
from typing import Any

from horovod._keras.backends import backend_for
from horovod._keras.identity import pass_on_identity
from horovod._keras.library import variable_key
from horovod._keras.options import Options
from horovod._keras.reducer import Reducer
from horovod.core.process_sets import ProcessSet

__all__ = ["CallableList", "DistributedOptimizerMixin", "Distribution", "NotReducing", "make_class"]


class CallableList(list[Any]):
    """A list that is its own getter: older scripts call ``optimizer.variables()``."""

    def __call__(self) -> CallableList:
        return self


class Distribution:
    """How one optimizer is distributed: its options, its reducer and its local variables.

    Args:
        keras: the Keras module.
        name: what names of operations begin with; the same on every rank.
        options: how to reduce.
        local_layers: layers whose trainable weights stay local, built or not.
    """

    def __init__(
        self, keras: Any, name: str, options: Options, local_layers: Sequence[Any] = ()
    ) -> None:
        self.keras = keras
        self.options = options
        self.backend = backend_for(keras)
        self._reducer: Reducer = self.backend.make_reducer(name, options)
        self._local_layers = tuple(local_layers)
        self._local_variables: dict[int, Any] = {}
        self._handed_out: list[Any] = []

    def register_local_var(self, variable: Any) -> None:
        """From now on the gradient of ``variable`` stays on this rank."""
        self._local_variables[variable_key(variable)] = variable

    def reduce(
        self, gradients: Iterable[Any], variables: Iterable[Any], indices: Iterable[int]
    ) -> list[Any]:
        """The gradients of all ranks; see ``Reducer``."""
        found = list(variables)
        local = set(self._local_variables)
        for layer in self._local_layers:  # looked up late, as layers may be built late
            local.update(variable_key(variable) for variable in layer.trainable_weights)
        is_local = [variable_key(variable) in local for variable in found]
        return self._reducer.reduce(list(gradients), found, list(indices), is_local)

    def hand_out(self, gradients: list[Any]) -> None:
        """Remember reduced gradients that the caller gets, to give them to ``apply``."""
        self._handed_out = gradients

    def take_back(self, gradients: Sequence[Any]) -> bool:
        """Whether these very gradients were handed out last, so that they are reduced already."""
        known, self._handed_out = self._handed_out, []
        return len(known) == len(gradients) > 0 and all(map(is_, known, gradients))


class NotReducing(Distribution):
    """A distribution of an optimizer whose gradients are reduced already when it gets them."""

    def __init__(self, original: Distribution) -> None:
        self.__dict__.update(original.__dict__)

    def reduce(
        self, gradients: Iterable[Any], variables: Iterable[Any], indices: Iterable[int]
    ) -> list[Any]:
        """The gradients as they are."""
        return list(gradients)


class DistributedOptimizerMixin:
    """Members of all wrapped optimizers; comes before the user's class."""

    _hvd_keras: Any
    _hvd_name: str
    _hvd_options: Options
    _hvd_local_layers: Sequence[Any]
    _hvd: Distribution

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._hvd_distribute()

    def _hvd_distribute(self) -> None:
        # Not by the optimizer's own name: Keras numbers them, on each rank by what it has made.
        args = (self._hvd_options, self._hvd_local_layers)
        self._hvd = Distribution(self._hvd_keras, self._hvd_name, *args)

    def __reduce__(self) -> Any:
        # Keras would make a plain optimizer of it, whose ranks drift apart without a word.
        raise TypeError(
            f"a distributed {type(self).__name__} cannot be copied or pickled; copy the optimizer "
            "first and give the copy to DistributedOptimizer"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self.__reduce__()

    def register_local_var(self, var: Any) -> None:
        """Keep the gradient of ``var`` on this rank; call it alike on every rank, before training.

        With ``scale_local_gradients`` it is divided by the number of ranks, as those that are
        averaged over the ranks are.
        """
        self._hvd.register_local_var(var)

    @property
    def process_set(self) -> ProcessSet:
        """The ranks that reduce."""
        return self._hvd.options.process_set

    @property
    def scale_local_gradients(self) -> bool:
        """Whether gradients of local variables are divided by the number of ranks."""
        return self._hvd.options.scale_local_gradients


def make_class(
    original: type,
    mixin: type,
    keras: Any,
    options: Options,
    local_layers: Sequence[Any] = (),
) -> type:
    """A subclass of ``original`` with the same name and identity in saved models."""
    namespace = {
        "__module__": "horovod._keras",
        "__doc__": original.__doc__,
        "_hvd_keras": keras,
        "_hvd_name": options.name or f"Distributed{original.__name__}",
        "_hvd_options": options,
        "_hvd_local_layers": tuple(local_layers),
    }
    wrapped = type(original.__name__, (mixin, original), namespace)
    pass_on_identity(keras, original, wrapped)
    return wrapped
