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
