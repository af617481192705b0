"""The service of the page: what it answers, to whom, and that nothing of it writes or can be tricked. In process, with real documents."""

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from run_documents import progress, step_metrics
from starlette.testclient import TestClient
from ui_run import CHEAT, COMPLETION, HONEST, MARKUP, UNKNOWN_TOKEN, UiRun

from ledger_samples import altered, fact
from shoal.contracts import keys
from shoal.contracts.answers import LearningProgress
from shoal.contracts.compute import compute_of
from shoal.contracts.signed import sign
from shoal.crypto.canonical import document_digest
from shoal.ledger.audit import check_proof
from shoal.ledger.entries import InclusionProof
from shoal.ledger.facts import InvitedNode
from shoal.ledger.terms import terms_of_run
from shoal.ledger.writer import LedgerWriter
from shoal.report.times import StoreTimes
from shoal.ui import app as service
from shoal.ui.access import Access, BadPageToken, access_for, host_name, is_loopback
from shoal.ui.app import make_app
from shoal.ui.newest import NewestAnswers
from shoal.ui.rollouts import TOKENIZER_FILE, RolloutFiles, TokenText
from shoal.ui.timeline import intervals, step_rows
from shoal.ui.watch import RunWatch

HERE = "http://127.0.0.1"


def client_of(run: UiRun, access: Access | None = None) -> TestClient:
    watch = RunWatch(run.source, lambda: run.snapshot)
    watch.read_once()
    return TestClient(make_app(watch, access or access_for("127.0.0.1", None)), base_url=HERE, follow_redirects=False)


@pytest.fixture(scope="module")
def client(ui_run: UiRun) -> Iterator[TestClient]:
    with client_of(ui_run) as made:
        yield made


def test_live_figures_are_those_of_the_live_view(client: TestClient) -> None:
    live = client.get("/api/live").json()
    assert live["headline"] == "step 7/10, version 7, trainer: wait"
    assert [each["state"] for each in live["parts"]] == ["ready", "failed", "ready"]
    assert dict(live["figures"])["nodes"] == "2 Healthy"


def test_a_run_that_cannot_learn_says_so_on_the_page(ui_run: UiRun) -> None:
    known = LearningProgress(groups=32, cut=1.0, decided=True, reason="AnswersCutOff", message=f"none {MARKUP}\x1b")
    snapshot = replace(ui_run.snapshot, progress=progress(steps_total=10, learning=known))
    watch = RunWatch(ui_run.source, lambda: snapshot)
    watch.read_once()
    live = TestClient(make_app(watch, access_for("127.0.0.1", None)), base_url=HERE).get("/api/live").json()
    assert live["cannot_learn"] == f"none {MARKUP}\\x1b"
    assert live["answers"].startswith("0.0 % right, 100.0 % cut off")


def test_steps_come_as_columns_and_only_those_that_are_new(client: TestClient) -> None:
    assert client.get("/api/steps").json()["step"] == [0, 1, 2]
    after = client.get("/api/steps", params={"after": 1}).json()
    assert (after["step"], after["columns"]["reward"]) == ([2], [pytest.approx(0.4)])


def test_bars_of_every_lane_come_from_what_the_store_and_the_trainer_say(client: TestClient) -> None:
    found = client.get("/api/timeline").json()
    lanes = [bar[0] for bar in found["bars"]]
    assert {lane: lanes.count(lane) for lane in set(lanes)} == {"generation": 3, "verification": 3, "training": 6}
    [row] = [row for row in found["rows"] if row["step"] == 0]
    assert (row["wait_seconds"], row["training_seconds"]) == (3.0, 5.0)
    assert row["verification_seconds"] == pytest.approx(4.5)
    assert row["opened"] is not None
    assert row["broadcast_seconds"] is None  # no version was published: nothing is guessed


