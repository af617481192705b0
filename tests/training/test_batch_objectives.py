"""The loss of optimizer batches: every objective and correction is its paper's formula, in value and gradient, through the tiles of the head."""

from math import exp

import objective_gaps
import pytest
import reference_objectives as reference
import torch
from golden_model import golden_model
from objective_gaps import CASES, NUMBERS
from test_golden_trl import packed
from test_objectives import inputs
from torch import Tensor

from shoal.training.completions import Packed
from shoal.training.corrections import corrected_weights
from shoal.training.loss import LossWeights, MicroLoss
from shoal.training.model import Policy
from shoal.training.objectives import OBJECTIVES, sequence_surrogate


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient_of_a_batch_are_those_of_the_formula(name: str) -> None:
    gap = objective_gaps.measure(CASES[name])
    assert gap.loss < 1e-12
    assert gap.gradient < 1e-7  # what finite differences leave


@pytest.mark.parametrize(
    "name", ["truncated_importance_sampling", "masked_importance_sampling", "icepop", "sequence_mask"]
)
def test_what_a_correction_cut_is_counted(name: str) -> None:
    case = CASES[name]
    gap = objective_gaps.measure(case)
    cut = [token for each in gap.completions for token in each if outside(token, case.rule)]
    dropped = [
        each for each in gap.completions if case.rule.sequence and not any(reference.correction(each, case.rule))
    ]
    found = (gap.sums["truncated"], gap.sums["masked"], gap.sums["completions_masked"])
    wanted = (len(cut) * (case.rule.truncate is not None), len(cut) * (case.rule.truncate is None), len(dropped))
    assert found == pytest.approx(wanted)
    assert any(wanted)


def outside(token: reference.Token, rule: reference.Rule) -> bool:
    low, high = rule.icepop or (0.0, rule.truncate or rule.mask or float("inf"))
    return not low <= exp(token.old - token.engine) <= high


class Calls:
    """Counts the forward passes of a model's decoder."""

    def __init__(self, policy: Policy) -> None:
        self.count = 0
        policy.model.get_decoder().register_forward_hook(self)

    def __call__(self, *_: object) -> None:
        self.count += 1


@pytest.mark.parametrize("rows_a_tile", [1000, 7], ids=["one tile", "many tiles"])
def test_a_completions_ratio_needs_no_second_pass_of_the_decoder(rows_a_tile: int) -> None:
    policy, batch = Policy(golden_model()), packed([0, 5, 3])
    policy.tile_elements = rows_a_tile * policy.vocabulary
    calls = Calls(policy)
    old = policy(batch)[1] - 0.1
    owners, weights = batch.completions, LossWeights(0.5, None, 0.0, 0.0)
    calls.count = 0
    micro = MicroLoss(
        old=old,
        reference=old,
        advantages=batch.advantages,
        behaviour=None,
        objective=OBJECTIVES["gspo"],
        weights=weights,
        divisor=3.0,
        completions=owners,
    )
    loss, logprobs, _ = policy(batch, micro, micro.look)
    loss.backward()
    assert calls.count == 1
    head = policy.model.get_output_embeddings().weight
    found, head.grad = head.grad.clone(), None
    # The same from the definition, differentiated by torch through whole logits.
    hidden = policy.model.get_decoder()(
        input_ids=batch.tokens[None],
        position_ids=batch.positions[None],
        attention_mask=None,
        use_cache=False,
        segments=batch.segments,
    ).last_hidden_state[0][batch.predicted_from]
    scores = torch.log_softmax(hidden @ head.T / batch.temperatures[:, None], dim=1)
    chosen = scores.gather(1, batch.targets[:, None])[:, 0]
    torch.testing.assert_close(chosen, logprobs, rtol=0, atol=1e-5)
    losses = []
    for number in range(3):
        own = owners.owners == number
        ratio = torch.exp((chosen[own] - old[own]).mean())
        losses.append(
            -torch.minimum(ratio * batch.advantages[own][0], ratio.clamp(0.5, 1.5) * batch.advantages[own][0])
        )
    wanted = torch.stack(losses).mean()
    wanted.backward()
    assert float(loss.detach()) == pytest.approx(float(wanted.detach()), rel=1e-5)
    torch.testing.assert_close(found, head.grad, rtol=1e-4, atol=1e-6)


def test_a_ratio_of_completions_that_nobody_looked_at_is_refused() -> None:
    with pytest.raises(ValueError, match="the ratio of whole completions is missing"):
        sequence_surrogate(inputs(), NUMBERS)


def test_a_correction_gives_the_engines_claim_no_gradient_and_a_bound() -> None:
    case, tokens = CASES["truncated_importance_sampling"], inputs()
    assert case.correction is not None
    claims: Tensor = torch.full_like(tokens.old_logprobs, -60.0).requires_grad_()
    one = Packed(torch.zeros(400, dtype=torch.int64), 1)
    found = corrected_weights(tokens.old_logprobs, claims, one, case.correction)
    assert not found.weights.requires_grad
    assert found.weights.unique().tolist() == [1.5]
