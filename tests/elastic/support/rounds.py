"""A round of chaos: one job, its faults, and the checks afterwards."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from chaos_job import ChaosJob, JobError
from fault_plan import Fault, Limits, plan_faults, plan_layout
from fault_player import FaultPlayer, Recovery
from histories import Event, in_order
from replay import differences_to_replay
from small_task import SAMPLE_COUNT
from verdicts import batches_in_weights, verdicts

__all__ = ["Round", "plan_round", "play_round", "problems_of"]


@dataclass(frozen=True)
class Round:
    """The round of a seed."""

    seed: int
    limits: Limits
    faults: tuple[Fault, ...]


def plan_round(seed: int, fault_count: int) -> Round:
    """The round for these numbers, always the same."""
    chance = random.Random(seed)
    return Round(seed, plan_layout(chance), tuple(plan_faults(chance, fault_count)))


def play_round(folder: Path, limits: Limits, faults: Sequence[Fault]) -> tuple[Recovery, ...]:
    """Run a job with these faults in the empty ``folder``.

    Raises:
        JobError: it did not recover or end, or a check failed.
    """
    with ChaosJob(folder, limits) as job:
        player = FaultPlayer(job)
        player.play(faults)
        job.finish()
    problems = problems_of(job.watch.events)
    if problems:
        raise JobError("\n".join(problems))
    return tuple(player.recoveries)


def problems_of(events: Sequence[Event]) -> list[str]:
    """All problems of a job that has ended."""
    problems = verdicts(events, SAMPLE_COUNT)
    batches, _ = batches_in_weights(in_order(events))
    finals = [event.weights for event in events if event.kind == "end"]
    return problems + (differences_to_replay(batches, finals[0]) if batches else [])
