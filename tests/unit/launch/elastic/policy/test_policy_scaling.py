"""Hosts and slots that come, go and come back; spares; waits and how they end."""

from __future__ import annotations

from horovod.launch.elastic.policy.actions import Publish, Start
from horovod.launch.model.hosts import HostSlots, assign_ranks
from horovod.rendezvous.identity.elastic_messages import HostUpdate, StateVersion

from .story import TIMEOUT_S, Story, running

COOLDOWN = (10.0, 100.0)


def test_nothing_starts_before_there_are_np_slots() -> None:
    story = Story(3, min_np=1)
    assert story.hosts(a=2).started == []
    assert "the hosts are now a:2; 3 slots are needed" in story.said
    assert story.hosts(a=2, b=2).started == [0, 1, 2, 3]
    assert story.said == ""


def test_np_slots_never_come() -> None:
    story = Story(3, min_np=1).hosts(a=2)
    assert story.wait(TIMEOUT_S - 1).outcome is None
    story.wait(1.0)
    assert story.outcome is not None
    text = story.outcome.text
    assert "3 are needed; after 600 s there are 0 workers" in text
    assert "the discovery's last answer is a:2\n" in text
    assert "No worker has reported a committed state." in text
    assert "--min-np" in text


def test_first_workers_have_the_ranks_that_were_predicted() -> None:
    story = Story(5).hosts(b=2, a=3)
    slots = assign_ranks([HostSlots("b", 2), HostSlots("a", 3)], 5)
    assert story.of(Start) == [
        Start(slot.rank, slot, slot.local_rank) for slot in slots
    ]  # workers are counted from 0, too
    story.ready(4, 2, 0, 1, 3)
    assert story.members == (0, 1, 2, 3, 4)
    for slot in slots:
        assignment = story.assignments[slot.rank]
        assert (
            assignment.rank_info.rank,
            assignment.rank_info.local_rank,
            assignment.rank_info.local_size,
        ) == (
            slot.rank,
            slot.local_rank,
            slot.local_size,
        )
        assert (assignment.rank_info.cross_rank, assignment.rank_info.cross_size) == (
            slot.cross_rank,
            slot.cross_size,
        )


def test_the_first_world_waits_for_all_but_does_with_fewer_after_a_failure() -> None:
    story = Story(3, min_np=1).hosts(a=2, b=1)
    assert story.ready(0, 1).members == ()
    assert story.exits(2).members == (0, 1)


def test_the_first_world_says_that_it_waits_for_others_than_those_that_failed() -> None:
    story = Story(2, min_np=2).hosts(a=1, b=1).ready(0)
    assert "waiting" not in story.said
    text = "waiting: 2 are needed, there is 1 worker that can go on"
    assert text in story.exits(1).said
    assert text not in story.wait(1.0).said
    assert story.hosts(a=1, b=1, c=1).ready(2).members == (0, 2)


def test_a_first_worker_that_hangs_is_given_up_at_the_timeout() -> None:
    story = Story(3, min_np=2).hosts(a=2, b=1)
    story.ready(0, 1)
    story.wait(TIMEOUT_S)
    assert story.ended == [2]
    assert story.members == (0, 1)


def test_scaling_up_waits_until_all_newcomers_are_ready() -> None:
    story = running(Story(2), a=2)
    story.hosts(a=2, b=2)
    assert story.ready(2).published == []
    story.ready(3)
    assert story.published == [HostUpdate.ADDED]
    assert story.wait(100.0).published == []  # once is enough
    assert story.updated(0).members == ()
    assert story.updated(1).members == (0, 1, 2, 3)
    assert story.assignments[0].updates == 1
    assert story.assignments[0].must_sync


def test_a_newcomer_that_is_late_is_not_waited_for() -> None:
    story = running(Story(2), a=2)
    story.hosts(a=2, b=2)
    story.ready(2)
    assert story.wait(29.0).published == []
    assert story.wait(1.0).published == [HostUpdate.ADDED]
    assert story.updated(0, 1).members == (0, 1, 2)
    story.ready(3)
    assert story.published == [HostUpdate.ADDED]


