"""Training state: what is needed to continue bit for bit after a stop. Kept in the store under `trainer/state/v000007/`.

In: a `HostCopy` and the metrics of the step that made it. Out: two objects a global rank, its rows and their index (`state_files`). Then
`state.json`, which seals the indexes by their SHA-256 and is written last, when every rank's part is up: a state without it does not exist. The data
position is the version itself, since step `s` makes version `s+1` and its order of samples is drawn from (seed, step). Any number of ranks may read
what any other wrote: each reads the rows that it has, all at once. Saving runs in the background. Called by `loop`.

A state is saved behind its version, and not of every one. So beside the states there is `trainer/made/v000007.json`: what a state's seal says of
its step, some kilobytes, written before the version is handed over. With it and the published weights a run goes on where no state is as new.
"""

from collections.abc import Callable, Collection, Mapping

import torch
import torch.distributed as dist
from pydantic import Field, ValidationError
from torch import Tensor

from shoal import telemetry
from shoal.contracts import keys
from shoal.contracts.base import Contract, RunName, Sha256Hex
from shoal.contracts.steps import StepMetrics
from shoal.contracts.weights import FileName, VersionNumber
from shoal.storage import NotFound, Store
from shoal.training.host_copy import WEIGHTS, HostCopy
from shoal.training.parallel import Ranks, waiting_for
from shoal.training.stability import History
from shoal.training.state_files import DamagedPart, StateParts, write_part

SEAL = "state.json"
PICKLED = "metadata"
"""A file of states of release 0.1. Whoever may write the store writes seals too, so a digest in one makes no pickle safe."""


class BadState(ValueError):
    """A sealed state is damaged: an older one may do. The message says which object."""


class WrongState(ValueError):
    """A sealed state is of another run or model: nothing here may be trained on, nor overwritten."""


class SealedState(Contract):
    """`state.json`. `metrics` is of the step that made this version, so that a stop after the save loses no report."""

    run: RunName
    version: VersionNumber
    updates: int = Field(ge=0, description="optimizer steps applied since the run began")
    ranks: int = Field(ge=1, description="processes that wrote it, a part each")
    files: dict[FileName, Sha256Hex]
    metrics: StepMetrics | None
    history: History = History()
    data: Sha256Hex | None = Field(default=None, description="what all steps of the run train on, where that is fixed")


class MadeVersion(Contract):
    """`trainer/made/v000007.json`: what a resume from published weights cannot know from them. Fields as in `SealedState`."""

    run: RunName
    version: VersionNumber
    updates: int = Field(ge=0, description="optimizer steps applied since the run began")
    metrics: StepMetrics | None
    history: History = History()


