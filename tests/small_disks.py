"""Real file systems of a few megabytes (tmpfs) that a test fills up; mounting them needs root."""

import errno
import os
import subprocess
from pathlib import Path

from servers import lacking


class SmallDisk:
    """A file system of `size_bytes` at `folder`, and a file that takes nearly all of it."""

    def __init__(self, folder: Path, size_bytes: int) -> None:
        self.folder = folder
        self._path = folder / "filler"
        folder.mkdir(parents=True, exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "shoal-test", str(folder)]
        if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
            lacking("a small file system", "run the tests as root on a kernel that lets root mount tmpfs")

    def fill(self, left_bytes: int = 0) -> None:
        """Others may write at the same time: what is free is looked at again until it can be had."""
        with self._path.open("ab") as file:
            while True:
                usage = os.statvfs(self.folder)
                wanted = usage.f_bavail * usage.f_frsize - left_bytes
                if wanted <= 0:
                    return
                try:
                    os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, wanted)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise

    def free(self) -> None:
        self._path.unlink(missing_ok=True)

    def unmount(self) -> None:
        subprocess.run(["umount", "-l", str(self.folder)], check=True)
