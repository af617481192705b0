"""A slow line for tests: passes connections on to a service, what the client sends at no more than a given speed.

With `whole` it is a proxy at the end of such a line, which passes a request on when it has all of it, as an Ingress does unless it is told not to.
"""

import contextlib
import re
import socket
import threading
import time

PIECE_BYTES = 16 << 10


class SlowLine:
    """Listens at `address`:`port` until `close`; `mbps` is the way out of all its clients together, 10^6 bits a second."""

    def __init__(self, address: str, port: int, service: tuple[str, int], mbps: float) -> None:
        self.url = f"http://{address}:{port}"
        self._service = service
        self.whole = False
        self._seconds_a_byte = 8 / 1e6 / mbps
        self._free_at = 0.0
        self._lock = threading.Lock()
        self._listener = socket.create_server((address, port))
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # else the accept that waits would keep it open
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, PIECE_BYTES)
                server = socket.create_connection(self._service)
                threading.Thread(target=self._pass, args=(client, server, True), daemon=True).start()
                threading.Thread(target=self._pass, args=(server, client, False), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, slowly: bool) -> None:
        held = b""
        with contextlib.suppress(OSError):
            while data := source.recv(PIECE_BYTES):
                if slowly:
                    self._wait(len(data))
                held += data
                if slowly and self.whole and not _is_whole(held):
                    continue
                target.sendall(held)
                held = b""
        for line in (source, target):
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

    def _wait(self, size: int) -> None:
        with self._lock:
            self._free_at = max(self._free_at, time.monotonic()) + size * self._seconds_a_byte
            wait = self._free_at - time.monotonic()
        time.sleep(max(0.0, wait))


def _is_whole(request: bytes) -> bool:
    """Whether all is there that a request's head announces."""
    head, end, body = request.partition(b"\r\n\r\n")
    found = re.search(rb"(?i)\r\ncontent-length: *([0-9]+)", head)
    return bool(end) and len(body) >= (int(found[1]) if found is not None else 0)
