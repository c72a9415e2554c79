"""A guest: an agent that another engine runs where it has placed a process, such as Spark or Ray.

Where ssh leads to other machines, the launcher starts agents by it. Where an engine has placed
processes, each of them takes in a *guest*: a child that listens at one address, lets in the
launcher that knows the job's secret, and is its agent (``guest_agent.py``). When the engine's
process ends, for whatever reason, so do the guest and its workers. Where that process has loaded
nothing of its own, as with Spark's, the guest is a fork of it, and its workers forks of the guest.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from types import ModuleType, TracebackType
from typing import BinaryIO, Protocol

from horovod.launch.forks import fork, may_fork
from horovod.launch.python_words import python_words

__all__ = ["Guest", "GuestOrders"]

_END_S = 15.0  # two graces of the agent's, and its own end
_LOOK_S = 0.005


@dataclass(frozen=True)
class GuestOrders:
    """What the child is told on standard input, whose end is the order to end.

    ``environment`` goes to its workers on top of what the launcher says. With
    ``ends_with_failure`` it ends as soon as one of them has failed.
    """

    listener_fd: int
    secret: str = field(repr=False)
    environment: Mapping[str, str] = field(repr=False)
    ends_with_failure: bool
    patience_s: float

    def encoded(self) -> bytes:
        """One line."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def decoded(cls, line: bytes) -> GuestOrders:
        """What ``encoded`` has made."""
        return cls(**json.loads(line))


class Guest:
    """Listens at ``host`` from construction on, ``address`` is where; to be used with ``with``.

    ``launcher`` is this node's way to the machine where the launcher is. Nobody needs to call
    anything while the guest serves; ``wait`` says how it ended. If no launcher comes within
    ``patience_s``, it ends. In a fork of this process ``forget`` takes back what the engine has
    set in its modules. See ``GuestOrders`` for the rest.

    Raises:
        OSError: the address is not this machine's, or no process can be started.
    """

    def __init__(
        self,
        host: str,
        secret: bytes,
        *,
        launcher: str,
        environment: Mapping[str, str] | None = None,
        ends_with_failure: bool = False,
        patience_s: float = 600.0,
        forget: Callable[[], None] = lambda: None,
    ) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.create_server((host, 0), family=family) as listener:
            self.address: tuple[str, int] = listener.getsockname()[:2]
            # As sshd says where the launcher comes from.
            environ = {**os.environ, "SSH_CONNECTION": f"{launcher} 0 {host} 0"}
            self._child, self._lifeline = _start(listener.fileno(), environ, forget)
            orders = GuestOrders(
                listener.fileno(),
                secret.hex(),
                dict(environment or {}),
                ends_with_failure,
                patience_s,
            )
            with contextlib.suppress(BrokenPipeError):
                self._lifeline.write(orders.encoded())

    def wait(self) -> int:
        """Block until it has ended; 0 if that was in order, and no worker had failed."""
        return self._child.wait()

    def end(self) -> None:
        """End its workers and itself; does not wait. May be repeated, from any thread."""
        self._lifeline.close()

    def __enter__(self) -> Guest:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()
        try:
            self._child.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()


class _Child(Protocol):
    def wait(self, timeout: float | None = None) -> int: ...

    def kill(self) -> None: ...


def _start(
    listener_fd: int, environ: Mapping[str, str], forget: Callable[[], None]
) -> tuple[_Child, BinaryIO]:
    """The guest, with this process's socket, and its standard input, unbuffered."""
    orders_fd, lifeline_fd = os.pipe()
    lifeline = os.fdopen(lifeline_fd, "wb", buffering=0)
    try:
        child = _forked(listener_fd, orders_fd, environ, forget) or subprocess.Popen(
            python_words(sys.executable, "guest_agent"),
            stdin=orders_fd,
            env=environ,
            pass_fds=(listener_fd,),
            start_new_session=True,
        )
    except BaseException:
        lifeline.close()
        raise
    finally:
        os.close(orders_fd)
    return child, lifeline


def _forked(
    listener_fd: int, orders_fd: int, environ: Mapping[str, str], forget: Callable[[], None]
) -> _Child | None:
    """None if a fork could not pass for a new process, or there is no memory for one."""
    if not may_fork():
        return None
    guest_agent = _load_what_forks_need()
    if not may_fork():
        return None

    def main() -> None:
        forget()
        guest_agent.main()

    files = {0: orders_fd, listener_fd: listener_fd}
    with contextlib.suppress(OSError):
        return _Fork(fork(main, environ, files))
    return None


def _load_what_forks_need() -> ModuleType:
    """The guest's module; the others are the workers'. All stay for the next guest from here."""
    import horovod.launch.by_value
    import horovod.rendezvous.mesh
    from horovod.launch import guest_agent

    if os.environ.get("OMP_NUM_THREADS") == "1":  # else NumPy starts threads
        import horovod.numpy  # noqa: F401
    return guest_agent


class _Fork:
    """A child of ``fork``, to be waited for like one of ``subprocess``."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._exit_code: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._exit_code is None:
            pid, status = os.waitpid(self._pid, 0 if deadline is None else os.WNOHANG)
            if pid:
                self._exit_code = os.waitstatus_to_exitcode(status)
            elif deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("guest", timeout or 0.0)
            else:
                time.sleep(_LOOK_S)
        return self._exit_code

    def kill(self) -> None:
        if self._exit_code is None:
            os.kill(self._pid, signal.SIGKILL)
