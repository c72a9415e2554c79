"""Guests as the hosts of an elastic job: they come and go as the engine's side says."""

from __future__ import annotations

import selectors
from collections.abc import Callable

from horovod.launch.elastic.discovery import Finding
from horovod.launch.embedded.agent_news import AgentUpdates
from horovod.launch.model.job_plan import EmbeddedAgentAddress

__all__ = ["EmbeddedAgentHosts"]


class EmbeddedAgentHosts:
    """See ``HostSource``; ``addresses`` are those of all guests that have ever been there."""

    pid = None
    deadline: float | None = None

    def __init__(
        self,
        news: AgentUpdates,
        selector: selectors.BaseSelector,
        report: Callable[[Finding], None],
    ) -> None:
        self.addresses: dict[str, EmbeddedAgentAddress] = {}
        self._news = news
        self._selector = selector
        self._report = report
        selector.register(news, selectors.EVENT_READ, self._hear)

    def tick(self, now: float) -> None:
        """Nothing is ever due."""

    def note_exit(self, pid: int, status: int) -> bool:
        """Never: there is no child."""
        return False

    def close(self) -> None:
        """See ``HostSource``."""
        self._selector.unregister(self._news)

    def _hear(self) -> None:
        self._news.clear()
        agents = self._news.latest
        if isinstance(agents, str):
            self._report(Finding(error=agents, is_final=True))
            return
        self.addresses.update({name: agent.address for name, agent in agents.items()})
        self._report(Finding({name: agent.slots for name, agent in agents.items()}))
