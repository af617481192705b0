"""The run's terms in the ledger: they open it, they change once however often an orchestrator starts, and two that disagree do not fill it."""

from pathlib import Path

import pytest

from ledger_samples import fact
from protocol_stack import config, ledger, new_role_keys
from run_states import Clock, Orchestrator
from servers import Redis
from shoal.contracts.pools import Admission, PoolTerms
from shoal.contracts.recipe import Recipe
from shoal.contracts.run import Addresses, RunConfig
from shoal.contracts.validation import Validation
from shoal.crypto.canonical import document_digest
from shoal.crypto.keys import PrivateKey
from shoal.ledger.facts import recipe_digest
from shoal.ledger.reading import read_ledger
from shoal.ledger.source import LedgerSource, Trust
from shoal.ledger.terms import TermsKeeper, terms_of_run
from shoal.ledger.writer import LedgerWriter
from shoal.orchestrator.http.service import load_ledger
from shoal.storage.store import Store, open_folder

DAY = 86_400.0
ROLE_KEYS, RUN_KEY = new_role_keys(), PrivateKey.generate()


def configured(probation: int = 10, **changes: object) -> RunConfig:
    addresses = Addresses(
        discovery="http://127.0.0.1:1",
        orchestrator="http://127.0.0.1:2",
        origin="http://127.0.0.1:3",
        relays=[],
        redis="",
    )
    validation = Validation(probation_files=probation)
    return config(addresses, ROLE_KEYS, RUN_KEY, **{"validation": validation, **changes})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    (tmp_path / "store").mkdir()
    return open_folder(tmp_path / "store", "shoal/tiny", deadline_seconds=2)


class Process:
    """One orchestrator process, as far as terms go."""

    def __init__(self, store: Store, run: RunConfig, clock: Clock) -> None:
        self.writer = LedgerWriter(store, run.run, ROLE_KEYS["orchestrator"], clock)
        self.writer.load()
        self.keeper = TermsKeeper(run, self.writer, clock)
        self.keeper.open()
        self.keeper.keep()

    def round(self) -> bool:
        self.writer.catch_up()
        return self.keeper.keep()


def said(store: Store) -> list[int]:
    """`probation_files` of each entry with terms."""
    return [entry.terms.probation_files for entry in ledger(store) if entry.terms is not None]


def problems(store: Store) -> list[str]:
    trust = Trust(RUN_KEY.public, configured().roster, "the test", given=True)
    return read_ledger(LedgerSource(store, trust), lambda _: None).report.problems


def test_the_run_is_declared_before_anybody_is_served(tmp_path: Path, redis_server: Redis) -> None:
    """Redis may say that all is rebuilt, as after an update: then requests are served at once, and an invite before the declaration is a finding."""
    run = Orchestrator(tmp_path, redis_server.url)
    fresh = open_folder(tmp_path, "shoal/another", deadline_seconds=2)
    run.state.ledger = LedgerWriter(fresh, run.config.run, run.state.key, run.clock)
    run.state.terms = TermsKeeper(run.config, run.state.ledger, run.clock)
    assert load_ledger(run.state)
    assert [entry.kind for entry in ledger(fresh)] == ["run-declared"]


def test_a_new_ledger_begins_with_whose_run_it_is_and_a_restart_adds_nothing(
    tmp_path: Path, redis_server: Redis
) -> None:
    run = Orchestrator(tmp_path, redis_server.url)
    run.restarted()
    run.lose_redis()
    entries = ledger(run.store)
    assert [entry.kind for entry in entries].count("run-declared") == 1
    first = entries[0]
    assert first.kind == "run-declared"
    assert first.digest == document_digest(run.config.trusted_roster())
    assert first.terms == terms_of_run(run.config)
    assert first.terms.owner == run.config.run_key
    assert (first.terms.domain, first.terms.probation_files, first.terms.slash_votes, first.terms.slashing) == (
        "reinforcement-learning", 10, 1, "Evict",
    )  # fmt: skip
    assert [(pool.name, pool.open) for pool in first.terms.pools] == [("pool", True)]


def test_changed_terms_are_said_once_over_many_restarts(store: Store) -> None:
    clock = Clock()
    Process(store, configured(10), clock)
    for _ in range(5):
        clock.now += DAY
        process = Process(store, configured(3), clock)
        clock.now += DAY
        assert not process.round()
    assert said(store) == [10, 3]
    Process(store, configured(10), clock)
    assert said(store) == [10, 3, 10], "what was before may be said again"
    changed = [entry for entry in ledger(store) if entry.kind == "terms-changed"]
    assert [entry.replaces for entry in changed] == [0, 1]
    assert problems(store) == []


def test_a_ledger_of_before_is_declared_where_it_is_and_stays_good(store: Store) -> None:
    clock = Clock()
    old = LedgerWriter(store, "tiny", ROLE_KEYS["orchestrator"], clock)
    old.append(fact("node-joined", node="ab" * 32, detail="0" * 32))
    Process(store, configured(), clock)
    assert [entry.kind for entry in ledger(store)] == ["node-joined", "run-declared"]
    assert problems(store) == []


def test_of_two_orchestrators_that_start_together_one_declares_and_one_changes(store: Store) -> None:
    clock = Clock()
    first, second = (LedgerWriter(store, "tiny", ROLE_KEYS["orchestrator"], clock) for _ in range(2))
    keepers = [TermsKeeper(configured(n), writer, clock) for n, writer in ((1, first), (1, second))]
    for keeper in keepers:
        keeper.open()  # the second has not read what the first wrote
    assert said(store) == [1]
    later = [TermsKeeper(configured(n), writer, clock) for n, writer in ((2, first), (3, second))]
    assert [keeper.keep() for keeper in later] == [True, False]
    assert said(store) == [1, 2], "two changes of the same entry: the one that came first"
    assert problems(store) == []


