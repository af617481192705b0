"""The trainer as one of several islands: what it must know of itself, its rounds between updates, and the shared state in its own states.

In: the run's `islands`, this island's key, the policy. Out: the policy changed at every round, metrics of rounds, and how far the islands are. A
restarted island joins: it copies the state that the others share. An island of one run continues from where they are; one of a group is a run of its
own, and keeps its own steps. Made by `extension`, which tells it of every update.
"""

import hashlib
import json
import math
import socket
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from prometheus_client import Counter, Gauge
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from shoal import telemetry
from shoal.contracts.islands import CertificateLink, IslandDifference, IslandsProgress, IslandTerms
from shoal.contracts.run import RunConfig, bind_address, home
from shoal.crypto.keys import PrivateKey
from shoal.islands import library
from shoal.islands.contributions import padded, unpadded
from shoal.islands.island import Island
from shoal.islands.setting import Exchanged, IslandPlace, IslandSettings
from shoal.islands.shared import Meta, SharedState
from shoal.storage import Store
from shoal.training.host_copy import local, trained
from shoal.training.model import Policy
from shoal.training.parallel import Ranks
from shoal.training.state import WrongState
from shoal.training.waits import Waits

JOIN_DEADLINE_SECONDS = 2 * 3600.0
"""How long a trainer that starts waits for a round of the others: rounds of 500 large updates take an hour. Then it trains on from its own state.
An island that begins the run also waits this long for all islands: one that starts later finds its rows of the first rounds gone by."""
GATHER_SECONDS = 600.0
"""How long the first runs of a group wait for the others before their first step. Whoever comes later copies what they share, and loses nothing."""
LONGEST_PATIENCE_SECONDS = 3600.0
"""That an island waits for the others between two steps, or before the first round, however long its own take."""
FINISH_DEADLINE_SECONDS = 3600.0
"""How long an island that has made its last update tries to exchange what it learnt since the last round. Then its result goes without it."""
LINGER_DEADLINE_SECONDS = 24 * 3600.0
"""How long an island that is done waits for the run's result, and serves the shared state to one that restarted."""
OWED_SECONDS = 5.0
"""That an exchange which is overdue looks for the others after a step. One that waits for its own is met within that."""
PAUSE_SECONDS, HELD_PAUSE_SECONDS = 2.0, 15.0
"""Between two meetings of an island that waits; the longer one where a member has other settings, which takes an edit. Such a meeting, and one of an
island alone, takes no time at all."""
SAID_BYTES = 1 << 16
"""Room in a training state for numbers and certificate: a certificate of sixteen islands with eight links takes about 30 kB."""
PREFIX = "island/"
"""Before the keys of the shared state in a training state."""
ANYWHERE = ("0.0.0.0", "::")  # noqa: S104 - compared with, not bound

ROUND = Gauge("shoal_island_round", "Rounds that made the shared state of this island.")
ROUNDS = Counter(
    "shoal_island_rounds_total",
    "Exchanges that succeeded (made), failed (missed), or were not made because a member has other settings (held).",
    ["outcome"],
)
for _outcome in ("made", "missed", "held"):  # from the start: a rate misses the first of a series that begins with it
    ROUNDS.labels(_outcome)
MISSED = Gauge("shoal_island_missed", "Exchanges since the last round that failed.")
DIFFERS = Gauge(
    "shoal_island_differs",
    "1 for each setting of a member that differed from this island's at the last exchange; no round is made while there is one.",
    ["island", "setting"],
)
ROUND_SECONDS = Gauge("shoal_island_round_seconds", "Time of the last exchange, including waits for other islands.")
WAITED = Counter("shoal_island_exchange_seconds_total", "Time that training stopped for exchanges.")
SENT = Counter("shoal_island_sent_bytes_total", "Bytes sent to other islands.")
MEMBERS = Gauge("shoal_island_members", "Islands in the last exchange, including this one.")
LEFT_OUT = Gauge("shoal_island_left_out", "Islands of the last exchange whose contribution did not count fully.")


@dataclass(frozen=True)
class OwnIsland:
    """Which island this trainer is. `store` is where its states and reports lie: the run's own for the publisher."""

    name: str
    key: PrivateKey
    terms: IslandTerms
    store: Store

    @property
    def publishes(self) -> bool:
        return self.name == self.terms.publisher


