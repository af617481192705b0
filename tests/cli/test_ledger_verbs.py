"""`shoal ledger` as a stranger uses it, on a copy that somebody else may have changed: what is good is proven, what is not ends with 1."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from ledger_copies import CHEAT, ESCAPES, FILES, HONEST, changed, entry_of, make_copy, rewrite_from, store_of, verdict

from ledger_samples import fact
from samples import ORCHESTRATOR_KEY, ROLE_KEYS, ROSTER, RUN, RUN_KEY, key, run_config
from servers import Minio
from shoal.cli.main import main
from shoal.contracts import keys
from shoal.contracts.roster import ROLES, Roster
from shoal.contracts.run import NodeConfig
from shoal.contracts.signed import sign
from shoal.contracts.storage import S3Storage
from shoal.contracts.weights import WeightsManifest
from shoal.ledger import reading
from shoal.ledger.entries import LedgerCheckpoint
from shoal.ledger.writer import LedgerWriter
from shoal.storage.store import Store, open_s3


@dataclass
class Answer:
    code: int
    out: str
    err: str


Shoal = Callable[..., Answer]


@pytest.fixture
def shoal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Shoal:
    monkeypatch.chdir(tmp_path)
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: object) -> Answer:
        monkeypatch.setattr(sys, "argv", ["shoal", "ledger", *map(str, arguments)])
        capsys.readouterr()
        code = main()
        shown = capsys.readouterr()
        return Answer(code, shown.out, shown.err)

    return run


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return make_copy(tmp_path / "copy")


TRUST = ("--run-key", RUN_KEY.public)


@pytest.mark.parametrize("verb", ["show", "verify", "proof"])
def test_every_verb_shows_an_example(shoal: Shoal, verb: str) -> None:
    answer = shoal(verb, "--help")
    assert answer.code == 0
    assert f"Example: shoal ledger {verb}" in answer.out


def test_a_valid_ledger_is_reported_as_good_with_its_totals(shoal: Shoal, copy: Path) -> None:
    answer = shoal("verify", copy, "--documents", *TRUST)
    assert (answer.code, answer.err) == (0, "")
    assert "run arithmetic: 10 entries, 2 nodes" in answer.out
    assert "checkpoints: 2, the newest that fits covers 10 entries; 0 came after it" in answer.out
    assert "documents compared: 5" in answer.out
    assert "the ledger is good" in answer.out


def test_without_a_key_the_output_names_the_key_that_was_trusted(shoal: Shoal, copy: Path) -> None:
    answer = shoal("verify", copy)
    assert answer.code == 0
    assert f"trusted: run key {RUN_KEY.public} (from the copy itself)" in answer.out
    assert "compare it with the key that you were given" in answer.out


def test_the_key_and_the_roster_may_come_from_node_json_or_run_json(shoal: Shoal, copy: Path, tmp_path: Path) -> None:
    join = NodeConfig(run=RUN, pool="workers", discovery="http://127.0.0.1:8081", roster=ROSTER, run_key=RUN_KEY.public)
    (tmp_path / "node.json").write_bytes(join.to_json())
    (tmp_path / "run.json").write_bytes(run_config().to_json())
    (copy / keys.ROSTER).unlink()
    for name in ("node.json", "run.json"):
        answer = shoal("verify", copy, "--join", name)
        assert answer.code == 0, answer.err
        assert f"(from {name})" in answer.out


def test_a_folder_store_is_found_below_its_prefix_and_read_without_writing(shoal: Shoal, copy: Path) -> None:
    deeper = copy.parent / "store" / "shoal" / RUN
    deeper.parent.mkdir(parents=True)
    copy.rename(deeper)
    before = sorted(path for path in deeper.rglob("*"))
    assert shoal("verify", copy.parent / "store", *TRUST).code == 0
    assert sorted(path for path in deeper.rglob("*")) == before


def test_an_entry_that_a_list_lacks_is_read_by_its_number(
    shoal: Shoal, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a ledger that is being written: a folder is listed in no order."""
    whole = Store.list
    monkeypatch.setattr(
        Store, "list", lambda self, prefix: [e for e in whole(self, prefix) if e.key != keys.ledger_entry(4)]
    )
    assert shoal("verify", copy, *TRUST).code == 0


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a changed value": (
        lambda copy: store_of(copy).put(
            keys.ledger_entry(5), entry_of(copy, 5).to_json().replace(b'"tokens":700', b'"tokens":900')
        ),
        "entry 5 is not signed by this run's orchestrator",
    ),
    "another signer": (lambda copy: changed(copy, 5, key(77)), "entry 5 is not signed by this run's orchestrator"),
    "a changed entry signed anew": (lambda copy: changed(copy, 5, tokens=900), "entry 6: ledger entry 6 of run"),
    "no json": (lambda copy: store_of(copy).put(keys.ledger_entry(3), b"\x00"), "entry 3 is not signed by"),
    "a missing entry": (lambda copy: (copy / keys.ledger_entry(4)).unlink(), "entry 4 is not there"),
    "a missing end": (
        lambda copy: [(copy / keys.ledger_entry(number)).unlink() for number in (8, 9)],
        "the ledger has 8 entries, and a signed checkpoint covers 10: its end is missing",
    ),
    "everything missing": (
        lambda copy: [(copy / keys.ledger_entry(number)).unlink() for number in range(10)],
        "the ledger has 0 entries, and a signed checkpoint covers 10",
    ),
    "a rewritten history": (
        lambda copy: rewrite_from(copy, 5, tokens=900),
        "checkpoint over 10 entries: its root is",
    ),
    "a checkpoint of nobody": (
        lambda copy: store_of(copy).put(
            keys.ledger_checkpoint(2),
            sign(LedgerCheckpoint(run=RUN, size=2, root="a" * 64, head="b" * 64, unix=1.0), key(77)).to_json(),
        ),
        "is not signed by this run's orchestrator",
    ),
    "a checkpoint under another name": (
        lambda copy: store_of(copy).put(
            keys.ledger_checkpoint(3), store_of(copy).get(keys.ledger_checkpoint(10))
        ),
        "covers 10 entries, which its name does not say",
    ),
    "an entry too large": (
        lambda copy: store_of(copy).put(keys.ledger_entry(9), b" " * 70_000 + entry_of(copy, 9).to_json()),
        "is too large for one",
    ),
    "a roster of another key": (
        lambda copy: store_of(copy).put(
            keys.ROSTER,
            sign(Roster(run=RUN, keys={role: key(900).public for role in ROLES}), key(77)).to_json(),
        ),
        "this is not the roster of the run with that key",
    ),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_ledger_that_was_changed_is_not_good(shoal: Shoal, copy: Path, damage: str) -> None:
    change, words = DAMAGE[damage]
    change(copy)
    answer = shoal("verify", copy, *TRUST)
    assert answer.code == 1
    assert words in answer.err, answer.err
    assert "the ledger is NOT good" in answer.out


