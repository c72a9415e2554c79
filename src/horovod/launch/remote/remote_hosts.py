"""The other hosts of a job while they start, all at once; errors name all hosts that failed.

Each host gets one connection: the ssh that starts its agent shows whether the host can be reached,
and the agent waits for its plan on the same connection. No worker is started before every host has
answered.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from textwrap import indent

from horovod.launch.model.ssh import advice
from horovod.launch.remote.remote_group import RemoteWorkerGroup

_SHOWN_COMMAND = 60
_TCP_ADVICE = "TCP connections from here to its node have to get through: is there a firewall?"
# So many failures are described in full; many hosts mostly fail alike.
_MOST_TOLD = 5


class RemoteHosts:
    """The remote groups of a job."""

    def __init__(self, groups: Sequence[RemoteWorkerGroup], start_timeout_s: float) -> None:
        self.groups = tuple(groups)
        self._start_timeout_s = start_timeout_s
        self._deadline = float("inf")

    def connect(self, environ: Mapping[str, str]) -> None:
        """Connect with all hosts; each is then connected, lost or late."""
        self._deadline = time.monotonic() + self._start_timeout_s
        for group in self.groups:
            group.connect(environ)

    @property
    def has_answered(self) -> bool:
        """Whether every host has, with an agent or a failure."""
        return all(group.is_connected or group.is_gone for group in self.groups)

    @property
    def deadline(self) -> float | None:
        """When all workers must have been started; None once they are."""
        return None if all(group.is_started for group in self.groups) else self._deadline

    def failures(self) -> str:
        """Why the job cannot start: the hosts that failed; empty if none did."""
        return _report(
            f"could not connect to some {self._hosts}; nothing has been started",
            [group for group in self.groups if group.is_gone],
        )

    def delays(self) -> str:
        """Why the job has not started in time: the hosts that failed or are late."""
        late = [group for group in self.groups if not group.is_started]
        silent = [group for group in late if not group.is_connected]
        what = f"could not connect to some {self._hosts}" if silent else "some hosts do not start"
        limit = f"within {self._start_timeout_s:g} s (--start-timeout)"
        return _report(f"{what} {limit}", silent or late)

    @property
    def _hosts(self) -> str:
        return "hosts via ssh" if any(group.command for group in self.groups) else "embedded agents"

    def seen_addresses(self) -> dict[str, str]:
        """This machine's address as each host sees it, if it knows."""
        return {c.hostname: c.launcher_address for c in self.groups if c.launcher_address}


def ranks_of(group: RemoteWorkerGroup) -> str:
    """``rank 2`` or ``ranks 2 to 5``."""
    first, last = group.ranks[0], group.ranks[-1]
    return f"rank {first}" if first == last else f"ranks {first} to {last}"


def _report(title: str, groups: Sequence[RemoteWorkerGroup]) -> str:
    if not groups:
        return ""
    parts = [f"horovodrun: {title}:", *map(_describe, groups[:_MOST_TOLD])]
    if others := groups[_MOST_TOLD:]:
        parts.append(f"  and {', '.join(f'{c.hostname} ({_problem(c)})' for c in others)}")
    return "\n".join(parts) + "\n"


def _describe(group: RemoteWorkerGroup) -> str:
    command, lines = group.command, group.last_lines
    if not command:
        return f"  {group.hostname}: {_problem(group)}\n    try: {_TCP_ADVICE}"
    *reach, last = command
    shown = shlex.join([*reach, last[:_SHOWN_COMMAND] + "..."])
    hint = advice(command, group.child.exit_code, lines)
    parts = [f"  {group.hostname}: {_problem(group)}", f"    {shown}"]
    if lines:
        parts.append(indent(lines, "    | "))
    return "\n".join([*parts, f"    try: {hint}"])


def _problem(group: RemoteWorkerGroup) -> str:
    if group.problem:
        return group.problem
    if group.is_connected:
        return "has not started its workers"
    return "no answer" if group.child.exit_code is None else group.child.how_it_ended
