"""The log of autotuning: a CSV file of samples, and the result as a configuration file."""

from __future__ import annotations

import contextlib
import csv
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from horovod.autotune.knobs import Knob, Value, Values
from horovod.autotune.search import Result
from horovod.core.base.own_files import open_regular, read_own, replacing
from horovod.core.base.setting import Flag
from horovod.metrics.sampling import note_sample
from horovod.settings import SETTINGS

_log = logging.getLogger("horovod")
_COLUMNS = (
    *("hierarchical_allreduce", "hierarchical_allgather", "torus_allreduce", "cache_enabled"),
    *("cycle_time_ms", "tensor_fusion_threshold", "score"),
    # Not among the documented columns:
    *("allreduce_block_kb", "small_allreduce_kb", "small_allreduce_between_hosts_kb"),
    *("link_compression", "step_ms", "phase"),
)
_HEADING = "# Found by horovodrun --autotune: "
_APPENDED = os.O_WRONLY | os.O_CREAT | os.O_APPEND
_MOST_BYTES = 1 << 20
_SETTINGS = {setting.name: setting for setting in SETTINGS}


class Sample(NamedTuple):
    """One measurement: all values, the score in bytes per microsecond, and the search's phase."""

    values: Values
    score: float
    step_ms: float
    phase: str


class SampleLog:
    """Writes samples to the job's report and, if ``path`` is not empty, to a CSV file."""

    def __init__(self, path: str, has_cache: bool, spans_hosts: bool) -> None:
        """The documented columns include values that never change: the other arguments."""
        self._path = Path(path) if path else None
        self._constant = (int(spans_hosts), int(spans_hosts), 0, int(has_cache))
        self._begin()

    def write(self, sample: Sample) -> None:
        """Add a row to the file and a sample to the job's report."""
        values = sample.values
        note_sample(
            {**values, "step_ms": sample.step_ms, "phase": sample.phase},
            sample.score * 1e6,
            is_chosen=sample.phase == "result",
        )
        row = (
            *self._constant,
            f"{values['cycle_time_ms']:g}",
            int(values["fusion_threshold_bytes"]),
            f"{sample.score:.6g}",
            *(int(values[name]) for name in _COLUMNS[7:10]),
            values["link_compression"],
            f"{sample.step_ms:.4g}",
            sample.phase,
        )
        self._append(row)

    def finish(self, result: Result, knobs: Sequence[Knob], defaults: Values) -> None:
        """Log the result once, and write it as a configuration file beside the CSV file."""
        hint = ""
        if self._path is not None:
            found = self._path.with_name(f"{self._path.name}.yaml")
            try:
                _replace_result(found, pinned(result, knobs))
                hint = f" (--config-file {found})"
            except OSError as error:
                _log.error("autotune: %s cannot be written: %s", found, error)
        _log.warning("autotune: %s%s", describe(result, knobs, defaults), hint)

    def _begin(self) -> None:
        if self._path is None:
            return
        try:
            with open(open_regular(self._path, _APPENDED), "ab") as file:
                file.truncate(0)
        except OSError as error:
            _log.error("HOROVOD_AUTOTUNE_LOG=%s: it cannot be written: %s", self._path, error)
            self._path = None
        self._append(_COLUMNS)

    def _append(self, row: Sequence[object]) -> None:
        if self._path is None:
            return
        try:
            opened = open_regular(self._path, _APPENDED)
            with open(opened, "a", newline="", encoding="utf-8") as file:
                csv.writer(file, lineterminator="\n").writerow(row)
        except OSError as error:
            _log.error("HOROVOD_AUTOTUNE_LOG=%s: a row is lost: %s", self._path, error)


def _replace_result(path: Path, text: str) -> None:
    """Replace only a file that autotuning has written: the user has not named this path."""
    with contextlib.suppress(FileNotFoundError):
        if not read_own(path, _MOST_BYTES).startswith(_HEADING.encode()):
            raise OSError("it was not written by autotuning")
    with replacing(path, 0o666) as file:
        file.write(text.encode())


def describe(result: Result, knobs: Sequence[Knob], defaults: Values) -> str:
    """The result in one line."""
    changed = [knob.name for knob in knobs if result.values[knob.name] != defaults[knob.name]]
    if not changed:
        return "nothing is clearly faster than the settings that hold without it"
    options = " ".join(f"{_flag(name).name} {_text(name, result.values[name])}" for name in changed)
    return f"{result.gain:.2f} times as fast with {options}"


def pinned(result: Result, knobs: Sequence[Knob]) -> str:
    """A configuration file for ``horovodrun`` with the result, and with autotuning disabled."""
    lines = [f"{_HEADING}{result.gain:.3f} times as fast as without.\n", "params:\n"]
    for knob in knobs:
        key = _flag(knob.name).key.partition(".")[2]
        lines.append(f"  {key}: {_text(knob.name, result.values[knob.name])}\n")
    return "".join([*lines, "autotune:\n", "  enabled: false\n"])


def _flag(name: str) -> Flag:
    return _SETTINGS[name].flag or Flag("", "")


def _text(name: str, value: Value) -> str:
    return _SETTINGS[name].text(value, _flag(name).factor)
