"""``horovodrun``'s options as attributes of an object, which other launchers fill and pass on.

An attribute has the name of the option: ``num_proc`` for ``--num-proc``, ``no_stall_check`` for
``--no-stall-check``. ``_OTHER_NAMES`` has further names of some. None is no value.
"""

from __future__ import annotations

import warnings
from argparse import Action, ArgumentParser, ArgumentTypeError, Namespace, _AppendAction
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

_OTHER_NAMES = {
    "np": "num_proc",
    "slots": "slots_per_host",
    "cooldown_range": "blacklist_cooldown_range",
    "tcp_flag": "tcp",
    "nics": "network_interfaces",
    "use_gloo": "gloo",
    "use_mpi": "mpi",
    "use_jsrun": "jsrun",
}
_NOT_OF_A_JOB = ("help", "version", "experiment", "dry_run", "check_network", "doctor", "json")
# Attributes without an option.
_MORE = ("command", "run_func", "executable", "remote_host_key_checking")
_STACKLEVEL = 4


class HorovodArgs:
    """A job: an attribute for each option of ``horovodrun``, and these.

    Attributes:
        command: the words to run, or one text for the shell.
        run_func: instead, a function without arguments to call in each process.
        executable: the Python of the processes that call ``run_func``.
    """

    def __init__(self) -> None:
        from horovod.launch.cli.parser import make_parser

        names = (*_actions(make_parser()), *_OTHER_NAMES, *_MORE)
        self.__dict__.update(dict.fromkeys(names))
        self.num_proc: int | None = 1

    if TYPE_CHECKING:

        def __setattr__(self, name: str, value: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"horovodrun has no option for {name!r}")


_HorovodArgs = HorovodArgs  # its name in ``horovod.runner``


def as_options(args: Any, parser: ArgumentParser) -> Namespace:
    """The command line that ``args``, any object with such attributes, represents.

    Attributes that are no option are ignored with a warning.

    Raises:
        ValueError: an option has an invalid value, or two attributes contradict each other.
    """
    given, actions = parser.parse_args([]), _actions(parser)
    chosen: dict[str, tuple[str, Any]] = {}
    for attribute, value in vars(args).items():
        name = _OTHER_NAMES.get(attribute, attribute)
        if value is None or attribute in _MORE:
            continue
        if name not in actions:
            _warn_of_unknown(attribute, [*actions, *_OTHER_NAMES, *_MORE])
            continue
        action = actions[name]
        if isinstance(action.const, str) and not value:  # use_mpi=False
            continue
        found = _value(action, attribute, value)
        other, before = chosen.get(action.dest, (attribute, found))
        is_default = other == "num_proc" and before == 1
        if before != found and not is_default:
            raise ValueError(f"give {other} or {attribute}, not both: {before!r} and {found!r}")
        chosen[action.dest] = (attribute, found)
    for dest, (_, found) in chosen.items():
        setattr(given, dest, found)
    return given


def as_arguments(given: Namespace, command: list[str], parser: ArgumentParser) -> HorovodArgs:
    """The inverse of ``as_options``."""
    args = HorovodArgs()
    args.num_proc = None
    args.command = command
    for name, action in _actions(parser).items():
        value = getattr(given, action.dest)
        if value is None or value == parser.get_default(action.dest):
            continue
        if action.nargs == 0:
            if value == action.const:
                setattr(args, name, True)
        elif name == _longest(action):
            setattr(args, name, value)
    for other, name in _OTHER_NAMES.items():
        setattr(args, other, getattr(args, name))
    return args


def _actions(parser: ArgumentParser) -> dict[str, Action]:
    """The options by the names of their attributes."""
    return {
        option.lstrip("-").replace("-", "_"): action
        # Argparse has no public way to list its options.
        for action in parser._actions
        for option in action.option_strings
        if action.dest not in _NOT_OF_A_JOB and option.startswith("--")
    }


def _longest(action: Action) -> str:
    """The name under which launchers look for a value: ``--num-proc``, ``--min-num-proc``."""
    return max(action.option_strings, key=len).lstrip("-").replace("-", "_")


def _value(action: Action, attribute: str, value: Any) -> Any:
    """``value`` as the parser would return it."""
    if action.nargs == 0:
        return bool(value) == action.const if isinstance(action.const, bool) else action.const
    if isinstance(action, _AppendAction):
        return [value] if isinstance(value, str) else list(value)
    if action.nargs is not None:
        return [_parsed(action, attribute, each) for each in value]
    if action.dest == "network_interfaces" and not isinstance(value, str):
        return ",".join(sorted(value))
    return _parsed(action, attribute, value)


def _parsed(action: Action, attribute: str, value: Any) -> Any:
    if not callable(action.type):
        return str(value)
    try:
        return action.type(str(value))
    except (ArgumentTypeError, ValueError) as error:
        raise ValueError(f"{attribute}={value!r}: {error}") from None


def _warn_of_unknown(attribute: str, known: list[str]) -> None:
    near = get_close_matches(attribute, known, 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    text = f"{attribute}: horovodrun has no such option, it is ignored{hint}"
    warnings.warn(text, UserWarning, _STACKLEVEL)
