"""Sources of a mixture with an objective and a weight of their own: what a row adds to the loss, its advantages, the report."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import objective_gaps
import pytest
import torch
from test_batches import NAMES, mixed, packs
from test_other_steps import Pod
from tiny_run import Orchestrator, accept, batch_of, make_model, recipe, rows_of, write_base

from servers import Loopback
from shoal.contracts import keys
from shoal.contracts.recipe import Recipe
from shoal.training.batches import StepPlan, plan_step, score
from shoal.training.loss import SUMS, LossSums, LossWeights, MicroLoss, SourceLosses
from shoal.training.metrics import source_measures
from shoal.training.model import Policy
from shoal.training.objectives import OBJECTIVES, needs_behaviour, source_losses
from shoal.training.update import Updates, accumulate, plan_logprobs

SOURCES: list[dict[str, Any]] = [
    {"name": "code", "algorithm": {"gspo": {"clip_epsilon": 0.2, "clip_epsilon_high": 0.3}}, "loss_weight": 2.0},
    {"name": "sums", "algorithm": {"dr_grpo": {}}},
    {"name": "proofs", "loss_weight": 0.5},
]
"""Of `mixed`; nothing is said of `letters`."""


def plan(given: Recipe, rank: int = 0, world: int = 1) -> StepPlan:
    return plan_step(mixed(), given, seed=0, step=5, completion_limit=30, rank=rank, world=world)


def learnt(given: Recipe, world: int = 1) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradient of a step's only update, `SUMS` over all tokens, and those of each source; all ranks' shares one after the other."""
    policy = Policy(make_model().double())
    old_policy, base = (Policy(make_model(seed=seed).double()) for seed in (1, 2))
    each = source_losses(given)
    sources = SourceLosses(each, torch.zeros(len(each), len(SUMS), dtype=torch.float64)) if given.sources else None
    sums = torch.zeros(len(SUMS), dtype=torch.float64)
    for rank in range(world):
        share = plan(given, rank, world)
        old, reference = (plan_logprobs(model, share, lambda: None)[0] for model in (old_policy, base))
        batch, loss = share.optimizer_batches[0], each[0]
        sums += accumulate(
            policy, batch, old, reference, None, loss.objective, loss.weights, lambda: None, None, sources
        )[0]
    gradient = torch.cat([parameter.grad.flatten() for parameter in policy.parameters()])
    return gradient, sums, torch.zeros(0) if sources is None else sources.sums


def test_loss_and_gradient_of_a_mixture_are_those_of_the_formulas() -> None:
    gap = objective_gaps.measure_mixture()
    assert gap.loss < 1e-12
    assert gap.gradient < 1e-7  # what finite differences leave
    for name in SUMS:
        assert sum(each[name] for each in gap.by_source) == pytest.approx(gap.sums[name])


def test_a_row_adds_what_it_would_add_if_all_rows_had_its_objective() -> None:
    """The gradient of the mixture is the weighted sum of gradients, each of rows of one source under one objective, with that run's divisor."""
    given = recipe(optimizer_steps=1, sources=SOURCES)
    wanted, base = torch.zeros(()), Policy(make_model(seed=2).double())
    for name, own, factor in (
        ("code", "gspo", 2.0),
        ("sums", "dr_grpo", 1.0),
        ("proofs", "two_sided_grpo", 0.5),
        ("letters", "two_sided_grpo", 1.0),
    ):
        alone = plan(given.of_source(name).model_copy(update={"sources": None}))
        policy, kept = Policy(make_model().double()), []
        for batch in alone.optimizer_batches:
            for packed in batch.micro_batches:
                rows = next(group.samples for group in mixed() if group.samples[0].task_type == name)
                answers = {tuple(sample.tokens.tolist()) for sample in rows}
                bounds = packed.segments.bounds
                mine = [tuple(packed.tokens[start:end].tolist()) in answers for start, end in pairwise(bounds)]
                here = torch.tensor(mine)[packed.completions.owners]
                kept.append(
                    replace(
                        packed,
                        **{
                            each: getattr(packed, each)[here]
                            for each in (
                                "predicted_from", "targets", "temperatures", "advantages", "worker_logprobs", "policy_versions",
                            )
                        },
                    )
                )  # fmt: skip
        batch = replace(alone.optimizer_batches[0], micro_batches=[each for each in kept if len(each.targets)])
        only = replace(alone, optimizer_batches=[batch])
        old, reference = (
            plan_logprobs(model, only, lambda: None)[0] for model in (Policy(make_model(seed=1).double()), base)
        )
        weights = LossWeights.of(given.of_source(name))
        accumulate(policy, batch, old, reference, None, OBJECTIVES[own], weights, lambda: None)
        wanted = wanted + factor * torch.cat([parameter.grad.flatten() for parameter in policy.parameters()])
    torch.testing.assert_close(learnt(given)[0], wanted, rtol=1e-9, atol=1e-12)


