"""Prints its environment, its settings, and the cores of its threads before and after ``init``."""

import dataclasses
import json
import os
from pathlib import Path

import horovod.numpy as hvd
from horovod.settings import Settings


def cores_of(thread: Path) -> str:
    lines = (thread / "status").read_text().splitlines()
    return next(line for line in lines if line.startswith("Cpus_allowed_list:")).split()[-1]


def threads() -> dict[str, str]:
    return {thread.name: cores_of(thread) for thread in Path("/proc/self/task").iterdir()}


before = threads()
hvd.init()
after = threads()
print(
    json.dumps(
        {
            "environment": dict(os.environ),
            "settings": dataclasses.asdict(Settings.from_env()),
            "old": {name: cores for name, cores in after.items() if name in before},
            "was": before,
            "new": sorted(cores for name, cores in after.items() if name not in before),
        }
    )
)
hvd.shutdown()
