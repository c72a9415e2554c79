"""The store and the secret of a job whose ranks are started one by one, without ``horovodrun``."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from pathlib import Path

from network import Host

from horovod.core.base.rank_info import RankInfo

__all__ = ["JobStore"]

_SCRIPT = Path(__file__).with_name("store_process.py")
_SECRET_BYTES = 32
_END_TIMEOUT_S = 120.0


class JobStore:
    """A store on ``host`` until ``close``; its reports go to the file ``errors``."""

    def __init__(self, host: Host, errors: Path) -> None:
        self._secret = base64.b64encode(os.urandom(_SECRET_BYTES)).decode()
        self._errors = errors
        with errors.open("w") as stderr:
            self._process = host.start(
                [sys.executable, str(_SCRIPT), host.address],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(self._secret, file=self._process.stdin, flush=True)
        port = self._process.stdout.readline()
        if not port:
            self.close()
            raise RuntimeError(f"the store did not start: {self.reports}")
        self.address = (host.address, int(port))

    @property
    def reports(self) -> str:
        """The store's reports of refused connections."""
        return self._errors.read_text()

    def variables(self, rank_info: RankInfo) -> dict[str, str]:
        """The variables of a launcher for the process of this slot."""
        address, port = self.address
        return {
            "HOROVOD_RANK": str(rank_info.rank),
            "HOROVOD_SIZE": str(rank_info.size),
            "HOROVOD_LOCAL_RANK": str(rank_info.local_rank),
            "HOROVOD_LOCAL_SIZE": str(rank_info.local_size),
            "HOROVOD_CROSS_RANK": str(rank_info.cross_rank),
            "HOROVOD_CROSS_SIZE": str(rank_info.cross_size),
            "HOROVOD_HOSTNAME": rank_info.hostname,
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": address,
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
            "_HOROVOD_SECRET_KEY": self._secret,
            "PYTHONUNBUFFERED": "1",
        }

    def close(self) -> None:
        """End the store."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(_END_TIMEOUT_S)
