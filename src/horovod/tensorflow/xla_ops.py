"""The collectives in functions that XLA compiles (``tf.function(jit_compile=True)``).

XLA knows the shapes of all results before anything runs. So every rank must give as many rows to
an allgather or an alltoall as this one does while the function is traced, and the same splits; a
call whose result has another shape when it runs is an error.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops.gen_xla_ops import xla_custom_call_v2

from horovod.core.base.plugins import works
from horovod.core.calls import Call, check_complex
from horovod.core.operations import Dtype, Kind, Result
from horovod.core.process_sets import ids_and_ranks
from horovod.core.world import rank
from horovod.tensorflow import gradients
from horovod.tensorflow.names import derived, node_name, op_type_of
from horovod.tensorflow.native_ops import WORLD_NUMBERS
from horovod.tensorflow.plugin import LIBRARY, TRIED, load_plugin


class XlaOps:
    """``CollectiveOps`` as calls of compiled programs, after ``open_for_xla``."""

    def run(self, call: Call, names: Sequence[str], tensors: Sequence[Any]) -> list[Any]:
        """See ``CollectiveOps``."""
        size, rows = 0, []
        if not call.keeps_shape:
            size, place = _place_in(call.process_set)
            rows = [_rows_of(call, names, tensor) for tensor in tensors]
        result_rows: list[int | None] = [None] * len(tensors)
        if call.row.result is Result.ALL_ROWS:
            result_rows = [size * count for count in rows]
        elif call.row.result is Result.OWN_ROWS:
            result_rows = [count // size + (place < count % size) for count in rows]

        def gradient(*grads: Any) -> list[Any]:
            ops, has_parts = self, call.kind is Kind.ALLGATHER
            if call.kind is Kind.REDUCESCATTER:
                pairs = zip(rows, grads, strict=True)
                ops = _Joining([count for count, grad in pairs if grad is not None], size)
            return gradients.of_call(ops, call, names, grads, tensors, has_parts)

        return _run_with_gradient(XlaCall(call, names, size), tensors, result_rows, gradient)

    def alltoall(self, call: Call, name: str, tensor: Any, splits: Any | None) -> tuple[Any, Any]:
        """See ``CollectiveOps``."""
        size, place = _place_in(call.process_set)
        given = _static_splits(name, splits)
        rows = _rows_of(call, [name], tensor)
        sent = sum(given) if given else rows
        received = size * given[place] if len(given) == size else rows
        if 0 <= sent < rows:
            tensor = tensor[:sent]  # whose gradient has zeros for the rows that stay
        back = [given[place]] * size if len(given) == size else []
        sizes = ((given, received), (back, sent))
        return self._exchange(XlaCall(call, [name], size), tensor, *sizes)

    def _exchange(
        self, xla_call: XlaCall, tensor: Any, there: _Rows, back: _Rows
    ) -> tuple[Any, Any]:
        """An alltoall whose gradient is one in the other direction, and so on.

        ``there``, ``back``: the splits, and how many rows this rank receives.
        """
        splits, received = there

        def gradient(grad: Any, _: Any) -> Any:
            derivative = xla_call._replace(names=derived(xla_call.names, "grad"))
            return self._exchange(derivative, grad, back, there)[0]

        sent = xla_call._replace(splits=splits)
        shape = [xla_call.size]
        output, counts = _run_with_gradient(sent, [tensor], [received], gradient, shape)
        return output, counts

    def join(self, name: str) -> Any:
        """See ``CollectiveOps``."""
        return run_call(XlaCall(Call(Kind.JOIN), []), [], [], [])[0]

    def world_number(self, what: str, process_set: int, name: str | None) -> Any:
        """See ``CollectiveOps``."""
        (value,) = xla_custom_call_v2(
            operands=[],
            call_target_name="horovod_world_number",
            backend_config=f"{WORLD_NUMBERS[what]} {process_set} ",
            has_side_effect=True,
            result_dtypes=[tf.int32],
            result_shapes=[[]],
            name=name,
        )
        return value


_Rows = tuple[Sequence[int], int]


class _Joining(XlaOps):
    """The allgathers in the gradient of a reducescatter; the rows of all ranks are known."""

    def __init__(self, rows: Sequence[int], size: int) -> None:
        self._rows, self._size = rows, size

    def run(self, call: Call, names: Sequence[str], tensors: Sequence[Any]) -> list[Any]:
        """See ``CollectiveOps``; one tensor for each input of the reducescatter, in its order."""

        def gradient(*grads: Any) -> list[Any]:
            return gradients.of_call(XlaOps(), call, names, grads, tensors, has_parts=True)

        joining = XlaCall(call, names, self._size)
        return _run_with_gradient(joining, tensors, self._rows, gradient)


def _place_in(process_set: int) -> tuple[int, int]:
    """The set's size and this rank's place in it, or 0 where it is no member."""
    members = ids_and_ranks()[process_set]
    return len(members), members.index(rank()) if rank() in members else 0


def _rows_of(call: Call, names: Sequence[str], tensor: Any) -> int:
    shape = static_shape(call, names, tensor)
    if not shape:
        raise ValueError(f"{call.title} '{names[0]}': a scalar was given, expected rows")
    return shape[0]


def _static_splits(name: str, splits: Any | None) -> list[int]:
    if splits is None:
        return []
    values = tf.get_static_value(splits)
    if values is None:
        raise ValueError(
            f"alltoall '{name}': splits are not known while the function is traced; in a function "
            "that XLA compiles they have to be constants"
        )
    return [int(value) for value in values.reshape(-1)]


_REASON_SIZE = 1000
_TEST_SCRIPT = """
import ctypes, sys, tensorflow as tf
from tensorflow.compiler.tf2xla.ops.gen_xla_ops import xla_custom_call_v2
tf.load_op_library(sys.argv[1])
reason = ctypes.create_string_buffer(1000)
register = ctypes.CDLL(sys.argv[1]).horovod_tensorflow_register_xla
register.restype = ctypes.c_bool
assert register(reason, ctypes.c_size_t(1000)), reason.value

