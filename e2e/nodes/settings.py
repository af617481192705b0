"""What each program of the node is told: command lines and configuration files. Pure but for `write_all`, which puts the files into the state.

Adapted to small machines: cgroup v1 and v2, no CAP_SYS_RESOURCE (a negative oom_score_adj would fail), no leader election, no fsync of etcd.
"""

import base64
import json
from pathlib import Path
from typing import Any

import yaml
from kube_pki import Authority, signing_key

from e2e.nodes import layout as at
from e2e.nodes.layout import Layout

Object = dict[str, Any]

COMPONENTS = {
    "controllers": "system:kube-controller-manager",
    "scheduler": "system:kube-scheduler",
    "proxy": "system:kube-proxy",
}
"""Programs with a kubeconfig of their own, and the user that each is."""
AGENT_USER = "shoal-node-agent"


class Credentials:
    """Certificates and kubeconfigs of one start of the node, made anew each time."""

    def __init__(self, layout: Layout) -> None:
        self.folder = layout.folder("pki")
        self.authority = Authority(self.folder)
        self.api = self.authority.server(
            "apiserver",
            [at.NODE_ADDRESS, at.API_SERVICE, "127.0.0.1"],
            ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", at.NODE_NAME],
        )
        self.kubelet = self.authority.server("kubelet", [at.NODE_ADDRESS], [at.NODE_NAME])
        self.to_kubelet = self.authority.client("apiserver-to-kubelet", "system:masters")
        self.signing, self.verifying = signing_key(self.folder)
        self._kubeconfig(layout.kubeconfig, "admin", "system:masters")
        self._kubeconfig(self.path("kubelet"), f"system:node:{at.NODE_NAME}", "system:nodes")
        self._kubeconfig(self.path("agent"), AGENT_USER)
        for name, user in COMPONENTS.items():
            self._kubeconfig(self.path(name), user)

    def path(self, name: str) -> Path:
        """The kubeconfig of a component."""
        return self.folder / f"{name}.kubeconfig"

    def _kubeconfig(self, path: Path, user: str, *groups: str) -> None:
        certificate, key = self.authority.client(user, *groups)
        path.unlink(missing_ok=True)
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(kubeconfig(self.authority.certificate, certificate, key)))


def kubeconfig(authority: Path, certificate: Path, key: Path) -> Object:
    """A kubeconfig that holds what it needs, so that the file alone can be handed on."""

    def data(path: Path) -> str:
        return base64.b64encode(path.read_bytes()).decode()

    user = {"client-certificate-data": data(certificate), "client-key-data": data(key)}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": at.NODE_NAME, "cluster": {"server": at.API_URL, "certificate-authority-data": data(authority)}}
        ],
        "users": [{"name": "user", "user": user}],
        "contexts": [{"name": at.NODE_NAME, "context": {"cluster": at.NODE_NAME, "user": "user"}}],
        "current-context": at.NODE_NAME,
    }


def containerd(layout: Layout, pause: str) -> str:
    """containerd's configuration (TOML). `pause` is the image of every pod's first process."""
    return f"""version = 2
root = "{layout.home / "containerd"}"
state = "{layout.run / "containerd"}"
disabled_plugins = [
  "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.internal.v1.opt",
]
[grpc]
  address = "{layout.socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{at.CNI_PLUGINS}"
    conf_dir = "{layout.home / "cni"}"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
"""


def pod_network(layout: Layout) -> Object:
    """The CNI configuration: one bridge, addresses by host-local."""
    addresses = {
        "type": "host-local",
        "dataDir": str(layout.run / "addresses"),
        "ranges": [[{"subnet": at.POD_NETWORK}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {
        "type": "bridge",
        "bridge": at.BRIDGE,
        "isGateway": True,
        "ipMasq": True,
        "hairpinMode": True,
        "ipam": addresses,
    }
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "0.4.0", "name": at.NETWORK_NAME, "plugins": [bridge, ports]}


def kubelet(layout: Layout, credentials: Credentials) -> Object:
    """KubeletConfiguration."""
    certificate, key = credentials.kubelet
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": at.NODE_ADDRESS,
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "containerRuntimeEndpoint": f"unix://{layout.socket}",
        "podLogsDir": str(layout.pods_logs),
        "failSwapOn": False,
        "clusterDNS": [at.DNS_SERVICE],
        "clusterDomain": "cluster.local",
        "resolvConf": "/etc/resolv.conf",
        "tlsCertFile": str(certificate),
        "tlsPrivateKeyFile": str(key),
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(credentials.authority.certificate)},
        },
        "authorization": {"mode": "Webhook"},
        "healthzBindAddress": "127.0.0.1",
        "volumePluginDir": str(layout.home / "kubelet" / "volumeplugins"),
        "evictionHard": {"memory.available": "200Mi", "nodefs.available": "1Gi", "imagefs.available": "1Gi"},
        # Images are imported, not pulled: one that is collected would not come back.
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "nodeStatusUpdateFrequency": "5s",
        "syncFrequency": "10s",
        "oomScoreAdj": 0,
        "maxPods": 110,
    }


