import dataclasses
from pathlib import Path

import pytest

from horovod.errors import SettingError
from horovod.settings import Settings

README = Path(__file__).parents[2] / "README.md"


def test_defaults_need_no_environment():
    assert Settings.from_env({}) == Settings()


def test_values_are_read_with_their_type():
    settings = Settings.from_env(
        {
            "HOROVOD_FUSION_THRESHOLD": "0",
            "HOROVOD_CYCLE_TIME": "2.5",
            "HOROVOD_STALL_CHECK_DISABLE": "1",
            "HOROVOD_LOG_LEVEL": "DEBUG",
            "HOROVOD_SOMETHING_ELSE": "ignored",
        }
    )
    assert settings.fusion_threshold_bytes == 0
    assert settings.cycle_time_ms == 2.5
    assert settings.stall_check_disable is True
    assert settings.log_level == "debug"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("HOROVOD_FUSION_THRESHOLD", "64MB", "an integer"),
        ("HOROVOD_FUSION_THRESHOLD", "-1", "at least 0"),
        ("HOROVOD_CYCLE_TIME", "fast", "a number"),
        ("HOROVOD_CYCLE_TIME", "nan", "at least 0"),
        ("HOROVOD_CYCLE_TIME", "inf", "at least 0"),
        ("HOROVOD_START_TIMEOUT", "0", "at least 0.001"),
        ("HOROVOD_STALL_CHECK_DISABLE", "maybe", "expected 1 or 0"),
        ("HOROVOD_LOG_LEVEL", "loud", "expected one of trace, debug"),
    ],
)
def test_a_bad_value_is_refused_by_name(name, value, expected):
    with pytest.raises(SettingError) as caught:
        Settings.from_env({name: value})
    assert f"{name}={value!r}" in str(caught.value)
    assert expected in str(caught.value)


def test_the_readme_lists_every_setting_with_its_default():
    rows = dict(
        [cell.strip().strip("`") for cell in line.split("|")[1:3]]
        for line in README.read_text().splitlines()
        if line.startswith("| `HOROVOD_")
    )
    for field in dataclasses.fields(Settings):
        default = field.default
        shown = str(int(default) if isinstance(default, bool | float) else default)
        assert rows.pop(field.metadata["env"]) == shown
    assert rows == {}