def test_two_orchestrators_that_disagree_write_less_and_less_and_the_one_that_stays_has_the_last_word(
    store: Store,
) -> None:
    clock = Clock()
    old, new = Process(store, configured(10), clock), Process(store, configured(3), clock)
    for _ in range(7 * 24 * 60):
        clock.now += 60.0
        old.round()
        new.round()
    assert len(said(store)) < 50, "a week of contradiction"
    old.round()  # its last word, whatever it was
    for _ in range(2 * 24 * 60):
        clock.now += 60.0
        new.round()
    assert said(store)[-1] == 3
    quiet = len(said(store))
    for _ in range(7 * 24):
        clock.now += 3600.0
        new.round()
    assert len(said(store)) == quiet
    assert problems(store) == []


def test_an_update_of_some_minutes_ends_with_the_new_terms(store: Store) -> None:
    clock = Clock()
    Process(store, configured(10), clock)
    new = Process(store, configured(3), clock)
    again = Process(store, configured(10), clock)  # the old one was started once more meanwhile
    for _ in range(5):
        clock.now += 60.0
        again.round()
        new.round()
    for _ in range(30):
        clock.now += 60.0
        new.round()
    assert said(store)[-1] == 3


@pytest.mark.parametrize(
    "changes",
    [
        {"validation": Validation(slash_votes=2)},
        {"validation": Validation(slashing="Discard")},
        {"pools": [PoolTerms(name="pool", open=True, admission=Admission(nodes=["ab" * 32]))]},
        {"pools": [PoolTerms(name="pool", open=True, gpus=1)]},
    ],
    ids=["votes", "slashing", "list", "hardware"],
)
def test_each_of_the_terms_is_one(store: Store, changes: dict[str, object]) -> None:
    clock = Clock()
    Process(store, configured(), clock)
    Process(store, configured(**changes), clock)
    assert [entry.kind for entry in ledger(store)] == ["run-declared", "terms-changed"]


def test_what_sources_are_learnt_by_is_a_term(store: Store) -> None:
    def learning(weight: float) -> RunConfig:
        return configured(recipe=Recipe(sources=[{"name": "code", "algorithm": {"gspo": {}}, "loss_weight": weight}]))

    clock = Clock()
    Process(store, learning(1.0), clock)
    clock.now += DAY
    Process(store, learning(2.0), clock)
    first, second = (entry.terms for entry in ledger(store))
    assert first is not None
    assert second is not None
    assert first.recipe_digest
    assert second.recipe_digest not in (None, first.recipe_digest)


def test_a_recipes_schedules_and_its_own_objective_are_terms(store: Store) -> None:
    def learning(rate: float) -> RunConfig:
        schedules = {"learning_rate": [{"step": 0, "value": rate}]}
        own = {"custom": {"path": "lab.objectives:OURS", "sha256": "ab" * 32}}
        return configured(recipe=Recipe(algorithm=own, schedules=schedules))

    clock = Clock()
    Process(store, configured(), clock)
    Process(store, learning(1e-6), clock)
    clock.now += DAY
    Process(store, learning(1e-7), clock)
    plain, first, second = (entry.terms for entry in ledger(store))
    assert plain is not None
    assert first is not None
    assert second is not None
    assert not {"recipe_digest", "objective"} & plain.model_dump(mode="json").keys()
    assert first.objective == f"lab.objectives:OURS sha256:{'ab' * 32}"
    assert first.recipe_digest == recipe_digest(learning(1e-6).recipe) != second.recipe_digest


def test_more_pools_than_an_entry_names_are_in_its_digest(store: Store) -> None:
    pools = [PoolTerms(name=f"pool-{number:03d}") for number in range(200)]
    said_terms = terms_of_run(configured(pools=pools))
    assert (len(said_terms.pools), said_terms.pool_count) == (64, 200)
    last_open = terms_of_run(configured(pools=[*pools[:-1], PoolTerms(name="pool-199", open=True)]))
    assert last_open.pools == said_terms.pools
    assert last_open.pools_digest != said_terms.pools_digest


def test_terms_are_in_force_after_what_was_decided_by_those_before(tmp_path: Path, redis_server: Redis) -> None:
    """A crash between verdict and entry, and a greater number of votes after it: the entry comes before the change."""
    from protocol_stack import verdict_on
    from shoal.contracts import keys
    from shoal.contracts.signed import sign

    run = Orchestrator(tmp_path, redis_server.url)
    run.announce(0)
    node = run.join()
    run.hand_in(node)
    verdict = verdict_on(run.claimed(), "reject", "sampling")
    signed = sign(verdict, run.role_keys["validator"])
    run.store.put(keys.verdict(node, verdict.sha256), signed.to_json())
    votes = run.config.validation.model_copy(update={"slash_votes": 2})
    run.config = run.config.model_copy(update={"validation": votes})
    run.restarted()
    kinds = [entry.kind for entry in ledger(run.store)]
    assert kinds.index("rejected") < kinds.index("terms-changed")
    trust = Trust(run.config.run_key, run.config.roster, "the test", given=True)
    source = LedgerSource(run.store, trust, configured_votes=2)
    report = read_ledger(source, lambda _: None, documents=True).report
    rejected = [entry for entry in ledger(run.store) if entry.kind == "rejected"]
    assert [report.slash_votes_at(entry) for entry in rejected] == [1]
    assert not [problem for problem in report.problems if "reject" in problem]
