"""Error feedback: what becomes of errors that were saved."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import horovod.torch as hvd
from horovod.errors import HorovodInternalError
from horovod.torch import adapter
from horovod.torch.compression import Compression
from horovod.torch.error_feedback import ErrorFeedback, load_errors
from horovod.torch.gradient_exchange import PlainExchange
from horovod.torch.topk import TopKErrors


@pytest.fixture(autouse=True)
def _world() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


@pytest.mark.parametrize(
    "saved",
    [torch.ones(4, dtype=torch.float16), torch.ones(1).expand(4), torch.ones(4, 2)[:, 0]],
    ids=["half", "expanded", "strided"],
)
def test_loaded_errors_are_memory_that_the_engine_can_write(saved):
    feedback = ErrorFeedback()
    feedback.load_state_dict({"rank": 0, "errors": {"weight": saved}})
    gradient = torch.zeros(4)
    (errors,) = feedback.add_to(["weight"], [gradient])
    assert torch.equal(gradient, torch.ones(4))
    assert errors.dtype is torch.float32
    assert errors.untyped_storage().nbytes() == 16
    errors.zero_()
    assert saved.sum() == 4


@pytest.mark.parametrize(
    ("errors", "text"),
    [
        (None, "a dict of tensors by name, found NoneType"),
        ([torch.ones(4)], "a dict of tensors by name, found list"),
        ({"weight": "x"}, "'weight' must be a dense tensor of a floating dtype, found a str"),
        ({"weight": None}, "'weight' must be a dense .*, found a NoneType"),
        ({"weight": torch.ones(4, dtype=torch.complex64)}, "'weight' must be .* torch.complex64"),
        ({"weight": torch.ones(4, dtype=torch.int64)}, "'weight' must be .* torch.int64"),
        ({"weight": torch.eye(4).to_sparse()}, "'weight' must be .* torch.sparse_coo"),
        ({"weight": torch.ones(4, device="meta")}, "'weight' must be .* on meta"),
    ],
)
@pytest.mark.parametrize("kind", [ErrorFeedback, TopKErrors])
def test_damaged_errors_are_refused(kind, errors, text):
    with pytest.raises(ValueError, match=f"load_state_dict: the errors? of .*{text}"):
        kind().load_state_dict({"rank": 0, "errors": errors})
    with pytest.raises(ValueError, match="load_state_dict: the errors of a compression must be"):
        kind().load_state_dict({"rank": 0})


@pytest.mark.parametrize("found", [[], None])
def test_an_entry_that_is_no_dict_is_refused(found):
    with pytest.raises(ValueError, match=r"'compression_errors' must be the dict .*found "):
        load_errors({"compression_errors": found}, ErrorFeedback())
    load_errors({"compression_errors": found}, None)


def test_errors_of_another_model_do_not_count():
    feedback = ErrorFeedback()
    feedback.load_state_dict({"rank": 0, "errors": {"weight": torch.ones(5)}})
    gradient = torch.zeros(2000)
    (errors,) = feedback.add_to(["weight"], [gradient])
    assert not gradient.any()
    assert errors.shape == (2000,)


def test_what_is_sent_exactly_has_no_errors():
    feedback = ErrorFeedback()
    feedback.load_state_dict({"rank": 0, "errors": {"weight": torch.ones(2000)}})
    names = ["weight", "layer.bias", "tok_embeddings", "small"]
    errors = feedback.add_to(names, [torch.zeros(n) for n in (2000, 2000, 2000, 1023)])
    assert [error is None for error in errors] == [False, True, True, True]


@pytest.mark.parametrize("is_refused", [False, True])
def test_errors_do_not_count_again_after_a_failure(monkeypatch, is_refused):
    exchange = PlainExchange(Compression.int8, (hvd.Average, 1.0, 1.0), hvd.global_process_set)
    feedback = exchange.feedback
    feedback.load_state_dict({"rank": 0, "errors": {"weight": torch.ones(2000)}})
    failure = HorovodInternalError("a rank is lost")

    def fail(*_args, **_kwargs):
        raise failure

    monkeypatch.setattr(
        adapter, "allreduce_batch_async_", fail if is_refused else lambda *_, **__: 1
    )
    monkeypatch.setattr(adapter, "synchronize", fail)
    gradient = torch.zeros(2000)
    with pytest.raises(HorovodInternalError, match="a rank is lost"):
        exchange.start(["weight"], [gradient]).finish()
    assert torch.equal(gradient, torch.ones(2000))
    assert not feedback.state_dict()["errors"]["weight"].any()


def test_errors_can_be_saved_and_loaded_after_shutdown():
    feedback = ErrorFeedback()
    feedback.load_state_dict({"rank": 0, "errors": {"weight": torch.ones(4)}})
    hvd.shutdown()
    state = feedback.state_dict()
    feedback.load_state_dict({})
    assert feedback.state_dict() == {}
    feedback.load_state_dict(state)
    assert torch.equal(feedback.state_dict()["errors"]["weight"], torch.ones(4))
