"""The measurement of this machine's way out, on its own side: asks discovery for a test and uploads random bytes.

Called by `session` and `shoal node join`.
"""

import os
import time

from shoal.contracts.problems import ProblemCode
from shoal.contracts.uplink import UplinkRequest, UplinkResult, UplinkTest
from shoal.telemetry import get_logger
from shoal.transport import Refused, SignedClient, Unavailable

LARGEST_BYTES = 32 << 20
"""Twice what a discovery of ours asks for: a node does not upload forever because somebody says so."""
LONGEST_SECONDS = 60.0
ASK_SECONDS = 45.0
"""Others may be at it, and a key has one test in half a minute."""
EARLY_SECONDS = 0.5
"""By which our clock may begin after discovery's, which counts from the giving of the test."""
GRACE_SECONDS = 2.0
"""For discovery's own answer to a line that is too slow, which has the figure in it."""


class TooSlowError(Exception):
    """The upload was not through in its time: a measurement, though nobody gave a figure."""


def show(client: SignedClient, node: str, pool: str, ask_seconds: float = ASK_SECONDS) -> UplinkResult:
    """Discovery's measurement of an upload by this machine.

    Raises `TooSlowError` when the upload was cut off, by discovery or by us; or when it came to discovery only when its time was over (a proxy that
    passes on whole bodies alone has it until then); `Refused` when discovery takes none, `Unavailable` when it does not answer.
    """
    test = client.call(
        "POST", "/v1/uplink-tests", UplinkRequest(node=node, pool=pool), UplinkTest, deadline_seconds=ask_seconds
    )
    if test is None or test.node != node or test.size > LARGEST_BYTES:
        raise Unavailable("discovery's test is not for this node")
    limit, begun = min(test.limit_seconds, LONGEST_SECONDS), time.monotonic()
    try:
        # Once: the time runs, and a second try would be another test's.
        answer = client.request(
            "PUT",
            f"/v1/uplink?test={test.test}",
            os.urandom(test.size),
            deadline_seconds=0.0,
            timeout_seconds=limit + 10.0,
            send_seconds=limit + GRACE_SECONDS,
            content_type="application/octet-stream",
        )
        result = UplinkResult.from_json(answer.content)
    except (Unavailable, Refused) as error:
        if time.monotonic() - begun < limit - EARLY_SECONDS or (
            isinstance(error, Refused) and error.code != ProblemCode.NO_SUCH_TEST
        ):
            raise
        mbps = test.size * 8 / 1e6 / limit
        raise TooSlowError(
            f"the upload did not finish in {limit:.0f} s: the uplink is below {mbps:.2g} Mbit/s"
        ) from error
    except ValueError as error:
        raise Unavailable(f"discovery's answer is not an UplinkResult: {str(error)[:200]}") from error
    get_logger().info("uplink measured", mbps=result.mbps, bytes=result.size, seconds=result.seconds)
    return result
