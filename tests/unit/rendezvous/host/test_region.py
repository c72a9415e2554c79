"""The memory that the ranks of a host share, where the system refuses it."""

from __future__ import annotations

import errno
import os
from typing import NoReturn

import pytest

from horovod.errors import InitError
from horovod.rendezvous.host import root


def refusing(number: int) -> object:
    def refuse(*_: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    return refuse


def test_a_file_takes_the_place_of_anonymous_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "memfd_create", refusing(errno.EPERM))
    fd = root.make_region(1 << 20)
    try:
        assert os.fstat(fd).st_size == 1 << 20
        assert os.fstat(fd).st_nlink == 0
    finally:
        os.close(fd)


def test_without_both_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "memfd_create", refusing(errno.EPERM))
    monkeypatch.setattr(os, "posix_fallocate", refusing(errno.ENOSPC))
    with pytest.raises(InitError, match=r"192 MiB .*No space left.*--shm-size=1g") as told:
        root.make_region(1 << 40)
    assert "memfd_create: [Errno 1]" in str(told.value)
    assert not [name for name in os.listdir("/dev/shm") if name.startswith("horovod-")]
