"""The result of ``horovodrun --simulate -o FILE``: one HTML file that needs no other."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from horovod.core.base.own_files import open_regular, replacing
from horovod.simulate import Network, Prediction, Workload
from horovod.simulate.advice import Advice
from horovod.trace.report.page import page_environment

_GENERATOR = "horovodrun --simulate"
_HEAD_BYTES = 200  # of a page, in which its generator is
_KEYS = {
    "compute": "computing",
    "stragglers": "the slowest rank's computing beyond that",
    "exposed": "reductions that no computing hides",
    "update": "the optimizer's step",
}


def page(
    workload: Workload,
    network: Network,
    algorithm: str,
    found: Sequence[Prediction],
    advice: Sequence[Advice],
    table: Sequence[Sequence[str]],
) -> str:
    """The whole file; ``table`` is the heads and the rows that are printed, too."""

    def parts(each: Prediction) -> Iterator[tuple[str, float]]:
        yield "compute", workload.compute_s
        yield "stragglers", max(0.0, each.stragglers_s)
        yield "exposed", max(0.0, each.exposed_s)
        yield "update", workload.update_s

    template = page_environment(__package__ or "").get_template("page.html")
    return template.render(
        generator=_GENERATOR,
        workload=workload,
        network=network,
        algorithm=algorithm,
        found=found,
        longest_s=max(each.step_s for each in found),
        advice=advice,
        heads=table[0],
        rows=table[1:],
        keys=_KEYS,
        parts=parts,
    )


def write_page(path: Path, text: str) -> None:
    """Write the page, in place of an earlier one.

    Raises:
        ValueError: there is a file that is no such page.
        OSError: the file cannot be written.
    """
    if os.path.lexists(path):
        with open(open_regular(path, os.O_RDONLY), "rb") as file:
            head = file.read(_HEAD_BYTES)
        if _GENERATOR.encode() not in head:
            raise ValueError(f"-o: {path} is no page of {_GENERATOR}; it is not overwritten")
    with replacing(path) as file:
        file.write(text.encode(errors="backslashreplace"))
