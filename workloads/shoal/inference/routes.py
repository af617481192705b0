"""Collects which experts the engine's routers choose for the tokens that sequences are decoded from.

In: the choices of each layer for all tokens of a forward pass, from the engine's routers (`capture`). Behind it, the positions that tokens were drawn
from (`chosen`, `add`). Out: bytes by request (`take`), as a rollout file has them. Called by `vllm_hooks`, on the first rank of each
stage. `engine` joins what they have (`joined`).

A layer's choices go into one buffer on the device. The engine runs without CUDA graphs: it would capture them before this is there. After a step one
gather and one copy bring those of the sampled tokens to the host: of 128 sequences of Qwen3-30B-A3B 98 kB. Nobody waits for the copy before the next
step has been begun. A sequence of 30,720 tokens holds 12 MB there until it ends.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from shoal.contracts.routes import RouteShape
from shoal.inference.proofs import copied
from shoal.models.routes import encode


class LostRoutesError(RuntimeError):
    """The routes recorded for a sequence are not those of its tokens."""


class RouteRecorder:
    """Routes of running sequences by request id. Used by the one decoding thread."""

    def __init__(self, shape: RouteShape, most_tokens: int, device: torch.device) -> None:
        """`most_tokens`: of one forward pass of the engine."""
        self.shape = shape
        self._chosen = torch.zeros((shape.layers, most_tokens, shape.choices), dtype=torch.int32, device=device)
        self._routes: defaultdict[str, bytearray] = defaultdict(bytearray)
        self._tokens: Counter[str] = Counter()
        self._coming: tuple[Sequence[str], Callable[[], tuple[torch.Tensor, ...]]] | None = None
        """The step that was added last, on its way to the host."""

    def capture(self, layer: int) -> Callable[[torch.Tensor], None]:
        """What the router of this layer, counted among those with experts, is to call with its choices [tokens, choices]."""
        buffer = self._chosen[layer]

        def keep(chosen: torch.Tensor) -> None:
            buffer[: len(chosen)] = chosen

        return keep

    def chosen(self, positions: torch.Tensor) -> torch.Tensor:
        """The choices of the last forward pass at these of its tokens, int32 [requests, layers, choices]."""
        return self._chosen[:, positions].transpose(0, 1)

    def tokens(self, request: str) -> int:
        """Tokens of this request whose routes were added."""
        return self._tokens[request]

    def add(self, requests: Sequence[str], chosen: torch.Tensor) -> None:
        """Append row i of `chosen`, which is kept and must not change, to request i."""
        coming = copied(chosen)
        self._arrive()
        self._coming = requests, coming
        self._tokens.update(requests)

    def _arrive(self) -> None:
        if self._coming is None:
            return
        (requests, wait), self._coming = self._coming, None
        size = self.shape.bytes_a_token
        made = encode(wait()[0].numpy(), self.shape)
        for number, request in enumerate(requests):
            self._routes[request] += made[number * size : (number + 1) * size]

    def take(self, tokens: Mapping[str, int]) -> dict[str, bytes]:
        """Routes of these finished requests, of as many tokens each; they are then forgotten.

        The engine may have begun a step before it heard of an end: the routes of one token more are left out. With more they are all given, which
        `joined` refuses.
        """
        self._arrive()
        found = {}
        for request, count in tokens.items():
            routes, more = self._routes.pop(request, b""), self._tokens.pop(request, 0) - count
            found[request] = bytes(routes[: count * self.shape.bytes_a_token] if more == 1 else routes)
        return found


def joined(stages: Sequence[bytes], layers: Sequence[int], tokens: int, shape: RouteShape) -> bytes:
    """The routes of a sequence of `tokens` sampled tokens, from those of its stages. `layers` are the layers with experts of each stage.

    Raises LostRoutesError where some stage has another number of tokens: vLLM's steps would not be what the hooks take them for.
    """
    wide = [count * shape.choices * shape.width for count in layers]
    lost = [
        f"stage {number} has {len(part)} bytes for {tokens} sampled tokens of {size}"
        for number, (part, size) in enumerate(zip(stages, wide, strict=True))
        if len(part) != tokens * size
    ]
    if lost:
        raise LostRoutesError(f"routes of a sequence: {'; '.join(lost)}")
    parts = [np.frombuffer(part, np.uint8).reshape(tokens, size) for part, size in zip(stages, wide, strict=True)]
    return np.concatenate(parts, axis=1).tobytes()
