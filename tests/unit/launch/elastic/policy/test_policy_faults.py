"""Workers that die, hang or lose sight of each other, at every moment."""

from __future__ import annotations

import pytest

from horovod.launch.elastic.policy.actions import Assign
from horovod.rendezvous.identity.elastic_messages import HostUpdate, StateVersion

from .story import TIMEOUT_S, Story, running

COOLDOWN = (10.0, 100.0)


def _four(**options: object) -> Story:
    """Two hosts with two workers each, of which two suffice."""
    return running(Story(4, min_np=2, **options), a=2, b=2)  # type: ignore[arg-type]


def test_loss_between_commit_and_step() -> None:
    story = _four()
    story.exits(3, code=-9)
    assert "worker 3 (rank 3, b) was ended by SIGKILL; b is blacklisted for good" in story.said
    assert story.ended == []  # worker 2 has the state as well
    assert story.failed(0).members == ()
    assert story.failed(1, lost=[3]).members == (0, 1)
    assert story.assignments[0].must_sync
    assert story.failed(2).removed == {
        2: "b[0] was removed from the elastic job: its host is blacklisted"
    }


def test_the_death_of_rank_0_hands_its_role_to_the_newest_state() -> None:
    story = _four()
    story.exits(0, code=-9)
    story.failed(2, state_version=StateVersion(1, 6))
    story.failed(3, state_version=StateVersion(1, 7))
    assert story.members == (3, 2)
    assert [story.assignments[w].rank_info.local_rank for w in (3, 2)] == [1, 0]


def test_loss_while_the_others_meet_or_sync() -> None:
    story = _four()
    story.exits(3)
    story.failed(0, 1)
    assert story.members == (0, 1)
    story.exits(1)
    assert story.abandoned == [2]
    assert story.ended == []
    assert story.failed(0).members == ()
    assert story.failed(2).members == (0, 2)  # or no worker could go on


def test_one_that_comes_back_without_a_loss_releases_those_who_still_meet() -> None:
    story = _four()
    assert story.failed(2).abandoned == [1]
    assert story.failed(0, 1, 3).members == (0, 1, 2, 3)


def test_loss_during_another_recovery() -> None:
    story = running(Story(3, min_np=1), a=1, b=1, c=1)
    story.exits(0)
    story.failed(1)
    story.exits(2, code=-9)
    assert story.members == (1,)


def test_loss_of_one_that_is_ready_already() -> None:
    story = running(Story(3, min_np=1), a=1, b=1, c=1)
    story.exits(0)
    story.failed(1)
    assert story.exits(1).members == ()
    assert story.failed(2).members == (2,)


def test_two_at_once() -> None:
    story = running(Story(3, min_np=1), a=1, b=1, c=1)
    story.exits(0, 1, code=-9)
    assert story.abandoned == [1]
    assert story.failed(2).members == (2,)


def test_all_of_one_host() -> None:
    story = _four()
    story.host_lost("a")
    assert "worker 0 (rank 0, a), worker 1 (rank 1, a) was lost with a: ssh ended" in story.said
    assert story.abandoned == [1]
    assert story.failed(2, 3).members == (2, 3)


def test_a_host_that_cannot_be_reached_at_first() -> None:
    story = Story(2, min_np=1).hosts(a=1, b=1)
    story.host_lost("b")
    assert story.ready(0).members == (0,)


def test_one_that_hangs_is_ended_a_second_after_the_others_missed_it() -> None:
    story = _four()
    story.failed(0, 1, 2, lost=[3])
    assert story.policy.deadline == 1.0
    story.wait(1.0)
    assert story.ended == [3]
    assert set(story.removed) == {2}
    assert "worker 3 (rank 3, b) does not answer, which worker 0 (rank 0, a) found" in story.said
    assert story.members == (0, 1)
    assert story.exits(3, code=-15).new == []


def test_one_that_was_missed_too_early_stays() -> None:
    story = _four()
    story.failed(0, 1, 2, lost=[3])
    story.wait(0.9)
    assert story.failed(3, lost=[0]).members == (0, 1, 2, 3)
    assert story.wait(5.0).ended == []


def test_one_that_is_done_is_not_taken_for_lost() -> None:
    story = _four()
    story.done(3)
    story.failed(0, lost=[3])
    assert story.wait(10.0).ended == []


def test_one_that_nobody_misses_has_until_the_timeout() -> None:
    story = _four()
    story.exits(0)
    story.failed(2)
    assert story.wait(TIMEOUT_S - 1).ended == []
    story.wait(1.0)
    assert story.ended == [1, 3]
    assert story.outcome is not None  # b was the last host, and worker 2 alone is too few


def test_several_that_hang_are_ended_together() -> None:
    story = running(Story(3, min_np=1), a=1, b=1, c=1)
    story.failed(0)
    story.wait(TIMEOUT_S)
    assert story.ended == [1, 2]
    assert story.members == (0,)


def test_on_a_single_host_with_a_cooldown_the_others_go_on() -> None:
    story = running(Story(4, min_np=2, cooldown=COOLDOWN), a=4)
    story.exits(2, code=-9)
    assert story.ended == []
    assert "its slot is blacklisted for 2" in story.said
    assert story.failed(0, 1, 3).members == (0, 1, 3)
    story.wait(30.0)
    assert [story.where[w] for w in story.started] == [("a", 2)]
    story.ready(4)
    assert story.published == [HostUpdate.ADDED]
    assert story.updated(0, 1, 3).members == (0, 1, 4, 3)


