"""The cost of link protection between two hosts, and of the cipher alone.

The hosts are namespaces of this machine with one rank each, joined by virtual cables without a
limit, so only processors limit the speed. The ranks of three jobs, one for each
HOROVOD_LINK_PROTECTION, are alive at once and measured in turns, round after round. A figure is the
median over rounds of the slower rank's time per call.

"+ GMAC" and "+ AES-GCM" are floors: the ranks of "control" do the same and then run the cipher
over the number of bytes that each sends and receives. The second table is the time to seal and
open the control messages of a step, two of them one after the other; one host has none.
Needs root.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from collectives import Work, prepare
from command_line import make_parser
from on_hosts import RanksOnHosts, open_hosts
from report import Bar, Table, format_time, print_report
from worker_groups import Commands, GroupSpec, WorkerGroup, measure_in_turns, open_groups

from horovod.core.base.engine_settings import LINK_PROTECTIONS
from horovod.rendezvous.base.protection import find_cipher

_CONTROL, _INTEGRITY, _ENCRYPTED = LINK_PROTECTIONS
_SPECS = tuple(GroupSpec(level, level, "horovod") for level in LINK_PROTECTIONS)
_FLOORS = {_INTEGRITY: "+ GMAC", _ENCRYPTED: "+ AES-GCM"}
# Limits as a factor of the time under "control"; if that is below the floor, of the floor.
_MOST = {_INTEGRITY: 1.25, _ENCRYPTED: 1.6}
_MOST_OF_FLOOR = 1.2
_LARGE = Work.parse("64MB")
_WORKS = (_LARGE, Work.parse("1000x4KB"), Work.parse("4B"))
_FIRST_BYTES = 32  # of a control message, as engine/transport/message_link.cc cuts it
_STEP = "a step between two hosts"
_MOST_FOR_A_STEP_S = 2e-6


def main() -> int:
    args = make_parser(__doc__, "fewer rounds").parse_args()
    cipher = find_cipher()
    if isinstance(cipher, str):
        raise RuntimeError(cipher)
    times = Table(
        f"allreduce between two hosts, by protection: time per call ({cipher.version})",
        [*LINK_PROTECTIONS, *_FLOORS.values()],
        format_time,
        rows={work.label: {} for work in _WORKS},
    )
    rounds = 3 if args.quick else 9
    with open_hosts(2) as (network, servers), closing(RanksOnHosts(network, servers, 1)) as ranks:

        def start(level: str, count: int, words: Sequence[str], store: str) -> Commands:
            own = {"HOROVOD_LINK_PROTECTION": level}
            commands = ranks("horovodrun", count, words, store)
            return [(command, {**environment, **own}) for command, environment in commands]

        with open_groups(_SPECS, 2, "protection_loop:ProtectionLoop", start) as groups:
            for work in _WORKS:
                times.rows[work.label] = _measured(work, groups, rounds)
    times.bars = [_bar_for(level, times) for level in _FLOORS]
    messages = Table("control messages of a step: sealing and opening", ["time"], format_time)
    messages.rows[_STEP] = {
        "time": [2 * cipher.time_record(_FIRST_BYTES, True, 500) for _ in range(20 * rounds)]
    }
    messages.bars = [Bar(_STEP, None, _MOST_FOR_A_STEP_S, contestant="time")]
    return print_report([times, messages], args.json)


class _Floor:
    """The group without protection, followed by the cipher, for ``measure_in_turns``."""

    def __init__(self, level: str, control: WorkerGroup, size_bytes: int) -> None:
        self.name = _FLOORS[level]
        self._control = control
        self._what = {"size_bytes": size_bytes, "is_encrypting": level == _ENCRYPTED}

    def call(self, method: str, **arguments: Any) -> list[Any]:
        return self._control.call(f"{method}_with_cipher", **arguments, **self._what)


def _measured(work: Work, groups: Sequence[WorkerGroup], rounds: int) -> dict[str, list[float]]:
    print(f"measuring {work.label}", file=sys.stderr, flush=True)
    for group in groups:
        prepare(group, work, 2)
    floors = []
    if work is _LARGE:
        floors = [_Floor(level, groups[0], 4 * work.element_count) for level in _FLOORS]
    figures = measure_in_turns([*groups, *floors], rounds=rounds, loop_s=0.3)
    for group in groups:
        group.call("release")
    return figures


def _bar_for(level: str, times: Table) -> Bar:
    """A bar against the larger one: the limit from "control", or from the floor."""
    row = times.rows[_LARGE.label]
    control_s = statistics.median(row[_CONTROL])
    floor_s = statistics.median(row[_FLOORS[level]])
    if _MOST[level] * control_s >= floor_s:
        return Bar(_LARGE.label, _CONTROL, _MOST[level], contestant=level)
    return Bar(_LARGE.label, _FLOORS[level], _MOST_OF_FLOOR, contestant=level)


if __name__ == "__main__":
    sys.exit(main())
