"""Who has the state is kept until others have it, wherever it is and whatever it is told."""

from __future__ import annotations

from horovod.rendezvous.identity.elastic_messages import HostUpdate, StateVersion

from .story import TIMEOUT_S, Story, running

COOLDOWN = (10.0, 100.0)
NOTHING = StateVersion()


def _joined(**options: object) -> Story:
    """Two workers on b have the state, two newcomers on a have met them and wait for it."""
    story = running(Story(4, cooldown=COOLDOWN, **options), a=2, b=2)  # type: ignore[arg-type]
    story.host_lost("a")
    assert story.failed(2, 3).members == (2, 3)
    assert story.wait(30.0).started == [4, 5]
    story.ready(4, 5)
    assert story.updated(2, 3).members == (2, 3, 4, 5)
    return story


def _drained(**options: object) -> Story:
    """Two workers on a, which is not listed any more, and two newcomers on b."""
    story = running(Story(2, **options), a=2)  # type: ignore[arg-type]
    assert story.hosts(b=2).published == []
    assert story.ready(2).published == []
    assert story.ready(3).published == [HostUpdate.MIXED]
    return story


def test_a_blacklisted_host_keeps_its_holder_until_newcomers_have_the_state() -> None:
    story = _joined(min_np=1)
    story.exits(2, code=-9)
    assert "b is blacklisted for 2" in story.said
    assert story.ended == []
    assert story.failed(4, 5, state_version=NOTHING).members == ()
    assert story.failed(3, state_version=StateVersion(2, 1)).members == (3, 4, 5)
    assert story.wait(0.0).hosts(a=2, b=2).published == [HostUpdate.REMOVED]
    assert story.updated(3, 4, 5).members == (4, 5)
    assert story.removed == {3: "b[0] was removed from the elastic job: its host is blacklisted"}


def test_it_stays_kept_while_the_newcomers_lose_the_state_on_its_way() -> None:
    story = _joined(min_np=1)
    story.exits(2)
    story.failed(4, 5, state_version=NOTHING)
    story.failed(3, state_version=StateVersion(2, 1))
    story.exits(4)
    story.failed(5, state_version=NOTHING)
    assert story.failed(3, state_version=StateVersion(2, 1)).members == (3, 5)


def test_it_stays_for_good_if_its_host_may_be_used_again_by_then() -> None:
    story = _joined(min_np=2)
    story.exits(2)
    story.failed(4, state_version=NOTHING)
    story.exits(5)
    story.failed(3, state_version=StateVersion(2, 1))
    assert story.members == ()  # one that can stay, two are needed
    story.wait(31.0)
    assert story.ready(*story.started).members == (3, 7, 4, 6)
    assert story.removed == {}


def test_newcomers_do_not_begin_anew_while_a_holder_is_away() -> None:
    story = _drained()
    story.exits(0)
    assert story.members == ()
    assert "waiting: there are 2 workers, and none of them has the state" in story.said
    assert story.failed(1).members == (1, 2, 3)


def test_all_hosts_are_replaced() -> None:
    story = _drained()
    assert story.updated(0, 1).members == (0, 2, 3)
    assert story.assignments[2].must_sync
    assert set(story.removed) == {1}
    assert story.published == [HostUpdate.REMOVED]
    assert story.updated(0, 2, 3).members == (2, 3)
    assert not story.assignments[2].must_sync
    assert story.removed == {0: "a[0] was removed from the elastic job: its host is gone"}


def test_the_release_of_a_holder_is_no_reset_of_its_own() -> None:
    story = _drained(reset_limit=1)
    story.updated(0, 1).updated(0, 2, 3)
    assert story.sizes == [2, 3, 2]
    story.failed(2, 3)
    assert story.outcome is not None
    assert "exceeded limit: 1" in story.outcome.text


def test_a_failure_before_the_release_is_one() -> None:
    story = _drained(reset_limit=1)
    story.updated(0, 1)
    story.failed(2, 3, state_version=NOTHING)
    story.failed(0)
    assert story.outcome is not None
    assert "exceeded limit: 1" in story.outcome.text


def test_who_hands_over_is_within_max_np() -> None:
    assert _drained(max_np=2).updated(0, 1).members == (0, 2)
    story = running(Story(1, max_np=1), a=1)
    story.hosts(b=1).ready(1)
    assert story.updated(0).members == (0, 1)  # or no worker could take it over
    story.hosts(b=1)
    assert story.updated(0, 1).members == (1,)


def test_holders_wait_as_long_as_too_few_can_take_over() -> None:
    story = _drained(cooldown=COOLDOWN)
    assert story.exits(3).ended == [2]  # b is blacklisted after the update was published
    story.exits(2, code=-15)
    assert story.updated(0, 1).members == ()
    assert story.wait(31.0).started == [4, 5]
    assert story.ready(4).members == ()
    assert story.ready(5).members == (0, 4, 5)
    assert set(story.removed) == {1}


def test_holders_of_a_host_that_has_gone_wait_until_the_timeout() -> None:
    story = _drained()
    story.exits(3)
    story.updated(0, 1)
    assert story.wait(TIMEOUT_S - 1).outcome is None
    story.wait(1.0)
    assert story.outcome is not None
    assert "2 are needed; after 600 s there are 0 workers" in story.outcome.text
    assert "The newest committed state is that of worker 1 (rank 1, a)" in story.outcome.text


