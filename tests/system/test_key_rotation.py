"""Keys of a running system are replaced: all as planned, then those that leaked. The run goes on, and an old key is refused everywhere."""

import time
from collections.abc import Callable
from contextlib import suppress

import httpx
import pytest
from invariants import assert_nothing_lost_or_counted_twice, files_handed_in, lost_or_doubled
from local_system import LocalSystem
from typer.testing import CliRunner

from shoal.cli.main import app
from shoal.contracts import relay_token
from shoal.contracts.protocol import (
    RELAY_TOKEN_SECONDS,
    ClaimRequest,
    Exclusions,
    KnownNodes,
    RelayToken,
    TrainerProgress,
)
from shoal.contracts.roster import ROLES
from shoal.contracts.run import AgentState
from shoal.crypto.keys import PrivateKey
from shoal.transport import Refused, SignedClient
from shoal_operator.local.key_wishes import ask, held_keys

pytestmark = [pytest.mark.system, pytest.mark.soak, pytest.mark.timeout(1800)]

WITHIN_SECONDS = 60.0
LEAKED = ("orchestrator", "trainer", "relay", "validator")


def change(system: LocalSystem, *holders: str, leaked: bool) -> None:
    """As `shoal keys rotate` does, and wait until the run has the new keys."""
    asked = ask(system.folder, holders, leaked=leaked).wishes()

    def done() -> bool:
        return all(
            key.generation >= asked[key.name].generation for key in held_keys(system.folder) if key.name in holders
        )

    system.until("the keys are replaced", done)


def is_refused(client: SignedClient, method: str, path: str, **call: object) -> bool:
    try:
        client.call(method, path, deadline_seconds=5.0, **call)
    except Refused as refused:
        return refused.code == "wrong-role" and refused.problem.status == 403
    except Exception:  # it starts again
        return False
    return False


def places_that_believe(system: LocalSystem, old: dict[str, PrivateKey]) -> set[str]:
    """Where a leaked key of these still counts."""
    config = system.config()
    orchestrator, discovery = config.addresses.orchestrator, config.addresses.discovery
    progress = TrainerProgress(run=system.run, step=0, phase="stolen")
    refused = {
        "orchestrator, of the trainer": is_refused(
            SignedClient(orchestrator, old["trainer"]), "POST", "/v1/progress", body=progress
        ),
        "orchestrator, of a relay": is_refused(
            SignedClient(orchestrator, old["relay"]), "GET", "/v1/exclusions", reply=Exclusions
        ),
        "orchestrator, of a validator": is_refused(
            SignedClient(orchestrator, old["validator"]), "POST", "/v1/claims", body=ClaimRequest(validator="stolen")
        ),
        "discovery, of the orchestrator": is_refused(
            SignedClient(discovery, old["orchestrator"]), "GET", "/v1/nodes", reply=KnownNodes
        ),
    }
    expires = int(time.time()) + RELAY_TOKEN_SECONDS
    for place, url, role, node in (
        ("relay, of the orchestrator", config.addresses.relays[0], "orchestrator", "ab" * 32),
        ("origin, of a relay", config.addresses.origin, "relay", old["relay"].public),
    ):
        word = relay_token.encode(RelayToken(run=system.run, node=node, expires_unix=expires), old[role])
        try:
            answer = httpx.get(f"{url}/versions/index.json", headers={"Authorization": f"Bearer {word}"}, timeout=5.0)
            refused[place] = answer.status_code == 401
        except httpx.HTTPError:
            refused[place] = False
    refused["node, of the trainer"] = agent_state(system).trainer_key != old["trainer"].public
    return {place for place, was in refused.items() if not was}


def agent_state(system: LocalSystem) -> AgentState:
    """The newest keys as a worker's agent knows them."""
    [pod, *_] = system.pods("pool")
    agent = SignedClient("http://agent", unix_socket=system.folder / "pods" / pod.name / "run" / "agent.sock")
    state = agent.call("GET", "/v1/state", reply=AgentState, deadline_seconds=10.0)
    assert state is not None
    return state


def test_planned_and_leaked_keys_are_replaced_while_the_run_goes_on(
    system: LocalSystem, record_property: Callable[[str, object], None]
) -> None:
    first = system.config()
    system.advance(1)
    change(system, "run", *ROLES, leaked=False)
    system.advance(2)
    planned = system.config().trust.roster
    assert planned.generation == 7
    assert set(planned.keys.values()).isdisjoint(first.trust.roster.keys.values())
    assert system.config().run_key == first.run_key

    handed_in = files_handed_in(system)
    stolen = {role: system.role_key(role) for role in ROLES}
    began = time.monotonic()
    change(system, *LEAKED, leaked=True)
    system.until(
        "leaked keys are refused everywhere", lambda: not places_that_believe(system, stolen), seconds=WITHIN_SECONDS
    )
    seconds = time.monotonic() - began
    assert seconds < WITHIN_SECONDS
    handed_in |= files_handed_in(system)
    newest = system.advance(2)
    system.until("a worker holds the newest version", lambda: system.worker_version() >= newest)

    with suppress(pytest.fail.Exception):
        system.until("every file has its outcome", lambda: lost_or_doubled(system, handed_in) == 0)
    found = lost_or_doubled(system, handed_in)
    # What benchmarks/trust/key_rotation.py reads.
    record_property("key_rotation_lost_or_doubled", found)
    record_property("key_rotation_files", len(handed_in))
    record_property("key_rotation_seconds_until_refused", round(seconds, 1))
    assert found == 0
    assert_nothing_lost_or_counted_twice(system)
    changes = [entry for entry in system.ledger() if entry.kind == "keys-changed"]
    assert [len(entry.keys.document.changes) for entry in changes] == [6, 10]
    said = CliRunner().invoke(
        app,
        ["ledger", "verify", str(system.store_folder), "--documents", "--run-key", first.run_key],
        catch_exceptions=False,
    )
    assert said.exit_code == 0, said.output
