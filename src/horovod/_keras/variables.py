"""Values of Keras variables as NumPy arrays, and their broadcast to all ranks.

The same for all backends; TF1 graphs use the Keras session. A call starts the operations of all
variables, then waits for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from horovod._keras.library import inner_optimizers, is_keras3, variable_key
from horovod.core import world
from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.errors import HorovodInternalError
from horovod.numpy import adapter
from horovod.numpy.objects import allgather_object

Array = NDArray[Any]


def attach_state(model: Any) -> None:
    """Give the variables of a model in training their current values, so they can be changed.

    Between two steps of ``fit`` on JAX the values are not in the variables.
    """
    sync = getattr(model, "jax_state_sync", None)
    if sync is not None:
        sync()


def model_variables(model: Any) -> list[Any]:
    """The weights of a model, without metrics and states of random generators."""
    return list(model.weights)


def optimizer_variables(optimizer: Any) -> list[Any]:
    """All state of an optimizer, without this rank's sums of gradients."""
    if optimizer is None:
        return []
    variables = optimizer.variables
    own: set[int] = set()
    for inner in inner_optimizers(optimizer):
        aggregation = getattr(inner, "_hvd_aggregation", None)
        own.update(id(variable) for variable in getattr(aggregation, "variables", ()))
    found = variables() if callable(variables) else variables
    return [variable for variable in found if id(variable) not in own]


def read_values(keras: Any, variables: Sequence[Any]) -> list[Array]:
    """Copies of the values, of any shapes and dtypes."""
    if is_keras3(keras):
        return [np.array(keras.ops.convert_to_numpy(v), order="C") for v in variables]
    values = keras.backend.batch_get_value(list(variables))
    return [np.array(value, order="C") for value in values]


def assign_values(keras: Any, variables: Sequence[Any], values: Sequence[Array]) -> None:
    """The reverse of ``read_values``."""
    if is_keras3(keras):
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
    else:
        keras.backend.batch_set_value(list(zip(variables, values, strict=True)))


def broadcast_variables(
    keras: Any,
    variables: Sequence[Any],
    root_rank: int,
    name: str,
    excluded: Sequence[Any] = (),
    process_set: ProcessSet = global_process_set,
) -> None:
    """Overwrite variables on all ranks with the root's; blocks until all ranks call it.

    Args:
        keras: the Keras module of the variables.
        variables: of the same shapes and dtypes, in the same order, on every rank.
        root_rank: the rank whose values all ranks get; the same on every rank.
        name: the beginning of operation names; the same on every rank.
        excluded: variables that stay as they are; the same on every rank.
        process_set: the participating ranks, which include this process and the root.

    Raises:
        ValueError: ranks have different variables (raised on all ranks), or there is no such root.
        HorovodInternalError: a rank was lost.
    """
    if process_set.size() == 1:
        return
    kept = {variable_key(variable) for variable in excluded}
    sent = [variable for variable in variables if variable_key(variable) not in kept]
    _check_agreement(sent, name, process_set)
    values = read_values(keras, sent)
    received = _broadcast_values(values, root_rank, name, process_set)
    if world.rank() != root_rank:
        assign_values(keras, sent, received)


def _check_agreement(variables: Sequence[Any], name: str, process_set: ProcessSet) -> None:
    mine = [(str(variable.shape), str(variable.dtype)) for variable in variables]
    found = allgather_object(mine, f"{name}.layout", process_set)
    ranks = process_set.ranks or []
    for other, number in zip(found, ranks, strict=True):
        if other != found[0]:
            same = zip(other, found[0], strict=False)
            position = next(
                (i for i, (a, b) in enumerate(same) if a != b), len(min(found, key=len))
            )
            raise ValueError(
                f"{name}: rank {number} has {len(other)} variables, rank {ranks[0]} "
                f"{len(found[0])}, and they differ from number {position} on; all ranks need the "
                "same model and optimizer, built alike"
            )


def _broadcast_values(
    values: list[Array], root_rank: int, name: str, process_set: ProcessSet
) -> list[Array]:
    handles: list[int] = []
    failure: Exception | None = None
    for number, value in enumerate(values):
        try:
            wire = _wire_array(value)
            handles.append(
                adapter.broadcast_async_(wire, root_rank, f"{name}.{number}", process_set)
            )
        except (ValueError, HorovodInternalError) as error:
            failure = error
            break
    wait_for_all(handles, failure)
    return values


def wait_for_all(handles: Sequence[int], failure: Exception | None = None) -> None:
    """Wait for all operations, then raise ``failure`` or the first error of one of them."""
    for handle in handles:
        try:
            adapter.synchronize(handle)
        except HorovodInternalError as error:
            failure = failure or error
    if failure is not None:
        raise failure


def _wire_array(value: Array) -> Array:
    """The array's memory, as bytes if the engine does not know its dtype."""
    if value.dtype in adapter.DTYPES:
        return value
    return value.reshape(-1).view(np.uint8)
