"""Reads messages of other processes, and files: every value is checked before it is used.

A malformed, missing or unexpected value, or one out of range, is a ``BadMessageError``. It says
which field of which message, what was found and what was expected. The caller adds the sender.
"""

from __future__ import annotations

import base64
import json
import math
import reprlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from functools import cache
from typing import Any, ClassVar, TypeVar, get_type_hints
from unicodedata import category

MOST_RANKS = 2**24  # of a world; more than any machine has, less than what breaks a counter
MOST_PID = 2**31 - 1
_MOST_TEXT = 64 * 1024
_MOST_NUMBER = 2**63 - 1

_Item = TypeVar("_Item")
_Kind = TypeVar("_Kind", bound="Record")


class BadMessageError(ValueError):
    """A message that must not be used: which value, what it was and what was expected."""

    def __init__(
        self, message: str, field: str, found: str, expected: str, sender: str = ""
    ) -> None:
        self.message = message
        self.field = field
        self.found = found
        self.expected = expected
        self.sender = sender
        by = f" from {sender}" if sender else ""
        super().__init__(
            f"a message '{message}'{by} has {found} in field {field}; expected {expected}"
        )

    def of(self, sender: str) -> BadMessageError:
        """The same error with the sender of the message."""
        return BadMessageError(self.message, self.field, self.found, self.expected, sender)


def is_number(value: object) -> bool:
    """Whether it is a finite ``float``, or an ``int`` that a ``float`` can stand for."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return abs(value) <= sys.float_info.max  # also false for NaN


def printable(text: str) -> str:
    """``text`` for a terminal: control characters except tabs and ends of lines are escaped."""
    if text.isprintable():
        return text
    return "".join(c if _is_shown(c) else c.encode("unicode_escape").decode() for c in text)


def _is_shown(character: str) -> bool:
    return character.isprintable() or character in "\n\t" or category(character) == "Zs"


def read_json(message: str, text: bytes | str) -> Any:
    """The JSON value that is the whole ``text``."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadMessageError(message, "text", printable(str(error)), "JSON") from None