def test_a_reveal_of_another_beacon_and_credit_for_an_unknown_node_are_found(shoal: Shoal, copy: Path) -> None:
    writer = LedgerWriter(store_of(copy), RUN, ORCHESTRATOR_KEY)
    writer.load()
    writer.append(fact("beacon-revealed", step=5, digest="b" * 64))
    writer.append(fact("accepted", node="d" * 64, step=0, submission=0, digest="e" * 64, tokens=1, groups=1))
    answer = shoal("verify", copy, *TRUST)
    assert answer.code == 1
    assert "entry 10: the beacon of step 5 is not the committed one" in answer.err
    assert "entry 11: a file of node dddddddddddddddd..., which never joined" in answer.err


DOCUMENT_DAMAGE: dict[str, tuple[Callable[[Store], object], str]] = {
    "no verdict": (
        lambda store: store.local_path(keys.verdict(HONEST, FILES[HONEST])).unlink(),
        "entry 5 (accepted): the document that it names does not exist",
    ),
    "more pay than was counted": (
        lambda store: store.put(
            keys.verdict(HONEST, FILES[HONEST]),
            sign(verdict(HONEST, 0, 7, accepted=True), ROLE_KEYS["validator"]).to_json(),
        ),
        "entry 5 (accepted): 700 tokens are credited, the validator counted 7",
    ),
    "a verdict of the orchestrator": (
        lambda store: store.put(
            keys.verdict(CHEAT, FILES[CHEAT]), sign(verdict(CHEAT, 0, 0, accepted=False), ORCHESTRATOR_KEY).to_json()
        ),
        "entry 8 (rejected): its document is not signed by the role that makes it",
    ),
    "a slash that the validator did not find": (
        lambda store: store.put(
            keys.verdict(CHEAT, FILES[CHEAT]),
            sign(verdict(CHEAT, 0, 0, accepted=True), ROLE_KEYS["validator"]).to_json(),
        ),
        "entry 8 (rejected): the validator's verdict is on another file, or says accept",
    ),
    "another batch": (
        lambda store: store.put(keys.step_batch(0), store.get(keys.step_batch(0)) + b" "),
        "entry 6 (batch-sealed): the batch of step 0 is not the one that was sealed",
    ),
    "other weights": (
        lambda store: store.put(
            keys.version_weights(0),
            sign(
                WeightsManifest(
                    run=RUN, version=0, model="tiny", sha256="6" * 64, open_digest="4" * 64, shards=["5" * 64]
                ),
                ROLE_KEYS["trainer"],
            ).to_json(),
        ),
        "entry 1 (version-published): the sealed weights differ from the announced ones",
    ),
}


