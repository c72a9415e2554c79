"""The import path for variables of options; the code is in ``horovod.launch.others``."""

from horovod.launch.others.job import (
    set_env_from_args,
)

__all__ = [
    "set_env_from_args",
]
