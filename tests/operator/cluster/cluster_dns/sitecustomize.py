"""Stands in for cluster DNS in the operator's process: every `*.svc` name is the stand-in of orchestrators of the test run.

With `SHOAL_TEST_RELEASE` the operator is of that release: its pods have other images and one more variable. With `SHOAL_TEST_PATIENCE` it waits
as many seconds for the answer of an orchestrator, so that a test needs no clock to see who waits for one. `SHOAL_TEST_HOME` is the
namespace that it lives in, as a pod would read it.

Python imports a module of this name at its start when its folder is on PYTHONPATH. A control plane without nodes has no DNS, and the operator must
find `<run>-orchestrator.<namespace>.svc`.
"""

import dataclasses
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


def _wait_for_answers(seconds: float) -> None:
    from shoal_operator.engine import progress

    first = progress.RunProgressReader.__init__
    timing = progress.ReadTiming(answer=seconds)
    # The program has no option for this, on purpose.
    progress.RunProgressReader.__init__ = lambda self, enqueue, **more: first(self, enqueue, timing, **more)


def _live_in(namespace: str) -> None:
    from shoal_operator.engine import manager

    first = manager.Manager.__init__

    def init(self: Any, configuration: Any, options: Any, *arguments: Any, **more: Any) -> None:
        first(self, configuration, dataclasses.replace(options, home=namespace), *arguments, **more)

    # The program has no option for this, on purpose.
    manager.Manager.__init__ = init


if os.environ.get("SHOAL_TEST_HOME"):
    _live_in(os.environ["SHOAL_TEST_HOME"])
if os.environ.get("SHOAL_TEST_RELEASE"):
    _become(os.environ["SHOAL_TEST_RELEASE"])
if os.environ.get("SHOAL_TEST_PATIENCE"):
    _wait_for_answers(float(os.environ["SHOAL_TEST_PATIENCE"]))