@pytest.mark.parametrize("damage", DOCUMENT_DAMAGE)
def test_documents_of_entries_are_compared_on_request(shoal: Shoal, copy: Path, damage: str) -> None:
    change, words = DOCUMENT_DAMAGE[damage]
    change(store_of(copy))
    assert shoal("verify", copy, *TRUST).code == 0, "the ledger itself is whole"
    answer = shoal("verify", copy, "--documents", *TRUST)
    assert answer.code == 1
    assert words in answer.err, answer.err


def test_a_kept_checkpoint_catches_an_orchestrator_that_rewrites_everything(
    shoal: Shoal, copy: Path, tmp_path: Path
) -> None:
    assert shoal("verify", copy, "--keep", tmp_path / "kept.json", *TRUST).code == 0
    assert shoal("verify", copy, "--kept", tmp_path / "kept.json", *TRUST).code == 0
    rewrite_from(copy, 5, tokens=900)
    for size in (5, 10):  # and hides its old checkpoints
        store_of(copy).delete(keys.ledger_checkpoint(size))
    assert shoal("verify", copy, *TRUST).code == 0, "nothing that lies here contradicts it"
    answer = shoal("verify", copy, "--kept", tmp_path / "kept.json", *TRUST)
    assert answer.code == 1
    assert "checkpoint over 10 entries: its root is" in answer.err


def test_contributions_are_totalled_and_a_slashed_nodes_credit_goes_nowhere(shoal: Shoal, copy: Path) -> None:
    answer = shoal("show", copy, "--totals", "--json", *TRUST)
    assert answer.code == 0
    told = json.loads(answer.out)
    assert (told["tokens"], told["forfeited"]) == (1000, 300)
    assert {each["node"]: (each["state"], each["tokens"], each["credit"]) for each in told["nodes"]} == {
        HONEST: ("joined", 700, 700),
        CHEAT: ("slashed", 300, 0),
    }
    text = shoal("show", copy, "--totals", *TRUST).out
    assert "1,000 tokens accepted, 700 credited, 300 forfeited by slashed nodes and credited to nobody" in text
    assert "1,000 tokens accepted, 0 credited" in shoal("show", copy, "--totals", "--probation", 2, *TRUST).out


