"""Volumes of the node: a folder for each claim of our storage class, removed with the claim.

Enough for tests on one node: no sizes are enforced, and any pod that mounts the volume may write, for the kubelet gives folders of the host no group.
"""

import shutil
from pathlib import Path
from typing import Any

from kube_client import Kube, Refused

from e2e.nodes.manifests import STORAGE_CLASS

Object = dict[str, Any]


def settle(kube: Kube, folder: Path) -> None:
    """Make what pending claims lack, remove what released volumes held."""
    volumes = {each["metadata"]["name"]: each for each in kube.list("PersistentVolume")}
    for claim in kube.list("PersistentVolumeClaim"):
        name = f"claim-{claim['metadata']['uid']}"
        spec = claim["spec"]
        if spec.get("storageClassName") != STORAGE_CLASS or spec.get("volumeName") or name in volumes:
            continue
        place = folder / name
        place.mkdir(exist_ok=True)
        place.chmod(0o777)
        try:
            kube.create(volume(claim, place))
        except Refused as refused:
            if refused.status != 409:
                raise
    for name, found in volumes.items():
        if found["spec"].get("storageClassName") == STORAGE_CLASS and found["status"].get("phase") == "Released":
            kube.delete("PersistentVolume", name)
            shutil.rmtree(folder / name, ignore_errors=True)


def volume(claim: Object, place: Path) -> Object:
    """The volume for a claim, bound to it and no other."""
    meta, spec = claim["metadata"], claim["spec"]
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"claim-{meta['uid']}"},
        "spec": {
            "capacity": {"storage": spec["resources"]["requests"]["storage"]},
            "accessModes": spec["accessModes"],
            # Ours to remove: the controller knows no deleter for folders of the host.
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": STORAGE_CLASS,
            "hostPath": {"path": str(place), "type": "Directory"},
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": meta["namespace"],
                "name": meta["name"],
                "uid": meta["uid"],
            },
        },
    }
