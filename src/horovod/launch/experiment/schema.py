"""Reads an experiment file: checks it against its JSON schema, and between fields. Pure.

``riseml.schema.json`` is also for editors, and holds the texts of errors. jsonschema and not
pydantic checks it: it finds all errors with their paths before anything is converted, so the
position and the written text of each value are kept. There are three kinds of fields: those that
mean something on any machine are read; those that tell the platform how to build and schedule are
checked and kept as ``unused``; all others are refused.
"""

from __future__ import annotations

import difflib
import functools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from jsonschema import Draft202012Validator, ValidationError, validators

from horovod.launch.experiment import SCHEMA
from horovod.launch.experiment.document import Document, Path, listed, path_text
from horovod.launch.experiment.parameters import Parameter, placeholders, read_parameters
from horovod.launch.experiment.shares import Demand

_MOST_PROCESSES = 99_999
_LONGEST_NAME = 200  # bytes; a file system's limit is 255
_MOST_UNKNOWN = 20
_UNUSED = "x-unused"  # the schema's keyword for fields without an effect
# Each has a section of its own name in train, with the same fields.
_FRAMEWORKS = ("tensorflow", "keras", "pytorch", "mxnet", "jax")


@dataclass(frozen=True)
class Workers:
    """``train.tensorflow.horovod.workers``; ``processes`` of each worker is None if not given."""

    count: int
    processes: int | None = None


class Unused(NamedTuple):
    """A correct field without an effect on a machine, and why.

    ``is_for_clusters``: it has an effect in a cluster.
    """

    path: str
    line: int
    why: str
    is_for_clusters: bool = False

    def __str__(self) -> str:
        return f"{self.path} (line {self.line}) {self.why}"


class ExperimentFile(NamedTuple):
    """The contents of a file. ``workers`` is None without a horovod section.

    ``image``, and ``cpus`` and ``megabytes`` of each worker as written, are for clusters only.
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
        """The number of workers; one without Horovod."""
        return self.workers.count if self.workers else 1

    @property
    def processes_per_worker(self) -> int:
        """The given number, else one per GPU, else one; one without Horovod."""
        if self.workers is None:
            return 1
        return self.workers.processes or max(self.gpus, 1)

    @property
    def demand(self) -> Demand:
        """The workers, processes and GPUs that each experiment needs."""
        return Demand(self.worker_count, self.processes_per_worker, self.gpus)


def read_experiment(text: bytes | str) -> ExperimentFile:
    """The experiment that ``text``, a YAML file, describes.

    Raises:
        ExperimentError: with every field that is wrong, unknown or missing, by its path.
    """
    document = Document(text)
    unused: list[Unused] = []
    for error in _validator().iter_errors(document.values):
        if str(error.validator).startswith(_UNUSED):
            path, for_clusters = tuple(error.absolute_path), error.validator != _UNUSED
            why = f"has no effect: {error.message}"
            unused.append(Unused(path_text(path), document.line(path), why, for_clusters))
        else:
            _note(document, error)
    _check_project(document)
    workers = _workers(document)
    parameters = read_parameters(document, ("train", "parameters"))
    _check_placeholders(document)
    document.check()
    train = document.get("train")
    resources, image, run = train["resources"], train.get("image"), train["run"]
    return ExperimentFile(
        project=document.get("project"),
        run=tuple(run) if isinstance(run, list) else (run,),
        workers=workers,
        gpus=resources.get("gpus", 0),
        parameters=parameters,
        concurrency=train.get("concurrency", 1),
        image=image.get("name") if isinstance(image, dict) else image,
        cpus=_written(document, "train", "resources", "cpus"),
        megabytes=_written(document, "train", "resources", "mem"),
        unused=tuple(sorted(unused, key=lambda each: each.line)),
    )


# Errors of the schema.


@functools.cache
def _validator() -> Any:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    # To JSON schema 1.0 is an integer.
    types = Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, v: type(v) is int)
    keywords = dict.fromkeys((_UNUSED, f"{_UNUSED}-on-machines"), _says_why)
    return validators.extend(Draft202012Validator, keywords, type_checker=types)(schema)


def _says_why(validator: Any, why: str, value: Any, schema: Any) -> Iterator[ValidationError]:
    """The field is there; that is not an error, but has to be reported with its path."""
    yield ValidationError(why)


def _note(document: Document, error: ValidationError) -> None:
    path, schema = tuple(error.absolute_path), error.schema
    properties = schema.get("properties", {})
    if error.validator == "additionalProperties":
        unknown = [name for name in error.instance if name not in properties]
        for name in unknown[:_MOST_UNKNOWN]:
            hint = schema.get("x-hints", {}).get(name) or _unknown(name, list(properties))
            hint = hint.replace("{parent}", path_text(path))
            document.say((*path, name), f"unknown field; {hint}")
        if len(unknown) > _MOST_UNKNOWN:
            document.say(path, f"has {len(unknown) - _MOST_UNKNOWN} more unknown fields")
    elif error.validator == "required":
        for name in error.validator_value:
            if name not in error.instance:
                what = schema.get("x-required", {}).get(name) or properties[name]["x-expected"]
                text = f"found nothing, expected {what}"
                document.say((*path, name), text, document.line(path))
    else:
        is_text = schema.get("type") == "string"
        document.expected(path, _expected(document, path, error), wants_text=is_text)


def _expected(document: Document, path: Path, error: ValidationError) -> str:
    schema, instance = error.schema, error.instance
    if error.validator == "type" and "properties" in schema:
        names = list(schema["properties"])
        colon = f"; write {instance}:" if isinstance(instance, str) and instance in names else ""
        return f"a mapping with {listed(names)}{colon}"
    is_nested = isinstance(instance, (dict, list))
    what: str = schema.get("x-nested" if is_nested else "x-expected") or schema["x-expected"]
    what = what.replace("{parent}", path_text(path[:-1]))
    return what if is_nested else what.replace("{written}", document.written(path))


def _unknown(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"expected {listed(known)}{f' (did you mean {close[0]}?)' if close else ''}"


# Checks of several fields, and checks that a schema cannot express.


def _check_project(document: Document) -> None:
    """The project's name becomes the name of a folder."""
    name = document.get("project")
    if name is None:
        return
    is_short = 0 < len(name.encode()) <= _LONGEST_NAME
    if not is_short or not name.isprintable() or "/" in name or name[0] in ". " or name[-1] == " ":
        what = "a name for a folder: no / in it, no . or blank in front, not too long"
        document.expected(("project",), what)


