"""Process sets: named subsets of the world that run collectives of their own.

    evens = hvd.add_process_set([0, 2])
    hvd.allreduce(tensor, process_set=evens)

All ranks of the world register the same sets, at ``init`` or, in dynamic mode, later; only members
may use one. Sets may overlap, and operations on different sets never wait for each other. ``world``
opens the registry when a world begins and closes it at its end. The engine allocates for a set when
it is first used.
"""

from __future__ import annotations

import hashlib
import json
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from horovod.backends.data_plane import DataPlane, EngineAdapter
from horovod.core.agreement import Agreement, groups_in
from horovod.core.base.mpi_library import is_null, ranks_within
from horovod.core.base.on_error import on_error
from horovod.core.process_set import ProcessSet as ProcessSet
from horovod.core.process_set import current_registry, replace_registry
from horovod.core.process_set import global_process_set as global_process_set
from horovod.errors import InitError
from horovod.rendezvous.bootstrap import SetLinks

if TYPE_CHECKING:
    from horovod import _native

# Connections of a set, given its number and ranks; see ``SetConnector.connect_set``.
ConnectSet = Callable[[int, Sequence[int]], SetLinks]


@dataclass(eq=False, repr=False)
class Registry:
    """The process sets of one world; the same on all its ranks.

    ``_key`` is the world's, for the codes of objects. ``_connect_set`` connects the members of a
    set, where the world is on several hosts.
    """

    _engine: _native.Engine
    _key: bytes
    rank: int
    _size: int
    is_dynamic: bool
    _connect_set: ConnectSet | None = None
    _data_plane: DataPlane | None = None
    _comm: Any = None
    refusal: str = ""  # in a forked child, where sets can be read only

    def __post_init__(self) -> None:
        self._agreement = Agreement(self._engine, self._key, self.rank, self._size)
        self._sets: dict[int, ProcessSet] = {0: global_process_set}
        global_process_set.ranks = list(range(self._size))
        global_process_set.mpi_comm = self._comm

    def members(self, process_set_id: int) -> list[int]:
        found = self._sets.get(process_set_id)
        if found is None or found.ranks is None:
            raise ValueError(f"process set {process_set_id} is not registered")
        return found.ranks

    def register_at_start(self, process_sets: Sequence[ProcessSet], *, is_agreed: bool) -> None:
        """Register these sets, which all ranks must have been given alike, in this order.

        ``is_agreed``: all ranks have shown the same ``proposal_of`` these sets.
        """
        if not is_agreed:
            process_sets = self._agreed(process_sets)
        for process_set in process_sets:
            self._register("init", process_set)

    def _agreed(self, process_sets: Sequence[ProcessSet]) -> Sequence[ProcessSet]:
        """The same sets, if all ranks were given the same ones."""
        given = _given(process_sets)
        proposal = {"dynamic": self.is_dynamic, "process_sets": given}
        problem = _problem_of_all([s for s in process_sets if s.mpi_comm is None], self._size)
        self._agreement.agree("init", "process_sets.init", proposal, problem, InitError)
        if _COMMUNICATOR in given:
            return self._with_communicators(process_sets)
        return process_sets

    def _with_communicators(self, process_sets: Sequence[ProcessSet]) -> list[ProcessSet]:
        """The same sets, with one for every communicator that some rank gave in its place."""
        comms, whole = [s.mpi_comm for s in process_sets], global_process_set.mpi_comm
        # The world's numbers of a communicator's processes; None where this one has none.
        own = [
            None if comm is None or is_null(comm) else sorted(ranks_within(comm, whole))
            for comm in comms
        ]
        name = "process_sets.communicators"
        answers = self._agreement.gather(name, own)
        of_all = [groups_in(rank, a, len(own)) for rank, a in enumerate(answers)]
        result: list[ProcessSet] = []
        for position, process_set in enumerate(process_sets):
            if process_set.mpi_comm is None:
                result.append(process_set)
                continue
            # The different ones among those of all ranks, in the order of their lowest ranks.
            found = {tuple(answer[position] or ()) for answer in of_all}
            groups = [list(ranks) for ranks in sorted(found) if ranks]
            for ranks in groups:
                is_own = self.rank in ranks or len(groups) == 1
                each = process_set if is_own else ProcessSet(ranks)
                each.ranks = ranks
                result.append(each)
        problem = _problem_of_all(result, self._size)
        self._agreement.agree("init", name, [s.ranks for s in result], problem, InitError)
        return result

    def add(self, process_set: ProcessSet) -> None:
        proposal = {"add": process_set.ranks}
        problem = _problem_of(process_set, self._size, self._sets)
        self._agreement.agree(
            "add_process_set", "process_sets.change", proposal, problem, ValueError
        )
        self._register("add_process_set", process_set)

    def remove(self, process_set: ProcessSet) -> bool:
        number = process_set.process_set_id
        is_known = number is not None and self._sets.get(number) is process_set
        proposal = {"remove": number if is_known else None}
        pending = self._engine.pending_on(number) if is_known and number else 0
        problem = f"has {pending} pending operations on it; synchronize them first"
        self._agreement.agree(
            "remove_process_set",
            "process_sets.change",
            proposal,
            problem if pending else None,
            ValueError,
        )
        if not is_known or number is None or number == 0:
            return False
        del self._sets[number]
        process_set.process_set_id = None
        self._engine.remove_process_set(number)
        if self._data_plane is not None:
            self._data_plane.disconnect(number)
        self._engine.gather("process_sets.removed", b"")
        if self._engine.leads_host:
            self._engine.discard_process_set(number)
        return True

    def ids_and_ranks(self) -> dict[int, list[int]]:
        return {number: list(self.members(number)) for number in sorted(self._sets)}

    def close(self) -> None:
        for number, process_set in self._sets.items():
            if number != 0:
                process_set.process_set_id = None
        global_process_set.ranks = None
        global_process_set.mpi_comm = None

    def _register(self, operation: str, process_set: ProcessSet) -> None:
        number = next(n for n in range(len(self._sets) + 1) if n not in self._sets)
        assert process_set.ranks is not None
        links, adapter = self._connect(operation, number, process_set)
        self._engine.add_process_set(
            number, process_set.ranks, adapter, list(links.control), list(links.data)
        )
        process_set.process_set_id = number
        self._sets[number] = process_set

    def _connect(
        self, operation: str, number: int, process_set: ProcessSet
    ) -> tuple[SetLinks, EngineAdapter | None]:
        """The set's connections between hosts, and its data plane if that is not the engine's.

        All ranks get them, or raise alike, members or not.
        """
        links, adapter, problem = SetLinks(), None, None
        if process_set.ranks is None or (self._connect_set is None and self._data_plane is None):
            return links, adapter
        try:
            if self._connect_set is not None:
                links = self._connect_set(number, process_set.ranks)
            if self._data_plane is not None:
                adapter = self._data_plane.connect(number, process_set.ranks, process_set.mpi_comm)
        except InitError as failure:
            problem = f"cannot connect process set {process_set.ranks}: {failure.reason}"
        with on_error(links.close):
            self._agreement.agree(
                operation, "process_sets.connect", {"connect": number}, problem, InitError
            )
        return links, adapter


