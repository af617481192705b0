"""A whole run on this machine under test: real vLLM workers, trainer, relays, validator, Redis; ticked by a thread, broken and observed by tests.

`LocalSystem` wraps the operator's own `LocalRun`. Tests kill processes by (component, container), edit the spec as `kubectl apply` would, and read
the object store and the ledger, which are the truth.
"""

import base64
import copy
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO, TypeVar, cast

import pytest
import yaml

from forked_python import imports_of, start_python
from ledger_samples import flat
from shoal.contracts import keys
from shoal.contracts.protocol import RunProgress
from shoal.contracts.roster import Role
from shoal.contracts.run import RunConfig
from shoal.contracts.signed import Signed
from shoal.contracts.steps import StepBatch, StepMetrics
from shoal.crypto.canonical import document_digest
from shoal.crypto.keys import PrivateKey
from shoal.ledger.entries import GENESIS, LedgerEntry
from shoal.ledger.succession import Succession
from shoal.ledger.writer import last_listed
from shoal.storage import Store
from shoal.storage.store import open_folder
from shoal_operator.api import TrainingRun
from shoal_operator.children.names import held_secret
from shoal_operator.local.pods import PodView
from shoal_operator.local.processes import ProcessTable
from shoal_operator.local.run import LocalRun
from warm_model import warm_model

Value = TypeVar("Value")

EXAMPLE = Path(__file__).parents[2] / "examples" / "arithmetic" / "trainingrun.yaml"

SMALL: dict[str, Any] = {
    "steps": 500,  # never reached: tests end before
    "recipe": {"promptsPerStep": 4, "groupSize": 4, "optimizerSteps": 1},
    "sampling": {"groupsPerSubmission": 2},
    "validator": {"validation": {"claimSeconds": 5}},
}
"""Small steps, so that a test waits seconds for the next one; a short claim, so that a dead validator's work is soon given to its successor."""

TWO_SOURCES: dict[str, Any] = {
    "environment": None,
    "count": None,
    "mixture": [
        {"name": "sums", "environment": "arithmetic", "count": 512, "lengthTargets": [20, 24]},
        {"name": "more-sums", "environment": "arithmetic", "count": 512},
    ],
}
"""The example's tasks as a mixture: one prompt of each source in a file of two."""

TICK_SECONDS = 0.1
STEP_SECONDS = 300.0
"""Deadline for a step under faults on two shared cores, and for a worker that starts again: its imports alone take 25 s of a core. A step takes some
seconds when nothing is wrong."""


class ForkedTable(ProcessTable):
    """Processes that are forked where their imports end: a worker's take 25 s of a slow core, and each part starts many times."""

    def _begin(
        self, command: Sequence[str], environment: Mapping[str, str], cwd: Path, output: BinaryIO
    ) -> subprocess.Popen[bytes]:
        imported = imports_of(command)
        if not imported:
            return super()._begin(command, environment, cwd, output)
        forked = start_python(
            command[1:], imported, env=environment, stdout=output.fileno(), cwd=cwd, start_new_session=True
        )
        return cast("subprocess.Popen[bytes]", forked)


