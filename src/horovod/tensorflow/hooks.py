"""Session hooks; can be imported if TensorFlow has the hooks of ``tf.compat.v1.train``."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from horovod.tensorflow.functions import broadcast_global_variables
from horovod.tensorflow.run_time import placed_on


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Gives all ranks the root's global variables once a session is there.

    For ``MonitoredTrainingSession`` and ``tf.estimator.Estimator``; also after the root restored a
    checkpoint. Every rank needs the same global variables; each session creation blocks until all
    ranks create theirs.

    Args:
        root_rank: the rank whose values all ranks get; the same on every rank.
        device: where to place the operation; "" leaves it to TensorFlow.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        self.root_rank = root_rank
        self.device = device
        self.bcast_op: Any = None

    def begin(self) -> None:
        """Make the operation in the graph that the next session runs."""
        graph = tf.compat.v1.get_default_graph()
        if self.bcast_op is None or self.bcast_op.graph is not graph:
            with placed_on(self.device):
                self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Run it; variables are initialised or restored by now."""
        session.run(self.bcast_op)
