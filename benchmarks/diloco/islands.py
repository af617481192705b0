"""Islands as processes, on this machine or in namespaces with shaped links, and plain data parallel training beside them.

In: a setting. Out: what each process wrote: losses, rounds, seconds, bytes. Processes are forked after torch was imported once. Called by `__main__`.
"""

import json
import os
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.distributed.distributed_c10d import AllreduceOptions
from torchft.process_group import ProcessGroupGloo

from benchmarks.diloco.delay import enter
from benchmarks.diloco.task import Learner
from shoal.contracts.islands import ExchangeType
from shoal.crypto.keys import PrivateKey
from shoal.islands.island import Island, MeetingStore
from shoal.islands.lighthouse import serve
from shoal.islands.setting import IslandPlace, IslandSettings

PATIENCE_SECONDS = 1500.0
KEYS = {f"island-{index}": PrivateKey.from_seed(bytes([index + 1] * 32)) for index in range(8)}
ALONE: Any = SimpleNamespace(
    rank=0, world=1, leader=True, group=None, broadcast=lambda value, what: value, all=lambda flag, what: flag
)


@dataclass(frozen=True)
class Host:
    """Where a process runs: an address, and a network namespace or none."""

    address: str = "127.0.0.1"
    namespace: str | None = None


@dataclass(frozen=True)
class Setting:
    """`updates` of every island in all, `rows` of each update of one island."""

    base: Path
    seed: int
    updates: int
    inner_steps: int
    rows: int
    exchange: ExchangeType = "float16"


def run_islands(setting: Setting, hosts: list[Host], folder: Path) -> list[dict[str, Any]]:
    """Train one island a host (the first host has the lighthouse too); what each found."""
    folder.mkdir(parents=True)
    port_file = folder / "port"

    def lighthouse() -> None:
        server = serve(hosts[0].address, 0, 60.0)
        (folder / "port.new").write_text(server.address().rsplit(":", 1)[1])
        (folder / "port.new").rename(port_file)
        signal.pause()

    meeting = _fork(lighthouse, hosts[0], folder / "lighthouse.log")
    try:
        _until(port_file.exists, "the lighthouse to listen")
        url = f"http://{hosts[0].address}:{port_file.read_text()}"
        return _all(
            [partial(_island, setting, index, len(hosts), host, url) for index, host in enumerate(hosts)],
            hosts,
            folder,
        )
    finally:
        os.kill(meeting, signal.SIGKILL)
        os.waitpid(meeting, 0)


def _island(setting: Setting, index: int, count: int, host: Host, lighthouse: str) -> dict[str, Any]:
    name = f"island-{index}"
    learner = Learner.start(setting.base, setting.seed, setting.updates)
    settings = IslandSettings(setting.inner_steps, setting.exchange, wait_seconds=60.0, join_seconds=300.0)
    island = Island(
        IslandPlace("bench", name, KEYS[name], _known(count), lighthouse, host.address),
        settings,
        ALONE,
        learner.parameters,
    )
    while (met := island.join()) is None or len(met.islands) < count:
        pass
    started, sent_before = time.monotonic(), _sent(host)
    rounds: list[dict[str, Any]] = []
    computing = 0.0
    for number in range(setting.updates):
        began = time.monotonic()
        learner.update(number, [index], setting.rows)
        computing += time.monotonic() - began
        said = island.exchange(number + 1) if island.due() else None
        if said is not None:
            rounds.append(
                {
                    "seconds": round(said.seconds, 3), "sent_bytes": said.sent_bytes, "round": said.round,
                    "contributors": len(said.contributors), "left_out": said.left_out, "digest": island.shared.digest(),
                }
            )  # fmt: skip
    elapsed = time.monotonic() - started
    sent = _sent(host) - sent_before
    island.close()
    return {
        "held_out": learner.held_out(), "tokens": learner.tokens, "rounds": rounds, "seconds": elapsed,
        "computing": computing, "link_bytes": sent, "values": sum(p.numel() for p in learner.parameters.values()),
    }  # fmt: skip


