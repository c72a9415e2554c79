"""Mistakes on the command line that are found before a process starts, with the word meant."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

# Options of torchrun and mpirun, and what they are called here.
_OTHER_NAMES = {
    "--np": "-np",
    "-n": "-np",
    "--nproc": "-np",
    "--nproc-per-node": "-np, the number of processes on all hosts together",
    "--nnodes": "-H, the hosts with their slots, as in -H node-1:2,node-2:2",
    "--host": "-H",
    "--master-addr": "-H: horovodrun finds the addresses itself",
    "--master-port": "-H: horovodrun finds the ports itself",
    "--rdzv-endpoint": "-H: horovodrun finds the addresses itself",
    "--max-restarts": "--reset-limit, in an elastic job",
    "-x": "VAR=VALUE horovodrun ...: all processes get the environment of horovodrun",
}


class Parser(argparse.ArgumentParser):
    """Names the nearest option for one that it does not know, and has a short and a long help."""

    def __init__(self, short_help: str, **details: Any) -> None:
        super().__init__(add_help=False, **details)
        self._short_help = short_help
        self.add_argument("-h", "--help", action=_Help, nargs=0, help="print the usual options")
        self.add_argument("--help-all", action=_Help, nargs=0, help="print all of this")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's, but for the error."""
        given, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.error(unknown_option(unknown[0], list(self._option_string_actions)))
        return given

    def print_short_help(self) -> None:
        """Print what most jobs need."""
        print(self._short_help, end="")

    def error(self, message: str) -> NoReturn:
        """Say what is wrong in one line, without the usage."""
        self.exit(2, f"{self.prog}: error: {message}\n")


class _Help(argparse.Action):
    def __call__(
        self, parser: argparse.ArgumentParser, given: Any, values: Any, option: str | None = None
    ) -> None:
        assert isinstance(parser, Parser)
        parser.print_help() if option == "--help-all" else parser.print_short_help()
        parser.exit()


def unknown_option(word: str, known: Sequence[str]) -> str:
    """A sentence about an option that is not known."""
    name = word.partition("=")[0]
    meant = _OTHER_NAMES.get(name.replace("_", "-"))
    if meant is None:
        from difflib import get_close_matches  # here, because few starts need it

        near = get_close_matches(name.replace("_", "-"), known, 1)
        meant = near[0] if near else None
    return f"{name}: no such option" + (f"; did you mean {meant}?" if meant else "")


def command_problem(command: Sequence[str], environ: Mapping[str, str]) -> str | None:
    """Why the command is no program but a Python file, or None."""
    word = command[0]
    if not word.endswith(".py") or " " in word:
        return None
    if shutil.which(word, path=environ.get("PATH", os.defpath)) is not None:
        return None
    what = "a Python file, not a program" if Path(word).is_file() else "no program"
    return f"{word}: {what}; did you mean: python {' '.join(command)}?"


def is_own_python(command: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Whether the command is the Python that horovodrun runs in, which has the same packages."""
    found = shutil.which(command[0], path=environ.get("PATH", os.defpath))
    return found is not None and Path(found).parent == Path(sys.executable).parent
