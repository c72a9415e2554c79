"""Hyperparameters: the values of each, the grid of all, and where they are put in. Pure.

A value is the text it was written as, since ``{{name}}`` is replaced textually and the environment
holds text.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from horovod.core.base.rank_info import RankInfo
from horovod.launch.experiment.document import Field
from horovod.launch.model.environment import Rendezvous, worker_environment

__all__ = ["MOST_EXPERIMENTS", "Parameter", "grid", "placeholders", "read_parameters", "replaced"]

# A grid beyond this is a slip of the keyboard; nobody reads such a table.
MOST_EXPERIMENTS = 10_000

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_PLACEHOLDER = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_-]*)\s*\}\}")
_NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]{1,2})?")
_LARGEST = Decimal(10**12)
_DECIMAL_PLACES = 12  # with the digits before the point still exact in Decimal's 28
_CHOICES = "a list of values, or range: {min, max, step}"
_NUMERIC = "a number of at most 12 digits before and after the point"
# What the launcher gives to every worker must not be overwritten by a parameter.
_TAKEN = {
    *worker_environment({}, RankInfo(), Rendezvous("", 0, b"")),
    *("OUTPUT_DIR", "EXPERIMENT_ID", "CUDA_VISIBLE_DEVICES", "PATH", "LD_LIBRARY_PATH"),
}


@dataclass(frozen=True)
class Parameter:
    """A name with the values that it takes in turn."""

    name: str
    values: tuple[str, ...]

    @property
    def variable(self) -> str:
        """The environment variable that holds the value: ``lr-decay`` is in ``LR_DECAY``."""
        return self.name.upper().replace("-", "_")


def read_parameters(field: Field) -> tuple[Parameter, ...]:
    """The parameters of ``train.parameters``."""
    what = "a mapping from names to lists of values, with at least one name"
    entries = field.entries(what)
    if entries is not None and not entries:
        field.expected(what)
    parameters: dict[str, Parameter] = {}
    for name, entry in (entries or {}).items():
        parameter = Parameter(name, _values(entry))
        if not _NAME.fullmatch(name):
            entry.say("expected a name of letters, digits, - and _ that begins with a letter")
        elif parameter.variable in _TAKEN:
            entry.say(f"would replace the variable {parameter.variable}; expected another name")
        elif parameter.variable in parameters:
            other = parameters[parameter.variable].name
            entry.say(f"is {parameter.variable} in the environment, as {other} is; rename one")
        else:
            parameters[parameter.variable] = parameter
    count = _product(len(parameter.values) for parameter in parameters.values())
    if count > MOST_EXPERIMENTS:
        field.say(f"found {count} combinations, expected at most {MOST_EXPERIMENTS}")
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


def _values(field: Field) -> tuple[str, ...]:
    if field.is_mapping:
        section = field.section(("range",), {"range": _CHOICES})
        return _range(section["range"]) if "range" in section else ()
    if not field.is_list or not field.items():
        # Files from before RiseML 0.8 have single values.
        alone = "" if field.is_list or not field.written else f"; a single one is [{field.written}]"
        field.expected(f"{_CHOICES}{alone}")
        return ()
    texts = (item.scalar("a number or a text") for item in field.items())
    return tuple(text for text in texts if text is not None)


def _range(field: Field) -> tuple[str, ...]:
    """From min to max, both included; decimals, so that 0.1 + 0.2 is 0.3."""
    names = ("min", "max", "step")
    section = field.section(names, dict.fromkeys(names, "a number"))
    numbers = [_number(section[name]) for name in names if name in section]
    if len(numbers) != len(names) or None in numbers:
        return ()
    low, high, step = (number for number in numbers if number is not None)
    if step <= 0:
        section["step"].expected("a number above 0")
        return ()
    if high < low:
        section["max"].expected(f"a number of at least min, {low:f}")
        return ()
    count = int((high - low) // step) + 1
    if count > MOST_EXPERIMENTS:
        field.say(f"found {count} values, expected at most {MOST_EXPERIMENTS}")
        return ()
    return tuple(f"{low + step * index:f}" for index in range(count))


def _number(field: Field) -> Decimal | None:
    # YAML 1.1 takes 1e-6 for a text, so the text decides and not YAML's kind.
    text = field.scalar(_NUMERIC)
    if text is None:
        return None
    number = Decimal(text) if _NUMBER.fullmatch(text) and len(text) <= 40 else None
    if number is None or abs(number) >= _LARGEST or _places(number) > _DECIMAL_PLACES:
        field.expected(_NUMERIC)
        return None
    return number


def _places(number: Decimal) -> int:
    exponent = number.as_tuple().exponent
    return -exponent if isinstance(exponent, int) else 0


def _product(counts: Iterator[int]) -> int:
    product = 1
    for count in counts:
        product *= max(count, 1)
    return product