def kube_proxy(credentials: Credentials) -> Object:
    """KubeProxyConfiguration."""
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": str(credentials.path("proxy"))},
        "mode": "iptables",
        "clusterCIDR": at.POD_NETWORK,
        "hostnameOverride": at.NODE_NAME,
        "bindAddress": at.NODE_ADDRESS,
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        "nodePortAddresses": [f"{at.NODE_ADDRESS}/32"],
        "oomScoreAdj": 0,
        "conntrack": {"maxPerCore": 0},
    }


def write_all(layout: Layout, credentials: Credentials, pause: str) -> None:
    """Write every configuration file of the node."""
    folder = layout.folder("settings")
    (folder / "containerd.toml").write_text(containerd(layout, pause))
    (folder / "kubelet.yaml").write_text(yaml.safe_dump(kubelet(layout, credentials)))
    (folder / "proxy.yaml").write_text(yaml.safe_dump(kube_proxy(credentials)))
    (layout.folder("cni") / "10-shoal.conflist").write_text(json.dumps(pod_network(layout)))


def commands(layout: Layout, credentials: Credentials, programs: Path) -> dict[str, list[str]]:
    """The command line of each program, by name, in the order of starting."""
    return {
        "etcd": _etcd(layout, programs),
        "kube-apiserver": _api_server(credentials, programs),
        "kube-controller-manager": _controllers(credentials, programs),
        "kube-scheduler": [
            str(programs / "kube-scheduler"),
            *_kubeconfigs(credentials, "scheduler"),
            "--bind-address=127.0.0.1",
            "--leader-elect=false",
        ],
        "containerd": [at.system_program("containerd"), "-c", str(layout.home / "settings" / "containerd.toml")],
        "kubelet": [
            str(programs / "kubelet"),
            f"--config={layout.home / 'settings' / 'kubelet.yaml'}",
            f"--kubeconfig={credentials.path('kubelet')}",
            f"--root-dir={layout.home / 'kubelet'}",
            f"--hostname-override={at.NODE_NAME}",
            f"--node-ip={at.NODE_ADDRESS}",
        ],
        "kube-proxy": [str(programs / "kube-proxy"), f"--config={layout.home / 'settings' / 'proxy.yaml'}"],
    }


def _etcd(layout: Layout, programs: Path) -> list[str]:
    client, peer = f"http://127.0.0.1:{at.ETCD_PORT}", f"http://127.0.0.1:{at.ETCD_PEER_PORT}"
    return [
        str(programs / "etcd"),
        "--name=node",
        f"--data-dir={layout.home / 'etcd'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=node={peer}",
        "--unsafe-no-fsync",  # each start begins with an empty one
        "--logger=zap",
        "--log-level=warn",
    ]


def _api_server(credentials: Credentials, programs: Path) -> list[str]:
    certificate, key = credentials.api
    client_certificate, client_key = credentials.to_kubelet
    authority = credentials.authority.certificate
    return [
        str(programs / "kube-apiserver"),
        f"--etcd-servers=http://127.0.0.1:{at.ETCD_PORT}",
        f"--bind-address={at.NODE_ADDRESS}",
        f"--advertise-address={at.NODE_ADDRESS}",
        f"--secure-port={at.API_PORT}",
        f"--client-ca-file={authority}",
        f"--tls-cert-file={certificate}",
        f"--tls-private-key-file={key}",
        f"--kubelet-client-certificate={client_certificate}",
        f"--kubelet-client-key={client_key}",
        f"--kubelet-certificate-authority={authority}",
        "--kubelet-preferred-address-types=InternalIP",
        f"--service-account-key-file={credentials.verifying}",
        f"--service-account-signing-key-file={credentials.signing}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-cluster-ip-range={at.SERVICE_NETWORK}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction,OwnerReferencesPermissionEnforcement",
        "--allow-privileged=true",
        "--profiling=false",
    ]


def _controllers(credentials: Credentials, programs: Path) -> list[str]:
    authority = credentials.authority.certificate
    return [
        str(programs / "kube-controller-manager"),
        *_kubeconfigs(credentials, "controllers"),
        "--bind-address=127.0.0.1",
        f"--root-ca-file={authority}",
        f"--service-account-private-key-file={credentials.signing}",
        "--use-service-account-credentials=true",
        f"--cluster-cidr={at.POD_NETWORK}",
        "--allocate-node-cidrs=false",
        f"--service-cluster-ip-range={at.SERVICE_NETWORK}",
        "--leader-elect=false",
        "--profiling=false",
        "--controllers=*,-certificatesigningrequest-signing-controller,-certificatesigningrequest-approving-controller",
    ]


def _kubeconfigs(credentials: Credentials, name: str) -> list[str]:
    path = credentials.path(name)
    return [f"--kubeconfig={path}", f"--authentication-kubeconfig={path}", f"--authorization-kubeconfig={path}"]
