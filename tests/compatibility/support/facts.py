"""The table of what the original offers, and how ours is held against it.

``table/*.yaml`` is data: names, calls, members and values by module, and what the launcher takes. A
new file there is found by itself.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from inspect import Parameter
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

TABLE = Path(__file__).parents[1] / "table"
LAUNCHER, WILD, COUNTS = "launcher.yaml", "wild_paths.yaml", "counts.yaml"
# What a module cannot be imported without, by the beginning of its path; the longest one counts.
_NEEDS = {
    "horovod.torch": ["torch"],
    "horovod.tensorflow": ["tensorflow"],
    "horovod.keras": ["keras"],
    "horovod._keras": ["keras"],
    "horovod.mxnet": ["mxnet"],
    "horovod.spark": ["pyspark"],
    "horovod.spark.common": ["pyarrow", "pyspark"],
    "horovod.spark.torch": ["pyarrow", "pyspark", "torch"],
    "horovod.spark.keras": ["keras", "pyarrow", "pyspark"],
    "horovod.spark.lightning": ["lightning", "pyarrow", "pyspark"],
    "horovod.spark.data_loaders": ["pyarrow", "pyspark", "torch"],
    "horovod.ray": ["ray"],
}


class Module(NamedTuple):
    """What one module of the original offers."""

    path: str
    names: list[str]
    calls: dict[str, str]
    members: dict[str, list[str]]
    values: dict[str, Any]

    @property
    def missing_packages(self) -> list[str]:
        """What is not installed and has to be."""
        begins = [begin for begin in _NEEDS if f"{self.path}.".startswith(f"{begin}.")]
        needed = _NEEDS[max(begins, key=len)] if begins else []
        return [name for name in needed if find_spec(name) is None]


def modules() -> list[Any]:
    """Every module of the table, as parameters of a test."""
    return [
        pytest.param(
            module,
            id=module.path,
            marks=pytest.mark.skipif(
                bool(module.missing_packages),
                reason=f"{' and '.join(module.missing_packages)} is not installed",
            ),
        )
        for file in sorted(TABLE.glob("*.yaml"))
        if file.name not in (LAUNCHER, COUNTS)
        for module in _read(file)
    ]


def launcher() -> dict[str, Any]:
    """What the launcher takes."""
    return _load(TABLE / LAUNCHER)


def counts() -> tuple[dict[str, int], dict[str, int]]:
    """Documented names by module: how many there are, and how many the table has."""
    files = [file for file in TABLE.glob("*.yaml") if file.name not in (LAUNCHER, WILD, COUNTS)]
    found = {module.path: len(set(module.names)) for file in files for module in _read(file)}
    return _load(TABLE / COUNTS), found


def differences(module: Module) -> list[str]:
    """What is missing or different in ours, a line each."""
    found = import_module(module.path)
    lines = [f"{name} is missing" for name in module.names if not hasattr(found, name)]
    for owner, members in module.members.items():
        lines += [
            f"{owner}.{member} is missing"
            for member in members
            if not hasattr(getattr(found, owner), member)
        ]
    for name, text in module.calls.items():
        lines += [f"{name}: {line}" for line in call_differences(_look_up(found, name), text)]
    for name, value in module.values.items():
        own = _look_up(found, name)
        if (list(own) if isinstance(value, list) else own) != value:
            lines.append(f"{name} is {own!r}, not {value!r}")
    return lines


def _read(file: Path) -> Iterator[Module]:
    for path, facts in _load(file).items():
        unknown = set(facts) - {"names", "calls", "members", "values"}
        assert not unknown, f"{file.name}, {path}: {unknown}"
        members = {owner: _words(names) for owner, names in facts.get("members", {}).items()}
        calls = {
            name: text if isinstance(text, str) else ", ".join(text)
            for name, text in facts.get("calls", {}).items()
        }
        yield Module(path, _words(facts["names"]), calls, members, facts.get("values", {}))


def _load(file: Path) -> dict[str, Any]:
    facts: dict[str, Any] = yaml.safe_load(file.read_text())
    return facts


def _words(text: Any) -> list[str]:
    """Of text, or of lists of text, however nested."""
    if isinstance(text, str):
        return text.split()
    return [word for part in text for word in _words(part)]


def _look_up(module: Any, name: str) -> Any:
    found = module
    for part in name.split("."):
        found = getattr(found, part)
    return found


def call_differences(ours: Any, text: str) -> Iterator[str]:
    """Every call of the original has to mean the same here; ours may take more."""
    expected = _parameters(text)
    given = list(inspect.signature(ours).parameters.values())
    takes_all = {p.kind for p in given} >= {Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD}
    for position, (name, default) in enumerate(expected):
        if name.startswith("*"):
            continue
        own = next((p for p in given if p.name == name), None)
        if own is None and takes_all:
            continue
        if own is None or (own.kind is not Parameter.KEYWORD_ONLY and given[position] is not own):
            yield f"parameter {position + 1} is not {name}, ours are {', '.join(map(str, given))}"
        elif default is not None and own.default != _value_of(default):
            yield f"{name} is {own.default!r} by default, not {default}"
    known = {name for name, _ in expected}
    for own in given:
        is_open = own.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
        if own.name not in known and own.default is Parameter.empty and not is_open:
            yield f"{own.name} is required here only"


def _parameters(text: str) -> list[tuple[str, str | None]]:
    """Names, with their stars, and the texts of their defaults."""
    arguments = ast.parse(f"def f({text}): pass").body[0].args  # type: ignore[attr-defined]
    defaults = [ast.unparse(default) for default in arguments.defaults]
    names = [argument.arg for argument in arguments.args]
    pairs: list[tuple[str, str | None]] = [
        *zip(names, [None] * (len(names) - len(defaults)) + defaults, strict=True)
    ]
    pairs += [(f"*{found.arg}", None) for found in (arguments.vararg, arguments.kwarg) if found]
    return pairs


def _value_of(default: str) -> Any:
    """A default's value: of a literal, or of a name of the binding."""
    from horovod.core import compression, operations, process_sets

    names = {
        **{name: getattr(operations, name) for name in ("Average", "Sum")},
        "global_process_set": process_sets.global_process_set,
        "Compression": type("Compression", (), {"none": compression.NoneCompressor}),
    }
    return eval(default, {}, names)
