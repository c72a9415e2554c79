"""Sends this process' record to the report of its job (``horovodrun --report``), once a second.

A thread reads the counters and the newest events of the flight recorder, and writes the record into
the launcher's store, so the launcher has the last record of a killed rank. Without a report none
of this runs.
"""

from __future__ import annotations

import logging
import math
import os
import platform
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Mapping
from typing import Protocol

import numpy as np

from horovod import __version__
from horovod.errors import InitError
from horovod.metrics.counters import MOVING
from horovod.metrics.progress import Numbers, Read
from horovod.rendezvous.bootstrap import ProcessInfo, new_launcher_store
from horovod.rendezvous.store.client import REPORT_KEYS, Store
from horovod.settings import Settings, environment_of
from horovod.trace.recording import EVENT_DTYPE, Label, label_from
from horovod.trace.report.process_record import LARGEST, ProcessRecord, World
from horovod.trace.report.summary import Summarizer
from horovod.trace.world_facts import system_name

REPORT = "_HOROVOD_REPORT"  # set by a launcher that writes one
PERIOD_S = 1.0
_MOST_EVENTS = 16384  # in a second: more would slow down the training
_MOST_LOGGED = 4096
MOST_NAME = 64
_LARGEST_STEP = 2**63 - 1
_STORE_S = 10.0
_LAST_S = 2.0
_FRAMEWORKS = ("numpy", "torch", "tensorflow", "keras", "jax", "jaxlib", "mxnet", "mpi4py")
_log = logging.getLogger("horovod")


class Recorder(Protocol):
    """The flight recorder of an engine."""

    def events_since(self, begin: int, most: int) -> tuple[int, bytes]:
        """Events from number ``begin`` on, and the number of the next event."""

    def label(self, id: int) -> bytes:
        """The bytes of a label in files, without its number."""


class _Process:
    """The state that outlives a world: the process record, and the connection to the store."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.lock = threading.Lock()
        self.record = ProcessRecord(
            {
                "pid": os.getpid(),
                "host": environ.get("HOROVOD_HOSTNAME") or platform.node(),
                "worker": environ.get("_HOROVOD_WORKER"),
            }
        )
        # The program's logs: time, numbers, step, and samples since the last call.
        self.logged: deque[tuple[float, Mapping[str, float], int | None, float]] = deque(
            maxlen=_MOST_LOGGED
        )
        self._environ = dict(environ)
        self._key = REPORT_KEYS + uuid.uuid4().hex
        self._store: Store | None = None

    def publish(self) -> None:
        """Write the record, with the lock held; if the store is gone, the next call tries again."""
        try:
            if self._store is None:
                self._store = new_launcher_store(self._environ, _STORE_S)
            self._store.set(self._key, self.record.to_bytes())
        except (InitError, ValueError) as error:
            _log.debug("report: %s", error)
            self.disconnect()

    def disconnect(self) -> None:
        """Close the connection until the next ``publish``."""
        store, self._store = self._store, None
        if store is not None:
            store.close()


_process: _Process | None = None


def open_sampler(
    identity: ProcessInfo, settings: Settings, data_plane: str, recorder: Recorder, read: Read
) -> Sampler | None:
    """Start to send this world's data, if the job has a report."""
    global _process
    if os.environ.get(REPORT) != "1" or identity.launcher != "horovodrun":
        return None
    if _process is None:
        _process = _Process(os.environ)
    world = World(identity.scope, identity.rank, identity.size, identity.local_rank, data_plane)
    return Sampler(_process, world, settings, recorder, read)


def note_sample(
    parameters: Mapping[str, bool | float | str], score: float, *, is_chosen: bool = False
) -> None:
    """Add parameters that autotuning has tried, or its result, to the report, if there is one.

    ``score`` is in bytes per second.
    """
    process = _process
    if process is not None:
        with process.lock:
            process.record.note_trial(time.time(), parameters, score, is_chosen=is_chosen)


