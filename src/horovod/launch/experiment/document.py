"""A YAML file as values for a schema, with the position and the written text of each.

PyYAML composes the tree; nothing is constructed from it, so no tag of the file can do anything,
and every value keeps the text it was written as: ``1e-6`` stays ``1e-6``. Pure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import yaml

Path = tuple[str | int, ...]  # the keys and indices that lead to a value

_TAG = "tag:yaml.org,2002:"
_WHOLE = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,8})")
_DECIMAL = re.compile(r"[0-9]{1,9}(?:\.[0-9]{0,9})?|\.[0-9]{1,9}")
_LONE_WORD = re.compile(r"\s*([A-Za-z_]+)\s*(?:#.*)?")
_SHOWN = 40
_MOST_SHOWN = 6
_QUOTABLE = ("int", "float", "bool")


class Problem(NamedTuple):
    """An error at ``path``; ``line`` is that of the value, or of the mapping that lacks it."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        where = f" (line {self.line})" if self.line else ""
        return f"{self.path}{where}: {self.text}" if self.path else f"{self.text}{where}"


_TOO_DEEP = Problem("", 0, "nested too deeply for YAML to be read")


class ExperimentError(ValueError):
    """A file that cannot be run, with all its problems."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)


class _Fields(dict[str, Any]):
    """A mapping that may contain itself; only its type is shown."""

    def __repr__(self) -> str:
        return "a mapping"


class _Items(list[Any]):
    """A list that may contain itself; only its type is shown."""

    def __repr__(self) -> str:
        return "a list"


class Document:
    """``values`` are the file's as a schema sees them; at most one problem is noted for a path.

    Raises:
        ExperimentError: the text is not YAML, or empty.
    """

    def __init__(self, text: bytes | str) -> None:
        root = _compose(text)
        if root is None:
            raise ExperimentError([Problem("", 0, "the file is empty; expected project and train")])
        self._root = root
        self._problems: dict[Path, Problem] = {}
        self._known: dict[int, Any] = {}  # values by the id of their nodes, for aliases
        try:
            self.values = self._value(root, ())
        except RecursionError:
            raise ExperimentError([_TOO_DEEP]) from None

    def check(self) -> None:
        """Raise all noted problems, in the order of the file."""
        if self._problems:
            problems = self._problems.values()
            raise ExperimentError(sorted(problems, key=lambda problem: problem.line))

    def say(self, path: Path, text: str, line: int | None = None) -> None:
        """Note a problem with the value at ``path``."""
        line = self.line(path) if line is None else line
        self._problems.setdefault(path, Problem(path_text(path), line, text))

    def expected(self, path: Path, what: str, *, wants_text: bool = False) -> None:
        """Note that ``what`` is expected at ``path`` instead of the value there."""
        node = self.node(path)
        kind = _kind(node)
        unusable = _unusable(str(node.value)) if kind == "str" else ""
        quotes = "; put it into quotes" if wants_text and kind in _QUOTABLE else ""
        self.say(path, f"found {_found(node)}, expected {what}{unusable}{quotes}")

    def get(self, *path: str | int) -> Any:
        """The value at ``path``; None if it is missing, or has a problem at or below it."""
        has_problem = any(noted[: len(path)] == path for noted in self._problems)
        return None if has_problem else self.raw(*path)

    def raw(self, *path: str | int) -> Any:
        """The value at ``path``, which may have a problem; None if it is missing."""
        value = self.values
        for part in path:
            if not isinstance(value, dict) or part not in value:
                return None
            value = value[part]
        return value

    def node(self, path: Path) -> yaml.Node:
        """The node of the value at ``path``."""
        node = self._root
        for part in path:
            if isinstance(part, int):
                node = node.value[part]
            else:
                node = next(value for key, value in node.value if _name(key) == part)
        return node

    def line(self, path: Path) -> int:
        """The line where the value at ``path`` begins, from 1."""
        return int(self.node(path).start_mark.line) + 1

    def written(self, path: Path) -> str:
        """A scalar as it was written."""
        return str(self.node(path).value)

    def _value(self, node: yaml.Node, path: Path) -> Any:
        """The value of a node; None for text that no command can hold and for unknown tags.

        Numbers in other than plain digits, and times, are -inf, so no schema takes them for an
        amount or a count; ``written`` has their text.
        """
        if id(node) in self._known:
            return self._known[id(node)]
        if isinstance(node, yaml.MappingNode):
            fields = self._known[id(node)] = _Fields()
            self._fill(fields, node, path)
            return fields
        if isinstance(node, yaml.SequenceNode):
            items = self._known[id(node)] = _Items()
            items += (self._value(item, (*path, n)) for n, item in enumerate(node.value))
            return items
        kind, text = _kind(node), str(node.value)
        if kind == "bool":
            return text.lower() in ("true", "yes", "on")
        if kind == "str":
            return None if _unusable(text) else text
        if kind == "int" and _WHOLE.fullmatch(text):
            return int(text)
        if kind in ("int", "float", "timestamp"):
            return float(text) if _DECIMAL.fullmatch(text) else -math.inf
        return None

    def _fill(self, fields: _Fields, node: yaml.MappingNode, path: Path) -> None:
        lines: dict[str, int] = {}
        for key, value in node.value:
            name, line = _name(key), int(value.start_mark.line) + 1
            if name not in fields:
                lines[name] = line
                fields[name] = self._value(value, (*path, name))
            elif path[:1] != ("deploy",):  # which is not checked
                first = f"given twice (first in line {lines[name]}); expected once"
                self.say((*path, name), first, line)


def path_text(path: Path) -> str:
    """``train.run[1]``."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return "".join(parts).removeprefix(".")


