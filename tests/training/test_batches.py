"""Optimizer batches: every sample once, the order drawn from seed and step, and the loss the same however it is packed."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tiny_run import make_model, recipe, rewards_of, rows_of

from shoal.contracts.recipe import OverlongShaping
from shoal.training.batches import MicroBatch, StepPlan, micro_batch, plan_step, score
from shoal.training.loss import SUMS, LossSums, LossWeights
from shoal.training.model import Policy
from shoal.training.objectives import OBJECTIVES, objective_of
from shoal.training.optimizer import Optimizer
from shoal.training.rollouts import RolloutGroup, Sample
from shoal.training.update import accumulate, behaviour_logprobs, behaviour_versions, mismatch, plan_logprobs, train


def groups() -> list[RolloutGroup]:
    rows = rows_of(step=5)
    samples = [
        Sample(
            name=str(number), tokens=np.array([*row.prompt_tokens, *row.completion_tokens]),
            prompt_length=len(row.prompt_tokens), mask=np.array(row.completion_mask),
            logprobs=np.array(row.completion_logprobs, dtype=np.float32), temperature=row.temperature, policy_version=4,
            task_reward=reward.task_reward or 0.0, length_penalty=reward.length_penalty or 0.0, reward=reward.reward or 0.0,
        )
        for number, (row, reward) in enumerate(zip(rows, rewards_of(rows), strict=True))
    ]  # fmt: skip
    return [RolloutGroup(samples[start : start + 4]) for start in range(0, 16, 4)]


NAMES = ("code", "sums", "proofs", "letters")


def mixed() -> list[RolloutGroup]:
    """The same, one group of each source."""
    return [
        RolloutGroup([replace(sample, task_type=name) for sample in group.samples])
        for name, group in zip(NAMES, groups(), strict=True)
    ]


def plan(seed: int = 0, step: int = 5, rank: int = 0, world: int = 1, **changes: Any) -> StepPlan:
    return plan_step(groups(), recipe(**changes), seed=seed, step=step, rank=rank, world=world)


def targets(found: StepPlan) -> list[int]:
    return [
        token
        for batch in found.optimizer_batches
        for packed in batch.micro_batches
        for token in packed.targets.tolist()
    ]


def test_every_completion_token_is_in_one_optimizer_batch() -> None:
    found = plan()
    assert len(found.optimizer_batches) == 2
    wanted = sorted(token for row in rows_of(step=5) for token in row.completion_tokens)
    assert sorted(targets(found)) == wanted
    assert sum(batch.token_count for batch in found.optimizer_batches) == len(wanted)
    assert 0.5 < found.packing_density <= 1.0


def test_the_order_is_drawn_from_seed_and_step_and_nothing_else() -> None:
    np.random.seed(1)
    first = targets(plan())
    np.random.seed(2)
    assert targets(plan()) == first
    assert targets(plan(step=6)) != first != targets(plan(seed=1))


def test_positions_start_again_with_each_sample() -> None:
    for batch in plan().optimizer_batches:
        for packed in batch.micro_batches:
            starts = np.flatnonzero(packed.positions == 0)
            for start, end in zip(starts, [*starts[1:], len(packed.positions)], strict=True):
                assert packed.positions[start:end].tolist() == list(range(end - start))
            assert list(packed.segments.bounds) == [*starts, len(packed.positions)]


@pytest.mark.parametrize(
    ("objective", "pack_length"),
    [("two_sided_grpo", 400), ("two_sided_grpo", 40), ("dr_grpo", 64), ("decoupled_ppo", 64)],
)
def test_gradient_and_loss_do_not_depend_on_the_packing(objective: str, pack_length: int) -> None:
    weights = LossWeights(epsilon=0.2, delta=4.0, kl=0.5, entropy=0.01)
    outcomes = []
    for length in (pack_length, 128):
        policy = Policy(make_model().double())
        found = plan(optimizer_steps=1, pack_length=length, algorithm={objective: {}})
        old, reference, behaviour = (
            plan_logprobs(Policy(make_model(seed=seed).double()), found, lambda: None)[0] for seed in (0, 1, 2)
        )
        policy.get_parameter("model.lm_head.weight").data *= 1.1  # so that ratios differ from 1
        batch = found.optimizer_batches[0]
        sums, _ = accumulate(policy, batch, old, reference, behaviour, OBJECTIVES[objective], weights, lambda: None)
        gradient = torch.cat([parameter.grad.flatten() for parameter in policy.parameters()])
        outcomes.append((sums, gradient))
    torch.testing.assert_close(outcomes[0][0], outcomes[1][0], rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(outcomes[0][1], outcomes[1][1], rtol=1e-4, atol=1e-7)


def packs(found: StepPlan) -> list[MicroBatch]:
    return [packed for batch in found.optimizer_batches for packed in batch.micro_batches]


@pytest.mark.parametrize("world", [2, 3, 4])
def test_ranks_share_the_packs_of_one_process_and_meet_equally_often(world: int) -> None:
    alone = plan(pack_length=48)
    shares = [plan(pack_length=48, rank=rank, world=world) for rank in range(world)]
    for index, batch in enumerate(alone.optimizer_batches):
        parts = [share.optimizer_batches[index] for share in shares]
        assert len({len(part.micro_batches) for part in parts}) == 1
        assert {(part.token_count, part.divisor) for part in parts} == {(batch.token_count, batch.divisor)}
        assert {tuple(part.versions) for part in parts} == {tuple(parts[0].versions)}
        dealt = sorted(packed.tokens.tolist() for part in parts for packed in part.micro_batches if len(packed.targets))
        assert dealt == sorted(packed.tokens.tolist() for packed in batch.micro_batches)
        assert sum(len(part.micro_batches) for part in parts) - len(dealt) < world  # fillers in the last round only
    assert {share.packing_density for share in shares} == {alone.packing_density}


def test_a_share_for_each_rank_adds_up_to_the_gradient_of_one_process() -> None:
    weights = LossWeights(epsilon=0.2, delta=4.0, kl=0.5, entropy=0.01)
    found, fillers = [], 0
    for world in (1, 3):
        policy, sums = Policy(make_model()), torch.zeros(len(SUMS), dtype=torch.float64)
        for rank in range(world):
            share = plan(optimizer_steps=1, pack_length=48, rank=rank, world=world)
            old, reference = (plan_logprobs(Policy(make_model(seed)), share, lambda: None)[0] for seed in (1, 2))
            batch = share.optimizer_batches[0]
            fillers += sum(not len(packed.targets) for packed in batch.micro_batches)
            sums += accumulate(policy, batch, old, reference, None, OBJECTIVES["dapo"], weights, lambda: None)[0]
        found.append((sums, torch.cat([parameter.grad.flatten() for parameter in policy.parameters()])))
    assert fillers
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-6, atol=0)
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-5, atol=1e-7)


def test_behaviour_log_probabilities_are_of_the_version_that_sampled_each_row() -> None:
    mixed = [
        RolloutGroup([replace(sample, policy_version=3 + index % 2) for sample in group.samples])
        for index, group in enumerate(groups())
    ]
    found = plan_step(mixed, recipe(pack_length=64), seed=0, step=5)
    assert behaviour_versions(found) == [3, 4]
    policies = {version: Policy(make_model(seed=version)) for version in (3, 4)}
    asked: list[int] = []

    def version_policy(version: int) -> Policy:
        asked.append(version)
        return policies[version]

    behaviour = behaviour_logprobs(version_policy, found, lambda: None)
    assert asked == [3, 4]
    by_version = {version: plan_logprobs(policy, found, lambda: None) for version, policy in policies.items()}
    for index, batch in enumerate(found.optimizer_batches):
        for number, packed in enumerate(batch.micro_batches):
            for version in (3, 4):
                sampled = packed.policy_versions == version
                assert torch.equal(behaviour[index][number][sampled], by_version[version][index][number][sampled])
    assert len({version for packed in packs(found) for version in packed.policy_versions.tolist()}) == 2


def test_staleness_and_behaviour_of_a_row_of_several_versions_are_those_of_each_token() -> None:
    mixed = [
        RolloutGroup([replace(sample, policy_version=3, segments=((3, 0), (4, 2))) for sample in group.samples])
        for group in groups()
    ]
    found = plan_step(mixed, recipe(pack_length=64), seed=0, step=5)
    assert behaviour_versions(found) == [3, 4]
    assert found.digest != plan_step(groups(), recipe(pack_length=64), seed=0, step=5).digest
    policies = {version: Policy(make_model(seed=version)) for version in (3, 4)}
    behaviour = behaviour_logprobs(policies.__getitem__, found, lambda: None)
    by_version = {version: plan_logprobs(policy, found, lambda: None) for version, policy in policies.items()}
    for index, batch in enumerate(found.optimizer_batches):
        for number, packed in enumerate(batch.micro_batches):
            for version in (3, 4):
                sampled = packed.policy_versions == version
                assert sampled.any()
                assert torch.equal(behaviour[index][number][sampled], by_version[version][index][number][sampled])
    old = sum(int((packed.policy_versions == 3).sum()) for packed in packs(found))
    assert old == 2 * sum(len(group.samples) for group in mixed)
    sample = mixed[0].samples[0]
    length = sample.completion_length
    assert sample.token_versions.tolist() == [3, 3, *[4] * (length - 2)]


def test_what_workers_claim_about_log_probabilities_never_enters_the_loss() -> None:
    losses = []
    for lie in (0.0, 5.0):
        lying = [
            RolloutGroup([replace(sample, logprobs=sample.logprobs - np.float32(lie)) for sample in group.samples])
            for group in groups()
        ]
        policy, chosen = Policy(make_model()), recipe(algorithm={"decoupled_ppo": {"importance_cap": 2.0}})
        found = plan_step(lying, chosen, seed=0, step=5)
        old, behaviour = (plan_logprobs(Policy(make_model(seed)), found, lambda: None) for seed in (0, 2))
        updates = train(
            policy, Optimizer(policy.parameters(), chosen), found, old[1:], old, chosen, lambda: None, behaviour
        )
        losses.append((updates.loss, updates.norms, updates.importance_capped))
    assert losses[0] == losses[1]
    assert losses[0][2] > 0


@pytest.mark.parametrize("optimizer_steps", [1, 2])
def test_the_first_optimizer_step_finds_the_old_log_probabilities_on_its_way(optimizer_steps: int) -> None:
    chosen = recipe(
        pack_length=48, optimizer_steps=optimizer_steps, algorithm={"decoupled_ppo": {"importance_cap": 2.0}}
    )
    found = plan_step(groups(), chosen, seed=0, step=5)
    behaviour = plan_logprobs(Policy(make_model(2)), found, lambda: None)
    before = plan_logprobs(Policy(make_model()), found, lambda: None)
    learnt = []
    for given in (True, False):
        policy = Policy(make_model())
        optimizer, sums = Optimizer(policy.parameters(), chosen), torch.zeros(len(SUMS), dtype=torch.float64)
        if given:
            for batch, *fixed in zip(found.optimizer_batches, before, before, behaviour, strict=True):
                sums += accumulate(policy, batch, *fixed, objective_of(chosen), LossWeights.of(chosen), lambda: None)[0]
                optimizer.step()
            losses = LossSums(*(sums / found.token_count).tolist())
            learnt.append((losses.loss, losses.kl, losses.capped, *policy.parameters()))
        else:
            updates = train(policy, optimizer, found, before[1:], before, chosen, lambda: None, behaviour)
            learnt.append((updates.loss, updates.kl, updates.importance_capped, *policy.parameters()))
            for mine, told in zip(updates.old, before, strict=True):
                torch.testing.assert_close(mine, told, rtol=0, atol=1e-6)
    assert learnt[1][:3] == pytest.approx(learnt[0][:3], rel=1e-5)
    torch.testing.assert_close(learnt[1][3:], learnt[0][3:], rtol=0, atol=1e-6)


@pytest.mark.parametrize("tile_elements", [1 << 24, 64 * 7], ids=["one tile", "tiles of seven"])
@pytest.mark.parametrize(
    "correction",
    [
        {"truncate": {"cap": 1.2}},
        {"mask": {"cap": 1.2}},
        {"icepop": {"low": 0.8, "high": 1.2}, "sequence": {"low": 0.9, "high": 1.1}},
        {"sequence": {"low": 0.9, "high": 1.1}, "probabilities": "Recomputed"},
    ],
    ids=lambda given: "+".join(given),
)
def test_a_correction_by_old_log_probabilities_found_on_the_way_is_that_of_a_pass_before(
    correction: dict[str, Any], tile_elements: int
) -> None:
    """Float64: loss, metrics, old log-probabilities and every gradient within 1e-12, with a whole forward pass less."""
    chosen = recipe(pack_length=48, optimizer_steps=1, mismatch_correction=correction, max_grad_norm=1e6)
    near = [
        RolloutGroup([near_claims(sample, 0.5 if number == 0 else 0.05) for number, sample in enumerate(group.samples)])
        for group in groups()
    ]
    found = plan_step(near, chosen, seed=0, step=5)
    behaviour = plan_logprobs(Policy(make_model(2).double()), found, lambda: None)
    before = plan_logprobs(Policy(make_model().double()), found, lambda: None)
    [batch] = found.optimizer_batches
    outcomes = []
    for old in (before[0], None):
        policy = Policy(make_model().double())
        passes: list[int] = []
        policy.tile_elements = tile_elements
        policy.model.get_decoder().register_forward_hook(lambda *_, passes=passes: passes.append(1))
        sums, olds = accumulate(
            policy, batch, old, before[0], behaviour[0], objective_of(chosen), LossWeights.of(chosen), lambda: None,
            chosen.mismatch_correction,
        )  # fmt: skip
        assert len(passes) == len(batch.micro_batches)
        outcomes.append([sums, *olds, *(parameter.grad for parameter in policy.parameters())])
    touched = dict(zip(SUMS, outcomes[0][0].tolist(), strict=True))
    assert touched["truncated"] + touched["masked"] + touched["completions_masked"] > 0
    torch.testing.assert_close(outcomes[1], outcomes[0], rtol=1e-12, atol=1e-12)


def near_claims(sample: Sample, noise: float) -> Sample:
    """The sample with what an engine might have reported: the policy's own log-probabilities, and noise."""
    logprobs = Policy(make_model())(micro_batch([(sample, 1.0)]))[1].detach().numpy()
    wrong = np.random.default_rng(len(logprobs)).normal(scale=noise, size=len(logprobs))
    return replace(sample, logprobs=(logprobs + wrong).astype(np.float32))


