"""``horovodrun --experiment FILE``: reads the file and runs, shows or prints its experiments.

Plans and results are shown as tables. In a cluster the experiments are jobs with a pod for each
worker. ``OUTPUT_DIR`` is /output there, as in RiseML's containers: a folder of the experiment,
which its pods share if a volume is mounted there.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table

from horovod.launch.doctor.tables import plain_console, plain_table
from horovod.launch.experiment.document import ExperimentError, resolved_copy
from horovod.launch.experiment.parameters import grid, replaced
from horovod.launch.experiment.plan import Experiment, ExperimentPlan, Site, make_plan
from horovod.launch.experiment.runner import Record, run_plan
from horovod.launch.experiment.schema import ExperimentFile, read_experiment
from horovod.launch.experiment.shares import SiteHost
from horovod.launch.kubernetes.manifest import OUTPUT, ClusterJob, objects_of, pod_options, render
from horovod.launch.kubernetes.options import PodForm, pod_form
from horovod.launch.model.hosts import HostSlots, counted
from horovod.launch.model.job_plan import JobPlan
from horovod.launch.workers.machine import recognise

_GPU = "nvidia.com/gpu"


def object_name(project: str) -> str | None:
    """The project's name in the characters that Kubernetes allows; None if nothing is left."""
    name = re.sub(r"[^a-z0-9]+", "-", project.lower())
    return re.sub(r"^[^a-z]+|-+$", "", name)[:40].rstrip("-") or None


def cluster_objects(
    file: ExperimentFile,
    form: PodForm,
    kind: str,
    variables: Mapping[str, str],
    options: tuple[str, ...],
) -> list[dict[str, Any]]:
    """The objects of all experiments; every job has these ``variables`` and ``options``.

    Raises:
        ValueError: Kubernetes would refuse a name.
    """
    resources = _resources(file, form.resources)
    form = dataclasses.replace(form, slots=file.processes_per_worker, resources=resources)
    objects: list[dict[str, Any]] = []
    for number, values in enumerate(grid(file.parameters), start=1):
        ending = f"/{number}" if file.parameters else ""
        name = form.name + ending.replace("/", "-")
        pods = dataclasses.replace(form, name=name, output_folder=form.name + ending)
        lines = tuple(replaced(line, values) for line in file.run)
        own = {**variables, **_variables(file, name, values)}
        job = ClusterJob(pods, file.demand.size, lines=lines, variables=own, options=options)
        objects += objects_of(job, kind)
    return objects


def cluster_notes(file: ExperimentFile, form: PodForm) -> list[str]:
    """Notes on fields without an effect, and on effects that may surprise."""
    notes = [str(unused) for unused in file.unused if not unused.is_for_clusters]
    count = sum(1 for _ in grid(file.parameters))
    if count > file.concurrency:
        notes.append(
            f"train.concurrency: {file.concurrency} at a time wanted; the cluster runs as many as "
            "it has room for"
        )
    if all(volume.path != OUTPUT for volume in form.volumes):
        notes.append(
            f"OUTPUT_DIR is a folder of each pod and is lost with it; "
            f"--kubernetes-volume CLAIM:{OUTPUT} keeps and shares it"
        )
    return notes


def _variables(file: ExperimentFile, name: str, values: Mapping[str, str]) -> dict[str, str]:
    # The cluster decides which GPUs a pod sees.
    no_gpus = {} if file.gpus else {"CUDA_VISIBLE_DEVICES": ""}
    parameters = {parameter.variable: values[parameter.name] for parameter in file.parameters}
    return {**parameters, "EXPERIMENT_ID": name, "OUTPUT_DIR": OUTPUT, **no_gpus}


def _resources(file: ExperimentFile, given: Mapping[str, str]) -> dict[str, str]:
    """``given`` and the file's other resources; given GPUs of any maker replace the file's."""
    resources = {}
    if file.cpus is not None:
        resources["cpu"] = file.cpus
    if file.megabytes is not None:
        resources["memory"] = f"{file.megabytes}M"
    if file.gpus and not any(name.endswith("/gpu") for name in given):
        resources[_GPU] = str(file.gpus)
    return {**resources, **given}


# The width where standard output is not a terminal.
_FILE_WIDTH = 1000


