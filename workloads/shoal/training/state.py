"""Training state: what is needed to go on bit for bit after any stop. Kept in the store under `trainer/state/v000007/`.

In: policy, optimizer and the metrics of the step that made them. Out: float32 weights, AdamW's moments and torch's random state as
safetensors (no pickles), then `state.json`, which seals them by their SHA-256 and is written last: a state without it does
not exist. The data position is the version itself, since step `s` makes version `s+1` and its order of samples is drawn
from (seed, step). Called by `loop`.
"""

import hashlib
import shutil
from pathlib import Path
from typing import Any

import torch
from pydantic import Field, ValidationError
from safetensors.torch import load_file, save_file

from shoal.contracts import keys
from shoal.contracts.base import Contract, RunName, Sha256Hex
from shoal.contracts.steps import StepMetrics
from shoal.contracts.weights import VersionNumber
from shoal.storage import NotFound, Store
from shoal.training.model import named_weights
from shoal.training.optimizer import Optimizer

MODEL_FILE, OPTIMIZER_FILE, SEAL = "model.safetensors", "optimizer.safetensors", "state.json"
RANDOM_STATE = "random/torch"
MOMENTS = ("step", "exp_avg", "exp_avg_sq")
"""What torch's AdamW keeps for a parameter."""
KEPT_STATES = 3
"""The newest and two to fall back on, should one turn out to be damaged."""


class BadState(ValueError):
    """A sealed state is damaged or of another run; the message says which object."""


class SealedState(Contract):
    """`state.json`. `metrics` is of the step that made this version, so that a stop after the save loses no report."""

    run: RunName
    version: VersionNumber
    updates: int = Field(ge=0, description="optimizer steps applied since the run began")
    files: dict[str, Sha256Hex]
    metrics: StepMetrics | None


class States:
    """The states of a run in the store; files pass through `scratch`, a folder on this machine."""

    def __init__(self, store: Store, run: str, scratch: Path) -> None:
        self._store = store
        self._run = run
        self._scratch = scratch

    def save(self, version: int, policy: Any, optimizer: Optimizer, metrics: StepMetrics | None) -> None:
        """Make state `version` durable, then drop all but the newest few."""
        folder = self._fresh_scratch()
        save_file(named_weights(policy, torch.float32), folder / MODEL_FILE)
        save_file(_optimizer_tensors(policy, optimizer), folder / OPTIMIZER_FILE)
        prefix = keys.trainer_state(version)
        digests = {}
        for path in sorted(folder.iterdir()):
            digests[path.name] = _sha256(path)
            self._store.put_file(prefix + path.name, path)
        sealed = SealedState(run=self._run, version=version, updates=optimizer.updates, files=digests, metrics=metrics)
        self._store.put(prefix + SEAL, sealed.to_json())
        shutil.rmtree(folder)
        for old in self.sealed()[:-KEPT_STATES]:
            self._delete(old)

    def sealed(self) -> list[int]:
        """Versions that have a whole state, ascending."""
        found = []
        for info in self._store.list(keys.TRAINER_STATE):
            name, _, file = info.key.removeprefix(keys.TRAINER_STATE).partition("/")
            version = keys.parse_version(name)
            if version is not None and file == SEAL:
                found.append(version)
        return sorted(found)

    def restore(self, version: int, policy: Any, optimizer: Optimizer) -> SealedState:
        """Put the state into policy, optimizer and torch's random generator; raises BadState when it is not intact."""
        prefix = keys.trainer_state(version)
        try:
            sealed = SealedState.from_json(self._store.get(prefix + SEAL))
        except ValidationError as error:
            raise BadState(f"{prefix}{SEAL}: {error}") from error
        if (sealed.run, sealed.version) != (self._run, version):
            raise BadState(f"{prefix}{SEAL} is of run {sealed.run!r} version {sealed.version}; wanted: {self._run!r}")
        folder = self._fresh_scratch()
        tensors = {}
        for name in (MODEL_FILE, OPTIMIZER_FILE):
            try:
                self._store.get_to_file(prefix + name, folder / name)
            except NotFound as error:
                raise BadState(f"{prefix}{SEAL} seals {name}, but there is no such object") from error
            if (found := _sha256(folder / name)) != sealed.files.get(name):
                raise BadState(
                    f"{prefix}{name} has SHA-256 {found}, sealed was {sealed.files.get(name)}; delete {prefix}{SEAL}"
                    " to fall back on the state before it"
                )
            tensors[name] = load_file(folder / name)
        shutil.rmtree(folder)
        _check_names(prefix, tensors[MODEL_FILE], named_weights(policy, torch.float32))
        policy.load_state_dict(tensors[MODEL_FILE], strict=False)
        policy.tie_weights()
        _restore_optimizer(policy, optimizer, tensors[OPTIMIZER_FILE])
        optimizer.updates = sealed.updates
        return sealed

    def _fresh_scratch(self) -> Path:
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._scratch.mkdir(parents=True)
        return self._scratch

    def _delete(self, version: int) -> None:
        """The seal first: what is half deleted must not look whole."""
        prefix = keys.trainer_state(version)
        for name in (SEAL, OPTIMIZER_FILE, MODEL_FILE):
            self._store.delete(prefix + name)


def _optimizer_tensors(policy: Any, optimizer: Optimizer) -> dict[str, torch.Tensor]:
    """AdamW's moments under `<moment>/<parameter>`, and torch's random state."""
    found = {RANDOM_STATE: torch.get_rng_state()}
    for name, parameter in policy.named_parameters():
        for moment in MOMENTS:
            kept = optimizer.adamw.state.get(parameter, {}).get(moment)
            if kept is not None:
                found[f"{moment}/{name}"] = kept.detach().cpu().contiguous()
    return found


def _restore_optimizer(policy: Any, optimizer: Optimizer, tensors: dict[str, torch.Tensor]) -> None:
    torch.set_rng_state(tensors[RANDOM_STATE])
    optimizer.adamw.state.clear()
    for name, parameter in policy.named_parameters():
        moments = {moment: tensors[f"{moment}/{name}"] for moment in MOMENTS if f"{moment}/{name}" in tensors}
        if moments:
            on_device = {moment: value.to(parameter.device) for moment, value in moments.items() if moment != "step"}
            optimizer.adamw.state[parameter] = on_device | {"step": moments["step"]}


def _check_names(prefix: str, found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in wanted.items()}
    if {name: tuple(tensor.shape) for name, tensor in found.items()} != shapes:
        different = sorted(set(found) ^ set(wanted)) or [n for n in found if tuple(found[n].shape) != shapes[n]]
        raise BadState(f"{prefix}{MODEL_FILE} is of another model than models/base/: they differ in {different[:3]}")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
