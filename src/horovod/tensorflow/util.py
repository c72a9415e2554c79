"""Small things that all of ``horovod.tensorflow`` needs: what mode we are in, whose error it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

from horovod.errors import HorovodInternalError, MismatchError, ShutdownError

__all__ = ["engine_errors_as_tf_errors", "tf_error_of"]


def _executing_eagerly() -> bool:
    """Whether operations run as they are called, rather than becoming part of a graph."""
    return bool(tf.executing_eagerly())


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
    """Raise what the engine raises as the errors that TensorFlow's own operations raise."""
    try:
        yield
    except (ValueError, HorovodInternalError) as error:
        raise tf_error_of(error) from error
