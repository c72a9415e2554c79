"""What travels between ``horovod.run`` and its workers, and how a failed job reads."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

import cloudpickle
import pytest

from horovod.launch.calls import call
from horovod.launch.calls.by_value import dumps
from horovod.launch.calls.call import Call, CallFiles, Failure, failure_of, memory_file
from horovod.launch.model.hosts import HostSlots, assign_ranks
from horovod.launch.model.job_plan import JobOutcome
from horovod.launch.run.call_error import elastic_error, job_error, result_of

SLOTS = assign_ranks((HostSlots("here", 3),), 3)


@pytest.fixture(params=["memfd", "file"])
def file(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[BinaryIO]:
    if request.param == "file":
        monkeypatch.delattr(os, "memfd_create")
    with call.memory_file() as opened:
        yield opened


def test_a_call_is_read_by_many(file: BinaryIO) -> None:
    sent = Call(max, (3, 4), {"key": abs}, ("x.py", "-v"), ("/a", "/b"))
    call.write_call(sent, file)
    seen: list[object] = []
    for _ in range(2):
        received = call.read_call(file.fileno(), lambda argv, path: seen.append((argv, path)))
        assert received == sent
    assert seen == [(("x.py", "-v"), ("/a", "/b"))] * 2


class Unwilling:
    def __reduce__(self) -> str:
        raise ZeroDivisionError("never")


def uses(value: object) -> Any:
    def train(*_: object, **__: object) -> object:
        return value

    return train


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (
            Call(uses(threading.Lock()), (), {}),
            r"the function 'uses.*train' cannot .*_thread\.lock",
        ),
        (Call(max, (1, threading.Lock()), {}), r"args\[1\], of type lock, cannot .*_thread\.lock"),
        (Call(max, (), {"a": 1, "b": Unwilling()}), r"kwargs\['b'\], of type Unwilling, .*: never"),
    ],
)
def test_what_cannot_be_pickled_is_named(file: BinaryIO, sent: Call, text: str) -> None:
    with pytest.raises(TypeError, match=f"{text}.*make inside of the function what cannot travel"):
        call.write_call(sent, file)


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="files are sealed on Linux only")
def test_a_call_is_changed_by_nobody() -> None:
    with call.memory_file() as file:
        call.write_call(Call(max, (3, 4), {}), file)
        with pytest.raises(PermissionError):
            os.pwrite(file.fileno(), b"x", 0)


def test_the_file_is_not_inherited(file: BinaryIO) -> None:
    assert not os.get_inheritable(file.fileno())


def test_an_answer_counts_when_it_is_complete(file: BinaryIO) -> None:
    fd = file.fileno()
    assert not call.is_result(fd)
    assert call.read_failure(file) is None
    with pytest.raises(TypeError, match="pickle"):
        call.write_result(fd, [bytes(100_000), threading.Lock()])
    assert not call.is_result(fd)
    call.write_failure(fd, Failure("raised X", "", 1, 5))
    assert not call.is_result(fd)
    assert call.read_failure(file) == Failure("raised X", "", 1, 5)
    call.write_result(fd, {"x": [1, 2]})
    assert call.is_result(fd)
    assert call.read_failure(file) is None
    assert call.read_result(file) == {"x": [1, 2]}


def test_each_worker_gets_its_own_answer_file() -> None:
    assert CallFiles(10, (11, 12)).for_worker(1) == {call.CALL_FD: 10, call.ANSWER_FD: 12}


def raised(error: BaseException) -> BaseException:
    def deep() -> None:
        raise error

    try:
        deep()
    except BaseException as caught:
        return caught
    raise AssertionError


def test_an_exception_with_its_traceback() -> None:
    failure = failure_of(raised(ValueError("x", 1)), "raised", 3)
    assert "in deep\n" in failure.traceback
    assert "in raised\n" not in failure.traceback
    assert failure.exit_code == 3
    back = failure.exception()
    assert isinstance(back, ValueError)
    assert back.args == ("x", 1)


def test_an_exception_that_does_not_survive() -> None:
    assert failure_of(ValueError(threading.Lock()), "", 1).exception() is None
    error = json.JSONDecodeError("expected", "{", 1)
    error.args = ("its constructor wants three",)
    assert failure_of(error, "", 1).exception() is not None
    assert Failure("", "", 1, 0, cloudpickle.dumps("no exception")).exception() is None


@pytest.fixture
def hidden_module(tmp_path: Path) -> Iterator[ModuleType]:
    """A module that was loaded from beside the search path."""
    path = tmp_path / "hidden_plugin.py"
    path.write_text("def double(x):\n    return helper(x)\n\ndef helper(x):\n    return 2 * x\n")
    spec = importlib.util.spec_from_file_location("hidden_plugin", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["hidden_plugin"] = module
    spec.loader.exec_module(module)
    yield module
    sys.modules.pop("hidden_plugin", None)


def test_a_module_that_others_cannot_import_goes_by_value(hidden_module: ModuleType) -> None:
    data = dumps(hidden_module.double)
    del sys.modules["hidden_plugin"]
    assert cloudpickle.loads(data)(4) == 8
    assert "hidden_plugin" not in cloudpickle.list_registry_pickle_by_value()


def test_what_the_user_registered_stays_registered(hidden_module: ModuleType) -> None:
    cloudpickle.register_pickle_by_value(hidden_module)
    try:
        dumps(hidden_module.double)
        assert "hidden_plugin" in cloudpickle.list_registry_pickle_by_value()
    finally:
        cloudpickle.unregister_pickle_by_value(hidden_module)


@pytest.mark.parametrize("value", [json.JSONDecoder, os.path.join, call.write_call, pytest.Item])
def test_a_module_that_others_can_import_goes_by_name(value: Any) -> None:
    assert len(dumps(value)) < 200


def test_the_first_that_told_of_a_failure_is_named() -> None:
    later = Failure("raised PeerLostError: rank 1 left", "trace 0", 1, 20)
    first = Failure("raised KeyError: 'x'", "Traceback\nKeyError: 'x'\n", 4, 10)
    text = str(job_error(JobOutcome(1, "", SLOTS[0], 77, 1), [later, first, None]))
    assert text.startswith("Horovod detected that one or more processes exited with an error; ")
    assert "The first: rank 1 raised KeyError: 'x'\n\nTraceback\nKeyError: 'x'\n\n" in text
    assert "rank 0 raised PeerLostError: rank 1 left\n" in text
    assert text.endswith("\nProcess name: 1\nExit code: 4")


def test_a_rank_that_died_is_named_before_those_that_lost_it() -> None:
    told = Failure("raised PeerLostError: rank 1 died\nmore", "trace", 1, 20)
    error = job_error(JobOutcome(1, "", SLOTS[1], 77, -9), [told, None, None])
    text = str(error)
    assert "The first: rank 1 on here (pid 77) was ended by SIGKILL\n" in text
    assert "rank 0 raised PeerLostError: rank 1 died\nProcess name: 1\nExit code: -9" in text


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        (JobOutcome(1, "", SLOTS[2], 5, 0), r"rank 2 on here \(pid 5\) exited with code 0 and le"),
        (JobOutcome(143), "the launcher got SIGTERM and has ended them"),
        (JobOutcome(127, "horovodrun: command not found: x\n"), "command not found: x$"),
        (JobOutcome(1), "the launcher exited with status 1"),
    ],
)
def test_ends_without_a_word(outcome: JobOutcome, text: str) -> None:
    with pytest.raises(RuntimeError, match=text):
        raise job_error(outcome, [None, None, None])


def test_why_an_elastic_job_ended() -> None:
    cause = cloudpickle.dumps(KeyError("x"))
    failure = Failure("raised KeyError: 'x'", "Traceback\nKeyError: 'x'\n", 1, 10, cause)
    advice = "horovodrun: too few; see --min-np and --elastic-timeout\nProcess name: 1\n"
    error = elastic_error(JobOutcome(1, advice, SLOTS[1], worker=7), failure)
    assert str(error) == (
        "too few; see min_num_proc and HOROVOD_ELASTIC_TIMEOUT\nProcess name: 1\n"
        "rank 1 on here raised KeyError: 'x'\n\nTraceback\nKeyError: 'x'"
    )
    assert isinstance(error.__cause__, KeyError)
    assert "the launcher got SIGTERM" in str(elastic_error(JobOutcome(143), None))


def test_a_result_that_cannot_be_read() -> None:
    with memory_file() as answer:
        answer.write(b"Rcno_module_x\nname\n.")  # a name in a module that is not here
        with pytest.raises(RuntimeError) as raised:
            result_of(4, answer)
    text = str(raised.value)
    assert "the result of rank 4 cannot be unpickled by the caller: ModuleNotFoundError: No" in text
    assert isinstance(raised.value.__cause__, ImportError)
