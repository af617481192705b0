"""A member learns of changed keys from whoever answers, and of the past from the orchestrator."""

import os
import threading
from pathlib import Path

import pytest

from changed_keys import RunKeys
from samples import NOW, ROLE_KEYS, RUN, key
from shoal.agent import session as agent_session
from shoal.agent.session import MustJoinError, Session
from shoal.contracts.protocol import Invite
from shoal.contracts.run import NodeConfig
from shoal.contracts.signed import Signed, sign
from shoal.contracts.trust import KeysNotice, TrustedKeys
from shoal.transport import SignedClient, Unavailable


def invited(keys: RunKeys) -> tuple[Session, Signed[Invite]]:
    config = NodeConfig(
        run=RUN, pool="pool", discovery="http://discovery", roster=keys.roster, run_key=keys.run_key.public
    )
    session = Session(config, key(7))
    invite = Invite(
        run=RUN, pool="pool", node=key(7).public, orchestrator_url="http://thief", nonce="0" * 32, expires_unix=1 << 40
    )
    return session, session._checked(sign(invite, keys.roles["orchestrator"]))


def test_a_member_asks_discovery_for_keys_while_the_orchestrator_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path))
    keys = RunKeys(RUN, key(1), dict(ROLE_KEYS))
    session, signed = invited(keys)
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


def test_a_roster_of_discovery_makes_a_member_ask_the_orchestrator_for_the_past(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path))
    (tmp_path / "run").mkdir()
    keys = RunKeys(RUN, key(1), dict(ROLE_KEYS))
    session, _ = invited(keys)
    newest, asked = keys.change("validator", NOW), list[tuple[bool, bool]]()

    def ask(client: SignedClient, trust: TrustedKeys, *, all_of_it: bool, **_: object) -> bool:
        asked.append((client is session._orchestrator, all_of_it))
        return client is session._discovery and trust.adopt(newest)

    monkeypatch.setattr(agent_session, "ask_for_keys", ask)
    for _ in range(3):
        session._keys_due = 0.0
        session._learn_keys()
    assert [everything for orchestrator, everything in asked if orchestrator] == [True, True, False]


def test_kept_keys_are_not_written_through_a_link_of_a_worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path))
    run = tmp_path / "run"
    run.mkdir()
    mine = tmp_path / "node.pem"
    mine.write_bytes(b"the agent's key")
    for name in ("keys.json", ".keys.json.partial", "keys.partial"):
        (run / name).symlink_to(mine)
    session, _ = invited(RunKeys(RUN, key(1), dict(ROLE_KEYS)))
    session._keep_keys()
    assert mine.read_bytes() == b"the agent's key"
    assert not (run / "keys.json").is_symlink()
    assert KeysNotice.from_json((run / "keys.json").read_bytes()) == KeysNotice(roster=session._trust.notice.roster)


@pytest.mark.parametrize("made", ["pipe", "link", "long"])
def test_kept_keys_that_a_worker_put_there_neither_stop_the_agent_nor_fill_its_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, made: str
) -> None:
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path))
    kept = tmp_path / "run" / "keys.json"
    kept.parent.mkdir()
    if made == "pipe":
        os.mkfifo(kept)
    elif made == "link":
        kept.symlink_to("/dev/zero")
    else:
        with kept.open("wb") as file:
            file.truncate(1 << 40)
    session, _ = invited(RunKeys(RUN, key(1), dict(ROLE_KEYS)))
    session._recall_keys()  # a pipe without a writer would be waited for
    assert session._trust.notice.roster.document.changes == []