def test_timestamps_of_updates_always_grow() -> None:
    story = running(Story(2), a=2)
    times = []
    for newcomer in (2, 3, 4):
        story.hosts(a=newcomer + 1)
        story.ready(newcomer)
        times += [order.update.timestamp for order in story.of(Publish)]
        story.updated(*range(newcomer))
    assert times == [1000, 1001, 1002]


def test_scaling_down_needs_no_sync() -> None:
    story = running(Story(3, min_np=2), a=2, b=1)
    assert story.hosts(a=2).published == [HostUpdate.REMOVED]
    assert story.updated(0, 1).members == (0, 1)
    assert not story.assignments[0].must_sync
    assert story.updated(2).removed == {
        2: "b[0] was removed from the elastic job: its host is gone"
    }
    assert story.exits(2).said == "worker 2 (rank 2, b), which was removed, exited with code 1"
    assert story.hosts(a=2).new == []


def test_a_failure_on_the_way_down_needs_a_sync() -> None:
    story = running(Story(3, min_np=2), a=2, b=1)
    story.hosts(a=2)
    story.updated(0)
    assert story.failed(1).members == (0, 1)
    assert story.assignments[0].must_sync


def test_slots_reduced_and_increased() -> None:
    story = running(Story(3, min_np=1), a=3)
    assert story.hosts(a=2).published == [HostUpdate.REMOVED]
    story.updated(0, 1, 2)
    assert story.members == (0, 1)
    assert "its host has 2 slots now" in story.removed[2]
    story.hosts(a=3)
    assert story.started == []  # the slot is taken until worker 2 has ended
    assert story.exits(2).started == [3]
    assert story.where[3] == ("a", 2)


def test_a_host_removed_and_another_added_at_once_is_one_change() -> None:
    story = running(Story(4, min_np=2), a=2, b=2)
    story.hosts(a=2, c=2)
    assert story.published == []
    story.ready(4, 5)
    assert story.published == [HostUpdate.MIXED]
    story.updated(0, 1, 2, 3)
    assert story.members == (0, 1, 4, 5)
    assert set(story.removed) == {2, 3}


def test_whoever_is_needed_soon_after_a_removal_needs_a_sync() -> None:
    story = running(Story(4, min_np=3), a=2, b=2)
    assert story.hosts(a=2).published == [HostUpdate.MIXED]


def test_discovery_empties_and_recovers() -> None:
    story = running(Story(2), a=2)
    assert story.hosts().published == []
    assert story.wait(TIMEOUT_S - 1).published == []
    assert story.hosts(a=2).published == []
    assert story.hosts().wait(2.0).published == []


def test_discovery_empties_for_longer_and_recovers() -> None:
    story = running(Story(2), a=2)
    assert story.hosts().wait(TIMEOUT_S).published == [HostUpdate.MIXED]
    assert story.updated(0, 1).members == ()
    assert "waiting: 2 are needed, there are 0 workers that can go on" in story.said
    story.wait(TIMEOUT_S / 2)
    assert story.hosts(a=2).members == (0, 1)
    assert story.removed == {}


def test_discovery_empties_for_good() -> None:
    story = running(Story(2), a=2)
    assert story.hosts().wait(TIMEOUT_S).published == [HostUpdate.MIXED]
    story.ready(0, 1, state_version=StateVersion(1, 17), checkpoint="/data/model.pt")
    story.wait(TIMEOUT_S)
    assert story.outcome is not None
    text = story.outcome.text
    assert "the discovery's last answer is no hosts" in text
    assert (
        "The newest committed state is that of worker 1 (rank 1, a): 17 commits in world 1; "
        "its checkpoint is /data/model.pt\n"
    ) in text
    assert "Process name" not in text


def test_a_host_that_flaps_costs_one_reset_each_time() -> None:
    story = running(Story(4, min_np=2), a=2, b=2)
    for _ in range(3):
        story.hosts(a=2)
        assert story.published == [HostUpdate.REMOVED]
        assert story.hosts(a=2, b=2).published == []
        story.updated(0, 1)
        assert story.updated(2, 3).members == (0, 1, 2, 3)
    assert story.ended == []


