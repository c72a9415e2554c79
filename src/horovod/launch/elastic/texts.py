"""What the user reads about an elastic job: hosts, what is missing, where the state is. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from horovod.launch.elastic.policy.capacity import Capacity
from horovod.launch.elastic.policy.workers import Ending, Entry
from horovod.launch.model.hosts import counted
from horovod.rendezvous.identity.elastic_messages import Ready, StateVersion

_ADVICE = (
    "Check that the cluster has enough resources and that the discovery lists hosts that can be "
    "reached; fewer workers are allowed by --min-np, a longer wait by --elastic-timeout."
)


def duration(now: float, end: float) -> str:
    """How long something is blacklisted."""
    return "for good" if math.isinf(end) else f"for {end - now:.0f} s"


def hosts_now(capacity: Capacity, now: float) -> str:
    """All hosts found, with their slots and what of them is blacklisted."""
    ends = capacity.blacklisted_hosts(now)
    parts = []
    for name, count in capacity.hosts.items():
        part = f"{name}:{count}"
        if name in ends:
            part += f" (blacklisted {duration(now, ends[name])})"
        elif slots := capacity.blacklisted_slots(now, name):
            part += f" ({len(slots)} blacklisted {duration(now, max(slots))})"
        parts.append(part)
    return ", ".join(parts) or "no hosts"


def too_few(needed: str, waited_s: float, living: int, found: str) -> str:
    """There were too few slots for too long."""
    return (
        f"horovodrun: timed out waiting for the minimum number of slots: {needed}; after "
        f"{waited_s:g} s {_there_are(living)} that can go on, and the discovery's last "
        f"answer is {found}\n{_ADVICE}\n"
    )


def lost_state(newest: Ready, world: int, endings: Iterable[Ending], now: float, found: str) -> str:
    """No worker is left that could give the state to the others; perhaps there never was one."""
    lines = ""
    for end in endings:
        process = f"{end.name}, pid {end.pid}," if end.pid else end.name
        lines += f"  {process} {end.what}, {now - end.at:.1f} s ago\n"
    who = f"all workers of world {world}"
    if newest.state_version.has_state:
        who = f"no worker with the state is left: {who} that had it"
    return f"horovodrun: {who} have ended; the discovery's last answer is {found}\n{lines}"


def all_blacklisted(kept: Sequence[Entry], needed: int, found: str) -> str:
    """No host can be used any more; ``kept`` are workers that live there and may have the state."""
    text = f"horovodrun: all hosts are blacklisted: {found}"
    if kept:
        names = ", ".join(entry.name for entry in kept)
        text += f"; {_there_are(len(kept))} with the state there, {needed} are needed: {names}"
    return f"{text}\n"


def reinstated(kept: Sequence[Entry]) -> str:
    """Blacklisted hosts are used again."""
    hosts = ", ".join(dict.fromkeys(entry.hostname for entry in kept))
    names = ", ".join(entry.name for entry in kept)
    return f"{hosts}: no longer blacklisted but for free slots, since {names} can go on there"


def older_state(first: Entry, name: str) -> str:
    """The newest state that was reported is lost."""
    state_version = first.ready.state_version
    return (
        f"going on from an older state, that of {first.name} with {_commits(state_version)}; "
        f"{name}, which had the newest, has ended"
    )


def over_limit(limit: int) -> str:
    """One world too many; tools look for the end of the text."""
    return f"horovodrun: the number of resets during elastic job exceeded limit: {limit}\n"


def never_together(world: int, attempts: int, members: Iterable[Entry]) -> str:
    """The same workers failed to connect again and again, and report no worker as lost."""
    reasons = "".join(f"  {entry.name}: {entry.ready.reason or 'no reason'}\n" for entry in members)
    return (
        f"horovodrun: {attempts} worlds in a row, the last of them world {world}, ended before "
        f"they began although no worker was lost:\n{reasons}"
    )


def newest_state(ready: Ready, name: str, is_alive: bool, unasked: int) -> str:
    """Where the newest reported state is; ``unasked``: workers in training, which may have one."""
    if not ready.state_version.has_state:
        still = f"; {_there_are(unasked)} in training, which may have one" if unasked else ""
        return f"No worker has reported a committed state{still}.\n"
    had = "was" if not is_alive else "is"
    text = f"The newest committed state {had} that of {name}: {_commits(ready.state_version)}"
    file = f"its checkpoint is {ready.checkpoint}" if ready.checkpoint else "without a checkpoint"
    return f"{text}; {file}\n"


def waiting(needed: int, count: int) -> str:
    """Why there is no next world yet: too few workers, or only such without the state."""
    if count >= needed:
        return f"waiting: {_there_are(count)}, and none of them has the state"
    return f"waiting: {needed} are needed, {_there_are(count)} that can go on"


def _commits(state_version: StateVersion) -> str:
    return f"{counted(state_version.commits, 'commit')} in world {state_version.world}"


def _there_are(count: int) -> str:
    """``there is 1 worker``, ``there are 2 workers``."""
    return f"there {'is' if count == 1 else 'are'} {counted(count, 'worker')}"
