"""What keeps the connections between hosts as they were sent: a libcrypto, and keys for each link.

Control and news links are always sealed (AES-256-GCM, see ``engine/transport/seal.h``); those that
carry tensors as ``HOROVOD_LINK_PROTECTION`` says: ``control``, not at all; ``integrity``, in the
clear with a tag; ``encrypted``. Nothing of this is loaded in a world of one host.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from horovod.errors import HorovodInternalError

if TYPE_CHECKING:
    from horovod import _native

__all__ = ["LinkKeys", "data_seals", "find_cipher", "leader_seals"]

_NAMES = ("libcrypto.so.3", "libcrypto.so.1.1")


@dataclass(frozen=True)
class LinkKeys:
    """The keys of one connection, one for each direction, as one of its ends has them."""

    send: bytes = field(repr=False)
    receive: bytes = field(repr=False)


def libcrypto_candidates() -> list[str]:
    """Names and paths of OpenSSL's library to try, best first: the system's, then Python's own."""
    folders = dict.fromkeys((sys.prefix, sys.base_prefix))
    return [*_NAMES, *(str(Path(folder) / "lib" / name) for folder in folders for name in _NAMES)]


@cache
def find_cipher() -> _native.LinkCipher | str:
    """What seals this process' links; or why nothing can, with what was looked for."""
    from horovod import _native

    try:
        return _native.LinkCipher(libcrypto_candidates())
    except HorovodInternalError as error:
        return str(error)


def leader_seals(cipher: _native.LinkCipher, keys: LinkKeys) -> _native.LinkSeals:
    """What seals a link for control or news."""
    return cipher.seals(keys.send, keys.receive, is_encrypting=True)


def data_seals(cipher: _native.LinkCipher, keys: LinkKeys, level: str) -> _native.LinkSeals | None:
    """What seals a link for tensors under this level of protection; None for no seals."""
    if level == "control":
        return None
    return cipher.seals(keys.send, keys.receive, is_encrypting=level == "encrypted")
