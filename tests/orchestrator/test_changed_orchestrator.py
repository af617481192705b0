"""An orchestrator whose keys were changed: what it writes first, whom it refuses, and what its ledger still tells to everybody."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from changed_keys import RunKeys
from protocol_stack import RUN, verdict_on
from run_states import Orchestrator
from servers import Redis
from shoal.contracts import keys
from shoal.contracts.roster import Roster
from shoal.contracts.run import RunConfig
from shoal.contracts.signed import BadSignature, Signed, sign
from shoal.contracts.trust import OVERLAP_SECONDS, KeysNotice, TrustedKeys
from shoal.contracts.verdicts import ValidatorCard, Verdict
from shoal.crypto.keys import PrivateKey
from shoal.ledger import chain, checkpoints
from shoal.ledger.chain import BrokenChain
from shoal.ledger.checkpoints import Checkpoints
from shoal.ledger.entries import LedgerEntry, NodeDead
from shoal.ledger.reading import read_ledger
from shoal.ledger.source import LedgerSource, Trust
from shoal.ledger.succession import Succession
from shoal.orchestrator import key_changes, recovery
from shoal.orchestrator.run_state import RunState
from shoal.orchestrator.verdicts import verdicts

DEAD = NodeDead(node="7" * 64)


def test_an_entry_that_changes_while_the_ledger_is_read_is_a_finding(tmp_path: Path, redis_server: Redis) -> None:
    run = Orchestrator(tmp_path, redis_server.url)
    run.announce(0)
    trust = Trust(run.config.run_key, run.config.roster, "the test", given=True)

    def problems(each: Callable[[LedgerEntry], None]) -> list[str]:
        return read_ledger(LedgerSource(run.store, trust), lambda _: None, documents=True, each=each).report.problems

    before = problems(lambda entry: None)
    number = run.state.view.next_number - 1
    path = keys.ledger_entry(number)
    other = run.store.get(keys.ledger_entry(0)) if number else b"{}"
    assert problems(lambda entry: run.store.put(path, other) if entry.number == number else None) == [
        *before, f"entry {number} changed while the ledger was read",
    ]  # fmt: skip


class Run(Orchestrator):
    """An orchestrator whose keys the test changes."""

    def __init__(self, folder: Path, redis_url: str, **changes: object) -> None:
        super().__init__(folder, redis_url, **changes)
        self.keys = RunKeys(RUN, PrivateKey.generate(), self.role_keys, fixed=PrivateKey.generate())
        self.run_key = self.keys.run_key.public
        shutil.rmtree(folder / "store" / "shoal" / RUN / "ledger")  # of the run that was begun with another key
        self.redis.flushall()
        self.again()

    def again(self) -> RunState:
        """Start with the newest roster, as a changed configuration makes it."""
        self.config = self.config_with(self.keys.roster)
        self.state = self.new_state()
        self.state.keys.clock = self.clock
        self.state.ledger.load()
        key_changes.record(self.state)
        self.state.terms.open()
        recovery.rebuild(self.state)
        return self.state

    def config_with(self, roster: Signed[Roster]) -> RunConfig:
        """The configuration with a roster, as a process reads it."""
        return RunConfig.from_json(self.config.model_copy(update={"roster": roster, "run_key": self.run_key}).to_json())

    def change(self, *holders: str, leaked: bool = False) -> RunState:
        for holder in holders:
            self.keys.change(holder, self.clock(), leaked=leaked)
        return self.again()

    def problems(self, *, documents: bool = True) -> list[str]:
        trust = Trust(self.config.run_key, self.config.roster, "the test", given=True)
        return read_ledger(LedgerSource(self.store, trust), lambda _: None, documents=documents).report.problems

    def write_checkpoints(self) -> None:
        """A round of a new process's."""
        Checkpoints(self.state.ledger, self.state.keys.notice.roster).write_due(0.0, complete=True)

    def signed(self, verdict: Verdict, name: str, own: PrivateKey, role: PrivateKey | None = None) -> Signed[Verdict]:
        """As the validator of this name signs it."""
        card = ValidatorCard(run=RUN, validator=name, key=own.public, unix=self.clock())
        changes = {"validator": name, "card": sign(card, role or self.role_keys["validator"])}
        return sign(verdict.model_copy(update=changes), own)

    def take(self, signed: Signed[Verdict]) -> None:
        key_changes.check_verdict(self.state, signed)
        verdicts.receive(self.state, signed)


