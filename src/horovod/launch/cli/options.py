"""The options of ``horovodrun``: hosts, output, and one for each setting with a flag."""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from horovod.core.base.setting import Flag, Setting
from horovod.errors import SettingError
from horovod.launch.kubernetes.options import DEFAULT_NAME, KINDS
from horovod.launch.model.argument_checks import process_number, whole_number
from horovod.launch.model.hosts import interface_names
from horovod.launch.remote.job_folder import check_job_id
from horovod.settings import SETTINGS, file_sections

# Their values are options of other programs.
_OF_WORDS = ("--slurm-args", "--mpi-args", "--binding-args")
# The width of a configuration file in the help, without its indentation.
_FILE_WIDTH = 94

# In these texts a line with names and values is an option, and what follows says what it means.
# Dots after a value: the option may be repeated.
_GENERAL = """
-v --version
    print the version number
-np --num-proc N
    how many processes to start
-f --experiment FILE
    run the experiments of a file instead of one command; see below
--dry-run
    with --experiment: check the file and print what would run, and start nothing
-cb --check-build
    print the frameworks, controllers and operations that work here
--check-network
    measure latency and bandwidth between the hosts of -H, or within this machine, and name what is
    slow
--doctor
    say why a job is slow, hangs or has failed, which rank is to blame and what to do: of a job that
    runs or has ended, by its id or a folder of recordings; default: the newest
--simulate
    predict how training scales on a cluster that is not at hand; it comes first, and has options of
    its own: horovodrun --simulate --help
--calibrate
    measure what reductions cost here, for --simulate; it comes first: horovodrun --calibrate --help
--json
    with --check-network or --doctor: print JSON for programs
--verbose
    say which processes start and end
--config-file YAML
    settings in a file, see below
"""
_HOSTS = """
-H --hosts NAME:SLOTS
    the machines, separated by commas, and how many processes each may run; ranks fill them in this
    order; default localhost:N
-hostfile --hostfile PATH
    the same as a file with lines of the form: name slots=N
--host-discovery-script COMMAND
    ask this command every second which machines there are, and let workers come and go with them;
    it prints a line NAME or NAME:SLOTS for each
"""
_MPI = """
--mpi-args WORDS
    more words for mpirun or jsrun
--binding-args WORDS
    how mpirun binds processes, instead of not at all
--tcp
    TCP only: NCCL_IB_DISABLE=1, and Spectrum MPI's -tcp
"""
_REMOTE = """
-p --ssh-port PORT
    port of their ssh servers; default: as ssh is configured
-i --ssh-identity-file FILE
    private key that lets ssh in; default: as ssh is configured
--network-interfaces NAME[,NAME...]
    interfaces that the machines may use to reach each other, as all of them name them; default:
    whatever leads there
--network-interface NAME ...
    the same, one name each time it is given
--disable-cache
    accepted: every start asks every machine anew, nothing is remembered
"""
_ELASTIC = """
--min-np --min-num-proc N
    go on while there are so many workers, and wait while there are fewer; default: -np
--max-np --max-num-proc N
    use no more workers than this; what further slots run waits to take over; default: use all slots
--reset-limit N
    end the job instead of resetting it more often than this; default: no limit
--blacklist-cooldown-range MIN MAX
    use a machine where a worker failed again after a while that grows from MIN to MAX seconds with
    each failure; default: never
--job-id NAME
    a name for the job, under which --doctor finds it; if horovodrun dies, workers of an elastic job
    go on and wait for it, for the elastic timeout, and the same command line takes them over;
    default: of the time and chance, without a horovodrun to wait for
"""
_OUTPUT = """
--output-filename DIR
    keep the lines of each rank in DIR/rank.<R>/stdout and DIR/rank.<R>/stderr, too
--report FILE
    write a page for a browser when the job has ended, however it ended: step times, who waited for
    whom, bandwidth, slowest tensors, events, settings (docs/report.md)
--full-prefix
    begin lines on a terminal as elsewhere, with [rank]<stdout>: or [rank]<stderr>:
--debug-rank RANK
    run this rank of a Python program under pdb, which gets the terminal
--debug-port PORT
    with --debug-rank: run it under debugpy instead, which waits for an editor there
"""
_TIMES = """
-prefix-timestamp --prefix-output-with-timestamp
    begin each line of the workers with the time; not together with those of log lines
"""
_KUBERNETES = f"""
--kubernetes-image IMAGE
    container image with horovod and the program
--kubernetes-name NAME
    name of the job and all its objects (default: {DEFAULT_NAME})
--slots-per-host N
    processes of each pod (default: 1), with as many pods as -np needs; or of machines that
    --host-discovery-script names without a number
--kubernetes-resources NAME=AMOUNT[,...]
    what each pod gets, for example cpu=4,memory=16Gi,nvidia.com/gpu=1
--kubernetes-volume CLAIM:PATH ...
    mount a PersistentVolumeClaim in every pod; may be repeated
--kubernetes-secret NAME
    an existing Secret of the job, whose key 'secret' holds 32 random bytes as base64 text; without
    it the manifest has a new one
"""
_SLURM = """
--slurm-script
    print a batch script for sbatch instead of starting anything; with --slots-per-host as the
    number of processes on each node
--slurm-args WORDS
    more options for sbatch, one #SBATCH line each
"""


