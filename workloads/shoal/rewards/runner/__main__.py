"""Entry point of the container `runner`: `python -m shoal.rewards.runner`. Programs, health and metrics on port 9107.

It reads no configuration and has no secrets. A machine on which programs cannot be isolated ends it with an error: nobody is judged without walls
unless the admin says so (`SHOAL_SANDBOX`).
"""

import sys

from shoal import telemetry
from shoal.rewards.runner.service import make_app
from shoal.rewards.sandbox import NoIsolation
from shoal.rewards.sandbox.pool import open_pool
from shoal.transport.server import serve

PORT = 9107


def main() -> None:
    log = telemetry.start("runner")
    try:
        pool = open_pool()
    except NoIsolation as error:
        log.error("no isolation", reason=str(error))
        sys.exit(str(error))
    try:
        serve(make_app(pool), PORT)
    finally:
        pool.close()


if __name__ == "__main__":
    main()