def test_sources_that_say_what_the_recipe_says_change_nothing() -> None:
    plain = recipe(optimizer_steps=1)
    same = recipe(optimizer_steps=1, sources=[{"name": name} for name in NAMES])
    torch.testing.assert_close(learnt(same)[0], learnt(plain)[0], rtol=1e-9, atol=1e-12)
    assert all(packed.sources is None for packed in packs(plan(plain)))
    assert "sources" not in plain.model_dump(mode="json")


@pytest.mark.parametrize(("pack_length", "world"), [(400, 1), (40, 1), (48, 3)])
def test_packs_and_ranks_change_neither_gradient_nor_sums(pack_length: int, world: int) -> None:
    found = learnt(recipe(optimizer_steps=1, sources=SOURCES, pack_length=pack_length), world)
    whole = learnt(recipe(optimizer_steps=1, sources=SOURCES, pack_length=128))
    for one, other in zip(found, whole, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9)


def test_advantages_are_those_of_the_sources_algorithm() -> None:
    given = recipe(sources=[{"name": "code", "algorithm": {"rloo": {}}}])
    for group in mixed()[:2]:
        own = [advantage for _, advantage in score(group, given)]
        for other in ("rloo", "two_sided_grpo"):
            alone = [advantage for _, advantage in score(group, recipe(algorithm={other: {}}))]
            assert (own == alone) == ((group.samples[0].task_type == "code") == (other == "rloo"))


def test_a_plan_says_whose_each_token_is_and_its_digest_depends_on_the_objectives() -> None:
    given = recipe(optimizer_steps=1, sources=SOURCES)
    found = plan(given)
    batch = found.optimizer_batches[0]
    counted = [sum(int((packed.sources == at).sum()) for packed in packs(found)) for at in range(4)]
    tokens = {group.samples[0].task_type: sum(int(each.mask.sum()) for each in group.samples) for group in mixed()}
    assert counted == [tokens[name] for name in ("letters", "code", "sums", "proofs")] == list(batch.source_tokens)
    assert batch.divisors == (batch.token_count, 16.0, 16.0 * 30, batch.token_count)
    tuned = [{**each, "loss_weight": 3.0} for each in SOURCES]
    others = [{**each, "algorithm": {"gspo": {}}} for each in SOURCES]
    plain, same, weighed, other = (
        plan(recipe(optimizer_steps=1, sources=each)).digest for each in (None, SOURCES, tuned, others)
    )
    assert same == weighed, "a weight is the ledger's to tell, and may be tuned in mid-run"
    assert len({plain, same, other}) == 3


def test_a_device_is_not_waited_for_to_tell_sources_apart() -> None:
    """Tensors of the device `meta` have no values: whoever asks for one, as `nonzero` and `tolist` do, raises."""
    given = recipe(optimizer_steps=1, sources=[SOURCES[1], SOURCES[2]])
    batch, each, meta = plan(given).optimizer_batches[0], source_losses(given), torch.device("meta")
    packed = batch.micro_batches[0].to(meta)
    loss = MicroLoss(
        old=None, reference=packed.worker_logprobs, advantages=packed.advantages, behaviour=packed.worker_logprobs, objective=each[0].objective,
        weights=each[0].weights, divisor=batch.divisor,
        sources=SourceLosses(each, torch.zeros(len(each), len(SUMS), device=meta)), owners=packed.sources,
        divisors=batch.divisors,
    )  # fmt: skip
    logprobs = torch.zeros(len(packed.targets), device=meta)
    assert loss(slice(0, len(logprobs)), logprobs, logprobs).device == meta


