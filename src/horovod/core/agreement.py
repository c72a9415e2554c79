"""How ranks agree on something outside of collectives: each gives a value, and all compare.

Process sets use it. Messages are JSON with a code, so an altered one ends the world.
"""

from __future__ import annotations

import json
import reprlib
from typing import TYPE_CHECKING, Any

from horovod.core.base.checked import BadMessageError, printable, read_json
from horovod.core.object_codes import ObjectCodes
from horovod.errors import AlteredObjectError, HorovodInternalError, InitError, MismatchError

if TYPE_CHECKING:
    from horovod import _native


class Agreement:
    """All ranks of one world. ``key`` is the world's, for the codes of messages."""

    def __init__(self, engine: _native.Engine, key: bytes, rank: int, size: int) -> None:
        self._engine = engine
        self._key = key
        self._rank = rank
        self._size = size

    def agree(
        self, operation: str, name: str, proposal: Any, problem: str | None, error: type[Exception]
    ) -> None:
        """Raise the same error on every rank if some rank has a problem or wants something else."""
        gathered = self.gather(name, [proposal, problem])
        answers = [_proposal_in(rank, answer) for rank, answer in enumerate(gathered)]
        problems = [f"rank {rank} {text}" for rank, (_, text) in enumerate(answers) if text]
        if problems:
            raise error(f"{operation}: {'; '.join(problems)}")
        first = answers[0][0]
        for rank, (other, _) in enumerate(answers):
            if other != first:
                text = f"{operation}: rank {rank} asked for {other}, rank 0 for {first}"
                raise (InitError if error is InitError else MismatchError)(text)

    def gather(self, name: str, message: Any) -> list[bytes]:
        """The messages of all ranks as JSON, each as its rank has sent it.

        A code covers only the agreement's name. So ranks that want different operations can read
        each other's messages.

        Raises:
            AlteredObjectError: one was altered on its way; the world is over.
        """
        payload = json.dumps(message).encode()
        codes = ObjectCodes(self._key, "agreement", name, 0, self._rank, len(payload))
        try:
            codes.receive(self._engine.gather(name, codes.row), range(self._size))
            lengths = codes.lengths()
            records = self._engine.gather(f"{name}.t", payload + codes.code(payload))
            return codes.payloads(lengths, records)
        except AlteredObjectError as error:
            self._engine.end_world(str(error))
            raise


def groups_in(rank: int, answer: bytes, count: int) -> list[list[int] | None]:
    """The ranks of each of its communicators, of ``count`` sets; as above."""
    found = _json_of(rank, "communicators", answer)
    if not isinstance(found, list) or len(found) != count:
        raise _bad_answer(rank, "communicators", found, f"{count} of them")
    for ranks in found:
        is_group = isinstance(ranks, list) and all(type(each) is int for each in ranks)
        if ranks is not None and not is_group:
            raise _bad_answer(rank, "communicators", ranks, "ranks")
    return found


def _proposal_in(rank: int, answer: bytes) -> tuple[Any, str | None]:
    """The proposal of a rank, and its problem; HorovodInternalError for anything else."""
    found = _json_of(rank, "proposal", answer)
    is_pair = isinstance(found, list) and len(found) == 2
    if not is_pair or not isinstance(found[1], (str, type(None))):
        raise _bad_answer(rank, "proposal", found, "a proposal and a text")
    return found[0], None if found[1] is None else printable(found[1])


def _json_of(rank: int, message: str, answer: bytes) -> Any:
    try:
        return read_json(message, answer)
    except BadMessageError as error:
        raise HorovodInternalError(str(error.of(f"rank {rank}")), ranks=[rank]) from None


def _bad_answer(rank: int, message: str, found: object, expected: str) -> HorovodInternalError:
    text = printable(reprlib.repr(found))
    error = BadMessageError(message, "values", text, expected, f"rank {rank}")
    return HorovodInternalError(str(error), ranks=[rank])
