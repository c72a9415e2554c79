"""What is fixed in public about elastic jobs: sizes, resets, rank order, how jobs end."""

from __future__ import annotations

import pytest

from horovod.launch.model.job_plan import JobOutcome
from horovod.rendezvous.identity.elastic_messages import HostUpdate

from .story import TIMEOUT_S, Story, running


def test_a_failure_blacklists_its_host_and_the_other_host_goes_on() -> None:
    story = running(Story(2, max_np=4), a=2, b=2)
    assert story.members == (0, 1, 2, 3)
    story.exits(0)
    assert story.abandoned == [1]
    story.failed(1, 2, 3)
    assert story.members == (2, 3)
    assert set(story.removed) == {1}
    assert story.sizes == [4, 2]


def _three_schedules(story: Story) -> Story:
    running(story, a=2)
    story.hosts(a=2, b=2)
    assert story.started == [2, 3]
    story.ready(2, 3)
    assert story.published == [HostUpdate.ADDED]
    story.updated(0, 1, 2, 3) if 2 in story.assignments else story.updated(0, 1)
    story.hosts(b=2)
    assert story.published == [HostUpdate.REMOVED]
    return story.updated(0, 1, 2, 3)


def test_hosts_come_and_go() -> None:
    story = _three_schedules(Story(2))
    assert story.sizes == [2, 4, 2]
    assert story.members == (2, 3)
    assert set(story.removed) == {0, 1}
    story.done(2, 3)
    story.exits(0, 1)
    assert story.outcome is None
    assert story.exits(2, 3, code=0).outcome.status == 0  # type: ignore[union-attr]


def test_two_resets_are_allowed() -> None:
    assert _three_schedules(Story(2, reset_limit=2)).sizes == [2, 4, 2]


def test_the_second_of_two_resets_is_not_allowed() -> None:
    story = _three_schedules(Story(2, reset_limit=1))
    assert story.sizes == [2, 4]
    assert story.outcome is not None
    assert (story.outcome.status, story.outcome.worker) == (1, None)
    assert story.outcome.text.endswith(
        "number of resets during elastic job exceeded limit: 1\n",
    )


def test_a_failure_where_all_slots_are_needed_ends_the_job_after_the_timeout() -> None:
    story = running(Story(4), a=2, b=2)
    story.exits(1)
    story.failed(2, 3)
    assert story.outcome is None
    story.wait(TIMEOUT_S - 1)
    assert story.outcome is None
    story.wait(1)
    assert story.outcome is not None
    assert story.outcome.status == 1
    text = story.outcome.text
    assert "timed out waiting for the minimum number of slots: 4 are needed" in text
    assert "a:2 (blacklisted for good), b:2" in text
    assert "one or more processes exited with non-zero status" in text
    assert text.endswith("Process name: 1\nExit code: 1\n")
    assert story.outcome.worker == 1


def test_all_workers_failed() -> None:
    story = running(Story(2), a=2)
    story.exits(0)
    assert story.outcome is not None
    assert story.outcome.text.startswith(
        "horovodrun: all hosts are blacklisted: a:2 (blacklisted for good); there is 1 worker with "
        "the state there, 2 are needed: worker 1 (rank 1, a)\n"
    )
    assert "one or more processes exited with non-zero status" in story.outcome.text


def test_one_success_is_enough() -> None:
    story = running(Story(2), a=1, b=1)
    story.done(0)
    assert story.exits(1).outcome is None
    assert story.exits(0, code=0).outcome.status == 0  # type: ignore[union-attr]


@pytest.mark.parametrize("code", [0, 1])
def test_what_happens_after_the_end_changes_nothing(code: int) -> None:
    story = running(Story(2), a=2)
    assert story.fatal(1, "ranks disagree").outcome is not None
    assert story.exits(0, 1, code=code).new == []
    assert story.hosts(a=9).new == []
    assert story.policy.deadline is None


def test_a_failure_that_there_may_be_no_reset_for_is_named() -> None:
    story = running(Story(2, min_np=1, reset_limit=0), a=1, b=1)
    story.exits(1)
    outcome = story.failed(0).outcome
    assert outcome is not None
    assert (outcome.status, outcome.worker) == (1, 1)


def test_a_worker_that_leaves_less_than_was_expected_has_failed() -> None:
    story = running(Story(2, min_np=1), a=1, b=1)
    story.done(0, 1)
    story.exits(1, code=0, is_complete=False)
    assert "worker 1 (rank 1, b) exited with code 0 and left no result" in story.said
    assert story.outcome is None
    assert story.exits(0, code=0).outcome == JobOutcome(0)


@pytest.mark.parametrize("is_exit_first", [True, False])
def test_a_worker_that_exits_with_0_while_others_train_has_failed(is_exit_first: bool) -> None:
    story = running(Story(2, min_np=1), a=1, b=1)
    if is_exit_first:
        story.exits(1, code=0)
        assert story.outcome is None
        assert story.started == []  # it may be the end of the training
        story.failed(0)
    else:
        story.failed(0)
        story.exits(1, code=0)
    assert "worker 1 (rank 1, b) exited with code 0 without having finished" in story.said
    assert story.outcome is None
    assert (story.members, story.sizes) == ((0,), [2, 1])
    story.done(0)
    assert story.exits(0, code=0).outcome == JobOutcome(0)


def test_workers_that_all_exit_with_0_have_finished() -> None:
    """As with sys.exit() in the training function, at its end or when the job's time is over."""
    story = running(Story(2, min_np=1), a=1, b=1)
    assert story.exits(1, code=0).outcome is None
    assert story.exits(0, code=0).outcome == JobOutcome(0)


@pytest.mark.parametrize("code", [1, -9])
def test_a_worker_that_exits_with_0_makes_no_failure_of_others_a_success(code: int) -> None:
    story = running(Story(2, min_np=1), a=1, b=1)
    story.exits(1, code=0)
    outcome = story.exits(0, code=code).outcome
    assert outcome is None or outcome.status == 1
    assert "worker 1 (rank 1, b) exited with code 0 without having finished" in story.said


def test_a_worker_whose_function_returned_may_ask_again_after_another_exited_with_0() -> None:
    story = running(Story(2, min_np=1), a=1, b=1)
    story.exits(1, code=0)
    story.done(0)
    story.failed(0)
    assert story.outcome is None
    assert story.members == (0,)


def test_a_newcomer_that_fails_at_the_end_takes_no_success_back() -> None:
    story = running(Story(2, min_np=1, max_np=4), a=1, b=1)
    story.hosts(a=1, b=1, c=1)
    assert story.started == [2]
    assert story.exits(1, code=0).outcome is None
    story.exits(2, code=1)
    assert story.outcome is None
    assert story.exits(0, code=0).outcome == JobOutcome(0)
