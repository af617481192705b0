"""Merkle trees over a growing list, as RFC 9162 (Certificate Transparency 2.0, section 2.1) has them, hashed as RFC 6962 does. Pure.

Comes in: leaves (bytes) or their hashes (32 bytes each). Goes out: roots, proofs that a leaf is in a list (inclusion) and that one list continues
another (consistency), and their verification. Leaves and inner nodes are hashed with different first bytes, so that neither passes for the other.
Called by the ledger's writer, who signs roots, and by whoever checks the ledger. Verification never raises on hostile input.
"""

import hashlib
from collections.abc import Sequence

LONGEST_PATH = 64
"""Hashes of a proof at most: a list of 2^63 leaves has no longer one."""
EMPTY_ROOT = hashlib.sha256(b"").digest()
"""Root of the list without leaves."""


def leaf_hash(leaf: bytes) -> bytes:
    """SHA-256 of 0x00 and the leaf, 32 bytes."""
    return hashlib.sha256(b"\x00" + leaf).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """SHA-256 of 0x01 and both children, 32 bytes."""
    return hashlib.sha256(b"\x01" + left + right).digest()


class Frontier:
    """The root of a growing list in O(log n) memory: hashes of the full subtrees that it falls into, largest first."""

    def __init__(self) -> None:
        self.size = 0
        self._peaks: list[bytes] = []

    def append(self, leaf: bytes) -> None:
        """Add the hash of the next leaf. As many peaks merge as `size` ends in ones."""
        peak, size = leaf, self.size
        while size & 1:
            peak = node_hash(self._peaks.pop(), peak)
            size >>= 1
        self._peaks.append(peak)
        self.size += 1

    def root(self) -> bytes:
        """Root over all leaves so far, 32 bytes."""
        if not self._peaks:
            return EMPTY_ROOT
        found = self._peaks[-1]
        for peak in reversed(self._peaks[:-1]):
            found = node_hash(peak, found)
        return found


def root_of(leaves: Sequence[bytes]) -> bytes:
    """Root over leaf hashes, 32 bytes."""
    tree = Frontier()
    for leaf in leaves:
        tree.append(leaf)
    return tree.root()


def inclusion_path(leaves: Sequence[bytes], index: int) -> list[bytes]:
    """Hashes that lead from leaf `index` to the root over all of `leaves`, lowest first; raises ValueError when there is no such leaf."""
    if not 0 <= index < len(leaves):
        raise ValueError(f"leaf {index} is not one of {len(leaves)}")
    path: list[bytes] = []
    low, high = 0, len(leaves)
    while high - low > 1:  # from the root down: what is not gone into is a sibling
        middle = low + _split(high - low)
        if index < middle:
            path.append(root_of(leaves[middle:high]))
            high = middle
        else:
            path.append(root_of(leaves[low:middle]))
            low = middle
    return path[::-1]


def consistency_path(leaves: Sequence[bytes], old_size: int) -> list[bytes]:
    """Hashes that show that the first `old_size` leaves are the beginning of `leaves`; raises ValueError outside 1 to their number."""
    if not 1 <= old_size <= len(leaves):
        raise ValueError(f"a list of {len(leaves)} leaves has no beginning of {old_size}")
    path: list[bytes] = []
    low, high, whole = 0, len(leaves), True
    while old_size < high:
        middle = low + _split(high - low)
        if old_size <= middle:
            path.append(root_of(leaves[middle:high]))
            high = middle
        else:
            path.append(root_of(leaves[low:middle]))
            low, whole = middle, False
    if not whole:
        path.append(root_of(leaves[low:high]))
    return path[::-1]


def includes(leaf: bytes, index: int, size: int, path: Sequence[bytes], root: bytes) -> bool:
    """Whether a leaf with hash `leaf` is number `index` of the `size` leaves under `root` (RFC 9162, 2.1.3.2)."""
    if not 0 <= index < size or len(path) > LONGEST_PATH:
        return False
    place, last, found = index, size - 1, leaf
    for sibling in path:
        if last == 0:
            return False
        if place & 1 or place == last:
            found = node_hash(sibling, found)
            while not place & 1 and place:
                place, last = place >> 1, last >> 1
        else:
            found = node_hash(found, sibling)
        place, last = place >> 1, last >> 1
    return last == 0 and found == root


def continues(old_size: int, old_root: bytes, new_size: int, new_root: bytes, path: Sequence[bytes]) -> bool:
    """Whether the list under `new_root` begins with the one under `old_root` (RFC 9162, 2.1.4.2). Every list begins with the empty one."""
    if not 0 <= old_size <= new_size or len(path) > LONGEST_PATH:
        return False
    if old_size == 0:
        return old_root == EMPTY_ROOT and not path
    if old_size == new_size:
        return old_root == new_root and not path
    # A full tree is its own first hash, so the proof leaves it out.
    hashes = [old_root, *path] if old_size & (old_size - 1) == 0 else list(path)
    if not hashes:
        return False
    place, last = old_size - 1, new_size - 1
    while place & 1:
        place, last = place >> 1, last >> 1
    old = new = hashes[0]
    for sibling in hashes[1:]:
        if last == 0:
            return False
        if place & 1 or place == last:
            old, new = node_hash(sibling, old), node_hash(sibling, new)
            while not place & 1 and place:
                place, last = place >> 1, last >> 1
        else:
            new = node_hash(new, sibling)
        place, last = place >> 1, last >> 1
    return last == 0 and old == old_root and new == new_root


def _split(size: int) -> int:
    """The largest power of two below `size` (at least 2): where RFC 9162 divides a list."""
    return 1 << ((size - 1).bit_length() - 1)
