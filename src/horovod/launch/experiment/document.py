"""A YAML file as fields with dotted paths, which note everything that is wrong with them.

PyYAML composes the tree; nothing is constructed from it, so no tag of the file can do anything,
and every value keeps the text it was written as: ``1e-6`` stays ``1e-6``. Pure.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import yaml

__all__ = ["Document", "ExperimentError", "Field", "Problem", "resolved_copy"]

_TAG = "tag:yaml.org,2002:"
_WHOLE = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,8})")
_DECIMAL = re.compile(r"[0-9]{1,9}(?:\.[0-9]{0,9})?|\.[0-9]{1,9}")
_LONE_WORD = re.compile(r"\s*([A-Za-z_]+)\s*(?:#.*)?")
_SHOWN = 40
_MOST_SHOWN = 6
_MOST_UNKNOWN = 20


@dataclass(frozen=True)
class Problem:
    """What is wrong with the field at ``path``; ``line`` is where it, or what lacks it, stands."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        where = f" (line {self.line})" if self.line else ""
        return f"{self.path}{where}: {self.text}" if self.path else f"{self.text}{where}"


class ExperimentError(ValueError):
    """A file that cannot be run, with all that is wrong with it."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)


@dataclass
class Document:
    """A file's outermost field, and the problems that its fields have noted so far."""

    problems: list[Problem] = field(default_factory=list)

    def read(self, text: bytes | str) -> Field:
        """The outermost field of ``text``.

        Raises:
            ExperimentError: it is no YAML, or holds nothing.
        """
        node = _compose(text)
        if node is None:
            raise ExperimentError([Problem("", 0, "the file is empty; expected project and train")])
        return Field("", node, self)

    def check(self) -> None:
        """Raise what has been noted, in the order of the file."""
        if self.problems:
            raise ExperimentError(sorted(self.problems, key=lambda problem: problem.line))


