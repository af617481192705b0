"""The three trackers behind one interface. Each library is imported when its tracker is opened, and no image but the tracker's has any.

A tracker says itself which step it has last, by what is in its files or on its server. Trackio also keeps a note, since a Space may sleep.
The follower begins after that, so a process that was killed at any point loses no step and writes none twice.
"""

import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from shoal.contracts.run import RunConfig
from shoal.contracts.trackers import Trackers, TrackioTracker, WandbTracker
from shoal.files import replace_file
from shoal.tracking.points import TrackedStep

NONE_YET = -1


@dataclass(frozen=True)
class RunLabel:
    """How trackers know a run. `name` is shown. `identity` also tells it from an earlier run of that name, whose steps a server may still have."""

    name: str
    identity: str

    @classmethod
    def of(cls, config: RunConfig) -> "RunLabel":
        return cls(config.run, f"{config.run}-{config.run_key[:8]}")


class TrackerFailed(RuntimeError):
    """A tracker's library or server did not take what was sent; the message says which and why."""


class Sink(Protocol):
    """One tracker."""

    name: str

    def last_step(self) -> int:
        """The last step that it has for sure; -1: none."""

    def write(self, points: Sequence[TrackedStep]) -> None:
        """Take points of later steps, in order. Raises TrackerFailed, after which the sink is closed and opened again."""

    def close(self) -> None:
        """Everything that was written is kept when this returns."""


def open_sink(trackers: Trackers, name: str, run: RunLabel, folder: Path) -> Sink:
    """The tracker of this name, with its files in `folder`. Raises TrackerFailed where its package is not installed, and what the package raises."""
    try:
        if name == "wandb" and trackers.wandb is not None:
            return WandbSink(trackers.wandb, run, folder / name)
        if name == "trackio" and trackers.trackio is not None:
            return TrackioSink(trackers.trackio, run, folder / name)
        return TensorBoardSink(folder / name / run.name)
    except ImportError as error:
        raise TrackerFailed(f"{name} is not installed: pip install 'shoal-rl[{name}]' ({error})") from error


class TensorBoardSink:
    """One event a step, so that a step is there whole or not at all. Costs 12 MB of packages, and about 2 KB a step."""

    name = "tensorboard"

    def __init__(self, folder: Path) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary = Event, Summary
        folder.mkdir(parents=True, exist_ok=True)
        self._last = self._found(folder)
        self._writer = EventFileWriter(str(folder))

    @staticmethod
    def _found(folder: Path) -> int:
        from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

        last = NONE_YET
        for path in folder.glob("events.out.tfevents.*"):
            for event in LegacyEventFileLoader(str(path)).Load():
                if event.HasField("summary"):
                    last = max(last, event.step)
        return last

    def last_step(self) -> int:
        return self._last

    def write(self, points: Sequence[TrackedStep]) -> None:
        for point in points:
            values = [self._summary.Value(tag=tag, simple_value=value) for tag, value in point.values.items()]
            summary = self._summary(value=values)
            self._writer.add_event(self._event(wall_time=point.unix, step=point.step, summary=summary))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class TrackioSink:
    """Opened for a batch of points and finished after it, which is what makes it write them out. Costs 9 MB of packages, and Pillow below 13.

    A Space that sleeps says of no run which step it has, so what was given to it is also noted in the volume.
    """

    name = "trackio"

    def __init__(self, settings: TrackioTracker, run: RunLabel, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("TRACKIO_DIR", str(folder))
        import trackio

        self._trackio, self._settings, self._run = trackio, settings, run
        self._given = folder / f"{run.identity}.last-step"

    def last_step(self) -> int:
        opened = self._open()
        last = opened._safe_get_max_step_for_run()
        opened.finish()
        return max(NONE_YET if last is None else int(last), self._noted())

    def _noted(self) -> int:
        try:
            return int(self._given.read_text())
        except (FileNotFoundError, ValueError):
            return NONE_YET

    def write(self, points: Sequence[TrackedStep]) -> None:
        opened = self._open()
        for point in points:
            opened.log(point.values, step=point.step)
        opened.finish()
        replace_file(self._given, str(points[-1].step).encode())

    def close(self) -> None:
        """Nothing is open between batches."""

    def _open(self) -> Any:
        return self._trackio.init(
            project=self._settings.project,
            name=self._run.identity,
            space_id=self._settings.space,
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )


class WandbSink:
    """One run of W&B, whichever process writes it. Costs 62 MB of packages and a helper process (`wandb-core`).

    Online the server says which step it has. Offline every opening makes a folder of its own, and all of them together say it.
    """

    name = "wandb"

    def __init__(self, settings: WandbTracker, run: RunLabel, folder: Path) -> None:
        import wandb

        folder.mkdir(parents=True, exist_ok=True)
        offline = settings.mode == "Offline"
        found = max(offline_steps(folder, run.identity), default=NONE_YET) if offline else NONE_YET
        self._run = wandb.init(
            project=settings.project,
            entity=settings.entity,
            id=run.identity,
            name=run.name,
            dir=str(folder),
            mode="offline" if offline else "online",
            resume="allow",
            # Nothing of the machine, of the code or of the environment leaves it: the metrics are what was asked for.
            settings=wandb.Settings(
                x_disable_stats=True,
                x_disable_meta=True,
                disable_git=True,
                disable_code=True,
                console="off",
                silent=True,
            ),
        )
        self._last = found if offline else self._run.step - 1

    def last_step(self) -> int:
        return self._last

    def write(self, points: Sequence[TrackedStep]) -> None:
        for point in points:
            # Committed: a step is sent at once, not when the next one begins.
            self._run.log(point.values, step=point.step, commit=True)

    def close(self) -> None:
        self._run.finish()


BLOCK = 32768
FILE_HEADER, RECORD_HEADER = 7, 7


def offline_steps(folder: Path, identity: str) -> Iterator[int]:
    """Steps in the files of W&B's offline mode, of every process that wrote this run. A file that ends in the middle of a record ends before it.

    Its format is that of LevelDB's log (github.com/google/leveldb, doc/log_format.md) behind a header of 7 bytes, with protobuf records.
    """
    from wandb.proto.wandb_internal_pb2 import Record

    for path in sorted(folder.glob(f"wandb/offline-run-*-{identity}/run-{identity}.wandb")):
        for data in _records(path.read_bytes()):
            record = Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "history":
                yield int(record.history.step.num)


def _records(data: bytes) -> Iterator[bytes]:
    at, parts = FILE_HEADER, b""
    while at + RECORD_HEADER <= len(data):
        left = BLOCK - at % BLOCK
        if left < RECORD_HEADER:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        begin = at + RECORD_HEADER
        if kind == 0 or begin + length > len(data):
            return
        first, last = kind in (1, 2), kind in (1, 4)
        parts = (b"" if first else parts) + data[begin : begin + length]
        if last:
            yield parts
        at = begin + length
