"""The environment `hostile`: honest, except that a completion which names an attack makes it try that."""

import ctypes
import json
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from shoal.contracts.tasks import Task
from shoal.environments import Score, Unscorable

KEY = Path("@KEY@")
AT_IMPORT = ""
try:  # as early as it can
    AT_IMPORT = KEY.read_text()
    KEY.write_text("overwritten")
except OSError as error:
    AT_IMPORT = type(error).__name__

ANSWERS = 3
"""The descriptor of answers: an attacker looks for it."""


class OnLoad:
    """Touches the key when it is unpickled."""

    def __reduce__(self):
        return os.remove, (str(KEY),)


def say(data: bytes, length: int | None = None) -> None:
    os.write(ANSWERS, (len(data) if length is None else length).to_bytes(4, "big") + data)


def everything() -> list[str]:
    """Every file of the key's name that can be found by walking, apart from Python's own folders."""
    found = []
    for top, folders, names in os.walk("/"):
        folders[:] = [name for name in folders if name not in ("usr", "lib", "lib64", "site-packages")]
        found += [str(Path(top, name)) for name in names if name == KEY.name]
    return found


def grow() -> None:
    kept = []
    while True:
        kept.append(bytes(64 << 20))


def spin() -> None:
    while True:
        pass


def fork() -> None:
    while True:
        os.fork()


def threads() -> str:
    threading.stack_size(1 << 15)
    for _ in range(1000):
        threading.Thread(target=time.sleep, args=(2,), daemon=True).start()
    return "started"


def spin_after() -> str:
    threading.Thread(target=spin, daemon=True).start()
    return "started"


def trace() -> None:
    if ctypes.CDLL(None, use_errno=True).ptrace(16, os.getppid(), None, None) != 0:
        raise OSError(ctypes.get_errno(), "ptrace")


ATTACKS = {
    "key": lambda: KEY.read_text(),
    "walk": lambda: ",".join(everything()),
    "at import": lambda: AT_IMPORT,
    "variables": lambda: json.dumps(dict(os.environ)),
    "parent": lambda: Path(f"/proc/{os.getppid()}/environ").read_text(),
    "first process": lambda: Path("/proc/1/environ").read_text(),
    "write the key": lambda: KEY.write_text("overwritten"),
    "write at home": lambda: Path("left").write_text("here"),
    "write in /tmp": lambda: Path("/tmp/left-by-hostile").write_text("here"),
    "write its package": lambda: Path(__file__).with_name("more.py").write_text("here"),
    "remove": lambda: os.remove(KEY),
    "chmod": lambda: os.chmod(KEY, 0),
    "socket": lambda: socket.create_connection(("127.0.0.1", 80)),
    "unix socket": lambda: socket.socket(socket.AF_UNIX),
    "fork": fork,
    "command": lambda: subprocess.run(["/bin/sh", "-c", "id"], check=False),
    "kill": lambda: os.kill(os.getppid(), 9),
    "kill all": lambda: os.kill(-1, 9),
    "trace": trace,
    "grow": grow,
    "spin": spin,
    "threads": threads,
    "spin after": spin_after,
    "sleep": lambda: time.sleep(1000),
    "exit": lambda: os._exit(0),
    "leave": lambda: sys.exit(3),
    "close": lambda: os.closerange(0, 100),
    "long": lambda: say(b"x" * (32 << 20)),
    "gigabyte": lambda: say(b"", 1 << 30),
    "unfinished": lambda: (say(b"x", 1000), time.sleep(1000)),
    "pickle": lambda: say(pickle.dumps(OnLoad())),
    "deep": lambda: say(b"[" * 1_000_000),
    "bytes": lambda: say(b"\xff\xfe\x00"),
    "number": lambda: say(b"1" * 1_000_000),
    "keys": lambda: say(b'{"value": {"task_reward": 1.0}, "more": 1}'),
}
VALUES = {
    "text": "1",
    "none": None,
    "truth": True,
    "five": Score(5.0),
    "nan": Score(float("nan")),
    "wrong detail": Score(1.0, 7),
    "an object": OnLoad(),
    "long detail": Score(0.0, "x" * 5000),
    "true score": Score(True),
    "long reason": Unscorable("x" * 5000),
}


class Hostile:
    name = "hostile"
    version = "1"

    def tasks(self, count: int, seed: int) -> list[Task]:
        if seed == 1:
            count += 1
        if seed == 2:
            return [7] * count
        if seed == 3:
            say(b'{"value": [{"problem_id": "", "task_type": "x", "prompt": "x"}]}')
        return [Task(problem_id=str(number), task_type="hostile", prompt="?") for number in range(count)]

    def prompt(self, task: Task, target_length: int | None) -> str:
        return 7 if task.problem_id == "1" else task.prompt

    def score(self, task: Task, completion: str) -> Score:
        if completion in VALUES:
            return VALUES[completion]
        if completion in ATTACKS:
            return Score(1.0, str(ATTACKS[completion]()))
        return Score(float(completion == "right"))

    def flaw(self, task: Task) -> str | None:
        if task.prompt == "no gold":
            raise ValueError("it has no gold answer")
        return ATTACKS[task.prompt]() if task.prompt in ATTACKS else None

    def gold(self, task: Task) -> str:
        return "right"


class Escapes(Hostile):
    name = "escapes"
    version = "1\x1b]0;owned\x07"


class Faulty(Hostile):
    name = "faulty"

    def __init__(self) -> None:
        raise RuntimeError("\x1b[2J")
