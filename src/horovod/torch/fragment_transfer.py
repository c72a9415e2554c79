"""Fragments of local steps on their way to a rank that lacks them.

Ranks compare digests, and only fragments that differ travel: as collectives in ``sync``, or before
a rank joins, as parts of the state (``horovod.elastic.parts``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from horovod.core.handles import wait_for_all
from horovod.core.process_sets import ProcessSet
from horovod.core.world import rank
from horovod.torch import adapter
from horovod.torch.fragments import Fragment, FragmentHeader, bytes_of
from horovod.torch.functions import broadcast_parameters

if TYPE_CHECKING:
    from horovod.elastic.parts import StatePart


def transfer(
    fragments: Sequence[Fragment],
    lacking: Mapping[int, Collection[int]],
    headers: Sequence[FragmentHeader],
    name: str,
    root_rank: int,
    process_set: ProcessSet,
    host_count: int,
) -> None:
    """Give some ranks the root's fragments; blocks until done. All ranks of the set call it alike.

    Args:
        lacking: the ranks that lack it by number of the fragment.
        headers: the root's, by number.
        name: begins the names of the operations.
        host_count: of the world.

    Raises:
        HorovodInternalError: a rank was lost.
    """
    receivers = {each for ranks in lacking.values() for each in ranks}
    if not receivers:
        return
    named = []
    for number, ranks in lacking.items():
        if rank() in ranks:
            fragments[number].make_room(headers[number])
        tensors = enumerate(fragments[number].tensors if ranks else ())
        named += [(f"{name}.{number}.{index}", tensor) for index, tensor in tensors]
    # The root's link carries a broadcast once for each other host.
    if len(receivers) < host_count - 1:
        _send_tensors(named, root_rank, receivers, process_set)
    else:
        broadcast_parameters(named, root_rank, process_set)


def _send_tensors(
    named: Sequence[tuple[str, Tensor]],
    root_rank: int,
    receivers: Collection[int],
    process_set: ProcessSet,
) -> None:
    """Overwrite the tensors of some ranks with the root's.

    All ranks of the set call it with tensors of the same names, shapes and dtypes. Links between
    hosts carry the tensors once for each receiver.
    """
    is_root = rank() == root_rank
    splits = [int(is_root and each in receivers) for each in process_set.ranks or ()]

    def start() -> Iterator[tuple[int, Tensor]]:
        for name, tensor in named:
            rows = tensor.detach().expand(sum(splits), *tensor.shape).contiguous()
            yield adapter.alltoall_async(rows, splits, name, process_set), tensor

    def finish(started: tuple[int, Tensor]) -> None:
        handle, tensor = started
        received, _ = adapter.synchronize(handle)
        if rank() in receivers:
            tensor.copy_(received[0])

    wait_for_all(start(), finish)


class FragmentParts:
    """Fragments as parts of a state (``StateParts``).

    ``fragments``: those of the state as it is now, always equally many.
    """

    def __init__(self, fragments: Callable[[], Sequence[Fragment]]) -> None:
        self._fragments = fragments

    def __len__(self) -> int:
        return len(self._fragments())

    def read(self) -> list[StatePart]:
        """See ``StateParts``."""
        return [each.part for each in self._fragments()]

    def bytes_of(self, tensor: Tensor) -> memoryview:
        """See ``StateParts``."""
        return bytes_of(tensor)

    def expected_bytes(self, number: int, header: tuple[int, ...]) -> int:
        """See ``StateParts``."""
        if len(header) != len(FragmentHeader._fields):
            raise ValueError(f"{len(FragmentHeader._fields)} numbers")
        fragment, said = self._fragments()[number], FragmentHeader(*header)
        fragment.check_header(said)
        return fragment.room_bytes(said)

    @torch.no_grad()
    def put(self, number: int, header: tuple[int, ...], data: bytearray) -> None:
        """See ``StateParts``."""
        fragment = self._fragments()[number]
        fragment.make_room(FragmentHeader(*header))
        start = 0
        for tensor in fragment.tensors:
            size_bytes = tensor.numel() * tensor.itemsize
            if size_bytes:
                found = torch.frombuffer(data, dtype=torch.uint8, count=size_bytes, offset=start)
                tensor.copy_(found.clone().view(tensor.dtype).reshape(tensor.shape))
            start += size_bytes
        fragment.digest()  # here, since all ranks wait in ``sync``
