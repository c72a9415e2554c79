"""Give all ranks one rank's parameters or objects; gather objects from all."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

import mxnet as mx

from horovod.core.world import size
from horovod.mxnet.collectives import broadcast_
from horovod.numpy.objects import allgather_object, broadcast_object

__all__ = ["allgather_object", "broadcast_object", "broadcast_parameters"]


def broadcast_parameters(params: Any, root_rank: int = 0, prefix: str | None = None) -> None:
    """Overwrite parameters on all ranks with the root's; blocks until all are there.

    Parameters whose shapes are not known yet are broadcast when they are initialised, which happens
    in the first forward pass. With one rank nothing is done.

    Args:
        params: a dict of name to array, such as each part of ``Module.get_params()``, or a
            ``ParameterDict``, such as ``Block.collect_params()``; the same names, shapes and dtypes
            on every rank.
        root_rank: the rank whose values all ranks get; the same on every rank.
        prefix: begins the names of the operations; to be given where there are several calls.

    Raises:
        ValueError: ``params`` is something else, or ``init`` was not called.
        MXNetError: ranks disagree about a parameter, or a rank was lost.
    """
    if not isinstance(params, dict | mx.gluon.parameter.ParameterDict):
        raise ValueError(f"invalid params of type: {type(params)}")
    if size() == 1:
        return
    arrays: list[Any] = []
    for key in sorted(params.keys()):
        name = f"{prefix or ''}{key}"
        parameter = params[key]
        if not isinstance(parameter, mx.gluon.Parameter):
            arrays.append(broadcast_(parameter, root_rank, name))
        elif parameter._deferred_init:
            _broadcast_when_initialised(parameter, root_rank, name)
        else:
            arrays += _broadcast_copies(parameter, root_rank, name)
    for array in arrays:
        array.wait_to_read()


def _broadcast_copies(parameter: Any, root_rank: int, name: str) -> list[Any]:
    """Broadcast the first of a parameter's copies, one for each device, to the others too."""
    first, *others = parameter.list_data()
    broadcast_(first, root_rank, name)
    for other in others:
        first.copyto(other)
    return [first, *others]


def _broadcast_when_initialised(parameter: Any, root_rank: int, name: str) -> None:
    initialise: Callable[..., None] = parameter._init_impl

    def initialise_and_broadcast(self: Any, *args: Any) -> None:
        initialise(*args)
        parameter._init_impl = initialise  # once: a second initialisation is for this rank only
        _broadcast_copies(self, root_rank, name)

    parameter._init_impl = MethodType(initialise_and_broadcast, parameter)
