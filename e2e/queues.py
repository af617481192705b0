"""Kueue on the cluster of the end-to-end tests, and what an administrator allows an operator of one namespace so that its runs may queue.

Kueue is the cluster's own where it has one, otherwise what `SHOAL_TEST_KUEUE` names, otherwise the stand-in of `kueue_api`.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from foreign_kinds import is_installed
from kube_client import Kube
from kueue_api import GROUP, KueueApi

QUEUE = "research"


@pytest.fixture(scope="module")
def kueue(kube: Kube) -> Iterator[KueueApi]:
    """Kueue, for queues as one makes them for it."""
    api = KueueApi(kube)
    if api.program is not None or not is_installed(kube, "Workload"):
        api.start()
    yield api
    api.close()


@contextmanager
def queue_rights(kube: Kube, namespace: str) -> Iterator[None]:
    """The operator there may read flavours meanwhile, which no Role can grant; then the namespace's queue goes from the cluster."""
    api, name = "rbac.authorization.k8s.io", f"{namespace}-flavors"
    meta = {"apiVersion": f"{api}/v1", "metadata": {"name": name}}
    rule = {"apiGroups": [GROUP], "resources": ["resourceflavors"], "verbs": ["get"]}
    subject = {"kind": "ServiceAccount", "name": "shoal-operator", "namespace": namespace}
    role = {"apiGroup": api, "kind": "ClusterRole", "name": name}
    kube.apply({"kind": "ClusterRole", "rules": [rule], **meta}, force=True)
    kube.apply({"kind": "ClusterRoleBinding", "roleRef": role, "subjects": [subject], **meta}, force=True)
    try:
        yield
    finally:
        made = [("ClusterRole", name), ("ClusterRoleBinding", name)]
        if is_installed(kube, "Workload"):
            made += [(kind, f"{namespace}-{QUEUE}") for kind in ("ClusterQueue", "ResourceFlavor")]
        for kind, gone in made:
            kube.delete(kind, gone)
