"""The training step of ``autotune.py`` with settings that change; runs in the workers."""

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
    """Training steps during and after autotuning."""

    def use(self, *, values: Mapping[str, Any]) -> None:
        """Set these settings; the others get their defaults."""
        if world.rank() == 0:
            world.engine().tune(tuning_of(replace(world.settings(), **values)))
        self._contestant.barrier()
        for _ in range(_SETTLING):
            self._run()
