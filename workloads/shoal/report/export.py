"""Gets the trained model out of the object store into a folder of its own, every piece checked: the last sealed version or a given one, or the result
of a run that publishes no versions (mode SFT). `shoal-run.json` beside it says how the run asked.
"""

import os
import shutil
from pathlib import Path

from pydantic import ValidationError

from shoal.contracts import keys
from shoal.contracts.final_model import ORIGIN_FILE, FinalModel, ModelOrigin, read_origin
from shoal.contracts.run import Prepared
from shoal.contracts.signed import Signer
from shoal.errors import InputWrong
from shoal.files import file_sha256, write_atomically
from shoal.report.access import RunAccess
from shoal.report.collect import ModelPlace
from shoal.storage import NotFound, find
from shoal.storage.checkpoint_files import MANIFEST_FILE, WrongWeights, read_manifest
from shoal.storage.versions import materialise, sealed_versions


def export_model(access: RunAccess, folder: Path, version: int | None = None) -> ModelPlace | None:
    """Make `folder` hold this version, by default the last trained one; None when there is none (of itself, version 0 is no trained version).

    A folder with another version is replaced when the newer one is complete. Raises `WrongWeights` or `BadSignature` for pieces that the trainer did
    not sign or that are not what their seal says.
    """
    versions = sealed_versions(access.store)
    if not versions:
        return _export_result(access, folder, version)
    if version is None and versions[-1] == 0:
        return None
    last, signer = versions[-1] if version is None else version, access.trainer
    if held_version(folder, signer) != last:
        fresh = _fresh(folder, last)
        materialise(access.store, last, fresh, access.run, signer)
        _replace(fresh, folder)
    _leave_origin(access, folder, last)
    return ModelPlace(str(folder), last)


def check_replaceable(folder: Path) -> None:
    """Before an export into a folder that a person named: raises InputWrong where something lies there that is no model of a run."""
    if (
        folder.is_dir()
        and not any((folder / name).is_file() for name in (MANIFEST_FILE, ORIGIN_FILE))
        and any(folder.iterdir())
    ):
        raise InputWrong(
            f"{folder} holds files that no run made, and a model takes a folder of its own: name one that is empty or not there"
        )


def _export_result(access: RunAccess, folder: Path, version: int | None) -> ModelPlace | None:
    """`models/final/` of a run that is complete and has no versions."""
    try:
        seal = find(access.store, keys.FINAL_SEAL, FinalModel.from_json)
    except ValidationError as error:
        raise WrongWeights(f"{keys.FINAL_SEAL} cannot be read: {error.error_count()} mistakes") from None
    if seal is None or (version is not None and version != seal.version):
        return None
    held = read_origin(folder)
    if held is None or (held.run, held.version) != (access.run, seal.version):
        fresh = _fresh(folder, seal.version)
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        for name, digest in seal.files.items():
            access.store.get_to_file(keys.FINAL_MODEL + name, fresh / name)
            found = file_sha256(fresh / name)
            if found != digest:
                shutil.rmtree(fresh)
                raise WrongWeights(f"{keys.FINAL_MODEL}{name} has SHA-256 {found}, but its seal says {digest}")
        _leave_origin(access, fresh, seal.version)
        _replace(fresh, folder)
    return ModelPlace(str(folder), seal.version)


def _leave_origin(access: RunAccess, folder: Path, version: int) -> None:
    """Say beside the model how its run asked. Where only the run's store is known, nothing says how it asked."""
    config = access.config
    rollouts = config is not None and config.mode != "SFT"
    lengths = config.length_reward if config is not None and rollouts else None
    try:
        prompt = Prepared.from_json(access.store.get(keys.PREPARED)).prompt
    except (NotFound, ValidationError):
        prompt = None
    origin = ModelOrigin(
        run=access.run,
        version=version,
        targets=list(lengths.targets) if lengths is not None else [],
        max_completion_tokens=config.sampling.max_completion_tokens if config is not None and rollouts else None,
        prompt=prompt,
    )
    write_atomically(folder / ORIGIN_FILE, origin.to_json() + b"\n")


def _fresh(folder: Path, version: int) -> Path:
    return folder.with_name(f".{folder.name}-{version:06d}")


def held_version(folder: Path, signer: Signer) -> int | None:
    """Version that a folder holds, or None when it is none of this run's."""
    return read_manifest(folder, signer).version if (folder / MANIFEST_FILE).is_file() else None


def _replace(fresh: Path, folder: Path) -> None:
    """Put `fresh` in the place of `folder`; a folder cannot be renamed over a full one, so the old one steps aside first."""
    old = folder.with_name(f".{folder.name}-old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        os.replace(folder, old)
    os.replace(fresh, folder)
    shutil.rmtree(old, ignore_errors=True)
