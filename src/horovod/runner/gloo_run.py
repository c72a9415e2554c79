"""The import path for starting a job without MPI; the code is in ``horovod.launch.compat``."""

from horovod.core.base.replaced import names_of
from horovod.launch.compat.runs import create_run_env_vars, create_slot_env_vars, gloo_run

__all__ = ["create_run_env_vars", "create_slot_env_vars", "gloo_run"]

__getattr__ = names_of(__name__)
