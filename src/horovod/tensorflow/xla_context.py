"""Whether a graph under construction is for XLA."""

from __future__ import annotations

import tensorflow as tf


def is_traced_for_xla() -> bool:
    """Whether a node made now becomes part of a function that XLA compiles whole."""
    if tf.executing_eagerly():
        return False
    graph = tf.compat.v1.get_default_graph()
    while graph is not None:
        context = graph._get_control_flow_context()
        while context is not None:
            if context.IsXLAContext():
                return True
            context = context.outer_context
        graph = getattr(graph, "outer_graph", None)
    return False
