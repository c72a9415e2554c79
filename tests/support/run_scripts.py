"""Runs scripts one after the other in each rank, since a framework takes seconds to import.

    horovodrun -np 2 python run_scripts.py "digits.py --epochs 2" "adasum.py"

Each script has a world of its own: the world of the one before is ended. Each rank prints the
status that a script exits with; an exception ends the job.
"""

import runpy
import shlex
import sys
from pathlib import Path

from horovod.core import world


def main(commands: list[str]) -> None:
    for command in commands:
        sys.argv = shlex.split(command)
        sys.path[0] = str(Path(sys.argv[0]).parent)
        status = status_of(sys.argv[0])
        world.shutdown()
        print(f"status {status} of {command}", flush=True)


def status_of(script: str) -> int:
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr, flush=True)
            return 1
        return end.code or 0
    return 0


if __name__ == "__main__":
    main(sys.argv[1:])
