"""The rule by which a seed draws a token: noise of MurmurHash3, as published."""

import math

import pytest
import torch

from shoal.sampling import gumbel

WORD = (1 << 32) - 1


def rotated(value: int, places: int) -> int:
    return (value << places | value >> 32 - places) & WORD


def murmur3(words: list[int]) -> int:
    """MurmurHash3_x86_32 of 32-bit words with seed 0, one integer at a time."""
    state = 0
    for word in words:
        key = rotated(word * 0xCC9E2D51 & WORD, 15) * 0x1B873593 & WORD
        state = (rotated(state ^ key, 13) * 5 + 0xE6546B64) & WORD
    state ^= 4 * len(words)
    state = (state ^ state >> 16) * 0x85EBCA6B & WORD
    state = (state ^ state >> 13) * 0xC2B2AE35 & WORD
    return state ^ state >> 16


def test_noise_is_murmur3_of_seed_position_and_token() -> None:
    assert murmur3([0]) == 0x2362F9DE  # published: four bytes of 0, seed 0
    places = [(0, 0, 0), (1, 2, 3), ((1 << 63) - 1, 40_000, 151_935), (1 << 32, 7, 257), (0xDEADBEEF, 0, 1)]
    seeds, positions, tokens = (torch.tensor(column) for column in zip(*places, strict=True))
    for place, found in zip(places, gumbel.uniforms(seeds, positions, tokens).tolist(), strict=True):
        seed, position, token = place
        bits = murmur3([seed & WORD, seed >> 32, position, token])
        assert found == torch.tensor((bits + 0.5) / 2**32, dtype=torch.float32).item()


def test_the_greatest_bits_give_finite_noise() -> None:
    """u rounds to 1 there, and log(1 - u) is no number."""
    logprobs = torch.zeros(200_000, 40)
    gaps, _ = gumbel.redraw(logprobs, torch.zeros(200_000, dtype=torch.int64), *places(200_000))
    assert torch.isfinite(gaps).all()
    assert float(gumbel._noise(torch.tensor([-1, 0], dtype=torch.int32)).min()) == pytest.approx(
        -math.log(24 * math.log(2))
    )


def places(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.full((count,), 5), torch.arange(count)
