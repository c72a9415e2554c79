"""What a file comes to on a machine: experiments, their lines as jobs, what each process sees.

All workers of an experiment are on this machine, so ranks are local ranks: worker by worker, the
processes of each in a row. An experiment that runs holds a *place*: its share of the machine's
GPUs. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from horovod.launch.experiment.parameters import grid, replaced
from horovod.launch.experiment.schema import ExperimentFile
from horovod.launch.hosts import Slot
from horovod.launch.job import JobPlan

__all__ = ["Experiment", "ExperimentPlan", "JobOptions", "Site", "make_plan"]


@dataclass(frozen=True)
class JobOptions:
    """What the command line says about every job."""

    extra_environment: Mapping[str, str] = field(default_factory=dict)
    is_verbose: bool = False
    output_directory: Path | None = None
    is_timestamped: bool = False


@dataclass(frozen=True)
class Site:
    """Where a file is run. ``directory`` is the folder of the project's output.

    ``slots`` are those of each experiment; ``slot_limit``, if not None, is how many processes may
    run at a time. ``gpu_ids`` are the machine's, as CUDA_VISIBLE_DEVICES names them.
    """

    directory: Path
    slots: tuple[Slot, ...]
    slot_limit: int | None = None
    gpu_ids: tuple[str, ...] = ()


@dataclass(frozen=True)
class Experiment:
    """One experiment: the only one of its file, or one combination of its parameters.

    ``name`` is its number, ``3``, or that of its set and its own, ``3.1``.
    """

    name: str
    values: Mapping[str, str]
    variables: Mapping[str, str]
    lines: tuple[str, ...]
    output_directory: Path


@dataclass(frozen=True)
class ExperimentPlan:
    """All experiments of a file; ``places`` is how many run at a time, at most."""

    file: ExperimentFile
    site: Site
    experiments: tuple[Experiment, ...]
    places: int

    @property
    def gpu_count(self) -> int:
        """GPUs that one experiment takes."""
        return self.file.worker_count * self.file.gpus

    @property
    def missing_gpus(self) -> str:
        """Why no experiment can run here; empty if they can."""
        if self.gpu_count <= len(self.site.gpu_ids):
            return ""
        workers = self.file.worker_count
        who = f"{workers} workers with {self.file.gpus} each need" if workers > 1 else "it needs"
        return (
            f"train.resources.gpus: {who} {self.gpu_count}, and this machine has "
            f"{len(self.site.gpu_ids)} (as CUDA_VISIBLE_DEVICES says, else nvidia-smi -L)"
        )

    @property
    def limit(self) -> str:
        """Why fewer experiments run at a time than train.concurrency says; empty if they do not."""
        wanted = min(self.file.concurrency, len(self.experiments))
        if self.places == wanted:
            return ""
        return f"train.concurrency: {wanted} wanted; slots and GPUs here suffice for {self.places}"

    def job(self, experiment: Experiment, line: int, place: int, options: JobOptions) -> JobPlan:
        """The job that runs line number ``line``, from 0, at ``place``."""
        directory = options.output_directory
        if directory is not None:
            directory = directory / experiment.name / f"line.{line + 1}"
        return JobPlan(
            command=("/bin/sh", "-c", experiment.lines[line]),
            slots=self.site.slots,
            extra_environment={
                **options.extra_environment,
                **experiment.variables,
                "EXPERIMENT_ID": experiment.name,
                "OUTPUT_DIR": str(experiment.output_directory),
            },
            rank_environment=tuple(
                {"CUDA_VISIBLE_DEVICES": ",".join(self.visible_gpus(slot.rank, place))}
                for slot in self.site.slots
            ),
            is_verbose=options.is_verbose,
            output_directory=directory,
            is_timestamped=options.is_timestamped,
        )

    def visible_gpus(self, rank: int, place: int) -> tuple[str, ...]:
        """The GPUs that a process sees, in the order in which it numbers them.

        A process that has several GPUs to itself drives them all and sees no others. Elsewhere each
        picks one by its local rank, which counts over all workers on this machine: so they see the
        GPUs of all, and number them such that this one is its own worker's.
        """
        each, processes = self.file.gpus, self.file.processes_per_worker
        worker = rank // processes
        first = place * self.gpu_count
        gpus = self.site.gpu_ids[first : first + self.gpu_count]
        if processes == 1 < each:
            return gpus[worker * each : (worker + 1) * each]
        shift = worker * (each - processes) % len(gpus) if gpus else 0
        return gpus[shift:] + gpus[:shift]


def make_plan(file: ExperimentFile, site: Site, number: int) -> ExperimentPlan:
    """The plan for ``file`` as experiment or set number ``number`` of its project."""
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
    limits = [file.concurrency, len(experiments)]
    if site.slot_limit is not None:
        limits.append(site.slot_limit // len(site.slots))
    if gpu_count := file.worker_count * file.gpus:
        limits.append(len(site.gpu_ids) // gpu_count)
    return ExperimentPlan(file, site, experiments, places=max(1, min(limits)))
