"""``horovodrun --experiment FILE``: from the file's name to an exit status."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from horovod.launch.experiment.cluster import cluster_notes, cluster_objects, object_name
from horovod.launch.experiment.document import ExperimentError
from horovod.launch.experiment.folders import free_number, make_folder, take_number
from horovod.launch.experiment.machine_gpus import gpu_ids
from horovod.launch.experiment.plan import ExperimentPlan, JobOptions, Site, make_plan
from horovod.launch.experiment.runner import run_plan
from horovod.launch.experiment.schema import ExperimentFile, read_experiment
from horovod.launch.experiment.shares import SiteHost
from horovod.launch.experiment.tables import show_plan, show_results
from horovod.launch.kubernetes.command import words_in_pods
from horovod.launch.kubernetes.manifest import render
from horovod.launch.kubernetes.options import pod_form
from horovod.launch.model.hosts import HostSlots
from horovod.launch.workers.machine import recognise

__all__ = ["print_file", "run_file"]

_OUTPUT = "output"
_MOST_BYTES = 100_000  # are read within a second
# As for a wrong command line: nothing was started.
_REFUSED = 2


def run_file(
    path: Path,
    *,
    hosts: Sequence[HostSlots] | None,
    options: JobOptions,
    is_dry_run: bool,
    environ: Mapping[str, str],
) -> int:
    """Run the experiments of the file, or say what would run; the exit status.

    ``hosts``, if given, are where the workers go, and limit how many processes run at a time.
    Output goes to ``output`` in the current folder, which is that of the commands, too.

    Raises:
        OSError: the file cannot be read, or a folder not be made.
        ValueError: an interface that was named does not exist.
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
    """Print the manifest of the file's experiments; the exit status.

    Raises:
        OSError: the file cannot be read.
        ValueError: the options about pods are wrong.
    """
    file = _read(path, _content(path))
    if file is None:
        return _REFUSED
    form = pod_form(given, image=file.image, name=object_name(file.project))
    assert form is not None
    words = words_in_pods(given)
    objects = cluster_objects(file, form, given.kubernetes, variables, words)
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
    """The file; None when it is wrong, with every problem on standard error."""
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
    places = (
        # Nobody has asked another machine; one slot for each GPU is the custom.
        SiteHost(name, slots, tuple(map(str, range(slots))) if name in addresses else gpus)
        for name, slots in ((host.hostname, host.slots) for host in merged)
    )
    return Site(directory, tuple(places), addresses)


def _run(plan: ExperimentPlan, text: bytes, options: JobOptions, environ: Mapping[str, str]) -> int:
    for note in (*map(str, plan.file.unused), plan.limit):
        if note:
            _say(note)
    count = _count(len(plan.experiments), "experiment")
    processes = _count(plan.file.demand.size, "process", "es")
    _say(f"{plan.file.project}: {count}, {len(plan.places)} at a time, {processes} each")
    sys.stderr.flush()
    status, records = run_plan(plan, options, environ, lambda one: make_folder(one, text))
    show_results(records, sys.stderr)
    return status


def _say(text: str) -> None:
    print(f"horovodrun: {text}", file=sys.stderr)


def _count(count: int, what: str, plural: str = "s") -> str:
    return f"{count} {what}{plural if count != 1 else ''}"
