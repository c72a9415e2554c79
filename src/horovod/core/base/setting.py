"""What a setting is: its names, its meaning, and how text becomes a value of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from horovod.errors import SettingError

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off", ""})


@dataclass(frozen=True)
class Flag:
    """How ``horovodrun`` takes a setting; ``topic`` is the heading that its help shows it under.

    A setting that is on or off has two flags: ``name`` turns it on and ``opposite`` off;
    ``deprecated`` has older names of the two. ``key`` is its ``section.name`` in the configuration
    file, where ``is_key_opposite`` keys turn it off with ``true``. Where flag and file count in
    another unit than the variable, one ``unit`` is ``factor`` of the variable's.
    """

    name: str
    topic: str
    key: str = ""
    opposite: str = ""
    deprecated: tuple[str, ...] = ()
    is_key_opposite: bool = False
    unit: str = ""
    factor: int = 1


@dataclass(frozen=True)
class Setting:
    """One setting: its names, what it means, and which values it takes.

    ``meaning`` goes on after the name of a value's kind: what the number is, or, for on and off,
    what the value that is not the default does. An empty tuple as default takes a comma list: of
    ``choices``, or of integers if there are none.
    ``left_over`` are values of the original that are ignored, ``replaced`` pairs of another one and
    what is taken in its place; those in lower case stand for any case.
    """

    name: str
    default: Any
    env: str
    meaning: str
    unit: str = ""
    minimum: float = 0
    maximum: float = 1e9
    choices: tuple[str, ...] = ()
    left_over: tuple[str, ...] = ()
    replaced: tuple[tuple[str, str], ...] = ()
    flag: Flag | None = None

    def is_left_over(self, text: str) -> bool:
        """Whether a variable of this value is to be ignored."""
        return text.lower() in self.left_over

    def replacement(self, text: str) -> str | None:
        """What is taken in place of a value of the original; None for every other text."""
        replaced = dict(self.replaced)
        return replaced.get(text, replaced.get(text.lower()))

    def parse(self, text: str, factor: int = 1) -> Any:
        """The value for ``text``, which counts in ``factor`` of the variable's unit.

        Raises:
            SettingError: it is not what is expected; the text says what is, and names nothing.
        """
        kind: Any = type(self.default)
        if kind is bool:
            return _parse_switch(text)
        if kind is str:
            if not self.choices:
                return text
            value = self.replacement(text) or text.lower()
            if value not in self.choices:
                raise SettingError(f"expected one of {', '.join(self.choices)}")
            return value
        if kind is tuple:
            words = text.split(",") if text else []
            return tuple(map(self._chosen if self.choices else self._integer, words))
        return self._number(text, kind, factor)

    def text(self, value: Any, factor: int = 1) -> str:
        """``value`` as it is written into the environment: what ``parse`` takes back."""
        if isinstance(value, tuple):
            return ",".join(map(str, value))
        if isinstance(value, str):
            return value
        value = value / factor if factor != 1 else value
        return str(int(value)) if value == int(value) else str(value)

    def _chosen(self, word: str) -> str:
        value = word.strip().lower()
        if value not in self.choices:
            raise SettingError(f"expected some of {', '.join(self.choices)}, with commas between")
        return value

    def _integer(self, word: str) -> int:
        return int(self._number(word, int, 1))

    def _number(self, text: str, kind: Any, factor: int) -> Any:
        try:
            value = kind(text)
        except ValueError:
            expected = "an integer" if kind is int else "a number"
            raise SettingError(f"expected {expected}") from None
        low, high = self.minimum / factor, self.maximum / factor
        if not low <= value <= high:  # false for nan
            raise SettingError(f"must be at least {low:g} and at most {high:g}")
        return value * factor


def _parse_switch(text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise SettingError("expected 1 or 0, or true or false")
