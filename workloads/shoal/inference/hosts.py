"""The link between the hosts of an engine that spans several pods: one TCP connection from each further host's worker to the leading one's.

In: the versions that each further host holds. Out, at the leading host: which version all hold, when the engine starts, and the end of this process
with the reason once a host is gone. At a further host: its ranks, which run as long as the link does. A rank does not notice the end of its
leader, and the leader of an idle engine does not notice that of a rank. So either side ends with the connection, and Kubernetes starts both
containers again. Pods of other engines never notice. Called by `worker` and `__main__`.

Lines of JSON, one object each; both sides write at least every `BEAT_SECONDS`:

    further host -> leader   {"number": 1, "release": "0.3.0", "settings": {...}}, then {"held": {"7": "sha256"}, "leaving": false}
    leader -> further host   {}, and once {"start": {...}}, the terms of the engine
"""

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from shoal.contracts.hosts import LINK_PORT, RENDEZVOUS_PORT, EngineHost
from shoal.contracts.pools import EngineSettings
from shoal.contracts.routes import RouteShape
from shoal.contracts.run import NodeConfig, bind_address
from shoal.contracts.signed import BadSignature, Signer
from shoal.inference import engine
from shoal.inference.agent import AgentClient
from shoal.inference.checkpoint import read_checkpoint
from shoal.inference.completions import EngineTerms, HostSpan
from shoal.inference.weights import VersionOnDisk, newest_policy, versions_in
from shoal.installed import installed
from shoal.telemetry import STOP, Liveness, Stopped, get_logger, wait_for
from shoal.transport.client import Refused

BEAT_SECONDS = 1.0
SILENT_SECONDS = 60.0
"""Without a line for this long a host counts as gone. One that loads a large model may be late by seconds; the end of a process is told at once."""
AGAIN_SECONDS = 2.0
SETTLE_SECONDS = 3.0
"""Where a host ends, what waits for it fails too: this long the link has to say which host it was, and to end this process."""
WAIT_SECONDS = 7 * 24 * 3600.0
EXIT_HOST_GONE: Final = 71
LINE_BYTES = 64 << 10
"""Of one line at most: a host tells the digests of the versions that it has, 80 bytes each."""


class HostGone(RuntimeError):
    """An engine cannot start: a host of it has left, or has other weights."""