_COMMUNICATOR = "communicator"  # of which ranks do not know yet what the others have


def proposal_of(process_sets: Sequence[ProcessSet], is_dynamic: bool, size: int) -> str:
    """A digest of the sets that a rank wants in a world of ``size``; empty if they cannot be.

    Ranks that show the same one need not agree on the sets. With communicators they have to.
    """
    given = _given(process_sets)
    if _COMMUNICATOR in given or _problem_of_all(process_sets, size):
        return ""
    return hashlib.sha256(json.dumps([is_dynamic, given]).encode()).hexdigest()


def _given(process_sets: Sequence[ProcessSet]) -> list[Any]:
    return [_COMMUNICATOR if s.mpi_comm is not None else s.ranks for s in process_sets]


def _problem_of(
    process_set: ProcessSet, size: int, registered: Mapping[int, ProcessSet]
) -> str | None:
    """Why this set cannot be registered beside others; None if it can."""
    ranks = process_set.ranks or []
    if process_set.process_set_id is not None:
        return f"gave {process_set}, which is registered already"
    if not ranks:
        return "gave a process set without ranks"
    if len(set(ranks)) != len(ranks):
        return f"gave a process set that contains a rank twice: {ranks}"
    if ranks[0] < 0 or ranks[-1] >= size:
        return f"gave ranks {ranks}; the world has ranks 0 to {size - 1}"
    for number, other in registered.items():
        if other.ranks == ranks:
            return f"gave a duplicate process set: {ranks} is process set {number} already"
    return None


