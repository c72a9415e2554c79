"""What does not fit raises an error that says so, and the group stays usable."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from threading import Event

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from horovod.errors import InitError, MismatchError
from horovod.torch.distributed import set_numbers

# torch announces new names for some functions.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def rank() -> int:
    return dist.get_rank()


def size() -> int:
    return dist.get_world_size()


needs_two = pytest.mark.skipif(
    "int(__import__('os').environ['HOROVOD_SIZE']) < 2", reason="one rank"
)


@pytest.fixture(autouse=True)
def equally_many_groups() -> Iterator[None]:
    """torch counts the groups of a process, and since 2.14 names later ones by that number."""
    count = distributed_c10d._world.group_count
    yield
    distributed_c10d._world.group_count = count + 2000  # on ranks that have made others, too


@pytest.fixture(autouse=True)
def _still_usable():
    yield
    dist.all_reduce(tensor := torch.ones(1))
    assert tensor.item() == size()


@needs_two
def test_shapes_differ():
    with pytest.raises(MismatchError, match="shapes must match on all ranks"):
        dist.all_reduce(torch.ones(3 if rank() else 2))
    with pytest.raises(MismatchError, match="dtypes must match"):
        dist.broadcast(torch.ones(2, dtype=torch.int32 if rank() else torch.int64), 0)


@needs_two
def test_operations_differ():
    group = dist.new_group(list(range(size())))
    dist.all_reduce(torch.ones(1), group=group)
    own = "broadcast" if rank() == 1 else "all_reduce"
    start = partial(dist.broadcast, src=0) if rank() == 1 else dist.all_reduce
    text = f"^{own} number 2 of group {group.group_name}: Mismatched operations: .* BROADCAST"
    with pytest.raises(MismatchError, match=text):
        start(torch.ones(1), group=group)
    dist.all_reduce(tensor := torch.ones(1), group=group)
    assert tensor.item() == size()
    assert group._get_sequence_number_for_group() == 3


@needs_two
def test_all_ranks_may_gather_differently():
    output = torch.empty(size())
    if rank() == 1:
        dist.all_gather(list(output.split(1)), torch.ones(1))
    else:
        dist.all_gather_into_tensor(output, torch.ones(1))
    assert output.tolist() == [1] * size()


@needs_two
def test_more_rows_than_the_output_has():
    rows = 3 if rank() == 1 else 2
    with pytest.raises(ValueError, match="all_gather_into_tensor: the ranks sent"):
        dist.all_gather_into_tensor(torch.empty(rows * size()), torch.ones(rows))


@needs_two
def test_a_message_that_is_refused_does_not_count():
    """Or all that follow would wait for the one before."""
    text = ": expected a dense tensor in host memory or on a GPU, found one of layout "
    for bad in (torch.eye(3).to_sparse(), torch.empty(1, device="meta")):
        if rank() == 0:
            with pytest.raises(ValueError, match=f"recv{text}"):
                dist.recv(bad, 1)
            with pytest.raises(ValueError, match=f"recv{text}"):
                dist.recv(bad)
            dist.recv(found := torch.empty(1), 1)
            assert found.item() == 5
        elif rank() == 1:
            with pytest.raises(ValueError, match=f"send{text}"):
                dist.send(bad, 0)
            dist.send(torch.full((1,), 5.0), 0)


def test_a_group_of_one_rank_has_no_sender():
    groups = [dist.new_group([each]) for each in range(size())]
    with pytest.raises(ValueError, match=r"any source, tag 0\): this rank is the only one of"):
        dist.recv(torch.empty(1), group=groups[rank()])


@needs_two
def test_a_message_of_another_size():
    if rank() == 0:
        with pytest.raises(MismatchError, match=r"send\..*shapes must match"):
            dist.send(torch.ones(3), 1)
    elif rank() == 1:
        with pytest.raises(MismatchError, match=r"send\..*shapes must match"):
            dist.recv(torch.ones(2), 0)


def test_wrong_counts():
    with pytest.raises(ValueError, match="expected a tensor for each of"):
        dist.all_gather([torch.ones(1)] * (size() + 1), torch.ones(1))
    with pytest.raises(ValueError, match="output splits"):
        dist.all_to_all_single(torch.ones(size()), torch.ones(size()), [2] * size(), [1] * size())


def test_sparse_tensors():
    with pytest.raises(ValueError, match="dense tensor"):
        dist.broadcast(torch.eye(2).to_sparse(), 0)
    with pytest.raises(ValueError, match="summed and averaged only"):
        dist.all_reduce(torch.eye(2).to_sparse(), dist.ReduceOp.MAX)


@needs_two
def test_a_wait_that_is_too_long_names_the_rank():
    group = dist.new_group(list(range(size())))
    if rank() == 0:
        work = dist.all_reduce(torch.ones(1), group=group, async_op=True)
        title = f"all_reduce number 1 of group {group.group_name}"
        text = f"Timed out waiting 50ms for {title}: ranks? 1.* did not start it"
        with pytest.raises(dist.DistBackendError, match=text):
            work.wait(timedelta(milliseconds=50))
        dist.barrier()
        work.wait()
    else:
        dist.barrier()
        dist.all_reduce(torch.ones(1), group=group)


@needs_two
def test_a_blocking_send_that_is_not_received_names_the_rank():
    group = dist.new_group(list(range(size())))
    if rank() == 0:
        group.set_timeout(timedelta(milliseconds=50))
        text = r"Timed out waiting 50ms for send \(rank 0 to 1, tag 0\): rank 1 did not start it"
        with pytest.raises(dist.DistBackendError, match=text):
            dist.send(torch.full((1,), 7.0), 1, group=group)
    dist.barrier()
    if rank() == 1:
        dist.recv(found := torch.empty(1), 0, group=group)
        assert found.item() == 7
    dist.barrier()


@needs_two
def test_a_monitored_barrier_names_the_rank():
    group = dist.new_group(list(range(size())))
    if rank() == 0:
        with pytest.raises(
            dist.DistBackendError, match=r"Rank 1.* failed to pass monitoredBarrier"
        ):
            group.monitored_barrier(timedelta(milliseconds=50))
        dist.barrier()
    else:
        dist.barrier()
        group.monitored_barrier()


@needs_two
def test_an_error_of_a_message_is_not_told_again():
    """A name comes again after 64 messages."""
    sizes = [(3 if rank() else 2), *[1] * 70]
    for numel in sizes if rank() < 2 else []:
        tensor = torch.ones(numel)
        try:
            dist.recv(tensor, 1 - rank(), tag=7) if rank() else dist.send(tensor, 1, tag=7)
        except MismatchError:
            assert numel != 1


@needs_two
def test_ranks_without_a_backward_pass_are_named():
    group = dist.new_group()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1), process_group=group)
    loss = model(torch.ones(1, 2)).sum()
    if rank() == 0:
        group.set_timeout(timedelta(seconds=1))
        with pytest.raises(RuntimeError, match="did not start it"):
            loss.backward()
    dist.barrier()
    if rank() != 0:
        loss.backward()
    dist.barrier()
    dist.destroy_process_group(group)


@needs_two
def test_a_future_that_nobody_waits_for_ends_with_the_groups_time():
    group = dist.new_group()
    if rank() == 0:
        group.set_timeout(timedelta(seconds=1))
        ended = Event()
        future = dist.all_reduce(torch.ones(2), group=group, async_op=True).get_future()
        future.add_done_callback(lambda _: ended.set())
        assert ended.wait(60)
        with pytest.raises(RuntimeError, match=r"Timed out waiting 1000ms .* did not start it"):
            future.value()
    dist.barrier()
    if rank() != 0:
        dist.all_reduce(torch.ones(2), group=group)
    dist.barrier()
    dist.destroy_process_group(group)


def test_a_group_is_made_again_by_the_same_name():
    names, counted = set(), distributed_c10d._world.group_count
    for _ in range(3):
        group = dist.new_group(list(range(size())), use_local_synchronization=True)
        names.add(group.group_name)
        dist.all_reduce(tensor := torch.ones(1), group=group)
        assert tensor.item() == size()
        dist.destroy_process_group(group)
    # A newer torch counts these groups, and has the number in their names.
    is_counted = distributed_c10d._world.group_count > counted
    assert len(names) == (3 if is_counted else 1)


def test_numbers_of_groups_come_again(monkeypatch: pytest.MonkeyPatch):
    groups = []

    def make_many() -> None:
        for _ in range(513):
            groups.append(dist.new_group())

    monkeypatch.setattr(set_numbers, "_LONGEST_WAIT_S", 0.2)
    with pytest.raises(InitError, match="room for 512 process groups at a time"):
        make_many()
    monkeypatch.undo()
    for group in groups:
        dist.destroy_process_group(group)
    for number in range(600):
        group = dist.new_group()
        dist.all_reduce(tensor := torch.tensor([number]), group=group)
        assert tensor.item() == number * size()
        dist.destroy_process_group(group)


@pytest.mark.skipif("int(__import__('os').environ['HOROVOD_SIZE']) < 3", reason="too few ranks")
def test_groups_made_in_different_orders_name_both_ranks():
    orders = {0: [[0, 1], [1, 2]], 1: [[1, 2], [0, 1]], 2: [[0, 1], [1, 2]]}
    if rank() in (0, 1):
        with pytest.raises(
            InitError, match=r"rank 0 makes it of ranks 0,1, rank 1 .* of ranks 1,2"
        ):
            dist.new_group(orders[rank()][0])
    else:
        dist.new_group(orders[rank()][0])
    dist.barrier()


@needs_two
def test_a_rank_that_does_not_make_a_group_is_named():
    if rank() == 0:
        make = partial(dist.new_group, [0, size() - 1], use_local_synchronization=True)
        with pytest.raises(InitError, match=f"rank {size() - 1} did not make group") as failure:
            make(timeout=timedelta(seconds=1))
        assert failure.value.ranks == (size() - 1,)
    dist.barrier()