class _Line:
    """One end of the link. `read` and `write` may be called from two threads."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(SILENT_SECONDS)
        self._lock = threading.Lock()
        self._connection = connection
        self._file = connection.makefile("rb")

    @property
    def address(self) -> str:
        """Of this host, as the other one reaches it."""
        return str(self._connection.getsockname()[0])

    def write(self, document: Mapping[str, Any]) -> None:
        with self._lock:
            self._connection.sendall(json.dumps(document).encode() + b"\n")

    def read(self) -> Iterator[dict[str, Any]]:
        """Documents until the other side has closed; raises OSError or ValueError where it is lost or talks rubbish."""
        while line := self._file.readline(LINE_BYTES + 1):
            if len(line) > LINE_BYTES:
                raise ValueError(f"a line has more than {LINE_BYTES} bytes")
            document = json.loads(line)
            if not isinstance(document, dict):
                raise ValueError("a line is no object")
            yield document

    def close(self) -> None:
        """Both directions, also for a thread that reads."""
        with suppress(OSError):  # the other side was first
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()


class Followers:
    """The leading host's side."""

    def __init__(self, host: EngineHost, settings: EngineSettings) -> None:
        """Listens on `SHOAL_BIND` from now on."""
        self._host = host
        self._expected = {"release": installed().version, "settings": settings.model_dump(mode="json")}
        self._lines: dict[int, _Line] = {}
        self._held: dict[int, dict[int, str]] = {}
        self._started = False
        self._lock = threading.Lock()
        listener = socket.create_server((bind_address(), LINK_PORT))
        threading.Thread(target=self._accept, args=(listener,), name="link", daemon=True).start()

    def all_hold(self, policy: VersionOnDisk) -> bool:
        """Whether every host has just this version on its disk."""
        with self._lock:
            held = [versions.get(policy.version) for versions in self._held.values()]
        return held == [policy.manifest.sha256] * (self._host.hosts - 1)

    def are_here(self) -> bool | None:
        """True once every other host is connected, else None."""
        with self._lock:
            return True if len(self._lines) == self._host.hosts - 1 else None

    def start(self, terms: EngineTerms, policy: VersionOnDisk) -> HostSpan:
        """Have the other hosts start their ranks; returns this host's part. From now on a host's end is the end of this process.

        Raises HostGone where one has left since all were here.
        """
        with self._lock:
            gone = [str(number) for number in range(1, self._host.hosts) if number not in self._lines]
            if gone:
                raise HostGone(f"the engine does not start: host {', '.join(gone)} of it has left")
            self._started = True
            address = next(iter(self._lines.values())).address
            document = asdict(terms) | {
                "routes": terms.routes.model_dump() if terms.routes is not None else None,
                "version": policy.version,
                "sha256": policy.manifest.sha256,
                "address": address,
            }
            for line in self._lines.values():
                line.write({"start": document})
        os.environ["VLLM_HOST_IP"] = address  # what vLLM tells the other ranks
        return HostSpan(0, self._host.hosts, address, RENDEZVOUS_PORT)

    def close(self) -> None:
        """The engine is about to end by itself, and the other hosts with it."""
        self._started = False

    def _accept(self, listener: socket.socket) -> None:
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=self._serve, args=(connection,), name="link-of-a-host", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        line, number, reason = _Line(connection), 0, "it closed the link"
        try:
            documents = line.read()
            hello = next(documents, {})
            number = self._greeted(hello, line)
            if number == 0:
                return
            threading.Thread(target=_beat, args=(line, dict), name="link-beat", daemon=True).start()
            for document in documents:
                with self._lock:
                    if self._lines.get(number) is not line:
                        return
                    self._held[number] = {int(version): sha for version, sha in document["held"].items()}
                if document["leaving"] and self._started and not STOP.is_set():
                    get_logger().info("a host of this engine is asked to end: this process ends", host=number)
                    STOP.set()
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            reason = f"{type(error).__name__}: {error}"
        finally:
            line.close()
            if number:
                self._end(number, line, reason)

    def _greeted(self, hello: Mapping[str, Any], line: _Line) -> int:
        """Number of the host, 0 for one that cannot be of this engine now: it asks again."""
        number = int(hello.get("number", 0))
        differs = [name for name, value in self._expected.items() if hello.get(name) != value]
        with self._lock:
            if differs or not 0 < number < self._host.hosts or self._started:
                why = f"another {' and '.join(differs)}" if differs else "the engine runs without it"
                get_logger().info("a host may not join", host=number, reason=why)
                return 0
            if number in self._lines:  # its process was started again, and nobody has told us of the end of the first
                self._lines[number].close()
            self._lines[number], self._held[number] = line, {}
        get_logger().info("a host joined", host=number)
        return number

    def _end(self, number: int, line: _Line, reason: str) -> None:
        with self._lock:
            if self._lines.get(number) is not line:
                return  # the host has another line by now
            del self._lines[number], self._held[number]
            if not self._started:
                return
        get_logger().error(
            "a host of this engine is gone: this process ends, and is started again", host=number, reason=reason
        )
        os._exit(EXIT_HOST_GONE)


class LeaderLink:
    """A further host's side: connected to the leading one until that ends."""

    def __init__(self, line: _Line, held: Callable[[], dict[int, str]]) -> None:
        self.line = line
        self.start: dict[str, Any] | None = None
        self.ended = ""
        """Why, in words; empty while it holds."""
        self._held = held
        threading.Thread(target=self._read, name="link", daemon=True).start()
        threading.Thread(target=_beat, args=(line, self._told), name="link-beat", daemon=True).start()

    def _told(self) -> dict[str, Any]:
        try:
            held = self._held()
        except Exception as error:  # a disk that does not answer, say: the host is there, and has nothing to offer
            get_logger().warning("this host's versions are not known", error=f"{type(error).__name__}: {error}")
            held = {}
        return {"held": held, "leaving": STOP.is_set()}

    def _read(self) -> None:
        try:
            for document in self.line.read():
                self.start = document.get("start", self.start)
            self.ended = "it closed the link"
        except (OSError, ValueError) as error:
            self.ended = f"{type(error).__name__}: {error}"


def _beat(line: _Line, document: Callable[[], Mapping[str, Any]]) -> None:
    try:
        while True:
            line.write(document())
            time.sleep(BEAT_SECONDS)
    except OSError:
        return  # who reads finds out why


