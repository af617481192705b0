"""Keys to be replaced in a run on this machine: a file in the run's folder, which `shoal keys rotate` writes and the run reads.

What stands there is part of the run's spec from then on, as `spec.keys` of its manifest is. Of the two the greater number holds.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from shoal.contracts.roster import HOLDERS, MOST_CHANGES, KeyHolder
from shoal_operator.api import TrainingRun
from shoal_operator.api.keys import KeysSpec, KeyStatus, KeyWish
from shoal_operator.local.objects import Objects

WISHES_FILE = "keys.json"


def read_wishes(run_dir: Path) -> KeysSpec:
    """What was asked for; ValueError when the file is not readable."""
    path = run_dir / WISHES_FILE
    try:
        return KeysSpec.from_json(path.read_bytes())
    except FileNotFoundError:
        return KeysSpec()
    except ValidationError as error:
        raise ValueError(
            f"{path}: is not what `shoal keys rotate` writes ({error.error_count()} mistakes); delete it"
        ) from None


def with_wishes(run: TrainingRun, run_dir: Path) -> TrainingRun:
    """The run with what was asked for in its spec."""
    asked, own = read_wishes(run_dir).wishes(), (run.spec.keys or KeysSpec()).wishes()
    if not asked:
        return run
    merged = {holder: _later(own.get(holder), asked.get(holder)) for holder in {*asked, *own}}
    return run.model_copy(update={"spec": run.spec.model_copy(update={"keys": KeysSpec.model_validate(merged)})})


def _later(one: KeyWish | None, other: KeyWish | None) -> KeyWish | None:
    return max((each for each in (one, other) if each is not None), key=lambda wish: wish.generation, default=None)


def held_keys(run_dir: Path) -> list[KeyStatus]:
    """The keys that hold now, as the run's status says; none before it began."""
    runs = Objects(run_dir / "objects.json").find("TrainingRun")
    return [KeyStatus.model_validate(each) for run in runs for each in run.get("status", {}).get("keys", [])]


def ask(run_dir: Path, holders: Sequence[KeyHolder], *, leaked: bool) -> KeysSpec:
    """Ask for the next key of each holder; one that is already asked for is not asked for twice. ValueError says why that cannot be."""
    generations = {each.name: each.generation for each in held_keys(run_dir)}
    if not generations:
        raise ValueError(f"{run_dir.name} has no keys yet: start it with `shoal up` first")
    wishes = read_wishes(run_dir).wishes()
    for holder in holders:
        wanted, before = generations[holder] + 1, wishes.get(holder)
        pending = before is not None and before.generation >= wanted and before.leaked
        wishes[holder] = KeyWish(generation=wanted, leaked=leaked or pending)
    made = sum(generations[holder] - 1 for holder in HOLDERS)
    if made + len(holders) > MOST_CHANGES:
        raise ValueError(f"{run_dir.name}: a run has at most {MOST_CHANGES} changes of keys, and has {made}")
    asked = KeysSpec.model_validate(wishes)
    partial = run_dir / f"{WISHES_FILE}.partial"
    handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(asked.to_json())
        file.flush()
        os.fsync(file.fileno())
    partial.replace(run_dir / WISHES_FILE)
    return asked
