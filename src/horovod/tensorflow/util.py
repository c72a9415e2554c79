"""Modes, errors and hashing, for ``horovod.tensorflow`` and programs that import them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from horovod.core.compatibility import cached
from horovod.core.port import keep_failure
from horovod.errors import HorovodInternalError, MismatchError, ShutdownError

_cache = cached
_make_subgraph = tf.function


def _executing_eagerly() -> bool:
    """Whether operations run as they are called, rather than becoming part of a graph."""
    return bool(tf.executing_eagerly())


def vars_to_refs(vars: Any) -> Any:
    """A hashable reference to a variable; for a (nested) list of variables a tuple of them."""
    return tuple(map(vars_to_refs, vars)) if isinstance(vars, list) else vars.ref()


def refs_to_vars(refs: Any) -> Any:
    """The inverse of ``vars_to_refs``."""
    return list(map(refs_to_vars, refs)) if isinstance(refs, tuple) else refs.deref()


def tf_error_of(error: Exception) -> tf.errors.OpError:
    """TensorFlow's class for an error of the engine, with the same text."""
    if isinstance(error, MismatchError):
        kind = tf.errors.FailedPreconditionError
    elif isinstance(error, ShutdownError):
        kind = tf.errors.AbortedError
    elif isinstance(error, HorovodInternalError):
        kind = tf.errors.UnknownError
    else:
        kind = tf.errors.InvalidArgumentError
    return kind(None, None, str(error))


@contextmanager
def engine_errors_as_tf_errors() -> Iterator[None]:
    """Raise errors of the engine as those that TensorFlow's own operations raise."""
    try:
        yield
    except (ValueError, HorovodInternalError) as error:
        keep_failure(error)
        raise tf_error_of(error) from error
