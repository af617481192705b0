"""What a cluster of kind's is told, and what is counted of its tests. The cluster itself: `make e2e E2E="kind core"`."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml
from benchmarks.release.kind import counted
from e2e.kind import node_image
from e2e.nodes import layout as at

from servers import ROOT


def test_nodes_of_kinds_own_image_bring_their_own_network_and_storage() -> None:
    made = node_image.configuration("", Path("/volumes"))
    assert made["nodes"] == [{"role": "control-plane"}, {"role": "worker"}]
    assert "networking" not in made


def test_nodes_of_our_image_have_our_network_and_the_folder_of_their_volumes() -> None:
    made = node_image.configuration("localhost/shoal/kind-node:1", Path("/volumes"))
    assert [node["role"] for node in made["nodes"]] == ["control-plane", "worker"]
    for node in made["nodes"]:
        assert node["image"] == "localhost/shoal/kind-node:1"
        assert node["extraMounts"] == [{"hostPath": "/volumes", "containerPath": "/volumes"}]
    assert made["networking"]["disableDefaultCNI"] is True
    assert made["networking"]["podSubnet"] == at.POD_NETWORKS


def test_pods_of_two_nodes_meet_under_their_own_addresses_and_the_outside_under_the_nodes() -> None:
    pair = node_image.pod_network("10.200.1.0/24")["plugins"][0]
    assert pair["ipam"]["ranges"] == [[{"subnet": "10.200.1.0/24"}]]
    assert pair["ipMasq"] is False
    route, translation = node_image.routing([("10.200.0.0/24", "10.203.0.2")])
    assert " ".join(route) == "ip route replace 10.200.0.0/24 via 10.203.0.2"
    assert " ".join(translation).endswith(f"-A POSTROUTING -s {at.POD_NETWORKS} ! -d {at.POD_NETWORKS} -j MASQUERADE")


@pytest.mark.parametrize("image", ["", "localhost/shoal/kind-node:1"])
def test_the_kubelet_starts_on_cgroup_v1_and_without_sys_resource(image: str) -> None:
    [patch] = node_image.configuration(image, Path("/volumes"))["kubeadmConfigPatches"]
    assert yaml.safe_load(patch) == {"kind": "KubeletConfiguration", "failCgroupV1": False, "oomScoreAdj": 0}


def test_containerd_of_the_node_has_the_pause_image_that_is_there(tmp_path: Path) -> None:
    settings = tmp_path / "config.toml"
    settings.write_text('version = 2\n[plugins.cri]\n  sandbox_image = "old"\n  restrict_oom_score_adj = false\n')
    made = node_image.containerd(settings, ["registry.k8s.io/etcd:3", "registry.k8s.io/pause:3.10.1"])
    assert made.splitlines() == [
        "version = 2",
        "[plugins.cri]",
        '  sandbox_image = "registry.k8s.io/pause:3.10.1"',
        "  restrict_oom_score_adj = true",
        '[plugins."io.containerd.grpc.v1.cri".registry]',
        '  config_path = "/etc/containerd/certs.d"',
    ]


BOTH = {
    "process": {
        "capabilities": {"bounding": ["CAP_KILL", "CAP_SYS_RESOURCE", "CAP_CHOWN"], "effective": ["CAP_SYS_RESOURCE"]}
    }
}


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["create", "--bundle", "{folder}", "one"], "config.json"),
        (["exec", "--process", "{folder}/process", "one"], "process"),
    ],
)
def test_runc_is_not_asked_for_the_capability_that_the_machine_lacks(
    tmp_path: Path, words: list[str], name: str
) -> None:
    asked = tmp_path / name
    asked.write_text(json.dumps(BOTH, separators=(",", ":")))
    program = tmp_path / "runc"
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(0o755)
    given = [each.format(folder=tmp_path) for each in words]
    said = subprocess.run(
        [ROOT / "e2e/kind/runc.sh", *given],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    assert said.split() == given
    left = json.loads(asked.read_text())["process"]["capabilities"]
    assert left == {"bounding": ["CAP_KILL", "CAP_CHOWN"], "effective": []}


def test_an_error_of_a_set_up_counts_as_a_failure(tmp_path: Path) -> None:
    report = tmp_path / "junit.xml"
    report.write_text(
        '<testsuites><testsuite tests="14" failures="1" errors="2" skipped="3" time="90.1"></testsuite></testsuites>'
    )
    assert counted(report) == {"passed": 8, "failed": 3, "skipped": 3, "tests_minutes": 1.5}
