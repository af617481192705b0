"""Files over HTTPS by pycurl, some at once, each into a file: what our client is compared with. Runs in pycurl's own environment.

python pycurl_client.py WORK AUTHORITY HEADER FOLDER CONNECTIONS BASE_URL NAME...

WORK is `write`, or `sha256` to hash what is written, as a client must that believes no relay.
"""

import hashlib
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import local
from typing import Any

BUFFER_BYTES = 512 << 10


def main() -> None:
    import pycurl

    work, authority, header, folder, connections, base, *names = sys.argv[1:]
    own = local()

    def fetch(name: str) -> None:
        curl: Any = getattr(own, "curl", None)
        if curl is None:
            own.curl = curl = pycurl.Curl()  # keeps its connection
            curl.setopt(pycurl.CAINFO, authority)
            curl.setopt(pycurl.HTTPHEADER, [header])
            curl.setopt(pycurl.FAILONERROR, True)
            curl.setopt(pycurl.BUFFERSIZE, BUFFER_BYTES)
        curl.setopt(pycurl.URL, f"{base}/{name}")
        with (Path(folder) / name).open("wb", buffering=BUFFER_BYTES if work == "write" else 0) as file:
            if work == "write":
                curl.setopt(pycurl.WRITEDATA, file)
                curl.perform()
            else:
                take, end = _hashing(file.fileno())
                curl.setopt(pycurl.WRITEFUNCTION, take)
                curl.perform()
                end()

    with ThreadPoolExecutor(int(connections)) as pool:
        list(pool.map(fetch, names))


def _hashing(file: int) -> tuple[Callable[[bytes], None], Callable[[], str]]:
    """Takes bytes, and ends with their digest. libcurl gives 16 KiB at a time: they are written and hashed half a megabyte at a time, as ours are."""
    buffer, count, digest = memoryview(bytearray(BUFFER_BYTES)), 0, hashlib.sha256()

    def empty() -> None:
        nonlocal count
        os.write(file, buffer[:count])
        digest.update(buffer[:count])
        count = 0

    def take(data: bytes) -> None:
        nonlocal count
        if count + len(data) > len(buffer):
            empty()
        buffer[count : count + len(data)] = data
        count += len(data)

    def end() -> str:
        empty()
        return digest.hexdigest()

    return take, end


if __name__ == "__main__":
    main()
