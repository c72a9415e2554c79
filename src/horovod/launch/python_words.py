"""How another Python process is told to run a part of this package."""

from __future__ import annotations

from pathlib import Path

__all__ = ["python_arguments", "python_words"]

# Whatever the first entry of the search path is, it must not replace a module of the interpreter;
# the package is found where this process has found it, unless the other Python has its own.
_START = (
    "import sys; sys.path[:] = [*filter(None, sys.path), sys.argv.pop()]; "
    "from horovod.launch.{module} import main; main()"
)


def python_words(executable: str, module: str) -> list[str]:
    """The command that calls ``main`` of ``horovod.launch.<module>``."""
    return [executable, *python_arguments(module)]


def python_arguments(module: str) -> list[str]:
    """The same without the interpreter."""
    package_root = str(Path(__file__).resolve().parents[2])
    return ["-c", _START.format(module=module), package_root]