def show_plan(plan: ExperimentPlan, stream: TextIO) -> None:
    """Show what running ``plan`` would do."""
    console = _console(stream)
    console.print(_facts(plan))
    names = [parameter.name for parameter in plan.file.parameters]
    table = plain_table("Experiment", *names, "Run", "OUTPUT_DIR", overflow="fold")
    for experiment in plan.experiments:
        lines = experiment.lines
        run = "\n".join(f"{number}. {line.rstrip()}" for number, line in enumerate(lines, start=1))
        values = [experiment.values[name] for name in names]
        table.add_row(experiment.name, *values, run, _shown(experiment.output_directory))
    console.print(table)
    for note in filter(None, (*map(str, plan.file.unused), plan.limit)):
        console.print(note)


def show_results(records: Sequence[Record], stream: TextIO) -> None:
    """Show the state of all experiments, and how long each took."""
    names = list(records[0].experiment.values) if records else []
    headings = ("Experiment", *names, "State", "Time", "Reason", "OUTPUT_DIR")
    table = plain_table(*headings, overflow="fold")
    for record in records:
        experiment = record.experiment
        values = [experiment.values[name] for name in names]
        time = _duration(record.ended_s - record.started_s) if record.started_s else ""
        folder = _shown(experiment.output_directory)
        table.add_row(experiment.name, *values, record.state.value, time, record.reason, folder)
    _console(stream).print(table)


def _facts(plan: ExperimentPlan) -> Table:
    file = plan.file
    facts = Table.grid(padding=(0, 2))
    workers, processes = file.worker_count, file.processes_per_worker
    # Each host with the processes there, in the order of ranks.
    hosts = (", ".join(f"{name}:{n}" for name, n in s.hosts.items()) for s in plan.shares)
    what = "workers x processes" if file.workers else "without train.tensorflow.horovod"
    facts.add_row("project", file.project)
    facts.add_row("experiments", f"{len(plan.experiments)}, {len(plan.shares)} at a time")
    facts.add_row("processes", f"{workers} x {processes} = {file.demand.size} each ({what})")
    facts.add_row("GPUs", f"{workers} x {file.gpus} = {workers * file.gpus} each (workers x gpus)")
    facts.add_row("hosts", "\n".join(dict.fromkeys(hosts)))
    return facts


def _console(stream: TextIO) -> Console:
    return plain_console(file=stream, width=None if stream.isatty() else _FILE_WIDTH)


