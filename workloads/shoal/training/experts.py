"""Experts of a mixture: grouped matrix products, and how evenly the router spreads tokens over them.

In: hidden states of a pack, the router's choice of experts for each token. Out: the experts' weighted sum, and counts of routed tokens. Tokens
are sorted by expert; each expert computes its own at once. Registered with transformers under `NAME` when this module is imported. Called by the
models that `model` loads.

Where each rank keeps its own experts (`keep_experts`), tokens travel instead of weights: each rank sends a token's state to the owners of its
experts, and gets back what they make of it. Every rank must call this equally often.

A token of a pack costs as many multiplications as its chosen experts have, however many there are. transformers' own loop takes a slice of the
stack an expert, and its backward pass writes the whole stack for each: with 128 experts that is 128 times the gradient's memory traffic.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float, Int, Integer, Num
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.nn.functional import grouped_mm, linear, pad
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from shoal.contracts.routes import RouteShape
from shoal.models.places import ADAPTERS, DOWN, GATE_UP, MATRICES, stacks
from shoal.models.routers import Routers, differs
from shoal.training.lora import OF_EXPERTS
from shoal.training.parallel import waiting_for

NAME = "shoal_grouped"
"""Name of this computation in a transformers configuration."""
KERNEL_ALIGNMENT = 8
"""Values of bfloat16 in the 16 bytes that `grouped_mm` asks strides to be a multiple of."""


def grouped_experts(
    module: Any,
    hidden: Float[Tensor, "tokens hidden"],
    chosen: Int[Tensor, "tokens choices"],
    weights: Float[Tensor, "tokens choices"],
) -> Float[Tensor, "tokens hidden"]:
    """The weighted sum of each token's chosen experts. The order of sums is that of the choices, on any device and any number of ranks."""
    choices = chosen.shape[1]
    order = chosen.reshape(-1).argsort(stable=True)
    counts = torch.bincount(chosen.reshape(-1), minlength=module.num_experts)
    kept = isinstance(module.gate_up_proj, DTensor)
    sorted_out = (by_owners if kept else _feed_forward)(module, hidden[order // choices], counts)
    found = sorted_out[_inverse(order)].view(*chosen.shape, -1) * weights[:, :, None]
    return found.sum(dim=1).to(hidden.dtype)


def keep_experts(model: torch.nn.Module, mesh: DeviceMesh) -> set[torch.nn.Parameter]:
    """Cut the stacks of a model so that each rank has its own whole experts only, and give them: FSDP2 must ignore these.

    The thin stacks of adapters are among them. They lie as FSDP2 would lay them, so states, exports and optimizers see no difference.
    """
    kept = set()
    for holder in [holder for module in stacks(model).values() for holder in module.modules()]:
        for name, whole in holder.named_parameters(recurse=False):
            mine = len(whole) // mesh.size()
            part = whole.detach()[mesh.get_local_rank() * mine :][:mine].clone()
            sharded = DTensor.from_local(part, mesh, [Shard(0)], run_check=False)
            holder._parameters[name] = stack = torch.nn.Parameter(sharded, requires_grad=whole.requires_grad)
            kept.add(stack)
    return kept


def by_owners(
    module: Any, rows: Float[Tensor, "rows hidden"], counts: Int[Tensor, " experts"]
) -> Float[Tensor, "rows hidden"]:
    """What the experts make of rows that are sorted by expert, each computed by the rank that has its expert. No row is ever left out.

    A row travels four times a layer and update, hidden size x 2 bytes each in bfloat16, and twice more where activations are computed again. A rank
    whose experts are chosen by all holds all ranks' rows; `expert_load_largest` says how uneven the choice is. Counts are read on the host.
    """
    mesh = module.gate_up_proj.device_mesh
    group, ranks, place = mesh.get_group(), mesh.size(), mesh.get_local_rank()
    sent = counts.view(ranks, -1)
    received = torch.empty_like(sent)
    with waiting_for("the numbers of tokens that go to experts", place):
        dist.all_to_all_single(received, sent, group=group)
    there, here = sent.sum(dim=1).tolist(), received.sum(dim=1).tolist()
    found: Tensor = _Travel.apply(rows, there, here, group, place)
    experts = torch.arange(received.shape[1], device=rows.device).repeat(ranks)
    order = experts.repeat_interleave(received.flatten()).argsort(stable=True)
    made = _feed_forward(module, found[order], received.sum(dim=0))[_inverse(order)]
    back: Tensor = _Travel.apply(made, here, there, group, place)
    return back


class _Travel(torch.autograd.Function):
    """Rows in as many pieces as there are ranks: piece j of rank i becomes piece i of rank j. The gradient goes the way back."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, sent: list[int], received: list[int], group: Any, place: int) -> Tensor:
        ctx.way_back = (received, sent, group, place)
        return _travelled(rows, sent, received, group, place)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        return _travelled(gradients[0], *ctx.way_back), None, None, None, None


def _travelled(rows: Tensor, sent: list[int], received: list[int], group: Any, place: int) -> Tensor:
    found = rows.new_empty(sum(received), *rows.shape[1:])
    with waiting_for("the tokens of experts", place):
        dist.all_to_all_single(found, rows.contiguous(), received, sent, group=group)
    return found


def _feed_forward(module: Any, rows: Tensor, counts: Int[Tensor, " experts"]) -> Tensor:
    """What the experts here make of rows that are sorted by expert, `counts` for each."""
    return _adapted(module, DOWN, module._apply_gate(_adapted(module, GATE_UP, rows, counts)), counts)


def _adapted(module: Any, stack: str, rows: Tensor, counts: Int[Tensor, " experts"]) -> Tensor:
    """Rows times a stack; where matrices in it have adapters, a second pair of grouped products is added at their places (`lora.ExpertAdapters`)."""
    out = grouped_linear(rows, _here(getattr(module, stack), rows), counts)
    adapters: Any = getattr(module, OF_EXPERTS, {})
    width = out.shape[1] // len(MATRICES[stack])
    for number, matrix in enumerate(MATRICES[stack]):
        if matrix in adapters:
            lora_a, lora_b = (_here(getattr(adapters[matrix], name), rows) for name in ADAPTERS)
            out.narrow(1, number * width, width).add_(low_rank(rows, lora_a, lora_b, adapters[matrix].scale, counts))
    return out


def _here(stack: Tensor, rows: Tensor) -> Tensor:
    """A stack as this rank computes with it. One that is kept at its rank is kept in float32, and computed with in the type of the rows."""
    return stack.to_local().to(rows.dtype) if isinstance(stack, DTensor) else stack


def low_rank(
    rows: Float[Tensor, "rows in"],
    lora_a: Float[Tensor, "experts rank in"],
    lora_b: Float[Tensor, "experts out rank"],
    scale: float,
    counts: Int[Tensor, " experts"],
) -> Float[Tensor, "rows out"]:
    """Rows that are sorted by expert, each times both thin matrices of its expert's adapter, and the scale, where a row is narrow.

    The kernel for all experts asks for rows of 16 bytes: ranks that are no multiple of 8 are filled up with zeros.
    """
    if lacking := -lora_a.shape[1] % KERNEL_ALIGNMENT:
        lora_a, lora_b = pad(lora_a, (0, 0, 0, lacking)), pad(lora_b, (0, lacking))
    return grouped_linear(scale * grouped_linear(rows, lora_a, counts), lora_b, counts)


def _inverse(order: Int[Tensor, " rows"]) -> Int[Tensor, " rows"]:
    """The order that undoes this one."""
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order), device=order.device)
    return back


def grouped_linear(
    rows: Float[Tensor, "rows in"], stack: Float[Tensor, "experts out in"], counts: Int[Tensor, " experts"]
) -> Float[Tensor, "rows out"]:
    """Rows that are sorted by expert, each times its expert's matrix; `counts` rows an expert, which may be none.

    On an accelerator in bfloat16 one kernel does all experts (torch's `grouped_mm`). It knows no float64, and on a CPU it is not faster than one
    product an expert; so elsewhere that is computed. An expert without rows gets a gradient of zeros either way.
    """
    if stack.is_cuda and stack.dtype == torch.bfloat16:
        return in_one_kernel(rows, stack, counts)
    parts = zip(rows.split(counts.tolist()), stack.unbind(), strict=True)
    return torch.cat([linear(part, matrix) for part, matrix in parts])


def in_one_kernel(
    rows: Float[Tensor, "rows in"], stack: Float[Tensor, "experts out in"], counts: Int[Tensor, " experts"]
) -> Float[Tensor, "rows out"]:
    """The same by torch's grouped kernel, which needs no count on the host.

    On Blackwell the kernel leaves garbage in the gradient of an expert without rows (pytorch#172439): it is set to zeros here.
    """
    own = stack.view_as(stack)
    if own.requires_grad:
        empty = (counts == 0)[:, None, None]
        own.register_hook(lambda gradient: gradient.masked_fill(empty, 0.0))
    stack = own
    return grouped_mm(rows.to(stack.dtype), stack.transpose(1, 2), offs=counts.cumsum(0).to(torch.int32))


ALL_EXPERTS_FUNCTIONS.register(NAME, grouped_experts)


@dataclass(frozen=True)
class Balance:
    """How evenly the experts of a step were used: means and extremes over layers. Even use has `largest` 1, `entropy` 1 and `unused` 0."""

    largest: float
    """Tokens of the busiest expert of any layer, by the mean of its layer."""
    entropy: float
    """Of an expert's share of its layer's tokens, by its largest possible value; the mean over layers."""
    unused: float
    """Share of all experts that got no token."""


class RecordedRoutes:
    """The routes that workers recorded, at the routers of a policy: compared with what these choose, and with `follows` used in its place.

    Counted are (sampled token, layer) pairs of what is learnt from, on this rank; `pairs` of which `differing` are other experts.
    """

    def __init__(self, model: torch.nn.Module, shape: RouteShape, *, follows: bool) -> None:
        """Raises NoRoutes for a model whose routers are not known, or not of this shape."""
        self._counting = False
        self._pairs = 0
        self._differing: Int[Tensor, ""] | None = None
        self._routers = Routers(model, shape, follows=follows, seen=self._seen)

    @contextmanager
    def given(
        self,
        routes: Integer[Tensor, "tokens layers choices"] | None,
        at: Int[Tensor, " tokens"],
        *,
        counting: bool,
    ) -> Iterator[None]:
        """The routes of these positions of a pack, for this forward pass and its backward pass, in which nothing is counted."""
        self._routers.give(routes, at)
        self._counting = counting
        try:
            yield
        finally:
            self._counting = False

    def take(self) -> Float[Tensor, " counts"]:
        """Differing pairs and all pairs since the last call, float64 on the host."""
        differing = 0 if self._differing is None else int(self._differing)
        found = torch.tensor([differing, self._pairs], dtype=torch.float64)
        self._pairs, self._differing = 0, None
        return found

    def _seen(self, layer: int, router: Any, logits: Tensor, own: Tensor, recorded: Tensor) -> None:
        if self._counting:
            more = differs(own, recorded).sum()
            self._differing = more if self._differing is None else self._differing + more
            self._pairs += len(own)


class RoutedTokens:
    """Counts of the tokens that each expert of each layer was given while counting was on, on this rank."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._tokens = 0
        held: list[Any] = list(stacks(model).values())
        self._experts = held[0].num_experts if held else 0
        self._counts: list[Int[Tensor, " experts"] | None] = [None] * len(held)
        for layer, module in enumerate(held):
            module.register_forward_pre_hook(self._counter(layer))

    @property
    def layers(self) -> int:
        return len(self._counts)

    @contextmanager
    def counting(self, tokens: int) -> Iterator[None]:
        """Count the first `tokens` of what is computed within this. Not in a backward pass, which may compute layers again."""
        self._tokens = tokens
        try:
            yield
        finally:
            self._tokens = 0

    def take(self) -> Int[Tensor, "layers experts"] | None:
        """The counts since the last call, on the host; None of a model without experts."""
        if not self.layers:
            return None
        counts, self._counts = self._counts, [None] * self.layers
        none = torch.zeros(self._experts, dtype=torch.int64)
        return torch.stack([none if each is None else each.cpu() for each in counts])

    def _counter(self, layer: int) -> Any:
        def count(module: Any, given: tuple[Tensor, ...]) -> None:
            if self._tokens:
                more = torch.bincount(given[1][: self._tokens].reshape(-1), minlength=module.num_experts)
                before = self._counts[layer]
                self._counts[layer] = more if before is None else before + more

        return count


def balance(counts: Num[Tensor, "layers experts"]) -> Balance | None:
    """What counts of routed tokens, summed over the ranks, say; None where a layer has none."""
    experts = counts.shape[1]
    if not bool(counts.sum(dim=1).all()):
        return None
    shares = counts.double() / counts.sum(dim=1, keepdim=True)
    entropy = -torch.special.xlogy(shares, shares).sum(dim=1)
    most = torch.tensor(float(experts)).log()
    return Balance(
        largest=float(shares.max() * experts),
        entropy=float((entropy / most).mean()) if experts > 1 else 1.0,
        unused=float((counts == 0).double().mean()),
    )


def uncomputable(model: torch.nn.Module, ranks: int) -> list[str]:
    """Why the experts of a model cannot be trained on `ranks` ranks: nothing where they can, and for a model without experts."""
    held = list(stacks(model).values())
    if not held:
        return []
    first: Any = held[0]
    problems = []
    odd = [name for name, wanted in (("has_bias", False), ("has_gate", True), ("is_transposed", False))
           if getattr(first, name, None) is not wanted]  # fmt: skip
    if odd or not getattr(first, "is_concatenated", False):
        problems.append("its experts are not a gate, an up and a down projection without biases")
    if first.num_experts % ranks:
        allowed = ", ".join(str(each) for each in range(1, first.num_experts + 1) if first.num_experts % each == 0)
        problems.append(f"its {first.num_experts} experts cannot be divided over {ranks} ranks; allowed: {allowed}")
    return problems
