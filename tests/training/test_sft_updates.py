"""Supervised fine-tuning computes transformers' own loss; neither packing nor the order of work changes it; every row is learnt once an epoch."""

import json
from itertools import chain
from pathlib import Path
from typing import Any

import golden_model
import pytest
import torch
from sft_rows import sample, sft_rows, sft_settings
from tiny_run import make_model
from torch.nn.functional import cross_entropy

from shoal.contracts.sft_data import SftRow
from shoal.training.model import Policy
from shoal.training.optimizer import Optimizer, cosine_rate
from shoal.training.sft.method import CompletionLoss, accumulate, batch_of, held_out_loss, learn
from shoal.training.sft.order import BadSchedule, SftSchedule

SAMPLES = [sample(row) for row in sft_rows(8)]
TOKENS = sum(one.completion_length for one in SAMPLES)


def transformers_loss(model: Any, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """As its own Trainer has it: padded, prompt and padding labelled -100, divided by `num_items_in_batch`.

    It computes the loss in float32 whatever the model is in: for float64 the same from its logits.
    """
    longest = max(len(one.tokens) for one in SAMPLES)
    tokens, labels, mask = (torch.full((len(SAMPLES), longest), value) for value in (0, -100, 0))
    for row, one in enumerate(SAMPLES):
        length = len(one.tokens)
        tokens[row, :length] = labels[row, :length] = torch.from_numpy(one.tokens)
        labels[row, : one.prompt_length] = -100
        mask[row, :length] = 1
    found = model(input_ids=tokens, attention_mask=mask, labels=labels, num_items_in_batch=TOKENS)
    if dtype == torch.float32:
        return found.loss
    summed = cross_entropy(found.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")
    assert found.loss.item() == pytest.approx(summed.item() / TOKENS, rel=1e-6)
    return summed / TOKENS


def gradients(model: Any) -> dict[str, torch.Tensor]:
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 2e-5)])
@pytest.mark.parametrize("capacity", [40, 64, 512])
def test_loss_and_gradients_are_those_of_transformers_on_the_padded_batch(
    dtype: torch.dtype, tolerance: float, capacity: int
) -> None:
    model = make_model().to(dtype)
    wanted = transformers_loss(model, dtype)
    wanted.backward()
    theirs = gradients(model)
    policy = Policy(make_model().to(dtype))
    batch = batch_of(SAMPLES, capacity)
    assert (batch.packs == 1) == (capacity == 512)
    sums = accumulate(policy, batch.packed, lambda: None)
    assert float(sums[0]) / TOKENS == pytest.approx(wanted.item(), rel=max(tolerance, 1e-6))
    for name, gradient in gradients(policy.model).items():
        assert (gradient - theirs[name]).norm() <= tolerance * theirs[name].norm() + tolerance * 1e-2, name


def test_shares_of_several_ranks_add_up_to_the_whole() -> None:
    def gradient(rank: int, world: int) -> dict[str, torch.Tensor]:
        policy = Policy(make_model().double())
        accumulate(policy, batch_of(SAMPLES, 40, rank, world).packed, lambda: None)
        return gradients(policy.model)

    whole = gradient(0, 1)
    parts = [gradient(rank, 3) for rank in range(3)]
    for name, one in whole.items():
        torch.testing.assert_close(sum(part[name] for part in parts), one, rtol=1e-10, atol=1e-12)


def test_prompts_are_not_learnt() -> None:
    changed = [sample(SftRow(row.row_id, [2, *row.prompt_tokens[1:]], row.completion_tokens)) for row in sft_rows(8)]
    assert sum(one.completion_length for one in changed) == batch_of(changed, 64).packed.token_count == TOKENS
    targets = torch.cat([micro.targets for micro in batch_of(SAMPLES, 64).packed.micro_batches])
    completions = torch.cat([torch.from_numpy(one.tokens[one.prompt_length :]) for one in SAMPLES])
    assert sorted(targets.tolist()) == sorted(completions.tolist())


