"""How links between hosts are protected: a libcrypto, and two keys for each link.

Control and news links are always sealed (AES-256-GCM, see ``engine/transport/seal.h``). For links
that carry tensors, ``HOROVOD_LINK_PROTECTION`` decides: ``control`` leaves them open, ``integrity``
adds a tag to the clear text, ``encrypted`` seals them. A world of one host loads no libcrypto.
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

_NAMES = ("libcrypto.so.3", "libcrypto.so.1.1")


@dataclass(frozen=True)
class LinkKeys:
    """The keys of one connection, one for each direction, as seen from one end."""

    send: bytes = field(repr=False)
    receive: bytes = field(repr=False)


def libcrypto_candidates() -> list[str]:
    """Names and paths of OpenSSL's library, in the order to try: the system's, then Python's."""
    folders = dict.fromkeys((sys.prefix, sys.base_prefix))
    return [*_NAMES, *(str(Path(folder) / "lib" / name) for folder in folders for name in _NAMES)]


@cache
def find_cipher() -> _native.LinkCipher | str:
    """The cipher for the links of this process; or why there is none and what was looked for."""
    from horovod import _native

    try:
        return _native.LinkCipher(libcrypto_candidates())
    except HorovodInternalError as error:
        return str(error)


def leader_seals(cipher: _native.LinkCipher, keys: LinkKeys) -> _native.LinkSeals:
    """The seals of a control or news link."""
    return cipher.seals(keys.send, keys.receive, is_encrypting=True)


def data_seals(cipher: _native.LinkCipher, keys: LinkKeys, level: str) -> _native.LinkSeals | None:
    """The seals of a data link under this level of protection; None for no seals."""
    if level == "control":
        return None
    return cipher.seals(keys.send, keys.receive, is_encrypting=level == "encrypted")
