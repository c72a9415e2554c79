"""The numbers of the process sets of groups, which all processes of the world give out together.

A counter in torch's store gives new numbers, from half of the engine's on, since
``hvd.add_process_set`` takes the first ones. When all of these have been given, numbers of groups
that all of their ranks have left come again. A rank says what it has left when it makes its next
group: when a group ends, the process with the store may have ended, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from torch.distributed import Store  # type: ignore[attr-defined]

from horovod.core.assembly import World
from horovod.core.base.ranks import ranks_text
from horovod.errors import InitError
from horovod.rendezvous.base.deadlines import Deadline
from horovod.rendezvous.identity.torchrun import TorchStore
from horovod.torch.distributed.world import next_number, shared_store, store_of

_FIRST, _COUNT = 512, 512
_GRACE_S = 10.0  # to hear from the first rank which ones are missing
_LONGEST_WAIT_S = 10.0  # for a number to be given back: ranks may leave a group one by one


class SetNumber(NamedTuple):
    """The ``number`` of a process set; ``use`` tells apart the groups that have it in turn."""

    number: int
    use: int


class _Left(NamedTuple):
    number: SetNumber
    ranks: tuple[int, ...]


# Of one world.
_left: list[_Left] = []  # that the other processes do not know of yet
_places: list[int] = []  # in the queue of numbers that come again, where none was to be had
_of_world: World | None = None


def agree(
    world: World, store: Store, name: str, ranks: Sequence[int], timeout_s: float
) -> SetNumber:
    """The number of a new group, which its first rank takes when all have come.

    Args:
        store: the group's.
        ranks: of the world; all of them must say the same, in the same order.

    Raises:
        InitError: ranks did not come, or make another group; or there is no number left.
    """
    _begin(world)
    while _left:
        _tell(world, _left.pop())
    rank, own = world.identity.rank, store_of(store)
    # A group that has ended may have had the same name, and so the same keys.
    key = f"process_set/{next_number(f'made/{rank}', store)}"
    words = ",".join(map(str, ranks))
    own.set(f"{key}/of/{rank}", words.encode())
    if rank == ranks[0]:
        _answer(own, key, words, ranks, timeout_s)
    try:
        # The first rank waits less long, and knows which ranks are missing.
        answers = [f"{key}/number/{words}", f"{key}/refused"]
        answer = own.get_any(answers, timeout_s + _GRACE_S)[1].decode(errors="replace")
    except TimeoutError:
        _raise_missing(name, ranks[:1], timeout_s)
    what, _, rest = answer.partition("/")
    known = range(world.identity.size)
    if what == "missing":
        _raise_missing(name, _numbers(rest, known), timeout_s)
    if what == "differ":
        _raise_different(own, key, name, _numbers(rest, known), known)
    return _number_in(what, rest)


def _number_in(what: str, rest: str) -> SetNumber:
    if not _is_number(what, _COUNT) or not _is_number(rest):
        raise InitError(
            f"new_group: Horovod has room for {_COUNT} process groups at a time, and no group was "
            f"destroyed on all of its ranks within {_LONGEST_WAIT_S:g} s"
        )
    return SetNumber(_FIRST + int(what), int(rest))


def _answer(own: TorchStore, key: str, words: str, ranks: Sequence[int], timeout_s: float) -> None:
    """Tell the other ranks a number, or what is wrong, once they have come."""
    deadline, missing = Deadline(timeout_s), []
    for other in ranks[1:]:
        keys = [f"{key}/of/{other}", f"{key}/refused"]
        try:
            found, value = own.get_any(keys, deadline.remaining_s())
        except TimeoutError:
            missing.append(other)
            continue
        if found != keys[0]:
            return
        if value != words.encode():
            own.set(f"{key}/refused", f"differ/{ranks[0]},{other}".encode())
            return
    if missing:
        own.set(f"{key}/refused", f"missing/{','.join(map(str, missing))}".encode())
    else:
        own.set(f"{key}/number/{words}", _take().encode())


def _raise_missing(name: str, ranks: Sequence[int], timeout_s: float) -> NoReturn:
    raise InitError(
        f"new_group: {ranks_text(ranks)} did not make group {name!r} within {timeout_s:g} s; all "
        "ranks must make the same groups in the same order",
        ranks=ranks,
    )


def _raise_different(
    own: TorchStore, key: str, name: str, ranks: Sequence[int], known: Sequence[int]
) -> NoReturn:
    texts = []
    for rank in ranks:
        said = own.get(f"{key}/of/{rank}", _LONGEST_WAIT_S).decode(errors="replace")
        # In the order of the group, and nothing else: other programs reach torch's store, too.
        members = ",".join(map(str, _numbers(said, known)))
        texts.append(f"rank {rank} makes it of ranks {members}")
    raise InitError(
        f"new_group: ranks disagree about group {name!r}: {', '.join(texts)}; all ranks must make "
        "the same groups in the same order",
        ranks=ranks,
    )


def _numbers(words: str, known: Sequence[int]) -> list[int]:
    return [int(word) for word in words.split(",") if _is_number(word) and int(word) in known]


def give_back(world: World, number: SetNumber, ranks: Sequence[int]) -> None:
    """This process has left the group of these ranks."""
    _begin(world)
    _left.append(_Left(number, tuple(ranks)))


def _begin(world: World) -> None:
    global _of_world
    if _of_world is not world:
        _left.clear()
        _places.clear()
        _of_world = world


def _take() -> str:
    use = next_number("process_sets")
    if use < _COUNT:
        return f"{use}/{use}"
    place = _places.pop() if _places else next_number("process_sets/taken_again")
    try:
        found = store_of(shared_store()).get(f"process_sets/free/{place}", _LONGEST_WAIT_S)
    except TimeoutError:
        _places.append(place)
        return "none"
    return f"{found.decode()}/{use}"


def _tell(world: World, left: _Left) -> None:
    """The last rank of a host gives back the memory there, and the last host the number."""
    host, own = next(
        (number, set(ranks) & set(left.ranks))
        for number, ranks in enumerate(world.hosts)
        if world.identity.rank in ranks
    )
    hosts = sum(not set(ranks).isdisjoint(left.ranks) for ranks in world.hosts)
    key = f"process_sets/left/{left.number.use}"
    if next_number(f"{key}/{host}") + 1 < len(own):
        return
    world.engine.discard_process_set(left.number.number)
    if next_number(key) + 1 == hosts:
        place = next_number("process_sets/given_back")
        number = str(left.number.number - _FIRST)
        store_of(shared_store()).set(f"process_sets/free/{place}", number.encode())


def _is_number(text: str, end: int = 1 << 62) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 20 and int(text) < end
