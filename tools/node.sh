#!/usr/bin/env bash
# Makes this machine able to hold the node of the end-to-end tests (e2e/nodes): Debian's containerd, runc, CNI plugins and iptables, and the Go programs of
# tools/. Idempotent; starts no service, and leaves those of the packages as apt-get leaves them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$PATH:/usr/sbin:/sbin"

fail() {
    echo "node: $*" >&2
    exit 1
}

[[ $(uname -s) == Linux ]] || fail "a node needs Linux; elsewhere use kind (E2E_CLUSTER=kind) or --kubeconfig"
[[ $(id -u) == 0 ]] || fail "a node needs root (it mounts, and makes network namespaces): run as root, or use kind or --kubeconfig"

packages=()
for pair in containerd:containerd runc:runc iptables:iptables conntrack:conntrack ip:iproute2; do
    command -v "${pair%%:*}" >/dev/null || packages+=("${pair##*:}")
done
[[ -x /usr/lib/cni/bridge ]] || packages+=(containernetworking-plugins)
if ((${#packages[@]})); then
    command -v apt-get >/dev/null || fail "this machine lacks ${packages[*]} (names of Debian packages), and there is no apt-get"
    echo "node: installing ${packages[*]} with apt-get" >&2
    DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 update
    DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "${packages[@]}" >/dev/null
fi
for tool in pause coredns kubernetes helm; do tools/build.sh "$tool" >/dev/null; done