def _check_placeholders(document: Document) -> None:
    run, parameters = document.raw("train", "run"), document.raw("train", "parameters")
    names = list(parameters) if isinstance(parameters, dict) else []
    for index, line in enumerate(run if isinstance(run, list) else [run]):
        for name in placeholders(line) if isinstance(line, str) else ():
            if name not in names:
                known = f"one of {', '.join(names)}" if names else "it in train.parameters"
                path: Path = ("train", "run", index) if isinstance(run, list) else ("train", "run")
                document.say(path, f"found {{{{{name}}}}}, expected {known}")


def _workers(document: Document) -> Workers | None:
    """The workers of the section that ``framework`` names."""
    train = document.raw("train")
    if not isinstance(train, dict):
        return None
    framework = document.get("train", "framework")
    if framework is not None and framework not in train:
        text = f"found framework: {framework} alone, expected a section {framework}, too"
        document.say(("train",), text)
    chosen = None
    for name in (name for name in _FRAMEWORKS if name in train):
        workers = _section_workers(document, ("train", name, "horovod", "workers"))
        if name == framework:
            chosen = workers
        elif framework is not None or "framework" not in train:
            text = f"is read only with framework: {name}; expected that in train, too"
            document.say(("train", name), text)
    return chosen


def _section_workers(document: Document, path: Path) -> Workers | None:
    found = document.get(*path)
    if found is None:
        return None
    is_mapping = isinstance(found, dict)
    workers = Workers(found["count"], found.get("processes")) if is_mapping else Workers(found)
    gpus = document.get("train", "resources", "gpus") or 0
    if gpus and workers.processes and workers.processes > gpus:
        most = f"at most {gpus}, one for each of train.resources.gpus, or gpus: 0"
        document.expected((*path, "processes"), most)
    total = workers.count * (workers.processes or max(gpus, 1))
    if total > _MOST_PROCESSES:
        text = f"found {total} processes in all, expected at most {_MOST_PROCESSES}"
        document.say(path, text)
    return workers


def _written(document: Document, *path: str) -> str | None:
    return None if document.get(*path) is None else document.written(path)
