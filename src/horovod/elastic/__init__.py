"""Training that survives a failed collective: state that can go back, and a loop that retries.

This is the worker's side, without a framework. ``State`` says what is saved, restored and made
equal on all ranks. ``run_fn`` calls a training function again after a reset.
``notification_manager`` tells states that hosts came or went. Framework bindings add states for
their models, and give ``run_fn`` a function that ends and starts the engine. Tensors are touched
only through what a binding passes in.
"""

from horovod.elastic.notification import (
    HostUpdate,
    NotificationManager,
    is_elastic_job,
    notification_manager,
)
from horovod.elastic.retry import run_fn
from horovod.elastic.state import ObjectState, State

__all__ = [
    "HostUpdate",
    "NotificationManager",
    "ObjectState",
    "State",
    "is_elastic_job",
    "notification_manager",
    "run_fn",
]
