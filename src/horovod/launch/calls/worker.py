"""The worker of ``horovod.run``: reads the call, runs it, and writes the answer."""

from __future__ import annotations

import os
import sys
import threading
from typing import NoReturn

from horovod.errors import PeerLostError
from horovod.launch.calls.call import (
    ANSWER_FD,
    CALL_FD,
    failure_of,
    read_call,
    write_failure,
    write_result,
)

# After a failure the interpreter has this long to shut down, whatever threads are left.
_EXIT_S = 2.0


def main() -> NoReturn:
    """Run the call of this worker; exits with 0 only if its result was delivered."""
    run_call(CALL_FD, ANSWER_FD)


def run_call(call_fd: int, answer_fd: int) -> NoReturn:
    """Run the call in one file and put its answer into another; exits as ``main`` does."""
    for fd in (call_fd, answer_fd):
        os.set_inheritable(fd, False)
    try:
        call = read_call(call_fd, _become_like_caller)
    except BaseException as error:
        _fail(answer_fd, error, "could not unpickle the function or its arguments")
    try:
        result = call.function(*call.args, **call.kwargs)
    except SystemExit as error:
        # The interpreter's exit code for it, but never 0: there is no result.
        code = error.code & 0xFF or 1 if isinstance(error.code, int) else 1
        _fail(answer_fd, error, f"called sys.exit({error.code!r}) and so has no result", code)
    except BaseException as error:
        _fail(answer_fd, error, "raised")
    try:
        write_result(answer_fd, result)
    except BaseException as error:
        _fail(answer_fd, error, f"could not pickle the result, a {type(result).__qualname__}")
    sys.exit(0)


def _become_like_caller(argv: tuple[str, ...], search_path: tuple[str, ...] | None) -> None:
    sys.argv[:] = argv
    if search_path is not None:
        sys.path[:] = search_path


def _fail(answer_fd: int, error: BaseException, what: str, exit_code: int = 1) -> NoReturn:
    if not isinstance(error, SystemExit):
        what += f": {_in_a_line(error)}" if what != "raised" else f" {_in_a_line(error)}"
    failure = failure_of(error, what, exit_code)
    write_failure(answer_fd, failure)
    # Exit even if a thread that the function left behind never ends.
    timer = threading.Timer(_EXIT_S, os._exit, (exit_code,))
    timer.daemon = True
    timer.start()
    print(_shown(error, failure.traceback), end="", file=sys.stderr, flush=True)
    sys.exit(exit_code)


def _shown(error: BaseException, traceback: str) -> str:
    if not isinstance(error, PeerLostError):
        return traceback
    from horovod.core.uncaught import lost_peer_line  # here, to start workers faster

    return f"{lost_peer_line(error, error.__traceback__)}\n"


def _in_a_line(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # its __str__ may raise anything
        text = ""
    return f"{type(error).__qualname__}: {text}" if text else type(error).__qualname__
