"""The plan of a file for some hosts: its experiments, and their lines as jobs. Pure.

A running experiment holds a *share* of the hosts' slots and GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from horovod.launch.experiment.parameters import grid, replaced
from horovod.launch.experiment.schema import ExperimentFile
from horovod.launch.experiment.shares import Share, SiteHost, shares_of, why_none
from horovod.launch.model.job_plan import JobPlan


@dataclass(frozen=True)
class Site:
    """Where a file is run; ``directory`` is the folder of the project's output.

    ``addresses`` has the hosts that are other machines.
    """

    directory: Path
    hosts: tuple[SiteHost, ...] = (SiteHost("localhost"),)
    addresses: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class Experiment(NamedTuple):
    """One experiment: the only one of its file, or one combination of parameters.

    ``name`` is its number, ``3``, or the number of its set and its own, ``3.1``.
    """

    name: str
    values: Mapping[str, str]
    variables: Mapping[str, str]
    lines: tuple[str, ...]
    output_directory: Path


class ExperimentPlan(NamedTuple):
    """All experiments of a file; as many run at a time as there are ``shares``."""

    file: ExperimentFile
    site: Site
    experiments: tuple[Experiment, ...]
    shares: tuple[Share, ...]

    @property
    def problem(self) -> str:
        """Why no experiment can run here; empty if one can."""
        return "" if self.shares else why_none(self.file.demand, self.site.hosts)

    @property
    def limit(self) -> str:
        """Why fewer experiments run at a time than train.concurrency; empty if as many run."""
        wanted = min(self.file.concurrency, len(self.experiments))
        if len(self.shares) in (0, wanted):
            return ""
        return f"train.concurrency: {wanted} wanted; slots and GPUs suffice for {len(self.shares)}"

    def job(self, experiment: Experiment, line: int, share: int, options: JobPlan) -> JobPlan:
        """The job that runs line number ``line``, from 0, on that share.

        ``options`` has what the command line says for every job.
        """
        directory = options.output_directory
        if directory is not None:
            directory = directory / experiment.name / f"line.{line + 1}"
        held = self.shares[share]
        addresses = {name: each for name, each in self.site.addresses.items() if name in held.hosts}
        return replace(
            options,
            command=("/bin/sh", "-c", experiment.lines[line]),
            slots=held.slots,
            extra_environment={
                **options.extra_environment,
                **experiment.variables,
                "EXPERIMENT_ID": experiment.name,
                "OUTPUT_DIR": str(experiment.output_directory),
            },
            rank_environment=tuple({"CUDA_VISIBLE_DEVICES": ",".join(gpus)} for gpus in held.gpus),
            output_directory=directory,
            others=replace(options.others, addresses=addresses),
        )


def make_plan(file: ExperimentFile, site: Site, number: int) -> ExperimentPlan:
    """The plan of ``file`` as experiment or set number ``number`` of its project."""
    is_set, directory = bool(file.parameters), site.directory / str(number)
    experiments = tuple(
        Experiment(
            name=f"{number}.{index}" if is_set else f"{number}",
            values=values,
            variables={p.variable: values[p.name] for p in file.parameters},
            lines=tuple(replaced(line, values) for line in file.run),
            output_directory=directory / str(index) if is_set else directory,
        )
        for index, values in enumerate(grid(file.parameters), start=1)
    )
    most = min(file.concurrency, len(experiments))
    return ExperimentPlan(file, site, experiments, shares_of(file.demand, site.hosts, most))
