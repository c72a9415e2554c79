"""Entry points of the launcher: ``horovodrun`` and ``python -m horovod.runner.launch``."""

from __future__ import annotations

import errno
import os
import select
import signal
import sys
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from horovod.core.base.replaced import names_of
from horovod.launch.cli.main import main

if TYPE_CHECKING:
    from horovod.launch.compat.job import check_build, make_check_build_action
    from horovod.launch.compat.job import choose_controller as run_controller
    from horovod.launch.compat.job import parse_arguments as parse_args
    from horovod.launch.compat.job import run_arguments as _run

__all__ = [
    "_run",
    "check_build",
    "make_check_build_action",
    "parse_args",
    "run_commandline",
    "run_controller",
]

# Of ``horovod.launch.compat.job``, which ``horovodrun`` itself does not need.
_FACES = {
    "_run": "run_arguments",
    "check_build": "check_build",
    "make_check_build_action": "make_check_build_action",
    "parse_args": "parse_arguments",
    "run_controller": "choose_controller",
}
_missing = names_of("horovod.runner.launch")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def run_commandline() -> int:
    """Run ``horovodrun`` with this process's arguments; returns its exit status.

    That is 141 if standard output was closed before all of it was printed, as ``head`` does, and 1
    if it goes to a full disk.
    """
    if not sys.warnoptions:
        # Python shows these to developers only; here they are about what the user has typed.
        warnings.filterwarnings("default", category=DeprecationWarning, module=r"horovod\.launch")
    try:
        try:
            return main(sys.argv[1:])
        finally:
            if sys.stdout is not None:  # None: it was closed from the start
                sys.stdout.flush()
    except OSError as error:
        if (status := _status_of(error)) is None:
            raise
        # Python flushes once more when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), 1)
        return status


def _status_of(error: OSError) -> int | None:
    """The exit status if standard output takes nothing more; a full disk is told."""
    if isinstance(error, BrokenPipeError) and _is_unread(1):
        return 128 + signal.SIGPIPE
    if error.errno not in _FULL:
        return None
    with suppress(OSError):  # it may be full, too
        print(f"horovodrun: the output cannot be written: {error.strerror}", file=sys.stderr)
    return 1


def _is_unread(descriptor: int) -> bool:
    """Whether it is a pipe or socket that nothing reads any more."""
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def __getattr__(name: str) -> Any:
    if name not in _FACES:
        return _missing(name)
    from horovod.launch.compat import job

    return getattr(job, _FACES[name])


if __name__ == "__main__":
    sys.exit(run_commandline())
