"""A folder that follows a tag: each version checked, changed by one rename, and left alone while the store cannot give the next one."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from served_runs import Promote, Served, files_of, make_run

from servers import wait_until
from shoal.contracts import keys
from shoal.serving import following
from shoal.serving.following import CURRENT, follow


class Stopped(Exception):
    """Ends a `follow` of a test."""


def current(served: Served) -> str:
    return str(os.readlink(served.folder / CURRENT))


def followed(
    served: Served, looks: list[Callable[[], object]], pauses: list[float] | None = None, **more: float
) -> list[str]:
    """What `follow` says over some looks; before each look but the first one of these is done."""
    said: list[str] = []

    def pause(seconds: float) -> None:
        if pauses is not None:
            pauses.append(seconds)
        if not looks:
            raise Stopped
        looks.pop(0)()

    with pytest.raises(Stopped):
        follow(served.access, "serving", served.folder, said.append, every_seconds=30.0, pause=pause, **more)
    return said


def test_a_folder_holds_the_version_that_the_tag_names(served: Served, promote: Promote) -> None:
    promote(1)
    said = served.said("fetch", "--folder", str(served.folder))
    assert "current: version 1 of run demo, which ann promoted to serving (a test)" in said
    assert current(served) == "v000001"
    found = {path.name: path.read_bytes() for path in (served.folder / CURRENT).iterdir()}
    assert {name: found[name] for name in files_of(1)} == files_of(1)
    assert json.loads(found["shoal-promotion.json"])["version"] == 1
    assert json.loads(found["shoal-run.json"])["run"] == "demo"


def test_a_second_fetch_reads_no_weights(served: Served, promote: Promote) -> None:
    promote(1)
    served.said("fetch", "--folder", str(served.folder))
    for info in served.run.store.list(keys.version(1)):
        if info.key.endswith(".bin"):
            served.run.store.delete(info.key)
    assert "fetching" not in served.said("fetch", "--folder", str(served.folder))


def test_the_folder_follows_promotions_and_roll_backs_and_keeps_two_versions(served: Served, promote: Promote) -> None:
    promote(0)
    seen: list[str] = []

    def then(change: Callable[[], object]) -> Callable[[], None]:
        def act() -> None:
            seen.append(current(served))
            change()

        return act

    back = then(lambda: served.said("rollback", "--reason", "x"))
    said = followed(served, [then(lambda: promote(1)), then(lambda: promote(2)), back, then(lambda: None)])
    assert seen == ["v000000", "v000001", "v000002", "v000001"]
    assert sorted(path.name for path in served.folder.iterdir()) == [CURRENT, "v000001", "v000002"]
    assert sum("fetching" in line for line in said) == 3, "version 1 was still there for the roll back"


def test_a_version_that_the_store_lost_leaves_the_folder_alone_and_is_said_once(
    served: Served, promote: Promote
) -> None:
    promote(1)

    def lose() -> None:
        promote(2)
        served.lose(2)

    said = followed(served, [lose, lambda: None, lambda: promote(0)])
    assert sum("tag serving names version 2, which the store has lost" in line for line in said) == 1
    assert "v000001 stays, next look in 30 s" in "".join(said)
    assert current(served) == "v000000"
    served.lose(0)
    promote(1)
    served.lose(1)
    shutil.rmtree(served.folder)
    refused = served.refused("fetch", "--folder", str(served.folder))
    assert "promote another version, or go back with `shoal serving rollback`" in refused


def test_damaged_bytes_never_become_current(served: Served, promote: Promote) -> None:
    promote(1)

    def damage() -> None:
        promote(2)
        served.run.store.put(keys.version_shard(2, 2), b"y" * 1024)

    said = followed(served, [damage])
    assert "shard 2 of version 2 does not have the SHA-256 of its descriptor" in "".join(said)
    assert current(served) == "v000001"


def test_a_folder_with_the_same_number_of_another_run_gets_this_runs(
    served: Served, promote: Promote, tmp_path: Path
) -> None:
    """`shoal serving image` puts every run into `models` unless it is told otherwise."""
    other = Served(make_run(tmp_path / "others"), ("demo", "--runs-dir", str(tmp_path / "others")), served.folder)
    other.run.add_version(1, files_of(1) | {"model.safetensors": b"other" * 600})
    other.said("promote", "--version", "1", "--reason", "x")
    other.said("fetch", "--folder", str(served.folder))
    promote(1)
    served.said("fetch", "--folder", str(served.folder))
    assert (served.folder / CURRENT / "model.safetensors").read_bytes() == files_of(1)["model.safetensors"]


def test_a_tag_that_is_not_there_is_said(served: Served) -> None:
    refused = served.refused("fetch", "--folder", str(served.folder))
    assert refused == "InputWrong: run demo has no tag serving: make it with `shoal serving promote --tag serving`"
    assert served.refused("fetch").endswith("give --folder DIR: where the model goes")


def test_a_folder_without_room_is_said_before_anything_is_fetched(
    served: Served, promote: Promote, monkeypatch: pytest.MonkeyPatch
) -> None:
    promote(1)
    usage = shutil.disk_usage(served.run.path)
    monkeypatch.setattr("shoal.serving.following.shutil.disk_usage", lambda path: usage._replace(free=100))
    refused = served.refused("fetch", "--folder", str(served.folder))
    assert "a folder that follows a tag needs room for two versions" in refused
    assert not (served.folder / CURRENT).exists()


def test_a_disk_that_takes_no_more_leaves_the_folder_alone_and_is_said(
    served: Served, promote: Promote, monkeypatch: pytest.MonkeyPatch
) -> None:
    promote(1)

    def full(*given: object) -> None:
        raise OSError(28, "No space left on device", "v000002")

    def fill() -> None:
        promote(2)
        monkeypatch.setattr(following, "export_model", full)

    assert "cannot write v000002: No space left on device; v000001 stays" in "".join(followed(served, [fill]))
    assert current(served) == "v000001"


def test_replicas_change_at_moments_of_their_own_and_look_again_before(served: Served, promote: Promote) -> None:
    promote(0)
    pauses: list[float] = []
    followed(served, [lambda: promote(1), lambda: promote(2), lambda: None], pauses, spread_seconds=1000.0)
    assert pauses[0] == 30.0, "the first version waits for nobody"
    assert 0.0 <= pauses[1] <= 1000.0
    assert current(served) == "v000002", "the tag moved on while it waited"


def test_the_program_follows_until_it_is_terminated(served: Served, promote: Promote, tmp_path: Path) -> None:
    promote(1)
    command = [sys.executable, "-m", "shoal.cli.main", "serving", "fetch", *served.arguments]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--folder", str(served.folder), "--follow", "1"], stdout=log, stderr=subprocess.STDOUT
        )
    try:
        wait_until("the first version", lambda: (served.folder / CURRENT).exists(), 120.0, 0.2)
        promote(2)
        wait_until("the second version", lambda: current(served) == "v000002", 120.0, 0.2)
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(60)
    assert code == 130, (tmp_path / "log").read_text()
    assert "Traceback" not in (tmp_path / "log").read_text()
