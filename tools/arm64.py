"""Makes the locks of images hold for arm64 too, and writes down by which wheels. Called by `make lock`; what it wrote is tested without a network.

    python3 tools/arm64.py requirements/images/arm64.txt requirements/images/operator.lock=.cache/pylock.operator.toml ...

In: each lock, as resolved for x86-64, and what uv resolved for aarch64 from the same requirements and from wheels alone (PEP 751). A package that
only the former has is marked so in the lock; one that only the latter has, or a wheel whose hash is not in the lock, is an error. Out: the locks
with their marks, and a file of all wheels for arm64, `sha256  name` a line, as sha256sum writes them.
"""

import re
import sys
import tomllib
from pathlib import Path

ENTRY = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;]+)(?P<mark> ; [^\\\n]*?)?(?= \\$)", re.M)
ONLY_X86 = " ; platform_machine == 'x86_64'"


class NotForArm64(RuntimeError):
    """The lock cannot be installed on arm64."""


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def wheels_of(pylock: str) -> dict[tuple[str, str], dict[str, str]]:
    """Of each package (name, version) its wheels: sha256 by file name."""
    found = {}
    for package in tomllib.loads(pylock)["packages"]:
        wheels = package.get("wheels", [])
        names = [each.get("name") or each["url"].rsplit("/", 1)[1] for each in wheels]
        hashes = [each["hashes"]["sha256"] for each in wheels]
        found[normal(package["name"]), package["version"]] = dict(zip(names, hashes, strict=True))
    return found


def marked(lock: str, wheels: dict[tuple[str, str], dict[str, str]]) -> str:
    """The lock, with a mark at each package that arm64 does not have. Raises NotForArm64."""
    entries = re.split(r"^(?=[A-Za-z0-9])", lock, flags=re.M)
    waiting = dict(wheels)
    for index, entry in enumerate(entries):
        if (head := ENTRY.match(entry)) is None:
            continue
        key = normal(head["name"]), head["version"]
        own = waiting.pop(key, None)
        mark = ONLY_X86 if own is None else ""
        entries[index] = f"{head['name']}=={head['version']}{mark}{entry[head.end() :]}"
        for name, digest in (own or {}).items():
            if f"--hash=sha256:{digest}" not in entry:
                raise NotForArm64(f"{name} is in no hash of {head['name']}=={head['version']}")
        if own == {}:
            raise NotForArm64(f"{head['name']}=={head['version']} has no wheel for arm64")
    if waiting:
        raise NotForArm64(f"arm64 needs what the lock lacks: {sorted('=='.join(key) for key in waiting)}")
    return "".join(entries)


def main(record: str, *pairs: str) -> None:
    lines = set[str]()
    for pair in pairs:
        lock, _, pylock = pair.partition("=")
        wheels = wheels_of(Path(pylock).read_text())
        try:
            Path(lock).write_text(marked(Path(lock).read_text(), wheels))
        except NotForArm64 as error:
            raise SystemExit(f"{lock}: {error}") from error
        lines |= {f"{digest}  {name}\n" for files in wheels.values() for name, digest in files.items()}
    Path(record).write_text("".join(sorted(lines, key=lambda line: line.split()[1].lower())))


if __name__ == "__main__":
    main(*sys.argv[1:])
