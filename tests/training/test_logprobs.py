"""Packed and tiled log-probabilities equal those of each sample alone under the plain definition, and so do their gradients."""

from typing import Any

import numpy as np
import pytest
import torch
from tiny_run import VOCABULARY, make_model
from torch import Tensor

from shoal.training.batches import micro_batch
from shoal.training.logprobs import token_logprobs
from shoal.training.rollouts import Sample


def sample(length: int, prompt: int, temperature: float, seed: int, tool: tuple[int, ...] = ()) -> Sample:
    tokens = np.random.default_rng(seed).integers(1, VOCABULARY, length)
    mask = np.ones(length - prompt, dtype=np.bool_)
    mask[list(tool)] = False
    return Sample(
        name=f"sample {seed}", tokens=tokens, prompt_length=prompt, mask=mask,
        logprobs=np.zeros(length - prompt, dtype=np.float32), temperature=temperature, policy_version=0,
        task_reward=1.0, length_penalty=0.0, reward=1.0,
    )  # fmt: skip


SAMPLES = [sample(20, 5, 1.0, 1), sample(9, 3, 0.7, 2, tool=(1, 2)), sample(30, 12, 1.3, 3), sample(4, 3, 1.0, 4)]
PACK = micro_batch([(one, 1.0) for one in SAMPLES])


def plain(model: Any, one: Sample) -> tuple[Tensor, Tensor]:
    """One sample alone, all its logits at once."""
    logits = model(input_ids=torch.from_numpy(one.tokens)[None]).logits[0] / one.temperature
    logprobs = torch.log_softmax(logits, dim=-1)
    places = [one.prompt_length + offset for offset in np.flatnonzero(one.mask)]
    chosen = torch.stack([logprobs[place - 1, one.tokens[place]] for place in places])
    entropy = torch.stack([-(logprobs[place - 1].exp() * logprobs[place - 1]).sum() for place in places])
    return chosen, entropy


def gradients(model: Any, logprobs: Tensor, entropy: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    (logprobs * torch.linspace(-1, 1, len(logprobs)) + 0.3 * entropy).sum().backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("tile_elements", [VOCABULARY, 5 * VOCABULARY, 1 << 24])
def test_packed_and_tiled_equals_one_by_one(tile_elements: int) -> None:
    model = make_model()
    alone = [torch.cat(part) for part in zip(*(plain(model, one) for one in SAMPLES), strict=True)]
    wanted = gradients(model, *alone)
    found = token_logprobs(model, PACK, tile_elements=tile_elements)
    for ours, theirs in zip(found, alone, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    for name, gradient in gradients(model, *found).items():
        torch.testing.assert_close(gradient, wanted[name], rtol=1e-4, atol=1e-5, msg=name)


def test_another_sample_in_the_pack_changes_nothing() -> None:
    model = make_model()
    other = micro_batch(
        [(SAMPLES[0], 1.0), (sample(9, 3, 0.7, 99, tool=(1, 2)), 1.0), *((one, 1.0) for one in SAMPLES[2:])]
    )
    first, _ = token_logprobs(model, PACK)
    second, _ = token_logprobs(model, other)
    assert torch.equal(first[:15], second[:15])
    torch.testing.assert_close(first[-19:], second[-19:], rtol=0, atol=1e-6)
    assert (first[15:19] - second[15:19]).abs().max() > 0.1


def test_tool_output_is_context_and_has_no_log_probability() -> None:
    assert len(PACK.targets) == sum(int(one.mask.sum()) for one in SAMPLES)
    assert PACK.targets.tolist()[15:19] == [SAMPLES[1].tokens[place] for place in (3, 6, 7, 8)]


def test_log_probabilities_are_float32_whatever_the_model_is() -> None:
    model = make_model().bfloat16()
    logprobs, entropy = token_logprobs(model, PACK)
    assert logprobs.dtype == entropy.dtype == torch.float32
