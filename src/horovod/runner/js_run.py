"""The import path for starting a job by ``jsrun``; the code is in ``horovod.launch.others``."""

from horovod.launch.others.runs import (
    is_jsrun_installed,
    js_run,
)

__all__ = [
    "is_jsrun_installed",
    "js_run",
]
