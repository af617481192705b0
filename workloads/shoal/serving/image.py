"""A model as an OCI image: pure description of its blobs, and the image layout in a folder. `registry` sends the same blobs to a registry.

In: a folder with a checkpoint that was taken out of a run's store, each piece checked. Out: blobs, each with its digest before its bytes are moved.
One layer a file, a plain tar under `models/`, so that files which stay between versions (tokenizer, configuration) are not sent again. Layers are
those of an ordinary image: Kubernetes mounts it as an image volume, and `FROM` copies out of it. The same files give the same digests on every
machine: times, owners and order are fixed. https://github.com/opencontainers/image-spec (1.1) is the source of the formats.

Cost: one read for the digests and one a copy. Weights are never held: a blob is a tar header, a file's bytes in chunks, and padding.
"""

import hashlib
import json
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.contracts.serving import Promotion
from shoal.errors import InputWrong, RunFailed
from shoal.files import write_atomically
from shoal.serving.following import MARK
from shoal.storage.parallel import in_parallel
from shoal.text import plain, size

MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
FOLDER = "models"
"""Folder of the image that the files are in."""
CHUNK_BYTES = 8 << 20
READERS = 4
"""Files that are hashed at a time."""
ANNOTATIONS = "io.shoal."


@dataclass(frozen=True)
class Blob:
    """Bytes of an image: `head`, then `file` whole (None: no file), then zeros up to `size`."""

    media_type: str
    digest: str
    size: int
    head: bytes
    file: Path | None = None
    title: str = ""

    def chunks(self) -> Iterator[bytes]:
        """The bytes in order. Raises `RunFailed` where the file has another size than when its digest was taken."""
        yield self.head
        sent = len(self.head)
        if self.file is not None:
            with self.file.open("rb") as file:
                while data := file.read(CHUNK_BYTES):
                    sent += len(data)
                    yield data
        if not 0 <= self.size - sent < 3 * tarfile.BLOCKSIZE:
            raise RunFailed(f"{self.file} changed while it was copied: run the command again")
        if sent < self.size:
            yield bytes(self.size - sent)

    @property
    def descriptor(self) -> dict[str, object]:
        """As manifests name it."""
        made: dict[str, object] = {"mediaType": self.media_type, "digest": self.digest, "size": self.size}
        return made | ({"annotations": {"org.opencontainers.image.title": self.title}} if self.title else {})


@dataclass(frozen=True)
class ModelImage:
    """An image of one model: its layers and configuration, then the manifest that names them."""

    blobs: list[Blob]
    manifest: Blob


def model_image(folder: Path, promotion: Promotion) -> ModelImage:
    """The image of the checkpoint in `folder`. Reads every file once. Raises `InputWrong` for a folder without files.

    Who promoted it and why stays out: the image may be public, and the same version gives the same layers.
    """
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name[0] != "." and path.name != MARK)
    if not files:
        raise InputWrong(f"{plain(folder, 200)} has no files to make an image of")
    layers = in_parallel(_layer, files, READERS)
    said = {
        f"{ANNOTATIONS}run": promotion.run,
        f"{ANNOTATIONS}tag": promotion.tag,
        f"{ANNOTATIONS}version": str(promotion.version),
        f"{ANNOTATIONS}version.sha256": promotion.sha256,
        "org.opencontainers.image.title": promotion.run,
        "org.opencontainers.image.version": f"v{promotion.version:06d}",
    }
    # A model runs on no processor; builders and kubelets ask for one all the same.
    config = _document(
        CONFIG_TYPE,
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Labels": said},
            "rootfs": {"type": "layers", "diff_ids": [layer.digest for layer in layers]},
        },
    )
    manifest = _document(
        MANIFEST_TYPE,
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": config.descriptor,
            "layers": [layer.descriptor for layer in layers],
            "annotations": said,
        },
    )
    return ModelImage([*layers, config], manifest)


