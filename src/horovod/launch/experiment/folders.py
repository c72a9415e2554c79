"""The folders that experiments write to: ``output/<project>/<number>[/<experiment>]``."""

from __future__ import annotations

from pathlib import Path

from horovod.launch.experiment.document import resolved_copy
from horovod.launch.experiment.plan import Experiment

__all__ = ["CONFIGURATION", "free_number", "make_folder", "take_number"]

# The resolved copy of the file that each experiment leaves beside its output.
CONFIGURATION = "riseml-configuration.yml"


def free_number(project: Path) -> int:
    """The number that the next experiment of the project gets, from 1. Makes nothing."""
    if not project.is_dir():
        return 1
    names = [entry.name for entry in project.iterdir()]
    return (
        max((int(n) for n in names if n.isascii() and n.isdecimal() and len(n) < 10), default=0) + 1
    )


def take_number(project: Path) -> int:
    """A number that nobody else has, with its folder. Raises OSError."""
    project.mkdir(parents=True, exist_ok=True)
    while True:
        number = free_number(project)
        try:
            (project / str(number)).mkdir()
        except FileExistsError:  # another experiment was started at this moment
            continue
        return number


def make_folder(experiment: Experiment, text: bytes) -> None:
    """The folder of an experiment, with its own copy of the file ``text``. Raises OSError.

    It is below a number that was taken for it, so nothing is there that could be overwritten.
    """
    experiment.output_directory.mkdir(parents=True, exist_ok=True)
    copy = resolved_copy(text, experiment.lines, experiment.values)
    with (experiment.output_directory / CONFIGURATION).open("x", encoding="utf-8") as file:
        file.write(copy)
