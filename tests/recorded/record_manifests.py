"""Records what this release makes of each manifest under `v<release>/manifests/`: `manifest.yaml` in, `spec.yaml` with every default out.

    PYTHONPATH=tests:workloads:operator python tests/recorded/record_manifests.py

Recorded specs are never rewritten: the program writes missing ones only.
"""

from pathlib import Path
from typing import Any

import yaml

from shoal_operator.api import CustomObject
from shoal_operator.api.manifest import load_manifest
from shoal_operator.children.names import SOFTWARE_VERSION

HERE = Path(__file__).parent


def object_of(folder: Path) -> CustomObject:
    """The object of a recorded manifest, read as a person's file is."""
    [found] = load_manifest((folder / "manifest.yaml").read_text(), folder.name)
    return found


def spec_of(found: CustomObject) -> dict[str, Any]:
    """The spec with its defaults, as an API server would store it."""
    spec: dict[str, Any] = found.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    return spec


def main() -> None:
    for folder in sorted((HERE / f"v{SOFTWARE_VERSION}" / "manifests").iterdir()):
        if not (folder / "spec.yaml").exists():
            text = yaml.safe_dump(spec_of(object_of(folder)), sort_keys=False, width=140)
            (folder / "spec.yaml").write_text(text)


if __name__ == "__main__":
    main()
