"""Values that ``init`` must refuse, one after the other on every rank; then ``init`` works."""

from __future__ import annotations

import os
import socket
import time

import numpy as np

import horovod.numpy as hvd
from horovod.errors import InitError, SettingError

SETTINGS = {
    "HOROVOD_FUSION_THRESHOLD": ("abc", "-1", "1.5", "", "9" * 30),
    "HOROVOD_CACHE_CAPACITY": ("many", "-1", "99999999999"),
    "HOROVOD_CYCLE_TIME": ("soon", "-1", "nan", "inf", "1e300"),
    "HOROVOD_STALL_CHECK_DISABLE": ("maybe",),
    "HOROVOD_STALL_CHECK_TIME_SECONDS": ("x", "-1", "nan", "1e300"),
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": ("x", "-1", "1e300"),
    "HOROVOD_START_TIMEOUT": ("x", "0", "-1", "1e300"),
    "HOROVOD_LOG_LEVEL": ("loud",),
}


def refusal(name: str, value: str, kind: type[Exception]) -> str:
    """The error text of ``init`` for ``value``, raised within the start timeout."""
    before = os.environ.get(name)
    os.environ[name] = value
    began = time.monotonic()
    try:
        hvd.init()
    except kind as error:
        assert time.monotonic() - began < 10
        return str(error)
    else:
        raise AssertionError(f"{name}={value!r} was accepted")
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


def main() -> None:
    for name, values in SETTINGS.items():
        for value in values:
            text = refusal(name, value, SettingError)
            assert name in text, f"{name}={value!r}: {text}"
            assert value in text, f"{name}={value!r}: {text}"
    port = "HOROVOD_GLOO_RENDEZVOUS_PORT"
    assert port in refusal(port, "abc", InitError)
    assert port in refusal(port, "0", InitError)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        number = str(closed.getsockname()[1])
        assert f":{number}: [Errno 111] Connection refused" in refusal(port, number, InitError)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        os.environ["HOROVOD_START_TIMEOUT"] = "1"
        text = refusal(port, str(silent.getsockname()[1]), InitError)
        assert str(silent.getsockname()[1]) in text, text
        del os.environ["HOROVOD_START_TIMEOUT"]
    hvd.init()
    assert hvd.allreduce(np.ones(1), op=hvd.Sum)[0] == hvd.size()


if __name__ == "__main__":
    main()