@pytest.mark.parametrize(
    ("phases", "bars"),
    [
        ({"update": 8.0}, [("work", 0.0, 8.0)]),
        ({"wait": 3.0, "update": 5.0}, [("wait", 0.0, 3.0), ("work", 3.0, 8.0)]),
        ({"update": 6.0, "exchange": 2.0}, [("work", 0.0, 6.0), ("exchange", 6.0, 8.0)]),
        (
            {"join": 1.0, "paused": 1.0, "update": 3.0, "exchange": 3.0},
            [("wait", 0.0, 2.0), ("work", 2.0, 5.0), ("exchange", 5.0, 8.0)],
        ),
        ({"exchange": 50.0}, [("exchange", 0.0, 8.0)]),
        ({"wait": 50.0, "exchange": -1.0}, [("wait", 0.0, 8.0)]),
    ],
)
def test_only_what_is_no_wait_and_no_exchange_of_islands_is_training(
    phases: dict[str, float], bars: list[tuple[str, float, float]]
) -> None:
    metrics = step_metrics(0, started_unix=100.0, finished_unix=108.0, phase_seconds=phases)
    found = intervals(StoreTimes(), [], {}, [metrics])
    assert [(bar.state, bar.start - 100, bar.end - 100) for bar in found] == bars
    [row] = step_rows(found, [], [metrics])
    worked = sum(end - start for state, start, end in bars if state == "work")
    assert (row["training_seconds"] or 0.0) == worked
    assert row["exchange_seconds"] == (max(0.0, phases["exchange"]) if "exchange" in phases else None)


def test_nodes_have_their_credit_from_the_checked_ledger_and_a_slashed_one_has_none(client: TestClient) -> None:
    found = client.get("/api/nodes").json()
    rows = {row["node"]: row for row in found["nodes"]}
    assert (rows[HONEST]["credit"], rows[HONEST]["accepted"]) == (700, 1)
    assert (rows[CHEAT]["state"], rows[CHEAT]["credit"], rows[CHEAT]["reasons"]) == ("slashed", 0, {"computation": 2})
    assert found["ledger"]["good"]


def test_a_new_nodes_credit_counts_by_the_ledgers_own_terms(tmp_path: Path) -> None:
    run, new = UiRun(tmp_path), "e" * 64
    writer = LedgerWriter(run.store, "demo", run.role_keys["orchestrator"])
    writer.load()
    terms = terms_of_run(run.config).model_copy(update={"probation_files": 2})
    writer.append(fact("run-declared", digest=document_digest(run.config.roster.document), terms=terms))
    invited = InvitedNode(pool="workers", expires_unix=1)
    writer.append(fact("node-invited", node=new, detail="7" * 32, invited=invited))
    writer.append(fact("node-joined", node=new, detail="7" * 32))
    for number, credit in enumerate((0, 100)):
        compute = compute_of(1000, 10, 50)
        digest = f"{number:064x}"
        writer.append(
            fact("accepted", node=new, step=0, submission=number, digest=digest, tokens=50, groups=1, compute=compute)
        )
        with client_of(run) as client:
            found = client.get("/api/nodes").json()
            entries = client.get("/api/ledger", params={"kind": "run-declared"}).json()["entries"]
        rows = {row["node"]: row for row in found["nodes"]}
        assert (found["ledger"]["good"], found["ledger"]["problems"]) == (True, [])
        assert (rows[new]["credit"], rows[new]["flops"]) == (credit, 120_000.0 * (number + 1))
        assert rows[HONEST]["credit"] == 700
        assert entries[0]["detail"].startswith("reinforcement-learning of ")


def test_files_are_filtered_by_node_outcome_and_step(client: TestClient) -> None:
    assert client.get("/api/files").json()["total"] == 3
    assert client.get("/api/files", params={"outcome": "reject", "node": CHEAT[:10]}).json()["total"] == 2
    assert client.get("/api/files", params={"step": 5}).json()["files"] == []


