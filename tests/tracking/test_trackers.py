"""The follower as a process of its own with the real trackers offline: every step once, whenever it was killed, and what they read back."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from run_documents import RunFolder, step_metrics
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from servers import Loopback, wait_until
from shoal.contracts.trackers import TensorBoardTracker, Trackers, TrackioTracker, WandbTracker
from shoal.tracking.sinks import offline_steps

START_SECONDS = 90.0
KEY = "planted-key-of-nobody-0123456789abcdef01"
OFFLINE = {
    "wandb": Trackers(wandb=WandbTracker(mode="Offline")),
    "trackio": Trackers(trackio=TrackioTracker()),
    "tensorboard": Trackers(tensorboard=TensorBoardTracker()),
}


def reward(step: int) -> float:
    return step / 8


class Tracked(RunFolder):
    """A run whose follower is started, killed and stopped; `tracks` is what outlives it."""

    def __init__(self, runs_dir: Path, address: str) -> None:
        super().__init__(runs_dir)
        self.address = address
        self.tracks = self.home / "tracks"
        self.tracks.mkdir()
        self.log = self.path / "tracker.log"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def identity(self) -> str:
        return f"demo-{self.config.run_key[:8]}"

    def train(self, *steps: int) -> None:
        for step in steps:
            self.add_step(step_metrics(step, task_reward=reward(step)))

    def start(self, trackers: Trackers) -> None:
        environment = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        environment |= {
            "SHOAL_HOME": str(self.home), "SHOAL_BIND": self.address, "SHOAL_POD": "demo-tracker-0", "SHOAL_ROLE": "tracker",
            "HOME": str(self.home / "tmp"), "TMPDIR": str(self.home / "tmp"), "WANDB_API_KEY": KEY,
        }  # fmt: skip
        (self.home / "tmp").mkdir(exist_ok=True)
        with self.log.open("ab") as log:
            line = [sys.executable, "-m", "shoal.tracking", trackers.to_json().decode()]
            self.process = subprocess.Popen(line, env=environment, stdout=log, stderr=log, start_new_session=True)

    def said(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]

    def sent(self) -> int:
        return sum(int(str(line["points"])) for line in self.said() if line["event"] == "steps sent")

    def kill(self) -> None:
        """SIGKILL for the process and whatever it started: what a container's end does."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        assert self.process is not None
        self.process.terminate()
        assert self.process.wait(60) == 0, self.log.read_text()


@pytest.fixture
def run(tmp_path: Path, loopback: Loopback) -> Iterator[Tracked]:
    made = Tracked(tmp_path, loopback.address())
    yield made
    if made.process is not None and made.process.poll() is None:
        made.kill()


def of_wandb(run: Tracked) -> list[int]:
    return list(offline_steps(run.tracks / "wandb", run.identity))


def of_trackio(run: Tracked) -> list[int]:
    """From SQLite itself, past the library."""
    [path] = (run.tracks / "trackio").glob("shoal*.db")
    with sqlite3.connect(path) as database:
        rows = database.execute("SELECT step, metrics FROM metrics WHERE run_name = ?", (run.identity,)).fetchall()
    assert all(json.loads(values)["train/task_reward"] == reward(step) for step, values in rows)
    return [step for step, _ in rows]


def of_tensorboard(run: Tracked) -> list[int]:
    read = EventAccumulator(str(run.tracks / "tensorboard" / "demo"), size_guidance={"scalars": 0})
    read.Reload()
    events = read.Scalars("train/task_reward")
    assert all(event.value == reward(event.step) for event in events)
    return [event.step for event in events]


READERS: dict[str, Callable[[Tracked], list[int]]] = {
    "wandb": of_wandb,
    "trackio": of_trackio,
    "tensorboard": of_tensorboard,
}


@pytest.mark.parametrize("name", OFFLINE)
def test_every_step_is_there_once_whenever_the_follower_was_killed(run: Tracked, name: str) -> None:
    run.train(0, 1, 2)
    run.start(OFFLINE[name])
    wait_until("three steps", lambda: run.sent() == 3, START_SECONDS)
    run.stop()
    run.train(3, 4, 5)
    run.start(OFFLINE[name])
    wait_until("three more steps", lambda: run.sent() == 6, START_SECONDS)
    run.kill()
    run.train(6, 7)
    run.start(OFFLINE[name])
    wait_until("the rest", lambda: run.sent() >= 8, START_SECONDS)
    run.train(8)  # a step that ends just before the run does
    run.stop()
    assert Counter(READERS[name](run)) == Counter(range(9)), run.log.read_text()


def test_the_key_of_a_tracker_is_in_no_file(run: Tracked) -> None:
    run.train(0)
    run.start(OFFLINE["wandb"])
    wait_until("a step", lambda: run.sent() == 1, START_SECONDS)
    run.stop()
    files = [path for path in run.path.rglob("*") if path.is_file() and not path.is_symlink()]
    assert len(files) > 5
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []


def test_a_tracker_that_cannot_be_opened_does_not_stop_another(run: Tracked) -> None:
    (run.tracks / "trackio").write_text("in the way")
    run.train(0, 1)
    run.start(Trackers(trackio=TrackioTracker(), tensorboard=TensorBoardTracker()))
    wait_until("the other tracker", lambda: run.sent() == 2, START_SECONDS)
    run.stop()
    assert of_tensorboard(run) == [0, 1]
    assert any("a tracker failed and is tried again" in str(line["event"]) for line in run.said())


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_run_that_was_made_anew_under_its_name_is_sent_from_its_beginning(
    tmp_path: Path, run: Tracked, name: str
) -> None:
    run.train(0, 1, 2)
    run.start(OFFLINE[name])
    wait_until("the first run", lambda: run.sent() == 3, START_SECONDS)
    run.stop()
    (tmp_path / "again").mkdir()
    again = Tracked(tmp_path / "again", run.address)
    again.tracks.rmdir()
    again.tracks.symlink_to(run.tracks)  # what a server keeps when the run and its volume are gone
    again.train(0, 1)
    again.start(OFFLINE[name])
    try:
        wait_until("the second run", lambda: again.sent() == 2, START_SECONDS)
        again.stop()
    finally:
        if again.process is not None and again.process.poll() is None:
            again.kill()
    assert [READERS[name](each) for each in (run, again)] == [[0, 1, 2], [0, 1]]


def test_trackio_begins_after_what_it_was_given_though_its_database_does_not_answer(run: Tracked) -> None:
    run.train(0, 1, 2)
    run.start(OFFLINE["trackio"])
    wait_until("three steps", lambda: run.sent() == 3, START_SECONDS)
    run.stop()
    for path in (run.tracks / "trackio").glob("shoal*.db*"):
        path.unlink()  # what a Space that sleeps says of a run: there is none
    run.train(3)
    run.start(OFFLINE["trackio"])
    wait_until("one more step", lambda: run.sent() > 3, START_SECONDS)
    run.stop()
    assert of_trackio(run) == [3]
