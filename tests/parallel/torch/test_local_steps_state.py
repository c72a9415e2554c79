"""DiLoCo's state: saved and loaded, broadcast, in elastic training; ranks that disagree."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import horovod.torch as hvd
from horovod.torch import fragment_transfer, local_steps_optimizer
from horovod.torch.elastic import TorchState

STREAMING = {"sync_every": 4, "fragments": 2, "overlap": 2, "merge_weight": 0.5}


@pytest.fixture(autouse=True)
def _initialised_afterwards() -> Iterator[None]:
    yield
    hvd.init()


def make(make_model, **arguments) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = make_model()
    inner = torch.optim.Adam(model.parameters(), 0.01)
    return model, hvd.DiLoCo(inner, **(arguments or STREAMING))


def train(model, optimizer, batch_of, steps: range) -> None:
    for number in steps:
        optimizer.zero_grad()
        model(batch_of(hvd.rank(), number)).square().mean().backward()
        optimizer.step()


def assert_equal(left: list[Tensor], right: list[Tensor]) -> None:
    assert len(left) == len(right)
    for one, other in zip(left, right, strict=True):
        assert torch.equal(one, other)


def values(model: nn.Module) -> list[Tensor]:
    return [param.detach().clone() for param in model.parameters()]


def check_go_on_alike(model, optimizer, batch_of) -> None:
    """After further steps the first and the last rank have the same parameters."""
    train(model, optimizer, batch_of, range(6, 14))
    optimizer.finish()
    both = hvd.allgather(torch.cat([v.reshape(-1) for v in values(model)]).unsqueeze(0))
    assert torch.equal(both[0], both[-1])


@pytest.mark.parametrize("saved_at", [1, 3, 4, 5, 9])
def test_a_loaded_run_goes_on_with_the_same_bits(make_model, batch_of, saved_at):
    """Also while fragments are on their way; saving changes nothing."""
    undisturbed = make(make_model)
    train(*undisturbed, batch_of, range(12))
    undisturbed[1].drop()
    model, optimizer = make(make_model)
    train(model, optimizer, batch_of, range(saved_at))
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    train(model, optimizer, batch_of, range(saved_at, 12))
    assert_equal(values(model), values(undisturbed[0]))
    optimizer.finish()
    loaded, other = make(make_model)
    loaded.load_state_dict(saved[0])
    other.load_state_dict(saved[1])
    train(loaded, other, batch_of, range(saved_at, 12))
    assert_equal(values(loaded), values(undisturbed[0]))
    other.finish()
    assert_equal(values(loaded), values(model))


def test_a_state_of_the_plain_optimizer_starts_anew(make_model, batch_of, assert_same_everywhere):
    model = make_model()
    plain = torch.optim.Adam(model.parameters(), 0.01)
    train(model, plain, lambda _, step: batch_of(0, step), range(3))
    other, optimizer = make(make_model)
    train(other, optimizer, batch_of, range(5))
    optimizer.load_state_dict(plain.state_dict())
    other.load_state_dict(model.state_dict())
    assert optimizer.local_step == 0
    train(other, optimizer, batch_of, range(8))
    optimizer.finish()
    assert_same_everywhere(values(other))


@pytest.mark.parametrize(
    "changed", [{"sync_every": 7}, {"sync_every": 3, "fragments": 3}, {"sync_every": 2}], ids=str
)
def test_a_state_goes_on_with_another_schedule(
    make_model, batch_of, assert_same_everywhere, changed
):
    """Steps are counted on: fragments are sent where the new schedule has their turns."""
    model, optimizer = make(make_model, sync_every=4, fragments=2)
    train(model, optimizer, batch_of, range(5))
    other_model, other = make(make_model, **changed)
    other_model.load_state_dict(model.state_dict())
    other.load_state_dict(optimizer.state_dict())
    assert_same_everywhere(other.state_dict()["local_steps"]["agreed"])
    train(other_model, other, batch_of, range(5, 11))
    assert_same_everywhere(other.state_dict()["local_steps"]["agreed"])
    other.finish()
    assert other.local_step == 11
    assert_same_everywhere(values(other_model))


def test_a_state_that_does_not_fit(make_model, batch_of):
    model, optimizer = make(make_model)
    train(model, optimizer, batch_of, range(4))
    state = optimizer.state_dict()
    _, other = make(make_model, sync_every=4)
    with pytest.raises(ValueError, match=r"fragments \[1\] were on their way with.*found"):
        other.load_state_dict(state)
    state["local_steps"]["agreed"][0] = torch.zeros(1)
    with pytest.raises(ValueError, match=r"'agreed' has 4 tensors of shapes \[\[1\], .*expected 4"):
        optimizer.load_state_dict(state)


def test_the_state_of_the_root_is_broadcast(make_model, batch_of, assert_same_everywhere):
    model, optimizer = make(make_model)
    if hvd.rank() == 0:
        source, trained = make_model(), None
        trained = hvd.DiLoCo(
            torch.optim.Adam(source.parameters(), 0.01),
            process_set=ALONE,
            name="alone",
            **STREAMING,
        )
        train(source, trained, batch_of, range(5))
        model.load_state_dict(source.state_dict())
        optimizer.load_state_dict(trained.state_dict())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert optimizer.local_step == 5
    state = optimizer.state_dict()["local_steps"]
    assert list(state["arrived"]) == [1]
    assert_same_everywhere([*state["agreed"], *state["momentum"], *state["arrived"][1]])
    train(model, optimizer, batch_of, range(5, 9))
    optimizer.finish()
    assert_same_everywhere(values(model))


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    """A process set of rank 0 alone."""
    global ALONE
    ALONE = hvd.global_process_set if hvd.size() == 1 else hvd.add_process_set([0])
    yield
    if hvd.size() > 1 and ALONE.process_set_id is not None:
        hvd.remove_process_set(ALONE)


@pytest.mark.parametrize("hosts", [1, 9])
def test_a_rank_that_joins_gets_the_agreed_parameters(make_model, batch_of, monkeypatch, hosts):
    """The others keep their parameters and their inner state.

    With more hosts than ranks join, the tensors are sent to these ranks only.
    """
    monkeypatch.setattr(local_steps_optimizer, "cross_size", lambda: hosts)
    if hosts > 1:
        monkeypatch.setattr(fragment_transfer, "broadcast_parameters", None)
    model, optimizer = make(make_model)
    state = TorchState(model=model, optimizer=optimizer)
    state.sync()
    train(model, optimizer, batch_of, range(6))
    state.commit()
    before, moments = values(model), copy.deepcopy(optimizer.state_dict()["state"])
    is_new = hvd.rank() == hvd.size() - 1 > 0
    if is_new:
        model, optimizer = make_model(), None
        optimizer = _unagreed(model)
        state = TorchState(model=model, optimizer=optimizer)
    state.sync()
    assert optimizer.local_step == 6
    found = optimizer.state_dict()
    if is_new:
        assert found["state"] == {}
        assert_equal(values(model), found["local_steps"]["agreed"])
    else:
        assert_equal(values(model), before)
        assert found["state"].keys() == moments.keys()
        for key, entry in moments.items():
            assert torch.equal(entry["exp_avg"], found["state"][key]["exp_avg"])
    check_go_on_alike(model, optimizer, batch_of)


def test_a_rank_that_has_parts_of_the_state_gets_the_others(make_model, batch_of):
    """As one that got them before it joined; a fragment has changed meanwhile."""
    model, optimizer = make(make_model)
    state = TorchState(model=model, optimizer=optimizer, batch=0)
    state.sync()
    train(model, optimizer, batch_of, range(3))
    parts = state._parts()
    received = [
        (number, part.header, bytearray(b"".join(map(parts.bytes_of, part.tensors))))
        for number, part in enumerate(parts.read())
    ]
    train(model, optimizer, batch_of, range(3, 6))
    state.commit()
    if hvd.rank() == hvd.size() - 1 > 0:
        model = make_model()
        optimizer = _unagreed(model)
        state = TorchState(model=model, optimizer=optimizer, batch=1)
        for number, header, data in received:
            assert state._parts().expected_bytes(number, header) == len(data)
            state._parts().put(number, header, data)
    state.sync()
    assert (optimizer.local_step, state.batch) == (6, 0)
    check_go_on_alike(model, optimizer, batch_of)


def test_a_fragment_that_is_being_made_is_not_sent(make_model, batch_of):
    """Another thread looks at it meanwhile."""
    model, optimizer = make(make_model)
    parts = TorchState(model=model, optimizer=optimizer)._parts()
    train(model, optimizer, batch_of, range(1))
    fragment = optimizer.fragments[0]
    whole, momentum = parts.read()[0], fragment.momentum
    assert whole.is_settled
    assert whole.tensors
    fragment.momentum = momentum[:-1]
    torn = parts.read()[0]
    assert (torn.header, torn.tensors, torn.is_settled) == ((0, 0, 0, 0), (), False)
    fragment.momentum = momentum
    assert parts.read()[0].is_same(whole)
    assert parts.expected_bytes(0, torn.header) == 0


def test_parts_are_of_one_content_until_a_fragment_is_merged(make_model, batch_of):
    model, optimizer = make(make_model)
    parts = TorchState(model=model, optimizer=optimizer)._parts()
    assert [(part.header, part.tensors) for part in parts.read()] == 2 * [((0, 0, 0, 0), ())]
    seen = []
    for step in range(6):
        train(model, optimizer, batch_of, range(step, step + 1))
        for fragment in optimizer.fragments:
            fragment.wait()
        now = parts.read()
        again = parts.read()
        assert all(one.is_same(two) for one, two in zip(now, again, strict=True))
        seen.append(now)
    changes = [
        [not one.is_same(two) for one, two in zip(before, after, strict=True)]
        for before, after in pairwise(seen)
    ]
    assert any(map(any, changes))
    assert not all(map(any, changes))


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ((0, 1), "4 numbers"),
        ((0, 2, 3, 0), "3 agreed"),
        ((0, 3, 0, 0), "3 of momentum"),
        ((0, 3, 3, 4), "at most 3 more"),
    ],
)
def test_parts_of_other_numbers_of_tensors_are_refused(make_model, header, expected):
    model, optimizer = make(make_model)
    parts = TorchState(model=model, optimizer=optimizer)._parts()
    with pytest.raises(ValueError, match=expected):
        parts.expected_bytes(1, header)


def test_ranks_that_agree_already_send_no_tensors(make_model, batch_of, monkeypatch):
    """As after the loss of a rank: a broadcast takes long over a slow link."""
    model, optimizer = make(make_model)
    state = TorchState(model=model, optimizer=optimizer, batch=0)
    state.sync()
    train(model, optimizer, batch_of, range(6))
    state.batch = 6
    state.commit()
    before = values(model)
    state.batch = 7  # since the commit
    monkeypatch.setattr(fragment_transfer, "broadcast_parameters", None)
    buckets = hvd.metrics()["buckets"]
    state.sync()
    # One exchange of objects, each of which is two collectives.
    assert hvd.metrics()["buckets"] - buckets == (2 if hvd.size() > 1 else 0)
    assert (optimizer.local_step, state.batch) == (6, 6)
    assert_equal(values(model), before)


@pytest.mark.parametrize("change", ["", "reset callback", "root's options"])
def test_what_the_loop_has_saved_is_not_saved_again(make_model, batch_of, change):
    """A copy takes long where ranks wait for it."""
    model, optimizer = make(make_model)
    state = TorchState(model=model, optimizer=optimizer, batch=0)
    state.sync()
    train(model, optimizer, batch_of, range(6))
    if change == "reset callback":
        state.register_reset_callbacks([lambda: None])
    if change == "root's options" and hvd.rank() == 0:
        optimizer.param_groups[0]["lr"] = 0.5
    state.save()
    state._note_saved()
    before = state.saved_values()["handlers"]
    state.sync()
    after = state.saved_values()["handlers"]
    is_kept = after["optimizer"]["parameters"] is before["optimizer"]["parameters"]
    gets_options = change == "root's options" and hvd.rank() > 0
    assert is_kept == (change != "reset callback" and not gets_options)
    assert (after["model"] is before["model"]) == (change != "reset callback")
    train(model, optimizer, batch_of, range(6, 8))
    state.sync()  # not by the loop
    again = state.saved_values()["handlers"]["optimizer"]["parameters"]
    assert again is not after["optimizer"]["parameters"]


def test_ranks_that_differ_in_other_values_get_those_of_rank_zero(make_model, batch_of):
    model, optimizer = make(make_model)
    state = TorchState(model=model, optimizer=optimizer, batch=0)
    state.sync()
    train(model, optimizer, batch_of, range(6))
    state.batch = 6 + hvd.rank()
    state.commit()
    state.sync()
    assert state.batch == 6


@pytest.mark.parametrize("lr", [0.5, torch.tensor(0.5)])
def test_ranks_that_differ_only_in_options_get_those_of_rank_zero(make_model, batch_of, lr):
    model, optimizer = make(make_model)
    state = TorchState(model=model, optimizer=optimizer)
    state.sync()
    train(model, optimizer, batch_of, range(6))
    if hvd.rank() == 0:
        optimizer.param_groups[0]["lr"] = lr
    state.commit()
    before = values(model)
    state.sync()
    assert float(optimizer.param_groups[0]["lr"]) == 0.5
    assert_equal(values(model), before)


def test_options_that_cannot_be_compared_travel(make_model, batch_of, monkeypatch):
    model, optimizer = make(make_model)
    state = TorchState(model=model, optimizer=optimizer)
    state.sync()
    train(model, optimizer, batch_of, range(6))
    monkeypatch.setattr(local_steps_optimizer, "digest_of_options", lambda optimizer: "")
    if hvd.rank() == 0:
        optimizer.param_groups[0]["lr"] = 0.5
    state.commit()
    state.sync()
    assert optimizer.param_groups[0]["lr"] == 0.5


def _unagreed(model: nn.Module) -> torch.optim.Optimizer:
    """As in an elastic job, where a new rank wraps its optimizer while the others train."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOROVOD_ELASTIC", "1")
        return hvd.DiLoCo(torch.optim.Adam(model.parameters(), 0.01), **STREAMING)


