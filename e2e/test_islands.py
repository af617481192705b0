"""Two and four islands of one run on real pods: they meet, each pod is killed in turn, the others go on, and the run ends with its result."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kube_client import Kube

from e2e import clusters
from e2e.conftest import TOUCHED, open_space
from e2e.islands import ROLES, Rounds, manifest, put_data
from e2e.release import Release
from e2e.story import PREPARE_SECONDS, START_SECONDS, Story, is_ready

pytestmark = pytest.mark.timeout(2400)


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


@pytest.mark.parametrize(("count", "steps"), [(2, 60), (4, 100)])
def test_islands_meet_survive_the_death_of_each_and_end_with_one_result(islands: Story, count: int, steps: int) -> None:
    islands.release.install("--set", "minio.enabled=true", "--set", "minio.persistence.size=2Gi")
    put_data(islands)
    islands.space.apply(manifest(islands, steps, {"count": count}))
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
    states = rounds.states()
    assert len(states) > count, "few rounds were seen from two sides"
    assert all(len(each) == 1 for each in states), "islands came to different states in one round"
    assert "models" in islands.stored()