@pytest.fixture
def new_run(tmp_path: Path, redis_server: Redis) -> Callable[..., Run]:
    def make(**changes: object) -> Run:
        return Run(tmp_path, redis_server.url, **changes)

    return make


def kinds(run: Run) -> list[str]:
    found: list[LedgerEntry] = []
    trust = Trust(run.config.run_key, run.config.roster, "", given=True)
    read_ledger(LedgerSource(run.store, trust), lambda _: None, each=found.append)
    return [entry.kind for entry in found]


def test_a_change_is_the_first_thing_that_a_new_orchestrator_writes(new_run: Callable[..., Run]) -> None:
    run = new_run()
    run.announce(0)
    before = len(kinds(run))
    old = run.state
    run.change("orchestrator")
    assert kinds(run)[before : before + 2] == ["keys-changed", "terms-changed"]
    assert run.problems() == []
    with pytest.raises(BrokenChain, match="this orchestrator was replaced"):
        old.ledger.append(DEAD)
    run.again()
    assert kinds(run).count("keys-changed") == 1
    run.change("trainer", "run", leaked=True)
    assert kinds(run).count("keys-changed") == 2  # one entry for what was changed together
    assert run.problems() == []


def test_a_stale_configuration_does_not_bring_an_old_key_back(new_run: Callable[..., Run]) -> None:
    run = new_run()
    stale, old_key = run.keys.roster, run.role_keys["orchestrator"]
    run.change("orchestrator", leaked=True)
    new_key = run.role_keys["orchestrator"]
    run.config, run.role_keys["orchestrator"] = run.config_with(stale), old_key
    state = run.new_state()
    state.ledger.load()
    with pytest.raises(SystemExit, match="in the newest roster of the ledger: it was replaced"):
        key_changes.record(state)
    run.config, run.role_keys["orchestrator"] = (
        run.config_with(stale),
        new_key,
    )  # the pod has the new key, the file is old
    state = run.new_state()
    state.ledger.load()
    key_changes.record(state)
    assert state.roster.generation == 2


@pytest.fixture
def short_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (chain, checkpoints):
        monkeypatch.setattr(module, "SEGMENT_ENTRIES", 8, raising=False)
    monkeypatch.setattr(chain, "CHECKPOINT_ENTRIES", 4)
    monkeypatch.setattr("shoal.ledger.writer.SEGMENT_ENTRIES", 8)


@pytest.mark.usefixtures("short_segments")
def test_checkpoints_and_segments_of_an_earlier_key_are_read(new_run: Callable[..., Run]) -> None:
    run = new_run()
    for _ in range(8):
        run.state.ledger.append(DEAD)
    run.write_checkpoints()
    run.change("orchestrator", leaked=True)
    for _ in range(8):
        run.state.ledger.append(DEAD)
    run.write_checkpoints()
    run.write_checkpoints()  # after a restart: those of the earlier key are the same checkpoints
    assert run.problems() == []
    signers = {json.loads(run.store.get(info.key))["signer"] for info in run.store.list(keys.CHECKPOINTS)}
    assert len(signers) == 2
    assert run.again().view.next_number == len(kinds(run))


