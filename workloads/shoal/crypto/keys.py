"""Ed25519 keys (RFC 8032). A node is its public key, and so is a trusted role. The operator makes the roles' keys."""

from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

PRIME = 2**255 - 19
SMALL_ORDER = frozenset(
    {
        0,
        1,
        PRIME - 1,
        0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826,
        0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7,
    }
)
"""The y of the eight points whose order divides 8 (RFC 7748, section 7; RFC 8032, section 5.1). Under such a key one fixed signature verifies without
a private key, so that it would be everybody's node."""


class PrivateKey:
    """An Ed25519 signing key (RFC 8032). Its repr never shows the secret."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public: str = key.public_key().public_bytes_raw().hex()

    @classmethod
    def generate(cls) -> "PrivateKey":
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def from_pem(cls, pem: bytes) -> "PrivateKey":
        """Load a PKCS#8 PEM; raises ValueError when it is not an Ed25519 private key."""
        key = serialization.load_pem_private_key(pem, password=None)
        if not isinstance(key, Ed25519PrivateKey):
            raise ValueError(f"expected an Ed25519 private key in PEM, got {type(key).__name__}")
        return cls(key)

    @classmethod
    def from_seed(cls, seed: bytes) -> "PrivateKey":
        """The key of a 32-byte seed (RFC 8032); raises ValueError for another length."""
        return cls(Ed25519PrivateKey.from_private_bytes(seed))

    @classmethod
    def load(cls, path: Path) -> "PrivateKey":
        return cls.from_pem(path.read_bytes())

    def to_pem(self) -> bytes:
        return self._key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    def sign(self, data: bytes) -> bytes:
        return self._key.sign(data)

    def __repr__(self) -> str:
        return f"PrivateKey(public={self.public[:12]}...)"


def public_key(node: str) -> Ed25519PublicKey:
    """The key object of a node id; raises ValueError when it is not 32 bytes of lower-case hex, or a key that proves nothing (`SMALL_ORDER`)."""
    raw = bytes.fromhex(node)
    if len(raw) != 32 or node != raw.hex():
        raise ValueError("a node id is 64 lower-case hex digits: an Ed25519 public key")
    y = int.from_bytes(raw, "little") & ((1 << 255) - 1)
    if y >= PRIME or y in SMALL_ORDER:
        raise ValueError(
            "this Ed25519 key belongs to nobody: its point has a small order or is not in canonical form; make a new key"
        )
    return Ed25519PublicKey.from_public_bytes(raw)


def verify(node: str, signature: bytes, data: bytes) -> bool:
    """Whether `signature` over `data` was made by the holder of `node`'s key. Never raises on hostile input."""
    try:
        public_key(node).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True