def test_without_a_kl_penalty_no_reference_is_asked_and_none_is_reported() -> None:
    chosen = recipe(kl_coefficient=0.0)
    found = plan_step(groups(), chosen, seed=0, step=5)
    old = plan_logprobs(Policy(make_model()), found, lambda: None)
    learnt = []
    for reference in (old, None):
        policy = Policy(make_model())
        updates = train(policy, Optimizer(policy.parameters(), chosen), found, old[1:], reference, chosen, lambda: None)
        learnt.append((updates.loss, *updates.norms, *(float(one.detach().sum()) for one in policy.parameters())))
    assert updates.kl is None
    assert learnt[0] == learnt[1]
    penalised = recipe(kl_coefficient=0.01)
    policy = Policy(make_model())
    with pytest.raises(ValueError, match=r"the KL coefficient is 0\.01, so the loss needs the reference's"):
        train(policy, Optimizer(policy.parameters(), penalised), found, old[1:], None, penalised, lambda: None)


def test_the_objective_says_how_rewards_become_advantages() -> None:
    group = RolloutGroup(
        [replace(sample, reward=reward) for sample, reward in zip(groups()[0].samples, (1, 0, 0, 0), strict=True)]
    )
    found = {
        name: [advantage for _, advantage in score(group, recipe(algorithm={name: {}}))]
        for name in ("two_sided_grpo", "dr_grpo", "rloo")
    }
    assert found["two_sided_grpo"] == pytest.approx([3**0.5, *[-(3**-0.5)] * 3])
    assert found["dr_grpo"] == pytest.approx([0.75, -0.25, -0.25, -0.25])
    assert found["rloo"] == pytest.approx([1, -1 / 3, -1 / 3, -1 / 3])  # less the mean of the other three


