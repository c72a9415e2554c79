import copy
import pickle

import pytest

from horovod import errors


@pytest.mark.parametrize("code", list(errors.ErrorCode))
def test_every_engine_code_has_an_exception(code):
    error = errors.from_code(code, "text")
    assert str(error) == "text"
    wanted = (
        ValueError if code is errors.ErrorCode.INVALID_ARGUMENT else errors.HorovodInternalError
    )
    assert isinstance(error, wanted)


def test_an_unknown_code_is_an_internal_error():
    assert type(errors.from_code(99, "")) is errors.HorovodInternalError


def test_scripts_catch_what_they_expect():
    assert issubclass(errors.HorovodInternalError, RuntimeError)
    assert issubclass(errors.InitError, ValueError)
    assert issubclass(errors.SettingError, ValueError)


@pytest.mark.parametrize("code", list(errors.ErrorCode)[1:])
def test_what_the_engine_knows_of_an_error_is_in_attributes(code):
    error = errors.from_code(code, "text", ranks=[3, 1], host="there", operation="allreduce 'x'")
    for same in (error, copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(same) is type(error)
        assert str(same) == "text"
        assert (same.ranks, same.host, same.operation) == ((1, 3), "there", "allreduce 'x'")


def test_an_error_that_a_script_raises_is_about_nothing():
    for kind in (errors.HorovodInternalError, errors.InitError, errors.PeerLostError):
        error = kind("text")
        assert (error.ranks, error.host, error.operation) == ((), "", "")
        assert kind().args == ()