def test_schedules_of_the_clip_are_the_recipes_own() -> None:
    points = [{"step": 0, "value": 0.1}]
    given = recipe(sources=SOURCES, schedules={"clip_epsilon": points, "kl_coefficient": [{"step": 0, "value": 0.5}]})
    found = {each.name: each for each in source_losses(given, 3)}
    assert {name: each.weights.epsilon for name, each in found.items()} == {
        "": 0.1, "code": 0.2, "sums": 0.2, "proofs": 0.1,
    }  # fmt: skip
    assert {each.weights.kl for each in found.values()} == {0.5}


def test_one_source_that_needs_behaviour_is_enough() -> None:
    assert not needs_behaviour(recipe(sources=SOURCES))
    assert needs_behaviour(recipe(sources=[{"name": "code", "algorithm": {"dppo": {}}}]))
    assert needs_behaviour(recipe(sources=[{"name": "code", "algorithm": {"dapo": {"importance_cap": 2.0}}}]))


def test_a_sources_numbers_that_do_not_go_together_are_refused() -> None:
    own = {"two_sided_grpo": {"clip_epsilon": 0.5, "clip_delta": 1.2}}
    with pytest.raises(ValueError, match=r"clip_delta is 1.2; allowed: more than 1 \+ clip_epsilon = 1.5"):
        source_losses(recipe(sources=[{"name": "code", "algorithm": own}]))


def test_a_source_without_a_token_in_a_step_has_no_means_not_means_of_zero() -> None:
    updates = Updates(
        applied=[], loss=1.0, kl=None, entropy=1.0, clip_low=0.0, clip_high=0.0, clip_delta=0.0, importance_capped=0.0, old=[],
        mismatch_truncated=0.0, mismatch_masked=0.0, completions_masked=0.0, by_source={"code": LossSums()},
    )  # fmt: skip
    found = source_measures(recipe(sources=SOURCES), updates)
    assert found["code"] == {"objective": "gspo", "loss_weight": 2.0, "loss": 0.0, "entropy": 0.0, "clip_ratio": 0.0}
    assert found["proofs"] == {"objective": "two_sided_grpo", "loss_weight": 0.5}


def test_a_run_reports_what_each_source_was_learnt_by(tmp_path: Path, loopback: Loopback) -> None:
    server = Orchestrator(loopback.address())
    try:
        sources = [{**SOURCES[0], "algorithm": {"dppo": {}}}, SOURCES[2]]
        pod = Pod(tmp_path, write_base(tmp_path / "base"), server, recipe=recipe(sources=sources))
        rows = [replace(row, task_type=("code", "sums")[at // 8]) for at, row in enumerate(rows_of(0))]
        files = [accept(pod.store, rows[:8]), accept(pod.store, [replace(row, submission=3) for row in rows[8:]])]
        pod.store.put(keys.step_batch(0), batch_of(0, files).to_json())
        trainer = pod.trainer()
        trainer.resume()
        trainer.train_step(0)
        trainer._waits.idle()
        found = pod.report(0).by_task_type
    finally:
        server.close()
    assert found.keys() == {"code", "sums"}
    code, sums = found["code"], found["sums"]
    assert (code.objective, code.loss_weight) == ("dppo", 2.0)
    assert code.loss is not None
    assert code.entropy is not None
    assert code.entropy > 0
    assert code.clip_ratio is not None
    assert 0 <= code.clip_ratio <= 1
    assert (sums.objective, sums.loss, sums.clip_ratio) == (None, None, None)  # the recipe says nothing of it
