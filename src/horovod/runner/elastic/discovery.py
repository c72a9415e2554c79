"""Host discovery as other launchers use it: the hosts, and the changes between two look-ups."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Mapping

from horovod.launch.elastic.host_sources import parse_found_hosts
from horovod.launch.elastic.policy.capacity import Blacklist
from horovod.launch.model.host_plan import command_argv
from horovod.launch.workers.processes import describe_exit

__all__ = [
    "DiscoveredHosts",
    "FixedHosts",
    "HostDiscovery",
    "HostDiscoveryScript",
    "HostManager",
    "HostUpdateResult",
]

_LIMIT_S = 10.0


class HostUpdateResult:
    """The changes since the last look-up; ``mixed`` is both kinds."""

    no_update = 0
    removed = 1
    added = 2
    mixed = removed | added


class HostDiscovery:
    """Finds the hosts that exist now; to be subclassed."""

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """The slots of each host, by name."""
        raise NotImplementedError(f"{type(self).__name__} does not find hosts")


class HostDiscoveryScript(HostDiscovery):
    """Runs a command that prints ``name`` or ``name:slots`` for each host.

    A line without a number has ``slots`` slots.
    """

    def __init__(self, discovery_script: str, slots: int | None = None) -> None:
        self._script = discovery_script
        self._slots = slots

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """See ``HostDiscovery``; blocks for 10 s at most.

        Raises:
            RuntimeError: the command fails or takes longer.
            ValueError: it prints other lines.
        """
        try:
            answer = subprocess.run(
                command_argv((self._script,)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                timeout=_LIMIT_S,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise RuntimeError(f"the host discovery script {self._script}: {error}") from None
        if answer.returncode != 0:
            what = describe_exit(answer.returncode)
            raise RuntimeError(f"the host discovery script {self._script} {what}")
        return parse_found_hosts(answer.stdout.decode(errors="backslashreplace"), self._slots)


class FixedHosts(HostDiscovery):
    """Hosts that change only by ``set``."""

    def __init__(self, available_hosts: Mapping[str, int]) -> None:
        self._hosts = dict(available_hosts)

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """See ``HostDiscovery``."""
        return dict(self._hosts)

    def set(self, available_hosts: Mapping[str, int]) -> None:
        """Replace the hosts."""
        self._hosts = dict(available_hosts)


class DiscoveredHosts:
    """The hosts of one look-up, in the order in which they were first seen."""

    def __init__(self, host_slots: Mapping[str, int], host_assignment_order: list[str]) -> None:
        self.host_slots = dict(host_slots)
        self.host_assignment_order = host_assignment_order

    @property
    def available_hosts(self) -> set[str]:
        """Their names."""
        return set(self.host_assignment_order)

    def get_slots(self, host: str) -> int:
        """The slots of a host; 0 if it is not there."""
        return self.host_slots.get(host, 0)

    def count_available_slots(self) -> int:
        """The slots of all hosts."""
        return sum(map(self.get_slots, self.host_assignment_order))


class HostManager:
    """The hosts that a discovery finds, without the blacklisted ones.

    ``cooldown_range``: seconds, from the first to the second number and growing with each failure,
    until a blacklisted host is used again; None: never.
    """

    def __init__(
        self, discovery: HostDiscovery, cooldown_range: tuple[float, float] | None = None
    ) -> None:
        self._discovery = discovery
        self._blacklist: Blacklist[str] = Blacklist(cooldown_range, random.Random())
        self.current_hosts = DiscoveredHosts({}, [])

    def update_available_hosts(self) -> int:
        """Ask the discovery once; returns the changes, see ``HostUpdateResult``.

        Raises:
            TypeError: the discovery does not return slots by host.
        """
        found = {h: slots for h, slots in self._ask().items() if not self.is_blacklisted(h)}
        before = self.current_hosts
        stayed = [host for host in before.host_assignment_order if host in found]
        new = [host for host in found if host not in before.available_hosts]
        is_less = any(found.get(host, 0) < before.get_slots(host) for host in before.host_slots)
        is_more = any(slots > before.get_slots(host) for host, slots in found.items())
        self.current_hosts = DiscoveredHosts(found, stayed + new)
        return HostUpdateResult.removed * is_less | HostUpdateResult.added * is_more

    def _ask(self) -> dict[str, int]:
        found = self._discovery.find_available_hosts_and_slots()
        is_right = isinstance(found, dict) and all(
            isinstance(host, str) and isinstance(slots, int) for host, slots in found.items()
        )
        if not is_right:
            raise TypeError(
                f"{type(self._discovery).__name__}.find_available_hosts_and_slots returned "
                f"{found!r}, expected a dict with the slots of each host, such as {{'host': 4}}"
            )
        return found

    def blacklist(self, host: str) -> None:
        """Do not use ``host`` for the cooldown, or never again."""
        self._blacklist.add(time.monotonic(), host)
        current = self.current_hosts
        left = [name for name in current.host_assignment_order if name != host]
        self.current_hosts = DiscoveredHosts({h: current.host_slots[h] for h in left}, left)

    def is_blacklisted(self, host: str) -> bool:
        """Whether the host is not used now."""
        return self._blacklist.end_of(time.monotonic(), host) is not None
