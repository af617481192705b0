"""Readers who hold on to a relay without use: connections that never ask, and readers of a shard who take a few bytes a second.

python -m benchmarks.broadcast.holders HOST PORT PATH TOKEN: one of each, until it is ended.
"""

import socket
import sys
import time

SLOW_BYTES, SLOW_SECONDS = 1024, 1.0


def main() -> None:
    host, port, path, token = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
    idle = socket.create_connection((host, port))
    while True:
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.connect((host, port))
            slow.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
            while slow.recv(SLOW_BYTES):
                time.sleep(SLOW_SECONDS)
        if not _is_open(idle):  # nginx ends who says nothing; then another one comes
            idle.close()
            idle = socket.create_connection((host, port))


def _is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


if __name__ == "__main__":
    main()
