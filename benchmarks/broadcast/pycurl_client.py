"""Files over HTTPS by pycurl, some at once, each into a file: what our client is compared with. Runs in pycurl's own environment.

python pycurl_client.py AUTHORITY HEADER FOLDER CONNECTIONS BASE_URL NAME...
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import local
from typing import Any


def main() -> None:
    import pycurl

    authority, header, folder, connections, base, *names = sys.argv[1:]
    own = local()

    def fetch(name: str) -> None:
        curl: Any = getattr(own, "curl", None)
        if curl is None:
            own.curl = curl = pycurl.Curl()  # keeps its connection
            curl.setopt(pycurl.CAINFO, authority)
            curl.setopt(pycurl.HTTPHEADER, [header])
            curl.setopt(pycurl.FAILONERROR, True)
            curl.setopt(pycurl.BUFFERSIZE, 512 << 10)
        with (Path(folder) / name).open("wb", buffering=512 << 10) as file:
            curl.setopt(pycurl.URL, f"{base}/{name}")
            curl.setopt(pycurl.WRITEDATA, file)
            curl.perform()

    with ThreadPoolExecutor(int(connections)) as pool:
        list(pool.map(fetch, names))


if __name__ == "__main__":
    main()