def _shown(path: Path) -> str:
    """The path relative to the current folder, if it is below it."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


# The command.

_OUTPUT = "output"
_MOST_BYTES = 100_000  # are read within a second
_REFUSED = 2  # the exit status of a wrong command line, too
# The copy of the file that each experiment leaves beside its output.
CONFIGURATION = "riseml-configuration.yml"
_NVIDIA_SMI_S = 30


def run_file(
    path: Path,
    *,
    hosts: Sequence[HostSlots] | None,
    options: JobPlan,
    is_dry_run: bool,
    environ: Mapping[str, str],
) -> int:
    """Run the experiments of the file, or show what would run; returns the exit status.

    The workers run on ``hosts``, whose slots limit how many processes run at a time; None is this
    machine without a limit. Commands run in the current folder; output goes to ``output`` in it.

    Raises:
        OSError: the file cannot be read, or a folder cannot be made.
        ValueError: a named network interface does not exist.
    """
    text = _content(path)
    file = _read(path, text)
    if file is None:
        return _REFUSED
    site = _site(file, hosts, environ)
    plan = make_plan(file, site, free_number(site.directory))
    if is_dry_run:
        show_plan(plan, sys.stdout)
    if plan.problem:
        _say(f"{path}: {plan.problem}")
        return _REFUSED
    if is_dry_run:
        return 0
    plan = make_plan(file, site, take_number(site.directory))
    return _run(plan, text, options, environ)


def print_file(path: Path, given: argparse.Namespace, variables: Mapping[str, str]) -> int:
    """Print the manifest of the file's experiments; returns the exit status.

    Raises:
        OSError: the file cannot be read.
        ValueError: an option about pods is wrong.
    """
    file = _read(path, _content(path))
    if file is None:
        return _REFUSED
    form = pod_form(given, image=file.image, name=object_name(file.project))
    assert form is not None
    objects = cluster_objects(file, form, given.kubernetes, variables, pod_options(given))
    for note in cluster_notes(file, form):
        _say(note)
    print(render(objects), end="")
    return 0


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise OSError(f"--experiment {path}: {error.strerror}") from None
    if len(text) > _MOST_BYTES:
        raise OSError(f"{path}: larger than {_MOST_BYTES} bytes")
    return text


def _read(path: Path, text: bytes) -> ExperimentFile | None:
    """The file; None if it is wrong, after every problem was printed to standard error."""
    try:
        return read_experiment(text)
    except ExperimentError as error:
        _say(f"{path}: {counted(len(error.problems), 'problem')}, nothing was started")
        for problem in error.problems:
            print(f"  {problem}", file=sys.stderr)
        return None


def _site(
    file: ExperimentFile, hosts: Sequence[HostSlots] | None, environ: Mapping[str, str]
) -> Site:
    gpus = gpu_ids(environ) if file.gpus else ()
    directory = Path.cwd() / _OUTPUT / file.project
    if hosts is None:
        return Site(directory, (SiteHost("localhost", None, gpus),))
    merged, addresses = recognise(hosts, [host.hostname for host in hosts])
    site_hosts = (
        # Another machine is not asked for its GPUs: it has as many as slots.
        SiteHost(name, slots, tuple(map(str, range(slots))) if name in addresses else gpus)
        for name, slots in merged
    )
    return Site(directory, tuple(site_hosts), addresses)


def _run(plan: ExperimentPlan, text: bytes, options: JobPlan, environ: Mapping[str, str]) -> int:
    for note in filter(None, (*map(str, plan.file.unused), plan.limit)):
        _say(note)
    count = counted(len(plan.experiments), "experiment")
    processes = counted(plan.file.demand.size)
    _say(f"{plan.file.project}: {count}, {len(plan.shares)} at a time, {processes} each")
    sys.stderr.flush()
    status, records = run_plan(plan, options, environ, lambda each: _make_folder(each, text))
    show_results(records, sys.stderr)
    return status


def _say(text: str) -> None:
    print(f"horovodrun: {text}", file=sys.stderr)


# Folders of experiments: output/<project>/<number>[/<experiment>].


def free_number(project: Path) -> int:
    """The number of the project's next experiment, from 1. Makes no folder."""
    if not project.is_dir():
        return 1
    names = (entry.name for entry in project.iterdir())
    numbers = (int(n) for n in names if n.isascii() and n.isdecimal() and len(n) < 10)
    return max(numbers, default=0) + 1


def take_number(project: Path) -> int:
    """Make the folder of the next free number; returns the number. Raises OSError."""
    project.mkdir(parents=True, exist_ok=True)
    while True:
        number = free_number(project)
        try:
            (project / str(number)).mkdir()
        except FileExistsError:  # another launcher has just made it
            continue
        return number


def _make_folder(experiment: Experiment, text: bytes) -> None:
    """Make the folder of an experiment, with its own copy of the file ``text``. Raises OSError.

    The folder above it is new, so nothing is overwritten.
    """
    experiment.output_directory.mkdir(parents=True, exist_ok=True)
    copy = resolved_copy(text, experiment.lines, experiment.values)
    with (experiment.output_directory / CONFIGURATION).open("x", encoding="utf-8") as file:
        file.write(copy)


# GPUs of this machine.


def gpu_ids(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The GPUs of this machine as in CUDA_VISIBLE_DEVICES: its value if it is set, else all."""
    if (visible := environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return _usable(visible)
    program = shutil.which("nvidia-smi", path=environ.get("PATH"))
    if program is None:
        return ()
    try:
        listed = subprocess.run(
            [program, "-L"], capture_output=True, text=True, timeout=_NVIDIA_SMI_S, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired):  # the driver does not answer
        return ()
    count = sum(line.startswith("GPU ") for line in listed.stdout.splitlines())
    return tuple(map(str, range(count)))


def _usable(visible: str) -> tuple[str, ...]:
    """CUDA reads the list up to the first entry that is not a device."""
    usable: list[str] = []
    for entry in (part.strip() for part in visible.split(",")):
        if not entry or entry.startswith("-") or entry in usable:
            break
        usable.append(entry)
    return tuple(usable)
