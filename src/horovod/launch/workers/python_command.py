"""How another Python process, here or on another host, is told to run a part of this package."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path

from horovod.launch.model.ssh import SshOptions, agent_command, remote_words

# The current folder must not replace a module of the interpreter, so it is not on the search path.
# The package is found where this process has found it, unless the other Python has its own.
_START = (
    "import sys; sys.path[:] = [*filter(None, sys.path), sys.argv.pop()]; "
    "from horovod.launch.{module} import main; main()"
)


def python_command(executable: str, module: str, arguments: Sequence[str] = ()) -> list[str]:
    """The command that calls ``main`` of ``horovod.launch.<module>``, such as ``remote.agent``.

    ``main`` finds ``arguments`` in ``sys.argv[1:]``.
    """
    return [executable, *_arguments(module, arguments)]


def remote_python_command(
    hostname: str,
    ssh: SshOptions,
    environ: Mapping[str, str],
    module: str,
    arguments: Sequence[str] = (),
) -> list[str]:
    """The same on ``hostname``, in this folder and by this interpreter where they exist."""
    words = _arguments(module, arguments)
    command = agent_command(os.getcwd(), sys.executable or "python3", words)
    return remote_words(hostname, command, ssh, environ)


def _arguments(module: str, arguments: Sequence[str]) -> list[str]:
    package_root = str(Path(__file__).resolve().parents[3])
    return ["-c", _START.format(module=module), *arguments, package_root]


def path_ahead() -> tuple[str, ...]:
    """Where this process finds modules before those of its Python, such as in ``PYTHONPATH``."""
    library = sysconfig.get_path("stdlib")

    def is_ahead(path: str) -> bool:
        is_archive = path.endswith(".zip") and os.path.dirname(path) == os.path.dirname(library)
        return path != library and not is_archive

    return tuple(os.path.abspath(path) for path in takewhile(is_ahead, sys.path) if path)
