"""Elastic training with JAX: ``@hvd.elastic.run def train(state): ...``.

The training function is called again, from the last commit, after a collective failed. In an
elastic job the new world has the processes that exist by then, in others all processes.
"""

from __future__ import annotations

import functools
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from horovod.core.world import init, rank, shutdown
from horovod.elastic import ObjectState, run_fn
from horovod.elastic.retry import engine_errors
from horovod.elastic.state import check_names
from horovod.jax.functions import broadcast_object, is_key
from horovod.jax.sharded_state import check_no_shares
from horovod.numpy.objects import broadcast_numbers

__all__ = ["JaxState", "run"]

R = TypeVar("R")


def run(func: Callable[..., R]) -> Callable[..., R]:
    """Decorate ``func(state, *args, **kwargs)`` so that it survives failed collectives.

    Call ``hvd.init()`` before, use no other collective between the two, and keep all that training
    needs in ``state``. Each call starts with ``state.sync()``. After a ``HorovodInternalError``, or
    the error that JAX makes of one inside of ``jit``, the state goes back to its last commit; after
    a ``HostsUpdatedInterrupt`` it stays; then the engine is shut down and started again, which
    waits for all ranks (``HOROVOD_START_TIMEOUT``), reset callbacks run, and ``func`` is called
    again. What was compiled is forgotten, for ranks are constants in it. Every rank has to run the
    same function.

    Returns:
        A function with the same arguments; it returns what ``func`` returns.

    Raises:
        MismatchError: ranks disagree about a collective; a bug would only come again.
        InitError: (a ``ValueError``) not all ranks came back, or the job goes on without
            this process; the text says which.
        Exception: anything else that ``func`` raises, other errors of JAX among them.
    """

    # A ValueError where JAX ran a small program on this thread.
    @engine_errors(jax.errors.JaxRuntimeError, ValueError)
    @functools.wraps(func)
    def translated(*args: Any, **kwargs: Any) -> R:
        result: R = jax.block_until_ready(func(*args, **kwargs))
        return result

    return run_fn(translated, restart_engine)


def restart_engine() -> None:
    """``world.restart``; what JAX has compiled is forgotten, for ranks are constants in it."""
    shutdown()
    jax.clear_caches()
    init()


@dataclass(frozen=True)
class _Saved:
    """An array of JAX on the host; of random keys their bits."""

    array: Any
    key_impl: Any = None


class _SavedLeaf:
    """How a ``_Saved`` goes to a file: a ``Leaf``."""

    name = "jax"

    def encode(self, value: Any) -> tuple[tuple[Any, ...], bytes | memoryview] | None:
        if not isinstance(value, _Saved):
            return None
        array = value.array
        data = array.reshape(-1).view(np.uint8).data if array.size else b""
        return (array.dtype.name, array.shape, value.key_impl), data

    def decode(self, header: tuple[Any, ...], data: bytearray) -> Any:
        dtype, shape, key_impl = header
        return _Saved(np.frombuffer(data, np.dtype(dtype)).reshape(shape), key_impl)


class JaxState(ObjectState):
    """Pytrees and plain objects that a training function needs to go on.

    Arrays are copied to host memory when they are saved, so a step may donate them. ``save(path)``
    writes pytrees of Python's containers as they are; of others, such as the state of an optimizer,
    the leaves, which ``load`` puts into the pytree that is there. Of an optimizer with
    ``sharded=True`` keep the whole state (``whole_optimizer_state``), for any rank may go.

    Args:
        kwargs: names and first values: parameters, the state of an optimizer, counters; anything
            that can be pickled.

    Raises:
        ValueError: one is the state of an optimizer with ``sharded=True``.
    """

    _leaves = (_SavedLeaf(),)
    _root_numbers = staticmethod(broadcast_numbers)

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(broadcast_object, rank, **kwargs)
        self.save()

    def saved_values(self) -> dict[str, Any]:
        """The values saved last, in the form for a file."""
        return {"objects": {name: _as_written(v) for name, v in self._saved_state.items()}}

    def take_values(self, values: dict[str, Any]) -> None:
        """Have ``restore`` go back to these."""
        check_names(values["objects"], self._saved_state)
        found = values["objects"].items()
        super().take_values(
            {"objects": {name: _as_saved(name, v, self._saved_state[name]) for name, v in found}}
        )

    def _keep(self) -> None:
        # Read all of them first: reading may show that a collective has failed.
        current = {name: getattr(self, name) for name in self._saved_state}
        check_no_shares(current, "JaxState")
        self._saved_state = jax.tree_util.tree_map(_saved, current)

    def _assign_saved(self) -> None:
        for name, value in self._saved_state.items():
            setattr(self, name, jax.tree_util.tree_map(_restored, value))


def _saved(leaf: Any) -> Any:
    if is_key(leaf):
        return _Saved(np.array(jax.random.key_data(leaf)), str(jax.random.key_impl(leaf)))
    return _Saved(np.array(leaf)) if isinstance(leaf, jax.Array) else leaf


def _restored(leaf: Any) -> Any:
    if not isinstance(leaf, _Saved):
        return leaf
    array = jnp.array(leaf.array)  # a copy: the saved one has to survive donation
    return array if leaf.key_impl is None else jax.random.wrap_key_data(array, impl=leaf.key_impl)


_CONTAINERS = (dict, list, tuple, OrderedDict, defaultdict, type(None))


def _as_written(tree: Any) -> tuple[str, Any]:
    if _has_plain_nodes(tree):
        return "tree", tree
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return "leaves", {jax.tree_util.keystr(path): leaf for path, leaf in leaves}


def _has_plain_nodes(tree: Any) -> bool:
    if type(tree) not in _CONTAINERS:
        return bool(jax.tree_util.all_leaves([tree]))
    parts = tree.values() if isinstance(tree, dict) else tree or ()
    return all(map(_has_plain_nodes, parts))


def _as_saved(name: str, written: tuple[str, Any], current: Any) -> Any:
    """The tree behind ``_as_written``, given one of its structure."""
    kind, found = written
    if kind == "tree":
        return found
    leaves, structure = jax.tree_util.tree_flatten_with_path(current)
    paths = [jax.tree_util.keystr(path) for path, _ in leaves]
    try:
        check_names(found, paths)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    return structure.unflatten([found[path] for path in paths])
