"""Whether an optax transformation treats every element alike, so that ranks can share its step.

Nothing names an optax transformation, but JAX tells what it computes. Its program is traced twice:
for the parameters, and for flat arrays of another length. Both may consist of operations on single
elements only, and must be the same ones: a transformation may look at shapes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import jax
import jax.numpy as jnp

from horovod.jax.sharded_state import Layout, Place

_ELEMENTWISE = """
    abs acos acosh add add_any and asin asinh atan atan2 atanh cbrt ceil clamp conj
    convert_element_type copy copy_p cos cosh digamma div eq erf erf_inv erfc exp exp2 expm1
    floor ge gt imag integer_pow is_finite le lgamma log log1p logistic lt max min mul ne
    neg nextafter not or pow pvary real reduce_precision rem round rsqrt select_n shift_left
    shift_right_arithmetic shift_right_logical sign sin sinh sqrt square stop_gradient sub
    tan tanh xor
"""

# They keep the order of elements if they keep their number.
_RESHAPING = ("broadcast_in_dim", "reshape", "squeeze", "expand_dims")

_CALLING = """
    jit pjit closed_call core_call custom_jvp_call custom_vjp_call custom_vjp_call_jaxpr
    checkpoint remat remat2 cond while
"""

_KNOWN = frozenset(_ELEMENTWISE.split() + _CALLING.split())

# Who owns no element of any array.
_NOWHERE = Place(2**60 - 1, 2**60)

_TITLE = "DistributedOptimizer: sharded=True"
_HINT = "If it does treat every element alike, use sharded='elementwise'"


def layout_of(inner: Any, params: Any, place: Place) -> Layout:
    """Where the elements of the state lie.

    Args:
        inner: an optax transformation.
        params: arrays, or what is traced.
        place: this rank's.

    Raises:
        ValueError: an array of the state has neither the elements of a parameter nor the same shape
            whatever the share.
    """
    whole = jax.eval_shape(inner.init, params)
    part = jax.eval_shape(inner.init, jax.eval_shape(_NOWHERE.own_all, params))
    found, structure = jax.tree_util.tree_flatten_with_path(whole)
    parts = jax.tree_util.tree_leaves(part)
    if structure != jax.tree_util.tree_structure(part):
        raise ValueError(
            f"{_TITLE}: the transformation looks at the shapes of parameters: its state is "
            f"{structure}, and for a share {jax.tree_util.tree_structure(part)}"
        )
    shapes: list[tuple[int, ...] | None] = []
    for (path, leaf), own in zip(found, parts, strict=True):
        if own.shape not in (leaf.shape, (0,)):
            raise ValueError(
                f"{_TITLE} needs a state of single numbers and of arrays with the elements of a "
                f"parameter; state{jax.tree_util.keystr(path)} has shape {list(leaf.shape)}, and "
                f"{list(own.shape)} for a share without elements"
            )
        shapes.append(None if own.shape == leaf.shape else tuple(leaf.shape))
    return Layout(place, tuple(shapes))


def check_elementwise(inner: Any, params: Any) -> None:
    """``ValueError`` if the transformation may not treat every element alike.

    Arguments as for ``layout_of``.
    """

    def step(params: Any) -> Any:
        return inner.update(params, inner.init(params), params)

    whole = _operations(step, jax.eval_shape(lambda tree: tree, params))
    # Not of a share: one rank refuses what several would; JAX leaves out operations on no elements.
    if whole != _operations(step, jax.eval_shape(_twice, params)):
        raise ValueError(
            f"{_TITLE} needs a transformation that treats every element alike; this one looks at "
            f"the shapes of parameters, and a share is flat. {_HINT}"
        )


def _twice(params: Any) -> Any:
    """Flat arrays with twice the elements: no number of elements stays, not even that of one."""
    return jax.tree_util.tree_map(lambda array: jnp.tile(jnp.reshape(array, -1), 2), params)


def _operations(step: Callable[[Any], Any], shapes: Any) -> tuple[list[str], set[str]]:
    """The operations of the program in their order, and the numbers in it.

    Numbers, because one may come from a shape. They have no order: the program has an array of a
    number where parameters are arrays, and the number itself where they are numbers.
    """
    try:
        program = jax.make_jaxpr(step)(shapes)
    except Exception as error:
        raise ValueError(
            f"{_TITLE} cannot look into the update of this transformation: {error}. {_HINT}"
        ) from error
    names: list[str] = []
    numbers: set[str] = set()
    for equation in _equations(program.jaxpr):
        numbers.update(str(v.val) for v in equation.invars if hasattr(v, "val"))
        name = equation.primitive.name
        if name in _RESHAPING and _keeps_elements(equation):
            continue
        if name not in _KNOWN and not _is_of_numbers(equation):
            _refuse(equation)
        names.append(name)
    return names, numbers


def _refuse(equation: Any) -> NoReturn:
    arrays = ", ".join(str(v.aval) for v in equation.invars) or "shapes"
    raise ValueError(
        f"{_TITLE} needs a transformation that treats every element alike; {_place(equation)} "
        f"computes {equation.primitive.name} of {arrays}. {_HINT}"
    )


def _equations(program: Any) -> Iterator[Any]:
    for equation in program.eqns:
        yield equation
        if equation.primitive.name in _CALLING.split():
            for value in equation.params.values():
                for part in value if isinstance(value, tuple | list) else [value]:
                    inner = getattr(part, "jaxpr", part)
                    if hasattr(inner, "eqns"):
                        yield from _equations(inner)


def _keeps_elements(equation: Any) -> bool:
    given, result = equation.invars[0].aval, equation.outvars[0].aval
    return bool(given.shape == () or given.size == result.size)


def _is_of_numbers(equation: Any) -> bool:
    """Whether it has single numbers only, which are the same on all ranks."""
    return all(v.aval.shape == () for v in (*equation.invars, *equation.outvars))


def _place(equation: Any) -> str:
    """The function of the transformation in which it is, as far as that is known."""
    traceback = equation.source_info.traceback
    jax_folder = os.path.dirname(jax.__file__)
    for frame in traceback.frames if traceback is not None else ():
        function, _, inner = frame.function_name.partition(".<locals>.")
        if inner.startswith(("init", "update")) and not frame.file_name.startswith(jax_folder):
            return str(function)
    return "it"
