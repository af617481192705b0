"""The head: log-probabilities, entropies and the loss of completion tokens, a tile of tokens at a time, in float32.

In: last hidden states, the head's weight, targets. Out: log-probability and entropy of each token at its row's sampling temperature,
and in training the loss with both gradients, from the same pass. Logits of tokens x vocabulary are never held whole (10,000 tokens x
150,000 words are 6 GB). Since the loss is a sum over tokens, a tile's gradient is known as soon as its log-probabilities are. Three matrix
products suffice (logits, gradient of states, gradient of weight) where recomputing in a backward pass takes four. Called by `model.Policy`.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

TILE_ELEMENTS = 1 << 24
"""Logits held at once: 64 MiB in float32. Fewer, and the matrix products lose speed on thin tiles."""
ACCELERATOR_TILE_ELEMENTS = 5 << 26
"""The same on an accelerator, 1.25 GiB: 2,208 rows of 151,936 words. Each tile adds to the whole weight's gradient, 3.1 GB at 32B in float32."""
BLOCK_ELEMENTS = 1 << 18
"""On a CPU the elementwise work goes through a tile in blocks of 1 MiB. These stay in the core's cache from one operation to the next."""

Look = Callable[[Float[Tensor, " completion"]], None]
"""Is shown the log-probabilities of all tokens before the loss is asked for its first tile."""
TileLoss = Callable[[slice, Float[Tensor, " tile"], Float[Tensor, " tile"]], Float[Tensor, ""]]
"""(which tokens, log-probabilities, entropies) -> their share of the loss, differentiable in both."""


@torch.no_grad()
def head_logprobs(
    states: Float[Tensor, "tokens hidden"],
    weight: Float[Tensor, "vocabulary hidden"],
    targets: Int[Tensor, " tokens"],
    temperatures: Float[Tensor, " tokens"],
    *,
    tile_elements: int = TILE_ELEMENTS,
) -> tuple[Float[Tensor, " tokens"], Float[Tensor, " tokens"]]:
    """Log-probability and entropy (nats) of every token, float32 (float64 where the states are), without gradients."""
    tiles = _Tiles(states, weight, targets, temperatures, tile_elements)
    for here in tiles:
        tiles.score(here)
    return tiles.logprobs, tiles.entropy


def head_loss(
    states: Float[Tensor, "tokens hidden"],
    weight: Float[Tensor, "vocabulary hidden"],
    targets: Int[Tensor, " tokens"],
    temperatures: Float[Tensor, " tokens"],
    tile_loss: TileLoss,
    look: Look | None = None,
    *,
    tile_elements: int = TILE_ELEMENTS,
) -> tuple[Float[Tensor, ""], Float[Tensor, " tokens"], Float[Tensor, " tokens"]]:
    """The sum of `tile_loss` over all tokens, to be differentiated once, with log-probabilities and entropies (detached).

    With `look`, tiles are scored twice: a fourth product with the head's weight, and none where one tile holds all tokens.
    """
    loss, logprobs, entropy = _HeadLoss.apply(states, weight, targets, temperatures, tile_loss, look, tile_elements)
    return loss, logprobs, entropy


