"""The installed ``mpirun`` programs, each with a Python that uses its library.

Open MPI's wheel is in the tests' own environment, MPICH's in a separate one (``make test`` makes
``.venv-mpich``; HOROVOD_TEST_MPICH names another), Debian's Open MPI in the system.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
BIN = Path(sys.prefix) / "bin"
MPICH_BIN = Path(os.environ.get("HOROVOD_TEST_MPICH", ROOT / ".venv-mpich")) / "bin"
TIMEOUT_S = 500


@dataclass(frozen=True)
class MpiLauncher:
    """How to start processes with one MPI."""

    name: str
    prefix: tuple[str, ...]
    python: str
    lack: str = ""

    def command(self, ranks: int, *arguments: object) -> list[str]:
        return [*self.prefix, "-np", str(ranks), self.python, *map(str, arguments)]

    def run(
        self, ranks: int, *arguments: object, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        if self.lack:
            pytest.skip(f"{self.name}: {self.lack}")
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        return subprocess.run(
            self.command(ranks, *arguments),
            env={**os.environ, **root, "OMP_NUM_THREADS": "1", **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )


def _launcher(name: str, program: Path, python: str, *options: str) -> MpiLauncher:
    lack = ""
    if not program.exists():
        lack = f"there is no {program}"
    elif find_spec("mpi4py") is None:
        lack = "mpi4py is not installed"
    return MpiLauncher(name, (str(program), *options), python, lack)


LAUNCHERS = (
    _launcher("Open MPI", BIN / "mpirun", sys.executable, "--oversubscribe"),
    _launcher("MPICH", MPICH_BIN / "mpiexec", str(MPICH_BIN / "python")),
)
