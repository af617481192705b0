"""Merkle trees: the known vectors of Certificate Transparency, every proof of small lists, and every proof with one thing wrong."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.ledger import merkle

# The reference leaves and roots of Certificate Transparency's own implementation (RFC 6962 hashing).
REFERENCE_LEAVES = [
    bytes.fromhex(text)
    for text in ("", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f")
]
REFERENCE_ROOTS = [
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]
REFERENCE = [merkle.leaf_hash(leaf) for leaf in REFERENCE_LEAVES]


def leaves(count: int) -> list[bytes]:
    return [merkle.leaf_hash(b"%d" % number) for number in range(count)]


@pytest.mark.parametrize("size", range(1, 9))
def test_roots_are_those_of_certificate_transparency(size: int) -> None:
    assert merkle.root_of(REFERENCE[:size]).hex() == REFERENCE_ROOTS[size - 1]


def test_the_empty_list_has_the_hash_of_nothing_as_its_root() -> None:
    assert merkle.Frontier().root() == hashlib.sha256(b"").digest() == merkle.EMPTY_ROOT


def test_paths_are_those_of_certificate_transparency() -> None:
    assert [each.hex() for each in merkle.inclusion_path(REFERENCE, 5)] == [
        "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ]
    assert [each.hex() for each in merkle.consistency_path(REFERENCE, 6)] == [
        "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ]


@pytest.mark.parametrize("size", range(1, 18))
def test_every_leaf_of_every_small_list_is_proven_and_at_no_other_place(size: int) -> None:
    hashes = leaves(size)
    root = merkle.root_of(hashes)
    for index, leaf in enumerate(hashes):
        path = merkle.inclusion_path(hashes, index)
        assert len(path) <= (size - 1).bit_length()
        assert merkle.includes(leaf, index, size, path, root)
        for elsewhere in range(-1, size + 2):
            assert merkle.includes(leaf, elsewhere, size, path, root) == (elsewhere == index)
        assert not merkle.includes(merkle.leaf_hash(b"another"), index, size, path, root)
        assert not merkle.includes(leaf, index, size, [*path, root], root)
        assert not merkle.includes(leaf, index, size, path[:-1], root) or not path


@pytest.mark.parametrize("size", range(1, 18))
def test_every_beginning_of_every_small_list_is_proven_and_no_other_list(size: int) -> None:
    hashes = leaves(size)
    root = merkle.root_of(hashes)
    for old in range(1, size + 1):
        path, old_root = merkle.consistency_path(hashes, old), merkle.root_of(hashes[:old])
        assert merkle.continues(old, old_root, size, root, path)
        rewritten = merkle.root_of([merkle.leaf_hash(b"rewritten"), *hashes[1:old]])
        assert not merkle.continues(old, rewritten, size, root, path)
        assert not merkle.continues(old, old_root, size, merkle.node_hash(root, root), path)
        assert not merkle.continues(old, old_root, size, root, [*path, root])
        for position in range(len(path)):
            changed = [*path[:position], merkle.EMPTY_ROOT, *path[position + 1 :]]
            assert not merkle.continues(old, old_root, size, root, changed)


def test_the_empty_list_begins_every_list() -> None:
    root = merkle.root_of(leaves(3))
    assert merkle.continues(0, merkle.EMPTY_ROOT, 3, root, [])
    assert not merkle.continues(0, root, 3, root, [])
    assert not merkle.continues(4, root, 3, root, [])


def test_an_inner_node_does_not_pass_for_a_leaf() -> None:
    first, second = leaves(2)
    root = merkle.root_of([first, second])
    assert not merkle.includes(merkle.leaf_hash(first + second), 0, 1, [], root)


@given(st.binary(max_size=40), st.integers(-5, 70), st.integers(-5, 70), st.lists(st.binary(max_size=40), max_size=70))
def test_no_proof_of_any_shape_crashes_the_verifier(leaf: bytes, one: int, two: int, path: list[bytes]) -> None:
    root = merkle.root_of(leaves(7))
    assert not merkle.includes(leaf, one, two, path, root)
    if one > 0 and one != two:
        assert not merkle.continues(one, merkle.root_of(leaves(5)), two, root, path)


@pytest.mark.parametrize("index", [-1, 3])
def test_a_leaf_that_is_not_there_has_no_path(index: int) -> None:
    with pytest.raises(ValueError, match=f"leaf {index} is not one of 3"):
        merkle.inclusion_path(leaves(3), index)


@pytest.mark.parametrize("old", [0, 4])
def test_a_beginning_longer_than_the_list_has_no_path(old: int) -> None:
    with pytest.raises(ValueError, match=f"a list of 3 leaves has no beginning of {old}"):
        merkle.consistency_path(leaves(3), old)
