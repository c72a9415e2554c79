import re
from pathlib import Path

import pytest

from horovod.core.base.setting import Setting
from horovod.errors import SettingError
from horovod.settings import (
    SETTINGS,
    Settings,
    environment_of,
    file_sections,
    markdown_table,
    names_given,
    notices,
)

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def test_defaults_need_no_environment():
    assert Settings.from_env({}) == Settings()


def test_values_are_read_with_their_type():
    settings = Settings.from_env(
        {
            "HOROVOD_FUSION_THRESHOLD": "0",
            "HOROVOD_CYCLE_TIME": "2.5",
            "HOROVOD_STALL_CHECK_DISABLE": "1",
            "HOROVOD_LOG_LEVEL": "DEBUG",
            "HOROVOD_THREAD_AFFINITY": "3,1",
            "HOROVOD_AUTOTUNE_LINK_COMPRESSION": "int8, FP8, mxFP8",
            "HOROVOD_SOMETHING_ELSE": "ignored",
        }
    )
    assert settings.fusion_threshold_bytes == 0
    assert settings.cycle_time_ms == 2.5
    assert settings.stall_check_disable is True
    assert settings.log_level == "debug"
    assert settings.thread_affinity == (3, 1)
    assert settings.autotune_link_compression == ("int8", "fp8", "mxfp8")


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("HOROVOD_FUSION_THRESHOLD", "64MB", "an integer"),
        ("HOROVOD_FUSION_THRESHOLD", "-1", "at least 0"),
        ("HOROVOD_CYCLE_TIME", "fast", "a number"),
        ("HOROVOD_CYCLE_TIME", "nan", "at least 0"),
        ("HOROVOD_CYCLE_TIME", "inf", "at least 0"),
        ("HOROVOD_START_TIMEOUT", "0", "at least 0.001"),
        ("HOROVOD_STALL_CHECK_DISABLE", "maybe", "expected 1 or 0, or true or false"),
        ("HOROVOD_LOG_LEVEL", "loud", "expected one of trace, debug"),
        ("HOROVOD_THREAD_AFFINITY", "0,x", "an integer"),
        ("HOROVOD_THREAD_AFFINITY", "-1", "at least 0"),
        ("HOROVOD_AUTOTUNE_LINK_COMPRESSION", "int8,int9", "fp8, mxfp8, int4, with commas"),
        ("HOROVOD_AUTOTUNE_LINK_COMPRESSION", "none", "some of int8, fp8, mxfp8, int4"),
    ],
)
def test_a_bad_value_is_refused_by_name(name, value, expected):
    with pytest.raises(SettingError) as caught:
        Settings.from_env({name: value})
    assert f"{name}={value!r}" in str(caught.value)
    assert expected in str(caught.value)


def test_a_value_left_over_from_the_original_is_ignored_with_a_notice():
    environ = {"HOROVOD_CPU_OPERATIONS": "CCL", "HOROVOD_CACHE_CAPACITY": "3"}
    assert Settings.from_env(environ) == Settings(cache_capacity=3)
    assert names_given(environ) == {"cache_capacity"}
    (notice,) = notices(environ)
    assert notice.startswith("HOROVOD_CPU_OPERATIONS=CCL: ")
    assert "it is ignored" in notice


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HOROVOD_GPU_OPERATIONS", "MPI"),
        ("HOROVOD_GPU_OPERATIONS", "Gloo"),
        ("HOROVOD_GPU_ALLREDUCE", "DDL"),
        ("HOROVOD_GPU_ALLGATHER", "mpi"),
    ],
)
def test_libraries_of_the_original_for_gpus_mean_host_memory_with_a_notice(name, value):
    environ = {name: value}
    changed = {name.removeprefix("HOROVOD_").lower(): "host"}
    assert Settings.from_env(environ).changed() == changed
    (notice,) = notices(environ)
    assert notice.startswith(f"{name}={value}: ")
    assert "host is taken instead" in notice


def test_nccl_in_the_spelling_of_the_original_is_a_wish_and_in_lower_case_a_condition():
    for name in ("HOROVOD_GPU_OPERATIONS", "HOROVOD_GPU_BROADCAST"):
        key = name.removeprefix("HOROVOD_").lower()
        assert getattr(Settings.from_env({name: "NCCL"}), key) == "auto"
        assert getattr(Settings.from_env({name: "nccl"}), key) == "nccl"
        assert notices({name: "NCCL"}) == notices({name: "nccl"}) == []


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("HOROVOD_CACHE_CAPACTY", "HOROVOD_CACHE_CAPACITY"),
        ("HOROVOD_FUSION_TRESHOLD", "HOROVOD_FUSION_THRESHOLD"),
        ("HOROVOD_STALL_CHECK_TIME_SECOND", "HOROVOD_STALL_CHECK_TIME_SECONDS"),
        ("HOROVOD_TIMELIN", "HOROVOD_TIMELINE"),
    ],
)
def test_a_mistyped_name_has_a_notice(name, meant):
    (notice,) = notices({name: "1"})
    assert notice == f"{name}: no such setting, it is ignored; did you mean {meant}?"


def test_no_documented_name_and_none_of_others_is_taken_for_a_mistyped_one():
    docs = Path(__file__).parents[2] / "docs"
    text = "".join(page.read_text() for page in docs.rglob("*.md"))
    names = {*re.findall(r"\bHOROVOD_[A-Z_]*[A-Z]\b", text), "HOROVOD_HOME", "OTHER_TIMELIN"}
    assert len(names) > 60
    assert notices(dict.fromkeys(names, "")) == []


def test_the_original_never_had_the_name_of_debug_mode():
    assert not Settings.from_env({"HOROVOD_DEBUG": "1"}).debug
    assert Settings.from_env({"HOROVOD_DEBUG_COLLECTIVES": "1"}).debug


def test_the_page_has_the_table_that_python_m_horovod_settings_prints():
    assert markdown_table() in PAGE.read_text()


@pytest.mark.parametrize("setting", [pytest.param(s, id=s.name) for s in SETTINGS])
def test_every_setting_reads_back_what_it_writes(setting: Setting):
    factor = setting.flag.factor if setting.flag else 1
    assert setting.parse(setting.text(setting.default)) == setting.default
    assert setting.parse(setting.text(setting.default, factor), factor) == setting.default
    assert type(setting.parse(setting.text(setting.default))) is type(setting.default)


def test_chosen_values_reach_another_process():
    chosen = {
        "fusion_threshold_bytes": 0,
        "cycle_time_ms": 0.1,
        "start_timeout_s": 1234567.0,
        "stall_check_disable": True,
        "thread_affinity": (1, 0),
        "log_level": "error",
    }
    environment = environment_of(chosen)
    assert environment["HOROVOD_START_TIMEOUT"] == "1234567"
    assert Settings.from_env(environment) == Settings(**chosen)


def test_names_belong_to_one_setting_each():
    flags = [setting.flag for setting in SETTINGS if setting.flag]
    names = [
        name for flag in flags for name in (flag.name, flag.opposite, *flag.deprecated) if name
    ]
    keys = [f"{section}.{name}" for section, names in file_sections().items() for name in names]
    for used in (names, keys, [setting.env for setting in SETTINGS]):
        assert len(set(used)) == len(used)
    assert {flag.key for flag in flags if flag.key} == set(keys)
