"""The options that the benchmarks share."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

__all__ = ["add_contestants", "add_labels", "add_names", "make_parser", "numbers"]


def make_parser(doc: str | None, quick: str = "") -> argparse.ArgumentParser:
    """A parser with ``--json`` and, if its help text ``quick`` is given, ``--quick``."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    if quick:
        parser.add_argument("--quick", action="store_true", help=quick)
    return parser


def add_labels(parser: argparse.ArgumentParser, option: str, labels: Sequence[str]) -> None:
    """An option that selects some of ``labels`` by their numbers; default: all."""
    parser.add_argument(
        option,
        type=lambda text: [labels[number - 1] for number in numbers(text)],
        default=labels,
        help="; ".join(f"{number}: {label}" for number, label in enumerate(labels, 1)),
    )


def add_contestants(parser: argparse.ArgumentParser, names: Sequence[str]) -> None:
    """``--contestants``: some of ``names``; default: all."""
    add_names(parser, "--contestants", names)


def add_names(parser: argparse.ArgumentParser, option: str, names: Sequence[str]) -> None:
    """An option that selects some of ``names``; default: all."""

    def parse(text: str) -> list[str]:
        chosen = text.split(",")
        if unknown := [name for name in chosen if name not in names]:
            raise argparse.ArgumentTypeError(f"no {unknown[0]!r} among {','.join(names)}")
        return chosen

    parser.add_argument(option, type=parse, default=names, help=",".join(names))


def numbers(text: str) -> list[int]:
    """Integers separated by commas."""
    return [int(number) for number in text.split(",") if number]
