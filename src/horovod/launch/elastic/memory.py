"""The record that the driver of a job with an id leaves for the driver that follows its crash.

It is a file in the driver's folder: a line that says what it is, then the pickled ``Record``. It is
read only if it is private to the user and this version's own. Times in it are those of the
machine's monotonic clock, so it is invalid after a reboot. Writing it is atomic for a crash of the
driver, not of the machine.

The driver writes the record before it acts. The next driver loads it, listens at the same addresses
and repeats what may not have been done. Reports of the detached agents become ordinary events: a
missing worker has exited, an unknown one is killed. No event reaches the policy before one worker
is found. If there is none, the job begins anew with another secret, port and *run*, so that no
process of the old run can pass for a worker of the new one.

A driver that has taken a job over begins with an empty store: updates are put there at once, ranks
when workers ask for them again (``DriverMessages``).
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import platform
import random
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from horovod import __version__
from horovod.core.base.checked import printable
from horovod.core.base.own_files import read_own, replacing
from horovod.launch.elastic.policy.actions import Abandon, Action
from horovod.launch.elastic.policy.policy import ElasticPolicy
from horovod.launch.model.job_plan import JobPlan
from horovod.launch.remote.job_folder import (
    DRIVER,
    JobFolder,
    JobFolderTakenError,
    check_private,
    job_folder_path,
)
from horovod.rendezvous.base.authentication import SECRET_BYTES
from horovod.rendezvous.base.tcp import address_text
from horovod.rendezvous.identity.elastic_messages import (
    RankAssignment,
    Update,
    WorkerKeys,
    update_key,
    world_scope,
)
from horovod.rendezvous.store.server import StoreServer

_STATE = "state"
_MOST_BYTES = 1 << 30
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class JobRefusedError(Exception):
    """A job of this id cannot be begun or taken over; the text says why."""


@dataclass
class Record:
    """The knowledge of a driver that its workers and their hosts do not have.

    ``run`` identifies one beginning of a job; ``pending`` are decisions that may not have been
    carried out.
    """

    run: str
    secret: bytes = field(repr=False)
    policy: ElasticPolicy
    stores: list[tuple[str, int]] = field(default_factory=list)
    hostnames: set[str] = field(default_factory=set)  # as last found
    asked: dict[int, int] = field(default_factory=dict)  # the last question, by worker
    # To which of them, and how.
    answers: dict[int, tuple[int, RankAssignment]] = field(default_factory=dict)
    worlds: list[int] = field(default_factory=list)  # whose keys may be in the store
    abandoned: Abandon | None = None
    updates: int = 0
    news: dict[int, Update] = field(default_factory=dict)  # of the current world
    pending: list[Action] = field(default_factory=list)


def new_record(plan: JobPlan) -> Record:
    """A job that has not begun."""
    assert plan.elastic is not None
    policy = ElasticPolicy(plan.elastic.limits, random.Random(), time.time)
    return Record(uuid4().hex, os.urandom(SECRET_BYTES), policy)


class Memory:
    """The folder of ``plan``'s job, for this driver alone; nothing is kept for a job without an id.

    ``recalled`` is the last driver's record; if that is of no use, ``void`` says why.

    Raises:
        JobRefusedError: another driver lives, the job was begun otherwise, or the folder is not
            to be trusted.
    """

    def __init__(self, plan: JobPlan, environ: Mapping[str, str]) -> None:
        self.recalled: Record | None = None
        self.void = ""
        self._folder: JobFolder | None = None
        if plan.elastic is None or not plan.elastic.job_id:
            return
        self._job_id = plan.elastic.job_id
        self._heading = _heading(plan)
        try:
            self._folder = JobFolder(job_folder_path(self._job_id, DRIVER, environ))
            self._path = self._folder.path / _STATE
            self._recall()
        except JobFolderTakenError as error:
            raise JobRefusedError(f"job {self._job_id} is run by {error}, which lives") from None
        except JobRefusedError:
            self.close()
            raise
        except OSError as error:
            self.close()
            raise JobRefusedError(str(error)) from None

    def keep(self, record: Record) -> None:
        """Leave ``record`` in place of what was left before. Raises OSError."""
        if self._folder is None:
            return
        data = json.dumps(self._heading).encode() + b"\n" + pickle.dumps(record)
        with replacing(self._path) as file:
            file.write(data)

    def close(self) -> None:
        """Leave the job to another driver."""
        if self._folder is not None:
            self._folder.close()

    def remove(self) -> None:
        """The job is over."""
        if self._folder is not None:
            self._folder.remove()

    def _recall(self) -> None:
        try:
            check_private(self._path)
        except FileNotFoundError:
            return
        line, _, state = read_own(self._path, _MOST_BYTES).partition(b"\n")
        heading = heading_in(line)
        if heading.get("boot") != self._heading["boot"]:
            self.void = "this machine was restarted meanwhile"
            return
        for name in ("version", "job"):
            if heading.get(name) != self._heading[name]:
                raise JobRefusedError(
                    f"job {self._job_id} did not end; it was begun by {heading.get('version')} as: "
                    f"{heading.get('command')}; go on just like that, choose another id, or, if "
                    f"nothing of it is left, remove {self._path.parent}"
                )
        try:
            self.recalled = pickle.loads(state)
        except Exception as error:  # unpickling a damaged file may raise anything
            raise JobRefusedError(f"{self._path} cannot be read: {error}; remove it") from None


def heading_in(line: bytes) -> dict[str, str]:
    """The first line of a driver's file; empty if it is damaged."""
    try:
        heading = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    known = heading.items() if isinstance(heading, dict) else ()
    return {name: printable(value) for name, value in known if isinstance(value, str)}


