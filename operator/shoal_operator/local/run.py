"""`LocalRun`: one TrainingRun on this machine, from its manifest to its end. What `shoal up` drives.

`start`, then `tick` some four times a second until `finished`, then `stop`. The run has a folder `<runs_dir>/<name>/`: objects, volumes (the folder
store among them), logs and addresses in it outlive the processes, so the same manifest continues where it was.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog
import yaml

from shoal_operator.api import KINDS, TrainingRun
from shoal_operator.api.keys import KeysSpec
from shoal_operator.api.manifest import ManifestError, Mistake, broken_rules, load_manifest
from shoal_operator.engine.cluster import ClusterError, Object
from shoal_operator.engine.conditions import is_true
from shoal_operator.local.addresses import Subnet, lock_subnet
from shoal_operator.local.cluster import LocalCluster
from shoal_operator.local.guardian import Guardian
from shoal_operator.local.key_wishes import read_wishes, with_wishes
from shoal_operator.local.limits import beyond_one_machine, for_one_machine
from shoal_operator.local.objects import Objects
from shoal_operator.local.pods import PodView
from shoal_operator.local.processes import ProcessTable
from shoal_operator.reconcile import reconcile

RECONCILE_SECONDS = 0.5
"""Pause between two rounds of reconcile: it reads the orchestrator, which is cheap, and people watch the result."""
LEFT_OVER_GRACE_SECONDS = 5.0


class LocalRun:
    """One run. Every method is called from one thread."""

    def __init__(
        self,
        manifest_path: Path,
        runs_dir: Path,
        secrets: Sequence[str] = (),
        processes: Callable[[Path], ProcessTable] = ProcessTable,
    ) -> None:
        """Read and check the manifest (`ManifestError`) and the Secrets that it refers to (`read_secret`, ValueError). Starts nothing.

        `processes` makes the table of the run's processes from its folder.
        """
        found = load_manifest(manifest_path.read_text(), str(manifest_path))
        runs = [each for each in found if isinstance(each, TrainingRun)]
        if len(runs) != 1 or len(found) != 1:
            raise ValueError(
                f"{manifest_path}: one machine runs exactly one TrainingRun, which makes the other kinds itself"
            )
        self._wanted = self._spec = for_one_machine(runs[0])
        self._asked = KeysSpec()
        self.run_dir = runs_dir / self._wanted.metadata.name
        source = str(manifest_path)
        if mistakes := [*beyond_one_machine(runs[0], source), *changes(self._wanted, self.run_dir, source)]:
            raise ManifestError(mistakes)
        self._secrets = [read_secret(given) for given in secrets]
        self._processes = processes
        self.name = self._wanted.metadata.name
        self.steps = self._wanted.spec.steps or 0  # 0 in mode Generate, where the task table says it
        generated = self._wanted.spec.model.generated
        self.warm_start_pass_rate = generated.warm_start_pass_rate if generated is not None else None
        """Pass rate at which the warm start of a generated model ends; None: the run generates no model."""
        self._next_reconcile = 0.0
        self._problem = ""
        self._subnet: Subnet | None = None
        self._guardian: Guardian | None = None
        self._cluster: LocalCluster | None = None

    def start(self) -> None:
        """End what an earlier run left over, take a subnet, and apply the manifest."""
        clean_up(self.run_dir)
        self._subnet = lock_subnet()
        self._guardian = Guardian(self.run_dir / "processes", LEFT_OVER_GRACE_SECONDS)
        self._cluster = LocalCluster(self.run_dir, self._subnet, self._processes(self.run_dir / "processes"))
        self._forget_failed_jobs()
        self._forget_progress_time()
        for secret in self._secrets:
            self._cluster.apply(secret)
        self.apply(self._wanted)

    def apply(self, run: TrainingRun) -> None:
        """Change the run's spec, as `kubectl apply` would; keys that were asked for are part of it."""
        self._spec, self._asked = run, read_wishes(self.run_dir)
        run = with_wishes(run, self.run_dir)
        self.cluster.apply(run.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"status"}))

    @property
    def cluster(self) -> LocalCluster:
        """The cluster of a started run."""
        if self._cluster is None:
            raise RuntimeError(f"run {self.name} is not started")
        return self._cluster

    def tick(self) -> None:
        """Reconcile when due, supervise always."""
        if time.monotonic() >= self._next_reconcile:
            self._reconcile()
            self._next_reconcile = time.monotonic() + RECONCILE_SECONDS
        self.cluster.tick()

    def pods(self) -> Sequence[PodView]:
        return self.cluster.pods()

    def status(self) -> Mapping[str, Any]:
        """Status of the TrainingRun, as reconcile wrote it."""
        return dict((self._object() or {}).get("status", {}))

    def finished(self) -> str | None:
        """None while the run continues, else `complete` or `failed: why`."""
        live = self._object()
        if is_true(live, "Complete"):
            return "complete"
        if is_true(live, "Failed"):
            conditions = (live or {}).get("status", {}).get("conditions", [])
            return f"failed: {next(each['message'] for each in conditions if each['type'] == 'Failed')}"
        return None

    def stop(self) -> None:
        """Stop every part in order, give the subnet back. Safe to call at any point."""
        if self._cluster is not None:
            self._cluster.stop()
        self._release()

    def kill(self) -> None:
        """End every process at once."""
        if self._cluster is not None:
            self._cluster.kill()

    def _forget_failed_jobs(self) -> None:
        """Starting a failed run again retries it; on a cluster `kubectl delete job` does that."""
        for job in self.cluster.list("Job", {}):
            if is_true(job, "Failed"):
                self.cluster.objects.remove("Job", job["metadata"]["name"])

    def _forget_progress_time(self) -> None:
        """Nobody was to make progress while nothing ran: the deadline counts from now."""
        live = self._object()
        if live is not None and "lastProgressTime" in live.get("status", {}):
            status = {key: value for key, value in live["status"].items() if key != "lastProgressTime"}
            self.cluster.apply_status("TrainingRun", self.name, status)

    def _take_wishes(self) -> None:
        """Apply the spec again when other keys were asked for."""
        try:
            if read_wishes(self.run_dir) != self._asked:
                self.apply(self._spec)
        except ValueError as error:
            self._say(str(error))

    def _reconcile(self) -> None:
        self._take_wishes()
        for kind in KINDS:
            for live in self.cluster.list(kind, {}):
                try:
                    reconcile(self.cluster, kind, live["metadata"]["name"])
                except ClusterError as error:
                    self._say(f"{kind} {live['metadata']['name']}: {error}")

    def _say(self, problem: str) -> None:
        """Log a problem once, not at every round."""
        if problem != self._problem:
            structlog.get_logger().warning("reconcile failed and will be retried", problem=problem)
            self._problem = problem

    def _object(self) -> Object | None:
        return self.cluster.get("TrainingRun", self.name)

    def _release(self) -> None:
        if self._guardian is not None:
            self._guardian.release()
            self._guardian = None
        if self._subnet is not None:
            self._subnet.close()
            self._subnet = None


