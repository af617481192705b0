"""Islands as threads of one process, around a real lighthouse: enough for all that does not need a process to die."""

import threading
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from shoal.crypto.keys import PrivateKey
from shoal.islands.island import Island
from shoal.islands.lighthouse import serve
from shoal.islands.setting import Exchanged, IslandPlace, IslandSettings

RUN = "archipelago"
HOST = "127.0.0.1"
KEYS = {f"island-{index}": PrivateKey.from_seed(bytes([index + 1] * 32)) for index in range(6)}
KNOWN = {name: key.public for name, key in KEYS.items()}


def known(count: int) -> dict[str, str]:
    """The public keys of the first so many islands."""
    return {name: KNOWN[name] for name in sorted(KNOWN)[:count]}


ALONE: Any = SimpleNamespace(
    rank=0, world=1, leader=True, group=None, broadcast=lambda value, what: value, all=lambda flag, what: flag
)
SETTINGS = IslandSettings(
    inner_steps=1, wait_seconds=30.0, join_seconds=60.0, connect_seconds=30.0, copy_seconds=30.0, transfer_seconds=30.0
)


class Crowd:
    """A lighthouse, and islands with a parameter vector each. On a busy machine nobody is taken for dead or late within these seconds."""

    def __init__(self, wait_seconds: float = 60.0, silence_seconds: float = 60.0) -> None:
        self.known = KNOWN
        self.excluded: tuple[str, ...] = ()
        self.lighthouse = serve(HOST, 0, wait_seconds, silence_seconds)
        self.port = int(self.lighthouse.address().rsplit(":", 1)[1])
        self.islands: dict[str, Island] = {}
        self.parameters: dict[str, torch.Tensor] = {}

    def island(
        self,
        index: int,
        values: torch.Tensor,
        settings: IslandSettings = SETTINGS,
        beat: Callable[[], None] = lambda: None,
    ) -> Island:
        """Add an island whose parameters begin as `values`."""
        name = f"island-{index}"
        place = IslandPlace(
            RUN, name, KEYS[name], self.known, f"http://{HOST}:{self.port}", HOST, excluded=self.excluded
        )
        self.parameters[name] = values.clone()
        self.islands[name] = Island(place, settings, ALONE, {"weight": self.parameters[name]}, beat)
        return self.islands[name]

    def all(self, act: Callable[[Island], Any], islands: Sequence[Island] | None = None) -> list[Any]:
        """What `act` gives on every island, all at once; an error of one is raised."""
        chosen = list(self.islands.values()) if islands is None else list(islands)
        found: list[Any] = [None] * len(chosen)
        errors: list[BaseException] = []

        def run(index: int, island: Island) -> None:
            try:
                found[index] = act(island)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in enumerate(chosen)]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 200
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if errors:
            raise errors[0]
        assert not any(thread.is_alive() for thread in threads), "an island hangs"
        return found

    def exchange(self, islands: Sequence[Island] | None = None, position: int = 1) -> list[Exchanged | None]:
        return self.all(lambda island: island.exchange(position), islands)

    def exchange_until(self, islands: Sequence[Island], done: Callable[[list[Any]], bool]) -> list[Any]:
        """Rounds until one is as it must become, once the lighthouse has missed whoever is gone."""
        deadline = time.monotonic() + 150
        while not done(said := self.exchange(islands)):
            assert time.monotonic() < deadline, f"the last round was {said}"
        return said

    def close(self) -> None:
        for island in self.islands.values():
            island.close()
        self.lighthouse.shutdown()
