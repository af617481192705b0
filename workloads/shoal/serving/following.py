"""Keeps a folder on the version that a tag names: `<folder>/v000007/` is the checkpoint, and the link `<folder>/current` changes by one rename.

In: an opened run and a tag. Out: the folder. A server reads `current` when it starts; when the link changes it is started again, as
`examples/serving` shows. Every piece is checked on its way: `current` never leads to half a model, nor to one that the run's trainer did not sign.
Cost: room for two versions (131 GB at 32B), one small read of the tag a look. Called by `shoal serving fetch`.

While the store is away, or has lost what the tag names, the folder stays as it is, and the log says why.
"""

import os
import random
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from shoal.contracts import keys
from shoal.contracts.final_model import ORIGIN_FILE
from shoal.contracts.serving import Promotion
from shoal.errors import InputWrong, RunFailed
from shoal.files import write_atomically
from shoal.report.access import RunAccess
from shoal.report.export import export_model
from shoal.serving.promotion import guarded, state_of
from shoal.storage.checkpoint_files import MANIFEST_FILE
from shoal.storage.versions import read_record, sealed_versions
from shoal.text import plain, size

CURRENT = "current"
MARK = "shoal-promotion.json"
"""In a version's folder: the move of the tag that it is of, written last."""


@dataclass(frozen=True)
class Fetched:
    """What a tag names and the folder that has it; `new`: it was not there before."""

    promotion: Promotion
    folder: Path
    new: bool


def fetch(access: RunAccess, tag: str, folder: Path, say: Callable[[str], None]) -> Fetched:
    """Make `<folder>/current` lead to what the tag names. Versions other than this one and the current one are removed first.

    Raises `InputWrong` for a tag that is not there or a folder without room, `RunFailed` for a version that the store has lost or damaged.
    """
    return _switch(folder, _prepare(access, tag, folder, say))


def follow(
    access: RunAccess, tag: str, folder: Path, say: Callable[[str], None], *, every_seconds: float,
    spread_seconds: float = 0.0, pause: Callable[[float], None] = time.sleep,
) -> None:  # fmt: skip
    """Fetch whenever the tag moves, until `pause` raises. What goes wrong is said once, and tried again at the next look.

    A folder that has a model waits a random part of `spread_seconds` before it changes, and then looks at the tag once more: so servers of one tag
    rarely start again together.
    """
    said = ""
    while True:
        try:
            prepared = _prepare(access, tag, folder, say)
            if spread_seconds and _current(folder) not in ("", prepared.folder.name):
                pause(random.uniform(0.0, spread_seconds))
                prepared = _prepare(access, tag, folder, say)
            found = _switch(folder, prepared)
            if found.new or said:
                say(moved_line(found))
            said = ""
        except (InputWrong, RunFailed) as error:
            if str(error) != said:
                said = str(error)
                say(f"{said}; {_current(folder) or 'no version'} stays, next look in {every_seconds:.0f} s")
        pause(every_seconds)


def _prepare(access: RunAccess, tag: str, folder: Path, say: Callable[[str], None]) -> Fetched:
    """Have what the tag names in its own folder; `current` stays as it is."""
    state = state_of(access, tag)
    named = state.named
    name = keys.version_name(named.version)
    place = folder / name
    held = _held(place)
    if held is None or held.sha256 != named.sha256:
        if state.lost:
            raise RunFailed(
                f"tag {tag} names version {named.version}, which the store has lost: {state.lost};"
                " promote another version, or go back with `shoal serving rollback`"
            )
        folder.mkdir(parents=True, exist_ok=True)
        _tidy(folder, keep={name, _current(folder)})
        _check_room(access, named.version, folder)
        _forget(place)
        say(f"fetching version {named.version} into {place}")
        with guarded(access):
            exported = export_model(access, place, named.version)
        if exported is None:
            raise RunFailed(f"tag {tag} names version {named.version}, which the store has lost")
    if held != named:
        write_atomically(place / MARK, named.to_json() + b"\n")
    return Fetched(named, place, new=_current(folder) != name)


def _switch(folder: Path, prepared: Fetched) -> Fetched:
    if prepared.new:
        link = folder / f".{CURRENT}"
        link.unlink(missing_ok=True)
        link.symlink_to(prepared.folder.name)
        os.replace(link, folder / CURRENT)
    return prepared


def moved_line(found: Fetched) -> str:
    """What a person reads of a fetch."""
    made = found.promotion
    return (
        f"{found.folder.parent / CURRENT}: version {made.version} of run {made.run}, which {plain(made.by, 80)} promoted to"
        f" {made.tag} ({plain(made.reason, 200)})"
    )


def _held(place: Path) -> Promotion | None:
    try:
        return Promotion.from_json((place / MARK).read_bytes())
    except (OSError, ValueError):
        return None


def _forget(place: Path) -> None:
    """What lies there is not what the tag names: of another run, or of an earlier life of this one. Its files stay until the new ones are whole."""
    for name in (MARK, MANIFEST_FILE, ORIGIN_FILE):
        (place / name).unlink(missing_ok=True)


def _current(folder: Path) -> str:
    """Name of the version that is served, or empty."""
    try:
        return os.readlink(folder / CURRENT)
    except OSError:
        return ""


def _tidy(folder: Path, keep: set[str]) -> None:
    """Remove versions that nobody is served from, and what a killed fetch left of them."""
    for path in folder.iterdir():
        version = path.name.lstrip(".").partition("-")[0]
        if keys.parse_version(version) is not None and version not in keep:
            shutil.rmtree(path, ignore_errors=True)


def _check_room(access: RunAccess, version: int, folder: Path) -> None:
    """Before the first byte. What a killed fetch left counts as room, since it goes on there."""
    with guarded(access):
        if sealed_versions(access.store):
            needed = read_record(access.store, version, access.trainer).total_size
        else:
            needed = sum(info.size for info in access.store.list(keys.FINAL_MODEL))
    name = keys.version_name(version)
    there = sum(
        path.stat().st_blocks * 512 for begun in folder.glob(f"*{name}*") for path in begun.rglob("*") if path.is_file()
    )
    free = shutil.disk_usage(folder).free
    if needed > free + there:
        raise InputWrong(
            f"{plain(folder, 200)} has {size(free + there)} free, and version {version} has {size(needed)}:"
            " a folder that follows a tag needs room for two versions"
        )
