"""Our losses, gradients and advantages are those of TRL 1.16.0, on values that its own code made (golden/README.md).

Where TRL normalises otherwise than we do the test says so and accounts for it: what is compared is never weakened.
"""

import json
from pathlib import Path
from typing import Any

import golden_model
import numpy as np
import pytest
import torch
from golden_model import GROUP_SIZE, ROWS

from shoal.contracts.corrections import MismatchCorrection
from shoal.training.advantages import group_advantages
from shoal.training.batches import MicroBatch, micro_batch
from shoal.training.completions import Packed
from shoal.training.corrections import Correcting
from shoal.training.loss import SUMS, LossInputs, LossWeights, MicroLoss, Objective, token_losses
from shoal.training.model import Policy
from shoal.training.objectives import OBJECTIVES
from shoal.training.rollouts import Sample

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent / "golden" / "trl.json").read_text())
GIVEN = GOLDEN["given"]
LENGTHS = [len(row) for row in GIVEN["completions"]]
TOKENS = sum(LENGTHS)
OBJECTIVE_OF = {
    "one_sided": "one_sided_grpo",
    "one_sided_sequence_mean": "one_sided_grpo",
    "two_sided": "two_sided_grpo",
    "two_sided_global_count": "two_sided_grpo",
    "dapo": "dapo",
    "dr_grpo": "dr_grpo",
    "kl": "one_sided_grpo",
    "entropy": "one_sided_grpo",
    "whole_recipe": "two_sided_grpo",
    "importance": "one_sided_grpo",
    "importance_mask": "one_sided_grpo",
    "gspo": "gspo",
    "cispo": "cispo",
}
TOLERANCE = 1e-5


def objective_of(case: str) -> tuple[Objective, LossWeights]:
    settings = GOLDEN["cases"][case]["settings"]
    if case == "cispo":  # TRL's epsilon_high is the bound itself, and there is none from below
        return OBJECTIVES["cispo"], LossWeights(1.0, None, 0.0, 0.0, epsilon_high=settings["epsilon_high"] - 1)
    return OBJECTIVES[OBJECTIVE_OF[case]], LossWeights(
        epsilon=GOLDEN["epsilon"],
        delta=settings.get("delta", 1e6),
        kl=settings.get("beta", 0.0),
        entropy=settings.get("entropy_coef", 0.0),
        epsilon_high=settings.get("epsilon_high"),
        importance_cap=GOLDEN["importance_cap"] if settings.get("importance") == "token_truncate" else None,
    )


def correction(case: str, sampler: torch.Tensor, completions: Packed) -> Correcting | None:
    """Ours for TRL's `token_mask`; its `token_truncate` is compared with the importance weight."""
    if GOLDEN["cases"][case]["settings"].get("importance") != "token_mask":
        return None
    return Correcting(MismatchCorrection(mask={"cap": GOLDEN["importance_cap"]}), sampler, completions)


def divisors(case: str) -> torch.Tensor:
    """What each token's loss is divided by in TRL: ours is one number but for the means over rows of each row's mean."""
    by_row = {
        "one_sided_sequence_mean": [ROWS * length for length in LENGTHS],
        "gspo": [ROWS * length for length in LENGTHS],
        "dr_grpo": [ROWS * GOLDEN["max_completion_length"]] * ROWS,
    }.get(case, [TOKENS] * ROWS)
    return torch.tensor([float(by) for by, length in zip(by_row, LENGTHS, strict=True) for _ in range(length)])


def flat(rows: list[list[float]]) -> torch.Tensor:
    return torch.tensor([value for row in rows for value in row], dtype=torch.float32)


def spread_advantages() -> torch.Tensor:
    return flat([[value] * length for value, length in zip(GIVEN["advantages"], LENGTHS, strict=True)])


def packed(rows: list[int]) -> MicroBatch:
    """Rows of the golden batch laid end to end, as the trainer trains on them."""
    return micro_batch([(sample(row), GIVEN["advantages"][row]) for row in rows])


def sample(row: int) -> Sample:
    prompt, completion = GIVEN["prompts"][row], GIVEN["completions"][row]
    return Sample(
        name=f"row {row}",
        tokens=np.array([*prompt, *completion]),
        prompt_length=len(prompt),
        mask=np.ones(len(completion), dtype=np.bool_),
        logprobs=np.zeros(len(completion), dtype=np.float32),
        temperature=GOLDEN["temperature"],
        policy_version=0,
        task_reward=0.0,
        length_penalty=0.0,
        reward=0.0,
    )


@pytest.fixture(scope="module")
def policy() -> Policy:
    return Policy(golden_model.golden_model())


def test_the_model_and_the_batch_are_those_of_the_golden_values(policy: Policy) -> None:
    assert sum(parameter.numel() for parameter in policy.parameters()) == GOLDEN["parameters"]
    assert GIVEN["prompts"] == golden_model.prompts()
    assert GIVEN["completions"] == golden_model.completions()
    assert GOLDEN["made_by"]["trl"] == "1.16.0"


