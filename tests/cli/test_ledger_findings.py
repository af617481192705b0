"""`shoal ledger verify --documents` and the findings behind a reject: two for what rests on a threshold, as many validators as had to agree."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from ledger_copies import CHEAT, FILES, make_copy, store_of

from ledger_samples import fact
from samples import ORCHESTRATOR_KEY, ROLE_KEYS, ROSTER, RUN, RUN_KEY, run_config
from shoal.cli.main import main
from shoal.contracts import keys
from shoal.contracts.run import NodeConfig
from shoal.contracts.signed import sign
from shoal.contracts.verdicts import Opinion, RejectReason, Verdict
from shoal.crypto.canonical import document_digest
from shoal.crypto.keys import PrivateKey
from shoal.ledger.writer import LedgerWriter

SLASHED, FILE, ENTRY = "d" * 64, "8" * 64, 11
"""A node, its file that was rejected for a threshold, and the entry that says so."""


@dataclass
class Checked:
    code: int
    out: str
    err: str


Verify = Callable[..., Checked]


@pytest.fixture
def verify(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Verify:
    monkeypatch.chdir(tmp_path)

    def run(*options: object) -> Checked:
        words = ["shoal", "ledger", "verify", tmp_path / "copy", *options, "--run-key", RUN_KEY.public]
        monkeypatch.setattr(sys, "argv", list(map(str, words)))
        capsys.readouterr()
        code = main()
        shown = capsys.readouterr()
        return Checked(code, shown.out, shown.err)

    return run


def finding(validator: str, evidence: str, reason: RejectReason = "computation", sha256: str = FILE) -> Verdict:
    return Verdict(
        run=RUN, node=SLASHED, lease="cd" * 16, step=0, submission=0, sha256=sha256, outcome="reject", reason=reason,
        evidence=evidence, validator=validator,
    )  # fmt: skip


SECOND = finding("validator-1", "chunk 5")


def give_opinion(copy: Path, verdict: Verdict, signer: PrivateKey = ROLE_KEYS["validator"], name: str = "") -> None:
    opinion = Opinion(validator=verdict.validator, verdict=sign(verdict, signer))
    store_of(copy).put(f"{keys.opinions(SLASHED, FILE)}{name or document_digest(verdict)}.json", opinion.to_json())


@pytest.fixture
def slashed(tmp_path: Path) -> Path:
    """A copy whose last entries are a reject that rests on a threshold, and what it cost; its opinions are still to be given."""
    copy = make_copy(tmp_path / "copy")
    writer = LedgerWriter(store_of(copy), RUN, ORCHESTRATOR_KEY)
    writer.load()
    writer.append(fact("node-joined", node=SLASHED, detail=f"{7:032d}"))
    store_of(copy).put(keys.verdict(SLASHED, FILE), sign(SECOND, ROLE_KEYS["validator"]).to_json())
    writer.append(fact("rejected", node=SLASHED, step=0, submission=0, digest=FILE, detail="computation: chunk 5"))
    writer.append(fact("node-evicted", node=SLASHED, detail="file was rejected"))
    return copy


def test_a_slash_for_a_threshold_is_accepted_with_two_findings(verify: Verify, slashed: Path) -> None:
    give_opinion(slashed, finding("validator-0", "chunk 3"))
    answer = verify("--documents")
    assert (answer.code, answer.err) == (0, "")
    assert "rejects with all the findings that they take (2 where they rest on a threshold): 1" in answer.out


def test_a_lone_validators_second_check_is_a_second_finding(verify: Verify, slashed: Path) -> None:
    give_opinion(slashed, finding("validator-1", "chunk 3"))
    assert verify("--documents").code == 0


NOT_A_SECOND: dict[str, Callable[[Path], object]] = {
    "none": lambda _: None,
    "the same document again": lambda copy: give_opinion(copy, SECOND, name="a" * 64),
    "another reason": lambda copy: give_opinion(copy, finding("validator-0", "row 3", "token_sampling")),
    "another file": lambda copy: give_opinion(copy, finding("validator-0", "chunk 3", sha256="7" * 64)),
    "signed by the orchestrator": lambda copy: give_opinion(copy, finding("validator-0", "chunk 3"), ORCHESTRATOR_KEY),
    "no opinion at all": lambda copy: store_of(copy).put(f"{keys.opinions(SLASHED, FILE)}{'a' * 64}.json", b"{}"),
    "an object without a byte": lambda copy: store_of(copy).put(f"{keys.opinions(SLASHED, FILE)}{'a' * 64}.json", b""),
}


@pytest.mark.parametrize("given", NOT_A_SECOND)
def test_a_slash_for_a_threshold_with_one_finding_is_reported(verify: Verify, slashed: Path, given: str) -> None:
    NOT_A_SECOND[given](slashed)
    assert verify().code == 0, "the ledger itself is whole"
    answer = verify("--documents")
    assert answer.code == 1
    assert (
        f"entry {ENTRY} (rejected): a reject for computation takes the same finding by a second check, and the signed findings"
        " under verdicts/ and opinions/ are 1 of 2"
    ) in answer.err


def test_where_several_validators_must_agree_each_name_counts_once(verify: Verify, slashed: Path) -> None:
    cheats = Opinion(
        validator="validator-0", verdict=sign(of_the_cheat("validator-0"), ROLE_KEYS["validator"])
    )  # the other reject of this ledger, for a certain reason, takes as many
    store_of(slashed).put(f"{keys.opinions(CHEAT, FILES[CHEAT])}{'1' * 64}.json", cheats.to_json())
    give_opinion(slashed, finding("validator-1", "chunk 3"))
    answer = verify("--documents", "--slash-votes", 2)
    assert answer.code == 1
    assert f"entry {ENTRY} (rejected): a reject for computation takes the same finding by 2 validators" in answer.err
    give_opinion(slashed, finding("validator-0", "chunk 4"))
    answer = verify("--documents", "--slash-votes", 2)
    assert (answer.code, answer.err) == (0, "")
    assert "rejects with all the findings that they take (2 of as many validators): 2" in answer.out
    assert "are 2 of 3" in verify("--documents", "--slash-votes", 3).err


def test_a_file_that_one_validator_could_not_read_twice_has_no_second_finding(verify: Verify, tmp_path: Path) -> None:
    copy = make_copy(tmp_path / "copy")
    writer, found = LedgerWriter(store_of(copy), RUN, ORCHESTRATOR_KEY), finding("validator-1", "60 s", "unread")
    writer.load()
    writer.append(fact("node-joined", node=SLASHED, detail=f"{7:032d}"))
    store_of(copy).put(keys.verdict(SLASHED, FILE), sign(found, ROLE_KEYS["validator"]).to_json())
    writer.append(fact("rejected", node=SLASHED, step=0, submission=0, digest=FILE, detail="unread: 60 s"))
    give_opinion(copy, finding("validator-1", "59 s", "unread"))
    assert "a reject for unread takes the same finding by 2 validators" in verify("--documents").err
    give_opinion(copy, finding("validator-0", "60 s", "unread"))
    assert verify("--documents").code == 0


def of_the_cheat(validator: str) -> Verdict:
    """Another finding for the reject in `ledger_copies`."""
    return Verdict(
        run=RUN, node=CHEAT, lease="ab" * 16, step=0, submission=0, sha256=FILES[CHEAT], outcome="reject",
        reason="sampling", evidence="row 1", validator=validator,
    )  # fmt: skip


def test_how_many_must_agree_is_read_from_run_json(verify: Verify, slashed: Path, tmp_path: Path) -> None:
    give_opinion(slashed, finding("validator-1", "chunk 3"))
    votes = run_config().validation.model_copy(update={"slash_votes": 2})
    (tmp_path / "run.json").write_bytes(run_config().model_copy(update={"validation": votes}).to_json())
    join = NodeConfig(run=RUN, pool="workers", discovery="http://127.0.0.1:8081", roster=ROSTER, run_key=RUN_KEY.public)
    (tmp_path / "node.json").write_bytes(join.to_json())
    assert "by 2 validators" in verify("--documents", "--join", "run.json").err
    assert verify("--documents", "--join", "run.json", "--slash-votes", 1).code == 0
    assert verify("--documents", "--join", "node.json").code == 0


def test_votes_without_documents_to_count_them_in_are_refused(verify: Verify, slashed: Path) -> None:
    answer = verify("--slash-votes", 2)
    assert answer.code == 2
    assert "give --documents too" in answer.err


def test_an_eviction_without_any_rejected_file_is_found(verify: Verify, slashed: Path) -> None:
    writer = LedgerWriter(store_of(slashed), RUN, ORCHESTRATOR_KEY)
    writer.load()
    writer.append(fact("node-joined", node="e" * 64, detail=f"{8:032d}"))
    writer.append(fact("node-evicted", node="e" * 64, detail="because"))
    answer = verify()
    assert answer.code == 1
    assert "entry 14: node eeeeeeeeeeeeeeee... is evicted, and no file of it was rejected before" in answer.err
