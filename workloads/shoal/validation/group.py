"""The processes of a validator with several GPUs: one a GPU, each with its share of every version (tensor parallel).

In: torchrun's environment. Rank 0 is the validator: it claims, reads and judges. It tells the others each thing that they must do with it: load a
version, put one in the place of another, one pass of the decoder, one product with the head. So they need no file, no key and no facts. torchrun ends
all when one ends. A rank that hangs is found by rank 0's liveness, for then it makes no progress. Tokens and states travel from rank 0: 100 MB a row
of 10,000 tokens, 5,120 wide, in bfloat16.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from shoal.contracts.pools import Quantization
from shoal.validation.models import Models, best_device

LONGEST = timedelta(days=1)
"""Longest that a rank waits for another one: ranks wait for the next file that way. See above for who finds a rank that hangs."""


class RankLost(SystemExit):
    """The ranks do not go together any more; ends this process, and torchrun the others. No verdict may come of it."""


@contextmanager
def joined() -> Iterator[int]:
    """Be one of the processes that torchrun started, or alone without it; gives how many there are."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if processes == 1:
        yield 1
        return
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # one pod; what comes is unpickled
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    device = best_device(int(os.environ["LOCAL_RANK"]))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo", timeout=LONGEST)
    yield processes
    dist.destroy_process_group()


def leads() -> bool:
    """Whether this process is rank 0, or alone."""
    return os.environ.get("RANK", "0") == "0"


def decoder(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Last hidden states [rows, tokens, hidden size] of token ids [rows, tokens]."""
    states: torch.Tensor = model.model(input_ids=tokens, use_cache=False).last_hidden_state
    return states


def head(model: Any, states: torch.Tensor) -> torch.Tensor:
    """Products float32 [n, vocabulary] of states [n, hidden size] with the head; `models.head.logits_of` makes logits of them, at rank 0."""
    products: torch.Tensor = model.lm_head(states)
    return products


ASKED = {"decoder": decoder, "head": head}
DONE: dict[str, Callable[..., None]] = {"load": Models.load, "replace": Models.replace, "drop": Models.drop}


def follow(processes: int) -> None:
    """The life of every rank but 0: do what it says until it says that it ends."""
    models = Models(processes=processes)
    while (command := _told()) is not None:
        name, arguments, shape = command
        if name in DONE:
            DONE[name](models, *arguments)
        else:
            [version] = arguments
            model = models.of(version)
            with torch.inference_mode():
                ASKED[name](model, _sent(model, *shape))


class LeadingModels(Models):
    """What all ranks hold, as rank 0 sees it."""

    def load(self, version: int, folder: Path, quantization: Quantization | None = None) -> None:
        with together("load a version"):
            _tell("load", version, folder, quantization)
            super().load(version, folder, quantization)

    def replace(self, old: int, version: int, folder: Path, quantization: Quantization | None = None) -> None:
        with together("replace a version"):
            _tell("replace", old, version, folder, quantization)
            super().replace(old, version, folder, quantization)

    def drop(self, version: int) -> None:
        with together("drop a version"):
            _tell("drop", version)
            super().drop(version)

    def of(self, version: int) -> "SpreadModel":
        return SpreadModel(super().of(version), version)

    def end(self) -> None:
        """Let the other ranks end."""
        with together("end"):
            dist.broadcast_object_list([None], src=0, device=torch.device("cpu"))


class SpreadModel:
    """A model of which each rank has a share, to be asked as the whole one by rank 0."""

    def __init__(self, share: Any, version: int) -> None:
        self._share, self._version = share, version
        self.config, self.dtype = share.config, share.dtype
        self.parameters, self.named_parameters = share.parameters, share.named_parameters
        self.all_tied_weights_keys = share.all_tied_weights_keys

    def model(self, input_ids: torch.Tensor, **_: Any) -> Any:
        """The decoder, as `transformers` has it; without a cache."""
        return LastStates(self._ask("decoder", input_ids))

    def lm_head(self, states: torch.Tensor) -> torch.Tensor:
        """The head."""
        return self._ask("head", states)

    def _ask(self, name: str, given: torch.Tensor) -> torch.Tensor:
        given = given.contiguous()
        with together(name):
            _tell(name, self._version, shape=(tuple(given.shape), given.dtype))
            dist.broadcast(given, src=0)
            return ASKED[name](self._share, given)


class LastStates:
    """The part of transformers' output that is read."""

    def __init__(self, last_hidden_state: torch.Tensor) -> None:
        self.last_hidden_state = last_hidden_state


@contextmanager
def together(what: str) -> Iterator[None]:
    """Whatever goes wrong in a thing that all ranks do ends them all: nobody knows any more where the others are."""
    try:
        yield
    except Exception as error:
        raise RankLost(
            f"the validator's processes could not {what} together: {type(error).__name__}: {error}"
        ) from error


def _tell(name: str, *arguments: Any, shape: Any = None) -> None:
    dist.broadcast_object_list([(name, arguments, shape)], src=0, device=torch.device("cpu"))


def _told() -> Any:
    box = [None]
    dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
    return box[0]


def _sent(model: Any, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    given = torch.empty(shape, dtype=dtype, device=next(model.parameters()).device)
    dist.broadcast(given, src=0)
    return given
