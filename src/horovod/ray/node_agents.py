"""Actors that hold nodes for an elastic job; workers run there as children of an agent."""

from __future__ import annotations

import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from horovod.launch.embedded.agent_news import AgentDirectory, FoundAgent
from horovod.launch.embedded.embedded_agent import EmbeddedAgent
from horovod.launch.model.job_plan import EmbeddedAgentAddress
from horovod.launch.workers.addresses import interface_addresses
from horovod.ray.placement import Node, Share, choose, nodes_now
from horovod.ray.settings import HostDiscovery

_PERIOD_S = 1.0
# The launcher gets the first nodes together, so the job need not grow right after its start.
_GATHER_S = 5.0
_log = logging.getLogger(__name__)
_THREADS = "OMP_NUM_THREADS"


@dataclass(frozen=True)
class AgentOptions:
    """The options of the agent of every node, which Ray sends there.

    ``launcher`` is the address of the job's launcher in the cluster. With ``ends_with_failure`` a
    node is released when one of its workers fails.
    """

    launcher: str
    secret: bytes = field(repr=False)
    environment: Mapping[str, str] = field(repr=False)
    cpus_per_worker: int
    ends_with_failure: bool
    interfaces: tuple[str, ...] = ()


class NodeAgent:
    """Runs in an actor that has the resources of ``slots`` workers."""

    def __init__(self, options: AgentOptions, slots: int) -> None:
        self._agent = EmbeddedAgent(
            own_address(options.interfaces),
            options.secret,
            launcher=options.launcher,
            environment=_environment(options, slots, os.environ),
            ends_with_failure=options.ends_with_failure,
        )

    def address(self) -> tuple[str, int]:
        """The address of the agent, for the launcher."""
        return self._agent.address

    def wait(self) -> int:
        """Block until the agent ends; 0 if no worker failed."""
        return self._agent.wait()


def own_address(interfaces: tuple[str, ...]) -> str:
    """This node's address: of the first of these interfaces, or the one that Ray uses."""
    return interface_addresses(interfaces)[0] if interfaces else ray.util.get_node_ip_address()


def _environment(options: AgentOptions, slots: int, environ: Mapping[str, str]) -> dict[str, str]:
    """The actor's environment, which Ray has made for this node, and the job's variables."""
    environment = {**environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    if environ.get(_THREADS) == str(slots * options.cpus_per_worker):  # set by Ray for the actor
        environment[_THREADS] = str(max(1, options.cpus_per_worker))
    return {**environment, **options.environment}


@dataclass
class _Reservation:
    """``reference`` is the actor's next answer: the agent's address, then its exit code."""

    name: str
    node: Node
    slots: int
    actor: Any
    reference: Any
    late_at: float
    address: tuple[str, int] | None = None


@dataclass(eq=False, repr=False)
class NodeReservations:
    """Reserves nodes on a thread of its own within ``with``, and releases them afterwards.

    It reserves ``most`` slots on the nodes that ``discovery`` finds, and tells the ``directory``.
    A node is excluded for ``cooldown_s`` seconds after its actor died or one of its workers failed,
    and for ``timeout_s`` seconds if its actor did not start within that time.
    """

    _directory: AgentDirectory
    _discovery: HostDiscovery
    _share: Share
    _agent_options: AgentOptions
    _: KW_ONLY
    most: int
    cooldown_s: float
    timeout_s: float

    def __post_init__(self) -> None:
        self._reservations: list[_Reservation] = []
        self._count = 0
        self._slots: dict[str, int] = {}
        self._excluded: dict[str, float] = {}
        self._written: dict[str, FoundAgent] = {}
        self._gather_until = time.monotonic() + _GATHER_S
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="horovod-ray", daemon=True)

    def __enter__(self) -> NodeReservations:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        for reservation in self._reservations:
            ray.kill(reservation.actor)

    def _run(self) -> None:
        update_at = 0.0
        while not self._is_over.is_set():
            if time.monotonic() >= update_at:
                update_at = time.monotonic() + _PERIOD_S
                self._attempt(self._update)
            self._attempt(self._wait_for_answers)
            self._write_agents()

    def _attempt(self, step: Callable[[], None]) -> None:
        """Log an error, such as a failed call while the cluster's head restarts; retry later."""
        try:
            step()
        except Exception as error:
            _log.warning("horovod: looking for nodes of the Ray cluster: %s", error)
            self._is_over.wait(_PERIOD_S)

    def _update(self) -> None:
        now = time.monotonic()
        self._slots = self._discovery.find_available_hosts_and_slots()
        self._excluded = {node: until for node, until in self._excluded.items() if until > now}
        used = {each.node.node_id: each.slots for each in self._reservations}
        room = self.most - sum(used.values())
        nodes = nodes_now(self._share)
        for node, slots in choose(nodes, self._slots, used, self._excluded, room):
            self._reserve(node, slots)
        for reservation in list(self._reservations):
            if reservation.address is None and now >= reservation.late_at:
                self._drop(reservation, self.timeout_s)

    def _reserve(self, node: Node, slots: int) -> None:
        self._count += 1
        # A launcher must not see a name twice.
        name = f"{node.address}/{self._count}"
        actor = (
            ray.remote(NodeAgent)
            .options(
                **self._share.options(slots),
                scheduling_strategy=NodeAffinitySchedulingStrategy(node.node_id, soft=False),
            )
            .remote(self._agent_options, slots)
        )
        late_at = time.monotonic() + self.timeout_s
        self._reservations.append(
            _Reservation(name, node, slots, actor, actor.address.remote(), late_at)
        )

    def _drop(self, reservation: _Reservation, cooldown_s: float) -> None:
        self._reservations.remove(reservation)
        if cooldown_s:
            self._excluded[reservation.node.node_id] = time.monotonic() + cooldown_s
        ray.kill(reservation.actor)

    def _wait_for_answers(self) -> None:
        """Wait a moment for answers of the actors, and handle them."""
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
                self._drop(reservation, self.cooldown_s)
                continue
            if reservation.address is None:
                reservation.address = answer
                reservation.reference = reservation.actor.wait.remote()
            else:
                self._drop(reservation, self.cooldown_s if answer else 0.0)

    def _write_agents(self) -> None:
        """Tell the launcher the agents that run on nodes that are still found."""
        agents = {
            each.name: FoundAgent(
                EmbeddedAgentAddress(*each.address, self._agent_options.secret), each.slots
            )
            for each in self._reservations
            if each.address is not None and self._slots.get(each.node.address)
        }
        is_gathering = any(each.address is None for each in self._reservations)
        if is_gathering and not self._written and time.monotonic() < self._gather_until:
            return
        if agents != self._written:
            self._written = agents
            self._directory.write(agents)


def cooldown_seconds(cooldown: tuple[float, float] | None) -> float:
    """How long a node is excluded after a failure, as in the launcher; None means for ever."""
    return cooldown[0] if cooldown else math.inf


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
