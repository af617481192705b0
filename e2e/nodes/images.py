"""Images of the node: one static program packed as an image, archives imported into its containerd.

No container engine is needed for either. What is in containerd already (by the digest of the archive) is not imported again.
"""

import hashlib
import io
import json
import platform
import subprocess
import tarfile
from pathlib import Path

from e2e.nodes.layout import Layout, system_program

IMPORT_SECONDS = 1200.0
"""The runtime of trainer, worker and validator has five gigabytes."""


def program_image(program: Path, name: str, folder: Path) -> tuple[str, Path]:
    """An image that holds only this static program, as `/<name>`, its entry point. Returns its reference, tagged by digest, and the archive."""
    content = program.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    reference = f"localhost/shoal/{name}:{digest[:12]}"
    archive = folder / f"{name}-{digest[:12]}.tar"
    if archive.exists():
        return reference, archive
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        _add(tar, name, content, mode=0o755)
    configuration = {
        "architecture": architecture(),
        "os": "linux",
        "config": {"Entrypoint": [f"/{name}"], "User": "65535:65535"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer.getvalue()).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [reference], "Layers": ["layer.tar"]}]
    partial = archive.with_suffix(".partial")
    with tarfile.open(partial, mode="w") as tar:
        _add(tar, "config.json", json.dumps(configuration).encode())
        _add(tar, "layer.tar", layer.getvalue())
        _add(tar, "manifest.json", json.dumps(manifest).encode())
    partial.rename(archive)
    return reference, archive


def ctr(layout: Layout, *arguments: str, seconds: float = 60.0, check: bool = True) -> str:
    """What containerd's own client prints, in the namespace that the kubelet uses."""
    done = subprocess.run(
        [system_program("ctr"), "-a", str(layout.socket), "-n", "k8s.io", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )
    if check and done.returncode != 0:
        raise RuntimeError(f"ctr {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def present(layout: Layout) -> set[str]:
    """References of the images that containerd has."""
    return set(ctr(layout, "images", "list", "-q").split())


def load(layout: Layout, archive: Path) -> list[str]:
    """Import an archive (docker-archive or OCI) unless just this one was imported before. Returns its references."""
    stat = archive.stat()
    key = hashlib.sha256(f"{archive.resolve()} {stat.st_size} {stat.st_mtime_ns}".encode()).hexdigest()
    note = layout.folder("imported") / key
    if note.exists():
        known = note.read_text().split()
        if known and set(known) <= present(layout):
            return known
    said = _imported(layout, archive)
    found = [line.split()[1] for line in said.splitlines() if line.startswith("unpacking ")]
    if not found:
        raise RuntimeError(f"{archive} holds no image: ctr said {said!r}")
    note.write_text("\n".join(found))
    return found


def _imported(layout: Layout, archive: Path) -> str:
    """What the import prints.

    A new image of an old name may lose layers that it shares with the old one to containerd's clean-up while it is unpacked: by the second time
    nothing refers to the old one any more.
    """
    command = ("images", "import", "--all-platforms", str(archive))
    try:
        return ctr(layout, *command, seconds=IMPORT_SECONDS)
    except RuntimeError as error:
        if "parent snapshot" not in str(error):
            raise
        return ctr(layout, *command, seconds=IMPORT_SECONDS)


def _add(tar: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    tar.addfile(entry, io.BytesIO(content))


def architecture() -> str:
    """This machine's, as images name it."""
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
