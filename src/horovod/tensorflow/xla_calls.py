"""A collective as a call in a program that XLA compiles: its text and its shapes.

XLA runs such a call on one of its threads, which waits there for the other ranks. So that ranks
do not wait for each other in a circle, the calls of a graph pass a token from one to the next: they
run one after the other, in the order of the graph's construction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops.gen_xla_ops import xla_custom_call_v2

from horovod.core.calls import Call
from horovod.core.operations import Dtype
from horovod.tensorflow.names import node_name, op_type_of

_TOKEN = "_horovod_xla_token"


@dataclass(frozen=True)
class XlaCall:
    """A call with what a compiled program has to know of it.

    ``names``: final; one for a group, else one for each tensor. ``size``: how many ranks the set
    has while the function is traced.
    """

    call: Call
    names: Sequence[str]
    size: int = 0
    splits: Sequence[int] = ()


def run_call(
    xla_call: XlaCall,
    tensors: Sequence[Any],
    rows: Sequence[int | None],
    extra: Sequence[int] | None = None,
) -> list[Any]:
    """Put the call into the graph.

    Args:
        xla_call: what it is.
        tensors: its inputs, with static shapes.
        rows: of each result, where these differ from the input's; the rest of its shape does not.
        extra: the shape of one more result, of int32.
    """
    call, names = xla_call.call, xla_call.names
    shapes = [static_shape(call, names, tensor) for tensor in tensors]
    results = [
        shape if count is None else [count, *shape[1:]]
        for shape, count in zip(shapes, rows, strict=True)
    ]
    dtypes = [tensor.dtype for tensor in tensors]
    if extra is not None:
        results.append(list(extra))
        dtypes.append(tf.int32)
    graph = tf.compat.v1.get_default_graph()
    *found, token = xla_custom_call_v2(
        operands=[*tensors, _token_of(graph)],
        call_target_name="horovod_collective",
        backend_config=_text_of(xla_call, tensors, shapes, rows),
        has_side_effect=True,
        result_dtypes=[*dtypes, tf.int32],
        result_shapes=[*results, []],
        name=node_name(op_type_of(call.kind), names, call.is_group) if names else None,
    )
    setattr(graph, _TOKEN, token)
    return list(found)


def run_world_number(what: int, process_set: int, name: str | None) -> Any:
    """An int32 scalar, as it is when the program runs; ``what`` as in bindings/engine_port.h."""
    (value,) = xla_custom_call_v2(
        operands=[],
        call_target_name="horovod_world_number",
        backend_config=f"{what} {process_set} ",
        has_side_effect=True,
        result_dtypes=[tf.int32],
        result_shapes=[[]],
        name=name,
    )
    return value


def static_shape(call: Call, names: Sequence[str], tensor: Any) -> list[int]:
    """The shape of a tensor, all of which XLA has to know.

    Raises:
        ValueError: it is not known while the function is traced.
    """
    if not tensor.shape.is_fully_defined():
        raise ValueError(
            f"{call.title} '{names[0]}': the tensor's shape is {tensor.shape} "
            "while the function is traced; a function that XLA compiles needs all dimensions"
        )
    shape: list[int] = tensor.shape.as_list()
    return shape


def _token_of(graph: Any) -> Any:
    """What the graph's last call gave, if a call made now may take it."""
    token = getattr(graph, _TOKEN, None)
    context = graph._get_control_flow_context()
    if token is None or token.op._get_control_flow_context() is not context:
        return tf.constant(0)
    return token


def _text_of(
    xla_call: XlaCall,
    tensors: Sequence[Any],
    shapes: Sequence[Sequence[int]],
    rows: Sequence[int | None],
) -> str:
    """As bindings/tensorflow/xla_call.cc reads it: numbers with a space behind each, then names."""
    call, splits = xla_call.call, xla_call.splits
    numbers: list[Any] = [int(call.kind), int(call.op), int(call.is_group), call.root_rank]
    numbers += [float(call.prescale), float(call.postscale), call.process_set, xla_call.size]
    numbers += [len(splits), *splits, len(tensors)]
    for tensor, shape, count in zip(tensors, shapes, rows, strict=True):
        numbers += [_dtype_of(tensor), len(shape), *shape, 0 if count is None else count]
    return "".join(f"{number!r} " for number in numbers) + "\n".join(xla_call.names)


def _dtype_of(tensor: Any) -> int:
    try:
        return int(Dtype[tensor.dtype.name.upper()])
    except KeyError:
        known = ", ".join(dtype.name.lower() for dtype in Dtype)
        raise TypeError(f"a tensor of {tensor.dtype.name} was given, expected {known}") from None
