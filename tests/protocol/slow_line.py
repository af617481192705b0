"""A slow line for tests: passes connections on to a service, what the client sends at no more than a given speed."""

import contextlib
import socket
import threading
import time

PIECE_BYTES = 16 << 10


class SlowLine:
    """Listens at `address`:`port` until `close`; `mbps` is the way out of all its clients together, 10^6 bits a second."""

    def __init__(self, address: str, port: int, service: tuple[str, int], mbps: float) -> None:
        self.url = f"http://{address}:{port}"
        self._service = service
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
        with contextlib.suppress(OSError):
            while data := source.recv(PIECE_BYTES):
                if slowly:
                    self._wait(len(data))
                target.sendall(data)
        for line in (source, target):
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

    def _wait(self, size: int) -> None:
        with self._lock:
            self._free_at = max(self._free_at, time.monotonic()) + size * self._seconds_a_byte
            wait = self._free_at - time.monotonic()
        time.sleep(max(0.0, wait))
