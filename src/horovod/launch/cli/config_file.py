"""``horovodrun --config-file``: settings in a YAML file, in sections.

The keys are those of ``settings.py``, and ``controller``. Other keys are ignored with a notice,
because files outlive versions. PyYAML composes the tree; nothing is constructed from it, so values
keep the text they were written as, which is parsed like a flag's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from horovod.core.base.setting import Flag, Setting
from horovod.errors import SettingError
from horovod.settings import SETTINGS, file_sections

_CONTROLLER = "controller"
_SECTIONS = file_sections()
_MOST_BYTES = 1 << 20
# Older keys; ``true`` means the setting itself.
_OLD_KEYS = {"logging": {"hide_timestamp": "log_hide_time"}}


class FileChoices(NamedTuple):
    """The contents of a file: settings by name, and the controller if it is set.

    ``notices`` are sentences about ignored keys.
    """

    settings: dict[str, Any]
    controller: str | None = None
    notices: tuple[str, ...] = ()


def read_config_file(path: Path) -> FileChoices:
    """The settings in the file; keys with ``null`` are left out.

    Raises:
        SettingError: the file is no YAML, or has a key twice or an invalid value. The text begins
            with file, line and ``<key>=<value>``.
        OSError: it cannot be read.
    """
    try:
        choices = _choices_of(_compose(_content(path)))
    except SettingError as error:
        raise SettingError(f"{path}, {error}") from None
    notices = tuple(f"{path}, {notice}" for notice in choices.notices)
    return choices._replace(notices=notices)


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:  # may be a pipe
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise type(error)(f"--config-file {path}: {error.strerror or error}") from None
    if len(content) > _MOST_BYTES:
        raise SettingError(f"larger than {_MOST_BYTES} bytes")
    return content


def _compose(content: bytes) -> yaml.Node | None:
    try:
        return yaml.compose(content, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}: " if mark else ""
        raise SettingError(f"{where}not YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SettingError(f"not YAML: {error}".partition("\n")[0]) from None
    except RecursionError:
        raise SettingError("nested too deeply; expected sections with keys") from None


def _choices_of(root: yaml.Node | None) -> FileChoices:
    chosen: dict[str, Any] = {}
    notices: list[str] = []
    controller = None
    for section, node in _entries(root, "", (_CONTROLLER, *_SECTIONS), notices):
        if section == _CONTROLLER:
            controller = _controller(node)
            continue
        settings = {**_SECTIONS[section], **_old_settings(section)}
        for name, value in _entries(node, section, settings, notices):
            if not _is_null(value):
                setting = settings[name]
                chosen[setting.name] = _value(value, f"{section}.{name}", setting)
    return FileChoices(chosen, controller, tuple(notices))


def _old_settings(section: str) -> dict[str, Setting]:
    """The settings under the section's older keys, none of which has the opposite meaning."""
    by_name = {setting.name: setting for setting in SETTINGS}
    found = {key: by_name[name] for key, name in _OLD_KEYS.get(section, {}).items()}
    return {key: replace(setting, flag=None) for key, setting in found.items()}


def _entries(
    node: yaml.Node | None, path: str, known: Collection[str], notices: list[str]
) -> Iterator[tuple[str, yaml.Node]]:
    """The ``known`` keys of a mapping and their values; others go into ``notices``."""
    if node is None or _is_null(node):
        return
    place = path or "the file"
    if not isinstance(node, yaml.MappingNode):
        raise _error(node, f"{place}: expected a mapping with {_listed(known)}")
    seen = set()
    for key, value in node.value:
        name = key.value if isinstance(key, yaml.ScalarNode) else "?"
        full_name = f"{path}.{name}" if path else name
        if name in seen:
            raise _error(key, f"{full_name}: is there twice")
        seen.add(name)
        if name in known:
            yield name, value
        else:
            unknown = f"{full_name}: there is no such key, it is ignored; {_hint(name, known)}"
            notices.append(str(_error(key, unknown)))


def _hint(name: str, known: Collection[str]) -> str:
    if sections := [section for section, keys in _SECTIONS.items() if name in keys]:
        return f"did you mean {' or '.join(f'{section}.{name}' for section in sections)}?"
    nearest = get_close_matches(name, known, 1)
    return f"did you mean {nearest[0]}?" if nearest else f"known are {_listed(known)}"


def _value(node: yaml.Node, key: str, setting: Setting) -> Any:
    if not isinstance(node, yaml.ScalarNode):
        raise _error(node, f"{key}: expected one value, found a list or a mapping")
    flag = setting.flag or Flag("", "")
    try:
        value = setting.parse(node.value, flag.factor)
    except SettingError as error:
        raise _error(node, f"{key}={node.value}: {error}") from None
    return not value if flag.is_key_opposite else value


def _controller(node: yaml.Node) -> str | None:
    if _is_null(node):
        return None
    if not isinstance(node, yaml.ScalarNode):
        raise _error(node, f"{_CONTROLLER}: expected gloo or mpi, found a list or a mapping")
    name = str(node.value).lower()
    if name not in ("gloo", "mpi"):
        raise _error(node, f"{_CONTROLLER}={node.value}: expected gloo or mpi")
    return name


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"


def _listed(names: Collection[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def _error(node: yaml.Node, text: str) -> SettingError:
    return SettingError(f"line {node.start_mark.line + 1}: {text}")
