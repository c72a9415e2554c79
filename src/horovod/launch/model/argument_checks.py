"""What numbers among the arguments of a Python function may be; refused by the parameter's name."""

from __future__ import annotations

import argparse
import operator
from collections.abc import Callable
from typing import Any


def check_integer(name: str, value: Any) -> int:
    """``value``. Raises TypeError if it is no integer."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name}={value!r}: expected an integer") from None


def check_count(name: str, value: Any, what: str = "processes") -> int:
    """``value``. Raises TypeError or ValueError if it is no number of ``what``."""
    count = check_integer(name, value)
    if count < 1:
        raise ValueError(f"{name}={value!r}: expected a number of {what}, 1 or more")
    return count


def check_seconds(name: str, value: Any) -> float | None:
    """``value``, or None. Raises ValueError if it is no time that can pass."""
    if value is None:
        return None
    seconds = float(value)
    if not 0 < seconds < float("inf"):
        raise ValueError(f"{name}={value!r}: expected a number of seconds above 0")
    return seconds


def whole_number(what: str, least: int, most: int) -> Callable[[str], int]:
    """The type of a command line's option that takes ``what``, such as ``a port``."""

    def parse(text: str) -> int:
        if not (text.isascii() and text.isdecimal() and least <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"{text!r}: expected {what}")
        return int(text)

    return parse


process_number = whole_number("a number of processes, 1 or more", 1, 99_999)
