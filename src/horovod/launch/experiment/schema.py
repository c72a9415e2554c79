"""What an experiment file may hold, and what of it decides about a run here. Pure.

Three kinds of fields: those that mean something on any machine are read; those that tell the
platform how to build and schedule are checked, kept as ``unused`` and named to the user; all
others are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from horovod.launch.experiment.document import Document, Field
from horovod.launch.experiment.parameters import Parameter, placeholders, read_parameters
from horovod.launch.experiment.shares import Demand

__all__ = ["ExperimentFile", "Unused", "Workers", "read_experiment"]

_MOST_PROCESSES = 99_999
_LONGEST_NAME = 200  # bytes; a file system's limit is 255

# Each has a section of its own name in train, with the same fields.
_FRAMEWORKS = ("tensorflow", "keras", "pytorch", "mxnet", "jax")
_FRAMEWORK = f"{', '.join(_FRAMEWORKS[:-1])} or {_FRAMEWORKS[-1]}"
_TRAIN = ("framework", "tensorflow", "image", "install", "resources", "run")
_SETS = ("parameters", "concurrency")
_RUN = "a command, or a list of commands"
_RESOURCES = "a mapping with cpus, mem, gpus"
_WORKERS = "a number of workers, or a mapping with count and processes"
_TOP_HINTS = {
    **dict.fromkeys(
        ("image", "service", "parameters", "name"),
        "files from before RiseML 0.8 have another format; write project, and train with resources "
        "and run, where {{name}} is a parameter's value",
    ),
    **dict.fromkeys((*_TRAIN[3:], *_SETS, *_FRAMEWORKS), "it belongs below train"),
}
_TRAIN_HINTS = {
    **dict.fromkeys(
        ("horovod", "workers", "distributed"),
        "the workers of a Horovod experiment are train.tensorflow.horovod.workers, or those of the "
        "section of another framework",
    ),
    **dict.fromkeys(("cpus", "mem", "gpus"), "it belongs into train.resources"),
    "torch": "the section is named pytorch",
}
_WORKERS_HINTS = {"resources": "expected count, processes; resources are train.resources, for all"}


@dataclass(frozen=True)
class Workers:
    """``train.tensorflow.horovod.workers``; ``processes`` of each is None where not given."""

    count: int
    processes: int | None = None


@dataclass(frozen=True)
class Unused:
    """A field that is right and has no effect on machines as they are, and why.

    ``is_for_clusters``: it has one where pods are made for the experiment.
    """

    path: str
    line: int
    why: str
    is_for_clusters: bool = False

    def __str__(self) -> str:
        return f"{self.path} (line {self.line}) {self.why}"


@dataclass(frozen=True)
class ExperimentFile:
    """A file as far as it decides about a run. ``workers`` is None without a horovod section.

    ``image``, and ``cpus`` and ``megabytes`` of each worker, as written, decide in clusters only.
    """

    project: str
    run: tuple[str, ...]
    workers: Workers | None = None
    gpus: int = 0
    parameters: tuple[Parameter, ...] = ()
    concurrency: int = 1
    unused: tuple[Unused, ...] = ()
    image: str | None = None
    cpus: str | None = None
    megabytes: str | None = None

    @property
    def worker_count(self) -> int:
        """How many workers there are; one without Horovod."""
        return self.workers.count if self.workers else 1

    @property
    def processes_per_worker(self) -> int:
        """As given, else one per GPU, else one; one without Horovod."""
        if self.workers is None:
            return 1
        return self.workers.processes or max(self.gpus, 1)

    @property
    def demand(self) -> Demand:
        """What each experiment needs to run."""
        return Demand(self.worker_count, self.processes_per_worker, self.gpus)


def read_experiment(text: bytes | str) -> ExperimentFile:
    """The experiment that ``text``, a YAML file, describes.

    Raises:
        ExperimentError: with every field that is wrong, unknown or missing, by its path.
    """
    document = Document()
    root = document.read(text)
    required = {"project": "a name", "train": "a mapping, the experiment"}
    top = root.section(("project", "train", "deploy"), required, _TOP_HINTS)
    project = _project(top["project"]) if "project" in top else ""
    reader = _Train(top.get("deploy"))
    experiment = reader.read(top["train"], project) if "train" in top else None
    document.check()
    assert experiment is not None
    return experiment


class _Train:
    """Reads ``train``; collects on the way what has no effect here."""

    def __init__(self, deploy: Field | None) -> None:
        self._unused: list[Unused] = []
        if deploy is not None:
            self._leave(deploy, "has no effect: nothing here serves models; start a server of them")

    def read(self, field: Field, project: str) -> ExperimentFile:
        required = {"resources": _RESOURCES, "run": _RUN}
        train = field.section((*_TRAIN, *_FRAMEWORKS[1:], *_SETS), required, _TRAIN_HINTS)
        resources = (
            train["resources"].section(("cpus", "mem", "gpus")) if "resources" in train else {}
        )
        gpus = resources["gpus"].whole_number(0) if "gpus" in resources else 0
        workers = self._framework(field, train, gpus)
        self._install(train.get("install"))
        parameters = read_parameters(train["parameters"]) if "parameters" in train else ()
        concurrency = train["concurrency"].whole_number(1) if "concurrency" in train else 1
        names = train["parameters"].names if "parameters" in train else ()
        return ExperimentFile(
            project=project,
            run=_run(train["run"], names) if "run" in train else (),
            workers=workers,
            gpus=gpus or 0,
            parameters=parameters,
            concurrency=concurrency or 1,
            image=self._image(train.get("image")),
            cpus=self._amount(resources.get("cpus"), "a number of CPUs"),
            megabytes=self._amount(resources.get("mem"), "a number of megabytes"),
            unused=tuple(sorted(self._unused, key=lambda unused: unused.line)),
        )

    def _leave(self, field: Field, why: str, *, is_for_clusters: bool = False) -> None:
        self._unused.append(Unused(field.path, field.line, why, is_for_clusters))

    def _framework(self, field: Field, train: dict[str, Field], gpus: int | None) -> Workers | None:
        framework = train.get("framework")
        name = framework.written if framework is not None and framework.is_text else ""
        if framework is not None and name not in _FRAMEWORKS:
            framework.expected(f"{_FRAMEWORK}, or no such field: run may start any program")
        elif name and name not in train:
            field.say(f"found framework: {name} alone, expected a section {name}, too")
        workers = None
        for section in (train[known] for known in _FRAMEWORKS if known in train):
            own = self._section(section, gpus)
            if section.name == name:
                workers = own
            elif framework is None or name in _FRAMEWORKS:
                where = f"framework: {section.name}"
                section.say(f"is read only with {where}; expected that in train, too")
        return workers

    def _section(self, field: Field, gpus: int | None) -> Workers | None:
        names = ("version", "tensorboard", "distributed", "horovod")
        section = field.section(names, hints={"workers": _spelling(field.path)})
        if "version" in section and section["version"].scalar("a version") is not None:
            self._leave(section["version"], "has no effect: commands find what is installed here")
        if "tensorboard" in section and section["tensorboard"].boolean():
            why = "has no effect: start 'tensorboard --logdir output' beside the experiment"
            self._leave(section["tensorboard"], why)
        if "distributed" in section:
            _refuse_distributed(section["distributed"], _spelling(field.path))
        return _horovod(section["horovod"], gpus) if "horovod" in section else None

    def _amount(self, field: Field | None, what: str) -> str | None:
        amount = None if field is None else field.amount(f"{what} above 0")
        if field is not None and amount is not None:
            why = "has no effect: nothing is reserved on a machine"
            self._leave(field, why, is_for_clusters=True)
        return amount

    def _image(self, field: Field | None) -> str | None:
        if field is None:
            return None
        what = "the name of an image"
        if field.is_mapping:
            required = {} if "install" in field.names else {"name": what}
            section = field.section(("name", "install"), required)
            image = section["name"].string(what) if "name" in section else None
            self._install(section.get("install"))
        else:
            image = field.string(f"{what}, or a mapping with name")
        if image is not None:
            why = "has no effect: commands run on a machine as it is"
            self._leave(field, why, is_for_clusters=True)
        return image

    def _install(self, field: Field | None) -> None:
        if field is None:
            return
        if not field.is_list:
            field.expected("a list of commands")
            return
        commands = [item.string("a command") for item in field.items()]
        if None not in commands:
            self._leave(field, "has no effect: install what it names before you start")


def _project(field: Field) -> str:
    """The project's name, which becomes the name of a folder."""
    name = field.string("a name")
    if name is None:
        return ""
    is_short = 0 < len(name.encode()) <= _LONGEST_NAME
    if not is_short or not name.isprintable() or "/" in name or name[0] in ". " or name[-1] == " ":
        field.expected("a name for a folder: no / in it, no . or blank in front, not too long")
    return name


