"""A member learns of a leaked key while the orchestrator is away."""

import threading
from pathlib import Path

import pytest

from changed_keys import RunKeys
from samples import NOW, ROLE_KEYS, RUN, key
from shoal.agent import session as agent_session
from shoal.agent.session import MustJoinError, Session
from shoal.contracts.protocol import Invite
from shoal.contracts.run import NodeConfig
from shoal.contracts.signed import sign
from shoal.contracts.trust import TrustedKeys
from shoal.transport import SignedClient, Unavailable


def test_a_member_asks_discovery_for_keys_while_the_orchestrator_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path))
    keys = RunKeys(RUN, key(1), dict(ROLE_KEYS))
    config = NodeConfig(
        run=RUN, pool="pool", discovery="http://discovery", roster=keys.roster, run_key=keys.run_key.public
    )
    session = Session(config, key(7))
    invite = Invite(
        run=RUN, pool="pool", node=key(7).public, orchestrator_url="http://thief", nonce="0" * 32, expires_unix=1 << 40
    )
    signed = session._checked(sign(invite, keys.roles["orchestrator"]))
    newest = keys.change("orchestrator", NOW, leaked=True)

    stop, beats = threading.Event(), list[object]()

    def away(self: Session, invite: object) -> None:
        beats.append(invite)
        if len(beats) == 3:
            stop.set()
        raise Unavailable("it reads its ledger")

    def ask(client: SignedClient, trust: TrustedKeys, **_: object) -> bool:
        if client is session._discovery:
            return trust.adopt(newest)
        raise Unavailable("it reads its ledger")

    monkeypatch.setattr(Session, "_beat", away)
    monkeypatch.setattr(agent_session, "ask_for_keys", ask)
    with pytest.raises(MustJoinError, match="the orchestrator's key leaked"):
        session._stay(stop, signed)
