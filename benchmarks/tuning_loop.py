"""The training step of ``autotune.py``, whose settings change under way; runs in the workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from training_loop import TrainingLoop

from horovod.core import world
from horovod.core.assembly import tuning_of

__all__ = ["TuningLoop"]

_SETTLING = 2  # steps


class TuningLoop(TrainingLoop):
    """Steps of training of a job that has tuned itself, or not yet."""

    def use(self, *, values: Mapping[str, Any]) -> None:
        """From here on train with these settings, by their names, and the defaults of others."""
        if world.rank() == 0:
            world.engine().tune(tuning_of(replace(world.settings(), **values)))
        self._contestant.barrier()
        for _ in range(_SETTLING):
            self._step()
