"""Prints a bill of materials of an image as CycloneDX 1.6 JSON: Debian's packages, Python's distributions, a Go program's modules, and licences.

Run in an image's build: `python images/sbom.py operator >/usr/share/sbom/shoal.cdx.json` with the image's own Python, of which it lists the
distributions. For an image without Python, in a stage beside it: `--dpkg` and `--doc` are copies of that image's folders of dpkg and of documents,
`--go` the go.mod of its program, `--version` the image's. The same image gives the same bytes: no time and no random number is in it. Package URLs
are those of the purl specification.

A licence is what the package itself says, not what a lawyer found: of Python the metadata (core metadata 2.4: an expression, before that a text or
classifiers), of Debian the names in its copyright file. Where that is free text, the entry names the file in the image. A go.mod states none.
"""

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterable
from email.message import Message
from importlib.metadata import distributions
from pathlib import Path
from typing import Any
from urllib.parse import quote

Component = dict[str, Any]

MODULE = re.compile(r"^\s*(?:require\s+)?(\S+\.\S+/\S+)\s+(v\S+)", re.M)
"""A requirement in go.mod, on a line of its own or in a block."""


DEBIAN_FIELD = re.compile(r"^License:[ \t]*(\S.*?)[ \t]*$", re.M)
"""A licence in a copyright file that machines read, as Debian's copyright format 1.0 has it."""
DEBIAN_COMMON = re.compile(r"/usr/share/common-licenses/([A-Za-z0-9.+-]*[A-Za-z0-9])")
"""A licence that an older copyright file names by its text in base-files."""
NAME_CHARACTERS = 100
"""A `License` of metadata that is longer, or has lines, is the licence's text and no name."""


def _component(name: str, found: str, purl: str, licences: list[dict[str, Any]] | None = None) -> Component:
    made = {"type": "library", "name": name, "version": found, "purl": purl, "bom-ref": purl}
    return made | ({"licenses": licences} if licences else {})


def _named(names: Iterable[str]) -> list[dict[str, Any]]:
    return [{"license": {"name": name}} for name in names]


def debian_licences(copyright_file: Path) -> list[dict[str, Any]]:
    """Those that a package's copyright file names, sorted; its path where it names none; nothing where there is no such file."""
    try:
        text = copyright_file.read_text(errors="replace")
    except FileNotFoundError:
        return []
    form = DEBIAN_FIELD if text.lstrip().startswith("Format:") else DEBIAN_COMMON
    package = copyright_file.parent.name
    return _named(sorted(set(form.findall(text))) or [f"see /usr/share/doc/{package}/copyright"])


def python_licences(metadata: Message, files: Iterable[str]) -> list[dict[str, Any]]:
    """What a distribution says of its licence: `metadata` as its METADATA has it, `files` the names of its files."""
    if expression := metadata.get("License-Expression"):
        return [{"expression": expression}]
    text = (metadata.get("License") or "").strip()
    if text and len(text) <= NAME_CHARACTERS and "\n" not in text:
        return _named([text])
    prefix = "License :: "
    classified = [each for each in metadata.get_all("Classifier", []) if each.startswith(prefix)]
    if classified:
        return _named(sorted({each.rpartition(" :: ")[2] for each in classified}))
    if text:
        return _named([text.splitlines()[0][:NAME_CHARACTERS]])
    own = sorted(each for each in files if re.search(r"\.dist-info/.*licen[cs]e", each, re.I))
    return _named(f"see {each}" for each in own[:1])


def debian_packages(folder: Path, documents: Path = Path("/usr/share/doc")) -> list[Component]:
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
        purl = f"pkg:deb/debian/{name}@{quote(found, safe='.-~')}?arch={architecture}"
        made.append(_component(name, found, purl, debian_licences(documents / name / "copyright")))
    return made


def python_distributions() -> list[Component]:
    made = {}
    for each in distributions():
        name = each.name.lower().replace("_", "-")
        purl = f"pkg:pypi/{name}@{quote(each.version, safe='.-')}"
        licences = python_licences(each.metadata, map(str, each.files or ()))
        made[purl] = _component(name, each.version, purl, licences)
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
    parser.add_argument("--doc", type=Path, default=Path("/usr/share/doc"), help="that image's /usr/share/doc")
    parser.add_argument("--go", type=Path, help="the go.mod of a Go program in the image")
    parser.add_argument("--version", help="version of the image (default: that of Shoal in it)")
    given = parser.parse_args()
    found = debian_packages(given.dpkg or Path("/var/lib/dpkg"), given.doc)
    if given.dpkg is None:
        found += python_distributions()
    if given.go is not None:
        found += go_modules(given.go.read_text())
    json.dump(bill(given.role, given.version or own_version(), found), sys.stdout, indent=1)


if __name__ == "__main__":
    main()
