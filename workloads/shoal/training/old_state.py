"""States of earlier releases: a distributed checkpoint of torch, one file a rank and one of metadata, sealed by digests of whole files.

In: such a state in the store. Out: tensors, as `state_files` gives them. One rank of a machine fetches all files, since a digest is of a whole one;
the library reads from them what each rank needs. Nothing writes these any more. Called by `state`.
"""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor

from shoal.files import file_sha256
from shoal.storage import NotFound, Store
from shoal.training.parallel import Ranks, waiting_for
from shoal.training.state_files import READ_AGAIN, DamagedPart

METADATA = "metadata"
METADATA_ON_DISK = ".metadata"


class OldState:
    """One such state. Made on every rank, which fetches it; nothing is read before all have. Raises DamagedPart."""

    def __init__(self, store: Store, prefix: str, files: Mapping[str, str], folder: Path, ranks: Ranks) -> None:
        self._folder = folder
        self._ranks = ranks
        if ranks.first_on_node:
            _download(store, prefix, files, folder)

    def shapes(self) -> dict[str, torch.Size]:
        """The shape of every tensor, as a whole."""
        described = dcp.FileSystemReader(self._folder).read_metadata().state_dict_metadata
        return {key: one.size for key, one in described.items() if isinstance(one, dcp.metadata.TensorStorageMetadata)}

    def read(self, tensors: Mapping[str, Tensor], rank: int, beat: Callable[[], None]) -> None:
        """Fill this rank's part of `tensors`. All ranks call this, once."""
        beat()
        with waiting_for("a state of an earlier release to be read", rank):
            dcp.load(
                dict(tensors),
                storage_reader=dcp.FileSystemReader(self._folder),
                process_group=self._ranks.background,
            )
        if self._ranks.first_on_node:  # loading ends when every rank has read
            shutil.rmtree(self._folder)


def _download(store: Store, prefix: str, files: Mapping[str, str], folder: Path) -> None:
    """The metadata is a pickle: it is opened only after its digest matched."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, digest in files.items():
        path = folder / name_on_disk(name)
        for attempt in range(1 + READ_AGAIN):
            try:
                store.get_to_file(prefix + name, path)
            except NotFound:
                raise DamagedPart(f"the seal of {prefix} has {name}, but there is no such object") from None
            found = file_sha256(path)
            if found == digest:
                break
            if attempt == READ_AGAIN:
                raise DamagedPart(f"{prefix}{name} has SHA-256 {found}, but the seal has {digest}")


def name_on_disk(name: str) -> str:
    """`rank-00007.distcp` of the store is `__7_0.distcp` of the library: keys of the store begin with a letter or digit."""
    return METADATA_ON_DISK if name == METADATA else f"__{int(name[5:10])}_0.distcp"
