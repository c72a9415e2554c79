"""``horovodrun --doctor``: find the job, ask its ranks, look, print."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping

from horovod.launch.doctor.examination import examine
from horovod.launch.doctor.jobs import NothingFoundError, find_job, gather
from horovod.launch.doctor.report import as_json, as_text
from horovod.launch.doctor.words import printable

__all__ = ["run_doctor"]


def run_doctor(job: str, environ: Mapping[str, str], *, is_json: bool) -> int:
    """Look at ``job`` (see ``find_job``), print, and return the exit status.

    That is 0 where nothing is wrong, 1 where something is, 2 where there is nothing to look at,
    141 where standard output has been closed.
    Blocks for half a second if the job runs, and for 5 s if ranks do not answer.
    """
    try:
        evidence = gather(find_job(job, environ))
    except (NothingFoundError, OSError) as error:
        print(f"horovodrun: --doctor: {printable(str(error))}", file=sys.stderr)
        return 2
    examination = examine(evidence.worlds, evidence.states, evidence.outcome)
    if is_json:
        text = json.dumps(as_json(evidence, examination), indent=2)
    else:
        text = as_text(evidence, examination, has_colour=sys.stdout.isatty())
    try:
        print(text, flush=True)
    except BrokenPipeError:  # the reader has what it wanted
        # Python flushes once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    return 0 if examination.is_healthy else 1
