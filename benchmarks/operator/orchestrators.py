"""The orchestrators of all runs of the benchmark, as one process: `GET /v1/run` by the name that the operator asked for.

A tenth takes the request and never answers; the others count accepted files all the time and open a step now and then, as runs at work do.
"""

import asyncio
import re
import subprocess
import sys
import time

from shoal.contracts.protocol import RunProgress
from shoal_operator.children.names import PORTS

STEP_SECONDS = 120.0
"""A step of a run at work is minutes long; each run opens its steps at another time."""
SILENT, FAILING = 3, 7
"""Last digit of the numbers of runs whose orchestrator is silent, and of those with a part that crashes."""


def healthy(runs: int) -> list[int]:
    """Numbers of the runs that work."""
    return [number for number in range(runs) if number % 10 not in (SILENT, FAILING)]


def run_name(number: int) -> str:
    return f"r{number:05d}"


def answer(number: int, now: float) -> bytes:
    """What the orchestrator of a run says at a time."""
    step, files = divmod(now + number * 7.0, STEP_SECONDS)
    found = RunProgress(
        run=run_name(number),
        steps_total=999_999,
        open_step=int(step) % 100_000,
        latest_version=int(step) % 100_000,
        files_accepted=int(now * 3) % 10_000_000,
        groups_accepted_total=int(now) % 10_000_000,
        accepted_groups=int(files),
        nodes={"Healthy": 100},
        trainer_phase="training",
    )
    return found.to_json()


async def serve(address: str) -> None:
    """Answer until the process is ended."""

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            host = re.search(rb"(?i)\r\nhost: r(\d+)-", head)
            number = int(host[1]) if host else 0
            if number % 10 == SILENT:
                await reader.read()  # until the other side gives up
            else:
                body = answer(number, time.time())
                writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(one, address, PORTS["orchestrator"], backlog=1024)
    print("ready", flush=True)
    await server.serve_forever()


def start(address: str) -> "subprocess.Popen[str]":
    """The process, once it listens."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.operator.orchestrators", address], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    if process.stdout.readline().strip() != "ready":
        raise RuntimeError(f"the stand-in of orchestrators did not start on {address}:{PORTS['orchestrator']}")
    return process


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
