"""Every setting of the engine and the tools, each defined once; read once, at ``init``.

The definition of a setting carries its meaning, unit, limits and how ``horovodrun`` takes it. Its
environment variable is ``HOROVOD_`` and its name in capitals, if the definition gives no other one.
The environment reader and the table of docs/settings.md derive from it here (``python -m
horovod.settings`` prints the table); the launcher's options, its help and the keys of its
configuration file in ``launch``. Nothing else reads ``HOROVOD_*`` tunables from the environment,
and the C++ engine reads none at all.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from horovod.core.base.engine_settings import LINK_COMPRESSIONS, EngineSettings, define, switch
from horovod.core.base.setting import Flag, Setting
from horovod.errors import SettingError

_NEAR = 0.93  # of difflib: one or two wrong letters
LOG_LEVELS = ("trace", "debug", "info", "warning", "error", "fatal")


@dataclass(frozen=True)
class Settings(EngineSettings):
    """A user's settings. Construct it directly in tests; ``from_env`` reads the environment."""

    tensorflow_native_ops: bool = define(
        True, "run TensorFlow's collectives as Python operations instead of the native plugin's"
    )
    enable_xla_ops: bool = define(
        False, "let XLA compile TensorFlow functions and Keras models with collectives in them"
    )
    jax_native_ops: bool = define(
        True, "run collectives in JAX's compiled programs as host callbacks instead of native calls"
    )
    autotune: bool = define(
        False,
        "look for the fastest settings while the program trains",
        flag=Flag("--autotune", "autotune", key="autotune.enabled", opposite="--no-autotune"),
    )
    autotune_log: str = define(
        "",
        "file in which rank 0 writes what it tries, as CSV; what it has found goes into another "
        "one with .yaml behind that name, which --config-file takes",
        flag=Flag("--autotune-log-file", "autotune", key="autotune.log_file"),
    )
    autotune_warmup_samples: int = define(
        3,
        "samples at the beginning that count for nothing",
        unit="samples",
        flag=Flag("--autotune-warmup-samples", "autotune", key="autotune.warmup_samples"),
    )
    autotune_steps_per_sample: int = define(
        10,
        "steps of training in a sample, whose median counts",
        unit="steps",
        minimum=1,
        flag=Flag("--autotune-steps-per-sample", "autotune", key="autotune.steps_per_sample"),
    )
    autotune_bayes_opt_max_samples: int = define(
        20,
        "samples of the search, before the best is compared with the defaults",
        unit="samples",
        minimum=1,
        flag=Flag(
            "--autotune-bayes-opt-max-samples", "autotune", key="autotune.bayes_opt_max_samples"
        ),
    )
    autotune_gaussian_process_noise: float = define(
        0.8,
        "variance that the search takes for chance, as a part of that of all samples",
        maximum=1,
        flag=Flag(
            "--autotune-gaussian-process-noise", "autotune", key="autotune.gaussian_process_noise"
        ),
    )
    autotune_link_compression: tuple[str, ...] = define(
        (),
        "formats that the search may try as HOROVOD_LINK_COMPRESSION, if that has no value: int8, "
        "fp8, mxfp8 or int4, with commas between them; the same on all ranks",
        choices=LINK_COMPRESSIONS[1:],
        flag=Flag("--autotune-link-compression", "autotune", key="autotune.link_compression"),
    )
    keep_memory: bool = switch(
        "--keep-memory",
        "tuning",
        "params.keep_memory",
        "keep memory that the program frees for its next allocations, in place of giving it back "
        "to the system; a process stays as large as it has ever been",
    )
    recorder_events: int = define(
        65536,
        "events that each process keeps in memory, about 32 bytes each, for the files that say "
        "what happened before an error; 0 records nothing",
        unit="events",
        maximum=262144,
    )
    recorder_dir: str = define(
        "",
        "folder for those files, in which the last 16 jobs keep a folder each; none: "
        "horovod-USERID in the folder for temporary files; off: such files are not written",
    )
    timeline: str = define(
        "",
        "file in which rank 0 shows what all ranks do, for Perfetto or chrome://tracing; DYNAMIC: "
        "none until the program calls start_timeline",
        flag=Flag("--timeline-filename", "timeline", key="timeline.filename"),
    )
    timeline_mark_cycles: bool = switch(
        "--timeline-mark-cycles",
        "timeline",
        "timeline.mark_cycles",
        "mark in the timeline where the engine begins with what is ready",
    )
    timeline_max_mb: int = define(
        1024,
        "largest size of the timeline; it ends there",
        unit="MB",
        minimum=1,
        maximum=1024 * 1024,
    )
    metrics_port: int = define(
        0,
        "port of rank 0's machine at which Prometheus finds the metrics of the job; 0: none",
        maximum=65535,
        flag=Flag("--metrics-port", "metrics", key="metrics.port"),
    )
    metrics_address: str = define(
        "127.0.0.1",
        "address of that port; one that others reach needs a token",
        flag=Flag("--metrics-address", "metrics", key="metrics.address"),
    )
    metrics_token_file: str = define(
        "",
        "file of rank 0's machine that only you can read, with the token that questions have to "
        "bring; none: the environment variable HOROVOD_METRICS_TOKEN, if it is set",
        flag=Flag("--metrics-token-file", "metrics", key="metrics.token_file"),
    )
    debug: bool = define(
        False,
        "look for NaN and infinity before and after each reduction, compare results between ranks, "
        "and say in mismatch errors where an operation was submitted; slow",
        env="HOROVOD_DEBUG_COLLECTIVES",
    )
    debug_interval: int = define(
        100,
        "compare every so many results, with HOROVOD_DEBUG_COLLECTIVES=1",
        unit="results",
        minimum=1,
    )
    log_level: str = define(
        "warning",
        f"least that is logged: {', '.join(LOG_LEVELS[:-1])} or {LOG_LEVELS[-1]}",
        choices=LOG_LEVELS,
        flag=Flag("--log-level", "output", key="logging.level"),
    )
    quiet: bool = define(
        False,
        "show no status line and no last line of a job that ends well",
        flag=Flag("--quiet", "output", opposite="--no-quiet"),
    )
    log_hide_time: bool = define(
        False,
        "leave the time out of log lines",
        flag=Flag(
            "--log-without-timestamp",
            "output",
            key="logging.with_timestamp",
            opposite="--log-with-timestamp",
            deprecated=("--log-hide-timestamp", "--no-log-hide-timestamp"),
            is_key_opposite=True,
        ),
    )

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Settings from ``environ`` (default: the process environment); refuses bad values."""
        environ = os.environ if environ is None else environ
        given = {}
        for setting, text in _given(environ):
            try:
                given[setting.name] = setting.parse(text)
            except SettingError as error:
                raise SettingError(f"{setting.env}={text!r}: {error}") from None
        return cls(**given)

    def changed(self) -> dict[str, Any]:
        """The values that differ from the defaults, by name."""
        own = vars(self)
        return {s.name: own[s.name] for s in SETTINGS if own[s.name] != s.default}


SETTINGS = tuple(
    Setting(f.name, f.default, **{"env": f"HOROVOD_{f.name.upper()}", **f.metadata})
    for f in dataclasses.fields(Settings)
)


def names_given(environ: Mapping[str, str]) -> frozenset[str]:
    """The names of the settings that the environment, and so the user, gives a value."""
    return frozenset(setting.name for setting, _ in _given(environ))


def notices(environ: Mapping[str, str]) -> list[str]:
    """A sentence for each value that is left over from the original, and ignored or replaced.

    And for each name that is nearly that of a setting.
    """
    texts = ((setting, environ.get(setting.env, "")) for setting in SETTINGS)
    return [
        f"{setting.env}={text}: this version has nothing of that name, {fate} (docs/migrating.md)"
        for setting, text in texts
        if (fate := _fate_of(setting, text))
    ] + [
        f"{name}: no such setting, it is ignored; did you mean {near}?"
        for name in environ
        if (near := _mistyped(name))
    ]


def _mistyped(name: str) -> str:
    """The setting that differs from ``name`` in a letter or two; empty for all other names."""
    names = [setting.env for setting in SETTINGS]
    if not name.startswith("HOROVOD_") or name in names:
        return ""
    from difflib import get_close_matches  # here, because few processes need it

    return "".join(get_close_matches(name, names, 1, _NEAR))


def _fate_of(setting: Setting, text: str) -> str:
    """What becomes of a value of the original that does not exist here; empty for all others."""
    if setting.is_left_over(text):
        return "it is ignored"
    value = setting.replacement(text)
    return "" if value is None or text.lower() in setting.choices else f"{value} is taken instead"


def _given(environ: Mapping[str, str]) -> Iterator[tuple[Setting, str]]:
    """The settings that the environment gives a value, and its text."""
    for setting in SETTINGS:
        text = environ.get(setting.env)
        if text is not None and not setting.is_left_over(text):
            yield setting, text


def environment_of(chosen: Mapping[str, Any]) -> dict[str, str]:
    """The variables that give ``chosen``, values by the settings' names, to another process."""
    return {s.env: s.text(chosen[s.name]) for s in SETTINGS if s.name in chosen}


def file_sections() -> dict[str, dict[str, Setting]]:
    """The settings of the launcher's configuration file, by section and name."""
    sections: dict[str, dict[str, Setting]] = {}
    for setting in SETTINGS:
        if setting.flag and setting.flag.key:
            section, _, name = setting.flag.key.partition(".")
            sections.setdefault(section, {})[name] = setting
    return sections


def markdown_table() -> str:
    """All settings, as docs/settings.md shows them."""
    lines = ["| variable | default | meaning | `horovodrun` |", "|---|---|---|---|"]
    for setting in SETTINGS:
        meaning, default = setting.meaning, setting.text(setting.default) or "none"
        if isinstance(setting.default, bool):
            meaning = f"{int(not setting.default)}: {meaning}"
        elif setting.unit:
            default = f"{default} {setting.unit}"
        flag = f"`{setting.flag.name}`" if setting.flag else ""
        lines.append(f"| `{setting.env}` | {default} | {meaning} | {flag} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(markdown_table(), end="")
