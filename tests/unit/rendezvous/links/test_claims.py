"""What the two ends of a link say about it, in bytes."""

from __future__ import annotations

import pytest
from one_link import claims_for
from worlds import SECRET

from horovod.rendezvous.base.handshake import Dialer, Listener, ProtocolError
from horovod.rendezvous.base.interfaces import Route
from horovod.rendezvous.links.handshake import PROTOCOL, Claims, Verdict
from horovod.rendezvous.links.plan import Purpose


def test_keys_depend_on_the_claims() -> None:
    claims = claims_for(Route("127.0.0.1", 1))
    listener = Listener(PROTOCOL, SECRET)
    keys = set()
    changes: tuple[dict[str, object], ...] = (
        {},
        {"listener": 2},
        {"channel": 9},
        {"purpose": Purpose.CONTROL},
    )
    for change in changes:
        side = Dialer(PROTOCOL, SECRET)
        side._nonce = b"n" * 32
        side.hello(listener.opening, claims._replace(**change).to_bytes())
        keys |= {side.send_key, side.receive_key}
    assert len(keys) == 2 * len(changes)


@pytest.mark.parametrize("host", ["10.0.0.1", "::1", "fe80::1", "2001:db8::7"])
def test_claims_keep_addresses_of_both_families(host: str) -> None:
    claims = claims_for(Route(host, 1))
    assert Claims.from_bytes(claims.to_bytes()) == claims


def test_unknown_purposes_and_verdicts_are_refused() -> None:
    statement = claims_for(Route("10.0.0.1", 1)).to_bytes()
    with pytest.raises(ProtocolError, match="unknown purpose 9"):
        Claims.from_bytes(b"\x09" + statement[1:])
    assert Verdict.of(b"\x01") == Verdict.WELCOME
    with pytest.raises(ProtocolError, match="its verdict is 9; expected 1 to 5"):
        Verdict.of(b"\x09")
