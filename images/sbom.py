"""Prints a bill of materials of the image that this runs in, as CycloneDX 1.6 JSON: Debian's packages and Python's distributions.

Run at the end of an image's build with the image's own Python: `python images/sbom.py operator >/usr/share/sbom/shoal.cdx.json`. The same image
gives the same bytes: no time and no random number is in it. Package URLs are those of the purl specification.
"""

import json
import subprocess
import sys
from importlib.metadata import distributions, version
from urllib.parse import quote


def debian_packages() -> list[dict[str, str]]:
    listed = subprocess.run(
        ["dpkg-query", "--show", "--showformat", "${Package} ${Version} ${Architecture}\n"],
        capture_output=True,
        text=True,
        check=True,
    )
    made = []
    for line in listed.stdout.splitlines():
        name, found, architecture = line.split()
        purl = f"pkg:deb/debian/{name}@{quote(found, safe='.-~')}?arch={architecture}"
        made.append({"type": "library", "name": name, "version": found, "purl": purl, "bom-ref": purl})
    return made


def python_distributions() -> list[dict[str, str]]:
    made = {}
    for each in distributions():
        name = each.name.lower().replace("_", "-")
        purl = f"pkg:pypi/{name}@{quote(each.version, safe='.-')}"
        made[purl] = {"type": "library", "name": name, "version": each.version, "purl": purl, "bom-ref": purl}
    return list(made.values())


def bill(role: str) -> dict[str, object]:
    components = sorted(debian_packages() + python_distributions(), key=lambda each: each["purl"])
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "container", "name": f"shoal/{role}", "version": version("shoal")}},
        "components": components,
    }


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python images/sbom.py ROLE")
    json.dump(bill(sys.argv[1]), sys.stdout, indent=1)
