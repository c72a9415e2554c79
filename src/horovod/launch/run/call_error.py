"""The errors of ``horovod.run``: the first failure, and its text."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Any, BinaryIO

from horovod.launch.calls.call import Failure, read_result
from horovod.launch.model.job_plan import JobOutcome
from horovod.launch.workers.processes import describe_exit

_BEGINNING = "Horovod detected that one or more processes exited with an error; "
# Failures of at most so many other ranks are mentioned, in one line each.
_MOST_OTHERS = 8
_LINE_LENGTH = 300
# The launcher's options in its advice, and the parameters of ``horovod.run``.
_PARAMETERS = {
    "--min-np": "min_num_proc",
    "--elastic-timeout": "HOROVOD_ELASTIC_TIMEOUT",
    "--slots-per-host": "slots",
    "--start-timeout": "start_timeout",
    "--network-interfaces": "network_interfaces",
}


def reason_of(error: RuntimeError) -> str:
    """The text of a ``job_error`` for commands that have no processes of the user's."""
    return str(error).removeprefix(_BEGINNING)


def job_error(outcome: JobOutcome, failures: Sequence[Failure | None]) -> RuntimeError:
    """The error for a job without all results; ``failures`` are the ranks' reports, by rank.

    If the rank whose end the launcher saw first has left no report, it is the cause: the others
    have mostly lost it. Otherwise the rank that failed first is the cause.
    """
    if outcome.has_lost_host:
        return RuntimeError(_why_ended(outcome))
    reported = {rank: failure for rank, failure in enumerate(failures) if failure is not None}
    slot = outcome.rank_info
    if slot is not None and slot.rank not in reported:
        died = f"rank {slot.rank} on {slot.hostname} (pid {outcome.pid}) "
        died += describe_exit(outcome.exit_code)
        missing = "" if outcome.exit_code else " and left no result"
        return RuntimeError(_text(died + missing, "", slot.rank, outcome.exit_code, reported))
    if reported:
        rank = min(reported, key=lambda rank: reported[rank].time_ns)
        first = reported.pop(rank)
        what = f"rank {rank} {first.what}"
        error = RuntimeError(_text(what, first.traceback, rank, first.exit_code, reported))
        error.__cause__ = first.exception()
        return error
    return RuntimeError(f"{_BEGINNING}{_why_ended(outcome)}")


def elastic_error(outcome: JobOutcome, failure: Failure | None) -> RuntimeError:
    """The error for an elastic job; ``failure`` is the report of the failed worker."""
    text = _why_ended(outcome)
    if failure is None or outcome.rank_info is None:
        return RuntimeError(text)
    rank = f"rank {outcome.rank_info.rank} on {outcome.rank_info.hostname}"
    error = RuntimeError(f"{text}\n{rank} {failure.what}\n\n{failure.traceback.rstrip()}")
    error.__cause__ = failure.exception()
    return error


def result_of(rank: int, answer: BinaryIO) -> Any:
    """The result in a rank's answer. Raises RuntimeError if this process cannot unpickle it."""
    try:
        return read_result(answer)
    except Exception as error:
        raise RuntimeError(
            f"{_BEGINNING}no process failed, but the result of rank {rank} cannot be unpickled by "
            f"the caller: {type(error).__name__}: {error}"
        ) from error


def _text(what: str, trace: str, rank: int, exit_code: int, others: dict[int, Failure]) -> str:
    parts = [f"{_BEGINNING}the others have been ended. The first: {what}"]
    if trace:
        parts.append(f"\n{trace.rstrip()}\n")
    parts += [f"rank {r} {_first_line(f.what)}" for r, f in [*others.items()][:_MOST_OTHERS]]
    parts += [f"Process name: {rank}", f"Exit code: {exit_code}"]
    return "\n".join(parts)


def _first_line(text: str) -> str:
    return text.partition("\n")[0][:_LINE_LENGTH]


def _why_ended(outcome: JobOutcome) -> str:
    if outcome.text:
        text = outcome.text.strip().removeprefix("horovodrun: ")
        for option, parameter in _PARAMETERS.items():
            text = text.replace(option, parameter)
        return text
    try:
        name = signal.Signals(outcome.status - 128).name
    except ValueError:
        return f"the launcher exited with status {outcome.status}"
    return f"the launcher got {name} and has ended them"
