"""kopf's handlers: kopf alone watches our four kinds. Each event goes to the engine, which queues the keys that it concerns.

No create, update or delete handlers, no timers, daemons or indexes: those write finalizers and annotations to every object. kopf posts no
Events, has no peers (the Lease decides who leads) and scans no CRDs or namespaces. Used by `kopf_loop.py`.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

import kopf
from kubernetes.client import Configuration

from shoal_operator.api.base import GROUP, VERSION
from shoal_operator.engine.connection import authorization
from shoal_operator.engine.kinds import OWN
from shoal_operator.engine.manager import Manager

TOKEN_LIFE = timedelta(minutes=5)
"""Projected tokens are rotated long before they end; kopf asks for ours again as often as this."""

RETRY_SECONDS = (1, 1, 2, 3, 5, 8, 13) + (20,) * 1000
"""kopf ends when it runs out of retries. An API server may be away for an hour without that."""


def registry(manager: Manager, configuration: Configuration) -> kopf.OperatorRegistry:
    """Handlers that feed the engine."""
    made = kopf.OperatorRegistry()

    @kopf.on.login(registry=made)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        return connection(configuration)

    async def seen(event: kopf.RawEvent, **_: Any) -> None:
        manager.seen(event["type"] or "LISTED", dict(event["object"]))

    for resource in OWN.values():
        kopf.on.event(GROUP, VERSION, resource.plural, id="enqueue", registry=made)(seen)
    return made


class NoDiffs(kopf.DiffBaseStorage):
    """Compares nothing. kopf copies each object whole, twice an event, to find what changed since its last handler; ours asks nothing of that.

    It was a third of the operator's CPU time with 1,000 runs whose figures change.
    """

    def build(self, **_: Any) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        """Nothing is kept."""


def configure(settings: kopf.OperatorSettings) -> None:
    """Make kopf write nothing and retry forever."""
    settings.persistence.diffbase_storage = NoDiffs()
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.networking.error_backoffs = RETRY_SECONDS
    settings.networking.trust_env = False
    # Otherwise kopf kills the process when an end of its own takes ten minutes.
    settings.process.ultimate_exiting_timeout = None


def connection(configuration: Configuration) -> kopf.ConnectionInfo:
    """The API server and the operator's identity, for kopf."""
    scheme, _, token = (authorization(configuration) or "").partition(" ")
    return kopf.ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        insecure=not configuration.verify_ssl,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
        scheme=scheme.capitalize() if token else None,
        token=token or None,
        expiration=datetime.now(UTC) + TOKEN_LIFE if token else None,
    )
