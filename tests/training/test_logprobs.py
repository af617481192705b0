"""The head: packed and tiled log-probabilities equal those of each sample alone under the plain definition, and so do loss and gradients."""

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tiny_run import VOCABULARY, make_model
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from shoal.planner.memory import TILE_COPIES
from shoal.training.batches import filler, micro_batch
from shoal.training.logprobs import head_logprobs, head_loss
from shoal.training.model import Policy
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
    """One sample alone, all its logits at once, by transformers' own attention."""
    logits = model(input_ids=torch.from_numpy(one.tokens)[None]).logits[0] / one.temperature
    logprobs = torch.log_softmax(logits, dim=-1)
    places = [one.prompt_length + offset for offset in np.flatnonzero(one.mask)]
    chosen = torch.stack([logprobs[place - 1, one.tokens[place]] for place in places])
    entropy = torch.stack([-(logprobs[place - 1].exp() * logprobs[place - 1]).sum() for place in places])
    return chosen, entropy


def wavy(logprobs: Tensor, entropy: Tensor, here: slice) -> Tensor:
    """A loss that differs from token to token and is not linear."""
    slope = torch.linspace(-1, 1, len(PACK.targets), dtype=logprobs.dtype)[here]
    return (slope * logprobs.exp() + 0.3 * slope.cos() * entropy**2).sum()


def gradients(model: Any) -> dict[str, Tensor]:
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize(
    ("dtype", "relative"), [(torch.float64, 1e-6), (torch.float32, 1e-5)]
)  # norms are float32 in both
@pytest.mark.parametrize("tile_elements", [VOCABULARY, 5 * VOCABULARY, 1 << 24])
def test_packed_and_tiled_equals_one_by_one(tile_elements: int, dtype: torch.dtype, relative: float) -> None:
    model = make_model().to(dtype)
    alone = [torch.cat(part) for part in zip(*(plain(model, one) for one in SAMPLES), strict=True)]
    wanted_loss = wavy(*alone, slice(None))
    wanted_loss.backward()
    wanted = gradients(model)
    model.zero_grad()
    policy = Policy(model)
    policy.tile_elements = tile_elements
    found, *per_token = policy(PACK, lambda here, logprobs, entropy: wavy(logprobs, entropy, here))
    found.backward()
    for ours, theirs in zip((found, *per_token), (wanted_loss, *alone), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=relative, atol=relative)
    for name, gradient in gradients(model).items():
        assert (gradient - wanted[name]).norm() <= relative * wanted[name].norm(), name
    again = policy(PACK)
    assert again[0] is None
    assert all(torch.equal(one, other) for one, other in zip(again[1:], per_token, strict=True))


