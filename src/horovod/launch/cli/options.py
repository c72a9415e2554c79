"""The options of ``horovodrun``: hosts, output, and one for each setting with a flag."""

from __future__ import annotations

import argparse
import textwrap
import warnings
from collections.abc import Sequence
from typing import Any

from horovod.core.base.setting import Flag, Setting
from horovod.errors import SettingError
from horovod.launch.cli.elastic_options import ELASTIC_OPTIONS, add_elastic_options, is_elastic
from horovod.launch.kubernetes.options import add_kubernetes_options
from horovod.launch.model.argument_checks import whole_number
from horovod.launch.model.hosts import interface_names
from horovod.settings import SETTINGS, file_sections

# The width of a configuration file in the help, without its indentation.
_FILE_WIDTH = 94


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add all options except the general ones to ``parser``, under their headings."""
    _add_start(parser.add_argument_group("start"))
    _add_controller(parser.add_argument_group("MPI"))
    _add_remote(parser.add_argument_group("other machines"))
    elastic = parser.add_argument_group("elastic")
    add_elastic_options(elastic)
    _add_settings(elastic, "elastic")
    _add_output(parser.add_argument_group("output"))
    for topic in ("tuning", "autotune", "stall check", "timeline", "metrics"):
        _add_settings(parser.add_argument_group(topic), topic)
    add_kubernetes_options(parser)
    _add_slurm(parser.add_argument_group("Slurm"))


def chosen_settings(given: argparse.Namespace) -> dict[str, Any]:
    """The settings that the command line sets, by their names.

    Raises:
        SettingError: a value is invalid; the text begins with ``<name>=<value>``.
    """
    chosen = {}
    for setting in SETTINGS:
        value = getattr(given, setting.name, None)
        if setting.flag is None or value is None:
            continue
        if isinstance(value, str):
            try:
                value = setting.parse(value, setting.flag.factor)
            except SettingError as error:
                name = setting.flag.name.lstrip("-").replace("-", "_")
                raise SettingError(f"{name}={value}: {error}") from None
        chosen[setting.name] = value
    return chosen


def unused_options(given: argparse.Namespace, controller: str) -> list[str]:
    """A sentence for each option without an effect on a job that ``controller`` starts."""
    of_mpi, of_elastic = ("mpi_args", "binding_args"), ELASTIC_OPTIONS
    makes_text = given.kubernetes is not None or given.slurm_script
    takes_slots = makes_text or given.host_discovery_script is not None
    return [
        f"--{name.replace('_', '-')} has an effect only {where}"
        for names, where, is_used in (
            (of_mpi, "with --mpi or --jsrun", controller != "gloo"),
            (of_elastic, "in an elastic job, see --min-np", is_elastic(given)),
            (("slots_per_host",), "with --kubernetes or --host-discovery-script", takes_slots),
        )
        for name in names
        if getattr(given, name) is not None and not is_used
    ]


def file_form() -> str:
    """A configuration file with the default of every key."""
    lines = ["controller: gloo\n"]
    for section, settings in file_sections().items():
        pairs = [f"{name}: {_default_in_file(setting)}" for name, setting in settings.items()]
        text = f"{section}: {{{', '.join(pairs)}}}"
        lines.append(textwrap.fill(text, _FILE_WIDTH, subsequent_indent="  ") + "\n")
    return "".join(lines)


def _default_in_file(setting: Setting) -> str:
    flag = setting.flag
    if isinstance(setting.default, bool):
        return str(setting.default != bool(flag and flag.is_key_opposite)).lower()
    return setting.text(setting.default, flag.factor if flag else 1) or "null"


def split_command(
    arguments: Sequence[str], parser: argparse.ArgumentParser
) -> tuple[list[str], list[str]]:
    """Split the options from the command, which begins at the first word that is no option.

    Argparse alone would take options of the command for its own.
    """
    words = list(arguments)
    index = 0
    while index < len(words):
        word = words[index]
        if word == "--":
            return words[:index], words[index + 1 :]
        if not word.startswith("-") or word == "-":
            break
        index += 1 + _values_taken(word, parser)
    return words[:index], words[index:]


def _values_taken(word: str, parser: argparse.ArgumentParser) -> int:
    """The number of words after ``word`` that are values of this option."""
    # Argparse has no public list of its options.
    taken = {
        name: _value_count(action) for action in parser._actions for name in action.option_strings
    }
    if word in taken:
        return taken[word]
    # An abbreviation. With "=" no name matches, and the value is in the same word.
    return max((taken[name] for name in taken if name.startswith(word)), default=0)


def _value_count(action: argparse.Action) -> int:
    if action.nargs is None:
        return 1
    return action.nargs if isinstance(action.nargs, int) else 0


def _add_slurm(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--slurm-script",
        action="store_true",
        help="print a batch script for sbatch instead of starting anything; with --slots-per-host "
        "as the number of processes on each node",
    )
    group.add_argument(
        "--slurm-args", metavar="WORDS", help="more options for sbatch, one #SBATCH line each"
    )


def _add_controller(group: argparse._ArgumentGroup) -> None:
    controllers = group.add_mutually_exclusive_group()
    for name, text in (
        ("--gloo", "start the processes without MPI, for the native engine; the default"),
        ("--mpi", "let mpirun start the processes, whose data then goes over MPI"),
        ("--jsrun", "let jsrun start them in a job of LSF's; their data goes over MPI"),
    ):
        controllers.add_argument(
            name, dest="controller", action="store_const", const=name[2:], help=text
        )
    group.add_argument("--mpi-args", metavar="WORDS", help="more words for mpirun or jsrun")
    group.add_argument(
        "--binding-args", metavar="WORDS", help="how mpirun binds processes, instead of not at all"
    )
    group.add_argument(
        "--tcp", action="store_true", help="TCP only: NCCL_IB_DISABLE=1, and Spectrum MPI's -tcp"
    )


def _add_start(group: argparse._ArgumentGroup) -> None:
    hosts = group.add_mutually_exclusive_group()
    hosts.add_argument(
        "-H",
        "--hosts",
        metavar="NAME:SLOTS",
        help="the machines, separated by commas, and how many processes each may run; ranks fill "
        "them in this order; default localhost:N",
    )
    hosts.add_argument(
        "-hostfile",
        "--hostfile",
        metavar="PATH",
        help="the same as a file with lines of the form: name slots=N",
    )
    hosts.add_argument(
        "--host-discovery-script",
        metavar="COMMAND",
        help="ask this command every second which machines there are, and let workers come and go "
        "with them; it prints a line NAME or NAME:SLOTS for each",
    )
    _add_settings(group, "start")


def _add_remote(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "-p",
        "--ssh-port",
        type=whole_number("a port from 1 to 65535", 1, 65535),
        metavar="PORT",
        help="port of their ssh servers; default: as ssh is configured",
    )
    group.add_argument(
        "-i",
        "--ssh-identity-file",
        metavar="FILE",
        help="private key that lets ssh in; default: as ssh is configured",
    )
    group.add_argument(
        "--network-interfaces",
        metavar="NAME[,NAME...]",
        help="interfaces that the machines may use to reach each other, as all of them name them; "
        "default: whatever leads there",
    )
    group.add_argument(
        "--network-interface",
        action="append",
        metavar="NAME",
        help="the same, one name each time it is given",
    )
    group.add_argument(
        "--disable-cache",
        action="store_true",
        help="accepted: every start asks every machine anew, nothing is remembered",
    )


def named_interfaces(given: argparse.Namespace) -> tuple[str, ...]:
    """The interfaces that the command line names, without duplicates."""
    single = given.network_interface or []
    if any("," in name for name in single):
        text = "--network-interface A,B is deprecated; use --network-interfaces A,B"
        warnings.warn(text, DeprecationWarning, stacklevel=1)
    return interface_names([given.network_interfaces or "", *single])


def _add_output(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--output-filename",
        metavar="DIR",
        help="keep the lines of each rank in DIR/rank.<R>/stdout and DIR/rank.<R>/stderr, too",
    )
    group.add_argument(
        "--report",
        metavar="FILE",
        help="write a page for a browser when the job has ended, however it ended: step times, who "
        "waited for whom, bandwidth, slowest tensors, events, settings (docs/report.md)",
    )
    group.add_argument(
        "--full-prefix",
        action="store_true",
        help="begin lines on a terminal as elsewhere, with [rank]<stdout>: or [rank]<stderr>:",
    )
    group.add_argument(
        "--debug-rank",
        type=whole_number("a rank", 0, 99_999),
        metavar="RANK",
        help="run this rank of a Python program under pdb, which gets the terminal",
    )
    group.add_argument(
        "--debug-port",
        type=whole_number("a port from 1 to 65535", 1, 65535),
        metavar="PORT",
        help="with --debug-rank: run it under debugpy instead, which waits for an editor there",
    )
    # As documented, timestamps of output lines and of log lines exclude each other.
    times = group.add_mutually_exclusive_group()
    times.add_argument(
        "-prefix-timestamp",
        "--prefix-output-with-timestamp",
        action="store_true",
        help="begin each line of the workers with the time; not together with those of log lines",
    )
    _add_settings(group, "output", times)


def _add_settings(
    group: argparse._ArgumentGroup,
    topic: str,
    switches: argparse._MutuallyExclusiveGroup | None = None,
) -> None:
    """Add the flags of one topic; boolean ones go into ``switches``."""
    for setting in SETTINGS:
        if setting.flag is None or setting.flag.topic != topic:
            continue
        if setting.flag.opposite:
            _add_switch(switches or group.add_mutually_exclusive_group(), setting, setting.flag)
        else:
            group.add_argument(
                setting.flag.name,
                dest=setting.name,
                metavar=_metavar(setting),
                help=_valued_help(setting, setting.flag),
            )


def _add_switch(group: argparse._MutuallyExclusiveGroup, setting: Setting, flag: Flag) -> None:
    """Add the flags for true and false, each with a deprecated name that the help does not show."""
    for name, value in ((flag.name, True), (flag.opposite, False)):
        group.add_argument(
            name,
            dest=setting.name,
            action="store_const",
            const=value,
            help=f"{setting.meaning if value else 'the contrary'} ({setting.env}={int(value)})",
        )
        for old_name in flag.deprecated[:1] if value else flag.deprecated[1:]:
            group.add_argument(
                old_name,
                dest=setting.name,
                action=_Deprecated,
                const=value,
                newer=name,
                help=argparse.SUPPRESS,
            )


def _metavar(setting: Setting) -> str:
    if setting.choices:
        return "LEVEL"
    if isinstance(setting.default, tuple):
        return "CORE[,CORE...]"
    last_word = setting.name.rpartition("_")[2]
    if last_word in ("address", "port"):
        return last_word.upper()
    if isinstance(setting.default, str):
        return "PATH"
    return {"s": "SEC", "ms": "MS"}.get(setting.unit, "N")


def _valued_help(setting: Setting, flag: Flag) -> str:
    default = setting.text(setting.default, flag.factor) or "none"
    unit = flag.unit or setting.unit
    shown = f"{default} {unit}" if unit else default
    return f"{setting.meaning} ({setting.env}; default: {shown})"


class _Deprecated(argparse.Action):
    """Stores ``const``, and warns that the option is deprecated."""

    def __init__(
        self, option_strings: Sequence[str], dest: str, newer: str, **details: Any
    ) -> None:
        super().__init__(option_strings, dest, nargs=0, **details)
        self._newer = newer

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        text = f"{option_string} is deprecated; use {self._newer}"
        warnings.warn(text, DeprecationWarning, stacklevel=1)
        setattr(namespace, self.dest, self.const)
