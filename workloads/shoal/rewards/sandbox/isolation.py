"""Which walls this machine can put around a program, best first, and the command line that puts them up.

`bubblewrap`: namespaces of its own (processes, network, files, users where needed) with only Python and an empty folder in its file
system, system-call filter, resource limits. `landlock`: the same filter and limits, and Landlock over the machine's file system; for
containers, which mostly may not make namespaces. `none`: limits only; refused unless the admin says so by `SHOAL_SANDBOX=none`.

Each is tried on the machine before it is believed. In: nothing but the machine and that variable. Out: an `Isolation`. Called by `pool`.
"""

import errno
import marshal
import os
import py_compile
import shutil
import stat
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from shoal.rewards.sandbox.inside import lockdown
from shoal.rewards.sandbox.program import FILE_BYTES, NoIsolation

Kind = Literal["bubblewrap", "landlock", "none"]
KINDS: tuple[Kind, ...] = ("bubblewrap", "landlock", "none")
CHOICE_VARIABLE = "SHOAL_SANDBOX"

FIRST_UID = 64_000
"""Users of sandboxes, one a slot: above those of Debian's packages and people (Debian policy 9.2.2), below 65534 (nobody)."""

INSIDE_FOLDER = "/work"
"""The program's folder in a file system of its own."""

GUEST = "from shoal.rewards.sandbox.inside.guest import main; main()"

ENVIRONMENT = {
    "PYTHONHASHSEED": "0",  # a set prints in the same order on every machine, or two machines would judge differently
    "PYTHONUTF8": "1",
    "LANG": "C.UTF-8",
    "PATH": "/usr/bin:/bin",
    "OPENBLAS_NUM_THREADS": "1",
    "TZ": "UTC",
}


@dataclass(frozen=True)
class Isolation:
    """The isolation in force: reported in logs, in `shoal env check` and beside every benchmark."""

    kind: Kind
    interpreter: str
    own_user: bool
    """Programs run as a user that owns nothing, which only root can arrange; without it they are the user that started them, in a
    namespace of users or, without one, kept apart by Landlock and the filter alone."""
    weaker_because: tuple[str, ...] = ()
    """For each better kind, why this machine does not have it."""

    def describe(self) -> str:
        layers = {
            "bubblewrap": "bubblewrap (namespaces) + seccomp + rlimits",
            "landlock": "Landlock + seccomp + rlimits",
            "none": "rlimits only, NOT isolated",
        }[self.kind]
        namespaced = "a user namespace of its own" if self.kind == "bubblewrap" else "the same user"
        return f"{layers}, {'a user of its own' if self.own_user else namespaced}"


def choose(works: Callable[[Isolation], str | None], wanted: str | None = None) -> Isolation:
    """The best isolation that works here, or the wanted kind (default: what `SHOAL_SANDBOX` says, `auto`).

    `works` tries one and returns None, or what is wrong (`pool.trial` starts a sandbox). Raises NoIsolation.
    """
    wanted = wanted or os.environ.get(CHOICE_VARIABLE, "auto")
    if wanted not in ("auto", *KINDS):
        raise NoIsolation(f"{CHOICE_VARIABLE} is {wanted!r}; allowed: auto, {', '.join(KINDS)}")
    kinds = [kind for kind in KINDS if kind == wanted or (wanted == "auto" and kind != "none")]
    reasons: list[str] = []
    for kind in kinds:
        isolation, reason = _candidate(kind)
        if isolation is not None:
            reason = works(isolation)
            if reason is None:
                return replace(isolation, weaker_because=tuple(reasons))
        reasons.append(f"{kind}: {reason}")
    raise NoIsolation(
        f"programs cannot be isolated on this machine ({'; '.join(reasons)}). Install bubblewrap, or run on a kernel with Landlock (5.13 or later);"
        f" to run them without any isolation, with all rights of this user, set {CHOICE_VARIABLE}=none"
    )


def _candidate(kind: Kind) -> tuple[Isolation | None, str | None]:
    """An isolation of this kind, not tried yet, or why there can be none."""
    root = os.geteuid() == 0
    own = os.path.realpath(sys.executable)
    if kind == "bubblewrap":
        if shutil.which("bwrap") is None:
            return None, "bwrap is not on PATH"
        return Isolation(kind, own, own_user=root), None
    if kind == "landlock" and lockdown.landlock_version() == 0:
        return None, "the kernel has no Landlock"
    if not root:
        return Isolation(kind, own, own_user=False), None
    # Without a file system of its own, another user must be able to read the interpreter where it lies.
    for interpreter in (own, f"/usr/bin/python3.{sys.version_info.minor}"):
        if os.access(interpreter, os.X_OK) and readable_by_all(Path(interpreter)):
            return Isolation(kind, interpreter, own_user=True), None
    return None, f"another user cannot read the interpreter {own}, and there is none of the same version in /usr/bin"


def readable_by_all(path: Path) -> bool:
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in (path, *path.parents))


def python_paths(interpreter: str) -> list[str]:
    """The interpreter and its libraries, where these are not below `/usr`, which is readable anyway.

    Not the whole folder above `bin`: that may be somebody's home, with their keys.
    """
    path = Path(interpreter).resolve()
    prefix = path.parents[1]
    if prefix in (Path("/usr"), Path("/")):
        return []
    return [str(path), *(str(folder) for name in ("lib", "lib64") if (folder := prefix / name).is_dir())]


