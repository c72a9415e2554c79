"""Elastic training without a framework, under the path that existing scripts import."""

from horovod.elastic import ObjectState, State, notification_manager, run_fn
from horovod.errors import HorovodInternalError, HostsUpdatedInterrupt

__all__ = [
    "AbstractObjectState",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "notification_manager",
    "run_fn",
]

AbstractObjectState = ObjectState