def test_what_is_reported_is_the_mean_before_each_update_and_the_held_out_loss_the_one_after() -> None:
    policy = Policy(make_model())
    batch = batch_of(SAMPLES, 64)
    before = held_out_loss(policy, batch, lambda: None)
    optimizer = Optimizer(policy.parameters(), sft_settings(warmup_steps=0))
    learnt = learn(policy, optimizer, [batch, batch], 64, lambda: None)
    assert learnt.completion_tokens == 2 * TOKENS
    assert learnt.skipped == 0
    assert 0 < learnt.packing_density <= 1
    after = held_out_loss(policy, batch, lambda: None)
    assert after < learnt.loss < before
    assert learnt.entropy > 0


def test_an_update_without_completion_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the divisor of the update is 0; it has no completion tokens to train on"):
        CompletionLoss(0, torch.device("cpu"))


def test_each_epoch_has_every_row_once_in_an_order_of_its_own() -> None:
    schedule = SftSchedule(sft_settings(epochs=2, batch_rows=4), rows=10, steps=3, seed=5)
    assert (schedule.per_epoch, schedule.updates) == (3, 6)
    chosen = [schedule.rows_of(update).tolist() for update in range(6)]
    first, second = list(chain(*chosen[:3])), list(chain(*chosen[3:]))
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second
    assert [len(part) for part in chosen] == [4, 4, 2, 4, 4, 2]
    assert chosen[0] != SftSchedule(sft_settings(), 10, 3, seed=6).rows_of(0).tolist()


def test_steps_share_out_all_updates_and_none_is_made_twice() -> None:
    schedule = SftSchedule(sft_settings(epochs=5, batch_rows=3), rows=10, steps=6, seed=0)
    assert [update for step in range(6) for update in schedule.of_step(step)] == list(range(20))
    assert {len(schedule.of_step(step)) for step in range(6)} == {3, 4}


def test_updates_may_be_bounded() -> None:
    assert SftSchedule(sft_settings(epochs=5, batch_rows=3, max_updates=7), rows=10, steps=6, seed=0).updates == 7


def test_more_steps_than_updates_are_refused() -> None:
    with pytest.raises(
        BadSchedule,
        match=r"10 rows in updates of 4 make 6 updates in 2 epochs, and each of the 7 steps needs one; lower spec.steps or",
    ):
        SftSchedule(sft_settings(), rows=10, steps=7, seed=0)


def test_the_learning_rate_warms_up_and_then_follows_half_a_cosine_to_nothing() -> None:
    given = sft_settings(learning_rate=1.0, warmup_steps=2)
    rates = [cosine_rate(given, updates, 6) for updates in range(6)]
    assert rates == pytest.approx([0.5, 1.0, 1.0, 0.5 + 0.25 * 2**0.5, 0.5, 0.5 - 0.25 * 2**0.5])
    assert cosine_rate(given, 6, 6) == pytest.approx(0.0)


def test_loss_and_gradients_are_those_of_trl_on_the_golden_batch() -> None:
    """`SFTTrainer.compute_loss` of TRL 1.16.0, completions only; see golden/README.md."""
    golden = json.loads((Path(__file__).parent / "golden" / "trl_sft.json").read_text())
    rows = [
        sample(SftRow(str(number), prompt, completion))
        for number, (prompt, completion) in enumerate(
            zip(golden_model.prompts(), golden_model.completions(), strict=True)
        )
    ]
    policy = Policy(golden_model.golden_model())
    batch = batch_of(rows, 64)
    assert batch.packed.token_count == golden["tokens"]
    sums = accumulate(policy, batch.packed, lambda: None)
    assert sums[0].item() / golden["tokens"] == pytest.approx(golden["loss"], rel=1e-6)
    found = gradients(policy.model)
    assert found.keys() == golden["gradients"].keys()
    for name, theirs in golden["gradients"].items():
        ours = found[name].flatten()
        assert ours.double().square().sum().item() == pytest.approx(theirs["sum_of_squares"], rel=1e-4), name
        shown = torch.tensor(theirs["first"])
        torch.testing.assert_close(ours[: len(shown)], shown, rtol=1e-4, atol=1e-6)
