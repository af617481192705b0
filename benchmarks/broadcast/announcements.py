"""A stand-in for the orchestrator, inside the origin's namespace: takes announcements and writes the newest number to a file.

python -m benchmarks.broadcast.announcements PORT FILE
"""

import os
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from shoal.contracts.protocol import VersionAnnouncement


def main() -> None:
    file = Path(sys.argv[2])

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            fresh = file.with_suffix(".partial")
            fresh.write_text(str(VersionAnnouncement.from_json(body).version))
            os.replace(fresh, file)
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()


if __name__ == "__main__":
    main()