def head_case(tokens: int, hidden: int, vocabulary: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    chance = torch.Generator().manual_seed(0)
    return (
        torch.randn(tokens, hidden, generator=chance).to(dtype).requires_grad_(),
        (torch.randn(vocabulary, hidden, generator=chance) / 2).to(dtype).requires_grad_(),
        torch.randint(0, vocabulary, (tokens,), generator=chance),
        torch.rand(tokens, generator=chance).to(dtype) + 0.5,
    )


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "log-probabilities alone": lambda logprobs, entropy: logprobs.exp().sum(),
    "entropy alone": lambda logprobs, entropy: (entropy**2).sum(),
    "both": lambda logprobs, entropy: (logprobs.exp() * entropy).sum() * 3,
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize(("dtype", "relative"), [(torch.float64, 1e-8), (torch.float32, 1e-6)])
def test_gradients_are_those_of_the_plain_definition(
    loss: Callable[[Tensor, Tensor], Tensor], dtype: torch.dtype, relative: float
) -> None:
    """Against float64 autograd through whole logits: the tiles err no more than float32 does by itself."""
    *arguments, temperatures = head_case(70, 24, 300, dtype)
    states, weight, targets = arguments
    exact = [one.detach().double().requires_grad_() for one in (states, weight)]
    log_softmax = torch.log_softmax(exact[0] @ exact[1].T / temperatures.double()[:, None], dim=-1)
    logprobs = log_softmax.gather(1, targets[:, None])[:, 0]
    loss(logprobs, -(log_softmax.exp() * log_softmax).sum(-1)).backward()
    total, *_ = head_loss(
        states, weight, targets, temperatures, lambda here, *values: loss(*values), tile_elements=19 * 300
    )
    (total * 2).backward()
    for ours, theirs in zip((states, weight), exact, strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        assert (ours.grad / 2 - theirs.grad).norm() <= relative * theirs.grad.norm()


def test_frozen_states_or_a_frozen_head_are_left_alone() -> None:
    states, weight, targets, temperatures = head_case(20, 8, 50, torch.float32)
    head_loss(states, weight.detach(), targets, temperatures, lambda here, logprobs, _: logprobs.sum())[0].backward()
    assert states.grad is not None
    assert weight.grad is None


def test_the_loss_is_differentiated_once() -> None:
    loss, *_ = head_loss(*head_case(20, 8, 50, torch.float32), lambda here, logprobs, _: logprobs.sum())
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="the head's loss was differentiated twice"):
        loss.backward()


class LargestTensor(TorchDispatchMode):
    """Elements of the largest storage that any operation gives back."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for one in out if isinstance(out, tuple | list) else (out,):
            if isinstance(one, Tensor):
                self.elements = max(self.elements, one.untyped_storage().nbytes() // one.element_size())
        return out


@pytest.mark.parametrize("tokens", [300, 3000])
def test_nothing_held_grows_with_tokens_times_vocabulary(tokens: int) -> None:
    hidden, vocabulary, tile = 8, 2000, 50 * 2000
    states, weight, targets, temperatures = head_case(tokens, hidden, vocabulary, torch.float32)
    with LargestTensor() as seen:
        loss, *_ = head_loss(
            states, weight, targets, temperatures, lambda here, *values: LOSSES["both"](*values), tile_elements=tile
        )
        loss.backward()
        head_logprobs(states, weight, targets, temperatures, tile_elements=tile)
    assert seen.elements == tile  # not 300 or 3000 times 2000


class MostHeld(TorchDispatchMode):
    """Bytes of all storages that operations made and that are alive, and the most that there ever were."""

    def __init__(self) -> None:
        super().__init__()
        self._alive: dict[int, int] = {}
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for one in out if isinstance(out, tuple | list) else (out,):
            if isinstance(one, Tensor) and (storage := one.untyped_storage())._cdata not in self._alive:
                self._alive[storage._cdata] = storage.nbytes()
                weakref.finalize(storage, self._alive.pop, storage._cdata)
        self.most = max(self.most, sum(self._alive.values()))
        return out


class Untempered(TorchFunctionMode):
    """A fake tensor has no values, so no condition of it can be asked."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return False if func is torch.Tensor.__bool__ else func(*args, **(kwargs or {}))


@pytest.mark.parametrize("look", [None, lambda logprobs: None])
def test_on_an_accelerator_no_tile_waits_beside_the_next_one(look: Callable[[Tensor], None] | None) -> None:
    """Fake tensors of a GPU, as passes in bfloat16 are there. Beside the planned tiles there are only vectors and the weight."""
    hidden, vocabulary, rows = 8, 2000, 50
    with FakeTensorMode(), Untempered():
        states = torch.empty(4 * rows, hidden, dtype=torch.bfloat16, device="cuda")
        weight = torch.empty(vocabulary, hidden, dtype=torch.bfloat16, device="cuda")
        targets = torch.zeros(4 * rows, dtype=torch.int64, device="cuda")
        with MostHeld() as held:
            head_loss(
                states, weight, targets, torch.ones(4 * rows, device="cuda"), lambda here, *values: values[0].sum(),
                look, tile_elements=rows * vocabulary,
            )  # fmt: skip
    assert TILE_COPIES <= held.most / (4 * rows * vocabulary) < TILE_COPIES + 0.5


def test_another_sample_in_the_pack_changes_nothing() -> None:
    policy = Policy(make_model())
    other = micro_batch(
        [(SAMPLES[0], 1.0), (sample(9, 3, 0.7, 99, tool=(1, 2)), 1.0), *((one, 1.0) for one in SAMPLES[2:])]
    )
    first, second = policy(PACK)[1], policy(other)[1]
    assert torch.equal(first[:15], second[:15])
    torch.testing.assert_close(first[-19:], second[-19:], rtol=0, atol=1e-6)
    assert (first[15:19] - second[15:19]).abs().max() > 0.1


def test_tool_output_is_context_and_has_no_log_probability() -> None:
    assert len(PACK.targets) == sum(int(one.mask.sum()) for one in SAMPLES)
    assert PACK.targets.tolist()[15:19] == [SAMPLES[1].tokens[place] for place in (3, 6, 7, 8)]


def test_log_probabilities_are_float32_whatever_the_model_is() -> None:
    states, weight, targets, temperatures = head_case(40, 64, 500, torch.bfloat16)
    logprobs, entropy = head_logprobs(states, weight, targets, temperatures)
    assert logprobs.dtype == entropy.dtype == torch.float32
    exact, _ = head_logprobs(states.double(), weight.double(), targets, temperatures)
    assert (logprobs - exact).abs().max() < 1e-5  # rounded to bfloat16 they would err by more than 1e-2


def test_a_filler_adds_nothing_and_still_takes_part_in_the_backward_pass() -> None:
    policy = Policy(make_model())
    loss, logprobs, _ = policy(filler(), lambda here, logprobs, entropy: logprobs.sum())
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert len(logprobs) == 0
    assert all(parameter.grad is not None and not parameter.grad.any() for parameter in policy.parameters())
