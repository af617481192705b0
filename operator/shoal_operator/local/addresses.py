"""Loopback addresses: each run on this machine locks a 127.x.y.0/24 of its own, and each pod gets one address of it.

The lock is a flock on a file in a folder of the user, held as long as the run is up. So two runs never meet and a crash frees it. The last
byte of an address belongs to a pod's key (component and ordinal) and is remembered in the run's folder. So it is the same after a restart.
"""

import fcntl
import json
import os
import tempfile
from pathlib import Path
from typing import IO

FIRST_SECOND_BYTE, LAST_SECOND_BYTE = 64, 95
"""127.64.0.0 to 127.95.255.0: away from 127.0.0.0/16, where everything else on a machine listens."""
FIRST_HOST, LAST_HOST = 2, 254


class NoAddress(RuntimeError):
    """No subnet or no address is left; the message says what to stop."""


def user_folder() -> Path:
    """A folder with a short path for this user's locks and pod links: `$XDG_RUNTIME_DIR/shoal`, or one under the temporary folder.

    Raises `NoAddress` when somebody else made it: what lies in it would not be ours.
    """
    base = os.environ.get("XDG_RUNTIME_DIR")
    folder = Path(base) / "shoal" if base else Path(tempfile.gettempdir()) / f"shoal-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if folder.is_symlink() or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise NoAddress(f"{folder} must be a folder that this user owns, with mode 0700: remove it, then try again")
    return folder


def pod_link(address: str) -> Path:
    """A short path to the folder of the pod with this address: a Unix socket's path may have no more than 107 bytes."""
    return user_folder() / address


class Subnet:
    """A locked 127.x.y.0/24. Released by `close`, or by the end of the process."""

    def __init__(self, second: int, third: int, lock: IO[str]) -> None:
        self.prefix = f"127.{second}.{third}"
        self._lock = lock

    def close(self) -> None:
        self._lock.close()


def lock_subnet() -> Subnet:
    """The first free subnet; raises `NoAddress` when every one is taken."""
    folder = user_folder()
    for second in range(FIRST_SECOND_BYTE, LAST_SECOND_BYTE + 1):
        for third in range(256):
            lock = (folder / f"127.{second}.{third}.lock").open("a")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                lock.close()
                continue
            return Subnet(second, third, lock)
    raise NoAddress(
        f"other runs of this user hold every loopback subnet (locks in {folder}): stop one with `shoal down`"
    )


class AddressBook:
    """The address of every pod of a run, by key; keys keep their last byte over restarts."""

    def __init__(self, subnet: Subnet, path: Path) -> None:
        self._subnet = subnet
        self._path = path
        self._hosts: dict[str, int] = json.loads(path.read_text()) if path.is_file() else {}

    def address(self, key: str) -> str:
        """The address of `key`, given out now if it had none; raises `NoAddress` past 253 pods."""
        if key not in self._hosts:
            taken = set(self._hosts.values())
            free = next((host for host in range(FIRST_HOST, LAST_HOST + 1) if host not in taken), None)
            if free is None:
                raise NoAddress(
                    f"no address is left for {key}: one machine runs at most {LAST_HOST - FIRST_HOST + 1} pods"
                )
            self._hosts[key] = free
            partial = self._path.with_suffix(".partial")
            partial.write_text(json.dumps(self._hosts, indent=1, sort_keys=True))
            partial.replace(self._path)
        return f"{self._subnet.prefix}.{self._hosts[key]}"
