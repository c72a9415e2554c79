"""Where and in which world the operations of a step run.

With ``HOROVOD_ELASTIC=1`` graphs outlive worlds, so they ask for size and membership each time
they run. Otherwise these are constants of the graph.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import tensorflow as tf

from horovod.core import world
from horovod.core.process_sets import ProcessSet, number_of
from horovod.elastic import is_elastic_job
from horovod.tensorflow import collectives


def has_others(process_set: ProcessSet) -> Any:
    """Whether this process has others to reduce with: a bool, or a scalar bool tensor in a graph.

    Raises:
        ValueError: the set is not registered, or Horovod is not initialized.
    """
    number = number_of(process_set)
    if _is_asked_later():
        is_member = tf.equal(collectives.process_set_included_op(number), 1)
        return tf.logical_and(is_member, collectives.size_op(number) > 1)
    return world.has_others(process_set)


def set_size(process_set: ProcessSet, dtype: Any) -> Any:
    """The size of a process set as a scalar tensor."""
    number = number_of(process_set)
    if _is_asked_later():
        return tf.cast(collectives.size_op(number), dtype)
    return tf.cast(process_set.size() or 1, dtype)


def placed_on(device: str) -> AbstractContextManager[Any]:
    """Places operations on a device; "" leaves it to the caller's own choice."""
    return tf.device(device) if device else nullcontext()


def _is_asked_later() -> bool:
    return is_elastic_job() and not tf.executing_eagerly()
