"""Configuration files: every key, and what is refused by which path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from horovod.core.base.setting import Setting
from horovod.errors import SettingError
from horovod.launch.cli.config_file import read_config_file
from horovod.launch.cli.options import file_form
from horovod.settings import SETTINGS, environment_of

RUNNING = Path(__file__).parents[3] / "docs" / "running.md"
WITH_KEY = [pytest.param(s, id=s.name) for s in SETTINGS if s.flag and s.flag.key]


def read(tmp_path: Path, text: str) -> dict[str, Any]:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    return read_config_file(file).settings


@pytest.mark.parametrize("setting", WITH_KEY)
def test_every_key_gives_its_setting_a_value(setting: Setting, tmp_path: Path) -> None:
    assert setting.flag
    section, _, name = setting.flag.key.partition(".")
    if setting.flag.opposite:
        for word in ("true", "false", "yes", "no"):
            expected = (word in ("true", "yes")) != setting.flag.is_key_opposite
            assert read(tmp_path, f"{section}:\n  {name}: {word}") == {setting.name: expected}
        return
    number = int(min(max(7, setting.minimum), setting.maximum))
    word = setting.choices[-1].upper() if setting.choices else str(number)
    chosen = read(tmp_path, f"{section}: {{{name}: {word}}}")
    assert chosen == {setting.name: setting.parse(word, setting.flag.factor)}


def test_what_the_help_shows_is_a_file_that_changes_nothing(tmp_path: Path) -> None:
    defaults = {
        s.name: s.default for s in SETTINGS if s.flag and s.flag.key and s.default not in ((), "")
    }
    assert read(tmp_path, file_form()) == defaults


def test_the_documents_have_all_keys_with_their_defaults(tmp_path: Path) -> None:
    lines = RUNNING.read_text().split("```yaml\ncontroller: gloo\n")[1].split("```")[0]
    assert yaml.safe_load(lines) == {
        name: keys for name, keys in yaml.safe_load(file_form()).items() if name != "controller"
    }


@pytest.mark.parametrize("text", ["", "# nothing\n", "params:\n", "params: {cycle_time_ms: null}"])
def test_nothing_gives_nothing(text: str, tmp_path: Path) -> None:
    assert read(tmp_path, text) == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("params: {fusion_threshold_mb: '32'}", {"HOROVOD_FUSION_THRESHOLD": "33554432"}),
        ("params: {cycle_time_ms: 1e-2}", {"HOROVOD_CYCLE_TIME": "0.01"}),
        ("library_options:\n  thread_affinity: 0,2", {"HOROVOD_THREAD_AFFINITY": "0,2"}),
        ("library_options: {thread_affinity: '1,0'}", {"HOROVOD_THREAD_AFFINITY": "1,0"}),
        (
            "library_options: {link_protection: Encrypted}",
            {"HOROVOD_LINK_PROTECTION": "encrypted"},
        ),
        ("controller: Gloo\nlogging: {level: INFO}", {"HOROVOD_LOG_LEVEL": "info"}),
    ],
)
def test_values(text: str, expected: dict[str, str], tmp_path: Path) -> None:
    assert environment_of(read(tmp_path, text)) == expected


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ("a: [", "line 1: not YAML: "),
        ("params: {}\n---\nparams: {}", "line 2: not YAML: but found another document"),
        ("\0", "not YAML: unacceptable character"),
        ("[params]", "line 1: the file: expected a mapping with controller, params, "),
        ("text", "line 1: the file: expected a mapping"),
        ("params: 3", "line 1: params: expected a mapping with fusion_threshold_mb, cycle_time_ms"),
        ("params: {}\nparams: {}", "line 2: params: is there twice"),
        ("params: {cycle_time_ms: 1, cycle_time_ms: 2}", "params.cycle_time_ms: is there twice"),
        ("params: {cache_capacity: -1}", "params.cache_capacity=-1: must be at least 0"),
        ("params: {cache_capacity: 1.5}", "params.cache_capacity=1.5: expected an integer"),
        (
            "params: {cache_capacity: [1]}",
            "params.cache_capacity: expected one value, found a list",
        ),
        ("params: {cache_capacity: true}", "params.cache_capacity=true: expected an integer"),
        (
            "stall_check: {enabled: maybe}",
            "stall_check.enabled=maybe: expected 1 or 0, or true or false",
        ),
        ("logging: {level: loud}", "logging.level=loud: expected one of trace, debug"),
        ("controller: smpi", "line 1: controller=smpi: expected gloo or mpi"),
        ("controller: {}", "controller: expected gloo or mpi"),
    ],
)
def test_what_is_refused(text: str, refusal: str, tmp_path: Path) -> None:
    with pytest.raises(SettingError) as refused:
        read(tmp_path, text)
    assert str(refused.value).startswith(f"{tmp_path}/settings.yaml, ")
    assert refusal in str(refused.value)


@pytest.mark.parametrize(
    ("text", "notice"),
    [
        (
            "\nprofiling: {enabled: true}",
            "line 2: profiling: there is no such key, it is ignored; known are controller, params,",
        ),
        (
            "params:\n  cycle_time: 1",
            "line 2: params.cycle_time: there is no such key, it is ignored; did you mean "
            "cycle_time_ms?",
        ),
        (
            "cycle_time_ms: 1",
            "line 1: cycle_time_ms: there is no such key, it is ignored; did you mean "
            "params.cycle_time_ms?",
        ),
        (
            "enabled: true",
            "line 1: enabled: there is no such key, it is ignored; did you mean "
            "stall_check.enabled or autotune.enabled?",
        ),
        ("params: {[a]: 1}", "line 1: params.?: there is no such key"),
    ],
)
def test_unknown_keys_are_ignored_with_a_notice(text: str, notice: str, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(f"{text}\ntimeline: {{filename: here}}")
    choices = read_config_file(file)
    assert choices.settings == {"timeline": "here"}
    (found,) = choices.notices
    assert found.startswith(f"{file}, {notice}")


@pytest.mark.parametrize("word", ["true", "false"])
def test_an_older_key_means_the_setting_itself(word: str, tmp_path: Path) -> None:
    chosen = read(tmp_path, f"logging: {{hide_timestamp: {word}}}")
    assert chosen == {"log_hide_time": word == "true"}


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "settings.yaml").write_bytes(b"params: \xff\xff")
    with pytest.raises(SettingError, match="not YAML"):
        read_config_file(tmp_path / "settings.yaml")


@pytest.mark.parametrize(
    ("word", "controller"), [("mpi", "mpi"), ("MPI", "mpi"), ("Gloo", "gloo"), ("null", None)]
)
def test_controllers(word: str, controller: str | None, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(f"controller: {word}\nparams: {{cache_capacity: 3}}")
    choices = read_config_file(file)
    assert choices.controller == controller
    assert choices.settings == {"cache_capacity": 3}


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=rf"^--config-file {tmp_path}/none.yaml: No such file"
    ):
        read_config_file(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[" * 100_000, "nested too deeply"),
        ("{a: " * 100_000, "nested too deeply"),
        ("- " * 100_000, "nested too deeply"),
        ("&a [*a]", "expected a mapping"),
        ("params: &a {cycle_time_ms: *a}", "expected one value"),
        ("#" * (1 << 20) + "\n", "larger than"),
    ],
)
def test_a_file_that_would_take_long_is_refused_by_name(
    tmp_path: Path, text: str, why: str
) -> None:
    with pytest.raises(SettingError, match=rf"^{tmp_path}/settings.yaml, .*({why})") as caught:
        read(tmp_path, text)
    assert len(str(caught.value).splitlines()) == 1
