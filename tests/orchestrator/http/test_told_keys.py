"""`GET /v1/keys` and who follows it: the newest keys are taken, and neither a forged nor an old answer changes anything."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from changed_keys import RunKeys
from samples import DIGEST, LEASE, NODE, NOW, RUN, key
from shoal.contracts.roster import ROLES
from shoal.contracts.signed import BadSignature, sign
from shoal.contracts.trust import OVERLAP_SECONDS, KeysNotice, PastWork, TrustedKeys
from shoal.contracts.verdicts import Verdict
from shoal.transport import Unavailable, keys_watch
from shoal.transport.keys_watch import AskedKeys, KeysWatch
from shoal.transport.service import add_keys_route

VERDICT = Verdict(
    run=RUN, node=NODE, lease=LEASE, step=3, submission=0, sha256=DIGEST, outcome="reject", reason="redraw"
)


def new_keys() -> RunKeys:
    return RunKeys(RUN, key(1), {role: key(20 + number) for number, role in enumerate(ROLES)}, fixed=key(2))


class Server:
    """Answers every question with what the test says."""

    def __init__(self) -> None:
        self.answer: tuple[int, bytes] = (204, b"")
        self.asked: list[str] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.asked.append(self.path)
                status, body = server.answer
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.http.shutdown()


def test_only_what_is_newer_is_sent() -> None:
    keys = new_keys()
    now = NOW
    trust = TrustedKeys(keys.roster, key(1).public, clock=lambda: now)
    app = FastAPI()
    add_keys_route(app, trust, lambda: trust.notice)
    client = TestClient(app)
    assert client.get("/v1/keys?after=0").status_code == 200
    assert client.get("/v1/keys?after=1").status_code == 204
    trust.adopt(keys.change("trainer", NOW))
    assert KeysNotice.from_json(client.get("/v1/keys?after=1").content).roster == keys.roster
    assert client.get("/v1/keys?after=2").status_code == 200  # the old key still acts, and what it made grows
    now = NOW + 2 * OVERLAP_SECONDS + 1
    assert client.get("/v1/keys?after=2").status_code == 204
    assert client.get("/v1/keys").status_code == 200


def test_newer_keys_are_taken_and_told(server: Server) -> None:
    keys = new_keys()
    told: list[int] = []
    trust = TrustedKeys(keys.roster, key(1).public)
    watch = KeysWatch(trust, server.url, lambda: told.append(trust.roster.generation))
    watch.turn()
    server.answer = (200, KeysNotice(roster=keys.change("trainer", NOW, leaked=True)).to_json())
    watch.turn()
    watch.turn()
    assert told == [2]
    assert server.asked == ["/v1/keys?after=0", "/v1/keys?after=1", "/v1/keys?after=2"]


def test_forged_old_and_broken_answers_change_nothing(server: Server) -> None:
    keys, first = new_keys(), new_keys().roster
    trust = TrustedKeys(keys.change("trainer", NOW), key(1).public)
    watch = KeysWatch(trust, server.url, lambda: pytest.fail("nothing is newer"))
    thief = RunKeys(RUN, key(9), dict(keys.roles))
    thief.change("trainer", NOW)
    before = trust.roster
    changed = json.loads(keys.roster.to_json())
    changed["document"]["keys"]["relay"] = key(77).public
    empty = first.document.model_copy(update={"first_signature": first.signature})
    for status, body in (
        (200, KeysNotice(roster=sign(empty, key(1))).to_json()),
        (200, KeysNotice(roster=first).to_json()),
        (200, KeysNotice(roster=thief.roster).to_json()),
        (200, json.dumps({"roster": changed, "past": None}).encode()),
        (200, b"{}"),
        (404, b""),
    ):
        server.answer = (status, body)
        watch.turn(deadline_seconds=0.2)
        assert trust.roster == before


def test_a_watch_outlives_whatever_goes_wrong(server: Server) -> None:
    keys = new_keys()

    def fails() -> None:
        raise KeyError("whoever is told")

    watch = KeysWatch(TrustedKeys(keys.roster, key(1).public), server.url, fails)
    for role in ("trainer", "relay"):
        server.answer = (200, KeysNotice(roster=keys.change(role, NOW)).to_json())
        watch.turn()
    assert watch.keys.roster.generation == 3


def test_the_mounted_roster_is_taken_while_the_orchestrator_does_not_answer(server: Server) -> None:
    keys = new_keys()
    trust, told, mounted = TrustedKeys(keys.roster, key(1).public), list[int](), [keys.roster]
    watch = KeysWatch(trust, server.url, lambda: told.append(trust.roster.generation), lambda: mounted[-1])
    server.answer = (503, b"")
    assert not watch.turn(deadline_seconds=0.1)
    mounted.append(keys.change("orchestrator", NOW, leaked=True))
    assert not watch.turn(deadline_seconds=0.1), "a file is no answer"
    assert told == [2]


def test_who_took_the_mounted_roster_asks_for_the_past_once(server: Server) -> None:
    keys = new_keys()
    mounted = [keys.roster]
    watch = KeysWatch(TrustedKeys(keys.roster, key(1).public), server.url, mounted=lambda: mounted[-1])
    watch.turn()
    server.asked.clear()
    mounted.append(keys.change("validator", NOW, leaked=True))
    past = sign(PastWork(run=RUN, versions={}, step=VERDICT.step), keys.roles["orchestrator"])
    server.answer = (200, KeysNotice(roster=keys.roster, past=past).to_json())
    watch.turn()
    watch.turn()
    assert server.asked == ["/v1/keys?after=0", "/v1/keys?after=2"]
    assert watch.keys.past == past.document


def test_a_mounted_roster_that_cannot_be_read_or_believed_hinders_no_question(server: Server) -> None:
    keys = new_keys()
    thief = RunKeys(RUN, key(9), dict(keys.roles))
    mounted = [thief.change("trainer", NOW)]
    watch = KeysWatch(TrustedKeys(keys.roster, key(1).public), server.url, mounted=lambda: mounted.pop())
    server.answer = (200, KeysNotice(roster=keys.change("trainer", NOW)).to_json())
    for _ in range(2):
        assert watch.turn()
    assert watch.keys.notice.roster == keys.roster


def test_a_key_that_is_not_known_yet_is_asked_for_before_it_is_refused(server: Server) -> None:
    keys = new_keys()
    watch = KeysWatch(TrustedKeys(keys.roster, key(1).public), server.url)
    watch.turn()
    server.asked.clear()
    believed = watch.believed("validator")
    old = keys.roles["validator"]
    sign(VERDICT, old).verified(believed)
    assert server.asked == []  # a known key costs no question
    newest = keys.change("validator", NOW, leaked=True)
    past = sign(PastWork(run=RUN, versions={}, step=VERDICT.step), keys.roles["orchestrator"])
    server.answer = (200, KeysNotice(roster=newest, past=past).to_json())
    sign(VERDICT, keys.roles["validator"]).verified(believed)
    sign(VERDICT, old).verified(believed)
    assert server.asked == ["/v1/keys?after=0"]
    for _ in range(3):
        with pytest.raises(BadSignature, match="required:"):
            sign(VERDICT, key(99)).verified(believed)
    assert len(server.asked) == 2  # one answer refuses a stranger's whole batch


def test_nobody_is_refused_while_the_orchestrator_does_not_answer(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys_watch, "REFUSED_PAUSE_SECONDS", 0.01)
    keys = new_keys()
    watch = KeysWatch(TrustedKeys(keys.roster, key(1).public), server.url)
    newest = keys.change("validator", NOW)
    signed = sign(VERDICT, keys.roles["validator"])
    server.answer = (503, b"")
    with pytest.raises(Unavailable, match="neither believed nor refused"):
        signed.verified(AskedKeys(watch, "validator", deadline_seconds=0.1))
    threading.Timer(0.5, lambda: setattr(server, "answer", (200, KeysNotice(roster=newest).to_json()))).start()
    assert signed.verified(AskedKeys(watch, "validator")) == VERDICT