def test_each_time_a_host_stays_away_for_longer() -> None:
    story = running(Story(2, min_np=1, cooldown=COOLDOWN), a=1, b=1)
    newest, times = 1, []
    for _ in range(4):
        story.exits(newest)
        story.failed(0)
        begin = story.now
        while not story.started:
            deadline = story.policy.deadline
            assert deadline is not None
            story.wait(deadline - story.now)
        times.append(story.now - begin)
        (newest,) = story.started
        story.ready(newest)
        story.updated(0)
    assert 20 <= times[0] <= 30
    assert 40 <= times[1] <= 50
    assert 80 <= times[2] <= 90
    assert times[3] == 100


def test_a_newcomer_that_dies_while_starting_disturbs_nobody() -> None:
    story = running(Story(2, min_np=1), a=2)
    story.hosts(a=3, b=2)
    assert story.started == [2, 3, 4]
    story.exits(2)
    assert story.abandoned == story.ended == []
    assert "its slot is blacklisted for good" in story.said
    story.exits(3)
    assert story.ended == [4]
    assert "b is blacklisted for good" in story.said
    assert story.exits(4, code=-15).new == []
    assert story.wait(TIMEOUT_S).started == []


def test_a_world_that_never_begins_excludes_whom_most_cannot_reach() -> None:
    story = running(Story(3, min_np=1), a=1, b=1, c=1)
    fresh = StateVersion()
    for world in (2, 3):
        story.failed(0, 1, lost=[2], state_version=fresh)
        assert story.failed(2, lost=[0], state_version=fresh).of(Assign)[0].world == world
    story.failed(0, 1, lost=[2], state_version=fresh)
    story.failed(2, lost=[0], state_version=fresh)
    assert story.ended == [2]
    assert story.members == (0, 1)


def test_two_halves_that_lost_each_other_keep_the_one_with_the_state() -> None:
    story = _four()
    old, new = StateVersion(1, 1), StateVersion(1, 2)
    for _ in range(4):
        story.failed(0, 1, lost=[2, 3], state_version=old)
        story.failed(2, 3, lost=[0, 1], state_version=new)
    assert story.ended == [0, 1]
    assert story.members == (2, 3)


def test_a_world_that_never_begins_for_no_known_reason_ends_the_job() -> None:
    story = running(Story(2), a=2)
    for _ in range(3):
        story.failed(0, 1, state_version=StateVersion())
    assert story.outcome is not None
    assert "3 worlds in a row" in story.outcome.text
    assert "worker 1 (rank 1, a): peer lost" in story.outcome.text


def test_worlds_that_begin_may_fail_as_often_as_they_like() -> None:
    story = running(Story(2), a=2)
    for _ in range(10):
        story.failed(0, 1)
    assert story.outcome is None


def test_plain_restarts_are_no_failures() -> None:
    story = running(Story(2), a=2)
    for _ in range(10):
        story.ready(0, 1, state_version=StateVersion())
    assert story.outcome is None


def test_finishing_while_others_still_run() -> None:
    story = _four()
    story.done(1)
    story.exits(1, code=0)
    assert story.outcome is None
    story.exits(3)  # others may fail now: there is a success
    assert story.ended == story.started == []
    story.failed(0)
    assert story.members == ()
    story.done(2)
    assert story.outcome is None
    assert story.exits(2, code=0).outcome.status == 0  # type: ignore[union-attr]


def test_one_that_is_done_is_given_time_to_end() -> None:
    story = running(Story(2), a=2)
    story.done(0, 1)
    assert story.exits(0, code=0).outcome is None
    assert story.wait(10 * TIMEOUT_S).outcome is None
    assert story.exits(1, code=0).outcome.status == 0  # type: ignore[union-attr]


def test_one_that_fails_after_its_training_has_failed() -> None:
    story = running(Story(2, min_np=1), a=1, b=1)
    story.done(0)
    story.failed(1)
    assert story.members == ()
    assert story.exits(0).members == (1,)


def test_a_command_without_training_succeeds_when_all_have_ended() -> None:
    story = Story(2).hosts(a=2)
    assert story.exits(0, code=0).outcome is None
    assert story.exits(1, code=0).outcome.status == 0  # type: ignore[union-attr]


def test_a_newcomer_that_leaves_early_is_no_success() -> None:
    story = running(Story(2), a=2)
    story.hosts(a=3)
    story.exits(2, code=0)
    assert "without having finished" in story.said
    assert story.failed(0, 1).members == (0, 1)


def test_a_fatal_error_ends_the_job() -> None:
    story = running(Story(2), a=2)
    story.fatal(1, "ranks disagree about allreduce 'x'")
    assert story.outcome is not None
    assert story.outcome.status == 1
    assert story.outcome.text == (
        "horovodrun: worker 1 (rank 1, a) cannot go on: ranks disagree about allreduce 'x'\n"
    )
    assert story.outcome.rank_info is not None
    assert story.outcome.rank_info.rank == 1


@pytest.mark.parametrize("event", ["ready", "done", "exits"])
def test_news_of_nobody_change_nothing(event: str) -> None:
    story = running(Story(2), a=2)
    assert getattr(story, event)(77).new == []
