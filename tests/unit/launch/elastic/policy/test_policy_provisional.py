"""Newcomers of a job that goes on: no worker waits for what they do between init and training."""

from __future__ import annotations

from horovod.rendezvous.identity.elastic_messages import HostUpdate

from .story import TIMEOUT_S, Story, running

COOLDOWN = (10.0, 100.0)


def test_before_the_first_world_everybody_is_waited_for() -> None:
    story = Story(2).hosts(a=2)
    assert story.ready(0, is_early=True).provisional_assignments == {}
    assert story.ready(1, is_early=True).members == (0, 1)
    assert story.provisional_assignments == {}


def test_a_newcomer_interrupts_nobody_before_it_is_about_to_train() -> None:
    story = running(Story(2), a=2)
    assert story.hosts(a=2, b=2).started == [2, 3]
    story.ready(2, 3, is_early=True)
    assert story.provisional_assignments == {2: (2, 4), 3: (3, 4)}
    assert story.published == []
    assert story.ready(2).published == []
    assert story.ready(3).published == [HostUpdate.ADDED]
    assert story.updated(0, 1).members == (0, 1, 2, 3)


def test_survivors_do_not_wait_for_who_has_a_forecast() -> None:
    story = running(Story(2, min_np=1, cooldown=COOLDOWN), a=1, b=1)
    story.exits(1)
    assert story.failed(0).members == (0,)
    assert story.wait(25.0).started == [2]
    assert story.ready(2, is_early=True).provisional_assignments == {2: (1, 2)}
    assert story.failed(0).members == (0,)
    assert story.ready(2).published == [HostUpdate.ADDED]
    assert story.updated(0).members == (0, 2)


def test_a_spare_gets_ready_to_train_and_then_waits() -> None:
    story = Story(1, max_np=1).hosts(a=1, b=1)
    assert story.ready(1, is_early=True).provisional_assignments == {}
    story.ready(0, is_early=True)
    assert story.members == (0,)
    assert story.provisional_assignments == {1: (1, 2)}
    assert story.ready(1).published == []
    assert story.exits(0).outcome is not None  # no other worker has the state


def test_a_forecast_is_no_seat_for_one_whose_host_has_gone() -> None:
    story = running(Story(2), a=2)
    story.hosts(a=2, b=1)
    story.hosts(a=2)
    assert story.ready(2, is_early=True).provisional_assignments == {}
    assert list(story.removed) == [2]


def test_who_never_trains_is_ended_at_the_timeout() -> None:
    story = running(Story(2), a=2)
    story.hosts(a=2, b=1).ready(2, is_early=True)
    assert story.wait(TIMEOUT_S + 1).ended == [2]
