"""The 128 values that a proof is made of, found on the device where the hidden states are.

In: last hidden states of chunks, a torch tensor on a CPU or an accelerator. Out: 128 indices and bit patterns a chunk instead of all its states, on
the same device; on an accelerator nothing here waits for it. Called by the rollout worker's hooks inside the engine. The choice is that of
`contracts.top_points`, to the bit.
"""

import torch

from shoal.toploc import top_points as host
from shoal.toploc.top_points import Bool

MASKED = -(1 << 31)  # the sign bit of int32: puts a size below all that are not masked


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
