"""Two runs of reinforcement learning that are islands of one group, as two `shoal up` start them: each trainer is killed in turn, and both go on.

`make soak` runs this.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from local_system import EXAMPLE, SMALL, LocalSystem, copy_prepared, write_manifest

from shoal.islands.lighthouse import serve
from shoal_operator.engine.conditions import is_true

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3000)]

RUN_SECONDS = 900.0
NAMES = ("north", "south")


def island_run(name: str, folder: Path, lighthouse: str) -> LocalSystem:
    """A small run with one worker, whose group is not known yet."""
    group = {"name": "both", "lighthouse": lighthouse}
    spec: dict[str, Any] = SMALL | {
        "trainer": {"scratchSize": "1Gi", "islands": {"innerSteps": 3, "waitSeconds": 60, "group": group}},
        "inferencePools": [{"name": "pool", "replicas": 1, "weightsSize": "1Gi"}],
        "relayServer": {"replicas": 1, "cacheSize": "1Gi"},
    }
    return LocalSystem(write_manifest(EXAMPLE, folder / f"{name}.yaml", name=name, **spec), folder / "runs")


def live(system: LocalSystem) -> dict[str, Any]:
    found = system.local.cluster.get("TrainingRun", system.run)
    assert found is not None
    return found


def tell(system: LocalSystem, members: dict[str, str]) -> None:
    """Write the members into the run's manifest, as `kubectl apply` would."""
    system.edit(lambda spec: spec["trainer"]["islands"]["group"].update(members=members))


def rounds(system: LocalSystem) -> Iterator[tuple[int, list[str], str]]:
    """Round, islands and shared state of every exchange that the run's trainer logged."""
    for path in sorted((system.folder / "logs").glob(f"{system.run}-trainer-*/trainer.log*")):
        for line in path.read_text(errors="replace").splitlines():
            if '"islands exchanged"' in line:
                said = json.loads(line)
                yield said["round"], said["islands"], said["state"]


def met(systems: dict[str, LocalSystem]) -> int:
    """The newest round in which both stood, by both their logs."""
    return min(max([-1, *(number for number, there, _ in rounds(one) if len(there) == 2)]) for one in systems.values())


def test_each_of_two_runs_is_killed_and_both_go_on_with_the_same_shared_state(tmp_path: Path) -> None:
    lighthouse = serve("127.0.0.1", 0, 60.0)
    address = f"127.0.0.1:{lighthouse.address().rsplit(':', 1)[1]}"
    systems = {name: island_run(name, tmp_path, address) for name in NAMES}
    north, south = systems["north"], systems["south"]
    try:
        for system in systems.values():
            system.start()
            system.until(
                "it has its key",
                lambda system=system: live(system).get("status", {}).get("islandPublicKey"),
            )
        members = {name: str(live(system)["status"]["islandPublicKey"]) for name, system in systems.items()}
        tell(north, members)
        north.until("the base model is there", lambda: is_true(live(north), "Prepared"), RUN_SECONDS)
        copy_prepared(north, south.folder, "south")
        tell(south, members)
        north.until("both have met for a round", lambda: met(systems) >= 2, RUN_SECONDS)
        for lost, other in ((north, south), (south, north)):
            before, newest = met(systems), lost.latest_version()
            lost.kill("trainer", "trainer")
            other.advance(2)
            lost.until("it goes on with its own steps", lambda: lost.latest_version() >= newest + 2, RUN_SECONDS)
            lost.until("both meet again", lambda: met(systems) > before, RUN_SECONDS)
    finally:
        for system in systems.values():
            system.stop()
        lighthouse.shutdown()
    shared: dict[int, set[str]] = {}
    for system in systems.values():
        for number, there, state in rounds(system):
            if len(there) == 2:
                shared.setdefault(number, set()).add(state)
    assert len(shared) >= 3
    assert {number: len(states) for number, states in shared.items()} == dict.fromkeys(shared, 1)
    for system in systems.values():
        steps = sorted(system.metrics())
        assert steps == list(range(len(steps))), "an island of a group skips no step"
