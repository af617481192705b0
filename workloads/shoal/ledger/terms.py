"""The run's terms in the ledger: declared once, and again whenever the configuration of a run that goes on says something else.

`TermsKeeper.open` is called before anything else is written, so that a new ledger begins with whose run it is; `keep` at every start, after what was
decided by the terms before, and now and then. Each change names the entry that it replaces, so that of several orchestrators one writes it.
"""

import time
from collections.abc import Callable

from shoal.contracts.run import RunConfig
from shoal.crypto.canonical import document_digest
from shoal.ledger.entries import RunDeclared, TermsChanged
from shoal.ledger.facts import DOMAINS, MOST_DECLARED_POOLS, DeclaredPool, RunTerms, pools_digest, recipe_digest
from shoal.ledger.writer import LedgerWriter
from shoal.telemetry import get_logger

FIRST_WAIT_SECONDS = 60.0
LONGEST_WAIT_SECONDS = 86_400.0
"""Two orchestrators with different configurations, as during an update by hand, contradict each other. Each waits a minute before its second word,
and twice as long before each further one: about twenty entries in a week, and the one that stays has the last word soon after."""


def terms_of_run(config: RunConfig) -> RunTerms:
    """The terms that a configuration says."""
    recipe, own = config.recipe, config.recipe.algorithm.custom
    named = sorted(config.pools, key=lambda pool: pool.name)[:MOST_DECLARED_POOLS]
    return RunTerms(
        owner=config.run_key,
        domain=DOMAINS[config.mode],
        model_id=config.model_id,
        probation_files=config.validation.probation_files,
        slash_votes=config.validation.slash_votes,
        slashing=config.validation.slashing,
        pools=[
            DeclaredPool(
                name=pool.name, open=pool.open, listed=len(pool.admission.nodes), codes=len(pool.admission.codes)
            )
            for pool in named
        ],
        pool_count=len(config.pools),
        pools_digest=pools_digest(config.pools),
        recipe_digest=recipe_digest(recipe)
        if any((own, recipe.schedules, recipe.mismatch_correction, recipe.router_replay, recipe.sources))
        or recipe.credit == "Turn"
        else None,
        objective=f"{own.path} sha256:{own.sha256}" if own else None,
    )


class TermsKeeper:
    """The terms that one orchestrator last wrote, and when."""

    def __init__(self, config: RunConfig, ledger: LedgerWriter, clock: Callable[[], float] = time.monotonic) -> None:
        self._terms = terms_of_run(config)
        self._keys = config.trust
        self._ledger = ledger
        self._clock = clock
        self._next = 0.0
        self._wait = FIRST_WAIT_SECONDS

    @property
    def _roster(self) -> str:
        return document_digest(self._keys.roster)

    def open(self) -> None:
        """Declare the run, if its ledger does not yet."""
        if self._ledger.view.terms is None:
            self._ledger.append(RunDeclared(roster=self._roster, terms=self._terms))

    def keep(self) -> bool:
        """Write down our terms where the ledger's are others, but not again and again; returns whether an entry was written."""
        last, now = self._ledger.view.terms, self._clock()
        if last is None or (last.terms, last.roster) == (self._terms, self._roster) or now < self._next:
            return False
        self._next, self._wait = now + self._wait, min(2 * self._wait, LONGEST_WAIT_SECONDS)
        written = self._ledger.append(TermsChanged(roster=self._roster, terms=self._terms, replaces=last.number))
        if written is not None:
            get_logger().info("the terms of the run have changed", entry=written.number, before=last.number)
        return written is not None
