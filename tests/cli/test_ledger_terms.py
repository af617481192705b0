"""`shoal ledger` on ledgers that say the run's terms: credit after their N files, votes of their time, compute, and what contradicts them."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from ledger_copies import HONEST, make_copy, store_of
from test_ledger_findings import SECOND, SLASHED, finding, give_opinion

from ledger_samples import fact
from samples import ORCHESTRATOR_KEY, ROLE_KEYS, ROSTER, RUN, RUN_KEY, TERMS, run_config
from shoal.cli.main import main
from shoal.contracts import keys
from shoal.contracts.compute import compute_of
from shoal.contracts.signed import sign
from shoal.contracts.verdicts import RowReward, Verdict
from shoal.crypto.canonical import document_digest
from shoal.ledger.audit import SETTLING_SECONDS
from shoal.ledger.facts import InvitedNode
from shoal.ledger.writer import LedgerWriter

ROSTER_DIGEST = document_digest(ROSTER.document)
Shoal = Callable[..., tuple[int, str, str]]


@pytest.fixture
def shoal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Shoal:
    monkeypatch.chdir(tmp_path)

    def run(verb: str, *options: object) -> tuple[int, str, str]:
        words = ["shoal", "ledger", verb, tmp_path / "copy", *options, "--run-key", RUN_KEY.public]
        monkeypatch.setattr(sys, "argv", list(map(str, words)))
        capsys.readouterr()
        code = main()
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


class Going:
    """The run of `make_copy` goes on under a release that declares it."""

    def __init__(self, copy: Path) -> None:
        self.store = store_of(copy)
        self.now = 1_795_100_000.0
        self.writer = LedgerWriter(self.store, RUN, ORCHESTRATOR_KEY, clock=lambda: self.now)
        self.writer.load()
        self.files = 0

    def declare(self, **changes: object) -> None:
        terms = TERMS.model_copy(update={"slash_votes": 1, "probation_files": 3, **changes})
        last = self.writer.view.terms
        if last is None:
            self.writer.append(fact("run-declared", digest=ROSTER_DIGEST, terms=terms))
        else:
            self.writer.append(fact("terms-changed", digest=ROSTER_DIGEST, terms=terms, replaces=last.number))

    def join(self, node: str, nonce: str) -> None:
        self.writer.append(
            fact("node-invited", node=node, detail=nonce, invited=InvitedNode(pool="workers", expires_unix=1))
        )
        self.writer.append(fact("node-joined", node=node, detail=nonce))

    def accept(self, node: str, tokens: int = 50) -> None:
        self.files += 1
        compute = compute_of(parameters=1_000_000, prompt_tokens=10, completion_tokens=tokens)
        verdict = Verdict(
            run=RUN, node=node, lease="ab" * 16, step=0, submission=self.files, sha256=f"{self.files:064x}", outcome="accept",
            policy_version=0, rows=1, completion_tokens=tokens, compute=compute,
            rewards=[RowReward(task_reward=1.0, length_penalty=0.0, reward=1.0)],
        )  # fmt: skip
        self.store.put(keys.verdict(node, verdict.sha256), sign(verdict, ROLE_KEYS["validator"]).to_json())
        self.writer.append(fact(
            "accepted", node=node, step=0, submission=self.files, digest=verdict.sha256, tokens=tokens, groups=1,
            signal_groups=1, compute=compute,
        ))  # fmt: skip

    def slash(self) -> None:
        self.store.put(keys.verdict(SLASHED, SECOND.sha256), sign(SECOND, ROLE_KEYS["validator"]).to_json())
        self.writer.append(
            fact("rejected", node=SLASHED, step=0, submission=0, digest=SECOND.sha256, detail="computation: chunk 5")
        )
        self.writer.append(fact("node-evicted", node=SLASHED, detail="file was rejected"))


@pytest.fixture
def going(tmp_path: Path) -> Going:
    return Going(make_copy(tmp_path / "copy"))


def credits_of(answer: tuple[int, str, str]) -> dict[str, int]:
    code, out, _ = answer
    assert code == 0
    return {each["node"]: each["credit"] for each in json.loads(out)["nodes"]}


def test_totals_use_the_ledgers_probation_unless_another_is_given(shoal: Shoal, going: Going) -> None:
    new = "e" * 64
    going.declare()
    going.join(new, "5" * 32)
    for _ in range(2):
        going.accept(new)
    assert credits_of(shoal("show", "--totals", "--json"))[new] == 0
    assert credits_of(shoal("show", "--totals", "--json", "--probation", 2))[new] == 100
    assert credits_of(shoal("show", "--totals", "--json", "--probation", 0))[new] == 100
    going.accept(new)
    found = credits_of(shoal("show", "--totals", "--json"))
    assert found[new] == 150
    assert found[HONEST] == 700, "what was accepted before there were terms counts"
    text = shoal("show", "--totals")[1]
    assert "credit counts after 3 accepted files (the ledger's terms)" in text
    assert f"{3 * 2e6 * 60:.3g} floating-point operations by estimate" in text
    assert "credit counts after 9 accepted files (--probation)" in shoal("show", "--totals", "--probation", 9)[1]


def test_compute_is_in_the_totals_and_in_the_entry(shoal: Shoal, going: Going) -> None:
    going.declare(probation_files=0)
    going.accept(HONEST)
    told = json.loads(shoal("show", "--totals", "--json")[1])
    (honest,) = [each for each in told["nodes"] if each["node"] == HONEST]
    assert (told["probation_files"], told["flops"], honest["flops"], honest["credited_flops"]) == (
        0,
        1.2e8,
        1.2e8,
        1.2e8,
    )
    assert "tokens 50  groups 1  signal groups 1" in (line := shoal("show", "--kind", "accepted", "--last", 1)[1])
    assert "flops 1.2e+08" in line


def test_an_older_ledger_says_so_and_credits_every_file(shoal: Shoal, going: Going) -> None:
    assert "credit counts from the first accepted file: this ledger is older" in shoal("show", "--totals")[1]
    code, out, err = shoal("verify", "--documents")
    assert (code, err) == (0, "")
    assert "terms from entry" not in out
    assert "NOT DECLARED: all entries come before" in out


def test_verify_shows_the_owner_and_each_change_of_terms(shoal: Shoal, going: Going) -> None:
    going.declare()
    going.declare(probation_files=5)
    code, out, err = shoal("verify", "--documents")
    assert (code, err) == (0, "")
    assert "terms from entry 10 on: reinforcement-learning of arithmetic-tiny, owner" in out
    assert "credit after 3 accepted files; slash votes 1, slashing Evict; pools workers (open)" in out
    assert "terms from entry 11 on:" in out
    assert "NOT DECLARED: the first 10 entries come before" in out
    told = json.loads(shoal("verify", "--json")[1])
    assert told["entries_undeclared"] == 10
    assert [(each["entry"], each["probation_files"]) for each in told["terms"]] == [(10, 3), (11, 5)]
    assert "owner" in shoal("show", "--kind", "run-declared")[1]


def test_votes_are_those_of_the_ledgers_terms_at_the_time_of_the_reject(
    shoal: Shoal, going: Going, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    going.declare(slash_votes=2)
    going.join(SLASHED, "7" * 32)
    going.slash()
    give_opinion(copy, finding(SECOND.validator, "chunk 3"))  # a second look, by the same validator
    code, _, err = shoal("verify", "--documents")
    assert code == 1
    assert "takes the same finding by 2 validators" in err
    assert shoal("verify", "--documents", "--slash-votes", 1)[0] == 0
    going.now += 2 * SETTLING_SECONDS
    going.declare(slash_votes=1)
    assert "by 2 validators" in shoal("verify", "--documents")[2], "a smaller number later excuses nothing"
    give_opinion(copy, finding("validator-7", "chunk 3"))
    assert shoal("verify", "--documents")[0] == 0


def test_more_votes_in_run_json_than_in_the_ledger_are_a_finding(shoal: Shoal, going: Going, tmp_path: Path) -> None:
    going.declare()
    votes = run_config().validation.model_copy(update={"slash_votes": 4})
    (tmp_path / "run.json").write_bytes(run_config().model_copy(update={"validation": votes}).to_json())
    code, _, err = shoal("verify", "--documents", "--join", "run.json")
    assert code == 1
    assert "entry 10: by the ledger's terms a reject takes 1 validators, by the run's configuration 4" in err


def test_compute_that_is_not_the_validators_is_found(shoal: Shoal, going: Going) -> None:
    going.declare()
    going.accept(HONEST)
    assert shoal("verify", "--documents")[0] == 0
    verdict = keys.verdict(HONEST, f"{1:064x}")
    signed = going.store.get(verdict)
    going.accept(HONEST, tokens=51)
    going.store.put(keys.verdict(HONEST, f"{2:064x}"), signed)
    code, _, err = shoal("verify", "--documents")
    assert code == 1
    assert "entry 12 (accepted): the validator's verdict is on another file" in err