@pytest.mark.usefixtures("short_segments")
def test_the_second_start_after_a_change_checks_no_signature_of_segments(
    new_run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run()
    for _ in range(24):
        run.state.ledger.append(DEAD)
    for _ in range(4):  # a segment a round
        run.write_checkpoints()
    checked: list[int] = []
    check = Succession.check

    def noted(succession: Succession, signed: Signed[LedgerEntry]) -> LedgerEntry:
        checked.append(signed.document.number)
        return check(succession, signed)

    monkeypatch.setattr(Succession, "check", noted)
    run.change("orchestrator", leaked=True)
    assert checked[:24] == list(range(24))
    run.write_checkpoints()
    checked.clear()
    run.again()
    assert min(checked) >= 24
    assert run.problems() == []


def test_everybody_is_told_what_earlier_keys_are_believed_about(new_run: Callable[..., Run]) -> None:
    run = new_run()
    held = TrustedKeys(run.keys.roster, run.config.run_key, clock=run.clock)
    run.announce(0)
    run.change("trainer", leaked=True)
    held.take(key_changes.notice(run.state))
    assert held.roster.generation == 2
    assert held.past is not None
    assert set(held.past.versions) == {0}
    key_changes.publish(run.state)
    assert KeysNotice.from_json(run.store.get(keys.KEYS_NOTICE)) == held.notice


@pytest.mark.parametrize("leaked", [True, False])
def test_a_verdict_of_a_replaced_key_counts_for_minutes_or_not_at_all(
    new_run: Callable[..., Run], leaked: bool
) -> None:
    run = new_run()
    run.announce(0)
    node, old, own = run.join(), run.role_keys["validator"], PrivateKey.generate()
    run.hand_in(node)
    job = run.claimed()
    run.change("validator", leaked=leaked)
    signed = run.signed(verdict_on(job, "accept"), "validator-0", own, old)
    if leaked:
        with pytest.raises(BadSignature, match="which is not the validators'"):
            run.take(signed)
        run.take(run.signed(verdict_on(job, "accept"), "validator-0", own))
    else:
        run.take(signed)
        run.clock.now += OVERLAP_SECONDS
        with pytest.raises(BadSignature):
            run.take(signed)
    assert run.state.view.files_accepted == 1
    assert run.problems() == []


def test_a_verdict_needs_a_card(new_run: Callable[..., Run]) -> None:
    run = new_run()
    run.announce(0)
    run.hand_in(run.join())
    with pytest.raises(BadSignature, match="no card of the validator's own key"):
        run.take(sign(verdict_on(run.claimed(), "accept"), run.role_keys["validator"]))


def test_votes_of_one_key_or_of_one_name_count_once(new_run: Callable[..., Run]) -> None:
    run = new_run(validation={"claim_seconds": 1, "slash_votes": 3})
    run.announce(0)
    file = run.hand_in(run.join())
    one, other, third = (PrivateKey.generate() for _ in range(3))

    def vote(name: str, own: PrivateKey) -> int:
        job = run.claimed(name)
        found = verdict_on(job, "reject", "sampling").model_copy(update={"evidence": f"by {name} {run.clock()}"})
        run.take(run.signed(found, name, own))
        run.clock.now += 5
        return run.state.view.files_rejected

    assert vote("validator-0", one) == 0
    assert vote("validator-1", one) == 0  # another name, the same key
    assert vote("validator-2", one) == 0
    assert vote("validator-3", other) == 0
    assert vote("validator-4", third) == 1
    assert [named for _, named in run.state.view.settled] == [file]
    assert run.problems() == []


def test_opinions_of_a_leaked_key_are_left_out(new_run: Callable[..., Run]) -> None:
    run = new_run(validation={"claim_seconds": 1, "slash_votes": 2})
    run.announce(0)
    run.hand_in(run.join())
    run.take(run.signed(verdict_on(run.claimed(), "reject", "sampling"), "validator-0", PrivateKey.generate()))
    run.change("validator", leaked=True)
    run.clock.now += 5
    for name, rejected in (("validator-1", 0), ("validator-2", 1)):
        job = run.claimed(name)
        run.take(run.signed(verdict_on(job, "reject", "sampling"), name, PrivateKey.generate()))
        assert run.state.view.files_rejected == rejected
        run.clock.now += 5
    assert run.problems() == []
