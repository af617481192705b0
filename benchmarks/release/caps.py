"""How near a node's transfers come to the caps of its owner: `python -m benchmarks.release.caps`, some 70 seconds. Needs root, for namespaces.

A network namespace is the node's machine, with one link to this one. Two processes in it share the node's buckets, as agent and fetch do. One
fetches shards with the product's `Downloader`, four at a time; the other posts rollout files with the agent's `post_form`; both at once, each as
much as its cap allows in a minute. What is compared with the caps is what the kernel counted on the link, headers and acknowledgements included, from
the first byte to the last; the bytes of the files alone are given beside it. Writes `caps_error` and `caps` to benchmarks/results/release.json.
"""

import json
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "open_pool")]

from stranger_network import Machine, unusable

from shoal.agent.hand_in import post_form
from shoal.broadcast.download import Downloader
from shoal.broadcast.parts import FilePart
from shoal.contracts.machine import Lending
from shoal.contracts.protocol import UploadGrant
from shoal.transport.rate_limit import caps

UPLOAD_BITS, DOWNLOAD_BITS = 20_000_000, 50_000_000
SECONDS = 60
SHARD_BYTES, FILE_BYTES = 16_000_000, 10_000_000
IN_FLIGHT = 4
PATIENCE_SECONDS = 240
BLOCK = bytes(1 << 20)


def main() -> None:
    """Measure both directions and record the larger error."""
    from benchmarks.release.__main__ import record

    found = measure(SECONDS)
    record(caps_error=max(one["error"] for one in found.values()), caps=found)


def measure(seconds: float) -> dict[str, dict[str, float]]:
    """By direction: cap, rates on the wire and of the files alone (Mbit/s), seconds, larger error. Raises SystemExit without namespaces."""
    if problem := unusable():
        raise SystemExit(problem)
    machine = Machine(1, ())
    with tempfile.TemporaryDirectory(prefix="bench-caps-") as name:
        folder = Path(name)
        try:
            machine.connect()
            server = _serve(machine.way_in)
            url = f"http://{machine.way_in}:{server.server_address[1]}"
            environment = {"PYTHONPATH": f"{ROOT}:{ROOT / 'workloads'}:{ROOT / 'operator'}", "OMP_NUM_THREADS": "1"}
            running = []
            for what in ("download", "upload"):
                command = [sys.executable, "-m", "benchmarks.release.caps", what, url, str(folder), str(seconds)]
                running.append(machine.start(command, folder / f"{what}.log", environment))
            for process, what in zip(running, ("download", "upload"), strict=True):
                if process.wait(PATIENCE_SECONDS) != 0:
                    raise SystemExit((folder / f"{what}.log").read_text())
            return {what: json.loads((folder / f"{what}.json").read_text()) for what in ("download", "upload")}
        finally:
            machine.close()


def transfer(what: str, url: str, folder: Path, seconds: float) -> None:
    """In the namespace: one direction, for as many bytes as its cap allows in this time."""
    limits = caps(Lending(upload_bits=UPLOAD_BITS, download_bits=DOWNLOAD_BITS), folder)
    bits, counter = (DOWNLOAD_BITS, "rx_bytes") if what == "download" else (UPLOAD_BITS, "tx_bytes")
    wanted = bits / 8 * seconds
    on_wire, began = _counted(counter), time.monotonic()
    if what == "download":
        downloader = Downloader(lambda: None, limit=limits.download)
        count = max(IN_FLIGHT, round(wanted / SHARD_BYTES))

        def shard(index: int) -> None:
            part = FilePart(folder / f"shard{index}")
            downloader.shard(url, f"shards/{index}", SHARD_BYTES, part, lambda _: None)
            part.drop()

        with ThreadPoolExecutor(IN_FLIGHT) as pool:
            list(pool.map(shard, range(count)))
        carried = count * SHARD_BYTES
    else:
        file = folder / "rollouts"
        file.write_bytes(bytes(FILE_BYTES))
        count = max(1, round(wanted / FILE_BYTES))
        grant = UploadGrant(url=f"{url}/", fields={"key": "k"}, expires_unix=1e12)
        with file.open("rb") as opened:
            for _ in range(count):
                post_form(grant, opened, caps=limits)
        carried = count * FILE_BYTES
    took = time.monotonic() - began
    mbps = {"wire": (_counted(counter) - on_wire) * 8 / took / 1e6, "files": carried * 8 / took / 1e6}
    cap = bits / 1e6
    result = {"cap_mbps": cap, "seconds": round(took, 1)} | {
        f"{name}_mbps": round(rate, 3) for name, rate in mbps.items()
    }
    error = max(abs(rate / cap - 1.0) for rate in mbps.values())
    (folder / f"{what}.json").write_text(json.dumps(result | {"error": round(error, 4)}))


def _counted(name: str) -> int:
    """Bytes on the link; every frame has 14 bytes of Ethernet's header there. Of /proc/net/dev, which is the namespace's own."""
    row = next(line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("eth0:"))
    numbers = row.partition(":")[2].split()
    return int(numbers[0 if name == "rx_bytes" else 8])


def _serve(address: str) -> ThreadingHTTPServer:
    """What relays and a store would be: gives shards as fast as they are taken, takes files as fast as they come."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(SHARD_BYTES))
            self.end_headers()
            for at in range(0, SHARD_BYTES, len(BLOCK)):
                self.wfile.write(BLOCK[: SHARD_BYTES - at])

        def do_POST(self) -> None:
            left = int(self.headers["Content-Length"])
            while left:
                left -= len(self.rfile.read(min(left, len(BLOCK))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer((address, 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


if __name__ == "__main__":
    if len(sys.argv) > 1:
        transfer(sys.argv[1], sys.argv[2], Path(sys.argv[3]), float(sys.argv[4]))
    else:
        main()
