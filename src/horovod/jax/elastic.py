"""Elastic training with JAX: ``@hvd.elastic.run def train(state): ...``.

The training function is called again, from the last commit, after a collective failed. In this
version a job keeps its size: all of its processes take part in the new world.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from horovod.elastic import ObjectState, run_fn
from horovod.errors import HorovodInternalError, MismatchError
from horovod.jax.functions import broadcast_object, is_key
from horovod.world import init, rank, shutdown

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
        InitError: (a ``ValueError``) not all ranks came back; the text names those missing.
        Exception: anything else that ``func`` raises, other errors of JAX among them.
    """

    @functools.wraps(func)
    def translated(*args: Any, **kwargs: Any) -> R:
        try:
            result: R = jax.block_until_ready(func(*args, **kwargs))
            return result
        except (jax.errors.JaxRuntimeError, ValueError) as error:
            # A ValueError where JAX ran a small program on this thread.
            text = str(error)
            if "HorovodInternalError" not in text:
                raise
            kind = MismatchError if "MismatchError" in text else HorovodInternalError
            raise kind(text) from error

    return run_fn(translated, _restart_engine)


def _restart_engine() -> None:
    shutdown()
    jax.clear_caches()
    init()


class JaxState(ObjectState):
    """Pytrees and plain objects that a training function needs to go on.

    Arrays are copied to host memory when they are saved, so a step may donate them.

    Args:
        kwargs: names and first values: parameters, the state of an optimizer, counters; anything
            that can be pickled.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(broadcast_object, rank, **kwargs)
        self.save()

    def save(self) -> None:
        """Copy the current values to host memory."""
        super().save()
        self._saved_state = jax.tree_util.tree_map(_saved, self._saved_state)

    def _assign_saved(self) -> None:
        for name, value in self._saved_state.items():
            setattr(self, name, jax.tree_util.tree_map(_restored, value))


@dataclass(frozen=True)
class _Saved:
    """An array of JAX on the host; of random keys their bits."""

    array: Any
    key_impl: Any = None


def _saved(leaf: Any) -> Any:
    if is_key(leaf):
        return _Saved(np.array(jax.random.key_data(leaf)), str(jax.random.key_impl(leaf)))
    return _Saved(np.array(leaf)) if isinstance(leaf, jax.Array) else leaf


def _restored(leaf: Any) -> Any:
    if not isinstance(leaf, _Saved):
        return leaf
    array = jnp.array(leaf.array)  # a copy: the saved one has to survive donation
    return array if leaf.key_impl is None else jax.random.wrap_key_data(array, impl=leaf.key_impl)
