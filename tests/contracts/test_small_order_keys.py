"""Keys that belong to nobody: points of small order, under which one fixed signature verifies any message."""

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from shoal.crypto.keys import PRIME, SMALL_ORDER, PrivateKey, public_key, verify

SIGN = 1 << 255
ENCODINGS = [
    (y + extra | sign).to_bytes(32, "little").hex()
    for y in sorted(SMALL_ORDER)
    for extra in ((0, PRIME) if y + PRIME < SIGN else (0,))
    for sign in (0, SIGN)
]


def test_the_list_is_the_eight_points_whose_order_divides_eight() -> None:
    """Computed here from RFC 8032, section 5.1.4: every point times the group's prime order lies among them."""
    d = -121665 * pow(121666, -1, PRIME) % PRIME

    def add(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
        k = d * a[0] * b[0] * a[1] * b[1] % PRIME
        x = (a[0] * b[1] + b[0] * a[1]) * pow(1 + k, -1, PRIME)
        return x % PRIME, (a[1] * b[1] + a[0] * b[0]) * pow(1 - k, -1, PRIME) % PRIME

    def times(n: int, point: tuple[int, int]) -> tuple[int, int]:
        total = (0, 1)
        while n:
            total = add(total, point) if n & 1 else total
            point, n = add(point, point), n >> 1
        return total

    found: set[int] = set()
    for y in range(2, 40):
        square = (y * y - 1) * pow(d * y * y + 1, -1, PRIME) % PRIME
        x = pow(square, (PRIME + 3) // 8, PRIME)
        if (x * x - square) % PRIME:
            x = x * pow(2, (PRIME - 1) // 4, PRIME) % PRIME
        if (x * x - square) % PRIME == 0:
            small = times(2**252 + 27742317777372353535851937790883648493, (x, y))
            found |= {times(k, small)[1] for k in range(8)}
    assert found == SMALL_ORDER


@pytest.mark.parametrize("node", ENCODINGS)
def test_a_key_of_small_order_is_refused_in_each_of_its_encodings(node: str) -> None:
    with pytest.raises(ValueError, match="belongs to nobody"):
        public_key(node)
    assert not verify(node, bytes(64), b"anything")


def test_the_attack_works_where_nobody_looks() -> None:
    """The point 1 with the signature (1, 0): the library itself says yes to any message, so that the refusal is ours to make."""
    one = (1).to_bytes(32, "little")
    Ed25519PublicKey.from_public_bytes(one).verify(one + bytes(32), b"any message")
    assert not verify(one.hex(), one + bytes(32), b"any message")


def test_keys_that_are_made_are_taken() -> None:
    for _ in range(64):
        key = PrivateKey.generate()
        assert verify(key.public, key.sign(b"message"), b"message")
