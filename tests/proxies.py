"""A proxy between a client and a server of a test, which fails as networks and busy servers do."""

import contextlib
import socket
import threading

BUSY = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class Proxy:
    """A TCP proxy that passes requests on. While `losing`, it drops the connection instead of passing the answer back; while `busy`, it says 503."""

    def __init__(self, listen: tuple[str, int], target: tuple[str, int]) -> None:
        self._target = target
        self._server = socket.create_server(listen)
        self.url = f"http://{listen[0]}:{self._server.getsockname()[1]}"
        self.losing = 0
        self.lost = 0
        self.busy = 0
        """Connections that are answered so, and are not passed on."""
        self.connections = 0
        """All that were ever accepted."""
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        if self.busy:
            self.busy -= 1
            with client:
                client.recv(65536)
                client.sendall(BUSY)
            return
        with client, socket.create_connection(self._target) as upstream:
            threading.Thread(target=self._pass_on, args=(client, upstream), daemon=True).start()
            try:
                while data := upstream.recv(65536):
                    if self.losing:
                        self.losing -= 1
                        self.lost += 1
                        return
                    client.sendall(data)
            except OSError:
                return
            finally:
                # A close alone is not seen by the peer while the other thread still reads from the socket.
                with contextlib.suppress(OSError):
                    client.shutdown(socket.SHUT_RDWR)

    @staticmethod
    def _pass_on(client: socket.socket, upstream: socket.socket) -> None:
        try:
            while data := client.recv(65536):
                upstream.sendall(data)
        except OSError:
            return