@dataclass(frozen=True)
class Field:
    """One value of the file. What it is not, it notes as a problem and answers with None."""

    path: str
    node: yaml.Node
    document: Document = field(repr=False, compare=False)

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition(".")[2]

    @property
    def line(self) -> int:
        """Where the value begins, from 1."""
        return int(self.node.start_mark.line) + 1

    @property
    def is_mapping(self) -> bool:
        """Whether there are fields below this one."""
        return isinstance(self.node, yaml.MappingNode)

    @property
    def is_list(self) -> bool:
        """Whether there are items below this one."""
        return isinstance(self.node, yaml.SequenceNode)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the fields below this one."""
        pairs = self.node.value if isinstance(self.node, yaml.MappingNode) else ()
        return tuple(str(key.value) for key, _ in pairs if isinstance(key, yaml.ScalarNode))

    @property
    def is_text(self) -> bool:
        """Whether this is a string to YAML."""
        return self._kind == "str"

    @property
    def written(self) -> str:
        """A scalar as it was written."""
        return str(self.node.value)

    @property
    def _kind(self) -> str:
        if not isinstance(self.node, yaml.ScalarNode):
            return ""
        return str(self.node.tag).removeprefix(_TAG)

    def say(self, text: str) -> None:
        """Note a problem with this field."""
        self.document.problems.append(Problem(self.path, self.line, text))

    def expected(self, what: str) -> None:
        """Note that this is not ``what`` should be here."""
        self.say(f"found {self._found()}, expected {what}")

    def section(
        self,
        known: Sequence[str],
        required: Mapping[str, str] | None = None,
        hints: Mapping[str, str] | None = None,
    ) -> dict[str, Field]:
        """The fields of a mapping that may have these names and must have the required ones.

        ``required`` says of each what is expected there, ``hints`` what an unknown name asks for.
        """
        colon = f"; write {self.written}:" if self.is_text and self.written in known else ""
        fields = self.entries(f"a mapping with {_names(known)}{colon}")
        if fields is None:
            return {}
        unknown = [fields.pop(name) for name in [*fields] if name not in known]
        for entry in unknown[:_MOST_UNKNOWN]:
            hint = (hints or {}).get(entry.name) or _unknown(entry.name, known)
            entry.say(f"unknown field; {hint}")
        if len(unknown) > _MOST_UNKNOWN:
            self.say(f"has {len(unknown) - _MOST_UNKNOWN} more unknown fields")
        for name, what in (required or {}).items():
            if name not in fields:
                path = _below(self.path, name)
                problem = Problem(path, self.line, f"found nothing, expected {what}")
                self.document.problems.append(problem)
        return fields

    def entries(self, what: str) -> dict[str, Field] | None:
        """All fields of a mapping, by name."""
        if not isinstance(self.node, yaml.MappingNode):
            self.expected(what)
            return None
        fields: dict[str, Field] = {}
        for key, value in self.node.value:
            name = str(key.value) if isinstance(key, yaml.ScalarNode) else "?"
            entry = Field(_below(self.path, name), value, self.document)
            if name in fields:
                first = fields[name].line
                entry.say(f"given twice (first in line {first}); expected once")
            else:
                fields[name] = entry
        return fields

    def items(self) -> list[Field]:
        """The items of a list."""
        return [
            Field(f"{self.path}[{index}]", node, self.document)
            for index, node in enumerate(self.node.value)
        ]

    def string(self, what: str) -> str | None:
        """A string that can be a word of a command or the value of a variable."""
        if not self.is_text:
            quotes = "; put it into quotes" if self._kind in ("int", "float", "bool") else ""
            self.expected(f"{what}{quotes}")
            return None
        return self._checked(what)

    def scalar(self, what: str) -> str | None:
        """Any single value but null, as it was written."""
        if self._kind not in ("str", "int", "float", "bool", "timestamp"):
            self.expected(what)
            return None
        return self._checked(what)

    def whole_number(self, minimum: int, what: str = "a whole number") -> int | None:
        """An integer in plain digits, at least ``minimum``."""
        text = self.written
        if self._kind != "int" or not _WHOLE.fullmatch(text) or int(text) < minimum:
            self.expected(f"{what}, {minimum} or more")
            return None
        return int(text)

    def amount(self, what: str) -> str | None:
        """A number above 0 in plain digits, as it was written."""
        text = self.written
        is_amount = self._kind in ("int", "float") and bool(_DECIMAL.fullmatch(text))
        if not is_amount or float(text) <= 0:
            self.expected(what)
            return None
        return text

    def boolean(self) -> bool | None:
        """True or false; ``'true'`` in quotes occurs in real files."""
        text = self.written.lower() if self._kind in ("bool", "str") else ""
        if text not in ("true", "false", "yes", "no", "on", "off"):
            self.expected("true or false")
            return None
        return text in ("true", "yes", "on")

    def _checked(self, what: str) -> str | None:
        try:
            encoded = self.written.encode()
        except UnicodeEncodeError:
            self.expected(f"{what} without half characters")
            return None
        if b"\0" in encoded:
            self.expected(f"{what} without NUL characters")
            return None
        return self.written

    def _found(self) -> str:
        if self.is_mapping:
            return f"a mapping with {_names(self.names)}" if self.names else "an empty mapping"
        if self.is_list:
            return f"a list of {len(self.node.value)}" if self.node.value else "an empty list"
        text = self.written if len(self.written) <= _SHOWN else f"{self.written[:_SHOWN]}..."
        if self._kind == "null":
            return "nothing"
        if self._kind == "str":
            return f"the text {text!r}"
        return f"{text}, a boolean to YAML" if self._kind == "bool" else text


def resolved_copy(text: bytes | str, lines: Sequence[str], values: Mapping[str, str]) -> str:
    """The file of an experiment for these lines and parameter values alone; ``text`` is valid.

    Run again, it gives the same commands and variables.
    """
    root = _compose(text)
    assert isinstance(root, yaml.MappingNode)
    train = next(value for key, value in root.value if key.value == "train")
    replaced = {"run": _list(lines)}
    if values:
        pairs = [(_scalar(name), _list([value])) for name, value in values.items()]
        replaced["parameters"] = yaml.MappingNode(f"{_TAG}map", pairs)
    train.value = [
        (key, replaced.get(key.value, value))
        for key, value in train.value
        if key.value != "concurrency"
    ]
    return str(yaml.serialize(root, Dumper=yaml.SafeDumper, allow_unicode=True, width=10_000))


def _list(texts: Sequence[str]) -> yaml.Node:
    return yaml.SequenceNode(f"{_TAG}seq", [_scalar(text) for text in texts])


def _scalar(text: str) -> yaml.Node:
    return yaml.ScalarNode(f"{_TAG}str", text)


def _compose(text: bytes | str) -> yaml.Node | None:
    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        what = " ".join(filter(None, (error.context, error.problem)))
        hint = _without_colon(text, line)
        raise ExperimentError([Problem("", line, f"no YAML: {what}{hint}")]) from None
    except yaml.YAMLError as error:
        text = str(error).replace("\n", " ")
        raise ExperimentError([Problem("", 0, f"no YAML: {text}")]) from None
    except RecursionError:
        raise ExperimentError([Problem("", 0, "nested too deeply for YAML to be read")]) from None


def _without_colon(text: bytes | str, line: int) -> str:
    """Which word at ``line`` or before it may lack a colon; empty if none stands there alone."""
    lines = (text.decode(errors="replace") if isinstance(text, bytes) else text).splitlines()
    for number in range(min(line, len(lines)), max(line - 3, 0), -1):
        if word := _LONE_WORD.fullmatch(lines[number - 1]):
            return f"; line {number} may lack a colon: write {word[1]}:"
    return ""


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _unknown(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    meant = f" (did you mean {close[0]}?)" if close else ""
    return f"expected {_names(known)}{meant}"


def _names(names: Sequence[str]) -> str:
    shown = [str(name)[:_SHOWN] for name in names]
    if len(shown) > 2 * _MOST_SHOWN:
        shown = [*shown[:_MOST_SHOWN], "..."]
    return ", ".join(shown)
