"""The registry of one world's process sets, and how all ranks agree about them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from horovod.backends.data_plane import DataPlane
from horovod.backends.engine_adapter import EngineAdapter
from horovod.core.agreement import Agreement, groups_in
from horovod.core.base.mpi_library import is_null, ranks_within
from horovod.core.process_set import ProcessSet, global_process_set
from horovod.errors import InitError
from horovod.rendezvous.bootstrap import SetLinks

if TYPE_CHECKING:
    from horovod import _native

# Connections of a set, given its number and ranks; see ``Mesh.connect_set``.
ConnectSet = Callable[[int, Sequence[int]], SetLinks]


class Registry:
    """The process sets of one world; the same on all its ranks."""

    def __init__(
        self,
        engine: _native.Engine,
        key: bytes,
        rank: int,
        size: int,
        is_dynamic: bool,
        connect_set: ConnectSet | None,
        data_plane: DataPlane | None,
        comm: Any,
    ) -> None:
        self.rank = rank
        self._connect_set = connect_set
        self.is_dynamic = is_dynamic
        self._engine = engine
        self._agreement = Agreement(engine, key, rank, size)
        self._data_plane = data_plane
        self._size = size
        self._sets: dict[int, ProcessSet] = {0: global_process_set}
        global_process_set.ranks = list(range(size))
        global_process_set.mpi_comm = comm

    def members(self, process_set_id: int) -> list[int]:
        found = self._sets.get(process_set_id)
        if found is None or found.ranks is None:
            raise ValueError(f"process set {process_set_id} is not registered")
        return found.ranks

    def register_at_start(self, process_sets: Sequence[ProcessSet]) -> None:
        """Register these sets, which all ranks must have been given alike, in this order."""
        given = ["communicator" if s.mpi_comm is not None else s.ranks for s in process_sets]
        proposal = {"dynamic": self.is_dynamic, "process_sets": given}
        problem = self._problem_of_all([s for s in process_sets if s.mpi_comm is None])
        self._agreement.agree("init", "process_sets.init", proposal, problem, InitError)
        if "communicator" in given:
            process_sets = self._with_communicators(process_sets)
        for process_set in process_sets:
            self._register("init", process_set)

    def _with_communicators(self, process_sets: Sequence[ProcessSet]) -> list[ProcessSet]:
        """The same sets, with one for every communicator that some rank gave in its place."""
        own = [
            _ranks_of(s, global_process_set.mpi_comm) if s.mpi_comm is not None else None
            for s in process_sets
        ]
        name = "process_sets.communicators"
        answers = self._agreement.gather(name, own)
        of_all = [groups_in(rank, a, len(own)) for rank, a in enumerate(answers)]
        result: list[ProcessSet] = []
        for position, process_set in enumerate(process_sets):
            if process_set.mpi_comm is None:
                result.append(process_set)
                continue
            groups = _groups([answer[position] for answer in of_all])
            for ranks in groups:
                is_own = self.rank in ranks or len(groups) == 1
                each = process_set if is_own else ProcessSet(ranks)
                each.ranks = ranks
                result.append(each)
        problem = self._problem_of_all(result)
        self._agreement.agree("init", name, [s.ranks for s in result], problem, InitError)
        return result

    def add(self, process_set: ProcessSet) -> None:
        proposal = {"add": process_set.ranks}
        problem = self._problem(process_set)
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
        try:
            self._agreement.agree(
                operation, "process_sets.connect", {"connect": number}, problem, InitError
            )
        except BaseException:
            links.close()
            raise
        return links, adapter

    def _problem(self, process_set: ProcessSet) -> str | None:
        """Why this set cannot be registered; None if it can."""
        ranks = process_set.ranks or []
        if process_set.process_set_id is not None:
            return f"gave {process_set}, which is registered already"
        if not ranks:
            return "gave a process set without ranks"
        if len(set(ranks)) != len(ranks):
            return f"gave a process set that contains a rank twice: {ranks}"
        if ranks[0] < 0 or ranks[-1] >= self._size:
            return f"gave ranks {ranks}; the world has ranks 0 to {self._size - 1}"
        for number, other in self._sets.items():
            if other.ranks == ranks:
                return f"gave a duplicate process set: {ranks} is process set {number} already"
        return None

    def _problem_of_all(self, process_sets: Sequence[ProcessSet]) -> str | None:
        for index, process_set in enumerate(process_sets):
            problem = self._problem(process_set)
            if problem is None and process_set.ranks in [s.ranks for s in process_sets[:index]]:
                problem = f"gave a duplicate process set: {process_set.ranks}"
            if problem is not None:
                return f"{problem} (process_sets[{index}])"
        return None


def _ranks_of(process_set: ProcessSet, whole: Any) -> list[int] | None:
    """The world's numbers of a communicator's processes; None where this one has none."""
    if is_null(process_set.mpi_comm):
        return None
    return sorted(ranks_within(process_set.mpi_comm, whole))


def _groups(ranks_of_all: Sequence[list[int] | None]) -> list[list[int]]:
    """The different lists among those of all ranks, in the order of their lowest ranks."""
    return [list(ranks) for ranks in sorted({tuple(ranks) for ranks in ranks_of_all if ranks})]
