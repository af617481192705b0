"""What a claim of a run asks for, whoever makes it: the operator, a StatefulSet for each of its pods, or a pod for as long as it lives. Pure."""

from dataclasses import dataclass

from shoal_operator.api.volumes import Volume
from shoal_operator.engine.cluster import Object

TEMPORARY_SIZE = "20Gi"
"""Of a volume for temporary files of which only the class is said: as large as volumes are by default."""


@dataclass(frozen=True)
class VolumeClaim:
    """Size, class (None: the cluster's default) and access mode of a claim."""

    size: str | int
    storage_class: str | None = None
    access_mode: str = "ReadWriteOnce"

    def spec(self) -> Object:
        made: Object = {"accessModes": [self.access_mode], "resources": {"requests": {"storage": self.size}}}
        return made if self.storage_class is None else {"storageClassName": self.storage_class, **made}


def claimed(volume: Volume | None, size: str | int, access_mode: str = "ReadWriteOnce") -> VolumeClaim:
    """The claim that a manifest asks for; `size` where its volume has none."""
    if volume is None:
        return VolumeClaim(size, access_mode=access_mode)
    return VolumeClaim(size if volume.size is None else volume.size, volume.storage_class_name, access_mode)


def temporary(volume: Volume | None) -> VolumeClaim | None:
    """The claim of a pod's temporary files, or None where they are on the node's disk."""
    return None if volume is None else claimed(volume, TEMPORARY_SIZE)
