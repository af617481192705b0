"""How a trusted pod reaches the object store: a claim for the folder store, credentials for one over the network. Pure."""

from shoal.contracts.storage import GcsWorkload, StorageSpec
from shoal_operator.api import TrainingRun
from shoal_operator.api.volumes import StoreVolume
from shoal_operator.children import names
from shoal_operator.children.claims import claimed
from shoal_operator.children.pods import Mount, StoreAccess, claim, secrets, store_credentials
from shoal_operator.children.workloads import volume_claim
from shoal_operator.engine.cluster import Object


def store_access(storage: StorageSpec, own: str | None = None) -> StoreAccess | None:
    """How a part reaches the store: by a Secret of its `own`, else as the run does. None: it is a folder."""
    if storage.is_folder:
        return None
    cloud = storage.azure or storage.gcs or storage.s3
    assert cloud is not None
    identity = cloud.workload_identity
    if own is None and identity is not None:
        audience = identity.token_audience if isinstance(identity, GcsWorkload) else identity.audience
        return StoreAccess(service_account=identity.service_account, audience=audience)
    return StoreAccess(secret=own or (storage.s3 and storage.s3.credentials_secret) or "")


def role_and_store(run: str, role_secret: str | None, storage: StorageSpec, *keys: str) -> tuple[Mount, ...]:
    """Mounts of the Secret with a role's key, of Secrets with further `keys`, and of what it needs for the store; without any, the store only."""
    access = store_access(storage)
    mounts: list[Mount] = []
    held = [*([role_secret] if role_secret is not None else []), *keys]
    if held:
        mounts.append(secrets(held[0], access, *held[1:]))
    elif access is not None:
        mounts.append(store_credentials(access))
    if access is None:
        mounts.append(claim("store", names.store(run)))
    return tuple(mounts)


def store_to_read(run: str, storage: StorageSpec, credentials: str | None) -> tuple[Mount, ...]:
    """The store for a part that writes nothing: a folder store's claim without leave to write, or credentials, its own where it has any."""
    if (access := store_access(storage, credentials)) is not None:
        return (store_credentials(access),)
    source = {"persistentVolumeClaim": {"claimName": names.store(run), "readOnly": True}}
    return (Mount("store", source, read_only=True),)


def store_claims(run: TrainingRun) -> list[Object]:
    """The claim of the folder store, if the run has one. One that is retained says so: it gets no owner (`reconcile/common.py`)."""
    name, storage, volume = run.metadata.name, run.spec.storage, run.spec.store_volume or StoreVolume()
    if not storage.is_folder:
        return []
    made = volume_claim(names.store(name), name, "store", claimed(volume, storage.folder_size, volume.access_mode))
    if volume.retain:
        made["metadata"]["annotations"] = {names.RETAIN_ANNOTATION: "true"}
    return [made]
