"""Entry points of the launcher: ``horovodrun`` and ``python -m horovod.runner.launch``."""

from __future__ import annotations

import sys
import warnings

from horovod.launch.cli import main

__all__ = ["run_commandline"]


def run_commandline() -> int:
    """Run ``horovodrun`` with this process's arguments; returns its exit status."""
    if not sys.warnoptions:
        # Python shows these to developers only; here they are about what the user has typed.
        warnings.filterwarnings("default", category=DeprecationWarning, module=r"horovod\.launch")
    return main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(run_commandline())