class FurtherHost:
    """The worker of a pod that has ranks of an engine and leads none."""

    def __init__(self, home: Path, host: EngineHost, config: NodeConfig, liveness: Liveness) -> None:
        self._weights = home / "weights"
        self._host = host
        self._config = config
        self._agent = AgentClient(home / "run" / "agent.sock")
        self._liveness = liveness
        self._signer: Signer = config.trust.of("trainer")

    def run(self) -> None:
        """Join the leading host and run ranks as long as the engine does, which ends this process. Asked to stop, it tells the leading host, which
        leaves in order first."""
        try:
            self._run()
        except Stopped as stopped:
            get_logger().info("stopped", reason=str(stopped))

    def _run(self) -> None:
        link, said = wait_for(
            "the first host of the engine",
            self._joined,
            interval_seconds=AGAIN_SECONDS,
            deadline_seconds=WAIT_SECONDS,
            liveness=self._liveness,
        )
        os.environ["VLLM_HOST_IP"] = link.line.address
        span = HostSpan(self._host.number, self._host.hosts, said["address"], RENDEZVOUS_PORT)
        routes = RouteShape(**said["routes"]) if said["routes"] is not None else None
        terms = EngineTerms(said["max_sequence_length"], said["batch"], said["quantization"], routes)
        checkpoint = read_checkpoint(self._agreed(said["version"], said["sha256"]))
        # While vLLM starts its ranks nobody looks at the link but this thread.
        threading.Thread(target=self._watch, args=(link,), name="link-watch", daemon=True).start()

        def goes_on() -> bool:
            self._liveness.progress()
            return not link.ended

        get_logger().info("ranks start", host=self._host.number, version=said["version"])
        reason = engine.serve_ranks(checkpoint, self._config.engine, terms, span, goes_on)
        time.sleep(SETTLE_SECONDS)  # where the rank ended because its leader did, `_watch` says so
        get_logger().error("this host's part of the engine has ended: this process ends", reason=reason)
        os._exit(EXIT_HOST_GONE)

    def _agreed(self, version: int, sha256: str) -> Path:
        """Folder of the version with which the engine starts; raises HostGone where it is not here, or another is."""
        policy = newest_policy(self._weights, self._signer, self._config.run, version, version)
        if policy is None or policy.manifest.sha256 != sha256:
            has = f"has SHA-256 {policy.manifest.sha256[:12]}... here" if policy is not None else "is not here"
            raise HostGone(f"the engine starts with version {version} of SHA-256 {sha256[:12]}..., which {has}")
        return policy.folder

    def _watch(self, link: LeaderLink) -> None:
        while not link.ended:
            time.sleep(BEAT_SECONDS)
        self._end(link)

    def _end(self, link: LeaderLink) -> None:
        if STOP.is_set():
            get_logger().info("stopped", reason="the engine has ended")
            os._exit(0)
        get_logger().error(
            "the first host of this engine is gone: this process ends, and is started again", reason=link.ended
        )
        os._exit(EXIT_HOST_GONE)

    def _joined(self) -> tuple[LeaderLink, dict[str, Any]] | None:
        """A link on which the engine was started; None where it ended before, or nobody listens."""
        try:
            connection = socket.create_connection((self._host.leader, LINK_PORT), timeout=AGAIN_SECONDS)
            line = _Line(connection)
            settings = self._config.engine.model_dump(mode="json")
            line.write({"number": self._host.number, "release": installed().version, "settings": settings})
        except OSError:
            return None
        link = LeaderLink(line, self._held)
        while link.start is None and not link.ended:
            self._liveness.progress()
            if STOP.wait(BEAT_SECONDS):
                raise Stopped("asked to stop before the engine started")
        return (link, link.start) if link.start is not None else None

    def _held(self) -> dict[int, str]:
        """Digests of the versions on this host's disk that the trainer signed, by number."""
        try:
            state = self._agent.state()
            if state is not None and state.notice is not None:
                self._config.trust.take(state.notice)
        except (Refused, BadSignature) as error:
            get_logger().warning("the agent's answer is not usable", reason=str(error))
        found = {}
        for version in versions_in(self._weights):
            policy = newest_policy(self._weights, self._signer, self._config.run, version, version)
            if policy is not None:
                found[version] = policy.manifest.sha256
        return found
