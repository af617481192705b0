"""A copy of all that is trained in the host's memory: what is saved and published while the next step already changes the originals.

In: policy and optimizer, sharded or not. Out: tensors by key, each rank its own shards, ready for `torch.distributed.checkpoint`; and the way back,
when a state was read into them. Buffers are used again, so taking a copy costs one pass over memory. Versions whose state is not saved have a
set of their own, with the weights alone: 4 bytes a parameter more. So a state may still be on its way while the next version is copied. Called
by `loop` and `state`.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard

from shoal.training.optimizer import MOMENTS, Optimizer
from shoal.training.parallel import Ranks

WEIGHTS = "weights"


class ExtraState(Protocol):
    """State that is neither weights nor moments of a model, by key; each rank has its own."""

    def tensors(self) -> dict[str, Tensor]:
        """As it is now. The tensors are not changed later."""

    def empty(self) -> dict[str, Tensor]:
        """Tensors to read a state into."""

    def check(self, keys: Collection[str]) -> None:
        """Raises `state.WrongState` for the keys of a state that has such a part and none that can be read into `empty`."""

    def take_up(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from what was read; called when all of `empty` was."""


def trained(policy: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """The parameters that training changes, by name, in order. Frozen ones are those of the base model forever."""
    return ((name, parameter) for name, parameter in sorted(policy.named_parameters()) if parameter.requires_grad)


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor, without a gradient; the whole of one that is not sharded."""
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def own_rows(tensor: Tensor) -> tuple[int, int]:
    """First row and number of rows of this rank's part; all of a tensor that is not sharded. One without dimensions is one row."""
    if not isinstance(tensor, DTensor):
        return 0, tensor.shape[0] if tensor.shape else 1
    if tuple(tensor.placements) != (Shard(0),):
        raise ValueError(f"a tensor is sharded as {tensor.placements}, must be by rows")
    most = -(-tensor.shape[0] // tensor.device_mesh.size())
    first = min(tensor.device_mesh.get_local_rank() * most, tensor.shape[0])
    return first, min(most, tensor.shape[0] - first)


@dataclass(frozen=True)
class Learner:
    """A model that is trained, with its optimizer."""

    model: torch.nn.Module
    optimizer: Optimizer


class _Part:
    """One learner's part of a copy. `prefix` stands before the kinds of its keys."""

    def __init__(self, prefix: str, learner: Learner) -> None:
        self.prefix = prefix
        self.model, self.optimizer = learner.model, learner.optimizer
        # These stay the sharded parameters, also while a forward pass shows whole ones in their place.
        self.trained = dict(trained(learner.model))

    def key(self, kind: str, name: str) -> str:
        return f"{self.prefix}{kind}/{name}"

    def live(self) -> Iterator[tuple[str, Tensor]]:
        """All that a copy holds of this learner, by key."""
        for name, parameter in self.trained.items():
            yield self.key(WEIGHTS, name), parameter
            state = self.optimizer.state(parameter)
            for moment in self.optimizer.state_names(parameter):
                if moment in state:
                    yield self.key(moment, name), state[moment]

    def like(self, key: str) -> Tensor | None:
        """A tensor of the shape and sharding that `key` has; None for a key that is not this learner's."""
        kind, _, name = key.partition("/")
        if kind == f"{self.prefix}step":
            return torch.zeros(())
        return self.trained[name] if kind in {f"{self.prefix}{kind}" for kind in (WEIGHTS, *MOMENTS)} else None

    def keys_of_moments(self) -> set[str]:
        """Under which a state may hold what the optimizer keeps."""
        return {
            self.key(moment, name)
            for name, parameter in self.trained.items()
            for moment in self.optimizer.state_names(parameter)
        }

    @torch.no_grad()
    def put_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Weights by key into the model; what a forward pass had gathered of others is dropped."""
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
        for name, parameter in self.trained.items():
            local(parameter).copy_(local(weights[self.key(WEIGHTS, name)]))

    def put_moments(self, tensors: Mapping[str, Tensor]) -> None:
        """The optimizer's moments by key into the optimizer, which forgets those that it had."""
        self.optimizer.forget()
        for name, parameter in self.trained.items():
            names = self.optimizer.state_names(parameter)
            moments = {moment: tensors[key] for moment in names if (key := self.key(moment, name)) in tensors}
            if moments:
                self.optimizer.take_up(
                    parameter,
                    {
                        moment: kept.clone() if moment == "step" else _like(parameter, kept)
                        for moment, kept in moments.items()
                    },
                )


class HostCopy:
    """Host copies of weights `weights/<parameter>`, the optimizer's moments `<moment>/<parameter>` and random states `random/<kind>/<rank>`.

    `learners` are trained beside the policy, and copied and given back together with it: their kinds begin with name and dot. `extra` is other state.
    """

    def __init__(
        self,
        policy: torch.nn.Module,
        optimizer: Optimizer,
        ranks: Ranks,
        learners: Mapping[str, Learner] = MappingProxyType({}),
        extra: Iterable[ExtraState] = (),
    ) -> None:
        self._extra = tuple(extra)
        self._policy = _Part("", Learner(policy, optimizer))
        self._parts = [self._policy, *(_Part(f"{name}.", learner) for name, learner in learners.items())]
        self._ranks = ranks
        self._buffers: dict[str, Tensor] = {}
        self._weights_buffers: dict[str, Tensor] = {}
        self.tensors: dict[str, Tensor] = {}

    def take(self) -> None:
        """Copy everything as it is now. Nothing reads the copies before this one any more."""
        self.tensors = {
            key: self._copied(key, live, self._buffers) for part in self._parts for key, live in part.live()
        }
        if self._ranks.device.type == "cuda":
            torch.cuda.synchronize()
        self.tensors |= self._random_states()
        for extra in self._extra:
            self.tensors |= extra.tensors()

    def take_weights(self) -> None:
        """Copy the policy's weights alone; what `take` copied last stays as it is."""
        weights = {self._policy.key(WEIGHTS, name): live for name, live in self._policy.trained.items()}
        self.tensors = {key: self._copied(key, live, self._weights_buffers) for key, live in weights.items()}
        if self._ranks.device.type == "cuda":
            torch.cuda.synchronize()

    def expect(self, keys: set[str]) -> dict[str, Tensor]:
        """Tensors to read a state with these keys into. Random states of ranks that are no more are left out. Raises WrongState for what lies
        beside the model and is not of this rank count."""
        for extra in self._extra:
            extra.check(keys)
        for key in keys:
            for part in self._parts:
                if (like := part.like(key)) is not None:
                    self.tensors[key] = self._host_like(key, like, self._buffers)
        self.tensors = {key: tensor for key, tensor in self.tensors.items() if key in keys}
        self.tensors |= {key: state for key, state in self._random_states().items() if key in keys}
        for extra in self._extra:
            if keys >= (empty := extra.empty()).keys():
                self.tensors |= empty
        return self.tensors

    def shapes(self) -> dict[str, torch.Size]:
        """Global shapes of the weights by key, those of the learners beside the policy too."""
        return {
            part.key(WEIGHTS, name): parameter.shape for part in self._parts for name, parameter in part.trained.items()
        }

    def other_moments(self, keys: Collection[str]) -> list[str]:
        """Those keys of a state that another optimizer than this one keeps."""
        ours = {key for part in self._parts for key in part.keys_of_moments()}
        kinds = {f"{part.prefix}{kind}" for part in self._parts for kind in ("step", *MOMENTS)}
        return sorted(key for key in keys if key.partition("/")[0] in kinds and key not in ours)

    def empty_weights(self) -> dict[str, Tensor]:
        """Tensors of their own, to read another version's weights of the policy into."""
        return {
            f"{WEIGHTS}/{name}": self._wrapped(torch.empty(local(live).shape), live)
            for name, live in self._policy.trained.items()
        }

    def give(self) -> None:
        """Put the copy back into models, optimizers and random generators."""
        for part in self._parts:
            part.put_weights(self.tensors)
            part.put_moments(self.tensors)
        for key, state_bytes in self.tensors.items():
            if key == self._random("cpu"):
                torch.set_rng_state(state_bytes)
            elif key == self._random("cuda"):
                torch.cuda.set_rng_state(state_bytes, self._ranks.device)
        for extra in self._extra:
            if self.tensors.keys() >= extra.empty().keys():
                extra.take_up(self.tensors)

    def give_weights(self) -> None:
        """Put the policy's weights alone back; bit for bit, after others were tried out in their place."""
        self.put_weights(self.tensors)

    def put_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Put the weights of some version, by key, into the policy; what a forward pass had gathered of others is dropped."""
        self._policy.put_weights(weights)

    def _copied(self, key: str, live: Tensor, buffers: dict[str, Tensor]) -> Tensor:
        copy = self._host_like(key, live, buffers)
        local(copy).copy_(local(live), non_blocking=True)
        return copy

    @torch.no_grad()
    def _host_like(self, key: str, live: Tensor, buffers: dict[str, Tensor]) -> Tensor:
        """The buffer of this key on the host, sharded as `live` is."""
        part = local(live)
        buffer = buffers.get(key)
        if buffer is None or buffer.shape != part.shape:
            pinned = self._ranks.device.type == "cuda" and part.device.type == "cuda"
            buffer = torch.empty(part.shape, dtype=part.dtype, device="cpu", pin_memory=pinned)
            buffers[key] = buffer
        return self._wrapped(buffer, live)

    @torch.no_grad()
    def _wrapped(self, part: Tensor, live: Tensor) -> Tensor:
        """This rank's part as a tensor that is sharded as `live` is; over the background's group, whatever group trains."""
        if not isinstance(live, DTensor):
            return part
        return DTensor.from_local(
            part, self._ranks.background_mesh, live.placements, run_check=False, shape=live.shape, stride=live.stride()
        )

    def _random_states(self) -> dict[str, Tensor]:
        found = {self._random("cpu"): torch.get_rng_state()}
        if self._ranks.device.type == "cuda":
            found[self._random("cuda")] = torch.cuda.get_rng_state(self._ranks.device)
        return found

    def _random(self, kind: str) -> str:
        return f"random/{kind}/{self._ranks.rank:05d}"


def _like(parameter: torch.nn.Parameter, kept: Tensor) -> Tensor:
    """A moment on the parameter's device, sharded as the parameter is."""
    moment = torch.empty_like(parameter, requires_grad=False)
    local(moment).copy_(local(kept))
    return moment
