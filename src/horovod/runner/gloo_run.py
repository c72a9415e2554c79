"""The import path for starting a job without MPI; the code is in ``horovod.launch.others``."""

from horovod.launch.others.runs import (
    create_run_env_vars,
    create_slot_env_vars,
    gloo_run,
)
from horovod.replaced import names_of

__all__ = [
    "create_run_env_vars",
    "create_slot_env_vars",
    "gloo_run",
]

__getattr__ = names_of(__name__)