def _problem_of_all(process_sets: Sequence[ProcessSet], size: int) -> str | None:
    """Why these sets cannot be registered beside the global one; None if they can."""
    registered = {0: ProcessSet(range(size))}
    for index, process_set in enumerate(process_sets):
        problem = _problem_of(process_set, size, registered)
        if problem is None and process_set.ranks in [s.ranks for s in process_sets[:index]]:
            problem = f"gave a duplicate process set: {process_set.ranks}"
        if problem is not None:
            return f"{problem} (process_sets[{index}])"
    return None


_DYNAMIC = "HOROVOD_DYNAMIC_PROCESS_SETS"


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Register a process set; blocks until every rank of the world has called it alike.

    Args:
        process_set: the set, or its ranks; the same on every rank, members or not, and in the same
            order among all calls of ``add_process_set`` and ``remove_process_set``.

    Returns:
        The registered set.

    Raises:
        ValueError: Horovod is not initialized or not in dynamic mode; on some rank the set is a
            duplicate or has ranks that do not exist, which is raised on all ranks.
        InitError: (a ``ValueError``) its ranks are on several hosts and cannot be connected.
        NotImplementedError: the set is a communicator; ``init`` alone takes those.
        MismatchError: ranks want different changes.
    """
    registry = _dynamic_registry("add_process_set")
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    if process_set.mpi_comm is not None:
        raise NotImplementedError(
            "add_process_set: a process set of an mpi4py communicator can be given to init only; "
            "list its ranks"
        )
    registry.add(process_set)
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Remove a process set and give its memory back; blocks until every rank has called it alike.

    Returns:
        False for the global set and for sets that are not registered, else True; the object is not
        registered any more.

    Raises:
        ValueError: Horovod is not initialized or not in dynamic mode, or this is no process set;
            some rank has pending operations on the set, which is raised on all ranks.
        MismatchError: ranks want different changes.
    """
    registry = _dynamic_registry("remove_process_set")
    check_process_set(process_set)
    return registry.remove(process_set)


def check_process_set(process_set: object) -> None:
    """Refuse an object that is no process set.

    Raises:
        ValueError: it is, for example, a list of ranks.
    """
    if not isinstance(process_set, ProcessSet):
        raise ValueError(f"process_set must be a ProcessSet, found {reprlib.repr(process_set)}")


def number_of(process_set: object) -> int:
    """The number of a registered set, under which the engine knows it.

    Before ``init`` only the global set has one: graphs are sometimes built before.

    Raises:
        ValueError: this is no process set, or it is not registered in this world.
    """
    check_process_set(process_set)
    assert isinstance(process_set, ProcessSet)
    number = process_set.process_set_id
    if number is None:
        raise ValueError(
            f"{process_set} is not registered; give it to init or add_process_set on all ranks"
        )
    if number != 0:
        current_registry().members(number)
    return number


def ids_and_ranks() -> dict[int, list[int]]:
    """All registered sets: ranks by id."""
    return current_registry().ids_and_ranks()


def open_registry(
    registry: Registry, process_sets: Sequence[ProcessSet], *, is_agreed: bool = False
) -> None:
    """Begin a world's process sets: the global one and these; blocks until all ranks agree.

    ``is_agreed`` as in ``Registry.register_at_start``.

    Raises:
        InitError: a set cannot be, or ranks were given different sets; on all ranks alike.
        AlteredObjectError: what a rank has sent was altered; the world is over.
    """
    with on_error(registry.close):
        registry.register_at_start(process_sets, is_agreed=is_agreed)
    replace_registry(registry)


def close_registry() -> None:
    """End of the world: no set is registered any more."""
    registry = replace_registry(None)
    if registry is not None:
        registry.close()


def freeze_registry(refusal: str) -> None:
    """In a forked child: sets keep what they say of themselves, and ``refusal`` refuses changes."""
    registry = replace_registry(None)
    if registry is not None:
        registry.refusal = refusal
        replace_registry(registry)


def _dynamic_registry(operation: str) -> Registry:
    registry = current_registry()
    if registry.refusal:
        raise ValueError(f"{operation}: {registry.refusal}")
    if not registry.is_dynamic:
        raise ValueError(
            f"{operation} needs dynamic process sets: call hvd.init(process_sets='dynamic') or set "
            f"{_DYNAMIC}=1 on all ranks"
        )
    return registry