def test_packed_logprobs_and_entropies_are_those_of_trls_padded_batch(policy: Policy) -> None:
    _, logprobs, entropies = policy(packed(list(range(ROWS))))
    torch.testing.assert_close(logprobs, flat(GOLDEN["logprobs"]), rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(entropies, flat(GOLDEN["entropies"]), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("case", GOLDEN["cases"])
def test_loss_and_its_gradient_to_each_token_are_trls(case: str) -> None:
    wanted = GOLDEN["cases"][case]
    objective, weights = objective_of(case)
    logprobs = flat(GOLDEN["logprobs"]).requires_grad_()
    whose = packed(list(range(ROWS))).completions
    correcting = correction(case, flat(GIVEN["behaviour"]), whose)
    inputs = LossInputs(
        logprobs=logprobs,
        entropy=flat(GOLDEN["entropies"]),
        old_logprobs=flat(GIVEN["old"]),
        reference_logprobs=flat(GIVEN["reference"]),
        advantages=spread_advantages(),
        behaviour_logprobs=flat(GIVEN["behaviour"]),
        completion_ratios=torch.exp(whose.spread_means(logprobs.detach() - flat(GIVEN["old"]))),
        correction=correcting and correcting.all(flat(GIVEN["old"])),
    )
    losses, sums = token_losses(inputs, objective, weights)
    loss = (losses / divisors(case)).sum()
    loss.backward()
    assert float(loss.detach()) == pytest.approx(wanted["loss"], rel=TOLERANCE)
    torch.testing.assert_close(logprobs.grad, flat(wanted["gradient_of_logprobs"]), rtol=TOLERANCE, atol=1e-7)
    measured = dict(zip(SUMS, (sums / TOKENS).tolist(), strict=True))
    for name in ("clip_low", "clip_high", "entropy", "kl"):
        if wanted[name] is not None and not (
            objective.whole_completions and name.startswith("clip")
        ):  # shares of rows there
            assert measured[name] == pytest.approx(wanted[name], rel=TOLERANCE)


@pytest.mark.parametrize("packs", [[list(range(ROWS))], [[7, 0, 3], [1, 2, 4, 5, 6]]], ids=["one pack", "two packs"])
@pytest.mark.parametrize("case", [case for case in GOLDEN["cases"] if case != "one_sided_sequence_mean"])
def test_gradients_of_the_model_are_trls_however_rows_are_packed(
    policy: Policy, case: str, packs: list[list[int]]
) -> None:
    wanted = GOLDEN["cases"][case]
    objective, weights = objective_of(case)
    policy.zero_grad()
    total = 0.0
    for rows in packs:

        def of(name: str, rows: list[int] = rows) -> torch.Tensor:
            return flat([GIVEN[name][row] for row in rows])

        batch = packed(rows)
        micro = MicroLoss(
            old=of("old"),
            reference=of("reference"),
            advantages=batch.advantages,
            behaviour=of("behaviour"),
            objective=objective,
            weights=weights,
            divisor=float(ROWS if objective.divisor == "completions" else divisors(case)[0]),
            completions=batch.completions,
            correction=correction(case, of("behaviour"), batch.completions),
        )
        loss, _, _ = policy(batch, micro, micro.look if objective.whole_completions else None)
        loss.backward()
        total += float(loss.detach())
    gradients = {name: parameter.grad for name, parameter in policy.model.named_parameters()}
    norm = float(torch.sqrt(sum(gradient.double().square().sum() for gradient in gradients.values())))
    assert total == pytest.approx(wanted["loss"], rel=TOLERANCE)
    assert norm == pytest.approx(wanted["gradient_norm"], rel=TOLERANCE)
    for name, shown in wanted["gradients"].items():
        size = float(gradients[name].double().square().sum())
        assert size == pytest.approx(shown["sum_of_squares"], rel=2 * TOLERANCE), name
        first = torch.tensor(shown["first"])
        torch.testing.assert_close(gradients[name].flatten()[: len(first)], first, rtol=0, atol=TOLERANCE * size**0.5)


def test_every_objective_that_trl_has_too_has_a_case() -> None:
    assert set(OBJECTIVE_OF) == set(GOLDEN["cases"])
    assert set(OBJECTIVES) - set(OBJECTIVE_OF.values()) == {
        "rloo",
        "decoupled_ppo",
        "dppo",
    }  # RLOO's advantages are compared below


def test_advantages_are_trls_but_for_the_estimator_of_the_deviation() -> None:
    """TRL divides by the sample's deviation plus 1e-4, we by the population's; the differences to the mean are the same."""
    groups = np.array(GOLDEN["advantages"]["rewards"]).reshape(-1, GROUP_SIZE)
    wanted = np.array(GOLDEN["advantages"]["group"]).reshape(-1, GROUP_SIZE)
    for rewards, expected in zip(groups, wanted, strict=True):
        ours = group_advantages(rewards, normalize=True)
        np.testing.assert_allclose(ours * rewards.std() / (rewards.std(ddof=1) + 1e-4), expected, rtol=TOLERANCE)


@pytest.mark.parametrize(("name", "leave_one_out"), [("none", False), ("rloo", True)])
def test_advantages_that_are_not_divided_are_trls(name: str, leave_one_out: bool) -> None:
    groups = np.array(GOLDEN["advantages"]["rewards"]).reshape(-1, GROUP_SIZE)
    ours = [group_advantages(rewards, normalize=False, leave_one_out=leave_one_out) for rewards in groups]
    np.testing.assert_allclose(np.concatenate(ours), GOLDEN["advantages"][name], rtol=TOLERANCE)
