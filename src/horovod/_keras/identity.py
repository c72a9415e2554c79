"""Under which name a wrapped optimizer is saved: that of the original class.

So a model compiled with a wrapped optimizer loads where there is no Horovod. Keras looks a class up
to find its name, and has no public way to give a second class the name of a first one.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from horovod._keras.library import is_keras3

__all__ = ["pass_on_identity"]


def pass_on_identity(keras: Any, original: type, wrapped: type) -> None:
    """Make Keras write instances of ``wrapped`` as instances of ``original``.

    A class that is neither Keras's own nor registered is written under its bare name, and loads
    with ``custom_objects``, as without Horovod.
    """
    if is_keras3(keras):
        _pass_on_api_name(original, wrapped)
    else:
        _copy_api_names(original, wrapped)
    _pass_on_registered_name(keras, original, wrapped)


def _pass_on_api_name(original: type, wrapped: type) -> None:
    names: dict[type, str] = import_module("keras.src.api_export").REGISTERED_OBJS_TO_NAMES
    # The torch backend's optimizers are subclasses, of the same name, of those with a public name.
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
