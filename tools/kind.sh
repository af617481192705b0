#!/usr/bin/env bash
# Makes this machine able to hold a cluster of kind's (e2e/kind): kind, and where no Docker answers Debian's docker.io, unpacked into the user's cache and
# not installed, with what a node image is made from. Idempotent; starts nothing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$PATH:/usr/sbin:/sbin"

fail() {
    echo "kind: $*" >&2
    exit 1
}

home=${XDG_CACHE_HOME:-$HOME/.cache}/shoal/kind
if ! docker info >/dev/null 2>&1 && [[ ! -x $home/docker/usr/sbin/dockerd ]]; then
    [[ $(uname -s) == Linux && $(id -u) == 0 ]] || fail "no Docker answers: start it, or run this as root on Linux"
    command -v apt-get >/dev/null || fail "no Docker answers, and there is no apt-get to unpack Debian's with"
    rm -rf "$home/docker.partial" && mkdir -p "$home/docker.partial/packages"
    apt-get -qq -o DPkg::Lock::Timeout=300 update
    (cd "$home/docker.partial/packages" && apt-get -qq download docker.io libdevmapper1.02.1 2>/dev/null)
    for package in "$home/docker.partial/packages"/*.deb; do dpkg -x "$package" "$home/docker.partial"; done
    rm -rf "$home/docker.partial/packages"
    mv "$home/docker.partial" "$home/docker"
fi
packages=()
if [[ -x $home/docker/usr/sbin/dockerd ]]; then
    for pair in containerd:containerd runc:runc iptables:iptables ip:iproute2 nsenter:util-linux mmdebstrap:mmdebstrap; do
        command -v "${pair%%:*}" >/dev/null || packages+=("${pair##*:}")
    done
fi
if ((${#packages[@]})); then
    echo "kind: installing ${packages[*]} with apt-get" >&2
    DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 update
    DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "${packages[@]}" >/dev/null
fi
for tool in kind kubernetes coredns pause helm; do tools/build.sh "$tool" >/dev/null; done
