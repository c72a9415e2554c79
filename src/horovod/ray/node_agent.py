"""An actor that has a node's share of an elastic job: workers run there as its children."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

import ray

from horovod.launch.embedded.embedded_agent import EmbeddedAgent
from horovod.launch.workers.addresses import interface_addresses

__all__ = ["Invitation", "NodeAgent"]

_THREADS = "OMP_NUM_THREADS"


@dataclass(frozen=True)
class Invitation:
    """What the job says to every node; Ray carries it.

    ``launcher`` is the address of the job's launcher in the cluster. With ``ends_with_failure`` a
    node is given back when one of its workers has failed.
    """

    launcher: str
    secret: bytes = field(repr=False)
    environment: Mapping[str, str] = field(repr=False)
    cpus_per_worker: int
    ends_with_failure: bool
    interfaces: tuple[str, ...] = ()
    patience_s: float = 600.0


class NodeAgent:
    """Runs in an actor that has the resources of ``slots`` workers."""

    def __init__(self, invitation: Invitation, slots: int) -> None:
        self._guest = EmbeddedAgent(
            _own_address(invitation.interfaces),
            invitation.secret,
            launcher=invitation.launcher,
            environment=_environment(invitation, slots, os.environ),
            ends_with_failure=invitation.ends_with_failure,
            patience_s=invitation.patience_s,
        )

    def address(self) -> tuple[str, int]:
        """Where the launcher finds its agent."""
        return self._guest.address

    def wait(self) -> int:
        """Block until the agent has ended; 0 if no worker had failed."""
        return self._guest.wait()


def _own_address(interfaces: tuple[str, ...]) -> str:
    return interface_addresses(interfaces)[0] if interfaces else ray.util.get_node_ip_address()


def _environment(invitation: Invitation, slots: int, environ: Mapping[str, str]) -> dict[str, str]:
    """That of the actor, which Ray has made for this node, and not that of the launcher's node."""
    environment = {**environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    if environ.get(_THREADS) == str(slots * invitation.cpus_per_worker):  # Ray's, for the actor
        environment[_THREADS] = str(max(1, invitation.cpus_per_worker))
    return {**environment, **invitation.environment}
