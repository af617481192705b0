#!/usr/bin/env bash
# End-to-end tests: `make e2e`. Makes what they need (the node's programs, images that are not there or whose sources are newer) and runs e2e/ with pytest.
# Arguments go to pytest. With --kubeconfig nothing is installed and no image is built.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$PATH:/usr/sbin:/sbin"

for tool in kubernetes helm; do tools/build.sh "$tool" >/dev/null; done # kubectl is one of the first's programs
if [[ " $* " != *" --kubeconfig"* ]]; then
    cluster=${E2E_CLUSTER:-}
    if [[ -z $cluster ]]; then
        cluster=local
        command -v kind >/dev/null && command -v docker >/dev/null && docker info >/dev/null 2>&1 && cluster=kind
    fi
    [[ $cluster != local ]] || { tools/node.sh && tools/setup.sh --with docker-registry:docker-registry skopeo:skopeo; } || exit
    tools/archives.sh
    if [[ $cluster == local ]]; then
        # The machine's one node is for one run at a time; tools/core.sh asks for the same lock. pytest inherits it.
        lock=${XDG_CACHE_HOME:-$HOME/.cache}/shoal/node.lock
        mkdir -p "$(dirname "$lock")"
        exec 9>>"$lock"
        flock -n 9 || { echo "e2e: another run of end-to-end tests has this machine's node; see who holds $lock" >&2; exit 1; }
        : >"$lock" # a node that is up from now on is no leftover of tools/core.sh
    fi
fi
exec .venv/bin/python -m pytest e2e -p no:cacheprovider --durations=10 --timeout=600 "$@"