def _job_id(text: str) -> str:
    try:
        return check_job_id(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


_port = whole_number("a port from 1 to 65535", 1, 65535)
_TYPES: dict[str, Callable[[str], Any]] = {
    "--num-proc": process_number,
    "--min-np": process_number,
    "--max-np": process_number,
    "--slots-per-host": whole_number("a number of processes, 1 or more", 1, 9_999),
    "--reset-limit": whole_number("a number of resets, 0 or more", 0, sys.maxsize),
    "--blacklist-cooldown-range": float,
    "--job-id": _job_id,
    "--ssh-port": _port,
    "--debug-rank": whole_number("a rank", 0, 99_999),
    "--debug-port": _port,
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add all options to ``parser``, under their headings."""
    _add(parser, _GENERAL)
    start = parser.add_argument_group("start")
    _add(start.add_mutually_exclusive_group(), _HOSTS)
    _add_settings(start, "start")
    _add_controller(parser.add_argument_group("MPI"))
    _add(parser.add_argument_group("other machines"), _REMOTE)
    elastic = parser.add_argument_group("elastic")
    _add(elastic, _ELASTIC)
    _add_settings(elastic, "elastic")
    output = parser.add_argument_group("output")
    _add(output, _OUTPUT)
    # As documented, timestamps of output lines and of log lines exclude each other.
    times = output.add_mutually_exclusive_group()
    _add(times, _TIMES)
    _add_settings(output, "output", times)
    for topic in ("tuning", "autotune", "stall check", "timeline", "metrics"):
        _add_settings(parser.add_argument_group(topic), topic)
    _add_kubernetes(parser.add_argument_group("kubernetes"))
    _add(parser.add_argument_group("Slurm"), _SLURM)


def _add(group: argparse._ActionsContainer, texts: str) -> None:
    for text in re.split(r"\n(?=-)", texts.strip()):
        head, _, meaning = text.partition("\n")
        names = re.findall(r"(?<!\S)-\S+", head)
        values = head.split()[len(names) :]
        details: dict[str, Any] = {"metavar": values[0]} if values else {"action": "store_true"}
        if values[1:] == ["..."]:
            details["action"] = "append"
        elif values[1:]:
            details.update(metavar=tuple(values), nargs=len(values))
        if (kind := next(filter(None, map(_TYPES.get, names)), None)) is not None:
            details["type"] = kind
        group.add_argument(*names, help=" ".join(meaning.split()), **details)


def is_elastic(given: argparse.Namespace) -> bool:
    """Whether the command line describes an elastic job."""
    return given.host_discovery_script is not None or given.min_np is not None


def chosen_settings(given: argparse.Namespace) -> dict[str, Any]:
    """The settings that the command line sets, by their names.

    Raises:
        SettingError: a value is invalid; the text begins with option and value.
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
                raise SettingError(f"{setting.flag.name} {value}: {error}") from None
        chosen[setting.name] = value
    return chosen


def unused_options(given: argparse.Namespace, controller: str) -> list[str]:
    """A sentence for each option without an effect on a job that ``controller`` starts."""
    of_mpi = ("mpi_args", "binding_args")
    of_elastic = ("max_np", "reset_limit", "blacklist_cooldown_range")
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
    text = setting.text(setting.default, flag.factor if flag else 1) or "null"
    return f"'{text}'" if "," in text else text


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
        if word in _OF_WORDS and index + 1 < len(words):
            # Argparse would take a value such as "--partition=gpu" for an option of its own.
            words[index : index + 2] = [f"{word}={words[index + 1]}"]
        index += 1 + _values_taken(words[index], parser)
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
    _add(group, _MPI)


def _add_kubernetes(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--kubernetes",
        nargs="?",
        const=KINDS[0],
        choices=KINDS,
        metavar="job|mpijob",
        help="print a manifest for 'kubectl apply -f -' instead of starting anything: an Indexed "
        "Job, or with --kubernetes=mpijob an MPIJob for Kubeflow's operator",
    )
    _add(group, _KUBERNETES)


def named_interfaces(given: argparse.Namespace) -> tuple[str, ...]:
    """The interfaces that the command line names, without duplicates."""
    single = given.network_interface or []
    if any("," in name for name in single):
        text = "--network-interface A,B is deprecated; use --network-interfaces A,B"
        warnings.warn(text, DeprecationWarning, stacklevel=1)
    return interface_names([given.network_interfaces or "", *single])


def _add_settings(
    group: argparse._ArgumentGroup,
    topic: str,
    switches: argparse._MutuallyExclusiveGroup | None = None,
) -> None:
    """Add the flags of one topic; boolean ones go into ``switches``."""
    for setting in SETTINGS:
        flag = setting.flag
        if flag is None or flag.topic != topic:
            continue
        if flag.opposite:
            _add_switch(switches or group.add_mutually_exclusive_group(), setting, flag)
        else:
            text = _valued_help(setting, flag)
            group.add_argument(flag.name, dest=setting.name, metavar=_metavar(setting), help=text)


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
    if isinstance(setting.default, tuple):
        return "FORMAT[,FORMAT...]" if setting.choices else "CORE[,CORE...]"
    if setting.choices:
        return "LEVEL"
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