def test_entries_are_filtered_by_node_and_kind_and_hostile_text_is_escaped(shoal: Shoal, copy: Path) -> None:
    answer = shoal("show", copy, "--node", "cccc", *TRUST)
    assert answer.code == 0
    assert [line.split()[2] for line in answer.out.splitlines()] == [
        "node-joined",
        "accepted",
        "rejected",
        "node-evicted",
    ]
    assert "2026-11-18T11:06:40Z" in answer.out
    assert "\x1b" not in answer.out
    assert "\u202e" not in answer.out
    assert r"sampling: \x1b[2J\u202eevil" in answer.out
    assert len(shoal("show", copy, "--last", 3, *TRUST).out.splitlines()) == 3
    record = json.loads(shoal("show", copy, "--kind", "rejected", "--json", *TRUST).out)
    assert record["detail"] == f"sampling: {ESCAPES}"


def test_a_proof_of_an_entry_needs_the_runs_key_and_nothing_else(shoal: Shoal, copy: Path, tmp_path: Path) -> None:
    made = shoal("proof", copy, "--entry", 5, *TRUST)
    assert made.code == 0, made.err
    (tmp_path / "proof.json").write_text(made.out)
    answer = shoal("proof", "--check", "proof.json", *TRUST)
    assert answer.code == 0, answer.err
    assert "proven: this entry of run arithmetic is one of the 10 under the checkpoint" in answer.out
    assert "tokens 700" in answer.out
    for old, new in (('"tokens":700', '"tokens":701'), ('"number":5', '"number":4'), ('"size":10', '"size":9')):
        assert old in made.out
        (tmp_path / "forged.json").write_text(made.out.replace(old, new))
        assert shoal("proof", "--check", "forged.json", *TRUST).code == 1
    proof = json.loads(made.out)
    proof["path"] = proof["path"][::-1]
    (tmp_path / "forged.json").write_text(json.dumps(proof))
    answer = shoal("proof", "--check", "forged.json", *TRUST)
    assert (answer.code, answer.err) == (
        1, "entry 5 is not in the tree over 10 entries that the checkpoint signs\n",
    )  # fmt: skip
    assert shoal("proof", "--check", "proof.json", "--run-key", key(77).public).code == 1


def test_a_proof_of_continuation_holds_until_history_is_rewritten(shoal: Shoal, copy: Path, tmp_path: Path) -> None:
    (tmp_path / "kept.json").write_bytes(store_of(copy).get(keys.ledger_checkpoint(5)))
    made = shoal("proof", copy, "--since", "kept.json", *TRUST)
    assert made.code == 0, made.err
    (tmp_path / "proof.json").write_text(made.out)
    answer = shoal("proof", "--check", "proof.json", *TRUST)
    assert answer.code == 0
    assert "the ledger of run arithmetic with 10 entries continues the one with 5" in answer.out
    proof = json.loads(made.out)
    proof["path"] = proof["path"][1:]
    (tmp_path / "forged.json").write_text(json.dumps(proof))
    answer = shoal("proof", "--check", "forged.json", *TRUST)
    assert answer.code == 1
    assert "does not continue the one over 5: entries were rewritten" in answer.err


def test_an_entry_that_no_checkpoint_covers_is_not_proven_yet(shoal: Shoal, copy: Path) -> None:
    answer = shoal("proof", copy, "--entry", 10, *TRUST)
    assert answer.code == 2
    assert "entry 10 is not under a checkpoint: 10 entries are there, 10 are covered" in answer.err


