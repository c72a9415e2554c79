"""Entry points of the launcher: ``horovodrun`` and ``python -m horovod.runner.launch``."""

from __future__ import annotations

import sys

from horovod.launch.cli import main

__all__ = ["run_commandline"]


def run_commandline() -> int:
    """Run ``horovodrun`` with this process's arguments; returns its exit status."""
    return main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(run_commandline())
