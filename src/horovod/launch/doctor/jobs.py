"""The recordings of a job: existing ones, and new ones that running ranks are asked for."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from horovod.core.base.own_files import OwnFolder
from horovod.launch.remote.job_folder import check_private
from horovod.trace.folders import JOB_ID, folder_of, is_marked, job_name
from horovod.trace.outcome import Outcome, read_outcome
from horovod.trace.presence import Presence, RankState, find_presences, request_recordings, state_of
from horovod.trace.recording import Recording, RecordingError, find_recordings, read_recording
from horovod.trace.worlds import RecordedWorld, collect_worlds

_ANSWER_S = 5.0  # ranks may be busy, or look for requests twice a second
_POLL_S = 0.02
_MOST_PROBLEMS = 3  # in a message
_AWAITED = (RankState.RUNNING, RankState.ELSEWHERE)


class NothingFoundError(Exception):
    """There are no recordings; the text says where they were looked for."""


class Evidence(NamedTuple):
    """The worlds of a job, the one to examine last.

    ``states`` has the ranks of that world with a presence file.
    """

    folder: Path
    worlds: tuple[RecordedWorld, ...]
    states: Mapping[int, RankState]
    problems: tuple[str, ...] = ()
    outcome: Outcome | None = None  # if the job's launcher has ended on this machine

    @property
    def is_running(self) -> bool:
        """Whether a rank may still run."""
        return any(state is not RankState.GONE for state in self.states.values())


def find_job(job: str, environ: Mapping[str, str]) -> Path:
    """The folder of ``job``, which is an id or a folder; that of the newest job if it is empty.

    Raises:
        NothingFoundError: there is none.
        PermissionError: other users could have written there.
    """
    if job and Path(job).is_dir():
        path = Path(job).resolve()
        return path if _is_of_a_job(path) else _newest(path, is_chosen=False)
    chosen = environ.get("HOROVOD_RECORDER_DIR", "")
    base = folder_of(chosen)
    if not base:
        cause = f"HOROVOD_RECORDER_DIR={chosen}" if chosen else "no folder for temporary files"
        raise NothingFoundError(f"{cause}: no recordings are written")
    if not job:
        return _newest(Path(base), is_chosen=bool(chosen))
    path = Path(base) / job_name({JOB_ID: job}, 0)
    if not _is_of_a_job(path):
        _refuse_foreign(path)
        if os.sep in job:
            raise NothingFoundError(f"{job}: there is no such folder")
        known = ", ".join(folder.name for folder in _jobs(Path(base))[-5:]) or "none"
        raise NothingFoundError(f"no recordings of job {job} in {base}; jobs there: {known}")
    return path


def _newest(base: Path, *, is_chosen: bool) -> Path:
    """``is_chosen``: the user has chosen ``base``, where other users may have folders, too."""
    jobs = _jobs(base)
    if not jobs:
        if not is_chosen:
            _refuse_foreign(base)
        raise NothingFoundError(
            f"no recordings in {base}; set HOROVOD_RECORDER_DIR as for the job, or name a folder"
        )
    return jobs[-1]


def _jobs(base: Path) -> list[Path]:
    """Marked folders with recordings or presence files, the newest last."""
    try:
        folders = [path for path in base.iterdir() if _is_of_a_job(path, is_named=False)]
        return sorted(folders, key=lambda path: path.stat().st_mtime_ns)
    except OSError:
        return []


def _is_of_a_job(path: Path, *, is_named: bool = True) -> bool:
    """Whether the folder is this user's and has recordings or presence files.

    A folder that the user has named may be a copy under another name; other ones must be marked.
    """
    try:
        with OwnFolder(path) as folder:
            has_files = any(name.endswith((".hvdrec", ".running")) for name in folder.names())
            return has_files and (is_named or is_marked(folder))
    except OSError:
        return False


def _refuse_foreign(path: Path) -> None:
    """Raise PermissionError if the folder belongs to another user."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        OwnFolder(path).close()


def gather(folder: Path, *, asks: bool = True) -> Evidence:
    """All evidence in a job's folder; if it ``asks`` running ranks, that takes 5 s at most.

    Raises:
        NothingFoundError: no rank has left a recording or answers.
        PermissionError: other users could have written there.
        OSError: the folder cannot be read.
    """
    with OwnFolder(folder) as own:
        presences = find_presences(own)
        states = [state_of(presence) for presence in presences]
        awaited = [p for p, state in zip(presences, states, strict=True) if state in _AWAITED]
        # A folder without a mark is a copy, and its presence files are not its own.
        if asks and awaited and is_marked(own):
            check_private(folder)
            _ask(own, awaited)
        recordings, problems = _read(folder)
        outcome = read_outcome(own)
    living = [p for p, state in zip(presences, states, strict=True) if state is not RankState.GONE]
    running = {tuple(presence.world.get("ranks", ())) for presence in living}
    # A running world is examined, even if another one was written later.
    worlds = sorted(collect_worlds(recordings), key=lambda world: world.names in running)
    if not worlds:
        names = ", ".join(presence.name for presence in presences)
        raise NothingFoundError(
            f"no rank of {folder.name} has left a recording"
            + (f", and none of these answers: {names}" if names else "")
            + "".join(f"; {problem}" for problem in problems[:_MOST_PROBLEMS])
        )
    now = _states(worlds[-1], presences)
    end = None if living else _outcome_of(worlds[-1], outcome)
    return Evidence(folder, tuple(worlds), now, tuple(problems), end)


def _outcome_of(world: RecordedWorld, outcome: Outcome | None) -> Outcome | None:
    """The outcome, unless it is that of an earlier job with the same id."""
    is_of_it = outcome is not None and outcome.epoch_s >= world.written_epoch_ns / 1e9 - 1
    return outcome if is_of_it else None


def _ask(folder: OwnFolder, awaited: Sequence[Presence]) -> None:
    """Ask these ranks for recordings and wait until they have answered or ended."""
    nonce = f"{os.getpid()}-{time.time_ns():x}"
    request_recordings(folder, awaited, nonce)
    left = list(awaited)
    deadline = time.monotonic() + _ANSWER_S
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
        except FileNotFoundError:  # it has been replaced
            continue
        except (OSError, RecordingError) as error:
            problems.append(str(error))
    return recordings, problems


def _states(world: RecordedWorld, presences: Sequence[Presence]) -> dict[int, RankState]:
    """The current states of the world's ranks."""
    return {p.rank: state_of(p) for p in presences if p.path.exists() and _is_of(world, p)}


def _is_of(world: RecordedWorld, presence: Presence) -> bool:
    found = presence.world
    return (str(found.get("world")), tuple(found.get("ranks", ()))) == (world.number, world.names)
