"""What it costs to protect the links between two hosts, and what the cipher alone costs.

The hosts are namespaces of this machine with one rank each, joined by virtual cables without a
limit, so that processors are all there is to wait for. The ranks of three jobs, one for each
HOROVOD_LINK_PROTECTION, are alive at once and measured in turns, round after round. A figure is the
median over rounds of the slower rank's time per call.

"+ GMAC" and "+ AES-GCM" are floors: the time under "control" and that of the cipher, measured
beside it in one process, for the bytes that a rank sends and receives, since both take the same
core. The second table is what sealing and opening the control messages of a step takes, two of them
one after the other; ranks of one host have no such messages. Needs root.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from collectives import Work
from on_hosts import RanksOnHosts, open_hosts
from report import Bar, Table, format_time, print_report
from worker_groups import Commands, GroupSpec, WorkerGroup, measure_in_turns, open_groups

from horovod._native import LinkCipher
from horovod.rendezvous.protection import find_cipher
from horovod.settings import LINK_PROTECTIONS

_CONTROL, _INTEGRITY, _ENCRYPTED = LINK_PROTECTIONS
_SPECS = tuple(GroupSpec(level, level, "horovod") for level in LINK_PROTECTIONS)
_FLOORS = {_INTEGRITY: "+ GMAC", _ENCRYPTED: "+ AES-GCM"}
# Of the time under "control"; where that is less than the floor, so much of the floor.
_MOST = {_INTEGRITY: 1.25, _ENCRYPTED: 1.6}
_MOST_OF_FLOOR = 1.1
_LARGE = Work.parse("64MB")
_WORKS = (_LARGE, Work.parse("1000x4KB"), Work.parse("4B"))
_RECORD_BYTES = 128 * 1024  # as engine/transport/record_stream.h cuts them
_HEADER_BYTES = 4
_FIRST_BYTES = 32  # of a control message, as engine/transport/message_link.cc cuts it
_STEP = "a step between two hosts"
_MOST_FOR_A_STEP_S = 2e-6


def main() -> int:
    args = _parse_arguments()
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

        with open_groups(_SPECS, 2, "collective_loop:CollectiveLoop", start) as groups:
            for work in _WORKS:
                times.rows[work.label] = _measured(work, groups, rounds, cipher)
    times.bars = [_bar_for(level, times) for level in _FLOORS]
    messages = Table("control messages of a step: sealing and opening", ["time"], format_time)
    messages.rows[_STEP] = {
        "time": [2 * cipher.time_record(_FIRST_BYTES, True, 20_000) for _ in range(rounds)]
    }
    messages.bars = [Bar(_STEP, None, _MOST_FOR_A_STEP_S, contestant="time")]
    return 0 if print_report([times, messages], args.json) else 1


def _measured(
    work: Work, groups: Sequence[WorkerGroup], rounds: int, cipher: LinkCipher
) -> dict[str, list[float]]:
    print(f"measuring {work.label}", file=sys.stderr, flush=True)
    for group in groups:
        results = group.call(
            "prepare_sum", element_count=work.element_count, tensor_count=work.tensor_count
        )
        if any(result != work.expected(2) for result in results):
            raise RuntimeError(f"{group.name}: {work.label} gave {results}, not {work.expected(2)}")
    figures = measure_in_turns(groups, rounds=rounds, loop_s=0.3)
    for group in groups:
        group.call("release")
    if work is _LARGE:
        size_bytes = 4 * work.element_count * work.tensor_count
        for level, name in _FLOORS.items():
            figures[name] = [
                seconds + _cipher_s(cipher, size_bytes, level == _ENCRYPTED)
                for seconds in figures[_CONTROL]
            ]
    return figures


def _cipher_s(cipher: LinkCipher, size_bytes: int, is_encrypting: bool) -> float:
    """What it takes to seal and open as many bytes as a rank of two hosts sends and receives."""
    count = size_bytes // _RECORD_BYTES
    body_s = cipher.time_record(_RECORD_BYTES, is_encrypting, count)
    return count * (body_s + cipher.time_record(_HEADER_BYTES, True, count))


def _bar_for(level: str, times: Table) -> Bar:
    """Against what is more: the wanted part of "control", or the floor."""
    row = times.rows[_LARGE.label]
    control_s = statistics.median(row[_CONTROL])
    floor_s = statistics.median(row[_FLOORS[level]])
    if _MOST[level] * control_s >= floor_s:
        return Bar(_LARGE.label, _CONTROL, _MOST[level], contestant=level)
    return Bar(_LARGE.label, _FLOORS[level], _MOST_OF_FLOOR, contestant=level)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
