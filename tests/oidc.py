"""An OpenID Connect issuer on this machine, as a cluster's API server is one for service accounts: its keys over HTTP, tokens, a renewed file.

RS256 (RFC 7518) over one key of its own. What asks it is real: MinIO's token service fetches the keys and checks signature, audience and expiry.
"""

import base64
import hashlib
import json
import time
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from json_server import JsonServer

AUDIENCE = "sts.shoal.test"


def role_arn(audience: str) -> str:
    """How MinIO calls the role of an audience; it says so in its log, too."""
    digest = hashlib.sha1(audience.encode(), usedforsecurity=False).digest()
    return f"arn:minio:iam:::role/{_text(digest)}"


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _number(value: int) -> str:
    return _text(value.to_bytes((value.bit_length() + 7) // 8, "big"))


class Issuer(JsonServer):
    """Serves until `close`. `url` is the issuer, `config_url` where its keys are found."""

    def __init__(self, address: str) -> None:
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        super().__init__(address)
        self.config_url = f"{self.url}/.well-known/openid-configuration"

    def answer(self, path: str, asked: dict[str, str]) -> tuple[int, dict[str, Any]]:
        if path.endswith("/jwks"):
            public = self._key.public_key().public_numbers()
            key = {
                "kty": "RSA",
                "use": "sig",
                "alg": "RS256",
                "kid": "one",
                "n": _number(public.n),
                "e": _number(public.e),
            }
            return 200, {"keys": [key]}
        return 200, {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/none",
            "token_endpoint": f"{self.url}/none",
            "jwks_uri": f"{self.url}/jwks",
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256"],
        }

    def token(
        self, subject: str = "system:serviceaccount:research:store", audience: str = AUDIENCE, seconds: float = 3600
    ) -> str:
        """A token as a projected volume has it, for `seconds` from now."""
        now = int(time.time())
        return self.signed(
            {"iss": self.url, "sub": subject, "aud": audience, "iat": now, "nbf": now, "exp": now + int(seconds)}
        )

    def signed(self, claims: dict[str, Any]) -> str:
        """A token with these claims."""
        head = {"alg": "RS256", "kid": "one", "typ": "JWT"}
        signed = ".".join(_text(json.dumps(part).encode()) for part in (head, claims))
        return f"{signed}.{_text(self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256()))}"

    def verify(self, token: str) -> None:
        """Raises InvalidSignature, and ValueError for what is no token at all."""
        signed, _, signature = token.rpartition(".")
        given = base64.urlsafe_b64decode(signature + "=" * (-len(signature) % 4))
        self._key.public_key().verify(given, signed.encode(), padding.PKCS1v15(), hashes.SHA256())

    def write(self, path: Path, **claims: Any) -> str:
        """Put a new token in place of the one in `path`, as a kubelet does; gives the token."""
        token = self.token(**claims)
        new = path.with_name(f".{path.name}-{hashlib.sha256(token.encode()).hexdigest()[:8]}")
        path.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(token)
        new.replace(path)
        return token
