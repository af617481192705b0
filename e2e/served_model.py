"""`examples/serving/deployment.yaml` on a cluster: the example with this test's store and images, sized for a CPU, and who moves its tag.

`ServedModel.promote` and `roll_back` are `shoal serving` in a pod of the administrator's; `version` is what vLLM itself says that it serves.
"""

import re
from dataclasses import dataclass

import yaml

from e2e import ROOT
from e2e.identity_store import BUCKET, ROOT_KEYS, endpoint
from e2e.space import CONTAINER_SECURITY, SECURITY, Object, Space
from vllm_on_cpu import ARGUMENTS, VARIABLES

EXAMPLE = ROOT / "examples" / "serving" / "deployment.yaml"
SECRET, CURATOR, SERVING = "serving-store", "curator", "arithmetic-serving"
KEYS = "/secrets/store"
NO_KEY = "0" * 64
"""What the example has in the place of the run's public key."""
SMALL = {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"memory": "3Gi"}}


def secret() -> Object:
    """Keys of the store for those who are no part of the run."""
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET}, "stringData": ROOT_KEYS}


def documents(space: Space, run_key: str, place: str) -> list[Object]:
    """The example's Deployment, of one replica, and its Service. `place`: the run's store, as `shoal serving` is told of it."""
    deployment, service = yaml.safe_load_all(EXAMPLE.read_text())
    deployment["spec"]["replicas"] = 1
    pod = deployment["spec"]["template"]["spec"]
    (follow,), (vllm,) = pod["initContainers"], pod["containers"]
    here = {"s3://shoal/shoal/arithmetic": place, "https://store.example": endpoint(space), NO_KEY: run_key}
    here |= {"--follow=30": "--follow=1", "--spread=1200": "--spread=0"}
    for there, ours in here.items():
        assert any(there in word for word in follow["command"]), there
        follow["command"] = [word.replace(there, ours) for word in follow["command"]]
    vllm["command"][2] += f" {ARGUMENTS}"
    vllm["env"] += [{"name": name, "value": value} for name, value in VARIABLES.items()]
    for container in (follow, vllm):
        container |= {"image": space.image("worker"), "resources": SMALL}
    return [deployment, service]


@dataclass(frozen=True)
class ServedModel:
    """What serves the run of that name, and the pod in which its tag is moved."""

    space: Space
    run: str
    run_key: str

    @property
    def place(self) -> str:
        return f"s3://{BUCKET}/shoal/{self.run}"

    def start(self) -> None:
        """The administrator's pod. It is no part of the run."""
        container = {
            "name": CURATOR,
            "image": self.space.image("worker"),
            "imagePullPolicy": "IfNotPresent",
            "command": ["sleep", "infinity"],
            "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "2Gi"}},
            "securityContext": CONTAINER_SECURITY,
            "volumeMounts": [{"name": "keys", "mountPath": KEYS}, {"name": "tmp", "mountPath": "/shoal/tmp"}],
        }
        spec = {
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
            "securityContext": SECURITY,
            "containers": [container],
            "volumes": [{"name": "keys", "secret": {"secretName": SECRET}}, {"name": "tmp", "emptyDir": {}}],
        }
        self.space.apply(secret(), {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": CURATOR}, "spec": spec})
        self.space.wait_ready(CURATOR)

    def deploy(self) -> None:
        """`kubectl apply` of the example."""
        self.space.apply(*documents(self.space, self.run_key, self.place))

    def promote(self, version: int) -> str:
        return self._serving("promote", "--version", str(version), "--reason", "a test")

    def roll_back(self) -> str:
        return self._serving("rollback", "--reason", "a test")

    def _serving(self, verb: str, *options: str) -> str:
        where = ("--endpoint", endpoint(self.space), "--credentials", KEYS, "--run-key", self.run_key, "--by", "ann")
        return self.space.run(CURATOR, "shoal", "serving", verb, self.place, *where, *options)

    def version(self) -> int | None:
        """The version that vLLM says it serves, asked through the Service; None while nobody answers."""
        try:
            status, said = self.space.fetch(CURATOR, f"http://{SERVING}.{self.space.name}.svc/v1/models", "")
        except RuntimeError:
            return None  # refused: it starts
        if status != 200:
            return None
        (model,) = said["data"]
        found = re.fullmatch(r"/models/v(\d{6})", model["root"])
        assert found, model
        return int(found[1])

    def starts(self) -> dict[str, int]:
        """The uid of each pod that serves, and how often its vLLM was started again."""
        found = self.space.kube.list("Pod", self.space.name, labels=f"app.kubernetes.io/name={SERVING}")
        return {pod["metadata"]["uid"]: pod["status"]["containerStatuses"][0]["restartCount"] for pod in found}
