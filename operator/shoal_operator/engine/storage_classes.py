"""The StorageClasses of a cluster, read by one request now and then for all runs. Used by `KubernetesCluster`.

An account that may not list them is one of a namespaced install: claims are then made without asking, and say themselves what is wrong.
"""

import threading
import time
from collections.abc import Mapping

from shoal_operator.engine.api_server import ApiError, ApiServer
from shoal_operator.engine.cluster import Object
from shoal_operator.engine.kinds import STORAGE_CLASS

AGAIN_SECONDS = 5.0
"""How soon the list is read again. A class that an admin makes because a run asks for it is seen within a minute."""

FORBIDDEN = (401, 403, 404)


class StorageClasses:
    """A list of a dozen objects at most clusters; one request in five seconds, whatever the number of runs. Safe for threads."""

    def __init__(self, api: ApiServer) -> None:
        self._api, self._lock = api, threading.Lock()
        self._read_at = float("-inf")
        self._found: Mapping[str, Object] | None = None

    def read(self) -> Mapping[str, Object] | None:
        """The classes by name; None where this account may not know. Raises ApiError where the API server does not answer."""
        with self._lock:
            if time.monotonic() - self._read_at < AGAIN_SECONDS:
                return self._found
            try:
                found = self._api.call("list", STORAGE_CLASS, None)
                self._found = {each["metadata"]["name"]: each for each in found.get("items", ())}
            except ApiError as error:
                if error.status not in FORBIDDEN:
                    raise
                self._found = None
            self._read_at = time.monotonic()
            return self._found
