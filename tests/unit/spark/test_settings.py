"""Parameters of ``run`` and ``run_elastic``, and pairs for Spark's configuration."""

from __future__ import annotations

import io

import pytest

from horovod.spark import conf, settings
from horovod.spark.settings import descriptors_of


def test_the_start_timeout_comes_from_the_call_or_the_environment() -> None:
    there = {"HOROVOD_SPARK_START_TIMEOUT": "7.5"}
    assert settings.start_timeout_s(3, there) == 3
    assert settings.start_timeout_s(None, there) == 7.5
    assert settings.start_timeout_s(None, {}) == 600


@pytest.mark.parametrize("text", ["soon", "-1", "nan"])
def test_a_start_timeout_that_is_no_time(text: str) -> None:
    with pytest.raises(ValueError, match="HOROVOD_SPARK_START_TIMEOUT"):
        settings.start_timeout_s(None, {"HOROVOD_SPARK_START_TIMEOUT": text})


def test_the_elastic_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_ELASTIC_TIMEOUT", "11")
    assert settings.elastic_timeout_s(2) == 2
    assert settings.elastic_timeout_s(None) == 11
    with pytest.raises(ValueError, match="elastic_timeout=0"):
        settings.elastic_timeout_s(0)


def test_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_THE_DRIVER", "1")
    assert settings.environment(None)["OF_THE_DRIVER"] == "1"
    assert settings.environment({"A": 1}) == {"A": "1"}
    with pytest.raises(TypeError, match="env argument must be a dict"):
        settings.environment("A=1")


def test_mpi_is_refused() -> None:
    settings.refuse_mpi(None, None)
    with pytest.raises(ValueError, match="extra_mpi_args='-x A'"):
        settings.refuse_mpi(None, "-x A")


def test_every_pair_for_spark_is_of_a_setting_with_a_default() -> None:
    names = [name for name in conf.__all__ if name != "SPARK_CONF_DEFAULT_VALUES"]
    pairs = [getattr(conf, name) for name in names]
    assert {key for key, _ in pairs} == set(conf.SPARK_CONF_DEFAULT_VALUES)
    assert all(isinstance(value, str) for _, value in pairs)


def test_streams_get_whole_lines_of_any_bytes() -> None:
    out = io.StringIO()
    with (
        descriptors_of(out, None) as (writer, missing),
        open(writer or 0, "wb", closefd=False) as f,
    ):
        f.write("[0]<stdout>:grün\n".encode() + b"\xff\n")
        assert missing is None
    assert out.getvalue() == "[0]<stdout>:grün\n\\xff\n"
