"""A pod's folder (its `SHOAL_HOME`) and its mounts: secrets, config maps, empty folders and claims.

Every mount lies under `/shoal`, and all containers of a pod see all of its mounts here: one machine's user has no walls between processes of
its own. Claims are folders of the run that outlive pods.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal_operator.local.expand import Lookup, NotThere, UnsupportedField, contents

MOUNT_ROOT = "/shoal"
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - a mount point


def prepare_home(
    home: Path,
    pod_spec: Mapping[str, Any],
    *,
    claims: Mapping[str, str],
    volumes_folder: Path,
    lookup: Lookup,
    where: str,
) -> None:
    """Make the pod's folder with all of its mounts, new except for claims.

    `claims` maps names of `volumeClaimTemplates` to the claims made from them for this pod. Raises `NotThere` and `UnsupportedField`.
    """
    if home.exists():
        shutil.rmtree(home)  # links into claims are removed, not followed
    home.mkdir(parents=True)
    for name in ("run", "tmp"):
        (home / name).mkdir()
    volumes = {volume["name"]: volume for volume in pod_spec.get("volumes", [])}
    for mount_path, name in sorted(_mounts(pod_spec, where).items()):
        target = home / mount_path
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_dir() and not target.is_symlink():
            target.rmdir()
        if name in claims:
            _link_claim(target, volumes_folder / claims[name])
        elif name in volumes:
            _mount(target, volumes[name], volumes_folder, lookup, where)
        else:
            raise UnsupportedField(f"{where}: mounts volume {name!r}, which the pod does not have")


def _mounts(pod_spec: Mapping[str, Any], where: str) -> dict[str, str]:
    """Path below the pod's folder -> volume name, over all containers."""
    found: dict[str, str] = {}
    for container in pod_spec["containers"]:
        for mount in container.get("volumeMounts", []):
            path = mount["mountPath"]
            if path == SHARED_MEMORY:
                continue  # the machine's own is as large as can be
            if not path.startswith(MOUNT_ROOT + "/") or ".." in path.split("/"):
                raise UnsupportedField(f"{where}: mounts {path}; here every mount lies under {MOUNT_ROOT}")
            if "subPath" in mount:
                raise UnsupportedField(f"{where}: mount {path} has a subPath, which is not available here")
            relative = path[len(MOUNT_ROOT) + 1 :]
            if found.setdefault(relative, mount["name"]) != mount["name"]:
                raise UnsupportedField(
                    f"{where}: two containers mount different volumes at {path}; here they share one folder"
                )
    return found


def _mount(target: Path, volume: Mapping[str, Any], volumes_folder: Path, lookup: Lookup, where: str) -> None:
    if "emptyDir" in volume:
        target.mkdir()
    elif "persistentVolumeClaim" in volume:
        claim = volume["persistentVolumeClaim"]["claimName"]
        exists = lookup("PersistentVolumeClaim", claim) is not None
        if not exists:
            raise NotThere(f"{where}: waits for PersistentVolumeClaim {claim}")
        _link_claim(target, volumes_folder / claim)
    elif "secret" in volume:
        secret = volume["secret"]
        absent = secret.get("optional") and lookup("Secret", secret["secretName"]) is None
        _write_files(target, {} if absent else contents("Secret", secret["secretName"], lookup, where), 0o600)
    elif "projected" in volume:
        _write_files(target, _projected(volume["projected"]["sources"], lookup, where), 0o600)
    elif "configMap" in volume:
        _write_files(target, contents("ConfigMap", volume["configMap"]["name"], lookup, where), 0o644)
    else:
        kinds = sorted(set(volume) - {"name"})
        raise UnsupportedField(
            f"{where}: volume {volume['name']!r} is a {kinds}; here: emptyDir, persistentVolumeClaim, secret, configMap, projected"
        )


def _projected(sources: Sequence[Mapping[str, Any]], lookup: Lookup, where: str) -> dict[str, bytes]:
    """Files of several Secrets or ConfigMaps in one folder; `items` chooses keys of a Secret and gives them paths."""
    files: dict[str, bytes] = {}
    for source in sources:
        if set(source) == {"configMap"}:
            config = source["configMap"]
            if not config.get("optional") or lookup("ConfigMap", config["name"]) is not None:
                files |= contents("ConfigMap", config["name"], lookup, where)
            continue
        if set(source) != {"secret"}:
            raise UnsupportedField(f"{where}: projected volume has a source {sorted(source)}; here: secret, configMap")
        data = contents("Secret", source["secret"]["name"], lookup, where)
        items = source["secret"].get("items")
        chosen = {each["path"]: each["key"] for each in items} if items else {key: key for key in data}
        for path, key in chosen.items():
            if key not in data:
                raise NotThere(f"{where}: waits for key {key} in Secret {source['secret']['name']}")
            if path.startswith("/") or ".." in path.split("/"):
                raise UnsupportedField(f"{where}: projected path {path} leaves its volume")
            files[path] = data[key]
    return files


def _write_files(folder: Path, files: Mapping[str, bytes], mode: int) -> None:
    folder.mkdir(mode=0o700)
    for name, data in files.items():
        (folder / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(handle, "wb") as file:
            file.write(data)


def _link_claim(target: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    target.symlink_to(folder.resolve(), target_is_directory=True)