def log_metrics(
    metrics: Mapping[str, float] | None = None, step: int | None = None, *, samples: float = 0
) -> None:
    """Show numbers of this rank, such as its loss, in the page of ``horovodrun --report``.

    Nothing is communicated, and the call never waits. Without a report, or before ``init``, it does
    nothing. The page has a chart of each name, with the mean of about a second, for the first 8
    names. A first value that is not finite is an event there.

    Args:
        metrics: numbers by name, such as ``{"loss": 0.3}``; anything that ``float`` takes. The
            value of a tensor on a GPU waits for that GPU.
        step: the step that they are of, from 0 on.
        samples: how many samples this rank has processed since its last call; the page shows them
            per second.

    Raises:
        TypeError, ValueError: a name is no text of 1 to 64 characters, a value is no number,
            ``step`` is no whole number from 0 on, or ``samples`` is negative or not finite.
    """
    numbers = {}
    for name, value in (metrics or {}).items():
        if not isinstance(name, str) or not 0 < len(name) <= MOST_NAME:
            raise ValueError(
                f"log_metrics: name {name!r:.99}; expected a text of 1 to {MOST_NAME} characters"
            )
        try:
            numbers[name] = float(value)
        except OverflowError:  # a larger integer than a float can be
            numbers[name] = math.inf if value > 0 else -math.inf
        except (TypeError, ValueError) as error:
            raise type(error)(f"log_metrics: {name}: expected a number: {error}") from None
    count = float(samples)
    if not 0 <= count <= LARGEST:
        raise ValueError(f"log_metrics: samples is {samples}; expected a number from 0 on")
    number = None if step is None else _step_number(step)
    process = _process
    if process is not None:
        process.logged.append((time.time(), numbers, number, count))


def _step_number(step: int) -> int:
    try:
        number = int(step)
    except (OverflowError, ValueError):
        number = -1
    if not 0 <= number <= _LARGEST_STEP:
        raise ValueError(f"log_metrics: step: expected a whole number from 0 to {_LARGEST_STEP}")
    return number


class Sampler:
    """Sends the data of one world, from construction to ``close``."""

    def __init__(
        self, process: _Process, world: World, settings: Settings, recorder: Recorder, read: Read
    ) -> None:
        self._process = process
        self._recorder = recorder
        self._read = read
        self._summarizer = Summarizer()
        self._next = 0
        self._counted = _counted(read())
        self._looked_ns = time.monotonic_ns()
        with process.lock:
            process.record.begin_world(time.time(), world)
            changed = list(environment_of(settings.changed()))
            texts = environment_of(vars(settings))
            process.record.describe({"settings": texts, "changed": changed})
            process.publish()  # at once: the process may die soon
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="horovod-report", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Send the record a last time; waits for at most two seconds."""
        self._is_over.set()
        self._thread.join(_LAST_S)

    def abandon(self) -> None:
        """Forget the record in a forked child: it is the parent's."""
        global _process
        self._process.disconnect()
        _process = None

    def _run(self) -> None:
        is_last = False
        while True:
            with self._process.lock:
                self._look()
                self._process.publish()
                if is_last:
                    self._process.disconnect()
                    return
            is_last = self._is_over.wait(PERIOD_S)

    def _look(self) -> None:
        record = self._process.record
        now_ns = time.monotonic_ns()
        epoch_offset_ns = time.time_ns() - now_ns
        end, data = self._recorder.events_since(self._next, _MOST_EVENTS)
        events = np.frombuffer(data, EVENT_DTYPE)
        is_whole = len(events) == end - self._next
        summary = self._summarizer.take(events, self._looked_ns, now_ns, is_whole=is_whole)
        counted = _counted(self._read())
        begin_s, end_s = (self._looked_ns + epoch_offset_ns) / 1e9, (now_ns + epoch_offset_ns) / 1e9
        values = {name: counted[name] - self._counted[name] for name in counted}
        logged = [self._process.logged.popleft() for _ in range(len(self._process.logged))]
        values["samples"] = sum(samples for *_, samples in logged)
        record.describe({"versions": _versions()})
        record.count(begin_s, end_s, values)
        for at_s, numbers, step, _ in logged:
            record.log(at_s, numbers, step)
        record.add(summary, now_ns - self._looked_ns, epoch_offset_ns, self._label)
        self._next, self._counted, self._looked_ns = end, counted, now_ns

    def _label(self, number: int) -> Label | None:
        entry = self._recorder.label(number)
        return label_from(number, entry) if entry else None


def _counted(numbers: Numbers) -> dict[str, float]:
    """The columns of a history that are counters."""
    return {
        "steps": numbers["steps"],
        "step_s": numbers["step_seconds"],
        "bytes": sum(numbers[f"{kind}_bytes"] for kind in MOVING),
        "tensors": sum(numbers[f"{kind}_tensors"] for kind in MOVING),
        "blocked_s": numbers["blocked_seconds"],
        "buckets": numbers["buckets"],
    }


def _versions() -> dict[str, str]:
    """The versions of the modules that this process has imported."""
    found = {"horovod": __version__, "python": platform.python_version()}
    for name in _FRAMEWORKS:
        # A module that is still being imported has none.
        if text := getattr(sys.modules.get(name), "__version__", None):
            found[name] = str(text)
    return {**found, "system": system_name()}
