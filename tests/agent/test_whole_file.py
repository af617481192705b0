"""What the agent writes into the folder that it shares with its worker: a worker, or a program that it runs, may put links there."""

import stat
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from shoal.agent.agent import Follower
from shoal.agent.owner import Allowance
from shoal.contracts.run import AgentStatus
from shoal.files import replace_file

KEY = b"the agent's key"
STATUS = AgentStatus(
    run="run", pool="pool", node="a" * 64, discovery="http://127.0.0.1:8081", state="Healthy", written_unix=1.8e9
)


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "secrets" / "node.pem"
    path.parent.mkdir()
    path.write_bytes(KEY)
    return path


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("name", ["status.json", ".status.json.partial", "status.partial"])
def test_no_link_that_a_worker_put_there_is_written_through(shared: Path, key: Path, name: str) -> None:
    (shared / name).symlink_to(key)
    session, work = SimpleNamespace(status=lambda: STATUS), SimpleNamespace(parts=list)  # all that `status` asks
    follower = Follower(session, work, threading.Event(), shared / "status.json")  # no whole session is needed
    follower._write(follower.status())
    assert key.read_bytes() == KEY
    assert not (shared / "status.json").is_symlink()
    assert AgentStatus.from_json((shared / "status.json").read_bytes()) == STATUS


def test_a_file_is_replaced_whole_with_the_rights_that_are_asked_for(shared: Path) -> None:
    path = shared / "code"
    for data in (b"one", b"another"):
        replace_file(path, data)
        assert path.read_bytes() == data
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in shared.iterdir()] == ["code"]


def test_what_cannot_be_written_leaves_the_old_file(shared: Path) -> None:
    path = shared / "code"
    replace_file(path, b"old")
    (shared / ".code.partial").mkdir()  # nothing that can be unlinked
    with pytest.raises(OSError, match=r"\.code\.partial"):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"


def test_a_node_that_cannot_write_its_status_still_ends_when_its_owner_asks(tmp_path: Path) -> None:
    session, work = SimpleNamespace(status=lambda: STATUS, assignment=lambda: None), SimpleNamespace(parts=list)
    work.follow = lambda _: None
    nowhere = tmp_path / "full" / "status.json"  # a write fails as on a full disk
    follower = Follower(session, work, threading.Event(), nowhere, lambda: Allowance(False, False, ends=True))
    ends = threading.Event()
    follower.when_over = ends.set
    follower.start()
    assert ends.wait(30)
    follower.stop()