def own_island(
    config: RunConfig, store: Store, open_own: Callable[[str], Store], folder: Path | None = None
) -> OwnIsland | None:
    """The island whose key lies in `secrets/island.pem`; None where the run has none. Raises ValueError for a foreign key; NoLibrary."""
    if config.islands is None:
        return None
    library.check()
    key = PrivateKey.load((folder or home() / "secrets") / "island.pem")
    name = next((name for name, public in config.islands.peers.items() if public == key.public), None)
    if name is None:
        raise ValueError(
            f"secrets/island.pem holds {key.public[:12]}..., which is not an island of this run: {sorted(config.islands.peers)}"
        )
    return OwnIsland(name, key, config.islands, store if name == config.islands.publisher else open_own(name))


class Membership:
    """This trainer's place among the islands. All ranks call its methods alike. `sign_of_life` is called while it waits.

    A training state also holds the shared state, each rank its part: `tensors`, `empty`, `check` and `take_up` are those of `host_copy.ExtraState`.
    """

    def __init__(
        self, config: RunConfig, own: OwnIsland, ranks: Ranks, policy: Policy, sign_of_life: Callable[[], None]
    ) -> None:
        terms = own.terms
        names = sorted(terms.peers)
        self.federated = terms.group is not None
        """Each island is a run of its own, with data and steps of its own."""
        self.shares, self.share = (1, 0) if self.federated else (len(names), names.index(own.name))
        """Into how many parts the run's rows go, and which of them this island learns."""
        self.jumped = False
        """The weights were replaced by a state that others had come to: what was sampled before is of no use to them."""
        self.left_behind = -1
        """Versions up to this one are from before such a jump. Part of the training state, since their rollouts may come after a restart."""
        self._names = sorted(set(names) - set(terms.excluded))
        """Who may be met, this island included."""
        self._last_made: tuple[float, list[str]] | None = None
        """When the last round of this process was made, Unix time, and who stood in it."""
        self._missed = 0
        """Exchanges since then."""
        self._finishing = False
        """The last exchange has been missed once, and is tried again."""
        self._ranks = ranks
        self._key = f"{ranks.rank:05d}-of-{ranks.world:05d}"

        def beat() -> None:
            sign_of_life()
            if telemetry.STOP.is_set():
                raise telemetry.Stopped("asked to stop while exchanging with other islands")

        bind = bind_address()
        self._island = Island(
            IslandPlace(
                terms.group or config.run,
                own.name,
                own.key,
                terms.peers,
                terms.lighthouse,
                bind,
                _reached_at(bind),
                terms.excluded,
            ),
            IslandSettings(
                inner_steps=terms.settings.inner_steps,
                exchange=terms.settings.exchange,
                wait_seconds=terms.settings.wait_seconds,
            ),
            ranks,
            dict(trained(policy)),
            beat,
            frozen_digest(policy),
        )
        self._beat = beat
        self._fresh = True
        """Nothing was learnt since the last round."""
        self._step_began = time.monotonic()
        self._step_seconds = 0.0
        """Of the last updates that were counted, whatever they waited for."""
        self._round_began = time.monotonic()
        self._sft = config.sft is not None

    @property
    def position(self) -> int:
        """The step that the islands are at, as of the last round."""
        return self._island.position

    def join(self, step: int) -> None:
        """Before the first step: copy what the others share, as soon as they make a round; without one, continue from what is here. Where nobody has
        anything yet, the run begins with all islands, or with those that came until the deadline. A run of a group does not wait for the others'
        round when it finds itself alone, or a member with other settings."""
        began = time.monotonic()
        while True:
            said = self._timed(lambda: self._island.join(step))
            if said is not None and (step > 0 or said.round > 0 or len(said.islands) == len(self._names)):
                break
            seconds = JOIN_DEADLINE_SECONDS
            last = self._island.last
            if self.federated and (said is not None or last.held or not last.company):
                seconds = GATHER_SECONDS if step == 0 else 0.0
            if not self._ranks.broadcast(time.monotonic() < began + seconds, "whether to wait for other islands"):
                here = [] if said is None else said.islands
                telemetry.get_logger().warning(
                    "training continues, although not all islands have met", islands=here, known=len(self._names)
                )
                break
            self._pause()
        self._round_began = time.monotonic()

    def due(self, updates: int = 1) -> bool:
        """Updates were made; whether it is time to exchange."""
        now = time.monotonic()
        self._step_seconds, self._step_began = now - self._step_began, now
        self._fresh = False
        return self._island.due(updates)

    def exchange(self, step: int, *, overdue: bool = False) -> bool:
        """Make a round after an update of step `step`; whether it was made.

        Runs of a group come at times of their own. Each waits for the others, if any are alive, as long as its last step took: of two, the one
        with the longer steps then waits for longer than the other is away to train, so that they meet. Nobody is waited for where a member has other
        settings: no round would come of it. An exchange that is `overdue` has waited so once, and been counted as missed; now it looks whether
        somebody else waits.
        """
        deadline = time.monotonic() + (0.0 if overdue else self._patience())
        while not (made := self._exchange_once(step, OWED_SECONDS if overdue else None)):
            waits_on = self._island.last.company and not self.held and time.monotonic() < deadline
            if not self._ranks.broadcast(waits_on, "whether to wait on for other runs"):
                break
            self._pause()
        if made or not overdue:  # one that is overdue was counted when it was due
            self._count_exchange(made)
        self._step_began = self._round_began = time.monotonic()
        return made

    def _patience(self) -> float:
        """Seconds for which an exchange that is due waits for others that are alive, beyond one meeting.

        In mode SFT an exchange is not looked for again until the next is due; before the first round nobody knows when the others come: islands
        of unequal speed could pass one another for hours. So each then waits as long as its own round took, and the slower one is met.
        """
        if self._sft and self._island.shared.meta.round == 0:
            seconds = time.monotonic() - self._round_began
        else:
            seconds = self._step_seconds if self.federated else 0.0
        return min(seconds, LONGEST_PATIENCE_SECONDS)

    @property
    def held(self) -> bool:
        """Whether the last exchange failed because a member has other settings."""
        return bool(self._island.last.held)

    def progress(self) -> IslandsProgress:
        """The report on exchanges for the run's status."""
        last, (made, members) = self._island.last, self._last_made or (None, [])
        return IslandsProgress(
            round=self._island.shared.meta.round,
            made_unix=made,
            members=members,
            missed=self._missed,
            differing=[
                IslandDifference(island=island, setting=setting, values=values)
                for island, found in last.held.items()
                for setting, values in found.items()
            ],
            absent=sorted(set(self._names) - set(last.came)) if last.came else [],
            problem=last.problem[:500] if self._missed else "",
        )

    def _exchange_once(self, step: int, seconds: float | None = None) -> bool:
        return self._timed(lambda: self._island.exchange(step, seconds)) is not None

    def _count_exchange(self, made: bool) -> None:
        """Once for each, however many meetings were tried for it."""
        if not made:
            self._missed += 1
        MISSED.set(self._missed)
        ROUNDS.labels("made" if made else "held" if self.held else "missed").inc()

    def finish(self, step: int) -> None:
        """After the last update of the run: exchange until it succeeds, unless nothing was learnt since the last round. Then what this island
        learnt is part of what all have; past the deadline its result is its own, and the log says so."""
        if self._fresh:
            return
        deadline = time.monotonic() + FINISH_DEADLINE_SECONDS
        while not self._exchange_once(step):
            if not self._finishing:
                self._finishing = True
                self._count_exchange(made=False)
            if not self._ranks.broadcast(time.monotonic() < deadline, "whether to try the last exchange again"):
                telemetry.get_logger().error(
                    "the last exchange failed; this island ends with weights of its own",
                    tried_seconds=FINISH_DEADLINE_SECONDS,
                )
                return
            self._pause()
        self._count_exchange(made=True)

    def linger(self, result_is_there: Callable[[], bool], waits: Waits) -> None:
        """Until the run has its result: whoever restarts meanwhile finds somebody who has the shared state."""
        deadline = time.monotonic() + LINGER_DEADLINE_SECONDS
        while self._ranks.broadcast(
            self._ranks.leader and not result_is_there() and time.monotonic() < deadline,
            "whether the run has its result",
        ):
            self._island.join(self.position)
            until = time.monotonic() + PAUSE_SECONDS
            while self._ranks.broadcast(time.monotonic() < until, "whether to pause"):
                waits.idle()
                time.sleep(0.1)

    def close(self) -> None:
        self._island.close()

    def tensors(self) -> dict[str, Tensor]:
        """The shared state for a training state. A round makes new vectors, so these are not changed later."""
        shared = self._island.shared
        links = [json.loads(link.to_json()) for link in self._island.certificate]
        found = {
            "meta": shared.meta.to_bytes().decode(),
            "certificate": links,
            "left_behind": self.left_behind,
            "fresh": self._fresh,
        }
        said = json.dumps(found).encode()
        return dict(zip(self._keys(), (shared.weights, shared.momentum, padded(said, SAID_BYTES)), strict=True))

    def empty(self) -> dict[str, Tensor]:
        shared = self._island.shared
        room = (torch.empty_like(shared.weights), torch.empty_like(shared.momentum))
        return dict(zip(self._keys(), (*room, torch.zeros(SAID_BYTES, dtype=torch.uint8)), strict=True))

    def check(self, keys: Collection[str]) -> None:
        """Each rank's part of the shared state can be read by the same rank of the same number only."""
        saved = {key for key in keys if key.startswith(PREFIX)}
        worlds = sorted({int(key.rsplit("-", 1)[-1]) for key in saved})
        if saved and worlds != [self._ranks.world]:
            raise WrongState(
                f"the training state holds the islands' shared state in parts of {worlds} ranks; this trainer has {self._ranks.world}:"
                " give every island as many processes as before, or start a new run"
            )

    def take_up(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from a saved shared state. One that cannot be read is left: the island then copies the others'."""
        weights, momentum, text = (tensors[key] for key in self._keys())
        try:
            said = json.loads(unpadded(text))
            meta = Meta.from_bytes(said["meta"].encode())
            certificate = TypeAdapter(list[CertificateLink]).validate_python(said["certificate"])
            left_behind = int(said.get("left_behind", -1))  # absent in states of before there was such a thing
        except (ValueError, ValidationError, KeyError, TypeError, AttributeError) as error:
            telemetry.get_logger().error("cannot read the islands' shared state", reason=str(error)[:300])
            return
        self.left_behind = left_behind
        self._island.restore(SharedState(meta, weights.clone(), momentum.clone()), certificate)
        # Unless it is said, the weights beside it may hold what is part of no round yet.
        self._fresh = said.get("fresh") is True

    def _keys(self) -> list[str]:
        return [f"{PREFIX}{kind}/{self._key}" for kind in ("weights", "momentum", "said")]

    def _pause(self) -> None:
        until = time.monotonic() + (HELD_PAUSE_SECONDS if self.held else PAUSE_SECONDS)
        while time.monotonic() < until:
            self._beat()
            time.sleep(0.1)

    def _timed(self, act: Callable[[], Exchanged | None]) -> Exchanged | None:
        started = time.monotonic()
        said = act()
        held = self._island.last.held
        WAITED.inc(time.monotonic() - started)
        DIFFERS.clear()
        for island, found in held.items():
            for setting in found:
                DIFFERS.labels(island, setting).set(1)
        if said is None:
            ROUND_SECONDS.set(math.nan)
            return None
        self._missed, self._last_made = 0, (time.time(), said.islands)
        MISSED.set(0)
        self._fresh = said.joined or bool(said.contributors)
        # Who copies lacked the state that the others began with, be it of a later round or of a lineage of its own.
        self.jumped |= said.replaced
        ROUND.set(said.round)
        ROUND_SECONDS.set(said.seconds)
        SENT.inc(said.sent_bytes)
        MEMBERS.set(len(said.islands))
        LEFT_OUT.set(len(said.left_out))
        return said


def frozen_digest(policy: torch.nn.Module) -> str:
    """SHA-256 over this rank's parts of what training does not change: with adapters (`trainer.settings.lora`) the base model, else nothing."""
    found = hashlib.sha256()
    for name, parameter in sorted(policy.named_parameters()):
        if not parameter.requires_grad:
            found.update(f"{name} {parameter.dtype} ".encode())
            found.update(local(parameter).to("cpu").reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def _reached_at(bind: str) -> str:
    """The address by which others reach what listens at `bind`: a pod's own where that is any."""
    return socket.gethostbyname(socket.gethostname()) if bind in ANYWHERE else bind