def test_all_ranks_go_on_from_the_file_of_rank_zero(
    make_model, batch_of, tmp_path, assert_same_everywhere
):
    path = Path(hvd.broadcast_object(str(tmp_path / "state")))
    model, optimizer = make(make_model)
    state = TorchState(model=model, optimizer=optimizer)
    train(model, optimizer, batch_of, range(5))
    state.commit()
    state.save(path)
    agreed = copy.deepcopy(optimizer.state_dict()["local_steps"]["agreed"])
    optimizer.finish()
    model, optimizer = make(make_model)
    loaded = TorchState(optimizer=optimizer, model=model)
    if hvd.rank() == 0:
        loaded.load(path)
    loaded.sync()
    assert optimizer.local_step == 5
    assert_equal(optimizer.state_dict()["local_steps"]["agreed"], agreed)
    if hvd.rank() > 0:
        assert_equal(values(model), agreed)
    train(model, optimizer, batch_of, range(5, 9))
    optimizer.finish()
    assert_same_everywhere(values(model))


@pytest.mark.parametrize("failing_step", [1, 4, 5, 7])
@pytest.mark.parametrize("is_one_rank", [False, True])
def test_training_goes_on_from_the_last_commit(
    make_model, batch_of, failing_step, is_one_rank, assert_same_everywhere
):
    undisturbed = make(make_model)
    train(*undisturbed, batch_of, range(10))
    undisturbed[1].finish()
    model, optimizer = make(make_model)
    failures = [] if is_one_rank and hvd.rank() != 0 else [failing_step]

    @hvd.elastic.run
    def run(state: TorchState) -> None:
        while state.step < 10:
            train(model, optimizer, batch_of, range(state.step, state.step + 1))
            if state.step in failures:
                failures.clear()
                raise hvd.HorovodInternalError("injected")
            state.step += 1
            if state.step % 3 == 0:
                state.commit()
        optimizer.finish()

    run(TorchState(model=model, optimizer=optimizer, step=0))
    assert optimizer.local_step == 10
    assert_same_everywhere(values(model))
    if not is_one_rank:  # else the others may have a later commit, and go on as if they joined
        assert_equal(values(model), values(undisturbed[0]))


def test_ranks_with_other_arguments_are_told_both():
    if hvd.size() == 1:
        pytest.skip("one rank agrees with itself")
    last = hvd.rank() == hvd.size() - 1
    params = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))]
    sgd = torch.optim.SGD(params[: 1 if last else 2], lr=0.1)
    with pytest.raises(ValueError, match=r"has parameters='1 of 2 elements', rank 0 has .*'2 of 5"):
        hvd.DiLoCo(sgd, sync_every=2)
    with pytest.raises(ValueError, match=r"DiLoCo: rank \d has sync_every=3, rank 0 has sync_e"):
        hvd.DiLoCo(torch.optim.SGD(params, lr=0.1), sync_every=3 if last else 2)
    kind = hvd.Compression.fp16 if last else hvd.Compression.none
    with pytest.raises(ValueError, match=r"compression='FP16Compressor', rank 0 has compression="):
        hvd.LocalSGD(torch.optim.SGD(params, lr=0.1), sync_every=3, compression=kind)