def _known(count: int) -> dict[str, str]:
    return {name: key.public for name, key in list(KEYS.items())[:count]}


def run_data_parallel(setting: Setting, count: int) -> dict[str, Any]:
    """The same rows in updates of all workers' rows together: what data parallel training computes, wherever its gradients are summed."""
    learner = Learner.start(setting.base, setting.seed, setting.updates)
    for number in range(setting.updates):
        learner.update(number, list(range(count)), setting.rows)
    return {"held_out": learner.held_out(), "tokens": learner.tokens}


def run_gradient_exchange(setting: Setting, hosts: list[Host], folder: Path) -> list[dict[str, Any]]:
    """Plain data parallel training over the same links: an update and one all-reduce of float32 gradients, `updates` times; seconds and bytes."""
    folder.mkdir(parents=True)

    def rank(index: int) -> dict[str, Any]:
        learner = Learner.start(setting.base, setting.seed, setting.updates)
        address = folder / "store"
        if index == 0:
            store = MeetingStore(hosts[0].address)
            (folder / "store.new").write_text(store.address)
            (folder / "store.new").rename(address)
        _until(address.exists, "the store to listen")
        group = ProcessGroupGloo(timeout=timedelta(seconds=120))
        group.configure(f"{address.read_text()}/gradients", str(index), index, len(hosts))
        gradient = torch.zeros(sum(parameter.numel() for parameter in learner.parameters.values()))
        group.allreduce([torch.zeros(1)], AllreduceOptions()).wait()
        started, before, computing = time.monotonic(), _sent(hosts[index]), 0.0
        for number in range(setting.updates):
            began = time.monotonic()
            learner.update(number, [index], setting.rows)
            computing += time.monotonic() - began
            group.allreduce([gradient], AllreduceOptions()).wait()
        return {
            "seconds": time.monotonic() - started, "computing": computing, "tokens": learner.tokens,
            "link_bytes": _sent(hosts[index]) - before,
        }  # fmt: skip

    return _all([partial(rank, index) for index in range(len(hosts))], hosts, folder)


def _all(acts: list[Callable[[], dict[str, Any]]], hosts: list[Host], folder: Path) -> list[dict[str, Any]]:
    """Run one process each, to their ends. Raises RuntimeError with the log of one that fails."""
    children = {}
    for index, (act, host) in enumerate(zip(acts, hosts, strict=True)):

        def run(act: Callable[[], dict[str, Any]] = act, index: int = index) -> None:
            (folder / f"{index}.json").write_text(json.dumps(act()))

        children[_fork(run, host, folder / f"{index}.log")] = index
    deadline = time.monotonic() + PATIENCE_SECONDS
    try:
        while children:
            child, status = os.waitpid(next(iter(children)), os.WNOHANG)
            if child:
                index = children.pop(child)
                if status:
                    raise RuntimeError(f"process {index}: {(folder / f'{index}.log').read_text()[-2000:]}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"not done within {PATIENCE_SECONDS:.0f} s; see {folder}")
            time.sleep(0.05)
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    return [json.loads((folder / f"{index}.json").read_text()) for index in range(len(acts))]


def _fork(act: Callable[[], None], host: Host, log: Path) -> int:
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ["GLOO_SOCKET_IFNAME"] = "lo" if host.namespace is None else "eth0"
        if host.namespace is not None:
            enter(host.namespace)
        torch.set_num_threads(torch.get_num_threads())  # before another thread does: see forked_ranks
        act()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _sent(host: Host) -> int:
    """Bytes that left this host's link so far, headers and resends included; 0 on loopback."""
    if host.namespace is None:
        return 0
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "eth0":
            return int(numbers.split()[8])
    raise RuntimeError(f"host {host.namespace} has no link")


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited 120 s for {what}")
        time.sleep(0.05)