class States:
    """The states of a run in the store. `data`: digest of what the run trains on."""

    def __init__(self, store: Store, run: str, ranks: Ranks, data: str | None = None) -> None:
        self._store = store
        self._run = run
        self._ranks = ranks
        self._data = data

    def save(
        self, version: int, tensors: Mapping[str, Tensor], updates: int, metrics: StepMetrics | None, history: History
    ) -> None:
        """Make state `version` durable. All ranks call this, in the thread that saves."""
        ranks, prefix = self._ranks, keys.trainer_state(version)
        if ranks.leader:
            self._store.delete(
                prefix + SEAL
            )  # of an attempt that was given up; what is overwritten must not look whole
        what = f"every rank's part of state {version} to be uploaded"
        digests = ranks.while_saving.each_does(
            what, lambda: write_part(self._store, prefix, tensors, self._run, version, ranks.rank), lambda: None
        )
        found: list[dict[str, str]] = [{}] * ranks.world
        with waiting_for(what, ranks.rank):
            dist.all_gather_object(found, digests, group=ranks.saving)
        if ranks.leader:
            sealed = SealedState(
                run=self._run,
                version=version,
                updates=updates,
                ranks=ranks.world,
                files={name: digest for part in found for name, digest in part.items()},
                metrics=metrics,
                history=history,
                data=self._data,
            )
            self._store.put(prefix + SEAL, sealed.to_json())

    def note(self, made: MadeVersion) -> None:
        """Before its version is handed over, by the leader. One that is there is of an attempt that handed over nothing."""
        self._store.put(keys.made_version(made.version), made.to_json())

    def noted(self, version: int) -> MadeVersion | None:
        """The note of a version; None where there is none, as of a release that wrote none, or it is damaged."""
        try:
            made = MadeVersion.from_json(self._store.get(keys.made_version(version)))
        except (NotFound, ValidationError):
            return None
        return made if (made.run, made.version) == (self._run, version) else None

    def notes(self) -> list[int]:
        """The versions that have a note, ascending."""
        names = (info.key.removeprefix(keys.MADE_VERSIONS) for info in self._store.list(keys.MADE_VERSIONS))
        numbers = (keys.parse_version(name.removesuffix(".json")) for name in names)
        return sorted(number for number in numbers if number is not None)

    def forget_note(self, version: int) -> None:
        """Of a version that nothing takes up any more."""
        self._store.delete(keys.made_version(version))

    def sealed(self) -> list[int]:
        """Versions that have a whole state, ascending."""
        found = []
        for info in self._store.list(keys.TRAINER_STATE):
            name, _, file = info.key.removeprefix(keys.TRAINER_STATE).partition("/")
            version = keys.parse_version(name)
            if version is not None and file == SEAL:
                found.append(version)
        return sorted(found)

    def restore_newest(
        self, copy: HostCopy, liveness: telemetry.Liveness, *, state_first: bool = False
    ) -> SealedState | None:
        """Put the newest intact state into policy and optimizer; None when there is no state at all.

        A damaged one is passed over and deleted. So is what attempts that died while saving have left.
        Raises BadState when none is intact, and WrongState when one is of another run or model. `state_first`: without a state nothing goes on.
        """
        damaged: list[int] = []
        for version in reversed(self._ranks.broadcast(self.sealed(), "which states there are")):
            try:
                state = self.restore(version, copy, liveness)
            except BadState as error:
                damaged.append(version)
                telemetry.get_logger().error("a state is damaged; trying the previous one", reason=str(error))
                continue
            self._tidy(damaged)
            return state
        if damaged:
            otherwise = (
                "start a new run" if state_first else "delete that folder to continue from the newest published weights"
            )
            raise BadState(
                f"none of the states {sorted(damaged)} is intact; the log says why. Put an intact one back"
                f" under {keys.TRAINER_STATE}, or {otherwise}"
            )
        self._tidy([])
        return None

    def restore(self, version: int, copy: HostCopy, liveness: telemetry.Liveness) -> SealedState:
        """Put state `version` into policy, optimizer and random generators. All ranks call this. Raises BadState, WrongState."""
        sealed = self._read_seal(version)
        source = self._opened(sealed, liveness)
        shapes = source.shapes()
        _check_names(keys.trainer_state(version), shapes, copy.shapes())
        if other := copy.other_moments(set(shapes)):
            raise WrongState(
                f"{keys.trainer_state(version)} is of another optimizer than recipe.muon or sft.muon says: {other[:3]}"
            )
        try:
            self._load(version, source, copy.expect(set(shapes)), liveness)
        except BadState:
            copy.take()  # its buffers hold a part of what is damaged
            raise
        copy.give()
        return sealed

    def read_weights(self, version: int, copy: HostCopy, liveness: telemetry.Liveness) -> dict[str, Tensor]:
        """The weights alone, as host tensors sharded like the policy's. Raises BadState, WrongState; NotFound is a BadState too."""
        sealed = self._read_seal(version)
        weights = copy.empty_weights()
        self._load(version, self._opened(sealed, liveness), weights, liveness)
        return weights

    def delete(self, version: int) -> None:
        """The seal first: what is half deleted must not look whole."""
        prefix = keys.trainer_state(version)
        self._store.delete(prefix + SEAL)
        for info in self._store.list(prefix):
            self._store.delete(info.key)

    def _tidy(self, damaged: Collection[int]) -> None:
        """Delete damaged states, and files without a seal. Nothing is being saved now."""
        if not self._ranks.leader:
            return
        there = {
            keys.parse_version(info.key.removeprefix(keys.TRAINER_STATE).partition("/")[0])
            for info in self._store.list(keys.TRAINER_STATE)
        }
        unsealed = {version for version in there if version is not None} - set(self.sealed())
        for version in unsealed | set(damaged):
            self.delete(version)

    def _read_seal(self, version: int) -> SealedState:
        """All ranks call this: a seal that one of them cannot read counts as damaged on all, or they would continue with different states."""
        key = keys.trainer_state(version) + SEAL
        sealed, problem = None, None
        try:
            sealed = SealedState.from_json(self._store.get(key))
        except NotFound:
            problem = f"there is no {key}; sealed states: {self.sealed()}"
        except ValidationError as error:
            problem = f"{key}: {error}"
        if self._ranks.any(problem is not None, f"the seal of state {version}") or sealed is None:
            raise BadState(problem or f"{key} could not be read on another rank; its log says why")
        if (sealed.run, sealed.version) != (self._run, version):
            raise WrongState(f"{key} is of run {sealed.run!r} version {sealed.version}; expected: {self._run!r}")
        if sealed.data != self._data:
            raise WrongState(
                f"{key} was trained on data {sealed.data}, those of this run are now {self._data}; restore the former data, or start"
                " a new run: one run cannot mix two data sets"
            )
        return sealed

    def _opened(self, sealed: SealedState, liveness: telemetry.Liveness) -> StateParts:
        """What the state's tensors are read from; its own descriptions of them are checked. Raises BadState."""
        found: list[StateParts] = []
        prefix, files = keys.trainer_state(sealed.version), sealed.files

        def opened() -> None:
            if PICKLED in files:
                raise DamagedPart(
                    f"{prefix} is of release 0.1, which described its tensors in a pickle: this release opens none"
                )
            found.append(StateParts(self._store, prefix, files, self._run, sealed.version))

        self._agreed(f"state {sealed.version} to be opened", opened, liveness)
        return found[0]

    def _load(
        self, version: int, source: StateParts, tensors: Mapping[str, Tensor], liveness: telemetry.Liveness
    ) -> None:
        """This rank's rows of a state, while all others read theirs. Raises BadState."""
        self._agreed(
            f"state {version} to be read",
            lambda: source.read(tensors, self._ranks.rank, liveness.progress),
            liveness,
        )

    def _agreed(self, what: str, action: Callable[[], None], liveness: telemetry.Liveness) -> None:
        """Run `action` on every rank. What is damaged for one is so for all, or they would go on with different states. Raises BadState."""

        def problem_of() -> str | None:
            try:
                action()
            except DamagedPart as error:
                return str(error)
            return None

        problem = self._ranks.each_does(what, problem_of, liveness.progress)
        if self._ranks.any(problem is not None, what):
            raise BadState(
                problem or f"rank {self._ranks.rank} waited for {what}, and another rank could not; its log says why"
            )


def _check_names(prefix: str, there: Mapping[str, torch.Size], wanted: dict[str, torch.Size]) -> None:
    """Raise WrongState unless the state's weights are those of this policy, adapters or not, and of what is trained beside it."""
    found = {key: shape for key, shape in there.items() if key.partition("/")[0].rpartition(".")[2] == WEIGHTS}
    if found != wanted:
        different = sorted(found.keys() ^ wanted.keys()) or [key for key in wanted if found[key] != wanted[key]]
        raise WrongState(
            f"{prefix} is of another model than models/base/, trainer.lora and recipe.algorithm say: {different[:3]} differ"
        )
