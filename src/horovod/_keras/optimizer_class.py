"""The members of all distributed optimizers, and how the class of one is made.

A wrapped optimizer is saved under the name of the original class, so a model compiled with one
loads where there is no Horovod. Keras looks a class up to find its name, and has no public way to
give a second class the name of a first one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module
from operator import is_
from typing import Any

from horovod._keras.library import backend_for, innermost, is_keras3, variable_key
from horovod._keras.reducer import Options, Reducer
from horovod.core.process_sets import ProcessSet
from horovod.elastic.state import inner_optimizers


class CallableList(list[Any]):
    """A list that can be called: older scripts call ``optimizer.variables()``."""

    def __call__(self) -> CallableList:
        return self


class Distribution:
    """How one optimizer is distributed: its options, its reducer and its local variables.

    Args:
        keras: the Keras module.
        name: the beginning of operation names; the same on every rank.
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
        """The gradients of all ranks; see ``GradientReducer``."""
        found = list(variables)
        return self._reducer(list(gradients), found, list(indices), self.are_local(found))

    def are_local(self, variables: Iterable[Any]) -> list[bool]:
        """Whether the gradient of each of the variables stays on this rank."""
        local = set(self._local_variables)
        for layer in self._local_layers:  # now, because layers may be built late
            local.update(variable_key(variable) for variable in layer.trainable_weights)
        return [variable_key(variable) in local for variable in variables]

    def hand_out(self, gradients: list[Any]) -> None:
        """Remember reduced gradients that the caller will give to ``apply``."""
        self._handed_out = gradients

    def take_back(self, gradients: Sequence[Any]) -> bool:
        """Whether these are the gradients handed out last, which are reduced already."""
        known, self._handed_out = self._handed_out, []
        return len(known) == len(gradients) > 0 and all(map(is_, known, gradients))


class NotReducing(Distribution):
    """A distribution of an optimizer that gets reduced gradients."""

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
        # Keras numbers the optimizers of a process, so their own names may differ between ranks.
        args = (self._hvd_options, self._hvd_local_layers)
        self._hvd = Distribution(self._hvd_keras, self._hvd_name, *args)

    def __reduce__(self) -> Any:
        # Keras would make a plain optimizer from it, and ranks would diverge silently.
        raise TypeError(
            f"a distributed {type(self).__name__} cannot be copied or pickled; copy the optimizer "
            "first and give the copy to DistributedOptimizer"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self.__reduce__()

    def register_local_var(self, var: Any) -> None:
        """Keep the gradient of ``var`` on this rank; call it alike on every rank, before training.

        With ``scale_local_gradients`` it is divided by the number of ranks, like averaged
        gradients.
        """
        self._hvd.register_local_var(var)

    def _hvd_check_clipping(self, variables: Iterable[Any]) -> None:
        """``ValueError`` if ranks would clip reduced gradients by norms that differ."""
        norm = getattr(innermost(self), "global_clipnorm", None)
        if norm and any(self._hvd.are_local(variables)):
            raise ValueError(
                "DistributedOptimizer: global_clipnorm cannot be used with local layers or local "
                "variables: their gradients are part of the norm, which would differ between "
                "ranks, and with it the variables that all ranks share; use clipnorm or clipvalue"
            )

    def _hvd_cut(self, variable: Any, value: Any) -> Any:
        """What a variable of this optimizer has of the original's value."""
        return value

    @property
    def process_set(self) -> ProcessSet:
        """The ranks that reduce."""
        return self._hvd.options.process_set

    @property
    def scale_local_gradients(self) -> bool:
        """Whether gradients of local variables are divided by the number of ranks."""
        return self._hvd.options.scale_local_gradients


def is_distributed(optimizer: Any) -> bool:
    """Whether an optimizer, or one inside of it, is a distributed one; None is not."""
    found = inner_optimizers(optimizer)
    return any(isinstance(each, DistributedOptimizerMixin) for each in found)


def make_class(
    original: type, mixin: type, keras: Any, options: Options, local_layers: Sequence[Any] = ()
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
    _pass_on_identity(keras, original, wrapped)
    return wrapped


def _pass_on_identity(keras: Any, original: type, wrapped: type) -> None:
    """Make Keras write instances of ``wrapped`` as instances of ``original``.

    A class that is neither Keras's own nor registered is written under its bare name and loads with
    ``custom_objects``, as without Horovod.
    """
    if is_keras3(keras):
        _pass_on_api_name(original, wrapped)
    else:
        _copy_api_names(original, wrapped)
    _pass_on_registered_name(keras, original, wrapped)


def _pass_on_api_name(original: type, wrapped: type) -> None:
    names: dict[type, str] = import_module("keras.src.api_export").REGISTERED_OBJS_TO_NAMES
    # Optimizers of the torch backend are subclasses of public ones, with the same names.
    for candidate in original.__mro__:
        is_same = candidate is original or original.__module__.startswith("keras.src.backend.")
        if is_same and candidate.__name__ == original.__name__ and candidate in names:
            names[wrapped] = names[candidate]
            return


def _copy_api_names(original: type, wrapped: type) -> None:
    for attribute in ("_keras_api_names", "_keras_api_names_v1", "_tf_deprecated_api_names"):
        if attribute in vars(original):
            setattr(wrapped, attribute, vars(original)[attribute])


def _pass_on_registered_name(keras: Any, original: type, wrapped: type) -> None:
    registered = keras.utils.get_registered_name(original)
    package, separator, name = registered.partition(">")
    if not separator:
        return
    known = keras.utils.get_custom_objects()
    loads_as = known.get(registered)
    keras.utils.register_keras_serializable(package, name)(wrapped)
    if loads_as is not None:
        known[registered] = loads_as
