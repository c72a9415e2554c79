"""What one host has to run: the same for the launcher's own and for one that an agent looks after.

The secret is part of what travels to an agent, through ssh's standard input.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from horovod.core.base.checked import BadMessageError, Fields, printable
from horovod.core.base.rank_info import RankInfo, read_rank_info
from horovod.launch.model.environment import is_passed_on

__all__ = [
    "HostPlan",
    "WorkerSpec",
    "fields_of",
    "place_fields",
    "place_of",
    "plan_of",
    "remote_environment",
]

# Of the ssh session that the launcher itself may run in.
_OF_A_SESSION = frozenset({"SSH_CONNECTION", "SSH_CLIENT", "SSH_TTY", "SSH_AUTH_SOCK"})

_MOST_WORD = 2**21  # of a command line


@dataclass(frozen=True)
class WorkerSpec:
    """One worker: its number, its place in the world, and variables that it has for itself.

    No two workers of a job ever have the same number; without elastic training it is the rank.
    """

    number: int
    rank_info: RankInfo
    extra: Mapping[str, str]


@dataclass(frozen=True)
class HostPlan:
    """``words`` are what every worker of ``hostname`` runs, in ``environment`` with additions.

    The first of ``stores``, addresses and ports, that can be reached from the host and knows
    ``secret``, within ``store_timeout_s``, is the job's store. ``interfaces``: see
    ``worker_environment``. Workers are kept for ``patience_s`` if the launcher goes without a word.
    """

    hostname: str
    words: tuple[str, ...]
    environment: Mapping[str, str]
    stores: tuple[tuple[str, int], ...]
    secret: bytes = field(repr=False)
    store_timeout_s: float = 10.0
    interfaces: tuple[str, ...] | None = None
    has_call: bool = False
    patience_s: float = 0.0


def remote_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What of the launcher's environment workers on other hosts get, on top of what is there.

    Numbers of GPUs are those of one machine.
    """
    return {
        name: value
        for name, value in environ.items()
        if is_passed_on(name)
        and not name.endswith("CUDA_VISIBLE_DEVICES")
        and name not in _OF_A_SESSION
    }


def fields_of(plan: HostPlan) -> dict[str, Any]:
    """``plan`` as JSON takes it."""
    fields = {name: getattr(plan, name) for name in plan.__dataclass_fields__}
    fields["environment"] = dict(plan.environment)
    fields["secret"] = base64.b64encode(plan.secret).decode()
    return fields


def plan_of(fields: Fields) -> HostPlan:
    """The plan that ``fields_of`` has made these from; BadMessageError for any others."""
    try:
        secret = base64.b64decode(fields.text("secret", 1024), validate=True)
    except BadMessageError:
        raise
    except ValueError as error:
        raise fields.error("secret", "what cannot be decoded", f"base64 ({error})") from None
    plan = HostPlan(
        hostname=printable(fields.text("hostname", 255)),
        words=fields.texts("words", _MOST_WORD),
        environment=fields.texts_by_name("environment"),
        stores=fields.addresses("stores"),
        secret=secret,
        store_timeout_s=fields.number("store_timeout_s"),
        interfaces=None if fields.is_null("interfaces") else fields.texts("interfaces", 255),
        has_call=fields.flag("has_call"),
        patience_s=fields.number("patience_s"),
    )
    fields.close()
    return plan


def place_fields(place: WorkerSpec) -> dict[str, Any]:
    """``place`` as JSON takes it."""
    return {
        "number": place.number,
        "rank_info": asdict(place.rank_info),
        "extra": dict(place.extra),
    }


def place_of(fields: Fields) -> WorkerSpec:
    """The place that ``place_fields`` has made these from; BadMessageError for any others."""
    number = fields.integer("number", 0, 2**32 - 1)
    info = read_rank_info(fields.fields("rank_info"))
    return WorkerSpec(number, info, fields.texts_by_name("extra"))
