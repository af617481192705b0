"""A pod: containers that share an address and a folder, and live and die together.

Made by `controllers` from a pod template; `tick` is called a few times a second. Sidecars are `initContainers` with `restartPolicy: Always`, as in
Kubernetes: they run beside the others and do not keep a Job from being complete.
"""

import os
import sys
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal_operator.local.addresses import pod_link
from shoal_operator.local.containers import ContainerView, RunningContainer
from shoal_operator.local.expand import Lookup, NotThere, UnsupportedField, environment
from shoal_operator.local.processes import ProcessTable
from shoal_operator.local.volumes import prepare_home

DEFAULT_GRACE_SECONDS = 30.0

POD_FIELDS = frozenset(
    {
        "containers", "initContainers", "volumes", "restartPolicy", "terminationGracePeriodSeconds", "hostname", "subdomain",
        # Read on a cluster; there is nothing to do for them here.
        "securityContext", "automountServiceAccountToken", "serviceAccountName", "enableServiceLinks", "nodeSelector",
        "tolerations", "affinity", "priorityClassName", "runtimeClassName", "imagePullSecrets", "topologySpreadConstraints",
        "schedulerName", "resourceClaims", "hostNetwork", "hostAliases", "dnsConfig", "dnsPolicy",
    }
)  # fmt: skip
CONTAINER_FIELDS = frozenset(
    {
        "name", "command", "args", "env", "envFrom", "volumeMounts", "startupProbe", "readinessProbe", "livenessProbe", "restartPolicy",
        "image", "imagePullPolicy", "ports", "resources", "securityContext", "terminationMessagePolicy",
    }
)  # fmt: skip


@dataclass(frozen=True)
class PodView:
    """A pod's visible state. `phase` is Pending, Running, Succeeded, Failed or Stopping."""

    name: str
    component: str
    address: str
    phase: str
    ready: bool
    restarts: int
    message: str
    containers: tuple[ContainerView, ...]


@dataclass(frozen=True)
class PodPlace:
    """Where pods of a run live on this machine."""

    run_folder: Path
    table: ProcessTable
    executor: Executor
    lookup: Lookup

    @property
    def volumes(self) -> Path:
        return self.run_folder / "volumes"

    def home(self, pod: str) -> Path:
        return self.run_folder / "pods" / pod

    def log(self, pod: str, container: str) -> Path:
        return self.run_folder / "logs" / pod / f"{container}.log"


def check_pod(spec: Mapping[str, Any], where: str) -> None:
    """Raises `UnsupportedField` for a pod or container field that is not known here, by name."""
    for name in spec:
        if name not in POD_FIELDS:
            raise UnsupportedField(
                f"{where}: pod field {name} is not available on one machine; known are {sorted(POD_FIELDS)}"
            )
    for container in [*spec["containers"], *spec.get("initContainers", [])]:
        for name in container:
            if name not in CONTAINER_FIELDS:
                raise UnsupportedField(
                    f"{where}, container {container['name']}: field {name} is not available on one machine"
                )
    for container in spec.get("initContainers", []):
        if container.get("restartPolicy") != "Always":
            raise UnsupportedField(
                f"{where}, init container {container['name']}: only sidecars (restartPolicy: Always) are available here"
            )


