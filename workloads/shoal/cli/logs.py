"""`shoal logs`: the logs of all parts of a run, merged by time; with `--follow` also new lines.

Files are `logs/<pod>/<container>.log`. A file that grew too large is cut to its newer half in place, because its process holds it open.
"""

import heapq
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from shoal.cli.log_lines import LogLine, dated, line_time, show
from shoal.errors import InputWrong
from shoal.text import plain

FOLLOW_SECONDS = 0.3


def log_files(logs: Path, part: str | None) -> dict[str, Path]:
    """The file of every part (`pod/container`); of those that `part` means, when it is given. Raises `InputWrong` naming the parts when none fits."""
    found = {f"{path.parent.name}/{path.stem}": path for path in sorted(logs.glob("*/*.log"))}
    chosen = {name: path for name, path in found.items() if part is None or fits(name, part)}
    if not chosen:
        known = ", ".join(sorted(found)) or "none yet"
        what = f"no log of {part!r} in {logs}; parts: {known}" if part else f"there is no log in {logs}"
        raise InputWrong(plain(what, 2000))
    return chosen


def fits(name: str, part: str) -> bool:
    """Whether `pod/container` is what the user means by `part`: either one, both, or the pod without the run's name."""
    pod, container = name.split("/")
    return part in (name, pod, container) or name.endswith(f"-{part}") or pod.endswith(f"-{part}")


def read_lines(path: Path, end: int | None = None) -> Iterator[str]:
    """Lines of a file, up to byte `end` where given, whatever bytes are in it; a file that is gone is empty."""
    try:
        with path.open("rb") as file:
            read = 0
            for line in file:
                if end is not None and read >= end:
                    return
                read += len(line)
                yield line.decode("utf-8", errors="backslashreplace").rstrip("\r\n")
    except FileNotFoundError:
        return


def merged(files: dict[str, Path], since_unix: float, ends: dict[Path, int] | None = None) -> Iterator[LogLine]:
    """All lines from `since_unix` on, by time; lines of one file keep their order. `ends` says where to stop in a file that still grows."""

    def of_part(name: str, path: Path) -> Iterator[LogLine]:
        lines = dated(name, read_lines(path, (ends or {}).get(path)))
        return (line for line in lines if line.unix >= since_unix)

    return heapq.merge(*(of_part(name, path) for name, path in files.items()), key=lambda line: line.unix)


def last_line(logs: Path, name: str) -> str:
    """The last line of a part that is not empty: a process's last message; empty for a part without a log."""
    last = ""
    for line in read_lines(logs / f"{name}.log"):
        last = line if line.strip() else last
    return last


@dataclass
class Tail:
    """Reads what is appended to one file. A line without its end is kept until the end comes."""

    part: str
    path: Path
    offset: int = 0
    inode: int = 0
    rest: bytes = field(default=b"")

    def skip(self) -> int:
        """Go to the end of the last whole line, and return its offset; earlier lines are shown otherwise."""
        try:
            with self.path.open("rb") as file:
                self.inode = os.fstat(file.fileno()).st_ino
                self.offset = sum(len(line) for line in file if line.endswith(b"\n"))
        except FileNotFoundError:
            return 0
        return self.offset

    def read(self, now_unix: float) -> list[LogLine]:
        """New whole lines; a line without a time gets that of its receipt."""
        try:
            with self.path.open("rb") as file:
                stat = os.fstat(file.fileno())
                if stat.st_ino != self.inode:
                    self.offset, self.inode, self.rest = 0, stat.st_ino, b""
                elif stat.st_size < self.offset:
                    self.offset, self.rest = stat.st_size, b""  # cut in place: what is left in it was shown
                file.seek(self.offset)
                data = file.read()
        except FileNotFoundError:
            return []
        self.offset += len(data)
        *lines, self.rest = (self.rest + data).split(b"\n")
        texts = (line.decode("utf-8", errors="backslashreplace").rstrip("\r") for line in lines)
        return [LogLine(line_time(text) or now_unix, self.part, text) for text in texts]


def print_logs(
    logs: Path, part: str | None, since_unix: float, follow: bool, write: Callable[[str], None],
    go_on: Callable[[], bool] = lambda: True,
) -> None:  # fmt: skip
    """Write the merged lines; with `follow` until `go_on` returns False or Ctrl-C. New parts are picked up."""
    files = log_files(logs, part)
    tails = {name: Tail(name, path) for name, path in files.items()}
    ends = {tail.path: tail.skip() for tail in tails.values()} if follow else {}
    for line in merged(files, since_unix, ends):
        write(show(line))
    while follow and go_on():
        for name, path in log_files(logs, part).items():
            tails.setdefault(name, Tail(name, path))
        fresh = [line for tail in tails.values() for line in tail.read(time.time())]
        for line in sorted(fresh, key=lambda line: line.unix):
            write(show(line))
        time.sleep(FOLLOW_SECONDS)
