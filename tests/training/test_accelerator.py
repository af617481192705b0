"""On an accelerator: kernels in bfloat16 that a CPU has not, against float32 on the CPU. Skipped where there is none."""

from pathlib import Path

import pytest
import torch
from test_logprobs import PACK, head_case, wavy
from tiny_run import write_base
from torch import Tensor

from shoal.contracts.trainer import TrainerSettings
from shoal.training.attention import packed_attention
from shoal.training.batches import Segments
from shoal.training.logprobs import head_loss
from shoal.training.model import load_policy
from shoal.training.parallel import start_ranks

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
BFLOAT16 = 2.0**-8
"""Rounding of one number; results of a few products of rounded factors err by a small multiple."""


def error(found: Tensor, wanted: Tensor) -> float:
    """Of the whole, relative."""
    return float((found.detach().cpu().float() - wanted.detach().float()).norm() / wanted.detach().float().norm())


@pytest.mark.parametrize("window", [None, 5])
def test_the_variable_length_kernel_attends_within_samples_as_sdpa_does(window: int | None) -> None:
    segments, chance = Segments((0, 7, 40, 41, 64)), torch.Generator().manual_seed(0)
    given = [torch.randn(1, heads, 64, 32, generator=chance).bfloat16() for heads in (4, 2, 2)]
    outcomes = []
    for tensors in ([one.float() for one in given], [one.cuda() for one in given]):
        query, key, value = (one.requires_grad_() for one in tensors)
        out, _ = packed_attention(
            torch.nn.Identity(), query, key, value, None, segments=segments, sliding_window=window
        )
        (out.float() * torch.linspace(-1, 1, 32, device=out.device)).sum().backward()
        outcomes.append((out, query.grad, key.grad, value.grad))
    for ours, wanted in zip(outcomes[1], outcomes[0], strict=True):
        assert ours is not None
        assert wanted is not None
        assert error(ours, wanted) < 4 * BFLOAT16


def test_the_head_sums_products_of_halves_in_float32() -> None:
    given = head_case(300, 64, 1000, torch.bfloat16)
    outcomes = []
    for device, dtype in (("cpu", torch.float32), ("cuda", torch.bfloat16)):
        states, weight = (one.detach().to(device, dtype).requires_grad_() for one in given[:2])
        targets, temperatures = (one.to(device) for one in given[2:])
        loss, logprobs, entropy = head_loss(
            states, weight, targets, temperatures, lambda _, p, e: (p.exp() + 0.1 * e).sum(), tile_elements=70 * 1000
        )
        loss.backward()
        assert logprobs.dtype == torch.float32
        outcomes.append((logprobs, entropy, states.grad, weight.grad))
    tolerances = (1e-5, 1e-5, 2 * BFLOAT16, 2 * BFLOAT16)  # figures are float32 throughout, gradients are rounded once
    for ours, wanted, tolerance in zip(outcomes[1], outcomes[0], tolerances, strict=True):
        assert ours is not None
        assert wanted is not None
        assert error(ours, wanted) < tolerance


@pytest.mark.parametrize("cpu_offload", [False, True])
def test_a_policy_in_bfloat16_is_near_the_one_in_float32(tmp_path: Path, cpu_offload: bool) -> None:
    base = write_base(tmp_path / "base")
    wanted = load_policy(base)
    ranks = start_ranks("cuda")
    try:
        policy = load_policy(base, TrainerSettings(cpu_offload=cpu_offload), ranks)
        outcomes = []
        for one in (wanted, policy):
            loss, logprobs, _ = one(PACK.to(one.device), lambda here, p, e: wavy(p.cpu(), e.cpu(), here).to(p.device))
            loss.backward()
            outcomes.append(logprobs)
        assert error(outcomes[1], outcomes[0]) < 8 * BFLOAT16
        assert {parameter.dtype for parameter in policy.parameters()} == {torch.float32}
        for name, tensor in policy.full_weights():
            torch.testing.assert_close(tensor, dict(wanted.full_weights())[name], rtol=0, atol=0)
    finally:
        ranks.close()
