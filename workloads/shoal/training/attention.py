"""Attention within the samples of a pack, by explicit bounds: no mask of tokens x tokens, and nothing that can switch it off silently.

In: queries, keys and values of a whole pack, and where its samples begin. Out: every sample attended to causally, on its own. On an
accelerator in half precision one variable-length kernel does all samples (torch's `varlen_attn`, a flash attention); otherwise each sample is
one call of SDPA; so the work is the sum of the squares of the lengths, not the square of the sum. Registered with transformers under `NAME`
when this module is imported; transformers makes no mask for an attention that it does not know. Called by the models that `model` loads.
"""

import functools
import inspect
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import AttentionInterface

from shoal.training.batches import Segments
from shoal.training.context_parallel import heads_of_pack, tokens_of_part
from shoal.training.parallel import ContextGroup

NAME = "shoal_packed"
"""Name of this attention in a transformers configuration."""
LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})
NEEDED_BY = {
    "linear_attention": "a linear attention whose states begin again at the bounds of samples, as kernels with `cu_seqlens` have it; "
    "transformers on a CPU has none"
}
"""What would let layers of another type be trained in packs."""
"""Kinds of layers that are computed here; a model with others (chunked, linear) is refused when it is loaded."""
CHANGES_WHAT_IS_COMPUTED = ("softcap", "s_aux", "position_bias")
"""Further arguments that some models give to their attention. Leaving one out would train another model than the one that samples."""


@torch.compiler.disable
def packed_attention(
    module: torch.nn.Module,
    query: Float[Tensor, "1 heads pack width"],
    key: Float[Tensor, "1 key_heads pack width"],
    value: Float[Tensor, "1 key_heads pack value_width"],
    attention_mask: Tensor | None,
    *,
    segments: Segments | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    context_group: ContextGroup | None = None,
    **ignored: Any,
) -> tuple[Float[Tensor, "1 pack heads value_width"], None]:
    """The attention that transformers' models call. Raises ValueError without bounds, or when they are not of this pack.

    `sliding_window` tokens are seen at most, the own one among them. With a `context_group` queries, keys and values are those of this rank's part of
    the pack, and so is the result. Dropout is off in reinforcement learning: the ratio compares policies.
    Not compiled: a graph would be made again for every pack's bounds.
    """
    if segments is None or attention_mask is not None:
        raise ValueError(
            "packed attention needs segment bounds and no mask; call the model through shoal.training.model.Policy"
        )
    if unknown := [name for name in CHANGES_WHAT_IS_COMPUTED if ignored.get(name) is not None]:
        raise ValueError(
            f"this model's attention has {unknown}, which the packed attention cannot compute; the model cannot be trained"
        )
    if context_group is not None:
        query, key, value = heads_of_pack(query, key, value, context_group)
    if query.shape[0] != 1 or query.shape[2] != segments.bounds[-1]:
        raise ValueError(f"segments end at {segments.bounds[-1]}, but the pack has {tuple(query.shape)[::2]}")
    attended = _attended(query, key, value, segments, scaling, sliding_window)
    return (attended if context_group is None else tokens_of_part(attended, context_group)), None


def _attended(
    query: Tensor, key: Tensor, value: Tensor, segments: Segments, scaling: float | None, sliding_window: int | None
) -> Float[Tensor, "1 pack heads value_width"]:
    if query.is_cuda and query.dtype in (torch.bfloat16, torch.float16):
        return _variable_length(query, key, value, segments, scaling, sliding_window)
    parts = [
        _one_sample(query[:, :, start:end], key[:, :, start:end], value[:, :, start:end], scaling, sliding_window)
        for start, end in zip(segments.bounds, segments.bounds[1:], strict=False)
    ]
    return torch.cat(parts, dim=2).transpose(1, 2)


def _one_sample(query: Tensor, key: Tensor, value: Tensor, scaling: float | None, window: int | None) -> Tensor:
    length = query.shape[2]
    shared = query.shape[1] != key.shape[1]
    if window is None or window >= length:
        return scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=shared)
    mask = _band(length, window, query.device)
    return scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling, enable_gqa=shared)


def _band(length: int, window: int, device: torch.device) -> Bool[Tensor, "length length"]:
    """True where query `i` sees key `j`: i - window < j <= i, as transformers counts a sliding window."""
    place = torch.arange(length, device=device)
    behind = place[:, None] - place[None, :]
    return (behind >= 0) & (behind < window)


def _variable_length(
    query: Tensor, key: Tensor, value: Tensor, segments: Segments, scaling: float | None, window: int | None
) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn  # CUDA only

    bounds, longest = segments.on(query.device), max(segments.lengths)
    width = value.shape[3]
    value = pad(
        value, (0, query.shape[3] - width)
    )  # latent attention has narrower values, and the kernel wants equal ones
    out = varlen_attn(
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        bounds,
        bounds,
        longest,
        longest,
        scale=scaling,
        window_size=(-1 if window is None else window - 1, 0),  # keys to the left of the own one, none to the right
        **({"enable_gqa": query.shape[1] != key.shape[1]} if _asks_for_shared_keys() else {}),
    )
    return out[None, :, :, :width]


@functools.cache
def _asks_for_shared_keys() -> bool:
    """Whether `varlen_attn` must be told that heads share keys: that of torch 2.13 has to be, that of 2.11 sees it by itself."""
    from torch.nn.attention.varlen import varlen_attn  # CUDA only

    return "enable_gqa" in inspect.signature(varlen_attn).parameters


AttentionInterface.register(NAME, packed_attention)
