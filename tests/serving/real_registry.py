"""Debian's docker-registry on a loopback address."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from servers import PLAIN, Loopback, lacking, wait_until


@contextmanager
def real_registry(loopback: Loopback, folder: Path) -> Iterator[str]:
    """Its host and port; an empty one."""
    program = os.environ.get("REGISTRY_PROGRAM") or shutil.which("docker-registry") or ""
    if not program or shutil.which("skopeo") is None:
        lacking("docker-registry or skopeo", "apt-get install -y docker-registry skopeo")
    address = loopback.address()
    host = f"{address}:{loopback.port(address)}"
    settings = {
        "version": "0.1",
        "http": {"addr": host},
        "storage": {"filesystem": {"rootdirectory": str(folder / "registry")}},
    }
    (folder / "registry.yml").write_text(json.dumps(settings))
    with (folder / "registry.log").open("wb") as log:
        process = subprocess.Popen([program, "serve", folder / "registry.yml"], stdout=log, stderr=log)

    def answers() -> bool:
        try:
            return httpx.get(f"http://{host}/v2/", **PLAIN).status_code == 200
        except httpx.HTTPError:
            return False

    try:
        wait_until("the registry to answer", answers, 30.0)
        yield host
    finally:
        process.terminate()
        process.wait(20)