def test_a_last_holder_that_hangs_is_waited_for() -> None:
    story = _joined(min_np=1)
    story.exits(3)
    story.failed(4, 5, lost=[2], state_version=NOTHING)
    assert story.wait(TIMEOUT_S - 1).ended == []
    assert story.failed(2, state_version=StateVersion(2, 1)).members == (2, 4, 5)


def test_a_last_holder_that_hangs_for_too_long_is_dead() -> None:
    story = _joined(min_np=1)
    story.policy.note_pid(2, 4711)
    story.exits(3)
    story.failed(4, 5, lost=[2], state_version=NOTHING)
    story.wait(TIMEOUT_S)
    assert 2 in story.ended
    assert story.outcome is not None
    assert story.outcome.text.startswith(
        "horovodrun: no worker with the state is left: all workers of world 3 that had it have "
        "ended; the discovery's last answer is a:2, b:2"
    )
    assert "  worker 3 (rank 1, b) exited with code 1, 600.0 s ago\n" in story.outcome.text
    assert (
        "  worker 2 (rank 0, b), pid 4711, did not ask for a place within 600 s, 0.0 s ago\n"
    ) in story.outcome.text


def test_without_a_reported_state_none_is_said_to_be_lost() -> None:
    """As where the script of every worker fails before it trains."""
    story = running(Story(2, min_np=1), a=2)
    story.exits(0)
    story.failed(1, state_version=NOTHING)
    story.exits(1)
    assert story.outcome is not None
    assert story.outcome.text.startswith("horovodrun: all workers of world 2 have ended; the disc")
    assert "with the state" not in story.outcome.text
    assert "No worker has reported a committed state.\n" in story.outcome.text


def test_who_hangs_is_given_up_once_another_holder_is_back() -> None:
    story = _joined(min_np=1)
    story.failed(4, lost=[2], state_version=NOTHING)
    assert story.wait(5.0).ended == []
    story.failed(3, state_version=StateVersion(2, 1))
    assert story.ended == [2]


def test_newcomers_that_cannot_reach_the_only_holder_go_before_it() -> None:
    story = running(Story(1, max_np=3, cooldown=COOLDOWN), a=1)
    story.hosts(a=1, b=1, c=1).ready(1, 2)
    assert story.updated(0).members == (0, 1, 2)
    for _ in range(3):
        story.failed(1, 2, lost=[0], state_version=NOTHING)
        story.failed(0, state_version=StateVersion(1, 5))
    assert story.ended == [1, 2]
    assert story.members == (0,)


def _one_is_late() -> Story:
    """Worker 2 is on b, which is blacklisted; the others trained on without it, and are gone."""
    story = running(Story(4, min_np=1), a=1, b=2, c=1)
    story.exits(1)
    story.failed(3)
    assert story.failed(0).members == (0, 3)
    story.failed(0, state_version=StateVersion(2, 5))
    assert story.exits(0, 3).outcome is None
    assert "b: no longer blacklisted but for free slots" in story.said
    return story


def test_one_that_was_late_has_the_state_if_all_others_have_lost_it() -> None:
    story = _one_is_late()
    assert story.failed(2).members == (2,)
    assert (
        "going on from an older state, that of worker 2 (rank 0, b) with 1 commit in world 1; "
        "worker 0 (rank 0, a), which had the newest, has ended"
    ) in story.said


def test_one_that_was_late_and_never_comes_has_had_the_state() -> None:
    story = _one_is_late()
    story.exits(2, code=-9)
    assert story.outcome is not None
    assert "no worker with the state is left" in story.outcome.text
    assert "worker 2 (rank 2, b) was ended by SIGKILL, 0.0 s ago" in story.outcome.text


def test_with_all_hosts_blacklisted_for_good_healthy_workers_go_on() -> None:
    story = running(Story(4, min_np=2), a=2, b=2)
    story.exits(0)
    story.exits(2)
    assert story.outcome is None
    assert story.failed(1).members == ()
    assert story.failed(3).members == (1, 3)
    assert story.started == []
    assert story.wait(TIMEOUT_S).new == []


def test_at_the_timeout_the_blacklist_gives_way() -> None:
    story = running(Story(4, min_np=3), a=2, b=2)
    story.exits(0)
    assert story.failed(1, 2, 3).members == ()
    story.wait(TIMEOUT_S)
    assert "a: no longer blacklisted but for free slots, since worker 1 (rank 1, a)" in story.said
    assert story.members == (1, 2, 3)


def test_one_whose_training_is_over_hands_nothing_over() -> None:
    story = _drained()
    story.done(0)
    assert story.failed(1).members == ()
    assert story.removed == {}
    assert story.exits(0, code=0).outcome is not None
    assert story.outcome is not None
    assert story.outcome.status == 0


def test_every_holder_that_ended_is_named() -> None:
    story = running(Story(2, min_np=1), a=1, b=1)
    story.policy.note_pid(0, 11)
    story.policy.note_pid(1, 12)
    story.exits(0, code=-9)
    story.wait(2.0)
    story.exits(1, code=3)
    assert story.outcome is not None
    assert (
        "  worker 0 (rank 0, a), pid 11, was ended by SIGKILL, 2.0 s ago\n"
        "  worker 1 (rank 1, b), pid 12, exited with code 3, 0.0 s ago\n"
    ) in story.outcome.text


def test_both_hosts_are_blacklisted_within_a_cooldown() -> None:
    story = running(Story(4, min_np=2, cooldown=COOLDOWN), a=2, b=2)
    story.exits(0, 2, code=-9)
    assert story.ended == []
    assert story.failed(1, 3).members == ()
    story.wait(31.0)
    assert story.ready(*story.started).members == (1, 4, 5, 3)