class Pod:
    """One pod, from its template. It waits for the secrets and claims that it mounts, then runs until `stop`."""

    def __init__(
        self,
        *,
        name: str,
        owner: str,
        component: str,
        template: Mapping[str, Any],
        template_hash: str,
        address: str,
        claims: Mapping[str, str],
        place: PodPlace,
        final_exits: frozenset[int] | None = None,
    ) -> None:
        self.name = name
        self.owner = owner
        self.component = component
        self.address = address
        self.template_hash = template_hash
        self.labels: dict[str, str] = dict(template.get("metadata", {}).get("labels", {}))
        self._spec = template["spec"]
        self._claims = claims
        self._final_exits = final_exits
        self._place = place
        self._where = f"pod {name}"
        check_pod(self._spec, self._where)
        self._containers: list[RunningContainer] = []
        self._sidecars: list[RunningContainer] = []
        self._message = ""
        self._stop_deadline: float | None = None

    def tick(self, now: float) -> None:
        if self._stop_deadline is not None:
            self._tick_stopping(now)
            return
        if not self._containers:
            try:
                self._make()
            except NotThere as waiting:
                self._message = str(waiting)
                return
        for container in self._all:
            container.tick(now)
        if all(container.finished for container in self._containers) and self._sidecars and self._stop_deadline is None:
            for sidecar in self._sidecars:
                sidecar.terminate()
                sidecar.gone()

    @property
    def phase(self) -> str:
        if self._stop_deadline is not None:
            return "Stopping"
        if not self._containers:
            return "Pending"
        if all(container.finished for container in self._containers):
            return "Succeeded" if all(container.last_exit == 0 for container in self._containers) else "Failed"
        return "Running"

    @property
    def ready(self) -> bool:
        return self.phase == "Running" and all(container.ready for container in self._all)

    @property
    def restarts(self) -> int:
        return sum(container.restarts for container in self._all)

    def stop(self, now: float) -> None:
        """Ask every container to end; `gone` tells when they have. What does not end within the grace period is killed."""
        if self._stop_deadline is None:
            grace = float(self._spec.get("terminationGracePeriodSeconds", DEFAULT_GRACE_SECONDS))
            self._stop_deadline = now + grace
            for container in self._all:
                container.terminate()

    def kill(self) -> None:
        """End everything at once."""
        for container in self._all:
            container.kill()

    def gone(self) -> bool:
        """Whether none of its processes runs; then its link is removed."""
        if not all(container.gone() for container in self._all):
            return False
        pod_link(self.address).unlink(missing_ok=True)
        return True

    def pid(self, container: str) -> int | None:
        """Process id of a container's process, or None while it does not run; raises KeyError for a name it does not have."""
        for candidate in self._all:
            if candidate.name == container:
                return candidate.pid
        if not self._all:
            return None
        raise KeyError(f"pod {self.name} has no container {container!r}; it has {[each.name for each in self._all]}")

    def view(self) -> PodView:
        views = tuple(container.view() for container in self._all)
        message = self._message or next((view.message for view in views if view.message), "")
        return PodView(self.name, self.component, self.address, self.phase, self.ready, self.restarts, message, views)

    @property
    def _all(self) -> list[RunningContainer]:
        return [*self._sidecars, *self._containers]

    def _tick_stopping(self, now: float) -> None:
        assert self._stop_deadline is not None
        if now >= self._stop_deadline and not self.gone():
            self.kill()

    def _make(self) -> None:
        home = self._place.home(self.name)
        with_sidecars = {**self._spec, "containers": [*self._spec["containers"], *self._spec.get("initContainers", [])]}
        prepare_home(
            home,
            with_sidecars,
            claims=self._claims,
            volumes_folder=self._place.volumes,
            lookup=self._place.lookup,
            where=self._where,
        )
        link = pod_link(self.address)
        link.unlink(missing_ok=True)  # of a run that was killed
        link.symlink_to(home.resolve(), target_is_directory=True)
        self._message = ""
        policy = self._spec.get("restartPolicy", "Always") if self._final_exits is None else "OnFailure"
        self._sidecars = [self._container(spec, home, "Always") for spec in self._spec.get("initContainers", [])]
        self._containers = [self._container(spec, home, policy) for spec in self._spec["containers"]]

    def _container(self, spec: Mapping[str, Any], home: Path, policy: str) -> RunningContainer:
        # The folder of our interpreter comes first: programs of the same installation are found before others.
        path = os.pathsep.join(
            [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"]
        )
        variables = environment(
            spec,
            home=str(pod_link(self.address)),
            address=self.address,
            pod=self.name,
            path=path,
            caller=os.environ,
            lookup=self._place.lookup,
            where=f"{self._where}, container {spec['name']}",
        )
        return RunningContainer(
            spec,
            pod=self.name,
            address=self.address,
            home=home,
            environment=variables,
            restart_policy=policy,
            final_exits=self._final_exits or frozenset(),
            log=self._place.log(self.name, spec["name"]),
            table=self._place.table,
            executor=self._place.executor,
        )
