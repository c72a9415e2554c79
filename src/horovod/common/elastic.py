"""Elastic training without a framework, under the path that existing scripts import."""

from horovod.elastic import ObjectState, State, notification_manager, run_fn

__all__ = ["ObjectState", "State", "notification_manager", "run_fn"]
