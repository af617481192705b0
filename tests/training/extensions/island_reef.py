"""Memberships of islands at a real lighthouse, without the trainers' loops: what the tests of their meetings share."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
from sft_rows import sft_config
from tiny_run import make_store, ranks, write_base

from shoal.contracts.islands import IslandsSettings, IslandTerms
from shoal.crypto.keys import PrivateKey
from shoal.islands.lighthouse import serve
from shoal.training.extensions.islands.extension import Islands
from shoal.training.extensions.islands.membership import Membership, OwnIsland
from shoal.training.loop import Trainer
from shoal.training.model import load_policy

NAMES = ("island-0", "island-1", "island-2")
ISLAND_KEYS = {name: PrivateKey.from_seed(bytes([index + 99] * 32)) for index, name in enumerate(NAMES)}


class Reef:
    """A lighthouse, and memberships of three islands without their loops: two of three can make a round, one cannot."""

    def __init__(self, folder: Path) -> None:
        self.base, self.store = write_base(folder / "base"), make_store(folder / "store")
        self.lighthouse = serve("127.0.0.1", 0, 10.0, 20.0)
        self.terms = IslandTerms(
            peers={name: key.public for name, key in ISLAND_KEYS.items()},
            publisher=NAMES[0],
            lighthouse=f"http://127.0.0.1:{self.lighthouse.address().rsplit(':', 1)[1]}",
            settings=IslandsSettings(inner_steps=2, exchange="float32", wait_seconds=10.0),
        )
        self.config = sft_config("http://127.0.0.1:9", 3).model_copy(update={"islands": self.terms})
        self.members: list[Membership] = []
        self.problems: list[BaseException] = []

    def member(self, name: str, **settings: object) -> Membership:
        policy = load_policy(self.base, self.config.trainer, ranks(), lambda: None)
        terms = self.terms.model_copy(update={"settings": self.terms.settings.model_copy(update=settings)})
        own = OwnIsland(name, ISLAND_KEYS[name], terms, self.store)
        config = self.config.model_copy(update={"islands": terms})
        self.members.append(Membership(config, own, ranks(), policy, lambda: None))
        return self.members[-1]

    def group_of_two(self, wait_seconds: float) -> None:
        """From now on members are runs of a group, of two."""
        peers = {name: ISLAND_KEYS[name].public for name in NAMES[:2]}
        settings = self.terms.settings.model_copy(update={"wait_seconds": wait_seconds})
        self.terms = self.terms.model_copy(update={"peers": peers, "settings": settings, "group": "both"})
        self.config = self.config.model_copy(update={"islands": self.terms})

    def heard(self, *members: Membership) -> None:
        """The lighthouse knows that they are alive: it lets none meet alone."""
        deadline = time.monotonic() + 60
        while not all(member._island._members.heard for member in members):
            assert time.monotonic() < deadline, "the lighthouse does not hear an island"
            time.sleep(0.02)

    def begun(self, act: Callable[[], object]) -> threading.Thread:
        def go() -> None:
            try:
                act()
            except BaseException as error:
                self.problems.append(error)

        thread = threading.Thread(target=go, daemon=True)
        thread.start()
        return thread

    def ended(self, *threads: threading.Thread) -> None:
        for thread in threads:
            thread.join(60)
        assert not self.problems
        assert not any(thread.is_alive() for thread in threads)


def membership(trainer: Trainer) -> Membership:
    """That of a trainer which is an island."""
    return next(each for each in trainer._extensions if isinstance(each, Islands)).membership


def learnt(member: Membership) -> None:
    """As if the optimizer had made an update."""
    with torch.no_grad():
        for tensor in member._island._parameters._named.values():
            tensor.detach().add_(0.01)
    member.due()