class LocalSystem:
    """One running TrainingRun."""

    def __init__(
        self, manifest: Path, runs_dir: Path, secrets: tuple[str, ...] = (), store: Store | None = None
    ) -> None:
        """`store`: where the manifest puts the run's objects; None where that is a folder of the run."""
        self.local = LocalRun(manifest, runs_dir, secrets, ForkedTable)
        self._store = store
        self.run = self.local.name
        self.folder = self.local.run_dir
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._drive, daemon=True)

    def start(self) -> None:
        self.local.start()
        self._thread.start()

    def stop(self) -> None:
        """Stop in order, as Ctrl-C does."""
        self._stopping.set()
        self._thread.join()
        self.local.stop()

    # What is there.

    def pods(self, component: str) -> list[PodView]:
        """Pods of a component that are not finished, by name."""
        return [pod for pod in self.running_pods() if pod.component == component]

    def running_pods(self) -> list[PodView]:
        """All pods that are not finished."""
        with self._lock:
            return [pod for pod in self.local.pods() if pod.phase not in ("Succeeded", "Failed")]

    def pid(self, component: str, container: str, index: int = 0) -> int | None:
        pods = self.pods(component)
        if index >= len(pods):
            return None
        return next((each.pid for each in pods[index].containers if each.name == container), None)

    def restarts(self, component: str, container: str, index: int = 0) -> int:
        return next(each.restarts for each in self.pods(component)[index].containers if each.name == container)

    def progress(self) -> RunProgress | None:
        """`GET /v1/run`, or None while the orchestrator does not answer."""
        pods = self.pods("orchestrator")
        if not pods:
            return None
        return self.local.cluster.run_progress(f"http://{pods[0].address}:8080")

    @property
    def store(self) -> Store:
        """The run's store, as a reader. A few seconds of deadline: tests take it away on purpose."""
        return self._store or open_folder(self.store_folder, f"shoal/{self.run}", deadline_seconds=5)

    @property
    def store_folder(self) -> Path:
        return self.folder / "volumes" / f"{self.run}-store"

    def latest_version(self) -> int:
        """Newest announced version, -1 before the first; waits while the orchestrator is there and does not answer."""
        if not self.pods("orchestrator"):
            return -1  # the run is still being prepared, which has a longer deadline of its own
        progress: RunProgress = self.until("the orchestrator answers", self.progress)
        return -1 if progress.latest_version is None else progress.latest_version

    def worker_version(self, index: int = 0) -> int:
        """Newest version that a worker holds, -1 for none."""
        pods = self.pods("pool")
        folder = self.folder / "volumes" / f"weights-{pods[index].name}"
        found = [keys.parse_version(each.name) for each in folder.glob("v*") if each.is_dir()]
        return max([-1, *[number for number in found if number is not None]])

    def ledger(self) -> list[SimpleNamespace]:
        """Every entry, in order; signatures by the orchestrator and the chain are checked, along changes of its key."""
        config = self.config()
        succession = Succession(config.trust.roster, config.run_key)
        entries: list[SimpleNamespace] = []
        previous = GENESIS
        for number in range(last_listed(self.store.list(keys.LEDGER)) + 1):
            entry = succession.check(Signed[LedgerEntry].from_json(self.store.get(keys.ledger_entry(number))))
            assert entry.previous == previous, f"entry {number} does not follow from the entry before"
            assert entry.number == number
            previous = document_digest(entry)
            entries.append(flat(entry))
        return entries

    def config(self) -> RunConfig:
        """`config/run.json` as the operator has it now."""
        with self._lock:
            found = self.local.cluster.get("ConfigMap", f"{self.run}-config")
        assert found is not None
        return RunConfig.from_json(found["data"]["run.json"])

    def role_key(self, role: Role) -> PrivateKey:
        """The private key that a role holds now."""
        roster = self.config().trust.roster
        with self._lock:
            found = self.local.cluster.get("Secret", held_secret(self.run, roster, role))
        assert found is not None
        return PrivateKey.from_pem(base64.b64decode(found["data"]["role.pem"]))

    def sealed_steps(self) -> list[int]:
        return [entry.step for entry in self.ledger() if entry.kind == "batch-sealed" and entry.step is not None]

    def batch(self, step: int) -> StepBatch:
        return StepBatch.from_json(self.store.get(keys.step_batch(step)))

    def metrics(self) -> dict[int, StepMetrics]:
        """What the trainer wrote, by step."""
        found = [info.key for info in self.store.list(keys.STEPS) if info.key.endswith("/metrics.json")]
        read = [StepMetrics.from_json(self.store.get(key)) for key in found]
        return {each.step: each for each in read}

    # What is done to it.

    def kill(self, component: str, container: str, index: int = 0) -> int:
        """kill -9 of a container's process, once it runs; returns its pid."""
        pid = self.until(f"{container} runs", lambda: self.pid(component, container, index))
        os.kill(pid, signal.SIGKILL)
        return int(pid)

    def edit(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Change the spec of the run."""
        with self._lock:
            live = self.local.cluster.get("TrainingRun", self.run)
            assert live is not None
            change(live["spec"])
            self.local.apply(
                TrainingRun.model_validate(
                    {key: live[key] for key in ("apiVersion", "kind", "spec")} | {"metadata": {"name": self.run}}
                )
            )

    def add_pool(self, name: str, worker_command: list[str]) -> None:
        """One more pod like the pool's own, whose worker is another program. `remove_pool` takes it away."""
        with self._lock:
            pool = self.local.cluster.get("StatefulSet", f"{self.run}-pool")
            assert pool is not None
            template = copy.deepcopy(pool["spec"]["template"])
            template["metadata"]["labels"]["shoal.dev/set"] = name  # the pool's own status does not count it
            worker = next(each for each in template["spec"]["containers"] if each["name"] == "worker")
            worker["command"] = worker_command
            spec = copy.deepcopy(pool["spec"]) | {"replicas": 1, "template": template}
            kept = {key: pool[key] for key in ("apiVersion", "kind")}
            self.local.cluster.apply({**kept, "metadata": {"name": name, "labels": {}}, "spec": spec})

    def remove_pool(self, name: str) -> None:
        with self._lock:
            self.local.cluster.delete("StatefulSet", name)

    # Waits.

    def until(self, what: str, poll: Callable[[], Value | bool | None], seconds: float = STEP_SECONDS) -> Any:
        """The first value of `poll` that is neither None nor False; fails with `what` and the state of the run."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self._error is not None:
                raise RuntimeError("the local run broke") from self._error
            value = poll()
            if value is not None and value is not False:
                return value
            time.sleep(0.05)
        with self._lock:
            pods = [(pod.name, pod.phase, pod.ready, pod.restarts, pod.message) for pod in self.local.pods()]
        told = "\n".join([*map(str, pods), str(self.progress()), f"not within {seconds:.0f} s: {what}"])
        return pytest.fail(told)  # what was waited for comes last: where a log is cut in the middle, it is there

    def advance(self, versions: int = 2) -> int:
        """Wait until so many more versions are announced: the run goes on. Returns the newest."""
        goal = self.latest_version() + versions
        self.until(f"version {goal} is announced", lambda: self.latest_version() >= goal, STEP_SECONDS * versions)
        return goal

    def _drive(self) -> None:
        try:
            while not self._stopping.is_set():
                with self._lock:
                    self.local.tick()
                time.sleep(TICK_SECONDS)
        except BaseException as error:
            self._error = error
            raise


def brought_model() -> dict[str, Any]:
    """For `model` of the example's manifest: the model that it would make, brought as a folder."""
    return {"generated": None, "path": str(warm_model())}


def write_manifest(source: Path, target: Path, **changes: Any) -> Path:
    """The example's manifest with some fields of its spec replaced (merged, for maps; None takes one out) and the name `name` if given."""
    document = yaml.safe_load(source.read_text())
    document["metadata"]["name"] = changes.pop("name", document["metadata"]["name"])
    for field, value in changes.items():
        document["spec"][field] = _merged(document["spec"].get(field), value)
    target.write_text(yaml.safe_dump(document))
    return target


def _merged(before: Any, value: Any) -> Any:
    if not isinstance(before, dict) or not isinstance(value, dict):
        return value
    merged = before | {key: _merged(before.get(key), below) for key, below in value.items()}
    return {key: below for key, below in merged.items() if below is not None}


def copy_prepared(source: LocalSystem, target_folder: Path, run: str) -> None:
    """Give another run's folder store what prepare made for `source`, so that it need not be made again."""
    place = source.store_folder / "shoal" / source.run
    goal = target_folder / "volumes" / f"{run}-store" / "shoal" / run
    for name in ("models", "tasks"):
        shutil.copytree(place / name, goal / name)
    text = (place / keys.PREPARED).read_text().replace(f'"run":"{source.run}"', f'"run":"{run}"')
    (goal / keys.PREPARED).write_text(text)
