"""What autotuning has tried and found, for people and for the next job."""

from __future__ import annotations

import contextlib
import csv
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from horovod.autotune.knobs import Knob, Values
from horovod.autotune.search import Verdict
from horovod.core.base.own_files import open_regular, read_own, replacing
from horovod.core.base.setting import Flag, Setting
from horovod.metrics.sampling import note_sample
from horovod.settings import SETTINGS

__all__ = ["Sample", "SampleLog", "describe", "pinned"]

_log = logging.getLogger("horovod")
_COLUMNS = (
    # These are documented.
    *("hierarchical_allreduce", "hierarchical_allgather", "torus_allreduce", "cache_enabled"),
    *("cycle_time_ms", "tensor_fusion_threshold", "score"),
    # These are ours.
    *("allreduce_block_kb", "small_allreduce_kb", "small_allreduce_between_hosts_kb"),
    *("step_ms", "phase"),
)
_HEADING = "# Found by horovodrun --autotune: "
_APPENDED = os.O_WRONLY | os.O_CREAT | os.O_APPEND
_MOST_BYTES = 1 << 20
_SETTINGS = {setting.name: setting for setting in SETTINGS}


@dataclass(frozen=True)
class Sample:
    """What was measured: all values, the score in bytes per microsecond, and what it was for."""

    values: Values
    score: float
    step_ms: float
    phase: str


class SampleLog:
    """The CSV file, if ``path`` names one. Everything that is measured passes through ``write``."""

    def __init__(self, path: str, has_cache: bool, spans_hosts: bool) -> None:
        """What never changes is in the file, too, since the documented columns have it."""
        self._path = Path(path) if path else None
        self._constant = (int(spans_hosts), int(spans_hosts), 0, int(has_cache))
        self._begin()

    def write(self, sample: Sample) -> None:
        """One row more, and one in the job's report, if there is one."""
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
            f"{sample.step_ms:.4g}",
            sample.phase,
        )
        self._append(row)

    def finish(self, verdict: Verdict, knobs: Sequence[Knob], defaults: Values) -> None:
        """Say what was found, once; and how to have it from the start, in a file beside the log."""
        place = ""
        if self._path is not None:
            found = self._path.with_name(f"{self._path.name}.yaml")
            try:
                _replace_found(found, pinned(verdict, knobs))
                place = f" (--config-file {found})"
            except OSError as error:
                _log.error("autotune: %s cannot be written: %s", found, error)
        _log.warning("autotune: %s%s", describe(verdict, knobs, defaults), place)

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


def _replace_found(path: Path, text: str) -> None:
    """Nobody has named this file, so only one that autotuning has written is replaced."""
    with contextlib.suppress(FileNotFoundError):
        if not read_own(path, _MOST_BYTES).startswith(_HEADING.encode()):
            raise OSError("it holds something else than what autotuning has found")
    with replacing(path, 0o666) as file:
        file.write(text.encode())


def describe(verdict: Verdict, knobs: Sequence[Knob], defaults: Values) -> str:
    """The result in one line."""
    changed = [knob.name for knob in knobs if verdict.values[knob.name] != defaults[knob.name]]
    if not changed:
        return "nothing is clearly faster than the settings that hold without it"
    options = " ".join(
        f"{_flag(name).name} {_text(name, verdict.values[name])}" for name in changed
    )
    return f"{verdict.gain:.2f} times as fast with {options}"


def pinned(verdict: Verdict, knobs: Sequence[Knob]) -> str:
    """A configuration file for ``horovodrun`` that holds what was found, and looks no further."""
    lines = [f"{_HEADING}{verdict.gain:.3f} times as fast as without.\n", "params:\n"]
    for knob in knobs:
        key = _flag(knob.name).key.partition(".")[2]
        lines.append(f"  {key}: {_text(knob.name, verdict.values[knob.name])}\n")
    return "".join([*lines, "autotune:\n", "  enabled: false\n"])


def _flag(name: str) -> Flag:
    flag = _SETTINGS[name].flag
    return flag if flag is not None else Flag("", "")


def _text(name: str, value: float) -> str:
    setting: Setting = _SETTINGS[name]
    return setting.text(value, _flag(name).factor)
