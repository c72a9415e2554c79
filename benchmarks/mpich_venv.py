"""The virtual environment of the MPICH peer, made once and reused.

It is separate because the wheels of Open MPI and MPICH both contain a library named libmpi.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

__all__ = ["ensure_mpich_venv"]

_ROOT = Path(__file__).resolve().parents[1]
_VENV = _ROOT / "build" / "bench-mpich"
_REQUIREMENTS = _ROOT / "requirements" / "bench-mpich.txt"
_CONSTRAINTS = _ROOT / "requirements" / "constraints.txt"


def ensure_mpich_venv() -> Path:
    """The folder of its programs; installs the current ``requirements`` first."""
    wanted = _REQUIREMENTS.read_text() + _CONSTRAINTS.read_text()
    stamp = _VENV / ".installed"
    if not stamp.exists() or stamp.read_text() != wanted:
        print("making build/bench-mpich ...", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", _VENV], check=True)
        pip = [str(_VENV / "bin" / "pip"), "install", "-q", "--disable-pip-version-check"]
        files = ["-r", str(_REQUIREMENTS), "-c", str(_CONSTRAINTS)]
        subprocess.run([*pip, *files], check=True)
        stamp.write_text(wanted)
    return _VENV / "bin"
