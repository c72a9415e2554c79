"""The recordings of a job: those that are there, and new ones of ranks that run."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from horovod.core.base.own_files import OwnFolder
from horovod.launch.remote.job_folder import check_private
from horovod.trace.folders import JOB_ID, folder_of, is_marked, job_name
from horovod.trace.outcome import Outcome, read_outcome
from horovod.trace.presence import (
    Presence,
    RankState,
    find_presences,
    request_recordings,
    state_of,
)
from horovod.trace.recording import Recording, RecordingError, find_recordings, read_recording
from horovod.trace.worlds import RecordedWorld, collect_worlds

__all__ = ["Evidence", "NothingFoundError", "find_job", "gather"]

_PATIENCE_S = 5.0  # with ranks that are busy, or look twice a second
_POLL_S = 0.02
_MOST_PROBLEMS = 3  # in one sentence
_AWAITED = (RankState.RUNNING, RankState.ELSEWHERE)


class NothingFoundError(Exception):
    """There is nothing to look at; the text says where it was looked for."""


@dataclass(frozen=True)
class Evidence:
    """Worlds of a job, the one to look at last; ``states`` of its ranks that said they run."""

    folder: Path
    worlds: tuple[RecordedWorld, ...]
    states: Mapping[int, RankState]
    problems: tuple[str, ...] = ()
    outcome: Outcome | None = None  # of the job, if its launcher has ended here

    @property
    def is_running(self) -> bool:
        """Whether some rank of it still lives."""
        return any(state is not RankState.GONE for state in self.states.values())


def find_job(job: str, environ: Mapping[str, str]) -> Path:
    """The folder of ``job``, which is an id or a folder; of the newest one for an empty text.

    Raises:
        NothingFoundError: there is none.
        PermissionError: others could have put something there.
    """
    if job and Path(job).is_dir():
        path = Path(job).resolve()
        return path if _is_of_a_job(path) else _newest(path, is_chosen=False)
    chosen = environ.get("HOROVOD_RECORDER_DIR", "")
    base = folder_of(chosen)
    if not base:
        raise NothingFoundError("HOROVOD_RECORDER_DIR=off: no recordings are written")
    if not job:
        return _newest(Path(base), is_chosen=bool(chosen))
    path = Path(base) / job_name({JOB_ID: job}, 0)
    if not _is_of_a_job(path):
        _refuse_foreign(path)
        known = ", ".join(folder.name for folder in _jobs(Path(base))[-5:]) or "none"
        raise NothingFoundError(f"no recordings of job {job} in {base}; jobs there: {known}")
    return path


def _newest(base: Path, *, is_chosen: bool) -> Path:
    """In a folder for all jobs that was chosen, others may have folders, too."""
    jobs = _jobs(base)
    if not jobs:
        if not is_chosen:
            _refuse_foreign(base)
        raise NothingFoundError(
            f"no recordings in {base}; set HOROVOD_RECORDER_DIR as for the job, or name a folder"
        )
    return jobs[-1]


def _jobs(base: Path) -> list[Path]:
    """Marked folders with recordings, or with ranks that run, the newest last."""
    try:
        folders = [path for path in base.iterdir() if _is_of_a_job(path, is_named=False)]
        return sorted(folders, key=lambda path: path.stat().st_mtime_ns)
    except OSError:
        return []


def _is_of_a_job(path: Path, *, is_named: bool = True) -> bool:
    """Whether this user, and nobody else, has recordings or ranks that run there.

    A folder that the user has named may be a copy under another name; others must be marked.
    """
    try:
        with OwnFolder(path) as folder:
            return (is_named or is_marked(folder)) and any(
                name.endswith((".hvdrec", ".running")) for name in folder.names()
            )
    except OSError:
        return False


def _refuse_foreign(path: Path) -> None:
    """Say that it is somebody else's, if that is why nothing is found in it."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        OwnFolder(path).close()


def gather(folder: Path) -> Evidence:
    """All that is known of the job whose folder it is; asks ranks that run, for 5 s at most.

    Raises:
        NothingFoundError: no rank has left a recording or answers.
        PermissionError: others could have put something there.
        OSError: the folder cannot be read.
    """
    with OwnFolder(folder) as own:
        presences = find_presences(own)
        states = [state_of(presence) for presence in presences]
        awaited = [p for p, state in zip(presences, states, strict=True) if state in _AWAITED]
        if awaited and is_marked(own):  # else it is a copy, and the file in it another one's
            check_private(folder)
            _ask(own, awaited)
        recordings, problems = _read(folder)
        outcome = read_outcome(own)
    worlds = collect_worlds(recordings)
    if not worlds:
        names = ", ".join(presence.name for presence in presences)
        raise NothingFoundError(
            f"no rank of {folder.name} has left a recording"
            + (f", and none of these answers: {names}" if names else "")
            + "".join(f"; {problem}" for problem in problems[:_MOST_PROBLEMS])
        )
    living = [p for p, state in zip(presences, states, strict=True) if state is not RankState.GONE]
    worlds = _with_the_living_last(worlds, living)
    return Evidence(
        folder,
        tuple(worlds),
        _states(worlds[-1], presences),
        tuple(problems),
        None if living else _outcome_of(worlds[-1], outcome),
    )


def _outcome_of(world: RecordedWorld, outcome: Outcome | None) -> Outcome | None:
    """That of this world's job, and not of one before that had the same id."""
    is_of_it = outcome is not None and outcome.epoch_s >= world.written_epoch_ns / 1e9 - 1
    return outcome if is_of_it else None


def _ask(folder: OwnFolder, awaited: Sequence[Presence]) -> None:
    """Until all these ranks have written, have ended, or do not answer."""
    nonce = f"{os.getpid()}-{time.time_ns():x}"
    request_recordings(folder, awaited, nonce)
    left = list(awaited)
    deadline = time.monotonic() + _PATIENCE_S
    while left and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        left = [p for p in left if p.path.exists() and not _has_answered(p, nonce)]


def _has_answered(presence: Presence, nonce: str) -> bool:
    path = presence.path.with_name(f"{presence.path.stem}-request.hvdrec")
    try:
        return read_recording(path).detail == nonce
    except (OSError, RecordingError):
        return False


def _read(folder: Path) -> tuple[list[Recording], list[str]]:
    recordings, problems = [], []
    for path in find_recordings(folder):
        try:
            recording = read_recording(path)
            if not recording.world.get("ranks"):
                problems.append(f"{path}: does not say which ranks its world had")
                continue
            recordings.append(recording)
        except FileNotFoundError:  # a new one took its place
            continue
        except (OSError, RecordingError) as error:
            problems.append(str(error))
    return recordings, problems


def _with_the_living_last(
    worlds: Sequence[RecordedWorld], living: Sequence[Presence]
) -> list[RecordedWorld]:
    """What runs is what is asked about, even where something else was written later."""
    names = {tuple(presence.world.get("ranks", ())) for presence in living}
    return sorted(worlds, key=lambda world: world.names in names)


def _states(world: RecordedWorld, presences: Sequence[Presence]) -> dict[int, RankState]:
    """Of the world's ranks, as it is now."""
    return {
        presence.rank: state_of(presence)
        for presence in presences
        if tuple(presence.world.get("ranks", ())) == world.names
        and str(presence.world.get("world")) == world.number
        and presence.path.exists()
    }
