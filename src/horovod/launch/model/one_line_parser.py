"""A parser of command lines that says in one line what is wrong, without the usage."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn


class OneLineParser(argparse.ArgumentParser):
    """Names the nearest option for one that it does not know."""

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
        return _unknown_option(word, list(self._option_string_actions))

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, without the usage."""
        self.exit(2, f"{self.prog}: error: {message}\n")


def _unknown_option(word: str, known: Sequence[str]) -> str:
    """A sentence about an option that is not among those that are ``known``."""
    from difflib import get_close_matches  # here, because few starts need it

    name = word.partition("=")[0]
    near = get_close_matches(name.replace("_", "-"), known, 1)
    return f"{name}: no such option" + (f"; did you mean {near[0]}?" if near else "")
