"""Launchers say nothing about jobs that end well, unless a test wants to hear it."""

import os

os.environ["HOROVOD_QUIET"] = "1"
