"""Error feedback: what becomes of errors that were saved."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import horovod.torch as hvd
from horovod.torch.error_feedback import ErrorFeedback


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


def test_errors_of_another_model_do_not_count():
    feedback = ErrorFeedback()
    feedback.load_state_dict({"rank": 0, "errors": {"weight": torch.ones(5)}})
    gradient = torch.zeros(4)
    (errors,) = feedback.add_to(["weight"], [gradient])
    assert not gradient.any()
    assert errors.shape == (4,)


def test_errors_can_be_saved_and_loaded_after_shutdown():
    feedback = ErrorFeedback()
    feedback.load_state_dict({"rank": 0, "errors": {"weight": torch.ones(4)}})
    hvd.shutdown()
    state = feedback.state_dict()
    feedback.load_state_dict({})
    assert feedback.state_dict() == {}
    feedback.load_state_dict(state)
    assert torch.equal(feedback.state_dict()["errors"]["weight"], torch.ones(4))
