"""Muon: momentum whose matrices are orthogonalised before they are added to the weights (Jordan et al. 2024; arXiv:2502.16982).

In: matrices with gradients, whole or with their rows sharded over the ranks. Out: the same, updated. It has a learning rate like AdamW's: an
orthogonal A x B matrix times 0.2 sqrt(max(A, B)) has the root mean square of AdamW's updates (arXiv:2502.16982, equation 4).

`torch.optim.Muon` has the same arithmetic, and takes a sharded matrix too. But then its products are divided over the ranks: they exchange in every
round, and sum in another order for each number of ranks. Here each matrix is orthogonalised whole by one rank, to the same bits however many there
are. As many matrices as ranks are updated at a time: each rank gets one of them whole, and sends its rows back.

At 32B over 16 ranks an update sends 3.7 GB in bfloat16 from each rank and 3.7 GB back: about 0.15 s at 50 GB/s. It computes 4e15 operations: 0.6 s at
400 TFLOPS a rank. So a step of eight updates takes 6 s for it. Its state is one float32 a parameter, half of AdamW's. Called by `optimizer`.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor
from torch.distributed.tensor import DTensor

from shoal.training.parallel import waiting_for

COEFFICIENTS = 3.4445, -4.775, 2.0315
"""Of the odd polynomial that draws singular values to 1, steepest at 0 (Jordan's post): five rounds take all from 0.003 on to 0.68 to 1.21."""
ROUNDS = 5
ADAMW_SIZE = 0.2
"""Root mean square of AdamW's updates, 0.2 to 0.4 in training (arXiv:2502.16982, section 2.2)."""
SMALLEST_NORM = 1e-7
MOMENTUM = "momentum_buffer"


def orthogonalised(matrix: Float[Tensor, "rows columns"]) -> Float[Tensor, "rows columns"]:
    """The nearest matrix with singular values near 1, by Newton-Schulz rounds in the matrix's own type."""
    a, b, c = COEFFICIENTS
    tall = matrix.shape[0] > matrix.shape[1]
    found = matrix.T if tall else matrix
    found = found / found.norm().clamp(min=SMALLEST_NORM)
    for _ in range(ROUNDS):
        square = found @ found.T  # of the shorter side
        found = torch.addmm(found, torch.addmm(square, square, square, beta=b, alpha=c), found, beta=a)
    return found.T if tall else found


def working_type(device: torch.device, kept: torch.dtype) -> torch.dtype:
    """The type that a matrix is sent and orthogonalised in: bfloat16 on an accelerator, as in both papers; on a CPU the type that it is kept in."""
    return torch.bfloat16 if device.type == "cuda" else kept


class Muon(torch.optim.Optimizer):
    """Muon over matrices; `on_host`: the momentum stays in host memory, and is on the device for the update of its own matrix only."""

    def __init__(
        self,
        matrices: Iterable[torch.nn.Parameter],
        *,
        lr: float,
        momentum: float,
        weight_decay: float,
        on_host: bool = False,
    ) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        if odd := [tuple(each.shape) for group in self.param_groups for each in group["params"] if each.dim() != 2]:
            raise ValueError(f"Muon updates matrices only, and was given a parameter of shape {odd[0]}")
        self._on_host = on_host

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            there = [each for each in group["params"] if each.grad is not None]
            # By cost, so that ranks have the same to do at a time. Equal ones stay in their order, which all ranks share.
            there.sort(key=lambda each: (each.numel() * min(each.shape), each.shape))
            for world, some in _at_a_time(there):
                self._update(some, world, group)

    def _update(self, matrices: Sequence[torch.nn.Parameter], world: int, group: dict[str, Any]) -> None:
        rows = [self._direction(each, group["momentum"]) for each in matrices]
        found = [orthogonalised(each) for each in rows] if world == 1 else _each_by_one_rank(matrices, rows, world)
        for parameter, update in zip(matrices, found, strict=True):
            mine = _local(parameter)
            mine.mul_(1.0 - group["lr"] * group["weight_decay"])
            scale = ADAMW_SIZE * math.sqrt(max(parameter.shape))
            mine.add_(update.to(mine.device, mine.dtype), alpha=-group["lr"] * scale)

    def _direction(self, parameter: torch.nn.Parameter, momentum: float) -> Tensor:
        """This rank's rows of the momentum that follows the next gradient (Nesterov), where and as they are orthogonalised."""
        assert parameter.grad is not None
        state = self.state[parameter]
        if MOMENTUM not in state:
            empty = torch.zeros_like(parameter, requires_grad=False)
            state[MOMENTUM] = empty.to("cpu") if self._on_host else empty
        gradient, kept = _local(parameter.grad), _local(state[MOMENTUM])
        moved = kept.to(gradient.device)
        moved.lerp_(gradient, 1.0 - momentum)
        if moved is not kept:
            kept.copy_(moved)
        device = gradient.device
        if isinstance(parameter, DTensor):
            device = torch.device(parameter.device_mesh.device_type)  # weights may lie in host memory
        return gradient.lerp(moved, momentum).to(device, working_type(device, gradient.dtype))


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _at_a_time(matrices: Sequence[torch.nn.Parameter]) -> Iterator[tuple[int, Sequence[torch.nn.Parameter]]]:
    """As many matrices as ranks share their rows, with the number of these."""
    world = matrices[0].device_mesh.size() if matrices and isinstance(matrices[0], DTensor) else 1
    for first in range(0, len(matrices), world):
        yield world, matrices[first : first + world]


def rows_of(rank: int, world: int, rows: int) -> int:
    """How many rows of a matrix a rank has: as `torch.chunk` cuts, and FSDP2 with it."""
    each = -(-rows // world)
    return max(0, min(each, rows - rank * each))


def _each_by_one_rank(matrices: Sequence[torch.nn.Parameter], rows: list[Tensor], world: int) -> list[Tensor]:
    """This rank's rows of each matrix, orthogonalised: the n-th by rank n, which gets it whole."""
    mesh = matrices[0].device_mesh
    group, rank = mesh.get_group(), mesh.get_local_rank()
    none = rows[0].new_empty(0)
    sent = [*(each.flatten() for each in rows), *(none for _ in range(world - len(rows)))]
    owned = matrices[rank].shape if rank < len(matrices) else torch.Size((0, 0))
    parts = [rows_of(other, world, owned[0]) * owned[1] for other in range(world)]
    with waiting_for("matrices to be updated", rank):
        whole = _exchanged(sent, parts, group)
    if owned.numel():
        whole = orthogonalised(whole.view(owned)).flatten()
    with waiting_for("updated matrices", rank):
        received = _exchanged(whole.split(parts), [each.numel() for each in sent], group)
    back = received.split([each.numel() for each in sent])
    return [each.view(mine.shape) for each, mine in zip(back, rows, strict=False)]


def _exchanged(pieces: Sequence[Tensor], sizes: list[int], group: dist.ProcessGroup) -> Tensor:
    """The n-th piece goes to rank n. What the ranks sent to this one, in their order, of `sizes` values each."""
    sent = torch.cat(list(pieces))
    received = sent.new_empty(sum(sizes))
    dist.all_to_all_single(received, sent, sizes, [piece.numel() for piece in pieces], group=group)
    return received
