"""What a process group of ``torch.distributed`` is on the engine: its names, barriers and end."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import (  # type: ignore[attr-defined]
    DistBackendError,
    PrefixStore,
    ProcessGroup,
    distributed_c10d,
)

from horovod.core import world
from horovod.core.base.torch_plugin import NAME
from horovod.core.built import cuda_built
from horovod.torch.distributed.members import Members
from horovod.torch.distributed.messages import Messages
from horovod.torch.distributed.operations import Operations
from horovod.torch.distributed.world import forget_store, leave_world

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

    from horovod.torch.distributed.work import EngineWork, HorovodWork

    class _ProcessGroup:
        """torch's base class: its stub has two signatures for most methods."""

        def __init__(self, rank: int, size: int) -> None: ...
        def size(self) -> int: ...
else:
    _ProcessGroup = ProcessGroup

_LONGEST_GOODBYE = timedelta(seconds=10)
# From 2.15 on torch attaches its flight recorder to the backends of a group, of which this one has
# none. The engine has its own.
_self_recording: set[str] = getattr(distributed_c10d, "_FR_SELF_RECORDING_BACKENDS", set())
_self_recording.add(NAME)


class BaseGroup(_ProcessGroup):
    """A group without collectives and messages; ``HorovodProcessGroup`` has them.

    Args:
        members: its ranks.
        timeout_s: the longest wait for one operation.
        owns_world: whether the world ends with this group.
    """

    def __init__(self, members: Members, timeout_s: float, owns_world: bool = False) -> None:
        super().__init__(members.rank, len(members.ranks))
        self._members = members
        self._name = members.name
        self._description = ""
        self._owns_world = owns_world
        self._run = Operations(members, timeout_s)
        self._messages = Messages(members)

    # What it is

    def getBackendName(self) -> str:  # noqa: N802
        """``horovod``."""
        return "horovod"

    def name(self) -> str:
        """``horovod``."""
        return "horovod"

    # torch keeps both in the backends of a group, and this one is its own backend.

    def getGroupName(self) -> str:  # noqa: N802
        """The name by which torch finds the group."""
        return self._name

    def setGroupName(self, name: str) -> None:  # noqa: N802
        """Torch gives the group its name."""
        self._name = name

    def getGroupDesc(self) -> str:  # noqa: N802
        """What the program says the group is for."""
        return self._description

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        """The program says what the group is for."""
        self._description = description

    # Before torch 2.6 a process group in Python is not asked for them by C++ code.
    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)
    _set_group_name = setGroupName
    _set_group_desc = setGroupDesc

    def set_timeout(self, timeout: timedelta) -> None:
        """The longest wait for one operation from now on."""
        self._run.timeout_s = timeout.total_seconds()

    def _set_sequence_number_for_group(self) -> None:
        self._run.count = 0

    def _get_sequence_number_for_group(self) -> int:
        return self._run.count

    # Parts of it

    supports_splitting = True
    options = None  # what ``torch.distributed.split_group`` hands on to the parts

    def _get_backend(self, device: Any) -> BaseGroup:
        return self

    @property
    def _device_types(self) -> list[torch.device]:
        # torch's property knows backends only, and ``split_group`` asks it from 2.15 on.
        return [torch.device("cpu"), *([torch.device("cuda")] if cuda_built() else [])]

    def eager_connect_single_device(self, device: torch.device) -> None:
        """The device that ``init_process_group`` was given is known from now on."""
        self.bound_device_id = device

    def perform_nocolor_split(self, device: Any) -> None:
        """Nothing: ranks outside of a new group take no part in making it."""

    def get_group_store(self) -> Store:
        """torch's store, with keys of this group alone, until the group ends."""
        assert self._members.store is not None
        return self._members.store

    def split_group(
        self,
        ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str = "",
        group_desc: str | None = None,
        device_types: Any = None,
    ) -> BaseGroup | None:
        """A group of some ranks of this one, in its order; None on other ranks.

        Raises:
            ValueError: see ``Members.of_group``.
        """
        if self._members.rank not in ranks:
            return None
        timeout_s = self._run.timeout_s if timeout is None else timeout.total_seconds()
        store = PrefixStore(f"{group_name}/", self.get_group_store())
        of_world = [self._members.ranks[rank] for rank in ranks]
        members = Members.of_group(store, group_name, of_world, timeout_s)
        part = type(self)(members, timeout_s)
        part.setGroupName(group_name)
        part.setGroupDesc(group_desc or "")
        return part

    # Its end

    def shutdown(self) -> None:
        """Leave the group; what is pending fails. The world ends if it began with this group."""
        self._members.store = None  # torch closes it
        if self._members.number == 0:
            forget_store()
        if not world.is_initialized():
            return
        self._leave()
        if self._owns_world:
            leave_world()

    def abort(self) -> None:
        """Fail what is pending: on all ranks of the world for the default group."""
        if self._members.number == 0:
            rank = self._members.rank
            self._members.engine.end_world(f"rank {rank} has aborted its process group")
        else:
            self._members.leave()

    def _leave(self) -> None:
        """Between hosts a rank whose connections close early would be taken for a lost one."""
        members = self._members
        if members.number != 0 and not members.is_on_one_host:
            with contextlib.suppress(ValueError, RuntimeError):
                self._run.start_barrier(_LONGEST_GOODBYE).wait()
        members.leave()

    # Barriers

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> EngineWork:
        """Wait until all ranks are here."""
        return self._run.start_barrier(opts if timeout is None else timeout)

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Wait until all ranks are here; the error names all that are not, in any case.

        Raises:
            DistBackendError: ranks are missing, in the words of torch's Gloo.
        """
        work = self.barrier()
        try:
            work.wait(timeout)
        except DistBackendError as error:
            missing = work.missing_ranks()
            if 0 in missing:
                raise DistBackendError(f"Rank 0 timed out in monitoredBarrier: {error}") from None
            names = ", ".join(map(str, missing))
            text = f"Rank {names} failed to pass monitoredBarrier"
            raise DistBackendError(f"{text}: {error}") from None

    # Several as one

    def _start_coalescing(self, device: Any = None) -> None:
        self._run.begin_coalescing()

    def _end_coalescing(self, device: Any = None) -> HorovodWork:
        return self._run.end_coalescing()
