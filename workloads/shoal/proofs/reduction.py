"""The 128 values that a proof is made of, found on the device where the hidden states are.

In: last hidden states of chunks, a torch tensor on a CPU or an accelerator. Out: 128 indices and bit patterns a chunk instead of all its states, on
the same device; on an accelerator only `points` waits for it. Called by the rollout worker's hooks inside the engine, and by a validator's check.
The choice is that of `toploc.top_points`, to the bit.
"""

import numpy as np
import torch

from shoal.toploc import top_points as host
from shoal.toploc.codec import CHUNK_TOKENS
from shoal.toploc.top_points import Bool, Int64, UInt16

MASKED = -(1 << 31)  # the sign bit of int32: puts a size below all that are not masked
TOGETHER = 64  # chunks of a validator's row that are reduced at once: on an accelerator 0.3 GB beside 32B's states, not 1.6 GB for 10,000 tokens


def points(states: torch.Tensor, masked: Bool | None = None) -> tuple[Int64, UInt16]:
    """`top_points` of the chunks of a completion [tokens, hidden size], the last of them short: on the host, for `codec.compare_points`.

    Of 32B's states a 200th is copied. Raises ValueError as `reduce_chunks` does.
    """
    if masked is not None and masked.shape != states.shape[1:]:
        raise ValueError(f"a mask of shape {masked.shape} for states of width {states.shape[1]}")
    full = len(states) - len(states) % CHUNK_TOKENS
    parts = [*states[:full].reshape(-1, CHUNK_TOKENS * states.shape[1]).split(TOGETHER), states[full:].reshape(1, -1)]
    reduced = [reduce_chunks(part, masked) for part in parts if part.numel()]
    if not reduced:
        return np.zeros((0, host.TOP_K), dtype=np.int64), np.zeros((0, host.TOP_K), dtype=np.uint16)
    indices, bits = (torch.cat(column).cpu().numpy() for column in zip(*reduced, strict=True))
    return indices, bits.astype(np.uint16)


def reduce_chunks(chunks: torch.Tensor, masked: Bool | torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest 128 values of each chunk: flat indices int64 [chunks, 128], ascending, and bfloat16 bits int32 [chunks, 128] (0 to 65535).

    `chunks`: float32, bfloat16 or float16 [chunks, tokens * hidden size], at least 128 values each; `masked`: bool [hidden size], true for dimensions
    that come last. Raises ValueError for smaller chunks. A value that is not finite is chosen before all others and keeps such bits; on a CPU it
    raises ValueError here, and `toploc.prove` refuses it in any case.
    """
    if chunks.device.type == "cpu":
        mask = masked.numpy() if isinstance(masked, torch.Tensor) else masked
        short = chunks.dtype == torch.bfloat16
        numbers = chunks.view(torch.uint16).numpy() if short else chunks.float().numpy()
        indices, bits = host.top_points(numbers, mask)
        return torch.from_numpy(indices), torch.from_numpy(bits.astype("int32"))
    return reduce_on_device(chunks, masked)


def reduce_on_device(
    chunks: torch.Tensor, masked: Bool | torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """`reduce_chunks` in torch's own operations, which run on any device; on a CPU numpy is several times faster."""
    values = chunks.shape[1]
    if values < host.TOP_K:
        raise ValueError(f"a chunk of {values} values has no proof: the hidden size must be at least {host.TOP_K}")
    floats = chunks.float().contiguous()
    sizes = floats.view(torch.int32) & 0x7FFFFFFF  # bits of |x| order as |x| does
    if masked is not None:
        last = torch.as_tensor(masked, device=chunks.device)
        sizes |= torch.where(last, MASKED, 0).to(torch.int32).repeat(values // len(last))
    # One number that orders by size, then by the lowest index: no ties are left for the device to break as it likes.
    places = torch.arange(values - 1, -1, -1, device=chunks.device)
    best = torch.topk((sizes.long() << 32) | places, host.TOP_K, dim=1, sorted=False).values
    indices = (values - 1 - (best & 0xFFFFFFFF)).sort(dim=1).values
    bits = floats.gather(1, indices).to(torch.bfloat16).view(torch.int16).int() & 0xFFFF
    return indices, bits
