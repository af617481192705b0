"""Two and four islands of one run on real pods: they meet, each pod is killed in turn, the others go on, and the run ends with its result.

The data set is put into the chart's MinIO by a pod of the test's own. What every island came to after a round is in its log, as a digest.
"""

import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kube_client import Kube

from e2e import clusters
from e2e.conftest import TOUCHED, open_space
from e2e.release import NAME, Release
from e2e.space import CONTAINER_SECURITY, SECURITY, Object
from e2e.story import PREPARE_SECONDS, START_SECONDS, STEP_SECONDS, Story, is_ready

pytestmark = pytest.mark.timeout(2400)

ROLES = ("operator", "protocol", "redis", "minio", "relay", "trainer")
INNER_STEPS = 20
DATA = "data/sums.jsonl"
"""Key below the store's prefix."""
PUT = """import io, pathlib, sys
from minio import Minio
read = lambda name: pathlib.Path('/shoal/secrets/store', name).read_text().strip()
text = sys.stdin.buffer.read()
client = Minio(endpoint=sys.argv[1], access_key=read('accessKey'), secret_key=read('secretKey'), secure=False)
client.put_object(bucket_name='rollouts', object_name=sys.argv[2], data=io.BytesIO(text), length=len(text))
print(len(text))
"""


@pytest.fixture
def islands(
    request: pytest.FixtureRequest,
    cluster: clusters.Cluster,
    kube: Kube,
    image: Callable[[str], str],
    need_images: Callable[..., None],
    tmp_path: Path,
) -> Iterator[Story]:
    """A namespace with a release and its object store, and nothing in it yet."""
    need_images(*ROLES)
    with open_space(request.config, cluster.kubeconfig, kube, image, "islands") as space:
        request.node.stash[TOUCHED] = [space.name]
        release = Release(space, tmp_path)
        yield Story(space, release, run="isles")
        if not request.config.getoption("--keep-cluster"):
            release.uninstall()


def teacher(story: Story) -> Object:
    """A pod that may reach the object store and holds its keys."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "teacher", "labels": {"shoal.dev/run": "teacher"}},
        "spec": {
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
            "securityContext": SECURITY,
            "containers": [
                {
                    "name": "teacher",
                    "image": story.space.image("protocol"),
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["sleep", "3600"],
                    "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
                    "securityContext": CONTAINER_SECURITY,
                    "volumeMounts": [{"name": "keys", "mountPath": "/shoal/secrets/store", "readOnly": True}],
                }
            ],
            "volumes": [{"name": "keys", "secret": {"secretName": "shoal-storage"}}],
        },
    }


def put_data(story: Story) -> None:
    """Sums to learn, as JSON lines in the run's bucket."""
    chance = random.Random(5)
    pairs = [(chance.randrange(10, 100), chance.randrange(10, 100)) for _ in range(1200)]
    rows = [{"problem_id": f"{a}+{b}", "prompt": f"{a}+{b}=", "completion": str(a + b)} for a, b in pairs]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    story.space.apply(teacher(story))
    story.space.wait_ready("teacher")
    put = ("exec", "-i", "teacher", "--", "python", "-c", PUT, f"{NAME}-minio.{story.space.name}.svc:9000")
    assert int(story.space.kubectl(*put, f"shoal/{DATA}", text=text)) == len(text)
    story.delete_pod("teacher")


def manifest(story: Story, count: int, steps: int) -> Object:
    """A run of mode SFT on so many islands; exchanges are seconds apart."""
    resources = {"requests": {"cpu": "100m", "memory": "512Mi"}}
    spec: Object = {
        "mode": "SFT",
        "model": {"generated": {"name": "arithmetic", "warmStartPassRate": 0.05}},
        "tasks": {"environment": "arithmetic", "count": 64},
        "steps": steps,
        "seed": 7,
        "images": {role: story.space.image(role) for role in ("protocol", "redis", "relay", "trainer")},
        "sft": {
            "dataset": {"object": DATA},
            "epochs": 200, "batchRows": 16, "learningRate": 1e-3, "warmupSteps": 8, "maxSequenceLength": 32, "packLength": 256,
            "maxUpdates": steps * INNER_STEPS,
        },
        "storage": {"s3": {"endpoint": story.endpoint, "bucket": "rollouts", "credentialsSecret": "shoal-storage"}},
        "trainer": {
            "resources": resources,
            "islands": {"count": count, "innerSteps": INNER_STEPS, "exchange": "float16", "waitSeconds": 30},
        },
    }  # fmt: skip
    return {"apiVersion": "shoal.dev/v1alpha1", "kind": "TrainingRun", "metadata": {"name": story.run}, "spec": spec}


class Rounds:
    """The states that islands came to, by round and pod, gathered from logs; what a killed pod said before stays known."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self.states: dict[int, dict[str, str]] = defaultdict(dict)
        self.members: dict[int, int] = {}

    def look(self) -> int:
        """Read the logs of all islands; the newest round, -1 before the first."""
        for pod in [*self._story.pods("trainer"), *self._story.pods("island")]:
            name = pod["metadata"]["name"]
            if not is_ready(pod):
                continue
            try:
                text = self._story.space.kubectl("logs", name, "-c", "trainer", "--tail=-1")
            except RuntimeError:
                continue  # the pod went away meanwhile
            for line in text.splitlines():
                if line.startswith("{") and (said := json.loads(line)).get("event") == "islands exchanged":
                    self.states[said["round"]][name] = said["state"]
                    self.members[said["round"]] = len(said["islands"])
        return max(self.states, default=-1)

    def wait(self, what: str, rounds: int, islands: int) -> None:
        """Until so many islands made one of the rounds after the next `rounds`."""
        goal = self.look() + rounds

        def reached() -> bool:
            self.look()
            return any(number >= goal and found >= islands for number, found in self.members.items())

        self._story.wait(what, reached, STEP_SECONDS * (rounds + 1))


@pytest.mark.parametrize(("count", "steps"), [(2, 60), (4, 100)])
def test_islands_meet_survive_the_death_of_each_and_end_with_one_result(islands: Story, count: int, steps: int) -> None:
    islands.release.install("--set", "minio.enabled=true", "--set", "minio.persistence.size=2Gi")
    put_data(islands)
    islands.space.apply(manifest(islands, count, steps))
    islands.wait("the base model", lambda: islands.holds("Prepared"), PREPARE_SECONDS)
    islands.wait("all islands", lambda: len([*filter(is_ready, islands.pods("island"))]) == count - 1, START_SECONDS)
    rounds = Rounds(islands)
    rounds.wait("a round of all islands", 1, count)
    for number in range(count):
        component, place = ("trainer", 0) if number == 0 else ("island", number - 1)
        pods = sorted(pod["metadata"]["name"] for pod in islands.pods(component))
        islands.space.kubectl("delete", "pod", pods[place], "--grace-period=0", "--force")
        if count > 2:
            rounds.wait(f"a round of the others while {pods[place]} is away", 1, count - 1)
        rounds.wait(f"a round of all islands after {pods[place]} came back", 1, count)
    islands.wait("the run to be Complete", lambda: rounds.look() >= 0 and islands.holds("Complete"), 900.0)
    told = [set(by_pod.values()) for by_pod in rounds.states.values() if len(by_pod) > 1]
    assert len(told) > count, "few rounds were seen from two sides"
    assert all(len(states) == 1 for states in told), "islands came to different states in one round"
    assert "models" in islands.stored()
