"""The trainer's processes: which one this is, and how they agree.

In: torchrun's environment (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT), or nothing, which is a group of one. Out: `Ranks`, with a device,
a mesh to shard over, and small agreements between all ranks. Every agreement has a deadline: a peer that hangs or is gone ends this
process with a word on what was waited for, and the attempt that follows resumes. Called by `__main__` and `loop`.
"""

import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Generic, TypeVar

import structlog
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from shoal.retries import Words
from shoal.telemetry.waiting import SAY_EVERY_SECONDS

Value = TypeVar("Value")

COLLECTIVE_SECONDS = 600.0
"""Longest that one rank waits for the others in one collective. All long waits (batch, store, base model) are made of many short
agreements, so what is left is the difference between ranks within one micro-batch."""
AGREE_SECONDS = 0.25
"""Between two agreements of a long wait."""
SHARD_DIMENSION = "shard"


class PeerLost(RuntimeError):
    """Another rank did not come to an agreement in time, or is gone; the message says which agreement."""


class BadDivision(ValueError):
    """The ranks cannot be divided as the settings say; the message says what can."""


@dataclass(frozen=True)
class ContextGroup:
    """The ranks that share each pack, `size` of them in a row, and this one's place among them (`context_parallel`)."""

    rank: int
    size: int
    group: dist.ProcessGroup = field(repr=False)


@dataclass(frozen=True)
class Ranks:
    """One process among the trainer's: `rank` of `world`, `local_rank` on its machine; `mesh` has one dimension over all ranks.

    `background` and `background_mesh` are a group of its own for the thread that publishes, `saving` one for the thread that saves states: so
    their collectives, all on the host, never meet the training's or each other's. `group` is the one that the agreements below go through:
    the training's, unless these are the ranks `in_background` or `while_saving`.
    """

    rank: int
    world: int
    local_rank: int
    device: torch.device
    mesh: DeviceMesh
    background: dist.ProcessGroup = field(repr=False)
    background_mesh: DeviceMesh = field(repr=False)
    saving: dist.ProcessGroup = field(repr=False)
    group: dist.ProcessGroup | None = field(default=None, repr=False)
    on_a_machine: int = 1
    """Ranks of each machine; those of the leader's are the first."""
    context_group: ContextGroup | None = None
    """Who shares this rank's packs; None: nobody does. Weights are sharded over all ranks either way, and states are the same."""

    @property
    def leader(self) -> bool:
        """One rank of all speaks to the orchestrator, seals states and writes the outbox."""
        return self.rank == 0

    @property
    def first_on_node(self) -> bool:
        """One rank of a machine serves health and fetches what all of that machine read from its disk."""
        return self.local_rank == 0

    @property
    def data_rank(self) -> int:
        """Which packs this rank computes, alone or with its context group: those of one of `data_world` shares."""
        return self.rank if self.context_group is None else self.rank // self.context_group.size

    @property
    def data_world(self) -> int:
        return self.world if self.context_group is None else self.world // self.context_group.size

    @property
    def counts_packs(self) -> bool:
        """One rank of those that share a pack counts what all of them know of it."""
        return self.context_group is None or self.context_group.rank == 0

    @property
    def in_background(self) -> "Ranks":
        """The same, agreeing among the background threads."""
        return replace(self, group=self.background)

    @property
    def while_saving(self) -> "Ranks":
        """The same, agreeing among the threads that save states."""
        return replace(self, group=self.saving)

    def broadcast(self, value: Value, what: str) -> Value:
        """The leader's value on every rank; `what` says in an error what is being agreed on. For small objects."""
        if self.world == 1:
            return value
        box = [value]
        with waiting_for(what, self.rank):
            dist.broadcast_object_list(box, src=0, device=torch.device("cpu"), group=self.group)
        return box[0]

    def any(self, flag: bool, what: str) -> bool:
        """Whether `flag` is true on one rank at least."""
        return flag if self.world == 1 else self._sum(int(flag), what) > 0

    def all(self, flag: bool, what: str) -> bool:
        """Whether `flag` is true on every rank."""
        return flag if self.world == 1 else self._sum(int(flag), what) == self.world

    def same(self, value: object, what: str) -> bool:
        """Whether every rank has a value equal to the leader's."""
        return self.world == 1 or self.all(self.broadcast(value, what) == value, what)

    def each_does(
        self, what: str, action: Callable[[], Value], beat: Callable[[], None], *, first_of_node: bool = False
    ) -> Value | None:
        """Run `action`, which may take longer than a collective or a sign of life may, on every rank; `beat` is called on all meanwhile,
        and the log says each minute what is waited for.

        With `first_of_node` it runs on one rank of each machine, and the others get None. An error of the action is raised where it
        ran, and `PeerLost` elsewhere.
        """
        task = _Task(action) if self.first_on_node or not first_of_node else None
        began, words = time.monotonic(), Words(SAY_EVERY_SECONDS)
        while True:
            if task is not None:
                task.thread.join(AGREE_SECONDS)  # ranks without a task wait for those with one in the agreements below
            beat()
            if words.due(began):
                waited = round(time.monotonic() - began)
                structlog.get_logger().info("waiting", for_what=what, waited_seconds=waited)
            done = task is None or not task.thread.is_alive()
            error = task.error if done and task is not None else None
            if self.any(error is not None, what):
                raise error or PeerLost(
                    f"rank {self.rank} waited for {what}, which failed on another rank; its log says why"
                )
            if self.all(done, what):
                return None if task is None else task.value

    def close(self) -> None:
        """Leave the groups; for tests, where a process has several lives."""
        dist.destroy_process_group()

    def _sum(self, value: int, what: str) -> int:
        total = torch.tensor([value])
        with waiting_for(what, self.rank):
            dist.all_reduce(total, group=self.group)
        return int(total)


