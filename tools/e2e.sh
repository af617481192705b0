#!/usr/bin/env bash
# End-to-end tests: `make e2e`. Makes what they need (the node's programs, images that are not there or whose sources are newer) and runs e2e/ with pytest.
# Arguments go to pytest. With --kubeconfig nothing is installed and no image is built.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$PATH:/usr/sbin:/sbin"
# An archive, and the images in it.
declare -A archives=([operator]=operator [protocol]=protocol [relay]=relay [redis]=redis [minio]=minio [runtime]="trainer worker validator")

for tool in kubernetes helm; do tools/build.sh "$tool" >/dev/null; done # kubectl is one of the first's programs
if [[ " $* " != *" --kubeconfig"* ]]; then
    cluster=${E2E_CLUSTER:-}
    if [[ -z $cluster ]]; then
        cluster=local
        command -v kind >/dev/null && command -v docker >/dev/null && docker info >/dev/null 2>&1 && cluster=kind
    fi
    if [[ $cluster == local ]]; then
        tools/node.sh
        if ! command -v buildah >/dev/null && ! command -v podman >/dev/null && ! { command -v docker >/dev/null && docker info >/dev/null 2>&1; }; then
            echo "e2e: installing buildah and mmdebstrap with apt-get, to build images" >&2
            DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 update
            DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 install -y --no-install-recommends buildah mmdebstrap >/dev/null
        fi
    fi
    # An image is as new as the sources that may go into it.
    for name in "${!archives[@]}"; do
        read -ra roles <<<"${archives[$name]}"
        archive=.cache/images/$name.tar
        folders=("${roles[@]/#/images/}")
        [[ $name != runtime ]] || folders+=(images/runtime)
        if [[ -f $archive ]] && [[ -z $(find "${folders[@]}" images/*.* operator workloads pyproject.toml "requirements/images" \
            -newer "$archive" -type f -not -name '*.pyc' -print -quit) ]]; then
            continue
        fi
        if command -v buildah >/dev/null && ! buildah inspect --type image localhost/shoal-base:bookworm >/dev/null 2>&1; then
            tools/images.sh --base # needs no registry, and is the same everywhere
        fi
        PLAIN=1 tools/images.sh "${roles[@]}"
    done
fi
exec .venv/bin/python -m pytest e2e -p no:cacheprovider --durations=10 --timeout=600 "$@"