class Fields:
    """The fields of one message, by name; each method checks and returns one.

    ``values`` has them unchecked. ``close`` at the end refuses fields that were not read.
    """

    def __init__(self, message: str, values: Any, within: str = "") -> None:
        self.message = message
        self._within = within
        if not isinstance(values, dict):
            raise self.error("", values, "an object with named fields")
        self.values: Mapping[str, Any] = values
        self._left = set(values)

    @classmethod
    def read(cls, message: str, text: bytes | str) -> Fields:
        """The fields of a message in JSON."""
        return cls(message, read_json(message, text))

    @property
    def names(self) -> list[str]:
        """The names of all fields in the message."""
        return list(self.values)

    def error(self, name: str, found: object, expected: str) -> BadMessageError:
        """The error for the field ``name``."""
        field = f"{self._within}{name}" or "text"
        return BadMessageError(self.message, field, printable(reprlib.repr(found)), expected)

    def close(self) -> None:
        """Refuse fields that were not read."""
        if self._left:
            name = min(map(str, self._left))
            raise self.error(printable(name[:64]), "a value", "no such field")

    def integer(self, name: str, least: int = 0, most: int = _MOST_NUMBER) -> int:
        """A whole number within a range."""
        return self._integer(name, self._take(name), least, most)

    def integers(
        self, name: str, least: int = 0, most: int = _MOST_NUMBER, *, most_of_them: int = MOST_RANKS
    ) -> tuple[int, ...]:
        """A list of such numbers."""
        values = self._list(name, most_of_them)
        return tuple(self._integer(name, value, least, most) for value in values)

    def number(self, name: str, least: float = 0.0, most: float = math.inf) -> float:
        """A finite number within a range."""
        value = self._take(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.error(name, value, "a number")
        if not (least <= value <= most and abs(value) <= 1e300):
            raise self.error(name, value, f"a number from {least:g} to {most:g}")
        return float(value)

    def flag(self, name: str) -> bool:
        """True or false."""
        value = self._take(name)
        if not isinstance(value, bool):
            raise self.error(name, value, "true or false")
        return value

    def text(self, name: str, most: int = _MOST_TEXT) -> str:
        """A text of at most ``most`` characters; call ``printable`` before it is shown."""
        return self._text(name, self._take(name), most)

    def texts(self, name: str, most: int = _MOST_TEXT) -> tuple[str, ...]:
        """A list of such texts."""
        return tuple(self._text(name, value, most) for value in self._list(name))

    def texts_by_name(self, name: str) -> dict[str, str]:
        """An object whose fields, of any name, are texts."""
        value = self._take(name)
        if not isinstance(value, dict):
            raise self.error(name, value, "an object of texts")
        return {key: self._text(name, each, 2**24) for key, each in value.items()}

    def fields(self, name: str) -> Fields:
        """An object in it."""
        return Fields(self.message, self._take(name), f"{self._within}{name}.")

    def each(
        self, name: str, read: Callable[[Fields], _Item], most: int = MOST_RANKS
    ) -> list[_Item]:
        """The results of ``read`` for each object of a list; no field of these may be left."""
        items = []
        for value in self._list(name, most):
            fields = Fields(self.message, value, f"{self._within}{name}.")
            items.append(read(fields))
            fields.close()
        return items

    def addresses(self, name: str) -> tuple[tuple[str, int], ...]:
        """A list of pairs of host and port."""
        found = []
        for row in self._list(name):
            if not isinstance(row, list) or len(row) != 2:
                raise self.error(name, row, "pairs of host and port")
            host, port = self._text(name, row[0], 255), self._integer(name, row[1], 1, 65535)
            found.append((host, port))
        return tuple(found)

    def is_null(self, name: str) -> bool:
        """Whether the field is null. A field that is not null has to be read afterwards."""
        if self.values.get(name, 0) is not None:
            return False
        self._take(name)
        return True

    def _take(self, name: str) -> Any:
        if name not in self.values:
            raise self.error(name, "nothing", "a value")
        self._left.discard(name)
        return self.values[name]

    def _list(self, name: str, most: int = MOST_RANKS) -> list[Any]:
        value = self._take(name)
        if not isinstance(value, list) or len(value) > most:
            raise self.error(name, value, f"a list of at most {most} values")
        return value

    def _integer(self, name: str, value: Any, least: int, most: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(name, value, "a whole number")
        if not least <= value <= most:
            raise self.error(name, value, f"{least} to {most}")
        return value

    def _text(self, name: str, value: Any, most: int) -> str:
        if not isinstance(value, str) or len(value) > most:
            raise self.error(name, value, f"text of at most {most} characters")
        return value


Reader = Callable[[Fields, str], Any]


def between(least: int, most: int) -> Reader:
    """Reads a whole number within a range."""
    return lambda fields, name: fields.integer(name, least, most)


def limited(most: int) -> Reader:
    """Reads a text of at most ``most`` characters; may be anything."""
    return lambda fields, name: fields.text(name, most)


def shown(most: int = _MOST_TEXT) -> Reader:
    """Reads a text of at most ``most`` characters as ``printable``."""
    return lambda fields, name: printable(fields.text(name, most))


def worded(most: int) -> Reader:
    """Reads a list of texts of at most ``most`` characters each; may be anything."""
    return lambda fields, name: fields.texts(name, most)


def listed(kind: type[Record]) -> Reader:
    """Reads a list of records."""
    return lambda fields, name: fields.each(name, kind.read)


def nullable(reader: Reader) -> Reader:
    """Reads what ``reader`` does, or null as None."""
    return lambda fields, name: None if fields.is_null(name) else reader(fields, name)


def encoded(fields: Fields, name: str) -> bytes:
    """Reads bytes, which are sent as base64; a ``Reader``."""
    text = fields.text(name, 1024)
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise fields.error(name, "what cannot be decoded", f"base64 ({error})") from None


class Record:
    """A frozen dataclass that is sent as JSON; every field is checked when it is read.

    A field's type says what it must be, or a ``Reader`` in its ``Annotated`` type reads it.
    ``message`` is the name of the message in errors.
    """

    message: ClassVar[str]

    def to_bytes(self) -> bytes:
        """The record as JSON."""
        values = asdict(self)  # type: ignore[call-overload]
        return json.dumps(values, default=lambda data: base64.b64encode(data).decode()).encode()

    @classmethod
    def from_bytes(cls: type[_Kind], text: bytes) -> _Kind:
        """The inverse of ``to_bytes``; BadMessageError for anything else."""
        return cls.read(Fields.read(cls.message, text))

    @classmethod
    def read(cls: type[_Kind], fields: Fields) -> _Kind:
        """The record that has exactly these fields. Raises BadMessageError."""
        readers: dict[str, Reader] = _readers(cls)  # type: ignore[arg-type]
        found = cls(**{name: reader(fields, name) for name, reader in readers.items()})
        fields.close()
        return found


_PLAIN: dict[Any, Reader] = {
    int: Fields.integer,
    str: Fields.text,
    bool: Fields.flag,
    tuple[int, ...]: Fields.integers,
}


@cache
def _readers(kind: Any) -> dict[str, Reader]:
    hints = get_type_hints(kind, include_extras=True)
    return {each.name: _reader_of(hints[each.name]) for each in fields(kind)}


def _reader_of(hint: Any) -> Reader:
    if hasattr(hint, "__metadata__"):
        reader: Reader = hint.__metadata__[0]
        return reader
    if isinstance(hint, type) and issubclass(hint, Record):
        return lambda fields, name: hint.read(fields.fields(name))
    return _PLAIN[hint]
