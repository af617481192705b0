"""images/pack.py: images of one OCI layout in one archive, shared layers once."""

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def packer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("images_pack", ROOT / "images" / "pack.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def put(layout: Path, content: bytes) -> dict[str, str]:
    digest = hashlib.sha256(content).hexdigest()
    folder = layout / "blobs" / "sha256"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / digest).write_bytes(content)
    return {"digest": f"sha256:{digest}"}


def make_layout(layout: Path, images: dict[str, list[bytes]]) -> None:
    index = []
    for name, layers in images.items():
        manifest = {
            "config": put(layout, json.dumps({"of": name}).encode()),
            "layers": [put(layout, each) for each in layers],
        }
        named = {"annotations": {"org.opencontainers.image.ref.name": name}} if name else {}
        index.append(put(layout, json.dumps(manifest).encode()) | named)
    (layout / "index.json").write_text(json.dumps({"manifests": index}))


def test_a_shared_layer_is_in_the_archive_once_and_every_image_names_it(packer: ModuleType, tmp_path: Path) -> None:
    base, own = b"\x1f\x8b" + b"b" * 2_999_998, b"o" * 1_000_000
    make_layout(tmp_path / "layout", {"shoal/trainer:1": [base, own], "shoal/worker:1": [base]})
    archive = tmp_path / "runtime.tar"
    lines = packer.pack(tmp_path / "layout", archive)
    with tarfile.open(archive) as tar:
        members = tar.getnames()
        manifest = json.load(tar.extractfile("manifest.json"))
        layers = [tar.extractfile(path).read() for path in manifest[0]["Layers"]]
    assert len(members) == len(set(members)) == 1 + 2 + 2
    assert layers == [base, own]
    assert [image["RepoTags"] for image in manifest] == [["shoal/trainer:1"], ["shoal/worker:1"]]
    assert manifest[1]["Layers"] == manifest[0]["Layers"][:1]
    # With this file in it, containerd would look for an index instead of the manifest.
    assert "oci-layout" not in members
    assert [" ".join(line.split()) for line in lines] == [
        "shoal/trainer:1 4 MB compressed",
        "shoal/worker:1 3 MB compressed",
        f"2 images, 4 MB together: {archive}",
    ]


def test_the_size_of_layers_that_are_not_compressed_is_not_called_that_of_compressed_ones(
    packer: ModuleType, tmp_path: Path
) -> None:
    make_layout(tmp_path / "layout", {"shoal/trainer:1": [b"t" * 2_000_000]})
    lines = packer.pack(tmp_path / "layout", tmp_path / "runtime.tar")
    assert " ".join(lines[0].split()) == "shoal/trainer:1 2 MB not compressed"


def test_an_image_without_a_name_is_refused_and_leaves_no_archive(packer: ModuleType, tmp_path: Path) -> None:
    make_layout(tmp_path / "layout", {"": [b"x"]})
    with pytest.raises(ValueError, match="has no name"):
        packer.pack(tmp_path / "layout", tmp_path / "out.tar")
    assert list(tmp_path.glob("out.tar*")) == []


def test_a_layer_that_is_missing_is_an_error_and_leaves_no_archive(packer: ModuleType, tmp_path: Path) -> None:
    make_layout(tmp_path / "layout", {"shoal/trainer:1": [b"layer"]})
    (tmp_path / "layout" / "blobs" / "sha256" / hashlib.sha256(b"layer").hexdigest()).unlink()
    with pytest.raises(FileNotFoundError):
        packer.pack(tmp_path / "layout", tmp_path / "out.tar")
    assert list(tmp_path.glob("out.tar*")) == []


@pytest.mark.parametrize(
    ("settings", "kept"),
    [({}, "localhost/shoal/relay:"), ({"REPOSITORY": "127.0.0.1:5000/shoal"}, "127.0.0.1:5000/shoal/relay:")],
)
def test_what_is_packed_is_what_was_built_also_beside_a_registrys_image_of_that_name(
    tmp_path: Path, settings: dict[str, str], kept: str
) -> None:
    """buildah takes `shoal/relay` for any registry's image that is here: after a release an archive had the release's image, and not the new one."""
    for name in ("tools", "images", "requirements"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    called = tmp_path / "called"
    buildah = tmp_path / "bin" / "buildah"
    buildah.parent.mkdir()
    buildah.write_text(f'#!/bin/sh\necho "$@" >> {called}\ncase $1 in push) touch .cache/images/relay.tar ;; esac\n')
    buildah.chmod(0o755)
    environment = os.environ | {"PATH": f"{buildah.parent}:{os.environ['PATH']}", "PLAIN": "1"} | settings
    subprocess.run([tmp_path / "tools" / "images.sh", "relay"], check=True, env=environment, timeout=60)
    lines = called.read_text().splitlines()
    [built] = [line.split(" -t ")[1].split()[0] for line in lines if line.startswith("bud ")]
    [packed] = [line.split()[2] for line in lines if line.startswith("push ")]
    assert built == packed
    assert built.startswith(kept)
