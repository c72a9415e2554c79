"""Hyperparameters: the values of each, their grid, and ``{{name}}`` in commands. Pure.

A value is the text it was written as, since it goes into commands and environment variables.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import NamedTuple

from horovod.core.base.rank_info import RankInfo
from horovod.launch.experiment.document import Document, Path
from horovod.launch.model.host_plan import Rendezvous, worker_environment

# A larger grid is a typing error.
MOST_EXPERIMENTS = 10_000

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_PLACEHOLDER = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_-]*)\s*\}\}")
_NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]{1,2})?")
_LARGEST = Decimal(10**12)
_DECIMAL_PLACES = 12  # exact in Decimal's 28 digits, with those before the point
_NUMERIC = "a number of at most 12 digits before and after the point"
# Variables that the launcher sets for every worker; no parameter may replace them.
_TAKEN = {
    *worker_environment({}, RankInfo(), Rendezvous("", 0, b"")),
    *("OUTPUT_DIR", "EXPERIMENT_ID", "CUDA_VISIBLE_DEVICES", "PATH", "LD_LIBRARY_PATH"),
}


class Parameter(NamedTuple):
    """A name and its values."""

    name: str
    values: tuple[str, ...]

    @property
    def variable(self) -> str:
        """The environment variable that holds the value: ``lr-decay`` is in ``LR_DECAY``."""
        return self.name.upper().replace("-", "_")


def read_parameters(document: Document, path: Path) -> tuple[Parameter, ...]:
    """The parameters in the mapping at ``path``, whose problems are noted."""
    names = document.raw(*path)
    parameters: dict[str, Parameter] = {}
    for name in names if isinstance(names, dict) else ():
        parameter = Parameter(name, _values(document, (*path, name)))
        if not _NAME.fullmatch(name):
            text = "expected a name of letters, digits, - and _ that begins with a letter"
        elif parameter.variable in _TAKEN:
            text = f"would replace the variable {parameter.variable}; expected another name"
        elif parameter.variable in parameters:
            other = parameters[parameter.variable].name
            text = f"is {parameter.variable} in the environment, as {other} is; rename one"
        else:
            parameters[parameter.variable] = parameter
            continue
        document.say((*path, name), text)
    count = math.prod(len(parameter.values) or 1 for parameter in parameters.values())
    if count > MOST_EXPERIMENTS:
        document.say(path, f"found {count} combinations, expected at most {MOST_EXPERIMENTS}")
    return tuple(parameters.values())


def grid(parameters: Sequence[Parameter]) -> Iterator[dict[str, str]]:
    """Every combination of values by name, the last parameter's changing fastest."""
    names = [parameter.name for parameter in parameters]
    for values in itertools.product(*(parameter.values for parameter in parameters)):
        yield dict(zip(names, values, strict=True))


def placeholders(line: str) -> list[str]:
    """The names that ``line`` asks for as ``{{name}}``, in order."""
    return _PLACEHOLDER.findall(line)


def replaced(line: str, values: Mapping[str, str]) -> str:
    """``line`` with the values in place of their names."""
    return _PLACEHOLDER.sub(lambda match: values[match[1]], line)


def _values(document: Document, path: Path) -> tuple[str, ...]:
    """The values of the parameter at ``path``; none if they have a problem."""
    found = document.get(*path)
    if isinstance(found, list):
        return tuple(document.written((*path, index)) for index in range(len(found)))
    return () if found is None else _range(document, (*path, "range"))


def _range(document: Document, path: Path) -> tuple[str, ...]:
    """The values from min to max, both included; decimals, so that 0.1 + 0.2 is 0.3."""
    numbers = [_number(document, (*path, name)) for name in ("min", "max", "step")]
    if None in numbers:
        return ()
    low, high, step = (number for number in numbers if number is not None)
    count = int((high - low) // step) + 1 if step > 0 else 0
    if step <= 0:
        document.expected((*path, "step"), "a number above 0")
    elif high < low:
        document.expected((*path, "max"), f"a number of at least min, {low:f}")
    elif count > MOST_EXPERIMENTS:
        document.say(path, f"found {count} values, expected at most {MOST_EXPERIMENTS}")
    else:
        return tuple(f"{low + step * index:f}" for index in range(count))
    return ()


def _number(document: Document, path: Path) -> Decimal | None:
    # YAML 1.1 takes 1e-6 for a text, so the text decides and not YAML's type.
    text = document.written(path)
    number = Decimal(text) if _NUMBER.fullmatch(text) and len(text) <= 40 else None
    if number is None or abs(number) >= _LARGEST or _places(number) > _DECIMAL_PLACES:
        document.expected(path, _NUMERIC)
        return None
    return number


def _places(number: Decimal) -> int:
    exponent = number.as_tuple().exponent
    return -exponent if isinstance(exponent, int) else 0