@pytest.mark.parametrize(
    "query", [{"node": "<script>"}, {"outcome": "maybe"}, {"step": -1}, {"page": -1}, {"page": "x"}]
)
def test_a_filter_that_is_none_is_refused_in_words(client: TestClient, query: dict[str, str]) -> None:
    answer = client.get("/api/files", params=query)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert next(iter(query)) in answer.json()["detail"]


def test_a_rollout_has_its_text_rewards_and_log_probs(client: TestClient, ui_run: UiRun) -> None:
    place = f"/api/files/{HONEST}/{ui_run.accepted.sha256}"
    whole = client.get(place).json()
    assert [row["given"] for row in whole["rows"]] == [[1.0, 0.0, 1.0]] * 2
    assert whole["rows"][0]["claimed"] == [1.0, 0.25, 0.75]
    row = client.get(f"{place}/rows/1").json()
    assert row["prompt"] == "12+34="
    assert "".join(each[1] for each in row["completion"]) == COMPLETION + f"[{UNKNOWN_TOKEN}]"
    umlaut = next(each for each in row["completion"] if each[1] == "ä")
    assert len(umlaut[0]) == 2
    assert row["completion"][3][3] is False  # not sampled
    assert row["completion"][1][2] == pytest.approx(-0.01)


def test_the_newest_accepted_answers_are_shown_with_the_ends_of_prompt_and_answer(
    client: TestClient, ui_run: UiRun
) -> None:
    found = client.get("/api/samples").json()
    assert found["verdict"]["sha256"] == ui_run.accepted.sha256
    [sample] = found["samples"]  # the file has two answers to one problem
    assert (sample["row"], sample["prompt"]) == (0, "12+34=")
    assert sample["answer"].startswith("<2+4+0=6>46")
    assert sample["given"][0] == 1.0
    assert found["problem"] == ""


