"""``horovodrun --slurm-script``: a batch script for ``sbatch``, whose ``srun`` starts the ranks."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from horovod.launch.model.host_plan import command_argv


def batch_script(
    command: Sequence[str],
    ranks: int,
    ranks_per_node: int | None,
    options: str,
    variables: Mapping[str, str],
) -> str:
    """The script of a job; ``options`` are more words for ``sbatch``, ``variables`` for all ranks.

    Raises:
        ValueError: the nodes would have different numbers of ranks, or the options are no options.
    """
    lines = [f"--ntasks={ranks}"]
    if ranks_per_node is not None:
        if ranks % ranks_per_node:
            raise ValueError(
                f"-np {ranks} and --slots-per-host {ranks_per_node}: expected a multiple, since "
                "Slurm starts as many processes on each node"
            )
        lines = [f"--nodes={ranks // ranks_per_node}", f"--ntasks-per-node={ranks_per_node}"]
    settings = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    text = [
        "#!/bin/bash",
        *(f"#SBATCH {line}" for line in [*lines, *_options(options)]),
        "",
        *settings,
        f"srun {shlex.join(command_argv(command))}",
    ]
    return "\n".join(text) + "\n"


def _options(text: str) -> list[str]:
    """An option of ``sbatch`` with its value in each line."""
    lines: list[str] = []
    for word in shlex.split(text):
        if not word.isprintable():  # a line's end would begin a command of the script
            raise ValueError(
                f"--slurm-args: {word!r} has more than one line, or control characters"
            )
        if word.startswith("-"):
            name, equals, value = word.partition("=")
            lines.append(f"{name}={shlex.quote(value)}" if equals else name)
        elif lines and "=" not in lines[-1] and " " not in lines[-1]:
            lines[-1] += f" {shlex.quote(word)}"
        else:
            raise ValueError(f"--slurm-args: {word!r} belongs to no option")
    return lines
