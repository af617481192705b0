"""HTTP between our parts: one signing client, one verifying server side. RFC 9421 signatures, RFC 9457 problem answers."""

from shoal.transport.client import LaterReleaseError, Refused, SignedClient, Unavailable

__all__ = ["LaterReleaseError", "Refused", "SignedClient", "Unavailable"]
