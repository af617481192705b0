"""Stands in for cluster DNS in the operator's process: every `*.svc` name is the stand-in of orchestrators of the test run.

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
