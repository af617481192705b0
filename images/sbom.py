"""Prints a bill of materials of an image as CycloneDX 1.6 JSON: Debian's packages, Python's distributions, a Go program's modules.

Run in an image's build: `python images/sbom.py operator >/usr/share/sbom/shoal.cdx.json` with the image's own Python, of which it lists the
distributions. For an image without Python, in a stage beside it: `--dpkg` is a copy of that image's folder of dpkg, `--go` the go.mod of its
program, `--version` the image's. The same image gives the same bytes: no time and no random number is in it. Package URLs are those of the purl
specification.
"""

import argparse
import json
import re
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path
from urllib.parse import quote

Component = dict[str, str]

MODULE = re.compile(r"^\s*(?:require\s+)?(\S+\.\S+/\S+)\s+(v\S+)", re.M)
"""A requirement in go.mod, on a line of its own or in a block."""


def _component(name: str, found: str, purl: str) -> Component:
    return {"type": "library", "name": name, "version": found, "purl": purl, "bom-ref": purl}


def debian_packages(folder: Path) -> list[Component]:
    """What dpkg's folder says is installed. Raises FileNotFoundError for one without a status, in which dpkg itself finds nothing amiss."""
    (folder / "status").stat()
    listed = subprocess.run(
        ["dpkg-query", f"--admindir={folder}", "--show", "--showformat", "${Package} ${Version} ${Architecture}\n"],
        capture_output=True,
        text=True,
        check=True,
    )
    made = []
    for line in listed.stdout.splitlines():
        name, found, architecture = line.split()
        made.append(_component(name, found, f"pkg:deb/debian/{name}@{quote(found, safe='.-~')}?arch={architecture}"))
    return made


def python_distributions() -> list[Component]:
    made = {}
    for each in distributions():
        name = each.name.lower().replace("_", "-")
        purl = f"pkg:pypi/{name}@{quote(each.version, safe='.-')}"
        made[purl] = _component(name, each.version, purl)
    return list(made.values())


def go_modules(text: str) -> list[Component]:
    """The modules of a go.mod, which since Go 1.17 lists the indirect ones too; those that it replaces are of no use and left out."""
    required = text.split("\nreplace", 1)[0]
    return [
        _component(name, found, f"pkg:golang/{quote(name.lower(), safe='/.-_~')}@{quote(found, safe='.-')}")
        for name, found in MODULE.findall(required)
    ]


def own_version() -> str:
    """Of Shoal in this image; an image without Shoal is given its version."""
    from shoal.installed import installed

    return installed().version


def bill(role: str, number: str, found: list[Component]) -> dict[str, object]:
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "container", "name": f"shoal/{role}", "version": number}},
        "components": sorted(found, key=lambda each: each["purl"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="sbom.py", description="Prints the bill of materials of an image.")
    parser.add_argument("role")
    parser.add_argument("--dpkg", type=Path, help="another image's /var/lib/dpkg; its Python is not looked at")
    parser.add_argument("--go", type=Path, help="the go.mod of a Go program in the image")
    parser.add_argument("--version", help="version of the image (default: that of Shoal in it)")
    given = parser.parse_args()
    found = debian_packages(given.dpkg or Path("/var/lib/dpkg"))
    if given.dpkg is None:
        found += python_distributions()
    if given.go is not None:
        found += go_modules(given.go.read_text())
    json.dump(bill(given.role, given.version or own_version(), found), sys.stdout, indent=1)


if __name__ == "__main__":
    main()
