"""Random programs of all collectives on overlapping process sets, in another order on every rank.

``HOROVOD_TEST_PROGRAMS=N`` runs the first N programs, ``HOROVOD_TEST_FIRST_PROGRAM=K`` begins with
number K, which a failure names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import programs
import pytest
from programs import Step

import horovod.numpy as hvd

FIRST = int(os.environ.get("HOROVOD_TEST_FIRST_PROGRAM", "0"))
COUNT = int(os.environ.get("HOROVOD_TEST_PROGRAMS", "40"))


class Execution:
    """One rank's way through a program: its own order, its own pauses."""

    def __init__(self, seed: int, process_sets: Sequence[hvd.ProcessSet]) -> None:
        self._random = np.random.default_rng([seed, hvd.rank()])
        self._sets = process_sets
        self._in_flight: dict[int, tuple[Step, list[np.ndarray]]] = {}

    def run(self, waves: list[list[Step]]) -> None:
        """Run the waves one after the other, with steps of earlier ones in flight."""
        for wave in waves:
            self.start(wave)
            self._wait(lambda step: not step.lingers or self._random.random() < 0.2)
        self.finish()

    def start(self, wave: list[Step]) -> None:
        """Start the steps that concern this rank, in its own order."""
        mine = [step for step in wave if hvd.rank() in step.ranks]
        for index in self._random.permutation(len(mine)):
            self._start(mine[index])
            self._finish_what_is_done()

    def finish(self) -> None:
        """Wait for everything in flight."""
        self._wait(lambda _step: True)

    def _start(self, step: Step) -> None:
        inputs = step.inputs_of(hvd.rank())
        handle = programs.start(step, self._sets[step.set_index], inputs)
        self._in_flight[handle] = (step, inputs)

    def _finish_what_is_done(self) -> None:
        if self._in_flight and self._random.random() < 0.5:
            handle = int(self._random.choice(list(self._in_flight)))
            if hvd.poll(handle):
                self._finish(handle)

    def _wait(self, is_wanted: Callable[[Step], bool]) -> None:
        handles = [handle for handle, (step, _) in self._in_flight.items() if is_wanted(step)]
        self._random.shuffle(handles)
        for handle in handles:
            self._finish(handle)

    def _finish(self, handle: int) -> None:
        step, inputs = self._in_flight.pop(handle)
        programs.check(step, hvd.rank(), inputs, hvd.synchronize(handle))


@contextmanager
def announced(seed: int) -> Iterator[None]:
    try:
        yield
    except BaseException:
        print(f"random program {seed} failed on rank {hvd.rank()}", flush=True)
        raise


@pytest.mark.timeout(60 + 5 * COUNT)
def test_random_programs(process_sets):
    sets = [process_set.ranks for process_set in process_sets]
    for seed in range(FIRST, FIRST + COUNT):
        with announced(seed):
            Execution(seed, process_sets).run(programs.make_waves(seed, sets))


@pytest.mark.timeout(60 + 5 * COUNT)
def test_random_programs_that_ranks_leave(process_sets):
    sets = [process_set.ranks for process_set in process_sets]
    for seed in range(FIRST, FIRST + COUNT // 2):
        with announced(seed):
            order, waves = programs.make_departures(seed, sets)
            execution = Execution(seed, process_sets)
            for wave in waves[: order.index(hvd.rank()) + 1]:
                execution.start(wave)
                execution.finish()
            last = hvd.join()
            assert hvd.allgather_object(last, name="last") == [last] * hvd.size()