def changes(wanted: TrainingRun, run_dir: Path, source: str) -> list[Mistake]:
    """Compare a manifest with the run that is already in the folder: refuse the changes that an API server refuses."""
    live = Objects(run_dir / "objects.json").get("TrainingRun", wanted.metadata.name)
    if live is None:
        return []
    old = TrainingRun.model_validate({key: value for key, value in live.items() if key != "status"})
    return [
        Mistake(source, 0, path, f"{problem} (this one is in {run_dir})") for path, problem in broken_rules(wanted, old)
    ]


def clean_up(run_dir: Path) -> list[str]:
    """End processes that a killed `shoal up` left in `run_dir`; returns their names. Ends nothing that is not recorded as ours."""
    folder = run_dir / "processes"
    return ProcessTable(folder).stop_all(LEFT_OVER_GRACE_SECONDS) if folder.is_dir() else []


def read_secret(given: str) -> Object:
    """A Secret that a run refers to by name: the path of its manifest, or `NAME=VARIABLE,...`, whose keys are variables of our environment.

    ValueError says what is wrong, never what is in it.
    """
    name, equals, variables = given.partition("=")
    if equals and not Path(given).exists():
        return _from_environment(name, variables.split(","))
    try:
        found = yaml.safe_load(Path(given).read_text())
    except yaml.YAMLError:
        raise ValueError(f"{given}: is not YAML") from None
    if not isinstance(found, dict) or found.get("kind") != "Secret" or not found.get("metadata", {}).get("name"):
        raise ValueError(f"{given}: must hold one object of kind Secret with metadata.name")
    return found


def _from_environment(name: str, variables: Sequence[str]) -> Object:
    if missing := [each for each in variables if each not in os.environ]:
        raise ValueError(
            f"--secret {name}: {', '.join(each or 'a variable without a name' for each in missing)} is not in your environment;"
            " give the path of a Secret's manifest, or NAME=VARIABLE[,VARIABLE] with variables that are set"
        )
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name},
        "stringData": {each: os.environ[each] for each in variables},
    }
