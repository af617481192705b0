"""kopf's part: it only watches our four kinds, and is told to write nothing."""

import asyncio

import kopf
import pytest
from hostile_api import ScriptedApi
from kubernetes.client import Configuration

from shoal_operator import handlers
from shoal_operator.engine.kinds import OWN


class Manager:
    """Collects what kopf passes on."""

    def __init__(self) -> None:
        self.seen_: list[tuple[str, object]] = []

    def seen(self, event: str, found: object) -> None:
        self.seen_.append((event, found))


@pytest.fixture
def manager() -> Manager:
    return Manager()


@pytest.fixture
def registry(manager: Manager, hostile: ScriptedApi) -> kopf.OperatorRegistry:
    return handlers.registry(manager, hostile.configuration)


def test_there_are_event_handlers_of_our_four_kinds_and_no_others(registry: kopf.OperatorRegistry) -> None:
    watching = registry._watching.get_all_handlers()
    assert {handler.selector.any_name or handler.selector.plural for handler in watching if handler.selector} == {
        own.plural for own in OWN.values()
    }
    # These would write finalizers or annotations, or keep an index of every object.
    for others in (registry._changing, registry._spawning, registry._indexing, registry._webhooks):
        assert others.get_all_handlers() == []


def test_kopf_writes_nothing_and_does_not_give_up() -> None:
    settings = kopf.OperatorSettings()
    handlers.configure(settings)
    assert not settings.posting.enabled
    assert settings.peering.standalone
    assert settings.scanning.disabled
    assert not settings.networking.trust_env
    assert isinstance(settings.networking.error_backoffs, tuple)
    assert sum(settings.networking.error_backoffs) > 3600


async def _call(handler: object, **arguments: object) -> None:
    await handler.fn(**arguments)


@pytest.mark.parametrize(("type_", "event"), [(None, "LISTED"), ("MODIFIED", "MODIFIED"), ("DELETED", "DELETED")])
def test_each_event_is_passed_on(
    registry: kopf.OperatorRegistry, manager: Manager, type_: str | None, event: str
) -> None:
    for handler in registry._watching.get_all_handlers():
        asyncio.run(_call(handler, event={"type": type_, "object": {"kind": "TrainingRun"}}))
    assert manager.seen_ == [(event, {"kind": "TrainingRun"})] * len(OWN)


def test_kopf_is_who_we_are() -> None:
    configuration = Configuration(host="https://10.0.0.1:6443")
    configuration.ssl_ca_cert = "/ca.pem"
    configuration.api_key["BearerToken"] = "bearer abc"
    made = handlers.connection(configuration)
    assert (made.server, made.ca_path, made.as_http_headers()) == (
        "https://10.0.0.1:6443",
        "/ca.pem",
        {"Authorization": "Bearer abc"},
    )
    assert made.expiration is not None, "a rotated token is asked for again"
    configuration.api_key.clear()
    configuration.cert_file, configuration.key_file = "/c.pem", "/k.pem"
    made = handlers.connection(configuration)
    assert (made.certificate_path, made.private_key_path, made.as_http_headers()) == ("/c.pem", "/k.pem", {})