def test_the_newest_answers_are_chosen_at_most_once_a_minute_and_leave_a_persons_files_open(
    ui_run: UiRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed, now = list[str](), [0.0]
    parse = RolloutFiles._parse
    monkeypatch.setattr(RolloutFiles, "_parse", lambda *args: (parsed.append(args[2]), parse(*args))[1])
    files = RolloutFiles(ui_run.store)
    newest = NewestAnswers(files, lambda: now[0])
    watch = RunWatch(ui_run.source, lambda: ui_run.snapshot)
    assert newest.document(watch.seen)["verdict"] is None
    watch.read_once()
    first = newest.document(watch.seen)
    assert len(first["samples"]) == 1
    for seconds in range(0, 59, 3):
        now[0] = seconds
        assert newest.document(replace(watch.seen, facts=copy.copy(watch.seen.facts))) is first
    now[0] = 61.0
    assert newest.document(watch.seen) is first, "the facts are those that it was chosen by"
    assert parsed == [ui_run.accepted.sha256]
    assert newest.document(replace(watch.seen, facts=copy.copy(watch.seen.facts))) == first
    assert parsed == [ui_run.accepted.sha256] * 2
    monkeypatch.setattr("shoal.ui.rollouts.KEPT_FILES", 1)
    for _ in range(2):  # a person's file stays open while the newest one is read again
        files.open(ui_run.rejected)
        now[0] += 61.0
        newest.document(replace(watch.seen, facts=copy.copy(watch.seen.facts)))
    assert parsed == [*[ui_run.accepted.sha256] * 2, ui_run.rejected.sha256, *[ui_run.accepted.sha256] * 2]


def test_a_rejected_file_says_why_and_can_be_read_all_the_same(client: TestClient, ui_run: UiRun) -> None:
    found = client.get(f"/api/files/{CHEAT}/{ui_run.rejected.sha256}").json()
    assert found["verdict"]["reason"] == "computation"
    assert "\\x1b[2J\\u202eevil" in found["verdict"]["evidence"]  # control characters are seen, and have no effect
    assert len(found["rows"]) == 2
    assert found["rows"][0]["given"] is None


def test_a_file_that_is_no_parquet_shows_its_verdict_and_what_is_wrong(client: TestClient, ui_run: UiRun) -> None:
    place = f"/api/files/{CHEAT}/{ui_run.garbage.sha256}"
    found = client.get(place).json()
    assert found["verdict"]["outcome"] == "reject"
    assert "not readable as rollouts" in found["problem"]
    assert client.get(f"{place}/rows/0").status_code == 409


def test_bytes_that_are_not_those_that_were_judged_are_not_shown(tmp_path: Path) -> None:
    run = UiRun(tmp_path)
    run.store.put(keys.upload(HONEST, run.accepted.sha256), b"other bytes")
    found = client_of(run).get(f"/api/files/{HONEST}/{run.accepted.sha256}").json()
    assert found["problem"] == "the store's bytes differ from the judged ones: their SHA-256 is different"
    assert found["rows"] == []


@pytest.mark.parametrize("name", ["..%2f..%2fetc/passwd", f"{HONEST}/{'0' * 64}", "a/b"])
def test_a_file_that_no_verdict_names_is_not_looked_for(client: TestClient, name: str) -> None:
    assert client.get(f"/api/files/{name}").status_code == 404


@pytest.mark.parametrize("row", ["2", "-1", "1e9"])
def test_a_row_that_is_not_there_is_said(client: TestClient, ui_run: UiRun, row: str) -> None:
    assert client.get(f"/api/files/{HONEST}/{ui_run.accepted.sha256}/rows/{row}").status_code in (409, 422)


def test_numbers_are_shown_where_there_is_no_tokenizer() -> None:
    assert TokenText(None).pieces([7, 8]) == [(1, "[7]"), (1, "[8]")]


def test_a_tokenizer_that_is_not_readable_does_not_end_the_page(tmp_path: Path) -> None:
    run = UiRun(tmp_path)
    run.store.put(TOKENIZER_FILE, b"{}")
    row = client_of(run).get(f"/api/files/{HONEST}/{run.accepted.sha256}/rows/0").json()
    assert row["prompt"].startswith("[")


def test_the_proof_of_an_entry_can_be_checked_by_a_stranger(client: TestClient, ui_run: UiRun) -> None:
    found = client.get("/api/ledger/4/proof").json()
    proof = InclusionProof.from_json(json.dumps(found["proof"]))
    check_proof(proof, ui_run.config.run_key)
    assert (proof.entry.document.number, proof.entry.document.kind) == (4, "accepted")


def test_an_entry_under_no_checkpoint_is_not_proven(client: TestClient) -> None:
    last = client.get("/api/ledger").json()["entries"][0]["number"]
    answer = client.get(f"/api/ledger/{last}/proof")
    assert answer.status_code == 409
    assert "not under a checkpoint" in answer.json()["detail"]


def test_a_ledger_that_was_changed_is_called_so_and_proves_nothing(tmp_path: Path) -> None:
    run = UiRun(tmp_path)
    other = run.role_keys["validator"]
    entry = run.store.get(keys.ledger_entry(4))
    from shoal.contracts.signed import Signed
    from shoal.ledger.entries import LedgerEntry

    changed = altered(Signed[LedgerEntry].from_json(entry).document, tokens=9)
    run.store.put(keys.ledger_entry(4), sign(changed, other).to_json())
    client = client_of(run)
    summary = client.get("/api/ledger").json()["summary"]
    assert not summary["good"]
    assert "not signed by this run's orchestrator" in summary["problems"][0]
    assert client.get("/api/ledger/2/proof").status_code == 409


def test_every_answer_forbids_what_a_page_of_text_does_not_need(client: TestClient) -> None:
    for path in ("/", "/app.js", "/api/live", "/nowhere", "/api/files?page=-1"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "require-trusted-types-for 'script'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "name", ["../app.py", "..%2fapp.py", "%2e%2e/watch.py", "static/app.js", "app.js/", "/etc/passwd"]
)
def test_only_files_of_the_page_are_served(client: TestClient, name: str) -> None:
    assert client.get(f"/{name}").status_code == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_can_be_written(client: TestClient, method: str) -> None:
    for path in ("/api/live", "/api/ledger/0/proof", "/"):
        assert client.request(method, path).status_code == 405


def test_a_foreign_name_for_our_address_is_refused(client: TestClient) -> None:
    # A page of another site that rebinds its name to 127.0.0.1 reads with that name in Host.
    answer = client.get("/api/live", headers={"Host": "evil.example"})
    assert answer.status_code == 421
    assert client.get("/api/live", headers={"Host": "localhost:8787"}).status_code == 200


def test_off_loopback_nothing_of_the_run_is_told_without_the_token(ui_run: UiRun) -> None:
    access = Access("a-token-that-is-long", frozenset())
    client = client_of(ui_run, access)
    for path in ("live", "run", "events", "steps", "files", "ledger", "ledger/0/proof", "nodes", "timeline"):
        answer = client.get(f"/api/{path}")
        assert answer.status_code == 401
        assert "Bearer TOKEN" in answer.json()["detail"]
    assert MARKUP not in client.get("/").text
    assert client.get("/api/live", headers={"Authorization": f"Bearer {access.token}"}).status_code == 200
    assert client.get("/api/live", headers={"Authorization": "Bearer wrong"}).status_code == 401


@pytest.mark.parametrize("host", ["page/static?", "page/api/session?", "page#", "page/x"])
def test_a_host_header_with_a_path_in_it_does_not_go_round_the_token(ui_run: UiRun, host: str) -> None:
    answer = client_of(ui_run, Access("a-token-that-is-long", frozenset())).get("/api/live", headers={"Host": host})
    assert answer.status_code == 401


def test_a_token_is_traded_for_a_cookie_that_scripts_cannot_read(ui_run: UiRun) -> None:
    client = client_of(ui_run, Access("a-token-that-is-long", frozenset()))
    assert client.post("/api/session", content="wrong").status_code == 401
    assert client.post("/api/session", content="x" * 2000).status_code == 413
    answer = client.post("/api/session", content="a-token-that-is-long")
    assert answer.status_code == 204
    cookie = answer.headers["set-cookie"].lower()
    assert all(word in cookie for word in ("httponly", "samesite=strict", "path=/api"))
    assert "a-token" not in cookie
    assert client.get("/api/live").status_code == 200


def test_a_page_on_loopback_needs_no_token_and_any_other_does(tmp_path: Path) -> None:
    assert access_for("127.3.2.1", None).token is None
    assert len(access_for("0.0.0.0", None).token or "") >= 32
    assert access_for("0.0.0.0", None).token != access_for("0.0.0.0", None).token
    (tmp_path / "token").write_text("a-token-of-my-own-making\n")
    assert access_for("127.0.0.1", tmp_path / "token").token == "a-token-of-my-own-making"


@pytest.mark.parametrize("text", ["short", "with spaces in it, no", "x" * 600, "ümlaut-ümlaut-ümlaut"])
def test_a_token_that_cannot_be_used_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "token").write_text(text)
    with pytest.raises(BadPageToken, match="16 to 512 printable ASCII"):
        access_for("127.0.0.1", tmp_path / "token")


def test_names_and_addresses() -> None:
    assert [host_name(each) for each in ("LocalHost:80", "[::1]:80", "127.0.0.1", "")] == [
        "localhost",
        "::1",
        "127.0.0.1",
        "",
    ]
    assert [is_loopback(each) for each in ("127.9.9.9", "::1", "localhost", "0.0.0.0", "10.0.0.1", "example.org")] == [
        True, True, True, False, False, False,
    ]  # fmt: skip


def test_open_streams_are_bounded(ui_run: UiRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MOST_STREAMS", 0)
    answer = client_of(ui_run).get("/api/events")
    assert answer.status_code == 503
    assert "pages are open" in answer.json()["detail"]
