"""A node image for kind where no registry has one: Debian's packages, the Kubernetes of tools/kubernetes, and kind's own files of its Go module.

The images of a control plane lie in its containerd already, under the names that kubeadm asks for: one layer, that root file system and the programs.
Pods have addresses of CNI's static plugins; NetworkPolicies and volumes are the agents' (`e2e.nodes.agent`), which run on this machine.
Costs two minutes on two cores, 5 GB of disk meanwhile and 1.5 GB of Docker's.
"""

import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx
import yaml

from e2e import ROOT
from e2e.kind import engine as docker
from e2e.kind import machine
from e2e.kind.engine import DockerEngine
from e2e.nodes import layout as at
from e2e.nodes.images import architecture
from e2e.nodes.layout import SYSTEM_PATH, Lacking, built_tool
from e2e.nodes.manifests import storage_class

Object = dict[str, Any]

PACKAGES = (
    "bash,ca-certificates,conntrack,containerd,containernetworking-plugins,curl,ethtool,iproute2,iptables,jq,kmod,libseccomp2,mount,nftables,pigz,"
    "procps,runc,socat,systemd,util-linux"
)
STEP_SECONDS = 900.0
UNWANTED = (
    "etc/systemd/system/*.wants/*",
    "lib/systemd/system/basic.target.wants/*",
    "lib/systemd/system/local-fs.target.wants/*",
    "lib/systemd/system/multi-user.target.wants/*",
    "lib/systemd/system/sockets.target.wants/*initctl*",
    "lib/systemd/system/sockets.target.wants/*udev*",
    "lib/systemd/system/sysinit.target.wants/systemd-tmpfiles-setup.service",
)
"""What Debian's systemd starts on a machine and a container has no use for."""
REGISTRIES = "/etc/containerd/certs.d"
PLUGINS = ("host-local", "loopback", "portmap", "ptp")


def published_answers(engine: DockerEngine) -> bool:
    """Whether Docker's own registry, which has kind's node images, can be reached, and this machine can run them."""
    if docker.lacks_capability():
        return False
    try:
        registry = engine.docker("info", "--format", "{{.IndexServerAddress}}").strip()
        return httpx.get(registry, timeout=10.0, follow_redirects=True).status_code < 500
    except (httpx.HTTPError, httpx.InvalidURL, RuntimeError):
        return False