WRONG: dict[str, tuple[tuple[object, ...], str]] = {
    "no such run": (("verify", "nowhere"), "no run 'nowhere' in runs"),
    "a folder without a ledger": (("verify", "empty"), "has no folder ledger/"),
    "two ledgers": (("verify", "two"), "holds 2 ledgers; name one"),
    "an empty ledger": (("verify", "begun", "--join", "run.json"), "there is no entry under ledger/"),
    "no roster": (("verify", "begun"), "the copy has no roster.json: give --join FILE"),
    "a short key": (("verify", "copy", "--run-key", "12ab"), "--run-key is the run's public key: 64 hex digits"),
    "no join file": (("verify", "copy", "--join", "none.json"), "cannot read none.json"),
    "a wrong join file": (("verify", "copy", "--join", "wrong.json"), "is neither node.json nor run.json"),
    "a wrong kept file": (("verify", "copy", "--kept", "wrong.json"), "is not signed by this run's orchestrator"),
    "no endpoint": (("verify", "s3://bucket/shoal/run"), "needs --endpoint URL, or AWS_ENDPOINT_URL"),
    "no credentials": (("verify", "s3://bucket/run", "--endpoint", "http://127.0.0.1:1"), "no credentials: set AWS_"),
    "no prefix": (("verify", "s3://bucket", "--endpoint", "http://127.0.0.1:1"), "write s3://BUCKET/PREFIX/RUN"),
    "wrong credentials": (
        ("verify", "s3://bucket/run", "--endpoint", "http://127.0.0.1:1", "--credentials", "empty"),
        "it holds accessKey and secretKey",
    ),
    "nothing to prove": (("proof", "copy"), "give one of --entry N, --since FILE and --check FILE"),
    "a check without a key": (("proof", "--check", "wrong.json"), "a key that the proof itself names proves nothing"),
    "no proof": (("proof", "--check", "wrong.json", *TRUST), "is not a proof of `shoal ledger proof`"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_one_line_that_says_what_to_give(shoal: Shoal, copy: Path, tmp_path: Path, case: str) -> None:
    arguments, words = WRONG[case]
    for name in ("empty", "begun/ledger", "two/a/ledger", "two/b/ledger"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "wrong.json").write_text("{}")
    (tmp_path / "run.json").write_bytes(run_config().to_json())
    answer = shoal(*arguments)
    assert answer.code == 2
    assert words in answer.err, answer.err
    assert len(answer.err.splitlines()) == 1


def test_a_long_check_reports_its_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    times = iter([0.0, 0.5, 2.5, 2.5, 3.0])
    progress = reading.Progress(said.append, 1200, "entries", clock=lambda: next(times))
    for _ in range(3):
        progress.step()
    assert said == ["read 2 of 1,200 entries"]


def test_a_ledger_in_an_s3_store_is_read_with_credentials_from_files_or_the_environment(
    shoal: Shoal, copy: Path, tmp_path: Path, minio_server: Minio, monkeypatch: pytest.MonkeyPatch
) -> None:
    access, secret = minio_server.access_key, minio_server.secret_key
    spec = S3Storage(endpoint=minio_server.endpoint, bucket=minio_server.bucket, credentials_secret="store")
    bucket = open_s3(spec, f"ledger/{RUN}", access, secret, deadline_seconds=20)
    for path in copy.rglob("*.json"):
        bucket.put(str(path.relative_to(copy)), path.read_bytes())
    url = f"s3://{minio_server.bucket}/ledger/{RUN}"
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "accessKey").write_text(access + "\n")
    (tmp_path / "secrets" / "secretKey").write_text(secret)
    answer = shoal(
        "verify", url, "--endpoint", minio_server.endpoint, "--credentials", "secrets", "--documents", *TRUST
    )
    assert answer.code == 0, answer.err
    monkeypatch.setenv("AWS_ENDPOINT_URL", minio_server.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", access)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong" + secret)
    answer = shoal("verify", url, *TRUST)
    assert answer.code == 2
    assert "the store refuses our credentials" in answer.err
    assert secret not in answer.err
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    assert shoal("verify", url, *TRUST).code == 0
