"""A recipe with sources whose weights were edited in mid-run: nobody is blamed for steps before the edit, and lies are still found."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tampering import Copy
from tiny_world import STEPS, World

from shoal.contracts import keys
from shoal.contracts.run import RunConfig
from shoal.contracts.steps import StepMetrics
from shoal.crypto.canonical import document_digest
from shoal.ledger.entries import Fact, RunDeclared, TermsChanged, VersionPublished
from shoal.ledger.terms import terms_of_run
from shoal.recompute.batches import RowReader
from shoal.recompute.evidence import Evidence

TUNED = {"name": "arithmetic", "loss_weight": 2.0}


class Edited(Copy):
    """A copy whose owner edits the recipe's sources once version `after` is published, or with None before anything else."""

    def edit(self, before: dict[str, Any] | None, now: dict[str, Any], after: int | None) -> None:
        self.before, self.config = self.learning(before), self.learning(now)
        declared, changed = terms_of_run(self.before), terms_of_run(self.config)
        roster = document_digest(self.config.trust.roster)

        def history(facts: list[Fact]) -> Sequence[Fact]:
            told: list[Fact] = []
            for fact in facts:
                if isinstance(fact, RunDeclared):
                    place = len(told)
                    told.append(fact.model_copy(update={"terms": declared if after is not None else changed}))
                else:
                    told.append(fact)
                if isinstance(fact, VersionPublished) and fact.version == after:
                    told.append(TermsChanged(roster=roster, terms=changed, replaces=place))
            return told

        self.rewrite(history)

    def learning(self, source: dict[str, Any] | None) -> RunConfig:
        recipe = self.world.config.recipe
        sources = None if source is None else [source]
        return RunConfig.model_validate(
            {**self.world.config.model_dump(), "recipe": type(recipe)(**{**recipe.model_dump(), "sources": sources})}
        )

    def report(self, step: int, config: RunConfig, **more: Any) -> None:
        """The trainer's report of a step, as a trainer with this configuration writes it."""
        evidence = Evidence(self.store, config, self.ledger(), self.entries())
        plan = RowReader(evidence, self.store, self.world.facts.vocabulary).plan(self.batch(step))[1]
        assert plan is not None
        key = keys.step_metrics(step)
        told = StepMetrics.from_json(self.store.get(key))
        self.store.put(key, told.model_copy(update={"data_digest": plan.digest, **more}).to_json())


@pytest.fixture
def copy(world: World, tmp_path: Path) -> Edited:
    return Edited(world, tmp_path)


def test_a_weight_that_is_tuned_leaves_every_batch_to_be_checked(copy: Edited) -> None:
    copy.edit(TUNED, {**TUNED, "loss_weight": 3.0}, after=2)
    for step in range(STEPS):
        copy.report(step, copy.before if step < 2 else copy.config)
    result = copy.audit("batches")
    assert result.findings == []
    assert not result.stages["batches"].unchecked
    assert result.stages["batches"].done == result.stages["batches"].of


def test_a_lie_in_a_report_is_found_whatever_was_edited(copy: Edited) -> None:
    copy.edit(TUNED, {**TUNED, "algorithm": {"gspo": {}}}, after=2)
    copy.report(0, copy.before, reward=0.99)
    assert any("reward is 0.99" in each.what for each in copy.audit("batches").findings)


def test_the_digest_of_data_of_another_recipe_is_found(copy: Edited) -> None:
    copy.edit(None, {**TUNED, "algorithm": {"gspo": {}}}, after=None)
    copy.report(0, copy.before)
    for step in range(1, STEPS):
        copy.report(step, copy.config)
    (found,) = copy.audit("batches").findings
    assert "data_digest is" in found.what