def _document(media_type: str, content: Mapping[str, object]) -> Blob:
    data = json.dumps(content, indent=1, sort_keys=True).encode() + b"\n"
    return Blob(media_type, f"sha256:{hashlib.sha256(data).hexdigest()}", len(data), data)


def _layer(path: Path) -> Blob:
    """A tar with one file in `models/`. Nothing in it is of this machine or day."""
    place = tarfile.TarInfo(FOLDER)
    place.type, place.mode = tarfile.DIRTYPE, 0o755
    entry = tarfile.TarInfo(f"{FOLDER}/{path.name}")
    entry.size, entry.mode = path.stat().st_size, 0o644
    head = place.tobuf(tarfile.PAX_FORMAT) + entry.tobuf(tarfile.PAX_FORMAT)
    padded = -(-entry.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
    blob = Blob(LAYER_TYPE, "", len(head) + padded + 2 * tarfile.BLOCKSIZE, head, path, title=f"{FOLDER}/{path.name}")
    running = hashlib.sha256()
    for chunk in blob.chunks():
        running.update(chunk)
    return Blob(blob.media_type, f"sha256:{running.hexdigest()}", blob.size, head, path, blob.title)


def write_layout(image: ModelImage, folder: Path, name: str, say: Callable[[str], None]) -> None:
    """Write an OCI image layout, or add to the one in `folder`; `name` is the image's name in it. Blobs that are there are not written again.

    A blob appears whole, and `index.json` last: a kill leaves the layout as it was.
    Raises `InputWrong` for a folder of something else, and for one without room.
    """
    index = _index(folder)
    blobs = folder / "blobs" / "sha256"
    new = [blob for blob in [*image.blobs, image.manifest] if not _has(blobs, blob)]
    needed = sum(blob.size for blob in new)
    folder.mkdir(parents=True, exist_ok=True)
    if needed > (free := shutil.disk_usage(folder).free):
        raise InputWrong(f"{plain(folder, 200)} needs {size(needed)} for the image, and {size(free)} are free there")
    blobs.mkdir(parents=True, exist_ok=True)
    say(f"{folder}: writing {len(new)} of {len(image.blobs) + 1} blobs, {size(needed)}")
    for blob in new:
        _write(blobs, blob)
    write_atomically(folder / "oci-layout", b'{"imageLayoutVersion": "1.0.0"}\n')
    named = image.manifest.descriptor | {"annotations": {"org.opencontainers.image.ref.name": name}}
    others = [each for each in index if _ref(each) != name]
    document = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [*others, named]}
    write_atomically(folder / "index.json", json.dumps(document, indent=1).encode() + b"\n")


def _index(folder: Path) -> Sequence[dict[str, object]]:
    """What a layout has so far; raises `InputWrong` for a folder with other things in it."""
    if not folder.exists() or not any(folder.iterdir()):
        return []
    path = folder / "index.json"
    try:
        found = json.loads(path.read_bytes())["manifests"] if path.exists() or not (folder / "blobs").is_dir() else []
        if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
            raise ValueError("its manifests are not a list of descriptors")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputWrong(
            f"{plain(folder, 200)} is neither empty nor an OCI image layout ({plain(error, 120)}): name another folder"
        ) from None
    return found


def _ref(descriptor: Mapping[str, object]) -> object:
    said = descriptor.get("annotations")
    return said.get("org.opencontainers.image.ref.name") if isinstance(said, dict) else None


def _has(blobs: Path, blob: Blob) -> bool:
    path = blobs / blob.digest.removeprefix("sha256:")
    return path.is_file() and path.stat().st_size == blob.size


def _write(blobs: Path, blob: Blob) -> None:
    name = blob.digest.removeprefix("sha256:")
    partial = blobs / f".{name}.partial"
    running = hashlib.sha256()
    try:
        with partial.open("wb") as file:
            for chunk in blob.chunks():
                running.update(chunk)
                file.write(chunk)
        if running.hexdigest() != name:
            raise RunFailed(f"{blob.file} changed while it was copied: run the command again")
        os.replace(partial, blobs / name)
    finally:
        partial.unlink(missing_ok=True)
