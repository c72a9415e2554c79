"""What arguments may be: numbers, files, options; refused by the parameter's or option's name."""

from __future__ import annotations

import argparse
import operator
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from horovod.core.base.own_files import follow
from horovod.launch.model.job_plan import Limits

T = TypeVar("T")


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


def renamed(old: str, value: T, new: str, given: T, stacklevel: int, default: Any = None) -> T:
    """``given``, or the ``value`` of its deprecated name. Raises ValueError if both are given."""
    if value is None:
        return given
    if given not in (default, value):
        raise ValueError(f"give {new} or {old}, not both: {given!r} and {value!r}")
    warnings.warn(f"{old} is deprecated; use {new}", DeprecationWarning, stacklevel)
    return value


def check_limits(
    np: int, least: Any, most: Any, reset_limit: Any, elastic_timeout_s: float
) -> Limits:
    """The limits of an elastic job that starts with ``np`` processes. Raises TypeError, ValueError.

    ``least`` is ``min_num_proc``, by default ``np``, and ``most`` is ``max_num_proc``.
    """
    min_np = np if least is None else check_count("min_num_proc", least)
    if min_np > np:
        raise ValueError(f"min_num_proc={min_np}: expected 1 to {np}, which is num_proc")
    max_np = None if most is None else check_count("max_num_proc", most)
    if max_np is not None and max_np < np:
        raise ValueError(f"max_num_proc={max_np}: expected {np}, which is num_proc, or more")
    if reset_limit is not None and check_integer("reset_limit", reset_limit) < 0:
        raise ValueError(f"reset_limit={reset_limit!r}: expected a number of resets, 0 or more")
    return Limits(np, min_np, max_np, reset_limit, elastic_timeout_s, cooldown=None)


def whole_number(what: str, least: int, most: int) -> Callable[[str], int]:
    """The type of a command line's option that takes ``what``, such as ``a port``."""

    def parse(text: str) -> int:
        if not (text.isascii() and text.isdecimal() and least <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"{text!r}: expected {what}")
        return int(text)

    return parse


_MOST_PROCESSES = 99_999
process_number = whole_number(
    f"a number of processes, 1 or more, at most {_MOST_PROCESSES}", 1, _MOST_PROCESSES
)


def writable_file(option: str, path: Path) -> Path:
    """The absolute ``path`` of a file that ``option`` names, if one can be written there.

    Raises:
        OSError: it cannot, is a folder, or is reached over another user's link.
    """
    try:
        path = follow(path)  # what a link leads to is replaced, not the link
    except OSError as error:
        raise OSError(f"{option} {error}") from None
    if path.is_dir():
        raise IsADirectoryError(f"{option} {path}: this is a folder; expected a file's name")
    if path.exists() and not path.is_file():
        raise OSError(f"{option} {path}: expected a regular file to replace, or none")
    if not path.parent.is_dir():
        raise NotADirectoryError(f"{option} {path}: {path.parent} is no folder")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise OSError(f"{option} {path}: cannot be written: {error.strerror}") from None
    return path


class OneLineParser(argparse.ArgumentParser):
    """A parser of command lines that says in one line what is wrong, without the usage.

    It names the nearest option for one that it does not know.
    """

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's, but for the error."""
        given, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.error(self.problem_of(unknown[0]))
        return given

    def problem_of(self, word: str) -> str:
        """A sentence about a word that is not known."""
        if not word.startswith("-"):
            return f"{word}: expected an option; {self.prog} --help shows all"
        from difflib import get_close_matches  # here, because few starts need it

        name = word.partition("=")[0]
        near = get_close_matches(name.replace("_", "-"), self._option_string_actions, 1)
        return f"{name}: no such option" + (f"; did you mean {near[0]}?" if near else "")

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, without the usage."""
        self.exit(2, f"{self.prog}: error: {message}\n")
