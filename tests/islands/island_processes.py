"""Islands as processes that can be killed, each training a tiny model on rows of a data set; run by `test_island_deaths` as a program of its own.

Called with a scenario's name and an empty folder. Every island writes a line of JSON a round into `<name>.jsonl`; what the scenario saw goes into
`seen.json`. The processes are forked after torch has been imported once, which is most of what they would cost.
"""

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path += [str(Path(__file__).parent.parent), str(Path(__file__).parent.parent / "training")]

from island_crowd import ALONE, HOST, KEYS, RUN, known
from sft_rows import sample, sft_rows, sft_settings
from tiny_run import write_base

from shoal.islands.island import Island
from shoal.islands.lighthouse import serve
from shoal.islands.setting import Exchanged, IslandPlace, IslandSettings
from shoal.training.model import load_policy
from shoal.training.optimizer import Optimizer
from shoal.training.parallel import start_ranks
from shoal.training.sft.method import batch_of, learn

INNER_STEPS = 3
WAIT_SECONDS, SILENCE_SECONDS = 5.0, 5.0
PATIENCE_SECONDS = 200.0
"""For any one thing that must happen; each takes seconds where nothing else runs."""
SETTINGS = IslandSettings(
    inner_steps=INNER_STEPS,
    exchange="int8",
    wait_seconds=WAIT_SECONDS,
    join_seconds=PATIENCE_SECONDS,
    connect_seconds=10.0,
    copy_seconds=10.0,
    transfer_seconds=10.0,
)


