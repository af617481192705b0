"""One client fetches versions from one relay over HTTPS, certificates checked, beside curl, aria2 and pycurl on the same server.

In: the size of a version. Out: the figures of benchmarks/results/size.json, medians over rounds in which all take turns. Links are wider than the
processors can fill. Memory is touched before anything is timed. Ours checks every digest; of the peers one hashes. Called by `__main__`.
"""

import os
import shutil
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.broadcast import links, peers
from benchmarks.broadcast.certificates import Authority
from benchmarks.broadcast.links import Stage
from benchmarks.broadcast.ours import Ours
from shoal.contracts import keys
from shoal.contracts.relays import OUTSIDE_PORT

ROUNDS = 3
SHARD_BYTES = 16 << 20  # the product's default
CONNECTIONS = 4  # as many as ours has
WIDE_SHARE, WIDE_MBIT = 20.0, 20_000.0
COPIES = 14  # origin, relay, the client's six versions, the peers' copy, and room
AWAY = "not installed"


@dataclass(frozen=True)
class Taken:
    """Seconds by the clock and of CPU time for one version."""

    seconds: float
    cpu_seconds: float


def measure(size: int) -> dict[str, Any]:
    """Raises `RuntimeError` when a peer does not fetch what ours fetches."""
    made = links.stage(size, (WIDE_MBIT,), 1, WIDE_SHARE)
    try:
        links.touch_memory(made, COPIES * size)
        authority = Authority(made.folder)
        running = Ours(made, shard_size=SHARD_BYTES, anchor_every=1, authority=authority)
        try:
            running.start()
            taken: dict[str, list[Taken]] = {}
            for number in range(ROUNDS + 1):  # the first round finds everything cold and does not count
                _broadcast(made, running, number, size, taken)
                for name, command in _commands(made, running, number, size).items():
                    taken.setdefault(name, []).append(_peer(made, name, command, size))
        finally:
            running.close()
    finally:
        made.close()
    return _figures(size, {name: rounds[1:] for name, rounds in taken.items()}, made.in_memory)


def _broadcast(made: Stage, running: Ours, number: int, size: int, taken: dict[str, list[Taken]]) -> None:
    folder = made.folder / "checkpoint"
    folder.mkdir()
    links.random_file(folder / "model.safetensors", size, seed=number)
    found = running.broadcast(number, folder, filled_first=True)
    taken.setdefault("ours", []).append(Taken(running.fetch_seconds(number), found.client_cpu))
    _say(number, "ours", taken["ours"][-1], size)


def _commands(made: Stage, running: Ours, number: int, size: int) -> dict[str, Sequence[str | Path]]:
    """What each peer that is installed is called with, to write the version's shards into `made.folder / "peer"`."""
    shards, folder = -(-size // SHARD_BYTES), made.folder / "peer"
    base = f"https://{made.relays[0].address}:{OUTSIDE_PORT}/versions/{keys.version_name(number)}"
    authority, header = made.folder / "ca.crt", f"Authorization: Bearer {running.token(0)}"
    names = [f"{index:05d}.bin" for index in range(shards)]
    (made.folder / "urls").write_text("".join(f"{base}/{name}\n" for name in names))
    curl: list[str | Path] = ["curl", "-sSf", "--cacert", authority, "-H", header, "-o", folder / "#1.bin"]
    url = f"{base}/[00000-{shards - 1:05d}].bin"
    python, script = peers.python_with("pycurl", peers.PYCURL_VERSION), Path(__file__).with_name("pycurl_client.py")
    found: dict[str, Sequence[str | Path]] = {
        "curl": [*curl, url],
        "curl_parallel": [*curl, "-Z", "--parallel-max", str(CONNECTIONS), url],
        "pycurl": [python, script, "write", authority, header, folder, str(CONNECTIONS), base, *names],
        "pycurl_sha256": [python, script, "sha256", authority, header, folder, str(CONNECTIONS), base, *names],
    }
    if shutil.which("aria2c") is not None:
        options: list[str | Path] = [
            "-q",
            f"-j{CONNECTIONS}",
            "-x1",
            "--file-allocation=none",
            f"--ca-certificate={authority}",
        ]
        found["aria2"] = ["aria2c", *options, f"--header={header}", "-d", folder, "-i", made.folder / "urls"]
    return found


def _peer(made: Stage, name: str, command: Sequence[str | Path], size: int) -> Taken:
    folder = made.folder / "peer"
    folder.mkdir()
    started = time.monotonic()
    process = made.clients[0].start(command, made.folder / f"{name}.log")
    _, status, usage = os.wait4(process.pid, 0)  # `Popen.wait` tells no CPU time
    seconds = time.monotonic() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    made.clients[0].processes.remove(process)
    came = sum(path.stat().st_size for path in folder.iterdir())
    shutil.rmtree(folder)
    if process.returncode or came != size:
        log = (made.folder / f"{name}.log").read_text()[-300:]
        raise RuntimeError(f"{name} ended with {process.returncode} and has {came} of {size} bytes: {log}")
    taken = Taken(seconds, usage.ru_utime + usage.ru_stime)
    _say(0, name, taken, size)
    return taken


def _say(number: int, name: str, taken: Taken, size: int) -> None:
    rate, cpu = size * 8e-6 / taken.seconds, taken.cpu_seconds / (size / 1e9)
    print(f"  {name} {number or ''}: {rate:.0f} Mb/s, {cpu:.2f} CPU s/GB", flush=True)


def _figures(size: int, taken: dict[str, list[Taken]], in_memory: bool) -> dict[str, Any]:
    """Ratios are of one round, because the load of the machine differs from round to round."""
    gigabytes = size / 1e9
    ours = taken["ours"]

    def over(name: str) -> float:
        return round(statistics.median(b.seconds / a.seconds for a, b in zip(ours, taken[name], strict=True)), 3)

    def rate(name: str) -> float:
        return round(statistics.median(gigabytes * 8000 / one.seconds for one in taken[name]))

    def cpu(name: str) -> float:
        return round(statistics.median(one.cpu_seconds / gigabytes for one in taken[name]), 3)

    found: dict[str, Any] = {
        "https_over_curl_https": over("curl"),
        "https_over_curl_parallel_https": over("curl_parallel"),
        "https_mbit_per_client": rate("ours"),
        "client_cpu_seconds_per_gb_warm": cpu("ours"),
    }
    for name in ("curl", "curl_parallel", "aria2", "pycurl", "pycurl_sha256"):
        found[f"{name}_https_mbit"] = rate(name) if name in taken else AWAY
        found[f"{name}_cpu_seconds_per_gb_warm"] = cpu(name) if name in taken else AWAY
    found["https_conditions"] = {
        "megabytes": size // 1_000_000,
        "shard_bytes": SHARD_BYTES,
        "rounds": ROUNDS,
        "connections": {
            "ours": CONNECTIONS,
            "curl": 1,
            "curl_parallel": CONNECTIONS,
            "aria2": CONNECTIONS,
            "pycurl": CONNECTIONS,
            "pycurl_sha256": CONNECTIONS,
        },
        "links": "a veth pair and a bridge on one machine, wider than its processors can fill; no delay, no loss",
        "server": "one relay's nginx with tokens, TLS 1.3, a certificate of an authority made for the run",
        "memory": "touched before; files in memory" if in_memory else "touched before; files on disk",
        "ours": "all of the client, from the first request to the visible version: documents, SHA-256 of shards, of which the version's is made",
        "peers": "shards into files, nothing hashed but by pycurl_sha256, which hashes shards",
        "load_1_min": round(os.getloadavg()[0], 1),
        "cores": os.cpu_count(),
    }
    return found
