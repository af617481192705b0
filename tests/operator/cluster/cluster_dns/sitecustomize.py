"""Stands in for cluster DNS in the operator's process: every `*.svc` name is the stand-in of orchestrators of the test run.

With `SHOAL_TEST_RELEASE` the operator is of that release: its pods have other images and one more variable.

Python imports a module of this name at its start when its folder is on PYTHONPATH. A control plane without nodes has no DNS, and the operator must
find `<run>-orchestrator.<namespace>.svc`.
"""

import os
import socket
from typing import Any

_real = socket.getaddrinfo


def _getaddrinfo(host: Any, *arguments: Any, **more: Any) -> Any:
    name = host.decode() if isinstance(host, bytes) else host
    if isinstance(name, str) and name.endswith(".svc"):
        host = os.environ["SHOAL_TEST_SERVICES"]
    return _real(host, *arguments, **more)


socket.getaddrinfo = _getaddrinfo


def _become(release: str) -> None:
    from shoal_operator.children import names, pods

    first = pods.environment
    names.SOFTWARE_VERSION = release
    names.IMAGES = {role: names.image(role, release) for role in names.IMAGES}
    pods.environment = lambda role, gpu: [{"name": "SHOAL_NEW", "value": release}, *first(role, gpu)]


if os.environ.get("SHOAL_TEST_RELEASE"):
    _become(os.environ["SHOAL_TEST_RELEASE"])
