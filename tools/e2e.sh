#!/usr/bin/env bash
# End-to-end tests: `make e2e`. Makes what they need (the node's programs, images that are not there or whose sources are newer) and runs e2e/ with pytest.
# Arguments go to pytest; before them may stand `kind` or `local`, which choose the cluster, and `core`, for the core alone (tools/core.sh).
# With --kubeconfig nothing is installed and no image is built.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$PATH:/usr/sbin:/sbin"

case ${1:-} in kind | local)
    export E2E_CLUSTER=$1
    shift
    ;;
esac
[[ ${1:-} != core ]] || CORE_CLUSTER=${E2E_CLUSTER:-local} exec tools/core.sh

for tool in kubernetes helm kwok; do tools/build.sh "$tool" >/dev/null; done # kubectl is one of the first's programs
if [[ " $* " != *" --kubeconfig"* ]]; then
    cluster=${E2E_CLUSTER:-}
    if [[ -z $cluster ]]; then
        cluster=local
        command -v kind >/dev/null && command -v docker >/dev/null && docker info >/dev/null 2>&1 && cluster=kind
    fi
    [[ $cluster != kind ]] || tools/kind.sh
    [[ $cluster != local ]] || tools/node.sh || exit
    tools/setup.sh --with docker-registry:docker-registry skopeo:skopeo || echo "e2e: without docker-registry and skopeo no release is published and installed" >&2
    tools/archives.sh
    # The machine's one node, or kind's, is for one run at a time; tools/core.sh asks for the same lock. pytest inherits it.
    lock=${XDG_CACHE_HOME:-$HOME/.cache}/shoal/node.lock
    mkdir -p "$(dirname "$lock")"
    exec 9>>"$lock"
    flock -n 9 || { echo "e2e: another run of end-to-end tests has this machine's node; see who holds $lock" >&2; exit 1; }
    : >"$lock" # a node that is up from now on is no leftover of tools/core.sh
    if [[ $cluster == kind && " $* " != *" --keep-cluster "* ]]; then
        # However pytest ends: what it could not take down itself is taken down here.
        trap 'status=$?; .venv/bin/python -m e2e.kind down 9>&- || status=1; exit $status' EXIT
        trap 'exit 130' INT
        trap 'exit 143' TERM HUP
    fi
fi
# A real Kueue, where SHOAL_TEST_KUEUE names the program that installs and runs one (ADR 0095): the tests of queues ask it and not the stand-in.
kueue=0
if [[ -n ${SHOAL_TEST_KUEUE:-} ]]; then
    .venv/bin/python -m pytest tests/operator/cluster/test_queue_on_api_server.py -p no:cacheprovider -m "soak or not soak" || kueue=$?
fi
.venv/bin/python -m pytest e2e -p no:cacheprovider --durations=10 --timeout=600 "$@"
exit "$kueue"