def _run(field: Field, names: Sequence[str]) -> tuple[str, ...]:
    items = field.items() if field.is_list else [field]
    if not items:
        field.expected(_RUN)
    lines = (_line(item, names) for item in items)
    return tuple(line for line in lines if line is not None)


def _line(field: Field, names: Sequence[str]) -> str | None:
    if field.is_mapping or field.is_list:
        # What YAML makes of "- echo a: b" and of "- {{command}}".
        field.expected("a command; put one that holds ': ' or begins with { or [ into quotes")
        return None
    line = field.string("a command")
    if line is not None and not line.strip():
        field.expected("a command")
    for name in placeholders(line or ""):
        if name not in names:
            known = f"one of {', '.join(names)}" if names else "it in train.parameters"
            field.say(f"found {{{{{name}}}}}, expected {known}")
    return line


def _spelling(section: str) -> str:
    return f"the workers of a Horovod experiment are {section}.horovod.workers"


def _refuse_distributed(field: Field, spelling: str) -> None:
    if {"horovod", "type"} & {*field.names}:
        # Two spellings of one day in February 2018.
        field.expected(f"no such field: {spelling}")
    elif field.is_mapping or field.boolean():
        field.expected(f"false, since there is no parameter-server training here; {spelling}")


def _horovod(field: Field, gpus: int | None) -> Workers | None:
    """The workers; ``gpus`` of each, None if that is wrong itself."""
    section = field.section(("workers",), {"workers": _WORKERS})
    if "workers" not in section:
        return None
    workers = _workers(section["workers"], gpus)
    if workers is not None and gpus is not None:
        total = workers.count * (workers.processes or max(gpus, 1))
        if total > _MOST_PROCESSES:
            most = f"expected at most {_MOST_PROCESSES}"
            section["workers"].say(f"found {total} processes in all, {most}")
    return workers


def _workers(field: Field, gpus: int | None) -> Workers | None:
    if not field.is_mapping:
        count = field.whole_number(1, "a number of workers")
        return None if count is None else Workers(count)
    required = {"count": "the number of workers"}
    numbers = field.section(("count", "processes"), required, _WORKERS_HINTS)
    count = numbers["count"].whole_number(1) if "count" in numbers else None
    processes = numbers["processes"].whole_number(1) if "processes" in numbers else None
    if processes and gpus and processes > gpus:
        most = f"at most {gpus}, one for each of train.resources.gpus, or gpus: 0"
        numbers["processes"].expected(most)
    return None if count is None else Workers(count, processes)
