"""Why a meeting of ranks has failed, as one of them tells the others: a text, and which ranks."""

from __future__ import annotations

import json

from horovod.core.base.checked import MOST_RANKS, BadMessageError, Fields, printable
from horovod.errors import InitError

__all__ = ["MOST_TEXT", "as_failure", "decode_failure", "encode_failure"]

MOST_TEXT = 16 * 1024
_MOST_HOST = 255


def as_failure(rank: int, error: BaseException) -> InitError:
    """What the others are to hear when ``rank`` ends a meeting because of ``error``."""
    if isinstance(error, InitError):
        return error
    return InitError(f"init: rank {rank} gave up: {error!r}", ranks=[rank])


def encode_failure(error: InitError) -> bytes:
    """``error`` as it travels; long texts are cut."""
    fields = {"text": str(error)[:MOST_TEXT], "ranks": error.ranks, "host": error.host}
    text = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="replace")


def decode_failure(value: bytes, sender: str) -> InitError:
    """The error in ``value``; or one that says what is wrong with that message of ``sender``."""
    try:
        fields = Fields.read("failure", value)
        error = InitError(
            printable(fields.text("text", MOST_TEXT)),
            ranks=fields.integers("ranks", 0, MOST_RANKS - 1),
            host=printable(fields.text("host", _MOST_HOST)),
        )
        fields.close()
    except BadMessageError as bad:
        return InitError(f"init: {bad.of(sender)}")
    return error