def _system_folders() -> list[Path]:
    return [path for path in map(Path, ("/lib", "/lib64", "/lib32", "/bin")) if path.exists()]


@dataclass(frozen=True)
class SandboxPlace:
    """Where one sandbox is: its slot's user, the folder with the guest's modules, and a folder for a program without a file system of its own."""

    uid: int
    guest: Path
    folder: Path
    readable: tuple[str, ...] = ()
    """Further files and folders to read, by their real paths."""
    entry: str = GUEST
    writes: bool = True
    """Without, there is no folder to write to, and `folder` is not used."""


def command(isolation: Isolation, place: SandboxPlace) -> list[str]:
    """The command line of one sandbox, which then waits for its program. Pure, except for where this machine's libraries lie."""
    boxed = isolation.kind == "bubblewrap"
    root = os.geteuid() == 0
    guest = "/sandbox" if boxed else str(place.guest)
    folder = _inside_folder(boxed, place)
    settings = {
        "folder": folder,
        "writable": [folder, "/dev/null"] if place.writes else ["/dev/null"],
        "uid": place.uid if isolation.own_user else None,
        "landlock": isolation.kind == "landlock",
        "readable": [
            guest,
            "/usr",
            *map(str, _system_folders()),
            *python_paths(isolation.interpreter),
            "/dev/urandom",
            *place.readable,
        ],
        "first": boxed and isolation.own_user,
        # bwrap is in between, and ends with this process; what is inside sees no number of it.
        "parent": None if boxed else os.getpid(),
        "seccomp": isolation.kind != "none",
    }
    python = [isolation.interpreter, "-s", "-S", "-B", "-P", "-c", place.entry, marshal.dumps(settings).hex()]
    return [*_bubblewrap(isolation, place, root), *python] if boxed else python


def _inside_folder(boxed: bool, place: SandboxPlace) -> str:
    """Where the program is, as it sees it."""
    if not place.writes:
        return "/"
    return INSIDE_FOLDER if boxed else str(place.folder)


def environment(isolation: Isolation, place: SandboxPlace) -> dict[str, str]:
    """Nothing of ours: the sandbox's own variables only."""
    boxed = isolation.kind == "bubblewrap"
    folder = _inside_folder(boxed, place)
    return ENVIRONMENT | {"HOME": folder, "TMPDIR": folder, "PYTHONPATH": "/sandbox" if boxed else str(place.guest)}


def _bubblewrap(isolation: Isolation, place: SandboxPlace, root: bool) -> list[str]:
    # As process 1 the guest is bwrap's own child, so that the CPU time that it took is known when it has ended.
    line = [
        "bwrap",
        "--die-with-parent",
        "--unshare-ipc",
        "--unshare-pid",
        "--as-pid-1",
        "--unshare-net",
        "--unshare-uts",
    ]
    line += ["--unshare-cgroup-try", "--hostname", "sandbox", "--cap-drop", "ALL"]
    if root:
        line += [
            "--cap-add",
            "CAP_SETUID",
            "--cap-add",
            "CAP_SETGID",
        ]  # the guest becomes another user with them, and then has none
    else:
        line += ["--unshare-user", "--uid", str(place.uid), "--gid", str(place.uid)]
    line += ["--ro-bind", "/usr", "/usr"]
    for path in _system_folders():
        if path.is_symlink():
            line += ["--symlink", os.readlink(path), str(path)]
        else:
            line += ["--ro-bind", str(path), str(path)]
    for given in (*python_paths(isolation.interpreter), *place.readable):
        for parent in reversed(Path(given).parents[:-1]):  # left to itself, bwrap makes them for their owner only
            line += ["--perms", "0755", "--dir", str(parent)]
        line += ["--ro-bind", given, given]
    line += ["--ro-bind", str(place.guest), "/sandbox", "--dir", "/dev"]
    for device in ("/dev/null", "/dev/urandom"):
        line += ["--dev-bind", device, device]
    if place.writes:
        line += ["--perms", "0777", "--size", str(FILE_BYTES), "--tmpfs", INSIDE_FOLDER]
    line += ["--chdir", _inside_folder(True, place)]
    return [*line, "--remount-ro", "/", "--"]


def folder_bytes(folder: Path, stop_above: int, deadline_seconds: float = 0.05) -> int:
    """Bytes on disk under a folder that a program writes to; stops counting above a limit. Follows no links, and survives changes meanwhile."""
    total, waiting, until = 0, [os.fspath(folder)], time.monotonic() + deadline_seconds
    while waiting and total <= stop_above and time.monotonic() < until:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    state = entry.stat(follow_symlinks=False)
                    # Each entry counts as a block, or a million empty files would weigh nothing.
                    total += max(state.st_blocks * 512, 4096)
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:  # a thousand folders deep: nobody can count what is below
                return stop_above + 1
    return total


def copy_guest(target: Path) -> None:
    """The guest's modules under `target`, as a package of the same name, readable by every user."""
    source = Path(__file__).parent / "inside"
    package = target / "shoal" / "rewards" / "sandbox" / "inside"
    package.mkdir(parents=True)
    for path in sorted(source.glob("*.py")):
        copy = Path(shutil.copyfile(path, package / path.name))
        py_compile.compile(os.fspath(copy), doraise=True)  # or every sandbox would compile them again
    for path in (target, *target.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
