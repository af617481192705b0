"""The programs of Debian's package `prometheus` for tests: promtool, and a server over blocks that promtool made."""

import shutil
import subprocess
from pathlib import Path

from servers import Loopback, Server, lacking


def program(name: str) -> str:
    """Path of `prometheus` or `promtool`."""
    found = shutil.which(name)
    if found is None:
        lacking(name, "run `make setup`")
    return found


def promtool(*arguments: str | Path, ok: bool = True) -> str:
    """What promtool prints; fails when it says that something is wrong."""
    command = [program("promtool"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    said = done.stdout + done.stderr
    assert (done.returncode == 0) == ok, said
    return said


def serve_blocks(folder: Path, openmetrics: str, loopback: Loopback) -> Server:
    """A running Prometheus that holds exactly these samples. It scrapes nobody; the caller stops it."""
    source, data, configuration = folder / "samples.txt", folder / "data", folder / "prometheus.yml"
    source.write_text(openmetrics)
    promtool("tsdb", "create-blocks-from", "openmetrics", "--quiet", source, data)
    configuration.write_text("scrape_configs: []\n")
    address = loopback.address()
    port = Loopback.port(address)
    command = [
        program("prometheus"), f"--config.file={configuration}", f"--storage.tsdb.path={data}",
        f"--web.listen-address={address}:{port}", "--storage.tsdb.retention.time=100y", "--log.level=warn",
    ]  # fmt: skip
    server = Server(command, address, port, folder)
    server.start()
    return server