def own(engine: DockerEngine) -> str:
    """Reference of the image that is made here, and is made now unless Docker has it. Raises `Lacking` with what is missing for it."""
    kubernetes, coredns, pause = (built_tool(name) for name in ("kubernetes", "coredns", "pause"))
    parts = [
        kubernetes.name,
        coredns.name,
        pause.name,
        (ROOT / "tools/kind/go.sum").read_text(),
        Path(__file__).read_text(),
    ]
    reference = f"localhost/shoal/kind-node:{hashlib.sha256(' '.join(parts).encode()).hexdigest()[:12]}"
    if engine.has("image", reference):
        return reference
    for program in ("mmdebstrap", "containerd", "ctr", "go"):
        if shutil.which(program, path=_path()) is None:
            raise Lacking(f"{program} is not here, and a node image needs it; `tools/kind.sh` installs it")
    files = Path(
        json.loads(_run(["go", "mod", "download", "-json", "sigs.k8s.io/kind"], cwd=ROOT / "tools/kind"))["Dir"]
    )
    with tempfile.TemporaryDirectory(dir=machine.HOME) as folder:
        scratch = Path(folder)
        base, root = scratch / "base.tar", scratch / "root"
        hook = 'rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/*'
        _run(
            ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={PACKAGES}", "--dpkgopt=path-exclude=/usr/share/man/*",
             "--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-exclude=/usr/share/locale/*", f"--customize-hook={hook}", "bookworm", base]
        )  # fmt: skip
        root.mkdir()
        _run(["tar", "-xf", base, "-C", root])
        _install(root, files / "images/base/files", kubernetes)
        images = _run(
            [kubernetes / "kubeadm", "config", "images", "list", f"--kubernetes-version={_version(kubernetes)}"]
        ).split()
        (root / "etc/containerd/config.toml").write_text(containerd(root / "etc/containerd/config.toml", images))
        _add_programs(base, {"kubernetes": kubernetes / "kubernetes", "coredns": coredns, "pause": pause})
        _import(_archive(base, images, scratch / "images.tar"), scratch)
        shutil.rmtree(root / "var/lib/containerd", ignore_errors=True)
        (scratch / "containerd").rename(root / "var/lib/containerd")
        _to_docker(engine, root, reference)
    return reference


def configuration(image: str, volumes: Path) -> Object:
    """kind's configuration of two nodes: of kind's own image where `image` is empty, otherwise of ours, with the folder of their volumes.

    The kubelet's settings hold for cgroup v1 and for machines without CAP_SYS_RESOURCE; elsewhere they change nothing.
    """
    node: Object = {}
    kubelet = {"kind": "KubeletConfiguration", "failCgroupV1": False, "oomScoreAdj": 0}
    made: Object = {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "kubeadmConfigPatches": [yaml.safe_dump(kubelet)],
    }
    if image:
        # The same folder in both: a volume is wherever its pod is.
        node = {"image": image, "extraMounts": [{"hostPath": str(volumes), "containerPath": str(volumes)}]}
        made["networking"] = {
            "disableDefaultCNI": True,
            "podSubnet": at.POD_NETWORKS,
            "serviceSubnet": at.SERVICE_NETWORK,
        }
    return made | {"nodes": [{"role": role} | node for role in ("control-plane", "worker")]}


def pod_network(subnet: str) -> Object:
    """The CNI configuration of a node whose pods have addresses of `subnet`: a pair of devices a pod, routed, so that every packet passes the
    firewall. Addresses are translated by the node (`routing`), not here: a pod sees those of another node's pods."""
    addresses = {
        "type": "host-local",
        "dataDir": "/run/addresses",
        "ranges": [[{"subnet": subnet}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    pair = {"type": "ptp", "ipMasq": False, "ipam": addresses}
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "0.4.0", "name": at.NETWORK_NAME, "plugins": [pair, ports]}


def routing(others: Iterable[tuple[str, str]]) -> list[list[str]]:
    """Commands that let a node's pods reach those of the others (subnet and address of each node), and everything else under the node's address."""
    routes = [["ip", "route", "replace", subnet, "via", address] for subnet, address in others]
    outside = ["-s", at.POD_NETWORKS, "!", "-d", at.POD_NETWORKS, "-j", "MASQUERADE"]
    return [*routes, ["iptables", "-w", "-t", "nat", "-A", "POSTROUTING", *outside]]


def _install(root: Path, files: Path, kubernetes: Path) -> None:
    """Put kind's files and our programs into the root file system, and let systemd start two services and nothing besides."""
    for source in (each for each in sorted(files.rglob("*")) if each.is_file()):
        to = root / source.relative_to(files)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, to)
        to.chmod(0o755 if to.parent.name == "bin" else 0o644)  # Go's modules keep no modes
    for pattern in UNWANTED:
        for found in root.glob(pattern):
            found.unlink()
    with (root / "etc/systemd/journald.conf").open("a") as journal:
        journal.write("ReadKMsg=no\n")
    for link, target in (("sbin/init", "/lib/systemd/systemd"), ("usr/local/bin/containerd", "/usr/bin/containerd")):
        (root / link).unlink(missing_ok=True)
        (root / link).symlink_to(target)
    shutil.copyfile(kubernetes / "kubernetes", root / "usr/bin/kubernetes")
    (root / "usr/bin/kubernetes").chmod(0o755)
    for name in ("kubelet", "kubeadm", "kubectl"):
        (root / "usr/bin" / name).symlink_to("kubernetes")
    for folder in ("kind/manifests", "etc/kubernetes/manifests", "opt/cni/bin", "etc/cni/net.d"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for name in PLUGINS:
        shutil.copy(root / "usr/lib/cni" / name, root / "opt/cni/bin")
    (root / "kind/version").write_text(_version(kubernetes))
    (root / "kind/manifests/default-storage.yaml").write_text(yaml.safe_dump(storage_class()))
    container = json.loads(_run(["ctr", "oci", "spec"]))
    container["process"].pop("rlimits", None)
    container["hooks"] = {"createContainer": [{"path": "/kind/bin/mount-product-files.sh"}]}
    (root / "etc/containerd/cri-base.json").write_text(json.dumps(container))
    _run(["chroot", root, "systemctl", "enable", "kubelet.service", "containerd.service", "undo-mount-hacks.service"])
    _run(["chroot", root, "systemctl", "mask", "systemd-binfmt.service"])


def containerd(path: Path, images: Iterable[str]) -> str:
    """kind's settings of containerd with the pause image that is there, without scores that need CAP_SYS_RESOURCE, and with a folder of registries,
    as kind's own images have it."""
    [pause] = [each for each in images if "/pause:" in each]
    lines = []
    for line in path.read_text().splitlines():
        name = line.partition("=")[0].strip()
        value = {"sandbox_image": f'"{pause}"', "restrict_oom_score_adj": "true"}.get(name)
        lines.append(line if value is None else f"  {name} = {value}")
    lines += ['[plugins."io.containerd.grpc.v1.cri".registry]', f'  config_path = "{REGISTRIES}"']
    return "\n".join([*lines, ""])


def _add_programs(layer: Path, programs: dict[str, Path]) -> None:
    with tarfile.open(layer, "a") as tar:
        for name, path in programs.items():
            member = tarfile.TarInfo(f"./usr/local/bin/{name}")
            member.size, member.mode = path.stat().st_size, 0o755
            with path.open("rb") as content:
                tar.addfile(member, content)
        for name in ("etcd", "kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler"):
            member = tarfile.TarInfo(f"./usr/local/bin/{name}")
            member.type, member.linkname = tarfile.SYMTYPE, "kubernetes"
            tar.addfile(member)


def _archive(layer: Path, references: Iterable[str], to: Path) -> Path:
    """An archive with an image of that one layer under each reference."""
    digest = hashlib.sha256()
    with layer.open("rb") as content:
        while block := content.read(1 << 20):
            digest.update(block)
    files, listing = {}, []
    for reference in references:
        name = reference.rpartition("/")[2].partition(":")[0]
        starts = {"Entrypoint": [f"/usr/local/bin/{name}"]} if name in ("coredns", "pause") else {}
        described = {
            "architecture": architecture(),
            "os": "linux",
            "config": {"Env": [f"PATH={SYSTEM_PATH}"], "Labels": {"name": name}} | starts,
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest.hexdigest()}"]},
        }
        files[f"{name}.json"] = json.dumps(described).encode()
        listing.append({"Config": f"{name}.json", "RepoTags": [reference], "Layers": ["layer.tar"]})
    files["manifest.json"] = json.dumps(listing).encode()
    with tarfile.open(to, "w") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text))
        tar.add(layer, "layer.tar")
    return to


def _import(archive: Path, scratch: Path) -> None:
    """Let a containerd of its own unpack the archive into `scratch`/containerd."""
    socket, settings = scratch / "containerd.sock", scratch / "containerd.toml"
    settings.write_text(
        f'version = 2\nroot = "{scratch / "containerd"}"\nstate = "{scratch / "state"}"\n'
        f'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n[grpc]\n  address = "{socket}"\n'
    )
    ctr: list[str | Path] = ["ctr", "-a", socket, "-n", "k8s.io"]
    with (scratch / "containerd.log").open("wb") as log:
        process = subprocess.Popen(["containerd", "-c", settings], env={"PATH": _path()}, stdout=log, stderr=log)
    try:
        end = time.monotonic() + 60.0
        while subprocess.run(
            [*ctr, "version"], env={"PATH": _path()}, capture_output=True, check=False, timeout=30
        ).returncode:
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(
                    f"waited for containerd to answer: {(scratch / 'containerd.log').read_text()[-1000:]}"
                )
            time.sleep(0.2)
        _run([*ctr, "images", "import", "--snapshotter=overlayfs", archive])
    finally:
        process.terminate()
        process.wait(30)
    archive.unlink()


def _to_docker(engine: DockerEngine, root: Path, reference: str) -> None:
    changes = ["--change=ENV container=docker", '--change=ENTRYPOINT [ "/usr/local/bin/entrypoint", "/sbin/init" ]']
    with subprocess.Popen(["tar", "-C", root, "-c", "."], stdout=subprocess.PIPE) as packed:
        done = subprocess.run(
            ["docker", "import", *changes, "-", reference],
            env=engine.environment,
            stdin=packed.stdout,
            capture_output=True,
            text=True,
            check=False,
            timeout=STEP_SECONDS,
        )
    if done.returncode != 0 or packed.returncode != 0:
        raise RuntimeError(f"docker import of the node image: {done.stderr.strip()}")


def _version(kubernetes: Path) -> str:
    return str(json.loads(_run([kubernetes / "kubeadm", "version", "-o", "json"]))["clientVersion"]["gitVersion"])


def _run(command: list[str | Path], cwd: Path | None = None) -> str:
    environment = {"PATH": _path()} | {name: os.environ[name] for name in os.environ if name.startswith(("GO", "HOME"))}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=STEP_SECONDS
    )
    if done.returncode != 0:
        words = " ".join(str(each) for each in command)
        raise RuntimeError(f"{words[:200]} ended with {done.returncode}: {done.stderr.strip()[-1000:]}")
    return done.stdout


def _path() -> str:
    return f"{SYSTEM_PATH}:/usr/local/go/bin"
