"""torch's own tests of process groups, out of the installed wheel, on a backend of our choice.

    python tests/c10d/suite.py --backend horovod --ranks 2 --json out.json [-k NAME] [--part 2/5]

torch chooses tests, and what they do, by the name of the backend. So they run as for Gloo, and a
group that is to be Gloo's gets our backend. Ranks are forked: they need not import torch.
``compare.py`` runs it for two backends and prints what differs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import unittest
from pathlib import Path
from typing import Any

import torch.distributed

_NEED_GPUS = ("cuda", "nccl", "multigpu")
_HOST = {"MASTER_ADDR": "127.0.0.1", "BACKEND": "gloo", "TEMP_DIR": ""}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="horovod")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("-k", dest="pattern", default="")
    parser.add_argument("--names", nargs="*", help="only these tests")
    parser.add_argument("--part", default="1/1", help="the k-th of n parts of the tests, k/n")
    return parser.parse_args()


def _suite(backend: str, ranks: int) -> type[unittest.TestCase]:
    """torch's class of tests, with ``ranks`` forked processes on ``backend``."""
    import tempfile

    os.environ.update(_HOST, WORLD_SIZE=str(ranks), TEMP_DIR=tempfile.mkdtemp(prefix="c10d-"))
    from torch.testing._internal.distributed import distributed_test as torch_tests

    for name in ("PROFILING_SUPPORTED_BACKENDS", "SEND_RECV_PROFILING_SUPPORTED_BACKENDS"):
        getattr(torch_tests, name).clear()  # they look for Gloo's own events
    _replace_gloo(backend)

    class Suite(torch_tests.TestDistBackend, torch_tests.DistributedTest._DistTestBase):  # type: ignore[misc]
        def setUp(self) -> None:
            super().setUp()
            fork = torch_tests.torch.multiprocessing.get_context("fork")
            self._start_processes(fork.Process)

    return Suite


def _replace_gloo(backend: str) -> None:
    """Groups on Gloo are on ``backend`` from now on, and say that they are on Gloo."""
    from torch.distributed import distributed_c10d as c10d

    make, get_backend = c10d._new_process_group_helper, c10d.get_backend

    def make_other(
        size: int, rank: int, ranks: list[int], name: object, *args: Any, **named: Any
    ) -> Any:
        other = c10d.Backend(backend) if str(name) == "gloo" else name
        return make(size, rank, ranks, other, *args, **named)

    def named_gloo(*args: Any, **named: Any) -> str:
        found = get_backend(*args, **named)
        return "gloo" if found == backend else found

    c10d._new_process_group_helper = make_other
    c10d.get_backend = torch.distributed.get_backend = named_gloo


class _Result(unittest.TextTestResult):
    """Also keeps what became of each test."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.found: dict[str, list[str]] = {}

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802
        self._began = time.monotonic()
        super().startTest(test)

    def _note(self, test: unittest.TestCase, outcome: str, text: str = "") -> None:
        seconds = f"{time.monotonic() - self._began:.1f}"
        self.found[test._testMethodName] = [outcome, text, seconds]

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802
        self._note(test, "passed")
        super().addSuccess(test)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        self._note(test, "skipped", reason)
        super().addSkip(test, reason)

    def addFailure(self, test: unittest.TestCase, err: object) -> None:  # noqa: N802
        self._note(test, "failed", self._exc_info_to_string(err, test)[-3000:])  # type: ignore[attr-defined]
        super().addFailure(test, err)  # type: ignore[arg-type]

    def addError(self, test: unittest.TestCase, err: object) -> None:  # noqa: N802
        self._note(test, "failed", self._exc_info_to_string(err, test)[-3000:])  # type: ignore[attr-defined]
        super().addError(test, err)  # type: ignore[arg-type]


def main() -> int:
    arguments = _arguments()
    suite_class = _suite(arguments.backend, arguments.ranks)
    names = [
        name
        for name in unittest.TestLoader().getTestCaseNames(suite_class)
        if arguments.pattern in name and not any(word in name for word in _NEED_GPUS)
        if arguments.names is None or name in arguments.names
    ]
    part, parts = map(int, arguments.part.split("/"))
    suite = unittest.TestSuite(suite_class(name) for name in names[part - 1 :: parts])
    runner = unittest.TextTestRunner(verbosity=2, resultclass=_Result, stream=sys.stderr)
    result = runner.run(suite)
    assert isinstance(result, _Result)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(result.found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
