#!/usr/bin/env bash
# Lint, types, import rules and tests: `make test`. Everything runs even when something before it failed, so that one run shows all that is wrong;
# the status is that of the whole. Arguments go to pytest; `--only-tests` leaves the static checks out.
#
# Writes .cache/junit.xml and prints the slowest tests and every skipped one with its reason. With CI set, a test that was skipped for want of
# something that CI must have is a failure (tests/conftest.py).
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$PATH:/usr/sbin:/sbin"
mkdir -p .cache

failed=()
check() {
    local name=$1 started=$SECONDS
    shift
    echo "== $name"
    "$@" || failed+=("$name")
    echo "   $((SECONDS - started)) s"
}

if [[ ${1:-} == --only-tests ]]; then
    shift
else
    # Go programs are built while the static checks run; a machine without Go is told how to get it, and their tests are skipped (in CI: fail).
    { tools/build.sh minio && tools/build.sh helm && tools/build.sh kubernetes; } >/dev/null &
    building=$!
    check "ruff check" .venv/bin/ruff check
    check "ruff format" .venv/bin/ruff format --check
    check "mypy" .venv/bin/mypy operator/shoal_operator workloads/shoal benchmarks tools e2e
    check "import rules" .venv/bin/lint-imports
    echo "== tools"
    wait "$building" || echo "   MinIO, Helm or the Kubernetes control plane is not built: their tests cannot run"
fi

[[ "$*" == *"not soak"* ]] && echo "left out: tests marked soak (make soak), the end-to-end tests on a cluster (make e2e) among them"
echo "== tests"
.venv/bin/python -m pytest --junitxml=.cache/junit.xml --durations=15 --durations-min=1 -p no:cacheprovider "$@"
status=$?
((status == 0)) || failed+=("tests")

if ((${#failed[@]})); then
    printf 'failed: %s\n' "$(IFS=,; echo "${failed[*]}" | sed 's/,/, /g')"
    exit 1
fi