def _heading(plan: JobPlan) -> dict[str, Any]:
    folder = os.getcwd()
    try:
        boot = _BOOT.read_text().strip()
    except OSError:  # not Linux
        boot = f"{time.time() - time.monotonic():.0f}"[:-2]
    return {
        "version": f"horovod {__version__} with Python {platform.python_version()}",
        "boot": boot,
        "job": hashlib.sha256(repr((plan, folder)).encode()).hexdigest(),
        "command": f"{shlex.join(plan.command)} (in {folder})",
    }


# Messages between the driver and its workers, which go through the job's store.


def open_store(
    record: Record, *, report: Callable[[str], None], on_set: Callable[[str, bytes], None]
) -> StoreServer:
    """A new store, or one where the workers of an earlier driver look for it.

    Raises:
        JobRefusedError: another process listens there.
        OSError: there can be no new store.
    """
    addresses = record.stores or [("127.0.0.1", 0)]
    try:
        return StoreServer(record.secret, addresses=addresses, report=report, on_set=on_set)
    except OSError as error:
        if not record.stores:
            raise
        where = ", ".join(map(address_text, addresses))
        text = f"the job's workers look for horovodrun at {where}: {error}"
        raise JobRefusedError(text) from None


class DriverMessages:
    """Writes to ``server`` and keeps ``record`` up to date."""

    def __init__(self, server: StoreServer, record: Record) -> None:
        self._server = server
        self._record = record

    def restore(self) -> None:
        """Say again what workers may still wait for."""
        for number, update in self._record.news.items():
            self._server.set(update_key(number), update.to_bytes())
        if self._record.abandoned is not None:
            self.abandon(self._record.abandoned)

    @property
    def has_heard(self) -> bool:
        """Whether any living worker has asked for a rank."""
        return bool(self._record.asked)

    def note_question(self, worker: int, count: int) -> bool:
        """A worker asks for a rank for the ``count``-th time. Returns whether that is new.

        A question that was answered before is answered again here.
        """
        answered, assignment = self._record.answers.get(worker, (0, None))
        if assignment is not None and count <= answered:
            self._server.set(WorkerKeys(worker).assignment(answered), assignment.to_bytes())
            return False
        self._record.asked[worker] = count
        return True

    def answer(self, worker: int, assignment: RankAssignment) -> None:
        """Answer the last question of ``worker``."""
        record = self._record
        count = record.asked[worker]
        record.answers[worker] = (count, assignment)
        if not (assignment.removal or assignment.is_provisional):
            record.news = {n: u for n, u in record.news.items() if n > assignment.updates}
        self._server.set(WorkerKeys(worker).assignment(count), assignment.to_bytes())

    def begin_world(self, world: int) -> None:
        """Drop the keys under which earlier worlds connected."""
        worlds = self._record.worlds
        while worlds and worlds[0] < world:
            self._abandon(worlds.pop(0), "this world has been replaced")
        if world not in worlds:
            worlds.append(world)

    def abandon(self, action: Abandon) -> None:
        """Answer workers that connect in that world, or will, with the reason as an error."""
        self._record.abandoned = action
        self._abandon(action.world, action.reason)

    def publish(self, update: Update) -> None:
        """Tell the members of the current world."""
        record = self._record
        record.updates += 1
        record.news[record.updates] = update
        self._server.set(update_key(record.updates), update.to_bytes())

    def forget(self, worker: int) -> None:
        """The worker has ended, or cannot be reached any more."""
        self._record.asked.pop(worker, None)
        self._record.answers.pop(worker, None)
        self._server.drop(WorkerKeys(worker).all)

    def _abandon(self, world: int, reason: str) -> None:
        """Both the keys of the mesh and those of data planes."""
        for what in ("mesh", "plane"):
            self._server.abandon(f"{what}/{world_scope(world)}", reason)