def listed(names: Sequence[str]) -> str:
    """Names for a message, shortened."""
    shown = [str(name)[:_SHOWN] for name in names]
    if len(shown) > 2 * _MOST_SHOWN:
        shown = [*shown[:_MOST_SHOWN], "..."]
    return ", ".join(shown)


def resolved_copy(text: bytes | str, lines: Sequence[str], values: Mapping[str, str]) -> str:
    """The file of an experiment for these lines and parameter values alone; ``text`` is valid.

    It gives the same commands and variables when it is run.
    """
    root = _compose(text)
    assert isinstance(root, yaml.MappingNode)
    train = next(value for key, value in root.value if key.value == "train")
    replaced = {"run": _list(lines)}
    if values:
        pairs = [(_scalar(name), _list([value])) for name, value in values.items()]
        replaced["parameters"] = yaml.MappingNode(f"{_TAG}map", pairs)
    kept = [(key, value) for key, value in train.value if key.value != "concurrency"]
    train.value = [(key, replaced.get(key.value, value)) for key, value in kept]
    return str(yaml.serialize(root, Dumper=yaml.SafeDumper, allow_unicode=True, width=10_000))


def _list(texts: Sequence[str]) -> yaml.Node:
    return yaml.SequenceNode(f"{_TAG}seq", [_scalar(text) for text in texts])


def _scalar(text: str) -> yaml.Node:
    return yaml.ScalarNode(f"{_TAG}str", text)


def _found(node: yaml.Node) -> str:
    if isinstance(node, yaml.MappingNode):
        names = [_name(key) for key, _ in node.value]
        return f"a mapping with {listed(names)}" if names else "an empty mapping"
    if isinstance(node, yaml.SequenceNode):
        return f"a list of {len(node.value)}" if node.value else "an empty list"
    text = node.value if len(node.value) <= _SHOWN else f"{node.value[:_SHOWN]}..."
    texts = {"null": "nothing", "str": f"the text {text!r}", "bool": f"{text}, a boolean to YAML"}
    return texts.get(_kind(node), text)


def _kind(node: yaml.Node) -> str:
    """YAML's type of a scalar; empty for a mapping or a list."""
    return str(node.tag).removeprefix(_TAG) if isinstance(node, yaml.ScalarNode) else ""


def _name(key: yaml.Node) -> str:
    return str(key.value) if isinstance(key, yaml.ScalarNode) else "?"


def _unusable(text: str) -> str:
    """The kind of character that no command or variable can hold; empty if ``text`` has none."""
    try:
        return " without NUL characters" if b"\0" in text.encode() else ""
    except UnicodeEncodeError:
        return " without surrogates"


def _compose(text: bytes | str) -> yaml.Node | None:
    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        begin = error.context_mark.line + 1 if error.context_mark else line
        context = error.context and error.context + (f" of line {begin}" if begin != line else "")
        what = " ".join(filter(None, (context, error.problem)))
        hint = _without_colon(text, line)
        raise ExperimentError([Problem("", line, f"no YAML: {what}{hint}")]) from None
    except yaml.YAMLError as error:
        text = str(error).replace("\n", " ")
        raise ExperimentError([Problem("", 0, f"no YAML: {text}")]) from None
    except RecursionError:
        raise ExperimentError([_TOO_DEEP]) from None


def _without_colon(text: bytes | str, line: int) -> str:
    """A hint at a word alone in ``line`` or before it, which may lack a colon; or nothing."""
    lines = (text.decode(errors="replace") if isinstance(text, bytes) else text).splitlines()
    for number in range(min(line, len(lines)), max(line - 3, 0), -1):
        if word := _LONE_WORD.fullmatch(lines[number - 1]):
            return f"; line {number} may lack a colon: write {word[1]}:"
    return ""