def test_overlong_completions_lose_reward_before_advantages_are_taken() -> None:
    short, long = replace(groups()[0].samples[0], reward=1.0), replace(groups()[0].samples[1], reward=1.0)
    assert short.completion_length != long.completion_length
    limit = max(short.completion_length, long.completion_length)
    shaped = recipe(overlong_shaping=OverlongShaping(buffer_tokens=1, penalty=0.5), algorithm={"dr_grpo": {}})
    found = {id(sample): advantage for sample, advantage in score(RolloutGroup([short, long]), shaped, limit)}
    longer = max((short, long), key=lambda sample: sample.completion_length)
    assert found[id(longer)] == pytest.approx(-0.25)
    assert sum(found.values()) == pytest.approx(0.0)


def test_dr_grpo_divides_by_rows_and_the_longest_completion_allowed() -> None:
    found = plan_step(groups(), recipe(algorithm={"dr_grpo": {}}), seed=0, step=5, completion_limit=24)
    assert [batch.divisor for batch in found.optimizer_batches] == [8 * 24, 8 * 24]
    assert [batch.divisor for batch in plan().optimizer_batches] == [
        batch.token_count for batch in plan().optimizer_batches
    ]


def test_a_pack_of_tool_output_alone_is_left_out() -> None:
    silent = [replace(sample, mask=np.zeros_like(sample.mask)) for sample in groups()[0].samples]
    found = plan_step([RolloutGroup(silent), groups()[1]], recipe(optimizer_steps=1, pack_length=40), seed=0, step=5)
    assert all(len(packed.targets) for packed in found.optimizer_batches[0].micro_batches)
    assert found.optimizer_batches[0].token_count == sum(sample.completion_length for sample in groups()[1].samples)


def test_fewer_samples_than_optimizer_steps_is_refused() -> None:
    with pytest.raises(ValueError, match="step 5 has 16 samples for 17 optimizer steps; lower optimizerSteps"):
        plan(optimizer_steps=17)


def test_a_sample_longer_than_a_pack_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"sample \d+ has \d+ tokens; allowed: 1 to 16, the length of a pack"):
        plan(pack_length=16)


def test_the_mismatch_is_the_mean_gap_between_the_workers_and_our_log_probabilities() -> None:
    found = plan()
    same = [[packed.worker_logprobs for packed in batch.micro_batches] for batch in found.optimizer_batches]
    assert mismatch(found, same) == 0.0
    lower = [[logprobs - 0.25 for logprobs in batch] for batch in same]
    assert mismatch(found, lower) == pytest.approx(0.25, rel=1e-6)
