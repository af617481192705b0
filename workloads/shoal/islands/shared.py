"""The state that islands share: weights at the round's start, the outer momentum, and the few numbers that go with them.

In: a trainer's parameters, whole or sharded. Out: two float32 vectors on the host, one of a rank's own parts; and a digest over all ranks that
is the same on two islands if and only if every bit is. Called by `island`.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributed.tensor import DTensor

META_BYTES = 512


@dataclass(frozen=True)
class Meta:
    """`reference` is the norm that contributions were last held against, `inner_seconds` what a round usually takes, `position` how far
    training is."""

    round: int = 0
    reference: float | None = None
    inner_seconds: float | None = None
    position: int = 0

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self), sort_keys=True).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Meta":
        """Raises ValueError for anything that `to_bytes` does not make."""
        try:
            fields = json.loads(data)
            meta = cls(**fields)
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"no description of a shared state: {type(error).__name__}") from error
        if meta.to_bytes() != data or type(meta.round) is not int or type(meta.position) is not int:
            raise ValueError("no description of a shared state that this software writes")
        if any(type(value) not in (float, type(None)) for value in (meta.reference, meta.inner_seconds)):
            raise ValueError("no description of a shared state: a number is of another type")
        return meta


@dataclass
class SharedState:
    """One rank's part."""

    meta: Meta
    weights: Float[Tensor, " values"]
    momentum: Float[Tensor, " values"]

    def digest(self) -> str:
        """SHA-256 over this rank's part, in hex."""
        found = hashlib.sha256(self.meta.to_bytes() + b"\0")
        for vector in (self.weights, self.momentum):
            found.update(vector.numpy().data)
        return found.hexdigest()


class Parameters:
    """A trainer's parameters as one vector."""

    def __init__(self, named: Mapping[str, Tensor]) -> None:
        if not named:
            raise ValueError("there are no parameters to exchange")
        self._named = dict(sorted(named.items()))
        self.count = sum(_local(tensor).numel() for tensor in self._named.values())

    def layout(self) -> list[object]:
        """Names, shapes and this rank's share of each."""
        return [[name, list(tensor.shape), _local(tensor).numel()] for name, tensor in self._named.items()]

    def read(self) -> Float[Tensor, " values"]:
        """A copy of this rank's parts, on the host."""
        vector = torch.empty(self.count, dtype=torch.float32)
        for part, tensor in self._parts(vector):
            part.copy_(tensor.reshape(-1))
        return vector

    def finite(self) -> bool:
        """Whether every value of this rank's parts is."""
        return all(bool(_local(tensor).isfinite().all()) for tensor in self._named.values())

    @torch.no_grad()
    def write(self, vector: Float[Tensor, " values"]) -> None:
        """Put a vector of this rank's parts in place."""
        for part, tensor in self._parts(vector):
            tensor.copy_(part.view(tensor.shape))

    def _parts(self, vector: Tensor) -> list[tuple[Tensor, Tensor]]:
        tensors = [_local(tensor) for tensor in self._named.values()]
        return list(zip(vector.split([tensor.numel() for tensor in tensors]), tensors, strict=True))


def _local(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
