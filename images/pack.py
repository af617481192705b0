"""Packs the images of an OCI layout into one archive that `docker load`, `podman load` and `ctr images import` read, each shared layer once.

`python3 images/pack.py LAYOUT ARCHIVE`, called by tools/images.sh where the builder cannot save several images together. Prints name and size of
each image, whether its layers are compressed, and what they share. Only the standard library: it runs on the machine that builds.
"""

import io
import json
import sys
import tarfile
from pathlib import Path
from typing import Any

REFERENCE = "org.opencontainers.image.ref.name"
GZIP = b"\x1f\x8b"


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def entries(layout: Path) -> list[dict[str, Any]]:
    """What `manifest.json` of a Docker archive says of each image: name, configuration, layers in order. Raises ValueError without a name."""
    made = []
    for each in json.loads((layout / "index.json").read_text())["manifests"]:
        name = each.get("annotations", {}).get(REFERENCE)
        if not name:
            raise ValueError(f"{layout}: the image {each['digest']} has no name")
        manifest = json.loads((layout / _blob(each["digest"])).read_text())
        layers = [_blob(layer["digest"]) for layer in manifest["layers"]]
        made.append({"Config": _blob(manifest["config"]["digest"]), "RepoTags": [name], "Layers": layers})
    return made


def _how(layout: Path, image: dict[str, Any]) -> str:
    """Whether the layers of an image, which one program wrote, are compressed."""
    with (layout / image["Layers"][0]).open("rb") as layer:
        return "compressed" if layer.read(len(GZIP)) == GZIP else "not compressed"


def pack(layout: Path, archive: Path) -> list[str]:
    """Write the archive; returns a line about each image and one about all."""
    images = entries(layout)
    contained = dict.fromkeys(path for image in images for path in (image["Config"], *image["Layers"]))
    sizes = {path: (layout / path).stat().st_size for path in contained}
    unfinished = archive.with_name(f"{archive.name}.partial")
    with tarfile.open(unfinished, "w") as out:
        listing = json.dumps(images).encode()
        member = tarfile.TarInfo("manifest.json")
        member.size = len(listing)
        out.addfile(member, io.BytesIO(listing))
        for path in contained:
            out.add(layout / path, path, recursive=False)
    unfinished.replace(archive)
    lines = [
        f"{image['RepoTags'][0]:<40} {sum(sizes[path] for path in image['Layers']) // 1_000_000:5d} MB {_how(layout, image)}"
        for image in images
    ]
    return [*lines, f"{len(images)} images, {sum(sizes.values()) // 1_000_000} MB together: {archive}"]


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python3 images/pack.py LAYOUT ARCHIVE")
    print("\n".join(pack(Path(sys.argv[1]), Path(sys.argv[2]))))
