"""Which pod of an engine a pod is, where an engine spans `engine.hosts` pods: as many in a row of its pool's StatefulSet, or a group of its
LeaderWorkerSet. Pure.

The first pod of each row or group leads: it is the node, with the key, the leases and vLLM's scheduler. The others have ranks and weights. The
operator counts pods by this rule, and agent and worker find each other by it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

LINK_PORT: Final = 9110
"""Of the leading pod's worker: the other workers connect to it, and an engine ends with a connection."""
STATE_PORT: Final = 9112
"""Of the leading pod's agent, for the other agents: a token for relays is among what it tells. Prometheus may reach ports 9100 to 9108."""
RENDEZVOUS_PORT: Final = 9111
"""Of the first rank: where vLLM's ranks meet. They choose further ports themselves."""
GROUPED: Final = "SHOAL_GROUPED"
"""Variable that the operator gives the containers of a LeaderWorkerSet's pods."""


@dataclass(frozen=True)
class EngineHost:
    """One pod of an engine. `number` counts from 0, which leads; `leader` is the address of that pod."""

    number: int
    hosts: int
    leader: str

    @property
    def leads(self) -> bool:
        return self.number == 0


def engine_host(pod: str, hosts: int, environ: Mapping[str, str]) -> EngineHost | None:
    """The place of the pod `<set>-<ordinal>` in its engine, None where an engine is one pod. Raises ValueError for a pod of no such set.

    The leader is found by the set's headless Service, which has the set's name. In a LeaderWorkerSet `environ` says all: its controller adds
    `LWS_LEADER_ADDRESS`, `LWS_GROUP_SIZE` and `LWS_WORKER_INDEX` to every container, and pods of a group have the set's, group's and own number.
    """
    if hosts == 1:
        return None
    if (leader := environ.get("LWS_LEADER_ADDRESS")) is not None:
        size, place = environ.get("LWS_GROUP_SIZE"), environ.get("LWS_WORKER_INDEX", "")
        if size != str(hosts) or not place.isdecimal() or int(place) >= hosts:
            raise ValueError(f"engine.hosts is {hosts}: pod {pod!r} is number {place!r} of a group of {size}")
        return EngineHost(int(place), hosts, leader)
    if GROUPED in environ:
        raise ValueError(
            f"engine.hosts is {hosts}: pod {pod!r} does not know its place, as LeaderWorkerSet's webhook did not reach it: its group starts again"
        )
    name, _, ordinal = pod.rpartition("-")
    if not ordinal.isdecimal():
        raise ValueError(f"engine.hosts is {hosts}: the pods of a StatefulSet may share an engine, and {pod!r} is none")
    number = int(ordinal) % hosts
    return EngineHost(number, hosts, f"{name}-{int(ordinal) - number}.{name}")
