"""The served folder: pieces appear whole, the index follows, old versions go without tearing who reads them."""

from pathlib import Path

from shoal.broadcast.tree import OPEN, WEIGHTS, Tree
from shoal.contracts.weights import VersionIndex


def _index(tree: Tree) -> list[int]:
    return VersionIndex.from_json((tree.root / "versions" / "index.json").read_bytes()).versions


def _fill(tree: Tree, version: int, *, sealed: bool = True) -> None:
    tree.publish(version, OPEN, b"open")
    tree.publish(version, "00000.bin", b"shard")
    if sealed:
        tree.publish(version, WEIGHTS, b"weights")
    tree.write_index()


def test_an_empty_folder_serves_an_empty_index(tmp_path: Path) -> None:
    assert _index(Tree(tmp_path)) == []


def test_the_index_lists_versions_from_their_opening_record_on(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.publish(4, "00000.bin", b"shard")
    tree.write_index()
    assert _index(tree) == []
    _fill(tree, 4, sealed=False)
    _fill(tree, 3)
    assert _index(tree) == [3, 4]
    assert (tree.held(), tree.sealed()) == ([3, 4], [3])


def test_what_a_killed_process_was_writing_is_gone_at_the_next_start_and_was_never_visible(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    _fill(tree, 1)
    tree.temporary(1, "00001.bin").write_bytes(b"half")
    again = Tree(tmp_path)
    assert again.read(1, "00001.bin") is None
    assert list((tmp_path / "tmp").iterdir()) == []
    assert again.sealed() == [1]


def test_only_the_newest_versions_are_kept_and_the_index_says_so(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    for version in range(5):
        _fill(tree, version)
    assert tree.keep_newest(2) == [0, 1, 2]
    assert _index(tree) == tree.held() == [3, 4]


def test_the_newest_whole_version_is_kept_although_newer_ones_have_begun(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    _fill(tree, 1)
    for version in (2, 3):
        _fill(tree, version, sealed=False)
    tree.keep_newest(2)
    assert tree.held() == [1, 2, 3]


def test_a_reader_of_a_dropped_version_reads_to_the_end(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    _fill(tree, 1)
    with tree.path(1, "00000.bin").open("rb") as reader:
        assert reader.read(2) == b"sh"
        tree.drop(1)
        assert reader.read() == b"ard"
    assert _index(tree) == []
    assert not tree.path(1, OPEN).exists()


def test_dropping_what_is_not_there_changes_nothing(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    _fill(tree, 1)
    tree.drop(2)
    assert _index(tree) == [1]
