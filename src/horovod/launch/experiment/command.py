"""``horovodrun --experiment FILE``: reads the file and runs, shows or prints its experiments."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from horovod.launch.experiment.cluster import cluster_notes, cluster_objects, object_name
from horovod.launch.experiment.document import ExperimentError, resolved_copy
from horovod.launch.experiment.plan import Experiment, ExperimentPlan, Site, make_plan
from horovod.launch.experiment.runner import run_plan
from horovod.launch.experiment.schema import ExperimentFile, read_experiment
from horovod.launch.experiment.shares import SiteHost
from horovod.launch.experiment.tables import show_plan, show_results
from horovod.launch.kubernetes.command import pod_options
from horovod.launch.kubernetes.manifest import render
from horovod.launch.kubernetes.options import pod_form
from horovod.launch.model.hosts import HostSlots
from horovod.launch.model.job_plan import JobPlan
from horovod.launch.workers.machine import recognise

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
    with path.open("rb") as file:
        text = file.read(_MOST_BYTES + 1)
    if len(text) > _MOST_BYTES:
        raise OSError(f"{path}: larger than {_MOST_BYTES} bytes")
    return text


def _read(path: Path, text: bytes) -> ExperimentFile | None:
    """The file; None if it is wrong, after every problem was printed to standard error."""
    try:
        return read_experiment(text)
    except ExperimentError as error:
        _say(f"{path}: {_count(len(error.problems), 'problem')}, nothing was started")
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
        for name, slots in ((host.hostname, host.slots) for host in merged)
    )
    return Site(directory, tuple(site_hosts), addresses)


def _run(plan: ExperimentPlan, text: bytes, options: JobPlan, environ: Mapping[str, str]) -> int:
    for note in (*map(str, plan.file.unused), plan.limit):
        if note:
            _say(note)
    count = _count(len(plan.experiments), "experiment")
    processes = _count(plan.file.demand.size, "process", "es")
    _say(f"{plan.file.project}: {count}, {len(plan.shares)} at a time, {processes} each")
    sys.stderr.flush()
    status, records = run_plan(plan, options, environ, lambda each: _make_folder(each, text))
    show_results(records, sys.stderr)
    return status


def _say(text: str) -> None:
    print(f"horovodrun: {text}", file=sys.stderr)


def _count(count: int, what: str, plural: str = "s") -> str:
    return f"{count} {what}{plural if count != 1 else ''}"


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
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
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
