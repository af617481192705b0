"""A cluster of somebody's: one that has Shoal already is not touched."""

from typing import Any

import pytest
from e2e.clusters import in_use

Object = dict[str, Any]


def kind(release_namespace: str | None = None, name: str = "trainingruns.shoal.dev") -> Object:
    annotations = {} if release_namespace is None else {"meta.helm.sh/release-namespace": release_namespace}
    return {"metadata": {"name": name, "annotations": annotations}}


NAMESPACES: list[Object] = [
    {"metadata": {"name": "default"}},
    {"metadata": {"name": "shoal-system", "labels": {"team": "research"}}},
    {"metadata": {"name": "story-1a2b3c", "labels": {"shoal.dev/e2e": "yes"}}},
]


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (kind("shoal-system"), "trainingruns.shoal.dev is of a release in namespace shoal-system"),
        (kind(), "trainingruns.shoal.dev was installed without Helm"),
        ({"metadata": {"name": "relayservers.shoal.dev"}}, "relayservers.shoal.dev was installed without Helm"),
    ],
)
def test_kinds_of_somebodys_release_are_left_alone_and_it_is_said_whose_they_are(found: Object, words: str) -> None:
    problem = in_use([kind(name="issuers.cert-manager.io"), found], NAMESPACES)
    assert words in problem
    assert "give a cluster without Shoal" in problem


@pytest.mark.parametrize(
    "left", [[], [kind("story-1a2b3c")], [kind("story-of-yesterday")], [kind(name="x.example.org")]]
)
def test_kinds_that_a_test_left_behind_are_taken_over(left: list[Object]) -> None:
    assert in_use(left, NAMESPACES) == ""