def call(value, text):
    return xla_custom_call_v2([value], "horovod_self_test", text, True, [tf.int32], [[]])[0]

assert int(tf.function(lambda v: call(v, ""), jit_compile=True)(tf.constant(7))) == 7
try:
    tf.function(lambda v: call(v, "wanted"), jit_compile=True)(tf.constant(7))
except tf.errors.InternalError as error:
    assert "wanted" in str(error)
else:
    sys.exit("the error was lost")
"""


def open_for_xla() -> None:
    """Make the plugin's calls known to TensorFlow's XLA.

    The plugin relies on more than TensorFlow promises (see bindings/tensorflow/xla_plugin.cc), so
    in versions outside of our tests it is tried in a process of its own first.

    Raises:
        ImportError: the plugin does not work with this TensorFlow, or not with its XLA.
    """
    load_plugin()
    if not works(LIBRARY, "tensorflow-xla", tf.__version__, TRIED, _TEST_SCRIPT):
        raise ImportError(f"the plugin does not work with XLA of TensorFlow {tf.__version__}")
    register = ctypes.CDLL(str(LIBRARY)).horovod_tensorflow_register_xla
    register.argtypes, register.restype = [ctypes.c_char_p, ctypes.c_size_t], ctypes.c_bool
    reason = ctypes.create_string_buffer(_REASON_SIZE)
    if not register(reason, _REASON_SIZE):
        raise ImportError(f"XLA of TensorFlow {tf.__version__}: {reason.value.decode()}")


_TOKEN = "_horovod_xla_token"


class XlaCall(NamedTuple):
    """A call with what a compiled program has to know of it.

    ``names``: final; one for a group, else one for each tensor. ``size``: how many ranks the set
    has while the function is traced.
    """

    call: Call
    names: Sequence[str]
    size: int = 0
    splits: Sequence[int] = ()


def _run_with_gradient(
    xla_call: XlaCall,
    tensors: Sequence[Any],
    rows: Sequence[int | None],
    gradient: Callable[..., Any],
    extra: Sequence[int] | None = None,
) -> list[Any]:
    """``run_call``, which can be differentiated: ``gradient`` takes the gradients of results."""

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def node(*inputs: Any) -> Any:
        return run_call(xla_call, inputs, rows, extra), gradient

    return list(node(*tensors))


def run_call(
    xla_call: XlaCall,
    tensors: Sequence[Any],
    rows: Sequence[int | None],
    extra: Sequence[int] | None = None,
) -> list[Any]:
    """Put the call into the graph.

    XLA runs it on one of its threads, which waits there for the other ranks. So that ranks do not
    wait for each other in a circle, the calls of a graph pass a token from one to the next: they
    run one after the other, in the order of the graph's construction.

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
    """The token of the graph's last call, if a call made now may take it."""
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
    numbers += [float(call.prescale), float(call.postscale), int(call.link_format)]
    numbers += [call.process_set, xla_call.size]
    numbers += [len(splits), *splits, len(tensors)]
    for tensor, shape, count in zip(tensors, shapes, rows, strict=True):
        if tensor.dtype.is_complex:  # as bindings/complex.h
            check_complex(call, f"{call.title} '{xla_call.names[0]}'")
            shape = [*shape, 2]
        numbers += [_dtype_of(tensor), len(shape), *shape, 0 if count is None else count]
    return "".join(f"{number!r} " for number in numbers) + "\n".join(xla_call.names)


def _dtype_of(tensor: Any) -> int:
    try:
        return int(Dtype[tensor.dtype.real_dtype.name.upper()])
    except KeyError:
        known = ", ".join(dtype.name.lower() for dtype in Dtype)
        raise TypeError(
            f"a tensor of {tensor.dtype.name} was given, expected {known} or complex numbers"
        ) from None
