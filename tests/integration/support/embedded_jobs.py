"""Jobs of a worker on each of some embedded agents that the test, or a process of its own, runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from horovod.launch.calls.call import Call
from horovod.launch.embedded.external_workers import positions_on
from horovod.launch.model.job_plan import EmbeddedAgentAddress, JobPlan, OtherHosts
from horovod.launch.run.function import run_call

HERE = "127.0.0.1"


class HasAgent(Protocol):
    """Has the address of an embedded agent."""

    @property
    def address(self) -> tuple[str, int]: ...


def call(function: Callable[[], Any], agents: Mapping[str, HasAgent], secret: bytes) -> list[Any]:
    slots = positions_on(["node"] * len(agents))
    plan = JobPlan(
        slots=tuple(replace(slot, hostname=name) for slot, name in zip(slots, agents, strict=True)),
        others=OtherHosts(
            addresses=dict.fromkeys(agents, (HERE,)),
            agents={
                name: EmbeddedAgentAddress(*agent.address, secret) for name, agent in agents.items()
            },
            start_timeout_s=30,
        ),
    )
    return run_call(Call(function, (), {}), plan)
