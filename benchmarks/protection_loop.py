"""The measured loop of ``link_protection.py``; runs in the workers."""

from __future__ import annotations

from collective_loop import CollectiveLoop

from horovod.rendezvous.base.protection import find_cipher

__all__ = ["ProtectionLoop"]

_RECORD_BYTES = 128 * 1024  # as engine/transport/record_stream.h cuts them
_HEADER_BYTES = 4


class ProtectionLoop(CollectiveLoop):
    """A collective, alone or followed by the cipher."""

    def measure_with_cipher(
        self, *, iterations: int, size_bytes: int, is_encrypting: bool
    ) -> float:
        """As ``measure``; after each call the rank seals and opens ``size_bytes`` in memory."""
        cipher = find_cipher()
        if isinstance(cipher, str):
            raise RuntimeError(cipher)
        records = size_bytes // _RECORD_BYTES
        operation = self._run

        def run_both() -> None:
            operation()
            cipher.time_record(_RECORD_BYTES, is_encrypting, records)
            cipher.time_record(_HEADER_BYTES, True, records)

        self._run = run_both
        try:
            return self.measure(iterations=iterations)
        finally:
            self._run = operation
