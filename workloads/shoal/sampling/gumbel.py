"""The rule by which a seed draws a token: Gumbel-max with noise that is a hash of (seed, position, token id). Pure; the same on every device.

In: log-probabilities or logits at the sampling temperature, seeds, positions. Out: the token of the greatest sum of both (Gumbel, 1954), or the sums'
distance to it. Called by workers on the sampler of their engine (`inference.vllm_hooks`), and by validators on their own forward pass
(`validation.prefill`).

Its name is `gumbel-murmur3-1` (`contracts.pools.SAMPLER`); what draws other tokens gets another one. It is the rule of vLLM's second model runner
(0.32, `v1/worker/gpu/sample/gumbel.py`), whose Triton kernel gives the same 32 bits: MurmurHash3_x86_32 (Appleby, 2011) with seed 0. Its words are
the low and high half of the seed, the position and the token id. u = (bits + 1/2) / 2**32 in float32, noise = -log(-log(1 - u)).
A position counts from 0 over prompt and completion, and is that of the token whose state the next one is drawn from.
There is no state: neither batch, preemption nor abort changes what is drawn. Noise is at most 22.9 nats, so that a token of probability below 1e-10
is drawn more rarely than it should be.
"""

import functools

import torch

AT_ONCE = 1 << 16
"""Noises at once on a CPU, what a core's cache holds. Others: `AT_ONCE_ELSEWHERE`, 256 MiB for each of some four arrays."""
AT_ONCE_ELSEWHERE = 1 << 26
BELOW_ONE = 1.0 - 2.0**-24
"""The greatest float32 below 1, instead of the u that rounds to 1."""


def redraw(
    logprobs: torch.Tensor,
    chosen: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    kept: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """How far each chosen token is behind the one that its seed draws, float32 [n] in nats, at least 0; and the one drawn, int64 [n].

    `logprobs` float32 [n, vocabulary], natural logarithms (or logits) at the temperature; `chosen`, `seeds` and `positions` int64 [n]. All on one
    device. No token is passed over: who may put the runner-up in an improbable one's place chooses where a completion ends. Costs about 25 passes
    over n x vocabulary 32-bit words.

    `kept`, of a sampler that truncates: two bool [n, vocabulary], the tokens that stayed for certain and those that may have. The chosen one
    must be among the latter, and is behind the former only.
    """
    prefixes, tokens = _prefixes(seeds, positions), _mixed_tokens(logprobs.shape[1], logprobs.device)
    at_once = AT_ONCE if logprobs.device.type == "cpu" else AT_ONCE_ELSEWHERE
    gaps, drawn = torch.empty_like(logprobs[:, 0]), torch.empty_like(chosen)
    size = max(1, at_once // logprobs.shape[1])
    for start in range(0, len(logprobs), size):
        part = slice(start, start + size)
        scores = _noise(_bits(prefixes[part, None], tokens)).add_(logprobs[part])
        mine = scores.gather(1, chosen[part, None])[:, 0]
        if kept is not None:
            surely, perhaps = (each[part] for each in kept)
            mine = mine.masked_fill(~perhaps.gather(1, chosen[part, None])[:, 0], -torch.inf)
            scores = scores.masked_fill(~surely, -torch.inf)
        best, winner = scores.max(dim=-1)  # of equal sums the lowest id
        gaps[part] = (best - mine).clamp_(min=0.0)
        drawn[part] = winner
    return gaps, drawn


def draw(logits: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """The tokens drawn, int64 [n]; arguments as of `redraw`."""
    return redraw(logits, torch.zeros_like(seeds), seeds, positions)[1]


def uniforms(seeds: torch.Tensor, positions: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """u of each (seed, position, token), int64 of one shape; float32 in (0, 1]."""
    return _uniform(_bits(_prefixes(seeds, positions), _mixed_key(_word(tokens))))


@functools.lru_cache(maxsize=4)
def _mixed_tokens(vocabulary: int, device: torch.device) -> torch.Tensor:
    """int32 [vocabulary]: what the hash makes of each token id before it meets the rest; the same at every position."""
    return _mixed_key(torch.arange(vocabulary, dtype=torch.int32, device=device))


def _prefixes(seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """int32 of the same shape: the hash's state before the token id."""
    state = torch.zeros_like(seeds, dtype=torch.int32)
    for key in (_word(seeds), _word(seeds >> 32), _word(positions)):
        state = _round(state ^ _mixed_key(key))
    return state


def _bits(prefixes: torch.Tensor, mixed_tokens: torch.Tensor) -> torch.Tensor:
    """int32, broadcast: the hash's 32 bits."""
    state = _round(prefixes ^ mixed_tokens).bitwise_xor_(_signed(16))  # bytes hashed
    state.bitwise_xor_(_shifted(state, 16)).mul_(_signed(0x85EBCA6B))
    state.bitwise_xor_(_shifted(state, 13)).mul_(_signed(0xC2B2AE35))
    return state.bitwise_xor_(_shifted(state, 16))


def _uniform(bits: torch.Tensor) -> torch.Tensor:
    """(bits + 1/2) / 2**32, rounded once: both halves are exact in float32."""
    low = bits.bitwise_and(0xFFFF).float().add_(0.5).mul_(2.0**-32)
    return _shifted(bits, 16).float().mul_(2.0**-16).add_(low)


def _noise(bits: torch.Tensor) -> torch.Tensor:
    """Gumbel noise, float32. Its great values, which decide, come of u near 0, where float32 is fine."""
    return _uniform(bits).clamp_(max=BELOW_ONE).neg_().log1p_().neg_().log_().neg_()


def _mixed_key(key: torch.Tensor) -> torch.Tensor:
    return _rotated(key * _signed(0xCC9E2D51), 15).mul_(_signed(0x1B873593))


def _round(state: torch.Tensor) -> torch.Tensor:
    """In place where it can be: `state` is not used again."""
    return _rotated(state, 13).mul_(5).add_(_signed(0xE6546B64))


def _rotated(state: torch.Tensor, places: int) -> torch.Tensor:
    return (state << places).bitwise_or_(_shifted(state, 32 - places))


def _shifted(state: torch.Tensor, places: int) -> torch.Tensor:
    """To the right, as an unsigned number is."""
    return (state >> places).bitwise_and_((1 << (32 - places)) - 1)


def _word(values: torch.Tensor) -> torch.Tensor:
    """The low 32 bits of int64, as int32."""
    low = values & 0xFFFFFFFF
    return torch.where(low >= 1 << 31, low - (1 << 32), low).to(torch.int32)


def _signed(word: int) -> int:
    """The signed number of the same 32 bits: products and sums of int32 tensors are modulo 2**32."""
    return word - (1 << 32) if word >= 1 << 31 else word