def train(name: str, folder: Path, port: int, count: int, rank: int = 0, world: int = 1, ranks_port: int = 0) -> None:
    """Train until killed: supervised fine-tuning on this island's own rows, sharded where it has several ranks."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    number = int(name.rpartition("-")[2])
    ranks = ALONE
    if world > 1:
        environment = {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank), "MASTER_ADDR": HOST}
        os.environ |= environment | {"MASTER_PORT": str(ranks_port), "SHOAL_BIND": HOST}
        ranks = start_ranks("cpu", deadline_seconds=PATIENCE_SECONDS)
    policy = load_policy(folder / "base", None, ranks if world > 1 else None)
    parameters = {key: value for key, value in policy.named_parameters() if value.requires_grad}
    optimizer = Optimizer(policy.parameters(), sft_settings(learning_rate=1e-3))
    place = IslandPlace(RUN, name, KEYS[name], known(count), f"http://{HOST}:{port}", HOST)
    island = Island(place, SETTINGS, ranks, parameters)
    rows = [sample(row) for row in sft_rows(40, seed=number)]
    chance = np.random.default_rng([number, time.time_ns() if world == 1 else 0])
    written = f"{name}.{rank}" if world > 1 else name
    note(folder, written, island, island.join(), None)
    position = island.position
    while True:
        chosen = [rows[index] for index in chance.integers(0, len(rows), 4)]
        loss = learn(policy, optimizer, [batch_of(chosen, 64, rank, world)], 64, lambda: None).loss
        position += 1
        time.sleep(0.02)  # two cores for all: leave some to the others
        said = island.exchange(position) if island.due() else None
        if said is not None:
            position = said.position
            note(folder, written, island, said, loss)


def note(folder: Path, name: str, island: Island, said: Exchanged | None, loss: float | None) -> None:
    if said is None:
        return
    line = {
        "pid": os.getpid(), "round": said.round, "digest": island.shared.digest(), "loss": loss,
        "in_place": bool(torch.equal(island._parameters.read(), island.shared.weights)), "islands": said.islands,
        "contributors": said.contributors, "joined": said.joined, "position": said.position,
    }  # fmt: skip
    with (folder / f"{name}.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


class Fleet:
    """The processes of a scenario. All are gone when it ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.count = 2
        self.pids: dict[str, int] = {}
        write_base(folder / "base")
        self.port = 0
        self.lighthouse()

    def lighthouse(self) -> None:
        """Start it, the second time at the same port."""

        def run() -> None:
            server = serve(HOST, self.port, WAIT_SECONDS, SILENCE_SECONDS)
            port = server.address().rsplit(":", 1)[1]
            (self.folder / "port.new").write_text(port)
            (self.folder / "port.new").rename(self.folder / "port")
            while True:
                time.sleep(60)

        (self.folder / "port").unlink(missing_ok=True)
        self._fork("lighthouse", run)
        self.until("the lighthouse listens", (self.folder / "port").exists)
        self.port = int((self.folder / "port").read_text())

    def start(self, *names: str) -> None:
        for name in names:
            self._fork(name, lambda name=name: train(name, self.folder, self.port, self.count))

    def start_sharded(self, name: str, world: int) -> None:
        """An island of several ranks; each writes a file of its own."""
        with socket.create_server((HOST, 0)) as free:
            port = free.getsockname()[1]
        for rank in range(world):
            self._fork(
                f"{name}.{rank}", lambda rank=rank: train(name, self.folder, self.port, self.count, rank, world, port)
            )

    def kill(self, name: str) -> None:
        os.kill(self.pids[name], signal.SIGKILL)
        os.waitpid(self.pids.pop(name), 0)

    def signal(self, name: str, number: int) -> None:
        os.kill(self.pids[name], number)

    def lines(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / f"{name}.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    def until(self, what: str, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            for name, pid in self.pids.items():
                if os.waitpid(pid, os.WNOHANG)[0]:
                    sys.exit(f"{name} ended by itself while waiting until {what}")
            if time.monotonic() > deadline:
                sys.exit(f"not within {PATIENCE_SECONDS:.0f} s: {what}")
            time.sleep(0.1)

    def rounds_of(self, *names: str, more: int = 2) -> None:
        """Wait until these have made so many rounds more, with one another and nobody else."""
        before = {name: len(self.lines(name)) for name in names}
        islands = sorted({name.partition(".")[0] for name in names})

        def done() -> bool:
            return all(
                sum(1 for line in self.lines(name)[before[name] :] if line["contributors"] == islands) >= more
                for name in names
            )

        self.until(f"{names} made {more} rounds", done)

    def close(self) -> None:
        for name in list(self.pids):
            self.signal(name, signal.SIGCONT)
            self.kill(name)

    def _fork(self, name: str, run: Callable[[], None]) -> None:
        child = os.fork()
        if child == 0:
            try:
                output = os.open(self.folder / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
                os.dup2(output, 1)
                os.dup2(output, 2)
                torch.set_num_threads(torch.get_num_threads())  # before another thread does: see forked_ranks
                run()
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                os._exit(1)
        self.pids[name] = child


def deaths(fleet: Fleet, count: int) -> dict[str, Any]:
    """Every island in turn is killed, the others go on, and it comes back."""
    fleet.count = count
    names = [f"island-{index}" for index in range(count)]
    fleet.start(*names)
    fleet.rounds_of(*names)
    for name in names:
        others = [other for other in names if other != name]
        fleet.kill(name)
        fleet.rounds_of(*others)
        fleet.start(name)
        fleet.rounds_of(*names)
    return {"names": names}


def slow(fleet: Fleet, count: int) -> dict[str, Any]:
    """One island stands still for a while; the lighthouse dies and comes back."""
    fleet.count = count
    names = [f"island-{index}" for index in range(count)]
    fleet.start(*names)
    fleet.rounds_of(*names)
    fleet.signal(names[0], signal.SIGSTOP)
    fleet.rounds_of(*names[1:])
    fleet.signal(names[0], signal.SIGCONT)
    fleet.rounds_of(*names)
    fleet.kill("lighthouse")
    time.sleep(2.0)
    fleet.lighthouse()
    fleet.rounds_of(*names)
    return {"names": names}


def sharded(fleet: Fleet) -> dict[str, Any]:
    """Two islands of two ranks each; one dies and comes back."""
    parts = {name: [f"{name}.0", f"{name}.1"] for name in ("island-0", "island-1")}
    for name in parts:
        fleet.start_sharded(name, 2)
    names = [part for both in parts.values() for part in both]
    fleet.rounds_of(*names)
    for part in parts["island-0"]:
        fleet.kill(part)
    fleet.rounds_of(*parts["island-1"])
    fleet.start_sharded("island-0", 2)
    fleet.rounds_of(*names)
    return {"names": names}


SCENARIOS: dict[str, Callable[[Fleet], dict[str, Any]]] = {
    "two": lambda fleet: deaths(fleet, 2),
    "four": lambda fleet: deaths(fleet, 4),
    "sharded": sharded,
    "slow": lambda fleet: slow(fleet, 2),
}


def main() -> None:
    folder = Path(sys.argv[2])
    fleet = Fleet(folder)
    try:
        seen = SCENARIOS[sys.argv[1]](fleet)
        (folder / "seen.json").write_text(json.dumps(seen))
    finally:
        fleet.close()


if __name__ == "__main__":
    main()
