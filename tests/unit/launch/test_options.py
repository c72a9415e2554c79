"""The options of ``horovodrun``: where they end, each setting's, and the refused ones."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import pytest

from horovod.core.base.setting import Setting
from horovod.errors import SettingError
from horovod.launch.cli.options import add_options, chosen_settings, split_command
from horovod.settings import SETTINGS, environment_of

WITH_FLAG = [pytest.param(s, id=s.name) for s in SETTINGS if s.flag]
RUNNING = Path(__file__).parents[3] / "docs" / "running.md"


@pytest.fixture
def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="horovodrun")
    add_options(parser)
    return parser


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("-np 2 python x.py", 2),
        ("-np 2 --gloo -cb python x.py -np 3 --gloo", 4),
        ("--num-proc=2 python --check x", 1),
        ("--num-proc 2 python", 2),
        ("--num-p 2 python", 2),
        ("-n 2 python", 2),
        ("--hosts localhost:2 -np 1 python", 4),
        ("-Hlocalhost:2 -np 1 python", 3),
        ("--start 5 -np 1 python", 4),
        ("-H localhost:2 -np 1 python -H x", 4),
        ("-hostfile hosts -np 1 python", 4),
        ("--output-filename logs -np 1 python", 4),
        ("--hostf x --out logs python", 4),
        ("--stall-check python", 1),
        ("--stall-check-w 5 python", 2),
        ("--no-stall python", 1),
        ("-prefix-timestamp python", 1),
        ("--log-level debug --log-with python", 3),
        ("--cycle-time-ms -1 python", 2),
        ("--mpi python", 1),
        ("-cb", 1),
        ("-np", 1),
        ("", 0),
    ],
)
def test_the_first_word_that_is_no_option_begins_the_command(
    words: str, options: int, parser: argparse.ArgumentParser
) -> None:
    split = words.split()
    assert split_command(split, parser) == (split[:options], split[options:])


def test_two_dashes_end_the_options(parser: argparse.ArgumentParser) -> None:
    assert split_command(["-np", "2", "--", "-x"], parser) == (["-np", "2"], ["-x"])


def environment(parser: argparse.ArgumentParser, words: str) -> dict[str, str]:
    return environment_of(chosen_settings(parser.parse_args(words.split())))


def other_than_default(setting: Setting) -> tuple[str, str]:
    """A value of the flag, and what the workers find in their environment."""
    if setting.choices:
        return setting.choices[0].upper(), setting.choices[0]
    assert setting.flag
    number = int(min(max(7, setting.minimum), setting.maximum))
    return str(number), str(number * setting.flag.factor)


@pytest.mark.parametrize("setting", WITH_FLAG)
def test_every_flag_gives_its_variable_a_value(
    setting: Setting, parser: argparse.ArgumentParser
) -> None:
    assert setting.flag
    assert environment(parser, "") == {}
    if setting.flag.opposite:
        assert environment(parser, setting.flag.name) == {setting.env: "1"}
        assert environment(parser, setting.flag.opposite) == {setting.env: "0"}
        return
    word, text = other_than_default(setting)
    assert environment(parser, f"{setting.flag.name} {word}") == {setting.env: text}
    assert environment(parser, f"{setting.flag.name}={word}") == {setting.env: text}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--fusion-threshold-mb 0", {"HOROVOD_FUSION_THRESHOLD": "0"}),
        ("--fusion-threshold-mb 32", {"HOROVOD_FUSION_THRESHOLD": "33554432"}),
        ("--cycle-time-ms 2.50", {"HOROVOD_CYCLE_TIME": "2.5"}),
        ("--start-timeout 1234567.5", {"HOROVOD_START_TIMEOUT": "1234567.5"}),
        ("--thread-affinity 3,0", {"HOROVOD_THREAD_AFFINITY": "3,0"}),
        (
            "--autotune-link-compression Int8,fp8,MXfp8",
            {"HOROVOD_AUTOTUNE_LINK_COMPRESSION": "int8,fp8,mxfp8"},
        ),
        (
            "--no-stall --log-l INFO",
            {"HOROVOD_STALL_CHECK_DISABLE": "1", "HOROVOD_LOG_LEVEL": "info"},
        ),
        ("--cache-capacity 1 --cache-capacity 2", {"HOROVOD_CACHE_CAPACITY": "2"}),
    ],
)
def test_values(words: str, expected: dict[str, str], parser: argparse.ArgumentParser) -> None:
    assert environment(parser, words) == expected


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("--fusion-threshold-mb -1", "must be at least 0"),
        ("--fusion-threshold-mb 64MB", "expected an integer"),
        ("--cycle-time-ms nan", "must be"),
        ("--stall-check-warning-time-seconds -1", "must be"),
        ("--stall-check-shutdown-time-seconds x", "expected"),
        ("--allreduce-block-kb 32", "must be at least 64"),
        ("--autotune-steps-per-sample 0", "must be at least 1"),
        ("--autotune-warmup-samples -1", "must be at least 0"),
        ("--autotune-gaussian-process-noise 1.1", "must be"),
        ("--start-timeout 0", "must be at least 0.001"),
        ("--thread-affinity 1,,2", "expected an integer"),
        ("--thread-affinity -1", "must be at least 0"),
        (
            "--autotune-link-compression int8,fp16",
            "expected some of int8, fp8, mxfp8, int4, with commas",
        ),
        ("--log-level LOUD", "expected one of trace, debug"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(
    words: str, text: str, parser: argparse.ArgumentParser
) -> None:
    with pytest.raises(SettingError) as refused:
        environment(parser, words)
    assert str(refused.value).startswith(f"{words}: {text}")


@pytest.mark.parametrize(
    ("old", "new", "value"),
    [
        ("--log-hide-timestamp", "--log-without-timestamp", "1"),
        ("--no-log-hide-timestamp", "--log-with-timestamp", "0"),
    ],
)
def test_older_names_work_and_say_so(
    old: str, new: str, value: str, parser: argparse.ArgumentParser
) -> None:
    with pytest.warns(DeprecationWarning, match=f"^{old} is deprecated; use {new}$"):
        assert environment(parser, old) == {"HOROVOD_LOG_HIDE_TIME": value}


TIMES = ["-prefix-timestamp", "--log-with-timestamp", "--log-without-timestamp"]


@pytest.mark.parametrize(
    "words",
    [
        *[f"{one} {other}" for one in TIMES for other in TIMES if one != other],
        "--log-hide-timestamp --prefix-output-with-timestamp",
        "-prefix-timestamp --no-log-hide-timestamp",
        "--stall-check --no-stall-check",
        "--autotune --no-autotune",
        "-H localhost:1 -hostfile x",
    ],
)
@pytest.mark.filterwarnings("ignore:.* is deprecated:DeprecationWarning")
def test_what_excludes_each_other(
    words: str, parser: argparse.ArgumentParser, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parser.parse_args(words.split())
    assert "not allowed with" in capsys.readouterr().err


def shown_options(parser: Any) -> set[str]:
    return {
        name
        for action in parser._actions
        if action.help != argparse.SUPPRESS
        for name in action.option_strings
        if name.startswith("--")
    }


def options_in(page: Path) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", page.read_text()))


def test_the_page_about_running_has_every_option_and_no_other(
    parser: argparse.ArgumentParser,
) -> None:
    page = options_in(RUNNING)
    general = {"--version", "--verbose", "--config-file"}
    general |= {"--calibrate", "--check-network", "--doctor", "--help-all", "--json", "--simulate"}
    elsewhere = options_in(RUNNING.with_name("clusters.md"))
    elsewhere |= options_in(RUNNING.with_name("experiments.md"))
    assert shown_options(parser) - general - {"--help"} - page - elsewhere == set()
    known = shown_options(parser) | general
    old = {name for setting in SETTINGS if setting.flag for name in setting.flag.deprecated}
    others = {"--epochs", "--name", "--ntasks-per-node", "--shell"}  # of other programs
    assert page - known - old - others == set()