class _HeadLoss(torch.autograd.Function):
    """Computes the gradients in the forward pass; the backward pass only hands them out."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        targets: Tensor,
        temperatures: Tensor,
        tile_loss: TileLoss,
        look: Look | None,
        tile_elements: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        tiles = _Tiles(states, weight, targets, temperatures, tile_elements)
        of_states, of_weight = ctx.needs_input_grad[:2]
        tiles.prepare_gradients(of_states, of_weight)
        loss = torch.zeros((), dtype=tiles.logprobs.dtype, device=states.device)
        held: Tensor | None = None
        if look is not None:
            for here in tiles:
                held = None  # on an accelerator a tile is free before the next one is made
                held = tiles.score(here)
            look(tiles.logprobs)
            if held is not None and len(held) < len(targets):
                held = None
        for here in tiles:
            logits = tiles.score(here) if held is None else held
            with torch.enable_grad():
                logprobs = tiles.logprobs[here].clone().requires_grad_()
                entropy = tiles.entropy[here].clone().requires_grad_()
                share = tile_loss(here, logprobs, entropy)
            loss += share.detach()
            if of_states or of_weight:
                by_logprob, by_entropy = torch.autograd.grad(share, (logprobs, entropy), allow_unused=True)
                by_logprob = torch.zeros_like(logprobs) if by_logprob is None else by_logprob
                tiles.differentiate(here, logits, by_logprob, by_entropy)
            del logits
        ctx.gradients = tiles.gradients()
        ctx.mark_non_differentiable(tiles.logprobs, tiles.entropy)
        return loss, tiles.logprobs, tiles.entropy

    @staticmethod
    def backward(ctx: Any, by_loss: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.gradients is None:
            raise RuntimeError("the head's loss was differentiated twice; its gradients are given out once")
        # Held no longer than needed, so that they become `.grad` as they are.
        gradients, ctx.gradients = ctx.gradients, None
        return (*(None if one is None else one.mul_(by_loss) for one in gradients), None, None, None, None, None)


class _Tiles:
    """Work on one tile of tokens after the other, in buffers that are used again. Iterating gives each tile's slice."""

    def __init__(
        self, states: Tensor, weight: Tensor, targets: Tensor, temperatures: Tensor, tile_elements: int
    ) -> None:
        tokens, vocabulary = len(targets), weight.shape[0]
        self._dtypes = (states.dtype, weight.dtype)
        self._halves = states.dtype in (torch.bfloat16, torch.float16) and states.is_cuda
        if states.dtype != torch.float64 and not self._halves:
            states, weight = states.float(), weight.float()  # a CPU has no product of halves with a float32 result
        self._states, self._weight, self._targets = states, weight, targets
        self._kind = kind = torch.float64 if states.dtype == torch.float64 else torch.float32
        self._rows = max(1, min(tokens, tile_elements // vocabulary))
        self._block = self._rows if states.is_cuda else max(1, BLOCK_ELEMENTS // vocabulary)
        self._inverse = temperatures.to(kind).reciprocal()[:, None]
        self._tempered = bool((temperatures != 1).any())
        # Products of halves are tensors of their own: no room is kept for them.
        self._logits = states.new_empty((0 if self._halves else self._rows, vocabulary), dtype=kind)
        self._scratch = states.new_empty((min(self._block, self._rows), vocabulary), dtype=kind)
        self._log_sums = states.new_empty(tokens, dtype=kind)
        self.logprobs = states.new_empty(tokens, dtype=kind)
        self.entropy = states.new_empty(tokens, dtype=kind)
        self._of_states: Tensor | None = None
        self._of_weight: Tensor | None = None

    def prepare_gradients(self, of_states: bool, of_weight: bool) -> None:
        """Room for those that are wanted; the weight's is summed in float32 over the tiles."""
        self._of_states = torch.zeros_like(self._states) if of_states else None
        if of_weight:
            self._of_weight = self._weight.new_zeros(self._weight.shape, dtype=self._kind)

    def __iter__(self) -> Iterator[slice]:
        for start in range(0, len(self._targets), self._rows):
            yield slice(start, min(start + self._rows, len(self._targets)))

    def gradients(self) -> tuple[Tensor | None, Tensor | None]:
        """Of states and weight, in the dtypes in which these were given."""
        found = zip((self._of_states, self._of_weight), self._dtypes, strict=True)
        of_states, of_weight = (None if one is None else one.to(dtype) for one, dtype in found)
        return of_states, of_weight

    def score(self, here: slice) -> Float[Tensor, "tile vocabulary"]:
        """Fill in log-probabilities and entropies; what is returned are the tile's logits over temperature, less their maximum."""
        logits = self._product(here)
        for block, rows in self._blocks(here):
            z = logits[rows]
            if self._tempered:
                z.mul_(self._inverse[block])
            z.sub_(z.amax(dim=1, keepdim=True))
            e = torch.exp(z, out=self._scratch[: len(z)])
            total = e.sum(dim=1)
            log_total = total.log()
            chosen = z.gather(1, self._targets[block, None])[:, 0]
            self._log_sums[block] = log_total
            self.logprobs[block] = chosen - log_total
            # entropy = -sum p log p with log p = z - log_total
            self.entropy[block] = log_total - torch.linalg.vecdot(e, z) / total
        return logits

    def differentiate(self, here: slice, logits: Tensor, by_logprob: Tensor, by_entropy: Tensor | None) -> None:
        """Add the tile's gradients, given those of the loss by its log-probabilities and entropies.

        By a tempered logit z_j of a token with target t: g (1[j = t] - p_j) - h p_j (log p_j + entropy), for g and h the two. In place.
        """
        for block, rows in self._blocks(here):
            z, at = logits[rows], slice(block.start - here.start, block.stop - here.start)
            inverse, log_total = self._inverse[block, 0], self._log_sums[block]
            share = log_total.neg().exp()  # p = share * exp(z), log p = z - log_total
            g = by_logprob[at] * inverse
            if by_entropy is None:
                z.exp_().mul_((-g * share)[:, None])
            else:
                h = by_entropy[at] * inverse
                constant = h * (log_total - self.entropy[block]) - g
                e = torch.exp(z, out=self._scratch[: len(z)])
                z.mul_((-h * share)[:, None]).add_((constant * share)[:, None]).mul_(e)
            z.scatter_add_(1, self._targets[block, None], g[:, None])
        slope = logits.to(self._states.dtype) if self._halves else logits
        if self._of_states is not None:
            torch.mm(slope, self._weight, out=self._of_states[here])
        if self._of_weight is not None:
            if self._halves:
                self._of_weight += torch.mm(slope.T, self._states[here], out_dtype=torch.float32)
            else:
                self._of_weight.addmm_(slope.T, self._states[here])

    def _product(self, here: slice) -> Float[Tensor, "tile vocabulary"]:
        """The tile's logits, summed and kept in float32 even where the factors are halves."""
        if self._halves:
            return torch.mm(self._states[here], self._weight.T, out_dtype=torch.float32)
        return torch.mm(self._states[here], self._weight.T, out=self._logits[: here.stop - here.start])

    def _blocks(self, here: slice) -> Iterator[tuple[slice, slice]]:
        """Parts of a tile, as a slice of all tokens and as one of the tile's rows."""
        for start in range(here.start, here.stop, self._block):
            block = slice(start, min(start + self._block, here.stop))
            yield block, slice(block.start - here.start, block.stop - here.start)
