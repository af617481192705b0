#!/usr/bin/env bash
# Lint, types, import rules, prose, tests and the core of the end-to-end tests: `make test`. Everything runs even when something before it failed, so that one
# run shows all that is wrong; the status is that of the whole. Arguments go to pytest; `--only-tests` leaves the static checks out, and `--fast` runs
# them with a fast tier of tests (`make check`). The core (tools/core.sh) runs last and alone, and only where nobody chose tests: without arguments, or with `-m "not soak"`.
#
# Writes .cache/junit.xml, of whole systems .cache/junit-systems.xml and .cache/junit-cluster.xml, and prints the slowest tests and every skipped one with its reason. With CI set, a
# test that was skipped for want of something that CI must have is a failure (tests/conftest.py).
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$PATH:/usr/sbin:/sbin"
mkdir -p .cache

failed=()
whole=
(($# == 0)) || [[ $# == 2 && $1 == -m && $2 == "not soak" ]] && whole=yes

check() {
    local name=$1 started=$SECONDS
    shift
    echo "== $name"
    "$@" || failed+=("$name")
    echo "   $((SECONDS - started)) s"
}

# Exit with the status of the whole.
finish() {
    if ((${#failed[@]})); then
        printf 'failed: %s\n' "$(IFS=,; echo "${failed[*]}" | sed 's/,/, /g')"
        exit 1
    fi
    exit 0
}

# A signal reaches the step at once, and is waited out: it has a node to take down.
passing_signals_on() {
    local step status
    "$@" &
    step=$!
    trap 'kill -TERM "$step" 2>/dev/null' INT TERM HUP
    wait "$step"
    status=$?
    while kill -0 "$step" 2>/dev/null; do # the signal ended the wait, not the step
        wait "$step"
        status=$?
    done
    trap - INT TERM HUP
    return "$status"
}

static_checks() {
    tools/build.sh vale &>/dev/null & # the prose check waits for it, and says what is wrong
    check "ruff check" .venv/bin/ruff check
    check "ruff format" .venv/bin/ruff format --check
    check "mypy" .venv/bin/mypy
    check "import rules" .venv/bin/lint-imports
    check "prose" .venv/bin/python -m tools.prose
}

# What needs no server, no engine and no trainer: contracts, the operator's builders and rules, reading a ledger, the prose linter and the size of the pages.
FAST=(tests/contracts tests/operator/test_{crds,golden_children,manifest,scale}.py tests/docs/test_{prose,page_size}.py tests/test_architecture.py)

if [[ ${1:-} == --fast ]]; then
    static_checks
    check "fast tests" .venv/bin/python -m pytest -q -n 2 --dist loadscope -p no:cacheprovider "${FAST[@]}"
    finish
elif [[ ${1:-} == --only-tests ]]; then
    shift
else
    # Programs are built while the static checks run; a machine without Go is told how to get it, and their tests are skipped (in CI: fail).
    # What only the core's node needs is built here too, or it would come out of the core's minutes.
    programs=(minio versitygw helm kubernetes)
    [[ -n $whole && $(uname -s) == Linux && $(id -u) == 0 ]] && programs+=(pause coredns)
    for program in "${programs[@]}"; do tools/build.sh "$program" || exit; done >/dev/null &
    building=$!
    .venv/bin/python -m tools.bytecode &>.cache/bytecode.log &
    compiling=$!
    static_checks
    echo "== tools"
    wait "$compiling" || echo "   not all bytecode is written (.cache/bytecode.log): tests pass without, and take longer"
    wait "$building" || echo "   MinIO, versitygw, Helm or a program of Kubernetes is not built: their tests cannot run"
fi

[[ "$*" == *"not soak"* ]] && echo "left out: tests marked soak, and the end-to-end tests beyond their core, which want more images (make soak)"
run_tests() { # $1: name of the report, the others: for pytest
    local report=$1
    shift
    .venv/bin/python -m pytest --junitxml=".cache/$report.xml" --durations=15 --durations-min=1 -p no:cacheprovider "$@"
}

if [[ -n $whole ]]; then
    # A test keeps one core busy, or waits: three folders at a time for two cores. Whole systems come last (LAST in tests/conftest.py).
    check "tests" run_tests junit -n 3 --dist loadscope --no-loadscope-reorder --ignore=tests/operator/cluster --ignore=tests/system "$@"
    # The operator's cluster mostly waits, for timers: two processes share its files.
    check "tests of the operator's cluster" run_tests junit-cluster -n 2 --dist loadfile --no-loadscope-reorder tests/operator/cluster "$@"
    check "tests of whole systems" run_tests junit-systems tests/system "$@"
else
    check "tests" run_tests junit "$@"
fi
if [[ -n $whole && -n ${CI:-} && $SECONDS -gt 4080 ]]; then
    # It may take fifteen minutes, set-up before this took up to seven, and CI stops at ninety: what all tests before it found would be lost.
    echo "skipped: core of the end-to-end tests: $((SECONDS / 60)) minutes have passed, and CI stops at 90"
elif [[ -n $whole ]]; then
    check "core of the end-to-end tests" passing_signals_on tools/core.sh
fi

finish
