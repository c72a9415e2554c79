"""The child of an engine's process that is a launcher's agent there; see ``guest.py``.

It listens with a socket that it inherits. Whoever connects has to prove that it knows the job's
secret, strangers take nothing from it; the first who can is the launcher, and the only one.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import NoReturn

from horovod.launch.embedded.embedded_agent import EmbeddedAgentOrders
from horovod.launch.model.host_plan import HostPlan
from horovod.launch.remote.agent import Agent, forget_signal_settings
from horovod.launch.wire.handshake import PROTOCOL, AgentHandshake, ProtocolError
from horovod.launch.workers.wakeups import Wakeups
from horovod.rendezvous.base.admission import (
    UnauthenticatedPeers,
    accept_some,
    most_unauthenticated,
)

__all__ = ["main"]

_TURNS = 8
_MOST_GREETING_BYTES = 256


def main() -> NoReturn:
    """Serve the launcher that comes until it is done, or the engine's process has ended."""
    forget_signal_settings()
    orders = EmbeddedAgentOrders.decoded(_first_line())
    lifeline = _take_standard_input()
    os.set_inheritable(orders.listener_fd, False)
    with (
        socket.socket(fileno=orders.listener_fd) as listener,
        Wakeups() as wakeups,
        selectors.DefaultSelector() as selector,
    ):
        guest = _EmbeddedAgentProcess(orders, listener, lifeline, selector, wakeups)
        sys.exit(guest.run())


def _first_line() -> bytes:
    """Of standard input, and not a byte more: its end comes to be waited for."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            sys.exit(1)
        line += byte
    return line


def _take_standard_input() -> int:
    """Move it out of the way of workers."""
    lifeline = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return lifeline


def _say(text: str) -> None:
    sys.stderr.write(f"horovod: {text}\n")


class _EmbeddedAgentProcess:
    def __init__(
        self,
        orders: EmbeddedAgentOrders,
        listener: socket.socket,
        lifeline: int,
        selector: selectors.BaseSelector,
        wakeups: Wakeups,
    ) -> None:
        self._orders = orders
        self._listener = listener
        self._lifeline = lifeline
        self._selector = selector
        self._strangers: UnauthenticatedPeers[socket.socket] = UnauthenticatedPeers(
            most_unauthenticated()
        )
        self._greetings: dict[socket.socket, AgentHandshake] = {}
        self._greeting: AgentHandshake | None = None  # the launcher's
        self._has_failed = False
        self._agent = Agent(
            selector,
            wakeups,
            say=_say,
            unseal=self._unsealed,
            adapt=self._adapted,
            noted_exit=self._note_exit,
        )
        listener.setblocking(False)
        selector.register(listener, selectors.EVENT_READ, self._accept)
        selector.register(lifeline, selectors.EVENT_READ, self._hear_lifeline)

    def run(self) -> int:
        """Until nothing is left to do; the exit code."""
        self._agent.wait_for_launcher(self._orders.patience_s)
        try:
            self._agent.run()
        finally:
            self._agent.close()
        return 1 if self._has_failed or self._agent.has_let_go else 0

    # Who comes.

    def _accept(self) -> None:
        if self._greeting is not None:  # the launcher has come in this turn of the loop
            return
        try:
            # So few at once that each of them has many turns to prove itself.
            for stranger, address in accept_some(self._listener, self._strangers.most // _TURNS):
                if self._strangers.is_full:
                    self._make_room()
                self._welcome(stranger, address[0])
        except OSError:
            self._make_room()

    def _welcome(self, stranger: socket.socket, address: str) -> None:
        stranger.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        greeting = AgentHandshake(bytes.fromhex(self._orders.secret))
        self._strangers.add(stranger, address)
        self._greetings[stranger] = greeting
        self._selector.register(stranger, selectors.EVENT_READ, self._hearing(stranger))
        self._send(stranger, greeting.opening)

    def _make_room(self) -> None:
        """A launcher that was dropped unheard comes again."""
        if (stranger := self._strangers.first_to_go()) is not None:
            self._part(stranger)

    def _hearing(self, stranger: socket.socket) -> Callable[[], None]:
        return lambda: self._hear(stranger)

    def _hear(self, stranger: socket.socket) -> None:
        greeting = self._greetings.get(stranger)
        if greeting is None:  # parted with in this turn of the loop
            return
        try:
            data = stranger.recv(_MOST_GREETING_BYTES)
            answer = greeting.feed(data)
        except ProtocolError:
            self._send(stranger, PROTOCOL.refusal)
            data = b""
        except OSError:
            data = b""
        if not data:
            self._part(stranger)
            return
        self._send(stranger, answer)
        if greeting.is_over:
            self._greeting = greeting
            self._let_in(stranger)

    def _send(self, stranger: socket.socket, data: bytes) -> None:
        """So little always fits into an empty socket."""
        with contextlib.suppress(OSError):
            stranger.sendall(data)

    def _part(self, stranger: socket.socket) -> None:
        self._strangers.remove(stranger)
        del self._greetings[stranger]
        self._selector.unregister(stranger)
        stranger.close()

    def _let_in(self, launcher: socket.socket) -> None:
        """From now on nobody else is."""
        orders_fd, reports_fd = os.dup(launcher.fileno()), os.dup(launcher.fileno())
        launcher.setblocking(True)
        for stranger in list(self._greetings):
            self._part(stranger)
        self._selector.unregister(self._listener)
        self._listener.close()
        assert self._greeting is not None
        self._agent.attach(orders_fd, reports_fd, self._greeting.records())

    # What ends it.

    def _hear_lifeline(self) -> None:
        if not os.read(self._lifeline, 1):
            self._selector.unregister(self._lifeline)
            self._agent.desert("the process that has this guest has ended it")

    def _note_exit(self, exit_code: int) -> None:
        if exit_code != 0 and not self._agent.is_ending:
            self._has_failed = True
            if self._orders.ends_with_failure:
                self._agent.let_go("a worker has failed")

    def _unsealed(self, plan: HostPlan) -> HostPlan:
        assert self._greeting is not None
        return replace(plan, secret=self._greeting.sealed(plan.secret))

    def _adapted(self, plan: HostPlan) -> HostPlan:
        """Without a program of its own it is this Python; what is there already stays there."""
        words = (plan.words[0] or sys.executable, *plan.words[1:])
        environment = {**os.environ, **plan.environment, **self._orders.environment}
        return replace(plan, words=words, environment=environment)
