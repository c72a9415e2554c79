"""Keeps as many nodes of the cluster reserved as an elastic job may use, and tells its launcher."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from horovod.launch.embedded.agent_news import AgentDirectory, FoundAgent
from horovod.launch.model.job_plan import EmbeddedAgentAddress
from horovod.ray.discovery import Node, choose, nodes_now
from horovod.ray.node_agent import Invitation, NodeAgent
from horovod.ray.placement import Share
from horovod.ray.settings import HostDiscovery

__all__ = ["NodeKeeper"]

_PERIOD_S = 1.0
# At first all nodes are told at once, so that the job need not grow a moment after its begin.
_GATHER_S = 5.0
_log = logging.getLogger(__name__)


@dataclass
class _Reservation:
    """``reference`` is the actor's next answer: first where its guest is, then how it has ended."""

    name: str
    node: Node
    slots: int
    actor: Any
    reference: Any
    late_at: float
    address: tuple[str, int] | None = None


class NodeKeeper:
    """Works on a thread of its own within ``with``; afterwards nothing is reserved any more.

    ``most`` slots are reserved on the nodes that ``discovery`` finds. A node whose actor dies, or
    where a worker has failed, is not used for ``rest_s`` seconds; one that has no answer after
    ``patience_s`` is given up for as long.
    """

    def __init__(
        self,
        book: AgentDirectory,
        discovery: HostDiscovery,
        share: Share,
        invitation: Invitation,
        *,
        most: int,
        rest_s: float,
        patience_s: float,
    ) -> None:
        self._book = book
        self._discovery = discovery
        self._share = share
        self._invitation = invitation
        self._most = most
        self._rest_s = rest_s
        self._patience_s = patience_s
        self._reservations: list[_Reservation] = []
        self._count = 0
        self._found: dict[str, int] = {}
        self._resting: dict[str, float] = {}
        self._told: dict[str, FoundAgent] = {}
        self._gather_until = time.monotonic() + _GATHER_S
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="horovod-ray", daemon=True)

    def __enter__(self) -> NodeKeeper:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over.set()
        self._thread.join()
        for reservation in self._reservations:
            ray.kill(reservation.actor)

    def _keep(self) -> None:
        look_at = 0.0
        while not self._is_over.is_set():
            if time.monotonic() >= look_at:
                look_at = time.monotonic() + _PERIOD_S
                self._attempt(self._look)
            self._attempt(self._hear)
            self._tell()

    def _attempt(self, step: Callable[[], None]) -> None:
        """What fails now, such as a question to a cluster whose head restarts, is tried again."""
        try:
            step()
        except Exception as error:
            _log.warning("horovod: looking for nodes of the Ray cluster: %s", error)
            self._is_over.wait(_PERIOD_S)

    def _look(self) -> None:
        now = time.monotonic()
        self._found = self._discovery.find_available_hosts_and_slots()
        self._resting = {node: until for node, until in self._resting.items() if until > now}
        used = {each.node.node_id: each.slots for each in self._reservations}
        room = self._most - sum(used.values())
        nodes = nodes_now(self._share)
        for node, slots in choose(nodes, self._found, used, self._resting, room):
            self._reserve(node, slots)
        for reservation in list(self._reservations):
            if reservation.address is None and now >= reservation.late_at:
                self._drop(reservation, self._patience_s)

    def _reserve(self, node: Node, slots: int) -> None:
        self._count += 1
        # A launcher never meets a name twice.
        name = f"{node.address}/{self._count}"
        actor = (
            ray.remote(NodeAgent)
            .options(
                **self._share.options(slots),
                scheduling_strategy=NodeAffinitySchedulingStrategy(node.node_id, soft=False),
            )
            .remote(self._invitation, slots)
        )
        late_at = time.monotonic() + self._patience_s
        self._reservations.append(
            _Reservation(name, node, slots, actor, actor.address.remote(), late_at)
        )

    def _drop(self, reservation: _Reservation, rest_s: float) -> None:
        self._reservations.remove(reservation)
        if rest_s:
            self._resting[reservation.node.node_id] = time.monotonic() + rest_s
        ray.kill(reservation.actor)

    def _hear(self) -> None:
        """Wait until an actor has something to say, for a while."""
        if not self._reservations:
            self._is_over.wait(_PERIOD_S / 5)
            return
        by_reference = {each.reference: each for each in self._reservations}
        ready, _ = ray.wait(list(by_reference), timeout=_PERIOD_S / 5)
        for reference in ready:
            reservation = by_reference[reference]
            try:
                answer = ray.get(reference)
            except RayError as error:
                _log.warning("horovod: %s is lost: %s", reservation.name, _first_line(error))
                self._drop(reservation, self._rest_s)
                continue
            if reservation.address is None:
                reservation.address = answer
                reservation.reference = reservation.actor.wait.remote()
            else:
                self._drop(reservation, self._rest_s if answer else 0.0)

    def _tell(self) -> None:
        """The launcher hears of guests that are there, on nodes that are still found."""
        guests = {
            each.name: FoundAgent(
                EmbeddedAgentAddress(*each.address, self._invitation.secret), each.slots
            )
            for each in self._reservations
            if each.address is not None and self._found.get(each.node.address)
        }
        is_gathering = any(each.address is None for each in self._reservations)
        if is_gathering and not self._told and time.monotonic() < self._gather_until:
            return
        if guests != self._told:
            self._told = guests
            self._book.write(guests)


def seconds_of_rest(cooldown: tuple[float, float] | None) -> float:
    """How long a node is not used after a loss: as the launcher blacklists, without end if so."""
    return cooldown[0] if cooldown else math.inf


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
