"""The import path for starting a job by ``jsrun``; the code is in ``horovod.launch.compat``."""

from horovod.launch.compat.runs import is_jsrun_installed, js_run

__all__ = ["is_jsrun_installed", "js_run"]