class _Task(Generic[Value]):
    """An action in a thread, with its outcome."""

    def __init__(self, action: Callable[[], Value]) -> None:
        self.value: Value | None = None
        self.error: BaseException | None = None
        self._action = action
        self.thread = threading.Thread(target=self._run, name="long-action", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.value = self._action()
        except BaseException as error:  # raised again in the main thread
            self.error = error


@contextmanager
def waiting_for(what: str, rank: int) -> Iterator[None]:
    """Turn what torch says about a lost or hung peer into `PeerLost`, which says what was waited for."""
    started = time.monotonic()
    try:
        yield
    except (RuntimeError, pickle.UnpicklingError) as error:  # torch has no narrower kind for these
        if dist.is_initialized() and dist.get_world_size() == 1:
            raise
        raise PeerLost(
            f"rank {rank} waited {time.monotonic() - started:.0f} s for the other ranks to agree on {what}; the deadline is"
            f" {COLLECTIVE_SECONDS:.0f} s. One of them hangs or has ended: {str(error).strip().splitlines()[0][:200]}"
        ) from error


def start_ranks(
    device: str | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    deadline_seconds: float = COLLECTIVE_SECONDS,
    context_parallel: int = 1,
) -> Ranks:
    """Join the group that torchrun's environment names, or make a group of one without it.

    `device` is `cpu` or `cuda`; without it an accelerator is used where there is one. `context_parallel` ranks in a row share each pack.
    Raises `PeerLost` when the other ranks do not come, `BadDivision` when the ranks are no multiple of `context_parallel`.
    """
    given = os.environ if environment is None else environment
    rank, world, local_rank = (int(given.get(name, default)) for name, default in TORCHRUN)
    if world % context_parallel:
        raise BadDivision(
            f"the trainer has {world} ranks, and {context_parallel} are to share each pack; allowed: a divisor of {world}"
        )
    kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
    here = torch.device(kind, local_rank) if kind == "cuda" else torch.device(kind)
    if kind == "cuda":
        torch.cuda.set_device(here)
    _stay_on_loopback(given)
    one_machine = world > 1 and given.get("LOCAL_WORLD_SIZE") == str(world)
    if one_machine:
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    backend = "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo"
    timeout = timedelta(seconds=deadline_seconds)
    with waiting_for("who takes part", rank), _gloo_on_loopback() if one_machine else nullcontext():
        if world == 1:
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, timeout=timeout)
        else:
            dist.init_process_group(backend, rank=rank, world_size=world, timeout=timeout)
        mesh = init_device_mesh(kind, (world,), mesh_dim_names=(SHARD_DIMENSION,))
        background = dist.new_group(backend="gloo", timeout=timeout)
        background_mesh = DeviceMesh.from_group(background, "cpu", mesh_dim_names=(SHARD_DIMENSION,))
        saving = dist.new_group(backend="gloo", timeout=timeout)
        sharing = None
        if context_parallel > 1:
            group, _ = dist.new_subgroups(context_parallel, timeout=timeout)
            sharing = ContextGroup(rank % context_parallel, context_parallel, group)
    on_a_machine = int(given.get("LOCAL_WORLD_SIZE", "1"))
    return Ranks(
        rank,
        world,
        local_rank,
        here,
        mesh,
        background,
        background_mesh,
        saving,
        on_a_machine=on_a_machine,
        context_group=sharing,
    )


@contextmanager
def _gloo_on_loopback() -> Iterator[None]:
    """Groups of the ranks of one machine listen on loopback: they unpickle what they get. Groups made later, with other trainers, do not."""
    before = os.environ.get("GLOO_SOCKET_IFNAME")
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    try:
        yield
    finally:
        if before is None:
            del os.environ["GLOO_SOCKET_IFNAME"]
        else:
            os.environ["GLOO_SOCKET_IFNAME"] = before


TORCHRUN = (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"))


def _stay_on_loopback(given: Mapping[str, str]) -> None:
    """On one machine every listener stays on loopback; gloo would take the address of the host's name."""
    if given.get("SHOAL_BIND", "").startswith("127."):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