def test_a_host_that_returns_is_last() -> None:
    story = running(Story(3, min_np=1), a=1, b=1, c=1)
    story.hosts(b=1, c=1)
    story.updated(0, 1, 2)
    story.exits(0)
    assert story.sizes == [3, 2]
    story.hosts(a=1, b=1, c=1)
    story.ready(3)
    assert story.updated(1, 2).members == (1, 2, 3)


def test_a_removed_host_that_dies_before_it_was_told_is_not_blamed() -> None:
    story = running(Story(2, min_np=1), a=1, b=1)
    story.hosts(a=1)
    story.exits(1, code=-15)
    assert "blacklisted" not in story.said
    assert story.failed(0).members == (0,)
    assert story.hosts(a=1, b=1).started == [2]


def test_spares_take_over_at_once() -> None:
    story = Story(2, max_np=2).hosts(a=2, b=4)
    assert [story.where[w][0] for w in story.started] == ["a", "a", "b", "b"]
    story.ready(2, 3)
    assert story.members == ()
    assert story.ready(0, 1).members == (0, 1)
    story.exits(0, code=-9)
    assert story.failed(1).members == (1, 2)  # a is blacklisted, but has the only state
    assert story.published == []
    assert story.wait(0.0).hosts(a=2, b=4).published == [HostUpdate.MIXED]
    assert story.updated(1, 2).members == (2, 3)


def test_spares_take_over_where_a_host_remains() -> None:
    story = Story(2, max_np=2, min_np=1).hosts(a=1, b=1, c=2)
    story.ready(*story.started)
    assert story.members == (0, 1)
    assert story.published == []
    story.exits(0, code=-9)
    assert story.failed(1).members == (1, 2)
    assert story.now == 0.0


def test_a_spare_that_dies_while_it_waits_is_replaced_elsewhere_only() -> None:
    story = Story(1, max_np=1).hosts(a=3)
    story.ready(0, 1)
    story.exits(1)
    assert story.abandoned == story.ended == []
    assert [story.where[w] for w in story.started] == [("a", 2)]


def test_a_spare_whose_slot_goes_is_told_so() -> None:
    story = Story(1, max_np=1).hosts(a=2)
    story.ready(0, 1)
    assert story.hosts(a=1).removed == {
        1: "a[1] was removed from the elastic job: its host has 1 slots now"
    }
    assert story.published == []


def test_below_min_np_newcomers_are_awaited_together() -> None:
    story = running(Story(4, min_np=3, cooldown=COOLDOWN), a=2, b=2)
    story.host_lost("b")
    story.failed(0, 1)
    assert story.members == ()
    story.wait(30.0)
    assert story.started == [4, 5]
    assert story.ready(4).members == ()
    assert story.ready(5).members == (0, 1, 4, 5)


def test_min_np_is_never_reached() -> None:
    story = running(Story(4, min_np=3), a=2, b=2)
    story.host_lost("b")
    story.failed(0, 1, state_version=StateVersion(1, 1))
    story.wait(TIMEOUT_S)
    assert story.outcome is not None
    text = story.outcome.text
    assert "3 are needed; after 600 s there are 2 workers that can go on" in text
    assert "a:2, b:2 (blacklisted for good)" in text
    assert "1 commit in world 1; without a checkpoint" in text
    assert text.endswith("Process name: 2\n")


def test_newcomers_that_crash_again_and_again_do_not_make_the_wait_endless() -> None:
    story = running(Story(2, cooldown=(1.0, 2.0)), a=1, b=1)
    story.exits(1)
    story.failed(0)
    while story.outcome is None:
        assert story.now <= TIMEOUT_S
        story.wait(1.0)
        if story.started:
            story.exits(*story.started)
    assert story.now == TIMEOUT_S


def test_who_comes_after_the_timeout_comes_too_late() -> None:
    story = running(Story(2, cooldown=(500.0, 3000.0)), a=1, b=1)
    story.exits(1)
    story.failed(0)
    story.wait(10.0)
    assert story.hosts(a=1, c=1).started == [2]
    story.wait(TIMEOUT_S - 5.0)
    assert story.outcome is None  # the newcomer on c may still get ready
    assert story.hosts(a=1, c=1, d=1).started == []
    assert story.exits(2).outcome is not None
